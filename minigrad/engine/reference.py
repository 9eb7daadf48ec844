"""The NUMPY device: every op through its reference, one by one. Slow, obviously right, always there.

bfloat16 values are float32 arrays, rounded where kernels round: at stores, explicit casts and comparisons; what a
composite is made of is rounded at its end alone, as in the kernel that it becomes. Assignment copies. The one shortcut
is the sum of a product, which would not fit in memory written out: it becomes one einsum, accumulated in float64.
"""
from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from string import ascii_letters
from typing import Any

import numpy as np

from minigrad.dtype import DType, bfloat16, bool_
from minigrad.engine.transfer import download, upload
from minigrad.expr import Expr, evaluate
from minigrad.ops.composite import expanded
from minigrad.ops.convert import convert
from minigrad.ops.elementwise import BITCAST, CAST, MUL
from minigrad.ops.node import Node, toposort
from minigrad.ops.op import Scan
from minigrad.ops.reduce import SUM
from minigrad.ops.scan import Body, family
from minigrad.ops.storage import BUFFER
from minigrad.runtime.device import Device


def bound(value: Any) -> Any:
    """`value` with every symbolic number in it, at any depth of tuples, as an int."""
    if isinstance(value, tuple):
        return tuple([bound(v) for v in value])
    return evaluate(value, {}) if isinstance(value, Expr) else value


def run(nodes: Iterable[Node], device: Device) -> None:
    """Computes the Nodes that are not realized yet and sets their storage to Buffers of `device`."""
    wanted = [n for n in dict.fromkeys(nodes) if n.storage is None]
    made = _Graph(wanted)
    with np.errstate(all="ignore"):
        values = made.values(download)
    for node, value in zip(wanted, values, strict=True):
        node.storage = upload(value, node.dtype, device.name)


class _Graph:
    """The graph of `wanted` Nodes without composites."""

    def __init__(self, wanted: Sequence[Node]):
        image = expanded(wanted)
        self.roots = [image[n] for n in wanted]
        self.order = order = toposort(*dict.fromkeys(self.roots))
        self.whole = {image[n] for n in toposort(*wanted) if n in image}
        self.uses = Counter(i for n in order if n.storage is None for i in n.inputs)
        self.uses.update(self.roots)
        self.products = {i for n in order if n.storage is None and n.op is SUM and n.dtype.is_float
                         for i in n.inputs if i.op is MUL and self.uses[i] == 1 and i.storage is None}
        self.loops: dict[Any, list[int]] = {}
        for n in order:
            if type(n.op.lower) is Scan and n.storage is None:
                self.loops.setdefault(family(n), []).append(n.params["number"])

    def values(self, leaf: Callable[[Node], np.ndarray]) -> list[np.ndarray]:
        """The values of what was wanted; `leaf` gives those of Nodes with storage."""
        uses, values = self.uses.copy(), dict[Node, Any]()
        results: dict[Any, dict[int, np.ndarray]] = {}
        for node in self.order:
            if node.storage is not None:
                values[node] = leaf(node)
                continue
            operands = [values[i] for i in node.inputs]
            if type(node.op.lower) is Scan:
                key = family(node)
                if key not in results:
                    results[key] = _loop(node, self.loops[key], operands)
                values[node] = results[key].pop(node.params["number"])
            else:
                rounds = node in self.whole or node.op in _TYPED
                values[node] = tuple(operands) if node in self.products else evaluator(node, operands, rounds)
            for i in node.inputs:
                uses[i] -= 1
                if not uses[i]:
                    del values[i]
        return [values[n] for n in self.roots]


def _loop(node: Node, numbers: Sequence[int], operands: Sequence[np.ndarray]) -> dict[int, np.ndarray]:
    """The results with these numbers of the loop that `node` is one of (ops/scan.py), step by step."""
    lower: Any = node.op.lower
    body: Body = lower.body
    carries, slices = body.carries, body.slices
    wanted = [*body.step.results[:carries], *body.by_step]
    if body.plain is None or len(body.plain.roots) != len(wanted):
        body.plain = _Graph(wanted)
    types = [n.type for n in wanted]
    length = bound(node.params["length"])
    found = {k: operands[k] if k < carries else np.empty((length, *types[k].shape), _kept(types[k].dtype))
             for k in numbers}
    state, captured = list(operands[:carries]), operands[carries + slices:]
    for t in reversed(range(length)) if node.params["reverse"] else range(length):
        given = [*state, *[x[t] for x in operands[carries:carries + slices]], *captured]
        places = dict(zip([n.storage for n in body.step.operands], given, strict=True))
        made = body.plain.values(lambda n: places[n.storage])  # noqa: B023
        for k, value in found.items():
            if k >= carries:
                value[t] = made[k]
        state = made[:carries]
    return {k: state[k] if k < carries else value for k, value in found.items()}


def _kept(dtype: DType) -> Any:
    """The numpy type in which values of `dtype` are computed."""
    return np.dtype(np.float32) if dtype is bfloat16 else dtype.np


_TYPED = (CAST, BITCAST)
"""Operations that are about types, whose results are rounded to their type wherever they stand."""


def _evaluate(node: Node, operands: list[Any], rounds: bool) -> np.ndarray:
    if node.op is BUFFER:
        raise RuntimeError(f"[realize] expected a buffer with storage, got {node}")
    shape = bound(node.shape)
    if operands and isinstance(operands[0], tuple):
        result = _sum_of_product(*operands[0], axes=node.params["axes"])
    else:
        params = {k: bound(v) for k, v in node.params.items()}
        if node.dtype is bool_:
            operands = [convert(x, bfloat16) if i.dtype is bfloat16 else x
                        for x, i in zip(operands, node.inputs, strict=True)]
        result = np.asarray(node.op.reference(*operands, shape=shape, dtype=node.dtype, **params))
    if result.shape != shape:
        result = result.reshape(shape)
    expected = _kept(node.dtype)
    if node.dtype is bfloat16 and not rounds:
        return result.astype(expected, copy=False)
    return convert(result, node.dtype) if node.dtype is bfloat16 or result.dtype != expected else result


evaluator: Callable[[Node, list[Any], bool], np.ndarray] = _evaluate
"""The function that computes a Node from its operands: `report/reduced/rounding.py` puts errors of rounding in."""


def _sum_of_product(x: np.ndarray, y: np.ndarray, *, axes: tuple[int, ...]) -> np.ndarray:
    """sum(x * y) over axes. Axes along which an operand only repeats are left out of it."""
    if x.size == 0:
        return np.sum(x * y, axis=axes)
    factor, terms, parts = 1, [], []
    for a in (x, y):
        at = tuple(0 if s == 0 or n == 1 else slice(None) for s, n in zip(a.strides, a.shape, strict=True))
        terms.append("".join(ascii_letters[i] for i, k in enumerate(at) if k != 0))
        parts.append(a[at].astype(np.float64))
    used = set(terms[0]) | set(terms[1])
    for i in axes:
        factor *= x.shape[i] if ascii_letters[i] not in used else 1
    kept = [i for i in range(x.ndim) if i not in axes]
    out = "".join(ascii_letters[i] for i in kept if ascii_letters[i] in used)
    result = np.einsum(f"{terms[0]},{terms[1]}->{out}", *parts, optimize=True) * factor
    result = result.reshape([x.shape[i] if ascii_letters[i] in used else 1 for i in kept])
    return np.broadcast_to(result, [x.shape[i] for i in kept])
