"""Proofs about the stores of a kernel: each element of an output exactly once, of an updated buffer at most once; of a
block's outputs at least once.

A store's index along one axis is affine in the domain variables. Where their coefficients form a mixed radix
(4*i + j for j < 4) it is an arithmetic progression `start + step*t, t < count` that takes each value once; a store is
then a box of progressions, and boxes are compared axis by axis, symbolic extents included. What is no such box is
counted element by element where extents are static and small.
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from minigrad.codegen.kernel.value_eval import index_value
from minigrad.expr import Atom, Index, Var, bounds, product, prove_nonneg, same, variables

MOST_COUNTED = 1 << 22


@dataclass(frozen=True, slots=True)
class Progression:
    """start + step*t for 0 <= t < count."""

    start: Index
    step: Index
    count: Index


@dataclass(frozen=True, slots=True)
class Placed:
    """One store: its indices and all domain variables around it."""

    indices: tuple[Index, ...]
    domain: tuple[Var, ...]

    def empty(self) -> bool:
        return any(bounds(v.hi)[1] < 0 for v in self.domain)


def linear(e: Index, domain: Sequence[Var]) -> tuple[dict[Var, Index], Index] | None:
    """({v: coefficient}, rest) with e = sum(coefficient * v) + rest, `rest` free of `domain`; None if not affine."""
    if isinstance(e, int):
        return {}, e
    inside = frozenset(domain)
    coefficients: dict[Var, Index] = {}
    rest: Index = e.const
    for monomial, c in e.terms:
        own = [a for a in monomial if isinstance(a, Var) and a in inside]
        others = [a for a in monomial if not (isinstance(a, Var) and a in inside)]
        if len(own) > 1 or any(variables(a) & inside for a in others):
            return None
        scale = product(others) * c
        if own:
            coefficients[own[0]] = coefficients.get(own[0], 0) + scale
        else:
            rest = rest + scale
    return coefficients, rest


def progression(e: Index, domain: Sequence[Var]) -> tuple[Progression, frozenset[Var]] | None:
    """`e` as a progression that takes each value once, and the variables it uses; None where that is not proven."""
    found = linear(e, domain)
    if found is None:
        return None
    start = found[1]
    left: list[tuple[Index, Index]] = []
    for v, c in found[0].items():
        extent = v.hi + 1
        if bounds(c)[1] < 0:  # it runs backwards
            start, c = start + c * (extent - 1), -c
        if extent != 1:
            left.append((c, extent))
    used = frozenset(found[0])
    for first in range(max(len(left), 1)):
        chain = _chain(left, first)
        if chain is not None:
            return Progression(start, *chain), used
    return None


def _chain(left: list[tuple[Index, Index]], first: int) -> tuple[Index, Index] | None:
    """(step, count) of the mixed radix whose lowest digit is `left[first]`."""
    if not left:
        return 1, 1
    rest = list(left)
    step, count = rest.pop(first)
    while rest:
        following = next((k for k, (c, _) in enumerate(rest) if same(c, step * count)), None)
        if following is None:
            return None
        count = count * rest.pop(following)[1]
    return step, count


def uncovered(stores: Sequence[Placed], shape: tuple[Index, ...], whole: bool, proven: bool = True) -> str | None:
    """The reason why the stores do not write each element exactly once (or, unless `whole`, at most once); None if they
    do and, unless `proven`, where that is not decided."""
    stores = [s for s in stores if not s.empty()]
    for s in stores:
        unused = [v.name for v in s.domain if v.hi != 0 and not any(v in variables(e) for e in s.indices)]
        if unused:
            return f"it is stored once for each {', '.join(unused)}"
    boxes = [box(s) for s in stores]
    known = [b for b in boxes if b is not None]
    if len(known) == len(boxes):
        if whole and _partition(known, shape, tuple(range(len(shape)))):
            return None
        if not whole and all(_apart(a, b) for k, a in enumerate(known) for b in known[:k]):
            return None
    rule = "exactly" if whole else "at most"
    return miscounted(stores, shape, rule, f"cannot prove that each element is stored {rule} once" if proven else None)


def box(s: Placed) -> tuple[Progression, ...] | None:
    """The store as one progression per axis over different variables."""
    axes: list[Progression] = []
    seen: frozenset[Var] = frozenset()
    for e in s.indices:
        found = progression(e, s.domain)
        if found is None or found[1] & seen:
            return None
        axes.append(found[0])
        seen |= found[1]
    return tuple(axes)


def _partition(boxes: Sequence[tuple[Progression, ...]], shape: tuple[Index, ...], axes: tuple[int, ...]) -> bool:
    """True where the boxes cover the shape once: along some axis they fall into sets that do."""
    if any(e == 0 for e in shape):
        return not boxes
    if not axes:
        return len(boxes) == 1
    for axis in axes:
        groups: dict[Progression, list[tuple[Progression, ...]]] = {}
        for b in boxes:
            groups.setdefault(b[axis], []).append(b)
        if _fills(list(groups), shape[axis]):
            rest = tuple(a for a in axes if a != axis)
            return all(_partition(g, shape, rest) for g in groups.values())
    return False


def _fills(parts: list[Progression], extent: Index) -> bool:
    """True where progressions cover 0..extent-1 once: as the residues of one step, or as intervals in a row."""
    step = parts[0].step if parts else 1
    if len(parts) > 1 and isinstance(step, int) and step > 1 and all(p.step == step for p in parts):
        starts = {p.start for p in parts}
        absent = [r for r in range(step) if r not in starts]
        return (len(starts) == len(parts) and all(isinstance(r, int) and 0 <= r < step for r in starts)
                and all(isinstance(extent, int) and extent <= r for r in absent)
                and all(same(p.count, (extent - p.start + step - 1) // step) for p in parts))
    reached: Index = 0
    left = list(parts)
    while left:
        following = next((p for p in left if same(p.start, reached) and (p.step == 1 or same(p.count, 1))), None)
        if following is None:
            return False
        reached = reached + following.count
        left.remove(following)
    return same(reached, extent)


def _apart(a: Sequence[Progression], b: Sequence[Progression]) -> bool:
    """True where two boxes have no element in common."""
    for x, y in zip(a, b, strict=True):
        difference = x.start - y.start
        if isinstance(difference, int) and isinstance(x.step, int) and x.step == y.step and difference % x.step:
            return True
        if prove_nonneg(difference - y.step * (y.count - 1) - 1):
            return True
        if prove_nonneg(-difference - x.step * (x.count - 1) - 1):
            return True
    return False


def static(extents: Sequence[Index], most: int) -> tuple[int, ...] | None:
    """The extents as numbers; None if one is symbolic or they have more than `most` elements together."""
    numbers = tuple([e for e in extents if isinstance(e, int)])
    return numbers if len(numbers) == len(extents) and prod(numbers) <= most else None


def points(domain: Sequence[Var], most: int = MOST_COUNTED) -> tuple[tuple[int, ...], dict[Atom, np.ndarray]] | None:
    """All values of variables from 0, the k-th along axis -1-k, and the shape of that; None if symbolic or too many."""
    extents = static([v.hi + 1 for v in domain], most)
    if extents is None:
        return None
    values: dict[Atom, np.ndarray] = {}
    for k, (v, extent) in enumerate(zip(domain, extents, strict=True)):
        values[v] = np.arange(extent).reshape((extent,) + (1,) * k)
    return tuple(reversed(extents)), values


def miscounted(stores: Sequence[Placed], shape: tuple[Index, ...], rule: str, undecided: str | None = None
               ) -> str | None:
    """An element that the stores do not write "exactly", "at most" or "at least" once; None where there is none, and
    `undecided` where that is not known."""
    extents = static(shape, MOST_COUNTED)
    if extents is None:
        return undecided
    count = np.zeros(extents, np.int64)
    for s in stores:
        domain = points(s.domain)
        if domain is None or any(variables(e) - set(s.domain) for e in s.indices):
            return undecided
        places = tuple([np.broadcast_to(index_value(e, domain[1].__getitem__), domain[0]) for e in s.indices])
        for x, e, extent in zip(places, s.indices, extents, strict=True):
            if np.any((x < 0) | (x >= extent)):
                return f"index {e} leaves 0..{extent - 1}"
        np.add.at(count, places, 1)
    wrong = np.argwhere((count < 1) & (rule != "at most") | (count > 1) & (rule != "at least"))
    if len(wrong):
        at = tuple(int(x) for x in wrong[0])
        return f"element {list(at)} is stored {count[at]} times, expected {rule} once"
    return None
