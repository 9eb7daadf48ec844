"""Kernel -> Kernel over flat buffers: every access becomes one element offset."""
from __future__ import annotations

from functools import lru_cache

from minigrad.codegen.kernel import Define, Kernel, Nest, Param, Store
from minigrad.expr import FloorDiv, Index, Max, Min, Mod, emax, emin, product
from minigrad.value import Value, ValueIndex, rebuild, value_atoms, walk

Shapes = dict[str, tuple[Index, ...]]


def flatten(kernel: Kernel) -> Kernel:
    """All buffers one-dimensional."""
    return flatten_buffers(kernel, {p.name: p.shape for p in kernel.params})


def flatten_buffers(kernel: Kernel, shapes: Shapes) -> Kernel:
    """The kernel with these (row-major) buffers one-dimensional."""
    params = tuple([Param(p.name, p.dtype, (product(p.shape),), p.mode, p.layout) if p.name in shapes else p
                    for p in kernel.params])
    return Kernel(kernel.name, params, kernel.scalars, kernel.dims,
                  tuple([_flatten_nest(n, shapes) for n in kernel.nests]))


@lru_cache(maxsize=1 << 13)
def offset(at: tuple[Index, ...], shape: tuple[Index, ...]) -> Index:
    """The row-major position of an index."""
    total: Index = 0
    for e, extent in zip(at, shape, strict=True):
        total = total * extent + e
    return total


def _flatten_nest(nest: Nest, shapes: Shapes) -> Nest:
    body: list[Define | Store | Nest] = []
    for s in nest.body:
        if isinstance(s, Nest):
            body.append(_flatten_nest(s, shapes))
        elif isinstance(s, Define):
            body.append(Define(s.name, _flatten_value(s.value, shapes)))
        else:
            inner = {a.value: _flatten_value(a.value, shapes) for e in s.indices for a in value_atoms(e)}
            at = tuple(_with_atoms(e, inner) for e in s.indices)
            at = (offset(at, shapes[s.param]),) if s.param in shapes else at
            body.append(Store(s.param, at, _flatten_value(s.value, shapes), s.combine))
    return Nest(nest.domain, tuple(body))


def _flatten_value(root: Value, shapes: Shapes) -> Value:
    done: dict[Value, Value] = {}
    for v in walk(root):
        if not v.loads:
            done[v] = v
            continue
        attr, op = v.attr, v.op
        if op == "load":
            name, at = attr
            if v.inner:
                at = tuple([_with_atoms(e, done) for e in at])
            attr = (name, (offset(at, shapes[name]),) if name in shapes else at)
        elif op in ("guard", "index") and v.inner:
            attr = tuple([_with_atoms(e, done) for e in attr]) if op == "guard" else _with_atoms(attr, done)
        done[v] = rebuild(v, tuple([done[a] for a in v.args]), attr)
    return done[root]


def _with_atoms(e: Index, done: dict[Value, Value]) -> Index:
    """`e` with the values in it (of a gather) replaced."""
    atoms = value_atoms(e)
    return replace_atoms(e, {a: ValueIndex(done[a.value], a.lo, a.hi) for a in atoms}) if atoms else e


def replace_atoms(e: Index, mapping: dict) -> Index:
    """`e` with opaque atoms replaced by others; they may only be factors or inside min and max."""
    if isinstance(e, int):
        return e
    total: Index = e.const
    for monomial, coefficient in e.terms:
        term: Index = coefficient
        for a in monomial:
            new: Index = mapping.get(a, a)
            if new is a and isinstance(a, (Min, Max, FloorDiv, Mod)):
                x, y = replace_atoms(a.a, mapping), replace_atoms(a.b, mapping)
                new = (emin(x, y) if isinstance(a, Min) else emax(x, y) if isinstance(a, Max)
                       else x // y if isinstance(a, FloorDiv) else x % y)
            term = new * term
        total = total + term
    return total
