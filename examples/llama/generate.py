"""Tokens out of a model: a session that remembers what the cache holds, and the loop that makes an answer."""
from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass

import numpy as np

from examples.llama.constraint import Constraint
from examples.llama.model import Llama
from examples.llama.sampling import Sampler
from examples.llama.speculation import Speculation
from minigrad import Tensor, Variable, jit
from minigrad.errors import MinigradError
from minigrad.expr import Index

PIECE = 512
"""Tokens of a prompt that are fed at once: longer ones take no more memory, and no other plan."""
WARM_UP_STEPS = 4


class ContextFull(MinigradError):
    """The conversation does not fit the cache."""


class Stopped(Exception):
    """A prompt was not fed to its end."""


@dataclass
class Timing:
    """Tokens and seconds of the two phases, summed over the answers since it was made."""

    prefill_tokens: int = 0
    prefill_seconds: float = 0.0
    decode_tokens: int = 0
    decode_seconds: float = 0.0

    def __add__(self, other: Timing) -> Timing:
        return Timing(*[ours + theirs for ours, theirs in zip(astuple(self), astuple(other), strict=True)])

    def report(self, weight_bytes: int) -> str:
        """Rates in tokens per second, and how fast decoding went through the weights."""
        prefill = self.prefill_tokens / self.prefill_seconds if self.prefill_seconds else 0.0
        decode = self.decode_tokens / self.decode_seconds if self.decode_seconds else 0.0
        return (f"prefill {self.prefill_tokens} tokens, {prefill:.1f} tok/s; decode {self.decode_tokens} tokens, "
                f"{decode:.1f} tok/s, {decode * weight_bytes / 1e9:.1f} GB/s of weights")


