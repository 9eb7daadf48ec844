"""`Op`: everything minigrad knows about one primitive, in one record. No rule is registered elsewhere."""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from minigrad.dtype import DType
from minigrad.expr import Index
from minigrad.record import record
from minigrad.value import Value

if TYPE_CHECKING:
    from minigrad.ops.node import Node

Shape = tuple[Index, ...]

# What an op means for one element is one of seven named tuples: they are imported in a fifth of a dataclass's time


class Elementwise(NamedTuple):
    """One output element from the operands' elements at the same index. `scalar(*values, dtype=..., **params)`.

    Float operands of half types arrive as float32 and the result is of `dtype.compute`. `flops`: its rough cost in
    vector instructions (1 for add, about 10 for exp), which the scheduler weighs against memory traffic.
    """

    scalar: Callable[..., Value]
    flops: int = 1


class Generate(NamedTuple):
    """From the index alone: `element(index, *scalars, dtype=..., **params)`; scalars are inputs of shape ()."""

    element: Callable[..., Value]
    flops: int = 1


class Reduction(NamedTuple):
    """A whole reduction over params['axes'] (kept out of the result's shape) by the monoid of this name."""

    monoid: str


@record
class Mapped:
    """The place that an index map reads: the input's index, conditions (each >= 0) and the value outside them.

    `reduce` lists extra variables that are summed over (the transposed window); usually empty.
    """

    index: tuple[Index, ...]
    conditions: tuple[Index, ...] = ()
    fill: float = 0.0
    reduce: tuple[Any, ...] = ()


class IndexMap(NamedTuple):
    """Movement: `source(index, in_shape=..., **params) -> Mapped` gives the input element that an output element is."""

    source: Callable[..., Mapped]


class Storage(NamedTuple):
    """An operation with a rule of the scheduler's own, named by `rule`: buffer, copy, contiguous, assign, gather,
    scatter..."""

    rule: str


class Composite(NamedTuple):
    """An operation made of others: `expand(*inputs, **params)` gives the Node that computes it, of its shape and dtype.
    It makes no leaf of its own (buffer, scalar), and depends on nothing but its arguments."""

    expand: Callable[..., Any]


class Scan(NamedTuple):
    """One result of a loop over the first axis of some operands with a carried state: `body` is a `scan.Body`."""

    body: Any


Lower = Elementwise | Generate | Reduction | IndexMap | Storage | Composite | Scan


@dataclass(frozen=True, eq=False, slots=True)
class Op:
    """One primitive.

    infer(shapes, dtypes, **params) -> (shape, dtype); raises ShapeError or DTypeError as `[name] expected ..., got ...`
    vjp(node, grad) -> one gradient Node (or None) per input, each of that input's shape and dtype; a composite without
        one is differentiated through its expansion
    reference(*arrays, **params) -> the numpy result: the oracle, and the body of the NUMPY device. bfloat16 arrays come
        and go as float32; symbolic params come bound to ints; `shape` and `dtype` of the result are passed by keyword
    lower: its meaning for one element
    """

    name: str
    infer: Callable[..., tuple[Shape, DType]]
    vjp: Callable[[Node, Node], tuple[Node | None, ...]] | None
    reference: Callable[..., np.ndarray]
    lower: Lower

    def __repr__(self) -> str:
        return self.name
