"""Guesses of a smaller model with the same tokens."""
from __future__ import annotations

from collections.abc import Sequence

from examples.llama.generate import Session


class DraftModel:
    """Guesses what a smaller model would say, greedily; its cache follows the sequence."""

    cheap = False

    def __init__(self, session: Session):
        self.session = session

    def restart(self) -> None:
        """Nothing to forget: what the cache holds of the next sequence is used."""

    def propose(self, tokens: Sequence[int], count: int) -> list[int]:
        session = self.session
        guessed: list[int] = []
        left = session.resume(list(tokens))
        if len(left) + count > session.room():
            return []
        while len(guessed) < count:
            logits = session.feed(left)
            left = [int(logits.argmax())]
            guessed += left
        return guessed
