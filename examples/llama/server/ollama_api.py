"""Ollama's API, for programs that speak it: chats, continued texts, embeddings, and what models there are."""
from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from examples.llama.server.calls import Call
from examples.llama.server.errors import ApiError, unsupported
from examples.llama.server.models import Entry, Loaded
from examples.llama.server.openai_api import embedded, joined, kept
from examples.llama.server.openapi import VERSION
from examples.llama.server.prompts import Asked, Prompt, chat_prompt, text_prompt
from examples.llama.server.replies import Json, Stream, Value, Whole
from examples.llama.server.running import Run
from examples.llama.server.service import Service
from examples.llama.server.speech import Piece
from examples.llama.server.wire import OllamaBody, OllamaChat, OllamaEmbed, OllamaGenerate, OllamaShow, Options

PREFIX = "/api/"
NANOSECONDS = 1_000_000_000


def routes(service: Service) -> list[Route]:
    """The paths of the API."""
    api = Ollama(service)
    return [Route("/api/chat", api.chat, methods=["POST"]), Route("/api/generate", api.generate, methods=["POST"]),
            Route("/api/embed", api.embed, methods=["POST"]), Route("/api/show", api.show, methods=["POST"]),
            Route("/api/tags", api.tags, methods=["GET"]), Route("/api/ps", api.loaded, methods=["GET"]),
            Route("/api/version", api.version, methods=["GET"])]


def failed(error: ApiError) -> Value:
    """An error in Ollama's form."""
    return {"error": error.message}


class Ollama:
    """One method for each path."""

    def __init__(self, service: Service):
        self.service = service

    async def version(self, request: Request) -> Response:
        return Json({"version": VERSION})

    async def tags(self, request: Request) -> Response:
        return Json({"models": [_tag(entry) for entry in self.service.models.entries.values()]})

    async def loaded(self, request: Request) -> Response:
        return Json({"models": [_tag(entry) for entry in self.service.models.entries.values()
                                if entry.loaded is not None]})

    async def show(self, request: Request) -> Response:
        """Says what is known of a model, which is loaded for it."""
        body = await self.service.read(request, OllamaShow)
        entry = self.service.models.find(body.named())
        async with self.service.models.use(entry.name) as model:
            source = "" if model.template is None else model.template.source
            able = ["completion", "embedding", *(["tools"] if model.template is not None else []),
                    *(["thinking"] if "<think>" in source else [])]
            return Json({**_tag(entry), "template": source, "capabilities": able, "model_info": {
                "general.architecture": model.family, f"{model.family}.context_length": model.context}})

    async def chat(self, request: Request) -> Response:
        body = await self.service.read(request, OllamaChat)
        asked = Asked(_messages(body), [tool.model_dump(exclude_none=True, exclude={"function": {"strict"}})
                                        for tool in body.tools or ()],
                      schema=body.schema_asked(), think=body.think, stops=_stops(body.options))
        return await self._answer(body, lambda model: chat_prompt(model, asked), chat_part)

    async def generate(self, request: Request) -> Response:
        body = await self.service.read(request, OllamaGenerate)
        if body.raw and body.system:
            raise unsupported("system", "expected system or raw, got both: a raw prompt is given as it is")

        def prompt(model: Loaded) -> Prompt:
            if body.raw or model.template is None:
                if body.system:
                    raise unsupported("system", "this model has no chat format, and no system message")
                return text_prompt(model, body.prompt or "", _stops(body.options), body.schema_asked())
            system = [{"role": "system", "content": body.system}] if body.system else []
            return chat_prompt(model, Asked([*system, {"role": "user", "content": body.prompt or ""}],
                                            schema=body.schema_asked(), think=body.think, stops=_stops(body.options)))

        if not body.prompt and not body.raw:  # how clients have a model loaded
            async with self.service.models.use(body.model):
                return Json({"model": body.model, "created_at": _now(), "response": "", "done": True,
                             "done_reason": "load"})
        return await self._answer(body, prompt, text_part)

    async def embed(self, request: Request) -> Response:
        body = await self.service.read(request, OllamaEmbed)
        async with self.service.models.use(body.model) as model:
            _check(body.options, model)
            texts = body.input if isinstance(body.input, list) else [body.input]
            vectors, count = await embedded(model, texts, body.truncate is not False)
        if body.dimensions not in (None, vectors.shape[1]):
            raise ApiError(400, f"dimensions: this model's embeddings have {vectors.shape[1]}, got {body.dimensions}")
        return Json({"model": body.model, "embeddings": [[float(x) for x in row] for row in vectors],
                     "prompt_eval_count": count})

    async def _answer(self, body: OllamaBody, make: Callable[[Loaded], Prompt], part: Callable[[Piece], Value]
                      ) -> Response:
        options = body.options or Options()
        async with kept(self.service, body.model) as (held, model):
            _check(options, model)
            prompt = await self.service.in_thread(lambda: make(model))
            count = options.num_predict if options.num_predict is not None and options.num_predict > 0 else None
            run = await self.service.start(held, model, [prompt], 1, options, count)
            form = _Lines(body.model, run, len(prompt.tokens), part)
            if body.stream is False:
                return Whole(run, form.whole)
            return Stream(run, form.lines(), False, failed)


