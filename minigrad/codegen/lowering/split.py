"""Splitting on demand: floor and modulo out of index maps (docs/decisions/0006-indices-without-views.md).

Before:  for i<12: y[i] = x[i%4, i//4]
After:   for i_1<3, i_0<4: y[4*i_1+i_0] = x[i_0, i_1]
"""
from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

from minigrad.codegen.kernel.nodes import Define, Kernel, Nest
from minigrad.codegen.kernel.walk import (
    accesses_of,
    bound_variables,
    expressions_of,
    map_nest,
    scopes_of,
    statements,
)
from minigrad.codegen.lowering.flatten import flatten_buffers, offset
from minigrad.codegen.lowering.phases import split_phases
from minigrad.errors import InternalError
from minigrad.expr import FloorDiv, Index, Mod, Var, exact_quotient, product, subs, variables
from minigrad.value import map_indices

__all__ = ["split_divisions", "split_phases"]

MAX_SPLITS = 64
"""The most splits, far beyond what real index maps need: each split factors an extent."""


class _Split(NamedTuple):
    """v = inner.extent * outer + inner."""

    v: Var
    outer: Var
    inner: Var


def split_divisions(kernel: Kernel) -> Kernel:
    """The kernel with as few `//` and `%` of index variables as it can have.

    1. A buffer that is read or written as one flat run of elements gets one dimension: `x[i//64, i%64]` is `x[i]`.
    2. Variables whose extents divide are split into two; the expressions then simplify.
    3. Where that is not enough, neighbouring variables of a domain become one, if splitting then succeeds.

    What cannot be split stays: the result always means the same.
    """
    if not any([_divides(e) for e in expressions_of(kernel.nests)]):
        return kernel
    kernel = _flatten_buffers(kernel)
    nests = []
    for nest in kernel.nests:
        names = _names(kernel)
        nests.append(_split_nest(nest, names))
    kernel = replace(kernel, nests=tuple(nests))
    for k in range(len(kernel.nests)):
        if _divisions(kernel.nests[k]):
            kernel = _fuse(kernel, k)
    return kernel


# What is in a nest


def _names(kernel: Kernel) -> set[str]:
    used = {v.name for v in kernel.dims} | {p.name for p in kernel.params} | {s.name for s in kernel.scalars}
    used |= {s.name for s in statements(kernel.nests) if isinstance(s, Define)}
    return used | {v.name for v in bound_variables(kernel.nests)}


def _fresh(name: str, used: set[str]) -> str:
    k = 0
    while f"{name}_{k}" in used:
        k += 1
    used.add(f"{name}_{k}")
    return f"{name}_{k}"


def _division_atoms(expressions: Iterable[Index], loops: list[Var]) -> list[FloorDiv | Mod]:
    """The divisions of loop variables in some expressions, once."""
    found: dict[FloorDiv | Mod, None] = {}
    for e in expressions:
        if not isinstance(e, int):
            for a in e.atoms():
                if isinstance(a, (FloorDiv, Mod)) and not variables(a).isdisjoint(loops):
                    found[a] = None
    return list(found)


@lru_cache(maxsize=1 << 13)
def _divides(e: Index) -> bool:
    return not isinstance(e, int) and any([isinstance(a, (FloorDiv, Mod)) for a in e.atoms()])


def _divisions(nest: Nest) -> list[FloorDiv | Mod]:
    return _division_atoms(expressions_of((nest,)), bound_variables((nest,)))


def divisions_left(kernel: Kernel) -> int:
    """The number of different divisions of index variables that its index expressions and conditions have."""
    return sum(len(_divisions(nest)) for nest in kernel.nests)


# 1. Buffers that are used flat


def _flatten_buffers(kernel: Kernel) -> Kernel:
    shapes = {p.name: p.shape for p in kernel.params if p.layout is None and len(p.shape) > 1}
    before: dict[str, int] = {}
    after: dict[str, int] = {}
    for nest in kernel.nests:
        loops = bound_variables((nest,))
        for name, at in accesses_of((nest,)):
            if name in shapes and any(not isinstance(e, int) for e in at):
                count = len(_division_atoms(at, loops))
                before[name] = before.get(name, 0) + count
                after[name] = after.get(name, 0) + (
                    len(_division_atoms([offset(at, shapes[name])], loops)) if count else 0)
    flat = {name: shapes[name] for name in before if after[name] < before[name]}
    return flatten_buffers(kernel, flat) if flat else kernel


