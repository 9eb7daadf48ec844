"""Common to all APIs of the server: bodies are read, requests put to engines, answers timed."""
from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TypeVar

from pydantic import ValidationError
from starlette.requests import ClientDisconnect, Request

from examples.llama.sampling import Sampler
from examples.llama.server import requests as engines
from examples.llama.server.errors import ApiError, described, invalid
from examples.llama.server.metrics import Metrics
from examples.llama.server.models import Loaded, Models
from examples.llama.server.prompts import Prompt, constraints, room_for
from examples.llama.server.requests import Answer
from examples.llama.server.running import ClientGone, Run
from examples.llama.server.speech import Speech
from examples.llama.server.wire import Body, Options, Sampling
from minigrad.errors import MinigradError

B = TypeVar("B", bound=Body)
SEEDS = 1 << 63
COLDEST = 1e-4
"""Temperatures below take the best token: others would have no weight that a float can say."""


@dataclass(frozen=True)
class Limits:
    """Bounds of what clients may ask: bytes of a body, seconds until it is there, seconds and tokens of an answer,
    seconds until a client takes what it is sent."""

    body: int = 4 << 20
    receive_seconds: float = 30.0
    answer_seconds: float = 600.0
    tokens: int = 1 << 31
    send_seconds: float = 60.0


@dataclass(frozen=True)
class Defaults:
    """The choice of tokens where a request does not say."""

    temperature: float = 0.7
    top_p: float = 0.95
    top_k: int = 0
    min_p: float = 0.0


class Service:
    """The models of a server, and how they are asked."""

    def __init__(self, models: Models, limits: Limits, defaults: Defaults, metrics: Metrics):
        self.models, self.limits, self.defaults, self.metrics = models, limits, defaults, metrics

    async def read(self, request: Request, kind: type[B]) -> B:
        """The body of a request. Raises ApiError where it is too large, too slow, or not what it has to be."""
        data = bytearray()
        try:
            async with asyncio.timeout(self.limits.receive_seconds):
                async for part in request.stream():
                    data += part
                    if len(data) > self.limits.body:
                        raise ApiError(413, f"the body is larger than {self.limits.body} bytes", code="body_too_large",
                                       headers={"Connection": "close"})
        except TimeoutError:
            raise ApiError(408, f"the body did not come within {self.limits.receive_seconds:g} seconds",
                           code="body_too_slow", headers={"Connection": "close"}) from None
        except ClientDisconnect:
            raise ClientGone from None
        try:
            return kind.model_validate_json(bytes(data))
        except ValidationError as error:
            raise invalid(error) from None

    async def start(self, held: AsyncExitStack, model: Loaded, prompts: Sequence[Prompt], number: int,
                    sampling: Sampling | Options, count: int | None, top_logprobs: int | None = None) -> Run:
        """Has each prompt answered `number` times. `held` is what the run gives back when it ends. Raises ApiError."""
        requests: list[engines.Request] = []
        speeches: list[Speech] = []
        try:
            for prompt in prompts:
                most = room_for(model, prompt, count, self.limits.tokens)
                forms = await asyncio.to_thread(constraints, model, prompt, most, number)
                for form in forms:
                    sampler = self.sampler(sampling, len(requests))
                    requests.append(engines.Request(tuple(prompt.tokens), most, sampler, model.tokenizer.ends, form,
                                                    top_logprobs))
                    speeches.append(Speech(model.tokenizer, prompt.manner))
            answers = await self._submit(model, requests)
        except MinigradError as error:
            raise described(error) from None
        told = self._told(sum([len(prompt.tokens) for prompt in prompts]))
        return Run(answers, speeches, number, self.limits.answer_seconds, held, told)

    async def _submit(self, model: Loaded, requests: Sequence[engines.Request]) -> list[Answer]:
        """All of the requests, or none of them where the queue has no room for one."""
        answers: list[Answer] = []
        try:
            for request in requests:
                answers.append(model.engine.submit(request))
        except BaseException:
            for answer in answers:
                answer.cancel()
            raise
        return answers

    def _told(self, prompt: int) -> Callable[[int, int], None]:
        def told(cached: int, completion: int) -> None:
            self.metrics.count_tokens(prompt, cached, completion)
        return told

    def sampler(self, asked: Sampling | Options, number: int) -> Sampler:
        """A sampler for the answer of a number: with one seed, each number has its own."""
        defaults = self.defaults
        temperature = defaults.temperature if asked.temperature is None else asked.temperature
        penalties = asked.presence_penalty or 0.0, asked.frequency_penalty or 0.0
        last = asked.repeat_last_n if isinstance(asked, Options) else -1  # OpenAI's are of all that was said
        return Sampler(
            temperature if temperature >= COLDEST else 0.0,
            defaults.top_k if asked.top_k is None else asked.top_k,
            defaults.top_p if asked.top_p is None else asked.top_p,
            defaults.min_p if asked.min_p is None else asked.min_p,
            asked.repeat_penalty or 1.0, *penalties, 64 if last is None else last,
            None if asked.seed is None else (asked.seed + number) % SEEDS)

    async def in_thread(self, work: Callable[[], Prompt]) -> Prompt:
        """A prompt, made aside: templates and tokenizers may take their time."""
        try:
            return await asyncio.to_thread(work)
        except MinigradError as error:
            raise described(error) from None
