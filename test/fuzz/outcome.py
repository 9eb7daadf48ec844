"""What became of a network."""
from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Outcome:
    """`kind`: 'right', 'wrong' (numbers), 'error' (an exception), 'invalid' (PyTorch refuses it, or its numbers are not
    finite), 'access' (a checker below has something to say), and of a process that ended: 'crash', 'hang'. `key` is the
    same for failures that look the same."""

    kind: str
    key: str = ""
    text: str = ""

    @property
    def failed(self) -> bool:
        """True for what is to be reported."""
        return self.kind not in ("right", "invalid")

    def like(self, other: Outcome) -> bool:
        """True where both are failures that look the same."""
        return self.failed and self.kind == other.kind and (self.kind == "wrong" or self.key == other.key)
