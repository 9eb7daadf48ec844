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
    placed: list[tuple[int, int]] = []
    begins, ends = np.empty(len(first), np.int64), np.empty(len(first), np.int64)  # when those are in use
    for n, s in enumerate(sorted(first, key=lambda s: (-sizes[s], s))):
        nbytes = max(-(-sizes[s] // ALIGNMENT) * ALIGNMENT, ALIGNMENT)
        beside = np.flatnonzero((begins[:n] <= last[s]) & (ends[:n] >= first[s]))
        busy = sorted([placed[k] for k in beside.tolist()])
        best: tuple[int, int] | None = None
        at = 0
        for o, e in busy:
            if o - at >= nbytes and (best is None or o - at < best[0]):
                best = (o - at, at)
            at = max(at, e)
        where = best[1] if best is not None else at
        offsets[s] = where
        placed.append((where, where + nbytes))
        begins[n], ends[n] = first[s], last[s]
        total = max(total, where + nbytes)
    return Arena(total, offsets)
