"""Splitting on demand: floor and modulo out of index maps (docs/decisions/0006-indices-without-views.md).

Before:  for i<12: y[i] = x[i%4, i//4]
After:   for i_1<3, i_0<4: y[4*i_1+i_0] = x[i_0, i_1]
"""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

from minigrad.codegen.kernel.nodes import Define, Kernel, Nest, Store
from minigrad.codegen.lowering.flatten import flatten_buffers, offset
from minigrad.codegen.lowering.phases import split_phases
from minigrad.codegen.lowering.rename import statements
from minigrad.errors import InternalError
from minigrad.expr import FloorDiv, Index, Mod, Var, exact_quotient, product, subs, variables
from minigrad.value import Value, map_indices, reductions_in, walk
from minigrad.value import expressions as index_expressions

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
    if not any(_divides(e) for nest in kernel.nests for e in _expressions(nest)):
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
    for s in statements(kernel.nests):
        used |= {v.name for v in s.domain} if isinstance(s, Nest) else {s.name} if isinstance(s, Define) else set()
    for nest in kernel.nests:
        used |= {v.name for v in _loops(nest)}
    return used


def _fresh(name: str, used: set[str]) -> str:
    k = 0
    while f"{name}_{k}" in used:
        k += 1
    used.add(f"{name}_{k}")
    return f"{name}_{k}"


def _scopes(nest: Nest) -> list[tuple[Var, ...]]:
    """The variable lists of its domains and reductions."""
    found: dict[tuple[Var, ...], None] = {}
    for s in statements((nest,)):
        if isinstance(s, Nest):
            found[s.domain] = None
        else:
            found.update(dict.fromkeys([v.over for v in reductions_in(s.value)]))
    return list(found)


def _loops(nest: Nest) -> list[Var]:
    return list(dict.fromkeys(v for scope in _scopes(nest) for v in scope))


def _expressions(nest: Nest) -> list[Index]:
    """Every index expression of its statements, once."""
    found: dict[Index, None] = {}
    for s in statements((nest,)):
        if not isinstance(s, Nest):
            found.update(dict.fromkeys(s.indices if isinstance(s, Store) else ()))
            found.update(dict.fromkeys(index_expressions(s.value)))
    return [e for e in found if not isinstance(e, int)]


def _division_atoms(expressions: list[Index], loops: list[Var]) -> list[FloorDiv | Mod]:
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
    return _division_atoms(_expressions(nest), _loops(nest))


def divisions_left(kernel: Kernel) -> int:
    """The number of different divisions of index variables that its index expressions and conditions have."""
    return sum(len(_divisions(nest)) for nest in kernel.nests)


# 1. Buffers that are used flat


def _flatten_buffers(kernel: Kernel) -> Kernel:
    shapes = {p.name: p.shape for p in kernel.params if p.layout is None and len(p.shape) > 1}
    before: dict[str, int] = {}
    after: dict[str, int] = {}
    for nest in kernel.nests:
        loops = _loops(nest)
        for name, at in _accesses(nest):
            if name in shapes and any(not isinstance(e, int) for e in at):
                count = len(_division_atoms(list(at), loops))
                before[name] = before.get(name, 0) + count
                after[name] = after.get(name, 0) + (
                    len(_division_atoms([offset(at, shapes[name])], loops)) if count else 0)
    flat = {name: shapes[name] for name in before if after[name] < before[name]}
    return flatten_buffers(kernel, flat) if flat else kernel


def _accesses(nest: Nest) -> Iterator[tuple[str, tuple[Index, ...]]]:
    for s in statements((nest,)):
        if not isinstance(s, Nest):
            if isinstance(s, Store):
                yield s.param, s.indices
            for v in walk(s.value):
                if v.op == "load":
                    yield v.buffer, v.indices


# 2. Splitting variables


def _split_nest(nest: Nest, names: set[str]) -> Nest:
    for _ in range(MAX_SPLITS):
        expressions, loops = _expressions(nest), _loops(nest)
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
    body: list[Define | Store | Nest] = []
    for s in nest.body:
        if isinstance(s, Nest):
            body.append(_replace_variables(s, place, instead))
            continue
        s = replace(s, value=_replace_in_value(s.value, place, instead))
        if isinstance(s, Store):
            s = replace(s, indices=tuple(subs(e, place) for e in s.indices))
        body.append(s)
    return Nest(_replace_in_scope(nest.domain, instead), tuple(body))


def _replace_in_scope(scope: tuple[Var, ...], instead: dict[Var, tuple[Var, ...]]) -> tuple[Var, ...]:
    return tuple(new for v in scope for new in instead.get(v, (v,)))


def _replace_in_value(root: Value, place: dict[Var, Index], instead: dict[Var, tuple[Var, ...]]) -> Value:
    return map_indices(root, lambda e: subs(e, place), lambda over: _replace_in_scope(over, instead))


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
    for scope in _scopes(nest):
        for length in range(len(scope), 1, -1):
            for at in range(len(scope) - length + 1):
                names = _names(kernel)
                fused = _fused(flat.nests[k], scope[at:at + length], names)
                trial = None if fused is None else _split_nest(fused, names)
                if trial is not None and len(_divisions(trial)) < fewest:
                    return replace(flat, nests=(*flat.nests[:k], trial, *flat.nests[k + 1:]))
    return kernel


def _fused(nest: Nest, run: tuple[Var, ...], names: set[str]) -> Nest | None:
    if any(variables(u.hi) & set(run) for u in _loops(nest)):
        return None
    f = Var(_fresh(run[-1].name, names), 0, product(v.hi + 1 for v in run) - 1)
    place: dict[Var, Index] = {}
    rest: Index = f
    for v in reversed(run):
        place[v] = rest % (v.hi + 1) if v is not run[0] else rest
        rest = rest // (v.hi + 1)
    return _replace_variables(nest, place, {**{v: () for v in run}, run[0]: (f,)})
