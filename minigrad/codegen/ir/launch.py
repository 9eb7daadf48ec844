"""Parts of all builders: the function of a kernel, the places of one iteration of its parallel loop, and names."""
from __future__ import annotations

from collections.abc import Sequence
from typing import overload

from minigrad.codegen.ir.nodes import BufferParam, Function, Loop, ScalarParam
from minigrad.codegen.kernel.nodes import Kernel
from minigrad.expr import Index, Var, bounds, product


def function_of(kernel: Kernel, name: str, loop: Loop) -> Function:
    """A function with the parameters of a kernel, whose buffers are flat."""
    buffers = tuple(BufferParam(p.name, p.dtype, p.shape[0], p.mode) for p in kernel.params)
    scalars = tuple(ScalarParam(s.name, s.dtype) for s in kernel.scalars)
    return Function(name, buffers, scalars, kernel.dims, (loop,))


def spread(counts: Sequence[Index], name: str = "p") -> tuple[Var, Index, list[Index]]:
    """A variable for all of nested loops, its stop, and the place in each of them; the last one steps first."""
    total = product(counts)
    p = Var(name, 0, total - 1)
    return p, total, places_of(p if total != 1 else 0, counts)


def places_of(place: Index, counts: Sequence[Index]) -> list[Index]:
    """The place in each of nested loops that run as one; the last one steps first."""
    places: list[Index] = []
    after: Index = 1
    for k, count in reversed(list(enumerate(counts))):
        count = 1 if count == 0 else count  # an empty domain never runs
        places.insert(0, place // after % count if k else place // after)
        after = after * count
    return places


@overload
def ceil_div(a: int, b: int) -> int: ...


@overload
def ceil_div(a: Index, b: Index) -> Index: ...


def ceil_div(a: Index, b: Index) -> Index:
    """The number of parts of b elements that a elements make, the last one perhaps smaller."""
    return a if b == 1 else (a + (b - 1)) // b


class Names:
    """Fresh names of one function."""

    def __init__(self) -> None:
        self.count = 0

    def name(self, stem: str) -> str:
        self.count += 1
        return f"{stem}_{self.count}"

    def fresh(self, stem: str, last: Index) -> Var:
        """A loop's variable, bounded by the largest value that `last` can have."""
        return Var(self.name(stem), 0, max(bounds(last)[1], 0))

    def counted(self, stem: str, count: Index) -> Var:
        """A loop's variable, bounded by the largest value that its `count` can have."""
        return self.fresh(stem, count - 1)
