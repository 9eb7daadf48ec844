"""Where in its buffer a kernel begins to read or write becomes an argument: steps of a loop over `x[t]` share programs.

    o0[i0] = p0[i0 + 330] * p1[i0]        ->        o0[i0] = p0[i0 + b0] * p1[i0]          b0 = 330

`take_bases` takes the least offset off every parameter and leaves a buffer that ends where the last access does. What
is planned and built then knows nothing of offsets, and is found again for other ones; `add_bases` puts them back into
the loops, as dims. Parts of one buffer that are read together keep their distance.
"""
from __future__ import annotations

from functools import lru_cache

from minigrad.codegen.ir.nodes import BufferParam, Function
from minigrad.codegen.ir.walk import map_all, names
from minigrad.codegen.kernel import Kernel, Nest, Param, Store
from minigrad.codegen.lowering.flatten import replace_atoms
from minigrad.codegen.lowering.rename import map_nest, statements
from minigrad.expr import Expr, Index, Var, bounds
from minigrad.value import Value, ValueIndex, rebuild, value_atoms, walk

MAX_BASE = (1 << 31) - 1

Bases = dict[str, Index]


def take_bases(kernel: Kernel) -> tuple[Kernel, dict[str, int]]:
    """The flat kernel with every parameter from the first element that may be accessed on, and which one that is."""
    ends: dict[str, tuple[int, int]] = {}
    for name, at in _accesses(kernel):
        (first, last), (least, end) = bounds(at), ends.get(name, (MAX_BASE, 0))
        ends[name] = min(least, first), max(end, last)
    bases: dict[str, int] = {}
    params: list[Param] = []
    for p in kernel.params:
        least, last = ends.get(p.name, (0, 0))
        size = p.shape[0]
        if 0 < least < MAX_BASE and type(size) is int and p.layout is None:
            bases[p.name] = least
            p = Param(p.name, p.dtype, (min(size, last + 1) - least,), p.mode)
        params.append(p)
    if not bases:
        return kernel, {}
    nests = moved(kernel.nests, {name: -base for name, base in bases.items()})
    return Kernel(kernel.name, tuple(params), kernel.scalars, kernel.dims, nests), bases


def moved(nests: tuple[Nest, ...], by: dict[str, int]) -> tuple[Nest, ...]:
    """The nests with what is added to the offset of every access of a parameter."""
    mover = _Mover(by)
    return tuple([map_nest(nest, mover.value, mover.offset) for nest in nests])


def _accesses(kernel: Kernel) -> list[tuple[str, Index]]:
    """(parameter, offset) of all accesses, those inside indices too."""
    found: list[tuple[str, Index]] = []
    roots: list[Value] = []
    for s in statements(kernel.nests):
        if isinstance(s, Store):
            found.append((s.param, s.indices[0]))
            roots += [a.value for a in value_atoms(s.indices[0])]
        if not isinstance(s, Nest):
            roots.append(s.value)
    return found + [(v.attr[0], v.attr[1][0]) for v in walk(*roots) if v.op == "load"]  # type: ignore[index]


@lru_cache(maxsize=4096)
def add_bases(function: Function, parameters: tuple[str, ...]) -> Function:
    """The function whose accesses of these parameters begin at further dims, in their order."""
    used = names(function)
    dims = []
    for k in range(len(parameters)):
        name = f"b{k}"
        while name in used:
            name += "_"
        dims.append(Var(name, 1, MAX_BASE))
    bases: Bases = dict(zip(parameters, dims, strict=True))
    buffers = tuple([BufferParam(b.name, b.dtype, b.size + bases.get(b.name, 0), b.mode) for b in function.buffers])
    mover = _Mover(bases)
    body = map_all(function.body, mover.value, mover.index, mover.offset)
    return Function(function.name, buffers, function.scalars, (*function.dims, *dims), body)


class _Mover:
    """Adds to the offset of every access what its buffer is moved by."""

    def __init__(self, by: Bases | dict[str, int]):
        self.by = by
        self.done: dict[Value, Value] = {}

    def offset(self, buffer: str, e: Index) -> Index:
        return self.index(e) + self.by.get(buffer, 0)

    def value(self, root: Value) -> Value:
        """The value with its loads moved, those inside indices too."""
        if not root.loads:
            return root
        for v in walk(root):
            if v in self.done:
                continue
            attr = v.attr
            if v.op == "load":
                name, at = v.attr  # type: ignore[misc]
                attr = (name, tuple([self.offset(name, e) for e in at]))
            elif v.inner and v.op == "guard":
                attr = tuple([self.index(e) for e in v.attr])  # type: ignore[union-attr]
            elif v.inner:
                attr = self.index(v.attr)  # type: ignore[arg-type]
            self.done[v] = rebuild(v, tuple([self.done[a] for a in v.args]), attr)
        return self.done[root]

    def index(self, e: Index) -> Index:
        """An index with the values in it moved."""
        if not isinstance(e, Expr):
            return e
        atoms = value_atoms(e)
        return replace_atoms(e, {a: ValueIndex(self.value(a.value), a.lo, a.hi) for a in atoms}) if atoms else e
