"""The index-notation form of one fused kernel: what it computes, without order of execution or target.

    kernel  := "kernel" name "(" param, ... ")" NEWLINE nest+
    param   := ["out" | "inout"] name ":" dtype "[" extent, ... "]" ["order" "(" axis, ... ")"]    a buffer, its layout
             | name ":" dtype                                       a scalar argument
             | name ":" "index" "in" lo ".." hi                     a symbolic dim
    nest    := "for" var "<" extent, ... ":" NEWLINE stmt+          (an empty domain is written "for :")
    stmt    := name "=" value                                       a definition, alive for one iteration of its nest
             | name "[" index, ... "]" "=" value                    a store: affine indices, each element exactly once
             | name "[" index, ... "]" monoid "=" value             a scatter: `y[{at[i] in 0..9}] sum= x[i]`, or set=
             | "$" number ["for" var "<" extent, ...] "=" value     a value used more than once (see value_text.py)
             | nest                                                 an inner domain; sees the outer variables and names
    steps   := "state" param, ... NEWLINE nest* "steps" var "<" extent ":" NEWLINE nest+ nest*     in place of the nests

Values follow `value/core.py` and print as arithmetic (grammar in `value_text.py`):
`sum(c<32, u<3: (x[n, c, i+u-1] else 0.0 if i+u-1 >= 0) * w[o, c, u])`.
Nests of one kernel are independent of each other (phases of a strided gradient, siblings) and may run in any order,
but for those of a loop with a carried state (`Steps`), which run in theirs.
"""
from __future__ import annotations

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
    """The nests `first` to `last` - 1 of a kernel run one after another, all of them for each value of `var` in turn;
    those before come before, those after it after. `state` are buffers that nobody else sees: all nests may read
    and store to them."""

    var: Var
    first: int
    last: int
    state: tuple[Param, ...]


@record
class Kernel:
    """`params` in argument order, then `scalars`, then `dims` (runtime index variables), then the nests."""

    name: str
    params: tuple[Param, ...]
    scalars: tuple[Scalar, ...]
    dims: tuple[Var, ...]
    nests: tuple[Nest, ...]
    steps: Steps | None = None

    def with_nests(self, nests: tuple[Nest, ...]) -> Kernel:
        return Kernel(self.name, self.params, self.scalars, self.dims, nests)

    def param(self, name: str) -> Param:
        state = self.steps.state if self.steps is not None else ()
        return next(p for p in (*self.params, *state) if p.name == name)


def is_sum(s: Define | Store | Nest) -> TypeGuard[Define]:
    """True where a statement defines a reduction (of any monoid)."""
    return isinstance(s, Define) and s.value.op == "reduce"
