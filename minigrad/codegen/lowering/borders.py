"""Borders: guards out of elementwise loops. A nest over values that are joined from parts becomes one nest per part.

Before:  for i<10: y[i] = (x[-i+1] else -0.0 if -i >= 0) + (x[i-1] else -0.0 if ...) + (x[-i+15] else -0.0 if i-9 >= 0)
After:   for i<1:  y[0]   = x[1]
         for i<8:  y[i+1] = x[i]
         for i<1:  y[9]   = x[6]

So it is for images that are padded by reflection, with the gradients of such, and for what is joined or rolled.
"""
from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from minigrad.codegen.kernel.nodes import Define, Kernel, Nest, Store
from minigrad.codegen.kernel.value_walk import rebuilt
from minigrad.codegen.lowering.rename import rename_nest
from minigrad.expr import Index, Var, product, variables
from minigrad.value import Value, walk

FEW_GUARDS = 3
"""The least number of guards that are worth parts: masks of fewer are cheap beside more loops. 64 images of 64x64 take
39 us with masks and 28 without where they are padded by zeros, both 45 where two are joined, but 1430 and 35 where both
axes are padded by reflection (one core of an EPYC)."""

FEW_ELEMENTS = 1 << 12
"""The least number of elements: parts take 10 to 20 ms more to compile, and save some 10 us a run below this."""

MOST_PARTS = 16
"""The most parts: each is a loop to compile, in 3 ms or more. Three axes that are padded at both ends have 7 parts."""


def split_borders(kernel: Kernel) -> Kernel:
    """Elementwise nests whose guards compare one variable each, as one nest between each two places where a guard
    changes; other nests stay. The outermost variable is split first, and then the next one in the longest part."""
    return kernel.with_nests(tuple([part for nest in kernel.nests for part in _parts(nest)]))


def _parts(nest: Nest) -> list[Nest]:
    count = product(v.hi + 1 for v in nest.domain)
    if not isinstance(count, int) or count < FEW_ELEMENTS or not _is_elementwise(nest):
        return [nest]
    if len({v for v in _values(nest) if v.op == "guard"}) < FEW_GUARDS:
        return [nest]
    found: list[Nest] = []
    whole = nest
    for v in nest.domain:
        last: Any = v.hi
        ends = [0, *_cuts(whole, v, last), last + 1]
        parts = [_between(whole, v, a, b) for a, b in itertools.pairwise(ends)]
        longest = max(range(len(parts)), key=lambda k: ends[k + 1] - ends[k])
        found += parts[:longest] + parts[longest + 1:]
        whole = parts[longest]
    return [whole, *found] if len(found) < MOST_PARTS else [nest]


def _is_elementwise(nest: Nest) -> bool:
    return all([isinstance(s, Define) or (isinstance(s, Store) and not s.combine) for s in nest.body]) and not any(
        [v.op == "reduce" for v in _values(nest)])


def _values(nest: Nest) -> Iterator[Value]:
    for s in nest.body:
        if not isinstance(s, Nest):
            yield from walk(s.value)


def _cuts(nest: Nest, v: Var, last: int) -> list[int]:
    """The values of `v` at which conditions on it alone change, up to its last value, in order."""
    found = set()
    for value in _values(nest):
        if value.op == "guard":
            found |= {_change(c, v) for c in value.conditions}
    return sorted([at for at in found if at is not None and 0 < at <= last])


def _change(condition: Index, v: Var) -> int | None:
    """The value of `v` from which a condition, k * v + c >= 0, holds or does not hold any more."""
    if isinstance(condition, int) or variables(condition) != {v} or len(condition.terms) != 1:
        return None
    (atoms, k), = condition.terms
    if atoms != (v,):
        return None
    return -(condition.const // k) if k > 0 else condition.const // -k + 1


def _between(nest: Nest, v: Var, start: int, stop: int) -> Nest:
    """The nest for start <= v < stop."""
    inner = Var(v.name, 0, stop - start - 1)
    mapping: dict[Var, Index] = {v: inner + start}
    domain = tuple([inner if u is v else u for u in nest.domain])
    body = rename_nest(Nest((), nest.body), mapping).body
    return Nest(domain, tuple([s if isinstance(s, Nest) else replace(s, value=_without_zeros(s.value)) for s in body]))


def _without_zeros(root: Value) -> Value:
    """`root` without sums with -0.0, which change nothing."""
    def one(v: Value, args: tuple[Value, ...]) -> Value | None:
        x, y = args if v.op == "add" else (v, v)
        return y if _is_negative_zero(x) else x if _is_negative_zero(y) else None

    return rebuilt(root, one)


def _is_negative_zero(v: Value) -> bool:
    return v.op == "const" and str(v.number) == "-0.0"
