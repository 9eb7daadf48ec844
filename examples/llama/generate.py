"""Tokens out of a model: a session that remembers what the cache holds, and the choice of each next token."""
from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from examples.llama.model import Llama
from minigrad import Tensor, jit
from minigrad.errors import MinigradError
from minigrad.expr import Index


class ContextFull(MinigradError):
    """The conversation does not fit the cache."""


@dataclass
class Sampler:
    """Chooses a token from logits on the host. Temperature 0 takes the best one; `top_k` 0 and `top_p` 1 keep all."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int | None = None
    random: np.random.Generator = field(init=False)

    def __post_init__(self) -> None:
        self.random = np.random.default_rng(self.seed)

    def choose(self, logits: np.ndarray) -> int:
        """One of the tokens 0 to len(logits) - 1, by softmax(logits / temperature) over those that are kept."""
        if self.temperature == 0:
            return int(logits.argmax())
        kept = np.arange(len(logits))
        if 0 < self.top_k < len(logits):
            kept = np.argpartition(-logits, self.top_k)[:self.top_k]
        kept = kept[np.argsort(-logits[kept], kind="stable")]
        scaled = (logits[kept].astype(np.float64) - logits[kept[0]]) / self.temperature
        weights = np.exp(scaled)
        weights /= weights.sum()
        # The fewest of the best that reach top_p together: a token stays while those before it have not.
        before = np.cumsum(weights) - weights
        weights[1:] = np.where(before[1:] < self.top_p, weights[1:], 0)
        return int(kept[self.random.choice(len(kept), p=weights / weights.sum())])


@dataclass
class Timing:
    """Tokens and seconds of the two phases, summed over the answers since it was made."""

    prefill_tokens: int = 0
    prefill_seconds: float = 0.0
    decode_tokens: int = 0
    decode_seconds: float = 0.0

    def report(self, weight_bytes: int) -> str:
        """Rates in tokens per second, and how fast decoding went through the weights."""
        prefill = self.prefill_tokens / self.prefill_seconds if self.prefill_seconds else 0.0
        decode = self.decode_tokens / self.decode_seconds if self.decode_seconds else 0.0
        return (f"prefill {self.prefill_tokens} tokens, {prefill:.1f} tok/s; decode {self.decode_tokens} tokens, "
                f"{decode:.1f} tok/s, {decode * weight_bytes / 1e9:.1f} GB/s of weights")


class Session:
    """A conversation with a model: the first `position` slots of its cache hold tokens.

    Two plans run, however long prompts and conversation get: one for a prompt of symbolic length, one for a single
    token.
    """

    def __init__(self, model: Llama):
        self.model = model
        self.position = 0
        self.timing = Timing()
        self._prefill: Callable[..., Tensor] = jit(self._run_prompt)
        self._decode: Callable[..., Tensor] = jit(self._run_token)

    def _run_prompt(self, padded: Tensor, length: Index, position: Index) -> Tensor:
        logits = self.model(padded[:length], position)
        Tensor.realize(logits, *self.model.caches())
        return logits

    def _run_token(self, token: Tensor, position: Index) -> Tensor:
        logits = self.model(token, position)
        Tensor.realize(logits, *self.model.caches())
        return logits

    def room(self) -> int:
        """The number of further tokens that the cache can take."""
        return self.model.capacity - self.position

    def feed(self, tokens: list[int]) -> np.ndarray:
        """Appends tokens to the conversation; returns the logits of the next one, float32 [vocabulary].

        Raises ContextFull, changing nothing, where they do not fit.
        """
        if len(tokens) > self.room():
            raise ContextFull(f"the conversation would have {self.position + len(tokens)} tokens and the cache holds "
                              f"{self.model.capacity}; start a new conversation or ask for more with --context")
        position = self.model.position.bind(self.position)
        if len(tokens) == 1:
            logits = self._decode(Tensor(np.array(tokens, np.int32)), position)
        else:
            padded = np.zeros(self.model.capacity, np.int32)
            padded[:len(tokens)] = tokens
            logits = self._prefill(Tensor(padded), self.model.length.bind(len(tokens)), position)
        values = logits.numpy()
        if not np.isfinite(values.max()):  # nor is it with a NaN
            raise MinigradError("the model answers with infinities or NaN instead of scores; its weights are damaged: "
                                "download the model again")
        self.position += len(tokens)
        return values

    def warm_up(self) -> float:
        """Compiles both plans on an empty cache and runs them; returns the seconds it took."""
        start = time.perf_counter()
        for _ in range(2):  # captured, then replayed
            for tokens in ([0, 0], [0])[:self.model.capacity]:
                self.feed(tokens)
                self.position = 0
        return time.perf_counter() - start

    def generate(self, prompt: list[int], sampler: Sampler, count: int, ends: frozenset[int]) -> Iterator[int]:
        """Feeds the prompt and yields up to `count` tokens, stopping before one of `ends` and when the cache is full.

        Whenever a token is yielded, the cache holds all tokens before it.
        """
        start = time.perf_counter()
        logits = self.feed(prompt)
        self.timing.prefill_tokens += len(prompt)
        self.timing.prefill_seconds += time.perf_counter() - start
        for index in range(count):
            token = sampler.choose(logits)
            if token in ends:
                return
            yield token
            if index + 1 == count or not self.room():
                return
            start = time.perf_counter()
            logits = self.feed([token])
            self.timing.decode_tokens += 1
            self.timing.decode_seconds += time.perf_counter() - start
