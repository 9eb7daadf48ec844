"""Copies of recurrent states, by what was fed before them, within a number of bytes; the ones unused longest go first.
"""
from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import numpy as np


class Snapshots:
    """States by the serial number of the page that ends where they are."""

    def __init__(self, capacity: int):
        self.capacity, self.nbytes = capacity, 0
        self._kept: OrderedDict[int, Sequence[np.ndarray]] = OrderedDict()

    def has(self, serial: int) -> bool:
        """True where there is one."""
        return serial in self._kept

    def get(self, serial: int) -> Sequence[np.ndarray]:
        """One that is there."""
        self._kept.move_to_end(serial)
        return self._kept[serial]

    def put(self, serial: int, state: Sequence[np.ndarray]) -> None:
        """Keeps a state, unless it alone is larger than all may be."""
        size = _bytes(state)
        if size > self.capacity:
            return
        self._kept[serial] = state
        self.nbytes += size
        while self.nbytes > self.capacity:
            _, old = self._kept.popitem(last=False)
            self.nbytes -= _bytes(old)


def _bytes(state: Sequence[np.ndarray]) -> int:
    return sum([part.nbytes for part in state])
