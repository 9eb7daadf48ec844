"""Several tokens by one call of the model: what may come next is guessed, and the guess is verified.

A call with k guessed tokens gives logits after each of them, and costs less than k + 1 calls. From each row a token is
chosen as it always is; as long as it is the guessed one, the next row is right, too. So every token has the
distribution that it would have without guesses, and with a seed (or greedily) the answer is the same one.

https://arxiv.org/abs/2211.17192; guesses from the text so far: https://github.com/apoorvumang/prompt-lookup-decoding
"""
from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

SIZES = (3, 11)
"""Numbers of guessed tokens that are verified together: 4 and 12 rows, for each of which there is a plan."""
PRIOR_COST = 0.4
"""The cost of a further row, in calls of one, before it is measured."""
GAIN = 1.1
"""By how much guessing has to be faster before it is done."""
COMPARE_EVERY = 16
"""The number of tokens after which a guess that takes time is compared with what comes, where none are verified."""
MEMORY = 0.15
"""The weight of the last outcome in the share of guesses that came true."""


class Proposer(Protocol):
    """Guesses tokens. One that is not `cheap` takes part of the time that guessing is to save."""

    cheap: bool

    def restart(self) -> None:
        """Forgets the tokens: another sequence begins."""

    def propose(self, tokens: Sequence[int], count: int) -> list[int]:
        """Up to `count` tokens that may come after `tokens`; none where there is no idea."""


class PromptLookup:
    """Guesses what followed the last few tokens where they stood before. A sequence only grows until `restart`."""

    cheap = True
    LENGTHS = (4, 3, 2)
    """Of the tokens that have to be the same, longest first."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        self.indexed = 0
        self.after: dict[tuple[int, ...], int] = {}  # the place after each run of tokens, its last one

    def propose(self, tokens: Sequence[int], count: int) -> list[int]:
        # Runs that end before the last token: the last run itself is what is looked up.
        for end in range(max(self.indexed, 1), len(tokens)):
            for length in self.LENGTHS:
                if length <= end:
                    self.after[tuple(tokens[end - length:end])] = end
        self.indexed = len(tokens)
        for length in self.LENGTHS:
            place = self.after.get(tuple(tokens[-length:])) if length <= len(tokens) else None
            if place is not None:
                guessed = list(tokens[place:place + count])
                while len(guessed) < count:  # the text has begun to repeat itself
                    guessed.append(guessed[len(guessed) - (len(tokens) - place)])
                return guessed
        return []


@dataclass
class Speculation:
    """Decides how many tokens to guess, by what calls of each size took and how many guesses came true.

    Where it does not pay nothing is verified, but guesses are still compared with what comes.
    """

    proposer: Proposer
    hit_rate: float = 0.5
    proposed: int = 0
    accepted: int = 0
    seconds: dict[int, float] = field(default_factory=dict)
    """Seconds of a call, by its rows."""
    guess_seconds: float = 0.0
    """Seconds of a guess."""
    _calls: dict[int, int] = field(default_factory=dict)
    _tokens: int = 0
    _compared: int | None = None

    def restart(self) -> None:
        """Begins another sequence; what was measured is kept."""
        self.proposer.restart()
        self._compared = None

    def propose(self, tokens: Sequence[int], most: int) -> list[int]:
        """The tokens to verify, as many as one of SIZES and at most `most`; none where it does not pay."""
        if self._compared is not None:
            self._learn(self._compared == tokens[-1])
            self._compared = None
        size = self._best_size(most)
        self._tokens += 1
        if not size and not self.proposer.cheap and self._tokens % COMPARE_EVERY:
            return []
        start = time.perf_counter()
        guessed = self.proposer.propose(tokens, size or 1)
        if guessed:
            self.guess_seconds += 0.2 * ((time.perf_counter() - start) / len(guessed) - self.guess_seconds)
        if size and len(guessed) == size:
            return guessed
        self._compared = guessed[0] if guessed else None
        return []

    def report(self, guessed: int, accepted: int, seconds: float) -> None:
        """Takes note of a call of the model: tokens guessed in it, those that came true, and its time."""
        rows = guessed + 1
        self._calls[rows] = self._calls.get(rows, 0) + 1
        if self._calls[rows] > 3:  # the first ones compile
            known = self.seconds.get(rows, seconds)
            self.seconds[rows] = known + 0.2 * (min(seconds, 4 * known) - known)
        self.proposed += guessed
        self.accepted += accepted
        for at in range(min(accepted + 1, guessed)):
            self._learn(at < accepted)

    def _learn(self, hit: bool) -> None:
        self.hit_rate += MEMORY * (hit - self.hit_rate)

    def _best_size(self, most: int) -> int:
        """The number of guesses with the most tokens per second, 0 where none is GAIN times as fast as no guess."""
        if 1 not in self.seconds:
            return 0  # there is nothing to compare with yet
        best, best_rate = 0, GAIN
        for size in SIZES:
            if size <= most and (rate := self._expected(size) / self._cost(size + 1)) > best_rate:
                best, best_rate = size, rate
        return best

    def _expected(self, size: int) -> float:
        """Tokens that a call with `size` guesses gives, where each comes true with the same probability."""
        hits = min(self.hit_rate, 0.999)
        return (1 - hits ** (size + 1)) / (1 - hits)

    def _cost(self, rows: int) -> float:
        """The time of a call with so many rows, in calls of one."""
        one = self.seconds[1]
        return (self.seconds.get(rows, one * (1 + PRIOR_COST * (rows - 1))) + self.guess_seconds * (rows - 1)) / one
