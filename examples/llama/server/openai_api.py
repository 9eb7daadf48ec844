"""OpenAI's API: chats, completions, embeddings, models."""
from __future__ import annotations

import asyncio
import base64
import json
import secrets
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import numpy as np
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from examples.llama.server.calls import Call
from examples.llama.server.errors import ApiError, described
from examples.llama.server.models import Entry, Loaded
from examples.llama.server.prompts import Asked, Prompt, chat_prompt, text_prompt
from examples.llama.server.replies import Json, Stream, Value, Whole
from examples.llama.server.requests import Step
from examples.llama.server.running import Run
from examples.llama.server.service import Service
from examples.llama.server.speech import Piece
from examples.llama.server.wire import Chat, Common, Completion, Embeddings, Message, NamedTool
from examples.llama.tokenizer import Tokenizer
from minigrad.errors import MinigradError


def routes(service: Service) -> list[Route]:
    """The paths of the API."""
    api = OpenAI(service)
    return [Route("/v1/chat/completions", api.chat, methods=["POST"]),
            Route("/v1/completions", api.complete, methods=["POST"]),
            Route("/v1/embeddings", api.embed, methods=["POST"]),
            Route("/v1/models", api.models, methods=["GET"]),
            Route("/v1/models/{name:path}", api.model, methods=["GET"])]


class OpenAI:
    """One method for each path."""

    def __init__(self, service: Service):
        self.service = service

    # Models

    async def models(self, request: Request) -> Response:
        return Json({"object": "list", "data": [_described(e) for e in self.service.models.entries.values()]})

    async def model(self, request: Request) -> Response:
        return Json(_described(self.service.models.find(request.path_params["name"])))

    # Chats

    async def chat(self, request: Request) -> Response:
        body = await self.service.read(request, Chat)
        asked = _asked(body)
        top = (body.top_logprobs or 0) if body.logprobs else None
        async with kept(self.service, body.model) as (held, model):
            prompt = await self.service.in_thread(lambda: chat_prompt(model, asked))
            count = body.max_completion_tokens or body.max_tokens
            run = await self.service.start(held, model, [prompt], body.n or 1, body, count, top)
            return self._reply(body, run, _ChatForm(body, model, run, len(prompt.tokens)))

    async def complete(self, request: Request) -> Response:
        body = await self.service.read(request, Completion)
        stops = tuple(body.stops())
        async with kept(self.service, body.model) as (held, model):
            prompts: list[Prompt] = []
            for text in body.prompts():
                prompts.append(await self.service.in_thread(lambda text=text: text_prompt(  # type: ignore[misc]
                    model, text, stops)))
            run = await self.service.start(held, model, prompts, body.n or 1, body, body.max_tokens or 16,
                                           body.logprobs)
            return self._reply(body, run, _TextForm(body, model, run, prompts))

    def _reply(self, body: Common, run: Run, form: _Form) -> Response:
        if body.stream:
            return Stream(run, form.chunks(), True, ApiError.body)
        return Whole(run, form.whole)

    # Embeddings

    async def embed(self, request: Request) -> Response:
        body = await self.service.read(request, Embeddings)
        async with self.service.models.use(body.model) as model:
            vectors, count = await embedded(model, body.texts())
        if body.dimensions not in (None, vectors.shape[1]):
            raise ApiError(400, f"dimensions: this model's embeddings have {vectors.shape[1]}, got {body.dimensions}",
                           "dimensions", "invalid_value")
        data = [{"object": "embedding", "index": index, "embedding": _encoded(row, body.encoding_format)}
                for index, row in enumerate(vectors)]
        return Json({"object": "list", "model": body.model, "data": data,
                     "usage": {"prompt_tokens": count, "total_tokens": count}})


@asynccontextmanager
async def kept(service: Service, name: str) -> AsyncIterator[tuple[AsyncExitStack, Loaded]]:
    """A model, which stays loaded until what is made here gives it back; at once where nothing is made."""
    held = AsyncExitStack()
    try:
        yield held, await held.enter_async_context(service.models.use(name))
    except BaseException:
        await held.aclose()
        raise


async def embedded(model: Loaded, texts: Sequence[str | list[int]], cut: bool = False) -> tuple[np.ndarray, int]:
    """Embeddings [n, width] of texts, `cut` to what the context holds, and how many tokens these have together. Raises
    ApiError."""
    rows, count = [], 0
    try:
        for text in texts:
            text = text[:model.context * model.longest] if cut else text
            prompt = await asyncio.to_thread(text_prompt, model, text, ())
            tokens = prompt.tokens[:model.context] if cut else prompt.tokens
            rows.append(await asyncio.to_thread(model.engine.embed, tokens))
            count += len(tokens)
    except MinigradError as error:
        raise described(error) from None
    return np.stack(rows), count