# 2. Splitting variables


def _split_nest(nest: Nest, names: set[str]) -> Nest:
    for _ in range(MAX_SPLITS):
        expressions, loops = expressions_of((nest,)), bound_variables((nest,))
        atoms = _division_atoms(expressions, loops)
        if not atoms:
            break
        divided = [e for e in expressions if _division_atoms([e], loops)]
        best: _Split | None = None
        fewest = 0
        for v, inner in dict.fromkeys(option for a in atoms for option in _options(a, loops)):
            trial = _Split(v, Var("?outer", 0, _quotient(v.hi + 1, inner) - 1), Var("?inner", 0, inner - 1))
            mapping = {v: trial.outer * inner + trial.inner}
            left = len(_division_atoms([subs(e, mapping) for e in divided], [*loops, trial.outer, trial.inner]))
            if best is None or left < fewest:
                best, fewest = trial, left
        if best is None:
            break
        outer = Var(_fresh(best.v.name, names), 0, best.outer.hi)
        inner_var = Var(_fresh(best.v.name, names), 0, best.inner.hi)
        place = {best.v: outer * (best.inner.hi + 1) + inner_var}
        nest = _replace_variables(nest, place, {best.v: (outer, inner_var)})
    return nest


def _quotient(extent: Index, divisor: Index) -> Index:
    result = exact_quotient(extent, divisor)
    if result is None:
        raise InternalError(f"[split] expected a multiple of {divisor}, got {extent}")
    return result


def _options(atom: FloorDiv | Mod, loops: list[Var]) -> Iterator[tuple[Var, Index]]:
    """(variable, extent of its inner half) for each split that lets a term of the division come out."""
    if isinstance(atom.a, int):
        return
    for monomial, k in atom.a.terms:
        for v in monomial:
            if isinstance(v, Var) and v in loops and not any(v in variables(u.hi) for u in loops):
                rest = list(monomial)
                rest.remove(v)
                inner = exact_quotient(atom.b, product(rest) * abs(k))
                if inner is not None and inner != 1:
                    outer = exact_quotient(v.hi + 1, inner)
                    if outer is not None and outer != 1 and outer != 0:
                        yield v, inner


def _replace_variables(nest: Nest, place: dict[Var, Index], instead: dict[Var, tuple[Var, ...]]) -> Nest:
    """`nest` with variables replaced in every expression, domain and reduction."""
    def change(e: Index) -> Index:
        return subs(e, place)

    def scope(over: tuple[Var, ...]) -> tuple[Var, ...]:
        return tuple([new for v in over for new in instead.get(v, (v,))])

    return map_nest(nest, lambda v: map_indices(v, change, scope), lambda _, at: tuple(map(change, at)), scope)


# 3. Fusing neighbours


def _fuse(kernel: Kernel, k: int) -> Kernel:
    """Neighbouring variables of one domain or reduction of nest `k` as one, where fewer divisions are left then.

    Before:  for i<4, j<3: y[i, j] = x[(3*i+j)%4, (3*i+j)//4]      for x: [4, 3]
    After:   for f_1<3, f_0<4: y[4*f_1+f_0] = x[3*f_0+f_1]
    """
    nest = kernel.nests[k]
    shapes = {p.name: p.shape for p in kernel.params if p.layout is None and len(p.shape) > 1}
    flat = flatten_buffers(kernel, shapes)
    fewest = len(_divisions(nest))
    for scope in scopes_of((nest,)):
        for length in range(len(scope), 1, -1):
            for at in range(len(scope) - length + 1):
                names = _names(kernel)
                fused = _fused(flat.nests[k], scope[at:at + length], names)
                trial = None if fused is None else _split_nest(fused, names)
                if trial is not None and len(_divisions(trial)) < fewest:
                    return replace(flat, nests=(*flat.nests[:k], trial, *flat.nests[k + 1:]))
    return kernel


def _fused(nest: Nest, run: tuple[Var, ...], names: set[str]) -> Nest | None:
    if any(variables(u.hi) & set(run) for u in bound_variables((nest,))):
        return None
    f = Var(_fresh(run[-1].name, names), 0, product(v.hi + 1 for v in run) - 1)
    place: dict[Var, Index] = {}
    rest: Index = f
    for v in reversed(run):
        place[v] = rest % (v.hi + 1) if v is not run[0] else rest
        rest = rest // (v.hi + 1)
    return _replace_variables(nest, place, {**{v: () for v in run}, run[0]: (f,)})
