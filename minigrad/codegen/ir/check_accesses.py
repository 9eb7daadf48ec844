"""Makes sure that what loops read and write lies inside its memory: buffers, scratch, local memory, registers.

Most offsets are inside by their bounds. Of the others a sample is evaluated, of iterations of the loops around them,
where their conditions hold: an offset outside is a mistake, none is no proof. It is part of `config.verify`.
"""
from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from minigrad.codegen.ir.nodes import Alloc, Call, Function, If, Loop, Stmt, Store
from minigrad.codegen.ir.text import meaning_of
from minigrad.codegen.ir.walk import indices, values
from minigrad.codegen.kernel.value_eval import index_value
from minigrad.codegen.kernel.value_verify import fail
from minigrad.expr import Atom, Index, Var, bounds, prove_nonneg, subs, to_text, variables
from minigrad.value import Value, value_atoms

POINTS = 2048

Array = np.ndarray[Any, Any]
Conditions = tuple[tuple[Index, ...], bool]
"""Conditions, and whether all of them hold, or not all."""


@dataclass(frozen=True, slots=True)
class _Place:
    """Loops and conditions around a statement, and the sizes of the memory that it knows."""

    around: tuple[Loop | Conditions, ...]
    sizes: Mapping[str, Index]

    def inside(self, step: Loop | Conditions) -> _Place:
        return replace(self, around=(*self.around, step))


def check_accesses(function: Function, dims: Mapping[Var, Index] | None = None) -> None:
    """Raises InternalError naming an access outside its memory. `dims`: those of the function, by the kernel's; where
    they are not told, buffers are as long as they may be."""
    known = {d: d for d in function.dims} if dims is None else dims
    sizes = {p.name: bounds(p.size)[1] if dims is None else subs(p.size, dims) for p in function.buffers}
    _Check(function.name, known).block(function.body, _Place((), sizes))


class _Check:
    """`known`: iterations of the loops around a place, and where its conditions hold. `open`: dims whose values are not
    known: that a slice which begins at one lies inside its operand is for the program to see to."""

    def __init__(self, name: str, dims: Mapping[Var, Index]):
        self.name = name
        self.random = np.random.default_rng(0)
        self.open = {v for v, e in dims.items() if variables(e)}
        # Dims of the kernel are at their least: that a slice which begins at one lies inside is for programs to see to.
        outside: dict[Atom, Any] = {v: np.int64(bounds(v)[0]) for e in dims.values() for v in variables(e)}
        at: dict[Atom, Any] = {v: self.number(e, outside) for v, e in dims.items()}
        self.known: dict[tuple[Loop | Conditions, ...], tuple[dict[Atom, Any], Array]] = {
            (): ({**outside, **at}, np.ones(POINTS, bool))}

    def block(self, body: Sequence[Stmt], place: _Place) -> None:
        for s in body:
            if isinstance(s, Alloc):
                place = replace(place, sizes={**place.sizes, s.name: s.size})
            for buffer, first, last, conditions in _accesses(s):
                here = place.inside((conditions, True)) if conditions else place
                self.inside(buffer, first, first, place.sizes[buffer] - 1 - last, here)
            if isinstance(s, Call):
                for e, dim in zip(s.dims, meaning_of(s.kernel).dims, strict=True):
                    low, high = bounds(dim)
                    self.inside(f"{dim.name} of {s.kernel.name}", e, e - low, high - e, place)
            if isinstance(s, Loop):
                self.block(s.body, place.inside(s))
            elif isinstance(s, If):
                self.block(s.then, place.inside((s.conditions, True)))
                self.block(s.otherwise, place.inside((s.conditions, False)))

    def inside(self, what: str, e: Index, first: Index, left: Index, place: _Place) -> None:
        """An index that is nowhere before the first place, nor beyond the last."""
        if not self.open.isdisjoint(variables(e)) or (prove_nonneg(first) and prove_nonneg(left)):
            return
        at, holds = self.sample(place.around)
        low, high = (np.broadcast_to(self.number(x, at), POINTS)[holds] for x in (first, left))
        if (low < 0).any() or (high < 0).any():
            raise fail(self.name, f"{what}[{to_text(e)}] is at {low.min()} where it is least, and "
                                  f"{-high.min()} beyond the last element where it is largest")

    def sample(self, around: tuple[Loop | Conditions, ...]) -> tuple[dict[Atom, Any], Array]:
        """Iterations of loops, and where their conditions hold."""
        found = self.known.get(around)
        if found is None:
            at, holds = self.sample(around[:-1])
            step = around[-1]
            if isinstance(step, Loop):
                start, stop = (np.broadcast_to(self.number(e, at), POINTS) for e in (step.start, step.stop))
                at, holds = {**at, step.var: self.between(start, stop - 1)}, holds & (start < stop)
            else:
                here = np.ones(POINTS, bool)
                for e in step[0]:
                    here &= self.number(e, at) >= 0
                holds = holds & (here == step[1])
            found = self.known[around] = at, holds
        return found

    def between(self, low: Array | int, high: Array | int) -> Array:
        """Numbers in a range: half of them its ends."""
        part = self.random.random(POINTS)
        ends = np.where(part < 0.25, low, high)
        inside = low + ((high - low + 1) * self.random.random(POINTS)).astype(np.int64)
        found: Array = np.where(part < 0.5, ends, inside)
        return found

    def number(self, e: Index, at: dict[Atom, Any]) -> Any:
        """An index at these iterations; what is read is anything in its bounds."""
        def leaf(a: Atom) -> Any:
            if a not in at:
                at[a] = self.between(*bounds(a))
            return at[a]
        with np.errstate(divide="ignore"):  # where no condition around holds
            return index_value(e, leaf)


def _accesses(s: Stmt) -> Iterator[tuple[str, Index, Index, tuple[Index, ...]]]:
    """Reads and writes of a statement itself: a buffer, its first and last element, and under which conditions."""
    conditions = s.conditions if isinstance(s, Store) else ()
    if isinstance(s, Store):
        yield s.buffer, s.offset, s.offset, conditions
    if isinstance(s, Call):
        meaning = meaning_of(s.kernel)
        dims = dict(zip(meaning.dims, s.dims, strict=True))
        for (name, offset), p in zip(s.buffers, meaning.buffers, strict=True):
            yield name, offset, offset + subs(p.size, dims) - 1, ()
    todo = [(v, conditions) for v in (*values(s), *(a.value for e in indices(s) for a in value_atoms(e)))]
    seen: set[tuple[Value, tuple[Index, ...]]] = set()
    while todo:
        v, conditions = todo.pop()
        if not v.loads or (v, conditions) in seen:
            continue
        seen.add((v, conditions))
        if v.op == "load":
            yield v.buffer, v.indices[0], v.indices[0], conditions
        if v.op == "guard":
            todo += [(v.args[0], (*conditions, *v.conditions)), (v.args[1], conditions)]
            todo += [(inner, conditions) for inner in v.inner]
        else:
            todo += [(o, conditions) for o in v.operands]