class Session:
    """A conversation with a model: the first `position` slots of its cache hold `tokens`.

    Few plans run, however long prompts and conversation get: one for a piece of a prompt, of symbolic length, one for
    a single token, and one for each number of rows that guessed tokens are verified with. A model with a recurrent
    state cannot go back: it forgets everything instead, and guesses nothing.
    """

    def __init__(self, model: Llama):
        self.model = model
        self.tokens: list[int] = []
        self.timing = Timing()
        self.piece = min(PIECE, model.capacity)
        self._length = Variable("length", 2, max(2, self.piece))
        self._prefill: Callable[..., Tensor] = jit(self._run_prompt)
        self._decode: Callable[..., Tensor] = jit(self._run_token)
        self._verify: dict[int, Callable[..., Tensor]] = {}

    def _run_prompt(self, padded: Tensor, length: Index, position: Index) -> Tensor:
        return self._run_token(padded[:length], position)

    def _run_token(self, tokens: Tensor, position: Index) -> Tensor:
        logits = self.model(tokens, position)
        Tensor.realize(logits, *self.model.caches())
        return logits

    def _run_rows(self, tokens: Tensor, position: Index) -> Tensor:
        logits = self.model.logits(self.model.hidden(tokens, position))
        Tensor.realize(logits, *self.model.caches())
        return logits

    @property
    def position(self) -> int:
        """The number of tokens that the cache holds. Setting it forgets those from there on, or, of a recurrent model,
        all of them if there are any."""
        return len(self.tokens)

    @position.setter
    def position(self, position: int) -> None:
        if position < len(self.tokens):
            del self.tokens[0 if self.model.recurrent else position:]

    def room(self) -> int:
        """The number of further tokens that the cache can take."""
        return self.model.capacity - self.position

    def resume(self, tokens: list[int]) -> list[int]:
        """Forgets at least what is not the start of `tokens`; returns those that are left to feed: the last one, or
        more."""
        same = next((at for at, (old, new) in enumerate(zip(self.tokens, tokens, strict=False)) if old != new),
                    min(len(self.tokens), len(tokens)))
        self.position = min(same, len(tokens) - 1)
        return tokens[self.position:]

    def feed(self, tokens: list[int], stopped: Callable[[], bool] = lambda: False) -> np.ndarray:
        """Appends tokens to the conversation, in pieces; returns the logits of the next one, float32 [vocabulary].

        Raises ContextFull, changing nothing, where they do not fit, and Stopped after the piece in which `stopped`.
        """
        if len(tokens) > self.room():
            raise ContextFull(f"the conversation would have {self.position + len(tokens)} tokens and the cache holds "
                              f"{self.model.capacity}; start a new one (/reset) or ask for more with --context")
        start = 0
        while start < len(tokens):
            if start and stopped():
                raise Stopped
            piece = tokens[start:start + self.piece]
            with self._whole():
                values = _checked(self._fed(piece))
            self.tokens += piece
            start += len(piece)
        return values

    def _fed(self, piece: list[int]) -> Tensor:
        """The logits of what follows a piece."""
        position = self.model.position.bind(self.position)
        if len(piece) == 1:
            return self._decode(Tensor(np.array(piece, np.int32)), position)
        padded = np.zeros(self.piece, np.int32)
        padded[:len(piece)] = piece
        return self._prefill(Tensor(padded), self._length.bind(len(piece)), position)

    @contextmanager
    def _whole(self) -> Iterator[None]:
        """A call that takes what the cache holds further: where it fails, a recurrent state is no longer that of the
        tokens, which are forgotten."""
        try:
            yield
        except BaseException:
            self.position = 0 if self.model.recurrent else self.position
            raise

    def verify(self, tokens: list[int]) -> np.ndarray:
        """Logits of what follows each of the tokens, float32 [n, vocabulary]; only the first one is appended. Raises
        MinigradError for several tokens of a recurrent model."""
        if len(tokens) == 1:
            return self.feed(tokens)[None]
        if self.model.recurrent:
            raise MinigradError(f"expected one token to verify, got {len(tokens)}; a recurrent state cannot go back")
        run = self._verify.setdefault(len(tokens), jit(self._run_rows))
        values = _checked(run(Tensor(np.array(tokens, np.int32)), self.model.position.bind(self.position)))
        self.tokens.append(tokens[0])
        return values

    def warm_up(self, rows: Sequence[int] = (), done: Callable[[], object] = lambda: None) -> float:
        """Compiles the plans on an empty cache and runs them, those of `rows` guessed tokens, too; returns the seconds
        it took. `done` is called after each of the steps, `WARM_UP_STEPS` and two for each of `rows`.
        """
        start = time.perf_counter()
        for _ in range(2):  # captured, then replayed
            for count in (2, 1, *rows):
                self.position = 0
                tokens = [0] * min(count, self.model.capacity)
                if count in rows:
                    self.verify(tokens)
                else:
                    self.feed(tokens)
                done()
        self.position = 0
        return time.perf_counter() - start

    def generate(self, prompt: list[int], sampler: Sampler, count: int, ends: frozenset[int],
                 speculation: Speculation | None = None, constraint: Constraint | None = None,
                 stopped: Callable[[], bool] = lambda: False) -> Generator[int, None, None]:
        """Feeds the prompt and yields up to `count` tokens, stopping before one of `ends` and when the cache is full.

        Whenever a token is yielded, the cache holds all tokens before it. `speculation` changes the time, never the
        tokens, and is not used for a recurrent model; of a `constraint` every answer that ends by itself is a whole
        one, as is one of `count` tokens.
        """
        start, before = time.perf_counter(), self.position
        try:
            rows = self.feed(prompt, stopped)[None]
        finally:  # what was fed of a prompt that was stopped counts, too
            self.timing.prefill_tokens += max(0, self.position - before)
            self.timing.prefill_seconds += time.perf_counter() - start
        guessed: list[int] = []
        seconds: float | None = None
        speculation = None if self.model.recurrent else speculation
        if speculation is not None:
            speculation.restart()
        left = min(count, self.room() + 1)  # the last one is not fed
        while True:
            accepted = 0
            for row in rows:
                token = self._choose(row, sampler, ends, constraint, left)
                if token is None or token in ends:
                    return
                yield token
                left -= 1
                if left <= 0:
                    return
                if accepted == len(guessed) or token != guessed[accepted]:
                    break
                self.tokens.append(token)  # which the cache holds already
                self.timing.decode_tokens += 1
                accepted += 1
            assert token is not None  # there is a row
            if speculation is not None:
                if seconds is not None:
                    speculation.report(len(guessed), accepted, seconds)
                guessed = speculation.propose([*self.tokens, token], min(left, self.room()) - 1)
            start = time.perf_counter()
            rows = self.verify([token, *guessed])
            seconds = time.perf_counter() - start
            self.timing.decode_tokens += 1
            self.timing.decode_seconds += seconds

    def _choose(self, row: np.ndarray, sampler: Sampler, ends: frozenset[int], constraint: Constraint | None,
                left: int) -> int | None:
        if constraint is None:
            return sampler.choose(row, self.tokens)
        return constraint.choose(lambda allowed: sampler.choose(row, self.tokens, allowed), ends, left)


def _checked(logits: Tensor) -> np.ndarray:
    """The logits on the host. Raises MinigradError where they are no numbers."""
    values = logits.numpy()
    if not np.isfinite(values.max()):  # nor is it with a NaN
        raise MinigradError("the model answers with infinities or NaN instead of scores; its weights are damaged: "
                            "download the model again")
    return values
