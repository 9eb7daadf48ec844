"""Answers of an engine in the loop of the server: pieces as they come, and an end when a client has gone."""
from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, suppress
from typing import Any, TypeVar

from starlette.types import Receive

from examples.llama.server.errors import described
from examples.llama.server.requests import Answer
from examples.llama.server.speech import Piece, Speech

R = TypeVar("R")


class ClientGone(Exception):
    """Nobody waits for the response any more."""


async def unless_gone(receive: Receive, work: Coroutine[Any, Any, R]) -> R:
    """The result of `work`, which is cancelled when the client goes away. Raises ClientGone then."""
    task, gone = asyncio.ensure_future(work), asyncio.ensure_future(_disconnect(receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientGone
    finally:
        for each in (task, gone):
            each.cancel()
        with suppress(asyncio.CancelledError, Exception):
            await task


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class Run:
    """The answers to one request, each with its reader; iterating gives (number of the answer, Piece).

    `each` of them are to the same prompt; they end after `seconds`. What is in `held` is given back when all have
    ended, and whatever happens their places in the engine are freed; `told` is given the tokens found in a cache, and
    those of answers.
    """

    def __init__(self, answers: Sequence[Answer], speeches: Sequence[Speech], each: int, seconds: float,
                 held: AsyncExitStack, told: Callable[[int, int], None]):
        self.answers, self.speeches, self.each, self.seconds = answers, speeches, each, seconds
        self.held, self.told = held, told
        self.counts = [0] * len(answers)
        self.first: float | None = None
        self.begun = self.now()
        self.closed = False

    def now(self) -> float:
        """Seconds, as `begun` and `first` count them: when it was asked, and when the first token came."""
        return asyncio.get_running_loop().time()

    @property
    def tokens(self) -> int:
        """The number of tokens of all answers."""
        return sum(self.counts)

    @property
    def cached(self) -> int:
        """Of the tokens of prompts, those that were not fed again; of each prompt the most of its answers."""
        counts = [answer.cached_tokens for answer in self.answers]
        return sum([max(counts[at:at + self.each]) for at in range(0, len(counts), self.each)])

    async def __aiter__(self) -> AsyncIterator[tuple[int, Piece]]:
        loop, event = asyncio.get_running_loop(), asyncio.Event()
        deadline = loop.call_later(self.seconds, self.cancel)
        left = dict(enumerate(self.answers))
        try:
            for answer in self.answers:
                answer.subscribe(lambda: _wake(loop, event))
            while left:
                await event.wait()
                event.clear()
                for number, answer in list(left.items()):
                    done = answer.done  # before the steps are taken: none comes after
                    piece = self._piece(number, answer, done)
                    if piece.finish is not None:
                        del left[number]
                    if piece != Piece():
                        yield number, piece
        finally:
            deadline.cancel()
            await self.close()

    def _piece(self, number: int, answer: Answer, done: bool) -> Piece:
        steps, speech = answer.take(), self.speeches[number]
        if steps and self.first is None:
            self.first = self.now()
        piece = speech.add(steps)
        self.counts[number] += len(piece.steps)
        if speech.ended:
            answer.cancel()
            return _ended(piece, speech, "stop")
        if not done:
            return piece
        if answer.error is not None:
            raise described(answer.error)
        last = speech.finish()
        whole = Piece(piece.text + last.text, piece.reasoning + last.reasoning, piece.calls + last.calls, piece.steps)
        return _ended(whole, speech, "stop" if answer.finish == "stop" else "length")

    def cancel(self) -> None:
        """Ends all answers; what has come of them stays."""
        for answer in self.answers:
            answer.cancel()

    async def close(self) -> None:
        """Frees what the answers hold."""
        if not self.closed:
            self.closed = True
            self.cancel()
            self.told(self.cached, self.tokens)
            await self.held.aclose()


def _ended(piece: Piece, speech: Speech, finish: str) -> Piece:
    whole = finish == "stop" or speech.manner.forced  # a forced call that parses has all its tokens
    return Piece(piece.text, piece.reasoning, piece.calls, piece.steps,
                 "tool_calls" if speech.called and whole else finish)


def _wake(loop: asyncio.AbstractEventLoop, event: asyncio.Event) -> None:
    with suppress(RuntimeError):  # the server has ended meanwhile
        loop.call_soon_threadsafe(event.set)
