"""Kernel -> Kernel over flat buffers: every access becomes one element offset."""
from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from minigrad.codegen.kernel import Kernel, Nest, Param
from minigrad.codegen.lowering.rename import map_nest
from minigrad.expr import FloorDiv, Index, Max, Min, Mod, emax, emin, product
from minigrad.value import Value, ValueIndex, rebuild, value_atoms, walk

Indices = tuple[Index, ...]
Shapes = dict[str, Indices]


def flatten(kernel: Kernel) -> Kernel:
    """All buffers one-dimensional."""
    return flatten_buffers(kernel, {p.name: p.shape for p in kernel.params})


def flatten_buffers(kernel: Kernel, shapes: Shapes) -> Kernel:
    """The kernel with these (row-major) buffers one-dimensional."""
    params = tuple([Param(p.name, p.dtype, (product(p.shape),), p.mode, p.layout) if p.name in shapes else p
                    for p in kernel.params])
    nests = map_accesses(kernel.nests, lambda name, at: (offset(at, shapes[name]),) if name in shapes else at)
    return Kernel(kernel.name, params, kernel.scalars, kernel.dims, nests)


@lru_cache(maxsize=1 << 13)
def offset(at: tuple[Index, ...], shape: tuple[Index, ...]) -> Index:
    """The row-major position of an index."""
    total: Index = 0
    for e, extent in zip(at, shape, strict=True):
        total = total * extent + e
    return total


def map_accesses(nests: tuple[Nest, ...], access: Callable[[str, Indices], Indices]) -> tuple[Nest, ...]:
    """The nests with `access(parameter, indices)` in place of the indices of every load and store, those inside indices
    too."""
    done: dict[Value, Value] = {}

    def index(e: Index) -> Index:
        atoms = value_atoms(e)
        return replace_atoms(e, {a: ValueIndex(value(a.value), a.lo, a.hi) for a in atoms}) if atoms else e

    def indices(of: Indices) -> Indices:
        return tuple([index(e) for e in of])

    def value(root: Value) -> Value:
        if not root.loads:
            return root
        for v in walk(root):
            if v in done:
                continue
            attr, op = v.attr, v.op
            if op == "load":
                name, at = attr
                attr = (name, access(name, indices(at) if v.inner else at))
            elif v.inner:
                attr = indices(attr) if op == "guard" else index(attr)
            done[v] = rebuild(v, tuple([done[a] for a in v.args]), attr)
        return done[root]

    return tuple([map_nest(nest, value, lambda name, at: access(name, indices(at))) for nest in nests])


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
