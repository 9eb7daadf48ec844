"""Sizes that are open in a model as Variables, so that one capture serves them all; and arithmetic on such sizes."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from minigrad import Tensor, Variable
from minigrad.engine.storage import buffer_node
from minigrad.errors import MinigradError
from minigrad.expr import Expr
from minigrad.expr.use import evaluate
from minigrad.onnx.node import Node, Operator
from minigrad.onnx.refusal import Unsupported

LARGEST = 1 << 16
"""The largest size that is a Variable; larger ones have captures of their own."""


class Sizes:
    """The open sizes of a model's inputs: `shapes` by name of the input, with a name or None where a size is open."""

    def __init__(self, shapes: Mapping[str, Sequence[int | str | None] | None]):
        self._variables = {
            name: [Variable(_plain(size or f"{name}_{axis}"), 1, LARGEST) if not isinstance(size, int) else None
                   for axis, size in enumerate(shape or ())] for name, shape in shapes.items()}
        self._first: tuple[int, ...] | None = None

    def of(self, values: Mapping[str, Any]) -> tuple[int, ...]:
        """The sizes that are open, of these inputs."""
        return tuple(value.shape[axis] for name, value in values.items()
                     for axis, variable in enumerate(self._variables.get(name, ())) if variable is not None)

    def differ(self, values: Mapping[str, Any]) -> bool:
        """True where the sizes are others than at the first call, and each may be a Variable."""
        sizes = self.of(values)
        if self._first is None:
            self._first = sizes
        return sizes != self._first and all(0 < size <= LARGEST for size in sizes)

    def bound(self, values: Mapping[str, Tensor], feeds: Mapping[str, Any]) -> dict[str, Tensor]:
        """The inputs with Variables for their open sizes, over the same memory, a Tensor of `feeds` copied."""
        result, known = {}, dict[str, int]()
        for name, value in values.items():
            variables = self._variables.get(name, ())
            shape: list[Any] = list(value.shape)
            for axis, variable in enumerate(variables):
                if variable is not None:
                    before = known.setdefault(variable.name, shape[axis])
                    if before != shape[axis]:
                        raise Unsupported(f"[onnx] {variable.name!r} is {before}, and {shape[axis]} in {name!r}")
                    shape[axis] = variable.bind(shape[axis])
            mine = value.clone() if value is feeds.get(name) else value
            result[name] = reshaped(mine, tuple(shape)) if any(v is not None for v in variables) else value
        return result


def _plain(name: str) -> str:
    """A name of letters and digits that no kernel has."""
    return "onnx_" + "".join(c if c.isalnum() and c.isascii() else f"_{ord(c)}_" for c in name)


def reshaped(value: Tensor, shape: tuple) -> Tensor:
    """The same memory as a Tensor of another shape, which has as many numbers."""
    node = value.realize().lazydata
    if node.storage is None or not node.storage.nbytes:
        node = value.contiguous().clone().realize().lazydata
    if node.storage is None:
        raise Unsupported("[onnx] a constant with an open size is not supported")
    return Tensor.over(buffer_node(node.storage, shape, node.dtype, node.device))


def settled(value: Any) -> Any:
    """A result whose sizes are numbers again."""
    if isinstance(value, list):
        return [settled(v) for v in value]
    if not isinstance(value, Tensor) or all(isinstance(size, int) for size in value.shape):
        return value
    shape = tuple(evaluate(size, {}) if isinstance(size, Expr) else size for size in value.shape)
    return reshaped(value, shape)


def are_sizes(value: Any) -> bool:
    """True for a known array with a Variable in it."""
    return isinstance(value, np.ndarray) and value.dtype == object and any(
        isinstance(v, Expr) for v in value.reshape(-1).tolist())


def sizes_array(values: Any, shape: tuple[int, ...]) -> np.ndarray:
    """A known array of sizes: of integers if there is no Variable among them."""
    flat = list(values)
    if not any(isinstance(v, Expr) for v in flat):
        return np.array(flat, np.int64).reshape(shape)
    result = np.empty(len(flat), object)
    result[:] = flat
    return result.reshape(shape)


def _again(array: Any) -> np.ndarray:
    array = np.asarray(array, object)
    return sizes_array(array.reshape(-1).tolist(), array.shape)


def _slice(n: Node) -> np.ndarray:
    starts, ends = n.ints(1, "starts"), n.ints(2, "ends")
    steps = n.ints(4, "steps") or [1]
    return n.known(0)[starts[0]:ends[0]:steps[0]]


def _reshape(n: Node) -> np.ndarray:
    return n.known(0).reshape(n.ints(1, "shape"))


def _squeeze(n: Node) -> np.ndarray:
    axes = n.ints(1, "axes")
    return n.known(0).squeeze(None if axes is None else tuple(axes))


def _divide(n: Node) -> Any:
    return n.known(0) // n.known(1)  # sizes are never negative


def _gather(n: Node) -> Any:
    return np.take(n.known(0), n.known(1).astype(np.int64), n.attribute("axis", 0))


def _concat(n: Node) -> np.ndarray:
    return np.concatenate([n.known(i) for i in range(len(n.values))], n.required("axis"))


def _equal(n: Node) -> np.ndarray:
    """True for sizes that are equal for all values of Variables, False for those that never are: -1, say."""
    pairs = np.broadcast(n.known(0), n.known(1))
    flat = []
    for a, b in pairs:
        if (isinstance(a, Expr) or isinstance(b, Expr)) and not (a is b or min(_least(a), _least(b)) < 0):
            raise Unsupported("a choice by an open size is not supported")
        flat.append(bool(a is b or a == b))
    return np.array(flat, bool).reshape(pairs.shape)


def _least(value: Any) -> int:
    return 1 if isinstance(value, Expr) else int(value)


def _where(n: Node) -> np.ndarray:
    return np.where(n.known(0).astype(bool), n.known(1), n.known(2))


TABLE: dict[str, Operator] = {
    "Add": lambda n: n.known(0) + n.known(1), "Sub": lambda n: n.known(0) - n.known(1),
    "Mul": lambda n: n.known(0) * n.known(1), "Div": _divide, "Gather": _gather, "Concat": _concat, "Slice": _slice,
    "Reshape": _reshape, "Squeeze": _squeeze, "Equal": _equal, "Where": _where,
    "Unsqueeze": lambda n: np.expand_dims(n.known(0), tuple(n.ints(1, "axes"))),
    "Cast": lambda n: n.known(0), "Identity": lambda n: n.known(0),
    "ReduceProd": lambda n: np.prod(n.known(0), keepdims=bool(n.attribute("keepdims", 1))),
}


def on_sizes(n: Node) -> list[np.ndarray] | None:
    """The results of an operator over known numbers, some of which are Variables; None where others are in it."""
    if n.op not in TABLE or not any(are_sizes(v) for v in n.values):
        return None
    if not all(v is None or isinstance(v, np.ndarray) for v in n.values):
        return None
    if n.op == "Cast" and n.required("to") not in (6, 7):
        raise Unsupported("an open size as a number that is no integer is not supported")
    result = np.asarray(TABLE[n.op](n))
    return [result if result.dtype == bool else _again(result)]


def why(error: MinigradError) -> str:
    """The reason for captures by size, on one line."""
    return " ".join(str(error).split())[:300]
