"""The NUMPY device: every op through its reference, one by one. Slow, obviously right, always there.

bfloat16 values are float32 arrays rounded after each op; what a composite is made of is rounded at its end alone, as
in the kernel that it becomes. Assignment copies. The one shortcut is the sum of a product, which would not fit in
memory written out: it becomes one einsum, accumulated in float64.
"""
from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from string import ascii_letters
from typing import Any

import numpy as np

from minigrad.dtype import bfloat16
from minigrad.engine.transfer import download, upload
from minigrad.expr import Expr, evaluate
from minigrad.ops.composite import expanded
from minigrad.ops.convert import convert
from minigrad.ops.elementwise import BITCAST, CAST, MUL
from minigrad.ops.node import Node, toposort
from minigrad.ops.reduce import SUM
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
    image = expanded(wanted)
    roots = list(dict.fromkeys([image[n] for n in wanted]))
    order = toposort(*roots)
    whole = {image[n] for n in toposort(*wanted) if n in image}
    uses = Counter(i for n in order if n.storage is None for i in n.inputs)
    uses.update(roots)
    products = {i for n in order if n.storage is None and n.op is SUM and n.dtype.is_float
                for i in n.inputs if i.op is MUL and uses[i] == 1 and i.storage is None}
    values: dict[Node, Any] = {}
    with np.errstate(all="ignore"):
        for node in order:
            if node.storage is not None:
                values[node] = download(node)
                continue
            operands = [values[i] for i in node.inputs]
            rounds = node in whole or node.op in _TYPED
            values[node] = tuple(operands) if node in products else _evaluate(node, operands, rounds)
            for i in node.inputs:
                uses[i] -= 1
                if not uses[i]:
                    del values[i]
    for node in wanted:
        node.storage = upload(values[image[node]], node.dtype, device.name)


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
        result = np.asarray(node.op.reference(*operands, shape=shape, dtype=node.dtype, **params))
    if result.shape != shape:
        result = result.reshape(shape)
    expected = np.dtype(np.float32) if node.dtype is bfloat16 else node.dtype.np
    if node.dtype is bfloat16 and not rounds:
        return result.astype(expected, copy=False)
    return convert(result, node.dtype) if node.dtype is bfloat16 or result.dtype != expected else result


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
