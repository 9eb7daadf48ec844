"""Loops over an axis with a carried state: one Node for each result of a loop.

    state = init
    for t in range(length), or backwards:
        state, y[t] = body(state, x[t], captured)

A body is Nodes over operands of known shapes that stand for any: the carries, the slices of this step, and what all
steps read. Each body is an operation of its own, named by its text. Its Nodes have the operands (carries before the
first step, all slices `[length, ...]`, captured) and differ in `number`: first the carries after the last step, then
the results of all steps, then what gradients read: the carries before each step, and what they do not compute again.
Those over the same operands are a family, which is computed by one loop.
"""
from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from typing import Any, NoReturn

import numpy as np

from minigrad.dtype import DType
from minigrad.errors import MinigradError, ShapeError
from minigrad.expr import Index
from minigrad.interned import remember
from minigrad.ops import build as B
from minigrad.ops.composite import once
from minigrad.ops.kinds import Type
from minigrad.ops.node import Node, apply, leaf
from minigrad.ops.op import Op, Scan, Shape
from minigrad.ops.storage import BUFFER
from minigrad.ops.traced import Traced

MOST = 2048
"""The most bodies that are kept."""
_bodies: dict[str, Body] = {}


class Operand:
    """Stands where a realized Node has its buffer, in the operands of a body; nobody can read it."""

    __slots__ = ("__weakref__",)
    nbytes = 0

    def __getattr__(self, name: str) -> NoReturn:
        raise MinigradError("[scan] expected a function that reads no values of its carry or its slices (item, numpy, "
                            "if), gives all that it computes as its results, and changes no other Tensor")


def operand(of: Type) -> Node:
    """A Node that stands for any of a type."""
    return leaf(BUFFER, of, Operand(), {})


class Body:
    """The operation of a loop whose step is `step`, over `carries` carries and `slices` slices, then what is captured;
    its results are the new carries, then those of the step. `by_step` are the Nodes of the step whose values at all
    steps are a Node of the family, in order. `gradients`, `plain` and `kernels` are memos of who differentiates,
    interprets and schedules it."""

    __slots__ = ("step", "carries", "slices", "results", "by_step", "op", "gradients", "plain", "kernels", "_unrolled")

    def __init__(self, step: Traced, carries: int, slices: int, text: str):
        self.step, self.carries, self.slices = step, carries, slices
        self.results = len(step.results) - carries
        self.by_step = [*step.results[carries:], *step.operands[:carries]]
        name = f"scan.{sha256(text.encode()).hexdigest()[:16]}"
        self.op = Op(name, self._infer, _by_family, _never, Scan(self))
        self.gradients: dict[Any, Any] = {}
        self.plain: Any = None
        self.kernels: dict[Any, bool] = {}
        self._unrolled: dict[Any, Any] = {}

    def __call__(self, operands: Sequence[Node], length: Index, reverse: bool) -> list[Node]:
        """The carries after the last step, then the results of all steps."""
        return [self.result(k, operands, length, reverse) for k in range(self.carries + self.results)]

    def result(self, number: int, operands: Sequence[Node], length: Index, reverse: bool) -> Node:
        """One Node of the family; the carries before each step, and what is kept, come after what a call gives."""
        if number < self.carries and length == 0:
            return operands[number]
        return apply(self.op, *operands, length=length, reverse=reverse, number=number)

    def keep(self, node: Node) -> int:
        """The number of the result that is a Node of the step at all steps."""
        if node not in self.by_step:
            self.by_step.append(node)
        return self.carries + self.by_step.index(node)

    def _infer(self, shapes: Sequence[Shape], dtypes: Sequence[DType], *, length: Index, reverse: bool, number: int,
               ) -> tuple[Shape, DType]:
        for k, (of, shape, dtype) in enumerate(zip(self.step.operands, shapes, dtypes, strict=True)):
            sliced = self.carries <= k < self.carries + self.slices
            wanted = (length, *of.shape) if sliced else of.shape
            if wanted != shape or dtype is not of.dtype:
                raise ShapeError(f"[scan] expected operand {k} as {of.dtype}{list(wanted)}, got {dtype}{list(shape)}")
        if number < self.carries:
            return shapes[number], dtypes[number]
        made = self.by_step[number - self.carries]
        return (length, *made.shape), made.dtype

    def unrolled(self, length: int, reverse: bool) -> Any:
        """A function of a loop's operands that gives all its results as the operations of all steps."""
        key = length, reverse, len(self.by_step)
        found = self._unrolled.get(key)
        if found is None:
            def found(*operands: Node) -> list[Node]:
                return self._all_steps(operands, length, reverse)

            remember(self._unrolled, key, found, 16)
        return found

    def _all_steps(self, operands: Sequence[Node], length: int, reverse: bool) -> list[Node]:
        state, slices = list(operands[:self.carries]), operands[self.carries:self.carries + self.slices]
        captured = operands[self.carries + self.slices:]
        made: list[list[Node]] = []
        for t in reversed(range(length)) if reverse else range(length):
            results = self.step.images([*self.step.results[:self.carries], *self.by_step],
                                       [*state, *[_slice(x, t) for x in slices], *captured])
            made.append(results[self.carries:])
            state = results[:self.carries]
        return [*state, *[_stacked(list(parts)) for parts in zip(*(made[::-1] if reverse else made), strict=True)]]


def body_of(step: Traced, carries: int, slices: int) -> Body:
    """The Body of a step; one for equal steps."""
    text = f"{carries} {slices}\n{step.text()}"
    found = _bodies.get(text)
    if found is None:
        found = Body(step, carries, slices, text)
        remember(_bodies, text, found, MOST)
    return found


def family(node: Node) -> tuple[Any, ...]:
    """The key that the results of one loop have in common, and no others have."""
    return node.op, node.inputs, node.params["length"], node.params["reverse"]


def unrolled(node: Node, inputs: Sequence[Node]) -> Node:
    """The Node that computes a result of a loop over these inputs as the operations of all steps. Raises ShapeError for
    a length that is not known."""
    length, number = node.params["length"], node.params["number"]
    lower: Any = node.op.lower
    if not isinstance(length, int):
        raise ShapeError(f"[scan] expected a known number of steps for this function, which needs a kernel for each of "
                         f"its steps on {node.device}, got {length}")
    if length == 0:
        return B.full(0, node.shape, node.dtype, node.device)
    made: Node = once(lower.body.unrolled(length, node.params["reverse"]), *inputs)[number]
    return made


def _slice(x: Node, t: int) -> Node:
    """x[t]."""
    rest = x.shape[1:]
    return B.reshape(B.slice_(x, (t, *[0] * len(rest)), (t + 1, *rest)), rest)


def _stacked(parts: list[Node]) -> Node:
    """The parts along a new first axis."""
    made: Node | None = None
    for t, part in enumerate(parts):
        row = B.reshape(part, (1, *part.shape))
        pads = ((t, len(parts) - 1 - t), *[(0, 0)] * len(part.shape))
        padded = B.pad(row, pads, -0.0 if part.dtype.is_float else 0)  # adding it changes nothing
        made = padded if made is None else (B.or_ if part.dtype.kind == "b" else B.add)(made, padded)
    return made  # type: ignore[return-value]


def _by_family(node: Node, g: Node) -> tuple[Node | None, ...]:
    raise NotImplementedError("[scan] graph.autodiff gathers the gradients of all results of a loop")


def _never(*_: np.ndarray, **__: object) -> np.ndarray:
    raise NotImplementedError("[scan] engine.reference runs a loop step by step")
