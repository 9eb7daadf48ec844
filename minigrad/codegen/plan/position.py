"""The place in the loops of a nest where statements are made."""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from minigrad.expr import Index, Var


@dataclass(slots=True)
class Position:
    """The place where statements are emitted. It never changes, and is not frozen as many are made.

    places: what each open loop is; at: what each variable of the nest is whose loops are all open
    omitted: loops that are left out, as what a block that is not whole leaves runs in a loop of its own
    full_splits: those whose present block is known to be whole, or to be what is left
    copies: loops of the domain that sums have accumulators for, not open yet
    masked: stores need the conditions of blocks that reach back
    """

    places: Mapping[str, Index] = field(default_factory=dict)
    at: Mapping[Var, Index] = field(default_factory=dict)
    omitted: frozenset[str] = frozenset()
    full_splits: frozenset[str] = frozenset()
    copies: tuple[str, ...] = ()
    masked: bool = False


NOWHERE = Position()
"""Outside all loops."""