def _encoded(row: np.ndarray, form: str | None) -> str | list[float]:
    if form == "base64":
        return base64.b64encode(row.astype("<f4").tobytes()).decode()
    return [float(value) for value in row]


def _described(entry: Entry) -> dict[str, Any]:
    return {"id": entry.name, "object": "model", "created": entry.created, "owned_by": "minigrad",
            "loaded": entry.loaded is not None,
            "context_length": None if entry.loaded is None else entry.loaded.context}


def _asked(body: Chat) -> Asked:
    """A conversation as templates have it. Raises ApiError for calls whose arguments are no object."""
    choice = body.tool_choice.function.name if isinstance(body.tool_choice, NamedTool) else body.tool_choice or "auto"
    tools = [tool.model_dump(exclude_none=True, exclude={"function": {"strict"}}) for tool in body.tools or ()]
    strict = next((tool.function.name for tool in body.tools or () if tool.function.strict), None)
    if strict is not None and choice == "auto":
        raise ApiError(400, f"tools: {strict} is strict, which can be met with tool_choice required or a function's "
                            "name only", "tools", "unsupported_value")
    schema = None if body.response_format is None else body.response_format.schema_asked()
    settings = {**(body.chat_template_kwargs or {}), **({} if body.reasoning_effort is None else
                                                       {"reasoning_effort": body.reasoning_effort})}
    return Asked([_message(message, at) for at, message in enumerate(body.messages)], tools, choice,
                 body.parallel_tool_calls is False, schema, settings, None, tuple(body.stops()))


def _message(message: Message, at: int) -> dict[str, Any]:
    role = "system" if message.role == "developer" else message.role
    found: dict[str, Any] = {"role": role, "content": message.text()}
    if message.reasoning_content:
        found["reasoning_content"] = message.reasoning_content
    if message.role == "tool":
        found["tool_call_id"] = message.tool_call_id or ""
    if message.tool_calls:
        found["tool_calls"] = [{"id": call.id or "", "type": "function", "function": {
            "name": call.function.name, "arguments": _arguments(call.function.arguments, at)}}
            for call in message.tool_calls]
    return found


def _arguments(text: str | dict[str, Any], at: int) -> dict[str, Any]:
    try:
        value = json.loads(text or "{}") if isinstance(text, str) else text
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise ApiError(400, f"messages.{at}.tool_calls: expected arguments that are a JSON object",
                       f"messages.{at}.tool_calls", "invalid_value")
    return value


def _called(calls: Sequence[Call], start: int | None = None) -> list[dict[str, Any]]:
    return [{**({} if start is None else {"index": start + at}), "id": call.id, "type": "function",
             "function": {"name": call.name, "arguments": call.arguments}} for at, call in enumerate(calls)]


class _Form:
    """Makes chunks of a run, or one object of them all."""

    kind, begins = "", ""

    def __init__(self, body: Common, model: Loaded, run: Run, prompt_tokens: int):
        self.body, self.model, self.run, self.prompt_tokens = body, model, run, prompt_tokens
        self.id, self.created = f"{self.begins}-{secrets.token_hex(12)}", int(time.time())

    def envelope(self, kind: str, choices: list[dict[str, Any]], usage: bool) -> dict[str, Any]:
        """An object of the answer, with what each of them has."""
        found = {"id": self.id, "object": kind, "created": self.created, "model": self.body.model, "choices": choices}
        return {**found, "usage": self.usage()} if usage else found

    def usage(self) -> dict[str, Any]:
        out = self.run.tokens
        return {"prompt_tokens": self.prompt_tokens, "completion_tokens": out,
                "total_tokens": self.prompt_tokens + out,
                "prompt_tokens_details": {"cached_tokens": self.run.cached}}

    async def chunks(self) -> AsyncIterator[Value]:
        raise NotImplementedError
        yield

    async def whole(self) -> Value:
        raise NotImplementedError

    @property
    def with_usage(self) -> bool:
        options = self.body.stream_options
        return options is not None and bool(options.include_usage)

    async def last(self, kind: str) -> AsyncIterator[Value]:
        if self.with_usage:
            yield self.envelope(kind, [], True)


