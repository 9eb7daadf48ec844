"""Bytes that the caches of a core hold."""
from __future__ import annotations

from minigrad.target import Target

LINE, PAGE = 64, 4096
"""Bytes of a cache line and of a page, on every machine that is known here."""


def fits(nbytes: float, level: int, target: Target) -> bool:
    """Whether so many bytes stay in the cache of a level, all of which they may take. Where others pass by meanwhile,
    as in a tile's loop, callers ask for twice as many."""
    return nbytes <= room(level, target)


def room(level: int, target: Target) -> int:
    """Bytes of a core's cache of level 1 or 2, as the operating system or the driver says."""
    return target.l1 if level == 1 else target.l2
