"""The choice of a token from logits, with llama.cpp's options in llama.cpp's order, and strings that end an answer.

    penalties -> top-k -> top-p -> min-p -> temperature -> a random choice

Every step works on what the one before has left, so top-p and min-p look at probabilities before the temperature.
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

SORTED_FIRST = 1024
"""Of how many of the best tokens top-p is tried before all are sorted."""


@dataclass
class Sampler:
    """Chooses a token on the host. The defaults take the best one and change nothing.

    `temperature` 0 takes the best; `top_k` 0, `top_p` 1 and `min_p` 0 keep all. Penalties look at the last
    `repeat_last` tokens (0: none, -1: all): `repeat_penalty` divides a positive logit of a token among them and
    multiplies a negative one, `presence_penalty` is subtracted once, `frequency_penalty` for each time.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repeat_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repeat_last: int = 64
    seed: int | None = None
    random: np.random.Generator = field(init=False)

    def __post_init__(self) -> None:
        self.random = np.random.default_rng(self.seed)

    def choose(self, logits: np.ndarray, recent: Sequence[int] = (), allowed: np.ndarray | None = None) -> int:
        """One of the tokens 0 to len(logits) - 1, after `recent` ones, of those that are `allowed` (None: all)."""
        if self.temperature == 0 and allowed is None and not self._penalises:
            return int(logits.argmax())
        tokens, weights = self.probabilities(logits, recent, allowed)
        if len(tokens) == 1:
            return int(tokens[0])
        sums = weights.cumsum()
        drawn = np.searchsorted(sums, self.random.random() * sums[-1], side="right")
        return int(tokens[min(int(drawn), len(tokens) - 1)])

    def probabilities(self, logits: np.ndarray, recent: Sequence[int] = (), allowed: np.ndarray | None = None
                      ) -> tuple[np.ndarray, np.ndarray]:
        """The tokens that may come, in order, and their probabilities, float64; at least one must be `allowed`."""
        scores = self._penalised(logits, recent)
        kept = np.arange(len(scores)) if allowed is None else np.flatnonzero(allowed)
        if self.temperature == 0:
            return kept[scores[kept].argmax()][None], np.ones(1)
        if 0 < self.top_k < len(kept):
            kept = np.sort(kept[_best(scores[kept], self.top_k)])
        if self.top_p < 1:
            kept = np.sort(kept[_nucleus(scores[kept], self.top_p)])
        best = scores[kept].max()
        if self.min_p > 0:
            kept = kept[scores[kept] >= best + np.log(self.min_p)]
        weights = np.exp((scores[kept] - best) / self.temperature)
        return kept, weights / weights.sum()

    @property
    def _penalises(self) -> bool:
        return (self.repeat_penalty, self.presence_penalty, self.frequency_penalty) != (1, 0, 0)

    def _penalised(self, logits: np.ndarray, recent: Sequence[int]) -> np.ndarray:
        scores = logits.astype(np.float64)
        last = recent[-self.repeat_last:] if self.repeat_last > 0 else recent if self.repeat_last < 0 else ()
        if last and self._penalises:
            tokens, counts = np.unique(np.asarray(last), return_counts=True)
            seen = scores[tokens]
            seen = np.where(seen > 0, seen / self.repeat_penalty, seen * self.repeat_penalty)
            scores[tokens] = seen - counts * self.frequency_penalty - self.presence_penalty
        return scores


def _best(scores: np.ndarray, count: int) -> np.ndarray:
    """Indices of the `count` largest, in no order."""
    return np.argpartition(-scores, count - 1)[:count]


def _nucleus(scores: np.ndarray, share: float) -> np.ndarray:
    """Indices of the fewest of the best whose probabilities reach `share` together: at least one."""
    weights = np.exp(scores - scores.max())
    total = weights.sum()
    for count in (min(SORTED_FIRST, len(scores)), len(scores)):
        some = np.sort(_best(scores, count))
        order = some[np.argsort(-scores[some], kind="stable")]
        # A token stays while those before it have not reached the share.
        before = np.cumsum(weights[order]) - weights[order]
        if before[-1] + weights[order[-1]] >= share * total:
            break
    return order[:max(1, int((before < share * total).sum()))]


class StopStrings:
    """Ends a text before the first of some strings, which may come in pieces.

    `add` holds back what may be the start of one; once `found`, nothing comes any more.
    """

    def __init__(self, strings: Sequence[str] = ()):
        self.strings, self.held, self.found = [text for text in strings if text], "", False

    def add(self, text: str) -> str:
        """The text that can be shown after `text` has come."""
        if self.found:
            return ""
        self.held += text
        starts = [at for at in (self.held.find(string) for string in self.strings) if at >= 0]
        if starts:
            shown, self.held, self.found = self.held[:min(starts)], "", True
            return shown
        keep = max((self._begun(string) for string in self.strings), default=0)
        cut = len(self.held) - keep
        shown, self.held = self.held[:cut], self.held[cut:]
        return shown

    def finish(self) -> str:
        """The text that was held back, when all has come."""
        shown, self.held = self.held, ""
        return shown

    def _begun(self, string: str) -> int:
        """The number of characters of `string` that end what is held."""
        most = min(len(string) - 1, len(self.held))
        return next((count for count in range(most, 0, -1) if self.held.endswith(string[:count])), 0)