class _ChatForm(_Form):
    begins = "chatcmpl"

    async def chunks(self) -> AsyncIterator[Value]:
        """A delta for each piece; the first of each choice names the role."""
        kind = "chat.completion.chunk"
        calls = [0] * len(self.run.answers)
        for index in range(len(calls)):
            yield self.envelope(kind, [_choice(index, {"role": "assistant", "content": ""})], False)
        async for index, piece in self.run:
            delta: dict[str, Any] = {}
            if piece.text:
                delta["content"] = piece.text
            if piece.reasoning:
                delta["reasoning_content"] = piece.reasoning
            if piece.calls:
                delta["tool_calls"] = _called(piece.calls, calls[index])
                calls[index] += len(piece.calls)
            logprobs = self.logprobs(piece.steps)
            if delta or logprobs:
                yield self.envelope(kind, [_choice(index, delta, None, logprobs)], False)
            if piece.finish is not None:
                yield self.envelope(kind, [_choice(index, {}, piece.finish)], False)
        async for value in self.last(kind):
            yield value

    async def whole(self) -> Value:
        """All of it at once."""
        pieces = await joined(self.run)
        choices = []
        for index, piece in enumerate(pieces):
            message: dict[str, Any] = {"role": "assistant", "content": piece.text or (None if piece.calls else "")}
            if piece.reasoning:
                message["reasoning_content"] = piece.reasoning.strip()
            if piece.calls:
                message["tool_calls"] = _called(piece.calls)
            choices.append({"index": index, "message": message, "logprobs": self.logprobs(piece.steps),
                            "finish_reason": piece.finish})
        return self.envelope("chat.completion", choices, True)

    def logprobs(self, steps: Sequence[Step]) -> dict[str, Any] | None:
        if not isinstance(self.body, Chat) or not self.body.logprobs or not steps:
            return None
        tokenizer = self.model.tokenizer
        return {"content": [{**_token(tokenizer, step.token, step.logprob or 0.0), "top_logprobs": [
            _token(tokenizer, token, value) for token, value in step.best]} for step in steps]}


def _choice(index: int, delta: Mapping[str, Any], finish: str | None = None, logprobs: Any = None) -> dict[str, Any]:
    return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish}


def _token(tokenizer: Tokenizer, token: int, logprob: float) -> dict[str, Any]:
    """A token with its probability; a control token by its name."""
    data = _bytes_of(tokenizer, token)
    return {"token": data.decode(errors="replace"), "logprob": max(logprob, -9999.0), "bytes": list(data)}


def _bytes_of(tokenizer: Tokenizer, token: int) -> bytes:
    data = tokenizer.token_bytes(token) if token < tokenizer.size else b""
    if data:
        return data
    return next((name.encode() for name, number in tokenizer.special.items() if number == token), b"")


async def joined(run: Run) -> list[Piece]:
    """Each answer in one piece."""
    parts: list[list[Piece]] = [[] for _ in run.answers]
    async for index, piece in run:
        parts[index].append(piece)
    return [Piece("".join([p.text for p in each]), "".join([p.reasoning for p in each]),
                  tuple([call for p in each for call in p.calls]), tuple([step for p in each for step in p.steps]),
                  each[-1].finish) for each in parts]


class _TextForm(_Form):
    begins, kind = "cmpl", "text_completion"

    def __init__(self, body: Completion, model: Loaded, run: Run, prompts: Sequence[Prompt]):
        super().__init__(body, model, run, sum([len(prompt.tokens) for prompt in prompts]))
        each = len(run.answers) // len(prompts)
        self.echoes = [text if isinstance(text, str) else model.tokenizer.decode(text)
                       for text in body.prompts() for _ in range(each)] if body.echo else [""] * len(run.answers)
        self.offsets = [0] * len(run.answers)

    async def chunks(self) -> AsyncIterator[Value]:
        """A text for each piece."""
        for index, echo in enumerate(self.echoes):
            if echo:
                yield self.envelope(self.kind, [self.choice(index, echo, (), None)], False)
        async for index, piece in self.run:
            yield self.envelope(self.kind, [self.choice(index, piece.text, piece.steps, piece.finish)], False)
        async for value in self.last(self.kind):
            yield value

    async def whole(self) -> Value:
        """All of it at once."""
        pieces = await joined(self.run)
        return self.envelope(self.kind, [self.choice(index, self.echoes[index] + piece.text, piece.steps, piece.finish)
                                         for index, piece in enumerate(pieces)], True)

    def choice(self, index: int, text: str, steps: Sequence[Step], finish: str | None) -> dict[str, Any]:
        return {"index": index, "text": text, "logprobs": self.logprobs(index, steps), "finish_reason": finish}

    def logprobs(self, index: int, steps: Sequence[Step]) -> dict[str, Any] | None:
        """In the form of completions: lists beside each other; offsets count characters of tokens."""
        if not isinstance(self.body, Completion) or self.body.logprobs is None or not steps:
            return None
        tokenizer = self.model.tokenizer
        texts = [_bytes_of(tokenizer, step.token).decode(errors="replace") for step in steps]
        offsets = []
        for text in texts:
            offsets.append(self.offsets[index])
            self.offsets[index] += len(text)
        return {"tokens": texts, "token_logprobs": [max(step.logprob or 0.0, -9999.0) for step in steps],
                "top_logprobs": [{_bytes_of(tokenizer, token).decode(errors="replace"): max(value, -9999.0)
                                  for token, value in step.best} for step in steps], "text_offset": offsets}