class _Lines:
    """Makes lines of a run, or one object."""

    def __init__(self, name: str, run: Run, prompt_tokens: int, part: Callable[[Piece], Value]):
        self.name, self.run, self.prompt_tokens, self.part = name, run, prompt_tokens, part

    async def lines(self) -> AsyncIterator[Value]:
        """A line for each piece, the last one with counts and times."""
        async for _, piece in self.run:
            last = self._end(piece) if piece.finish is not None else {"done": False}
            if piece.text or piece.reasoning or piece.calls or piece.finish is not None:
                yield {"model": self.name, "created_at": _now(), **self.part(piece), **last}

    async def whole(self) -> Value:
        """All of it at once."""
        piece = (await joined(self.run))[0]
        return {"model": self.name, "created_at": _now(), **self.part(piece), **self._end(piece)}

    def _end(self, piece: Piece) -> dict[str, Any]:
        now = self.run.now()
        first = now if self.run.first is None else self.run.first
        return {"done": True, "done_reason": "length" if piece.finish == "length" else "stop",
                "total_duration": _nanoseconds(now - self.run.begun), "load_duration": 0,
                "prompt_eval_count": self.prompt_tokens,
                "prompt_eval_duration": _nanoseconds(first - self.run.begun),
                "eval_count": self.run.tokens, "eval_duration": _nanoseconds(now - first)}


def chat_part(piece: Piece) -> Value:
    message: dict[str, Any] = {"role": "assistant", "content": piece.text}
    if piece.reasoning:
        message["thinking"] = piece.reasoning
    if piece.calls:
        message["tool_calls"] = [_called(call) for call in piece.calls]
    return {"message": message}


def text_part(piece: Piece) -> Value:
    return {"response": piece.text, **({"thinking": piece.reasoning} if piece.reasoning else {})}


def _called(call: Call) -> dict[str, Any]:
    return {"id": call.id, "function": {"name": call.name, "arguments": json.loads(call.arguments)}}


def _messages(body: OllamaChat) -> list[dict[str, Any]]:
    found = []
    for message in body.messages:
        one: dict[str, Any] = {"role": message.role, "content": message.content or ""}
        if message.thinking:
            one["reasoning_content"] = message.thinking
        if message.role == "tool":
            one |= {"tool_call_id": message.tool_call_id or "", "name": message.tool_name or ""}
        if message.tool_calls:
            one["tool_calls"] = [{"id": call.id or "", "type": "function", "function": {
                "name": call.function.name, "arguments": call.function.arguments}} for call in message.tool_calls]
        found.append(one)
    return found


def _stops(options: Options | None) -> tuple[str, ...]:
    return tuple(options.stop or ()) if options is not None else ()


def _check(options: Options | None, model: Loaded) -> None:
    if options is not None and options.num_ctx is not None and options.num_ctx > model.context:
        raise unsupported("num_ctx", f"num_ctx: this server's models have a context of {model.context} tokens, got "
                                     f"{options.num_ctx}; --context gives more when it is started")


def _tag(entry: Entry) -> dict[str, Any]:
    return {"name": entry.name, "model": entry.name, "modified_at": _time(entry.created), "size": entry.needs,
            "digest": "", "details": {"format": entry.path.suffix.removeprefix(".") or "folder",
                                      "family": "" if entry.loaded is None else entry.loaded.family, "families": None,
                                      "parameter_size": "", "quantization_level": "", "parent_model": ""}}


def _now() -> str:
    return datetime.now(UTC).isoformat().replace("+00:00", "Z")


def _time(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")


def _nanoseconds(seconds: float) -> int:
    return max(1, int(seconds * NANOSECONDS))
