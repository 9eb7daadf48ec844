"""The memory plan: temporaries share one arena by liveness, best fit, largest first."""
from __future__ import annotations

from dataclasses import dataclass

import numpy as np

ALIGNMENT = 256


@dataclass(frozen=True, slots=True)
class Arena:
    """Byte offset of each planned slot in one allocation of `nbytes`."""

    nbytes: int
    offsets: dict[int, int]


def plan_memory(sizes: dict[int, int], uses: list[tuple[int, ...]]) -> Arena:
    """Offsets for the slots in `sizes` (bytes); `uses[t]` are the slots that step t touches.

    Two slots share bytes only if no step between the first and last use of one touches the other.
    """
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for t, touched in enumerate(uses):
        for s in touched:
            if s in sizes:
                first.setdefault(s, t)
                last[s] = t
    offsets: dict[int, int] = {}
    total = 0
    begins, ends, starts, stops = np.empty((4, len(first)), np.int64)  # when slots are in use, and which bytes are
    for n, s in enumerate(sorted(first, key=lambda s: (-sizes[s], s))):
        nbytes = max(-(-sizes[s] // ALIGNMENT) * ALIGNMENT, ALIGNMENT)
        beside = (begins[:n] <= last[s]) & (ends[:n] >= first[s])
        busy = np.argsort(starts[:n][beside])
        after = np.maximum.accumulate(np.concatenate([[0], stops[:n][beside][busy]]))  # where a gap may begin
        gaps = starts[:n][beside][busy] - after[:-1]
        fits = np.flatnonzero(gaps >= nbytes)
        where = int(after[fits[gaps[fits].argmin()]] if len(fits) else after[-1])
        offsets[s] = where
        begins[n], ends[n], starts[n], stops[n] = first[s], last[s], where, where + nbytes
        total = max(total, where + nbytes)
    return Arena(total, offsets)
