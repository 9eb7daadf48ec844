"""Bytes that the caches of a core hold."""
from __future__ import annotations

from minigrad.target import Target

LINE, PAGE = 64, 4096
"""Bytes of a cache line and of a page, on every machine that is known here."""

SHARED = 4
"""The part of the second-level cache for a buffer beside which another one streams: for all of A, or panels of B, where
the other streams (5-10% at 1024 and 2048, over a second packing of B); for sums that are kept from block to block of
K."""


def fits(nbytes: float, level: int, target: Target) -> bool:
    """True where so many bytes stay in the cache of a level, if they may take all of it. Where other data streams
    beside them, as in a tile's loop, callers ask for twice as many."""
    return nbytes <= room(level, target)


def room(level: int, target: Target) -> int:
    """Bytes of a core's cache of level 1 or 2, as the operating system or the driver says."""
    return target.l1 if level == 1 else target.l2
