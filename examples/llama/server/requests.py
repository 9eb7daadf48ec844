"""Requests to an engine, answers that grow token by token, and the engine's face.

Whoever speaks with clients knows this file alone; the threads of both sides meet in `Answer`.
"""
from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

from examples.llama.constraint import Constraint
from examples.llama.sampling import Sampler
from minigrad.errors import MinigradError

Finish = Literal["stop", "length", "cancelled", "error"]


class Busy(MinigradError):
    """More requests wait than the queue holds; `retry_after` is in how many seconds there may be room."""

    def __init__(self, message: str, retry_after: float):
        super().__init__(message)
        self.retry_after = retry_after


@dataclass(frozen=True)
class Request:
    """A text to continue, and how: token ids, at least one, and the most tokens of the answer.

    `sampler` and `constraint` have a state and belong to this request alone. `ends` are token ids that end the answer
    and are never part of it. With `top_logprobs` each Step has the log-probability of its token and of the n best.
    """

    prompt: tuple[int, ...]
    count: int
    sampler: Sampler
    ends: frozenset[int]
    constraint: Constraint | None = None
    top_logprobs: int | None = None


@dataclass(frozen=True)
class Step:
    """One token of an answer. `logprob` and `best` (token id, log-probability) are of the model's distribution before
    anything is done to it for sampling."""

    token: int
    logprob: float | None = None
    best: tuple[tuple[int, float], ...] = ()


def step_of(token: int, row: np.ndarray, best: int | None) -> Step:
    """The token with its log-probability and those of so many best ones, by the model's logits; None: without."""
    if best is None:
        return Step(token)
    scores = row.astype(np.float64)
    scores -= scores.max()
    scores -= np.log(np.exp(scores).sum())
    some = np.argpartition(-scores, min(best, len(scores) - 1))[:best]
    order = some[np.lexsort((some, -scores[some]))]
    return Step(token, float(scores[token]), tuple([(int(k), float(scores[k])) for k in order]))


class Answer:
    """A request that is queued or runs. Iterating gives its Steps as they come; it may be cancelled from any thread.

    Steps are given out once, by iterating or by `take`.
    """

    def __init__(self) -> None:
        self.finish: Finish | None = None
        self.error: MinigradError | None = None
        self.cached_tokens = 0
        self.cancelled = False
        self._steps: list[Step] = []
        self._changed = threading.Condition()
        self._notify: Callable[[], None] = _nothing

    @property
    def done(self) -> bool:
        """True once no further Step will come; some may still be there to take."""
        return self.finish is not None

    def __iter__(self) -> Iterator[Step]:
        """Waits for Steps until the answer is done. Raises the MinigradError that ended it."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: bool(self._steps) or self.done)
                steps, self._steps, done = self._steps, [], self.done
            yield from steps
            if done:
                if self.error is not None:
                    raise self.error
                return

    def subscribe(self, notify: Callable[[], None]) -> None:
        """Has `notify` called, from the engine's thread, whenever there is something new; once now, where there is."""
        with self._changed:
            self._notify = notify
            new = bool(self._steps) or self.done
        if new:
            notify()

    def take(self) -> list[Step]:
        """The Steps that came since the last call; never waits."""
        with self._changed:
            steps, self._steps = self._steps, []
        return steps

    def cancel(self) -> None:
        """Ends the answer; its place is free within one token."""
        self.cancelled = True

    def add(self, step: Step) -> None:
        """For the engine: one more token."""
        with self._changed:
            self._steps.append(step)
            self._changed.notify_all()
            notify = self._notify
        notify()

    def end(self, finish: Finish, error: MinigradError | None = None) -> None:
        """For the engine: nothing more will come."""
        with self._changed:
            self.finish, self.error = finish, error
            self._changed.notify_all()
            notify = self._notify
        notify()


def _nothing() -> None:
    pass


class Engine(Protocol):
    """Answers many requests at once. `context` is the most tokens of a prompt and its answer together."""

    context: int

    def submit(self, request: Request) -> Answer:
        """Queues a request. Raises Busy where the queue is full and ContextFull where the prompt is too long."""

    def embed(self, prompt: Sequence[int]) -> np.ndarray:
        """The mean of the last hidden states, normalised, float32 [width]. Raises as `submit` does."""

    def stats(self) -> dict[str, float]:
        """Requests that run and wait, bytes of the cache used and at most, tokens in and out."""

    def close(self, seconds: float) -> None:
        """Takes no further requests, finishes what runs, at most so long, and stops."""
