"""The index-notation form of one fused kernel: what it computes, without order of execution or target.

    kernel  := "kernel" name "(" param, ... ")" NEWLINE (nest+ | block)
    param   := ["out" | "inout"] name ":" dtype "[" extent, ... "]" ["order" "(" axis, ... ")"]    a buffer, its layout
             | name ":" dtype                                       a scalar argument
             | name ":" "index" "in" lo ".." hi                     a symbolic dim
    nest    := "for" var "<" extent, ... ":" NEWLINE stmt+          (an empty domain is written "for :")
    stmt    := name "=" value                                       a definition, alive for one iteration of its nest
             | name "[" index, ... "]" "=" value                    a store: affine indices, each element exactly once
             | name "[" index, ... "]" monoid "=" value             a scatter: `y[{at[i] in 0..9}] sum= x[i]`, or set=
             | "$" number ["for" var "<" extent, ...] "=" value     a value used more than once (see value_text.py)
             | nest                                                 an inner domain; sees the outer variables and names
    block   := "block" [var "<" extent, ...] ":" NEWLINE ["local" param, ... NEWLINE] (nest | steps)+
    steps   := "steps" var "in" start ".." stop ":" NEWLINE (nest | steps)+

Values follow `value/core.py` and print as arithmetic (grammar in `value_text.py`):
`sum(c<32, u<3: (x[n, c, i+u-1] else 0.0 if i+u-1 >= 0) * w[o, c, u])`.
Nests of one kernel are independent of each other (phases of a strided gradient, siblings) and may run in any order,
but for those of a block, which run in theirs:

    block i<8:                          for each i, independently of the others,
      local s: f32[64], total: f32[1]   with memory of its own, in which nothing is at first:
      for : total[0] = 0.0              a nest like any other, which sees i
      steps j in 0..i+1:                for each j in turn, which may depend on what is around
        for k<64: s[k] = x[i, j, k]
        for : total[0] = total[0] + sum(k<64: s[k])
      for : y[i] = total[0]
"""
from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TypeGuard

from minigrad.dtype import DType
from minigrad.expr import Index, Var
from minigrad.record import record
from minigrad.value import Value


@record
class Param:
    """A buffer parameter. `mode` is 'in', 'out' or 'inout'. `shape` is the logical index space, stored row-major.

    `layout` is the axis order of storage, outermost first (None: row-major); it is part of the kernel's identity.
    """

    name: str
    dtype: DType
    shape: tuple[Index, ...]
    mode: str = "in"
    layout: tuple[int, ...] | None = None


@record
class Scalar:
    """A lifted constant, passed as an argument: never part of a key. Read as local(name) in values."""

    name: str
    dtype: DType


@record
class Define:
    name: str
    value: Value


@record
class Store:
    """param[indices] = value. With `combine` (scatter) the stored element is `monoid(old, value)`, in index order."""

    param: str
    indices: tuple[Index, ...]
    value: Value
    combine: str | None = None


@record
class Nest:
    """`for v in [0, extent)` over each of `domain` (extent = v.hi + 1), then the statements in order."""

    domain: tuple[Var, ...]
    body: tuple[Define | Store | Nest, ...]


@record
class Steps:
    """Nests and steps in order, all of them for each value of `var` in turn: from `start` to `var.hi`, both of which
    may depend on the variables around; none where that is less."""

    var: Var
    start: Index
    body: tuple[Nest | Steps, ...]

    @property
    def stop(self) -> Index:
        return self.var.hi + 1


@record
class Block:
    """For each place of `domain`, independently of the others: nests and steps in order. They share the buffers `local`
    (mode 'inout'), of which each place has its own."""

    domain: tuple[Var, ...]
    local: tuple[Param, ...]
    body: tuple[Nest | Steps, ...]


@record
class Kernel:
    """`params` in argument order, then `scalars`, then `dims` (runtime index variables), then the nests, or a block in
    place of them."""

    name: str
    params: tuple[Param, ...]
    scalars: tuple[Scalar, ...]
    dims: tuple[Var, ...]
    nests: tuple[Nest, ...]
    block: Block | None = None

    def with_nests(self, nests: tuple[Nest, ...]) -> Kernel:
        return Kernel(self.name, self.params, self.scalars, self.dims, nests)

    @property
    def local(self) -> tuple[Param, ...]:
        """The buffers that a block has."""
        return () if self.block is None else self.block.local

    def param(self, name: str) -> Param:
        return next(p for p in (*self.params, *self.local) if p.name == name)

    def alone(self) -> Iterator[Kernel]:
        """Each nest in order as a kernel of its own: of a block, whose parameters are also its buffers, and whose dims
        are also the variables around."""
        if self.block is None:
            yield from [self.with_nests((nest,)) for nest in self.nests]
        else:
            whole = replace(self, params=(*self.params, *self.local), block=None)
            for nest, around in nests_of(self.block.body, self.block.domain):
                yield replace(whole, dims=(*self.dims, *around), nests=(nest,))


def nests_of(body: Iterable[Nest | Steps], around: tuple[Var, ...] = ()) -> Iterator[tuple[Nest, tuple[Var, ...]]]:
    """The nests in order, with the variables around each."""
    for s in body:
        if isinstance(s, Steps):
            yield from nests_of(s.body, (*around, s.var))
        else:
            yield s, around


def is_sum(s: Define | Store | Nest) -> TypeGuard[Define]:
    """True where a statement defines a reduction (of any monoid)."""
    return isinstance(s, Define) and s.value.op == "reduce"
