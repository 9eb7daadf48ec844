"""Kernel -> Kernel over flat buffers: every access becomes one element offset."""
from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from minigrad.codegen.kernel.nodes import Kernel, Nest, Param
from minigrad.codegen.kernel.value_walk import map_leaves, rebuilt
from minigrad.codegen.kernel.walk import map_nest
from minigrad.expr import Index, product
from minigrad.value import Value, ValueIndex, rebuild, value_atoms

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
    def index(e: Index) -> Index:
        return map_leaves(e, lambda a: ValueIndex(value(a.value), a.lo, a.hi) if isinstance(a, ValueIndex) else a) \
            if value_atoms(e) else e

    def indices(of: Indices) -> Indices:
        return tuple([index(e) for e in of])

    def one(v: Value, args: tuple[Value, ...]) -> Value | None:
        if v.op == "load":
            return rebuild(v, args, (v.buffer, access(v.buffer, indices(v.indices) if v.inner else v.indices)))
        return rebuild(v, args, indices(v.conditions) if v.op == "guard" else index(v.index)) if v.inner else None

    def value(root: Value) -> Value:
        return rebuilt(root, one) if root.loads else root

    return tuple([map_nest(nest, value, lambda name, at: access(name, indices(at))) for nest in nests])
