"""Rules of reductions and layers: operations that ONNX has as one node stay one.

A composite that stands here is not expanded where its `keep` says so. What others expand to is recognised by its form:
a maximum over windows, a sum of products of two operands.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from string import ascii_letters

import numpy as np
from onnx import helper

from minigrad.dtype import DType, bool_, float64, int32, uint64
from minigrad.expr import Index, bounds
from minigrad.onnx.writer import Rule, Writer, carrier
from minigrad.onnx.writer_elements import converted
from minigrad.onnx.writer_shapes import unwindow, window
from minigrad.ops import build
from minigrad.ops import functions as F
from minigrad.ops import movement as M
from minigrad.ops import ordering as O
from minigrad.ops import products as P
from minigrad.ops import reduce as R
from minigrad.ops.attention import ATTENTION, attention_by_table
from minigrad.ops.attention_gradient import dot, operands, score_params, scores_of
from minigrad.ops.elementwise import MUL
from minigrad.ops.matrices import transposed
from minigrad.ops.node import Node
from minigrad.ops.op import Op, Scan
from minigrad.ops.scan import unrolled

# Reductions, and layers that are some


def _reduced(kind: str) -> Rule:
    def rule(w: Writer, node: Node) -> str:
        axes = node.params["axes"]
        if not axes:
            return w.of(node)
        found = w.op(kind, w.of(node), w.constant(axes, np.int64), keepdims=0)
        return w.narrowed(found, node.dtype)

    return rule


def _sum(w: Writer, node: Node) -> str:
    return _pooled(w, node) or _contracted(w, node) or _reduced("ReduceSum")(w, node)


def _mean(w: Writer, node: Node) -> str:
    return _pooled(w, node) or _reduced("ReduceMean")(w, node)


def _max(w: Writer, node: Node) -> str:
    return _pooled(w, node) or _reduced("ReduceMax")(w, node)


def _pooled(w: Writer, node: Node) -> str | None:
    """A pool, of a maximum, a mean or a sum over all taps of windows; None for anything else."""
    x = node.inputs[0]
    source = x.inputs[0] if x.op is M.WINDOW else x
    rank, n = len(source.shape), len(node.params["axes"])
    if x.op is not M.WINDOW or not 1 <= n <= 3 or carrier(node.dtype).name != "float32":
        return None
    p, taps = x.params, tuple(range(rank, len(x.shape)))
    least = -np.inf if node.op is R.MAX else 0
    whole = all(isinstance(d, int) for d in source.shape)
    pads = [lo for lo, _ in p["padding"]] + [hi for _, hi in p["padding"]]
    if node.params["axes"] != taps or p["axes"] != tuple(range(rank - n, rank)) or min(pads) < 0 or not whole or (
            max(pads) > 0 and p["fill"] != least) or any(
            max(lo, hi) >= k for k, (lo, hi) in zip(p["kernel"], p["padding"], strict=True)):
        return None
    if node.op is not R.MAX and any(d != 1 for d in p["dilation"]):
        return None
    name = w.values[source]
    if rank != n + 2:
        name = w.op("Reshape", name, w.constant([1, -1, *source.shape[rank - n:]], np.int64))
    how = {"kernel_shape": p["kernel"], "strides": p["stride"], "pads": pads}
    if node.op is R.MAX:
        found = w.op("MaxPool", name, dilations=p["dilation"], **how)
    else:
        found = w.op("AveragePool", name, count_include_pad=1, **how)
        if node.op is R.SUM:
            found = w.op("Mul", found, w.constant(float(np.prod(p["kernel"])), np.float32))
    found = found if rank == n + 2 else w.reshape(found, node.shape)
    return w.narrowed(found, node.dtype)


def _over_one_axis(node: Node) -> bool:
    return len(node.params["axes"]) == 1


def _along(kind: str) -> Rule:
    return lambda w, node: w.narrowed(w.op(kind, w.of(node), axis=node.params["axes"][0]), node.dtype)


def _is_layer_norm(node: Node) -> bool:
    axes, rank = node.params["axes"], len(node.shape)
    return axes == tuple(range(rank - len(axes), rank)) and all(isinstance(d, int) and d for d in node.shape[axes[0]:])


def _layer_norm(w: Writer, node: Node) -> str:
    axes, eps = node.params["axes"], node.params["eps"]
    ones = w.constant(np.ones([bounds(node.shape[a])[1] for a in axes]), carrier(node.dtype))
    return w.narrowed(w.op("LayerNormalization", w.of(node), ones, axis=axes[0], epsilon=eps), node.dtype)


# Products


def _matmul(w: Writer, node: Node) -> str:
    wide = node.params["wide"]
    x, y = (converted(w, w.values[i], i.dtype, wide) for i in node.inputs)
    return w.narrowed(w.op("MatMul", x, y), wide)


def _is_conv(node: Node) -> bool:
    steps, x = node.params["steps"], node.inputs[0]
    return carrier(x.dtype).name == "float32" and 3 <= len(x.shape) <= 5 and all(
        min(pair) >= 0 for pair in steps.padding) and 0 not in node.shape and 0 not in node.inputs[1].shape


def _window_attributes(steps: P.Steps) -> dict[str, Sequence[int]]:
    return {"strides": steps.stride, "dilations": steps.dilation,
            "pads": [lo for lo, _ in steps.padding] + [hi for _, hi in steps.padding]}


def _conv(w: Writer, node: Node) -> str:
    p = node.params
    names = [w.values[i] for i in node.inputs]
    return w.narrowed(w.op("Conv", *names, group=p["groups"], **_window_attributes(p["steps"])), node.dtype)


def _conv_gradient_x(w: Writer, node: Node) -> str:
    (weight, g), p = node.inputs, node.params
    extra = _beyond(g.shape[2:], node.shape[2:], weight.shape[2:], p["steps"])
    found = w.op("ConvTranspose", w.values[g], w.values[weight], group=p["groups"], output_padding=extra,
                 **_window_attributes(p["steps"]))
    return w.narrowed(found, node.dtype)


def _beyond(positions: Sequence[Index], lengths: Sequence[Index], kernel: Sequence[Index], steps: P.Steps) -> list[int]:
    """The elements that each axis is longer than a transposed convolution makes it."""
    return [int(n - ((o - 1) * s + d * (k - 1) + 1 - lo - hi)) for n, o, k, s, d, (lo, hi) in
            zip(lengths, positions, kernel, *steps, strict=True)]


def _is_conv_transpose(node: Node) -> bool:
    (weight, g), p = node.inputs, node.params
    shapes = [*g.shape[2:], *node.shape[2:], *weight.shape[2:]]
    return carrier(node.dtype).name == "float32" and 3 <= len(node.shape) <= 5 and all(
        isinstance(d, int) and d for d in shapes) and all(min(pair) >= 0 for pair in p["steps"].padding) and all(
        0 <= e < max(s, d) for e, s, d in zip(_beyond(g.shape[2:], node.shape[2:], weight.shape[2:], p["steps"]),
                                              p["steps"].stride, p["steps"].dilation, strict=True))


def _unwindow(w: Writer, node: Node) -> str:
    return _transposed_conv(w, node) or unwindow(w, node)


def _transposed_conv(w: Writer, node: Node) -> str | None:
    """A transposed convolution, where products of x [N, groups, depth, 1, *positions, 1...] and weights [1, groups,
    depth, channels, 1..., *kernel] are summed over depth and put where they belong; None for anything else."""
    p, total = node.params, node.inputs[0]
    n = len(p["axes"])
    factors = _factors(total)
    if factors is None or total.params["axes"] != (2,) or p["axes"] != tuple(range(3, 3 + n)) or not 1 <= n <= 3:
        return None
    x, weight = factors
    ones = (1,) * n
    if len(x.shape) != 4 + 2 * n or len(weight.shape) != 4 + 2 * n or carrier(node.dtype).name != "float32" or \
            x.shape[3] != 1 or x.shape[4 + n:] != ones or weight.shape[0] != 1 or weight.shape[4:4 + n] != ones or \
            x.shape[1:3] != weight.shape[1:3] or not all(isinstance(d, int) and d for d in (*x.shape, *weight.shape)):
        return None
    batch, groups, depth = x.shape[:3]
    steps = P.Steps(p["stride"], p["dilation"], p["padding"])
    extra = _beyond(x.shape[4:4 + n], p["lengths"], weight.shape[4 + n:], steps)
    if any(min(pair) < 0 for pair in steps.padding) or any(
            not 0 <= e < max(s, d) for e, s, d in zip(extra, steps.stride, steps.dilation, strict=True)):
        return None
    rows = w.reshape(w.values[x], (batch, groups * depth, *x.shape[4:4 + n]))
    taps = w.reshape(w.values[weight], (groups * depth, weight.shape[3], *weight.shape[4 + n:]))
    found = w.op("ConvTranspose", rows, taps, group=groups, output_padding=extra, **_window_attributes(steps))
    return w.narrowed(w.reshape(found, node.shape), node.dtype)


def _factors(node: Node) -> tuple[Node, Node] | None:
    """The two operands, before they are repeated, whose products a Node sums; None for anything else."""
    product = node.inputs[0] if node.op is R.SUM else node
    if node.op is not R.SUM or product.op is not MUL:
        return None
    x, y = (i.inputs[0] if i.op is M.EXPAND and len(i.inputs[0].shape) == len(i.shape) else i for i in product.inputs)
    return x, y


def _contracted(w: Writer, node: Node) -> str | None:
    """A sum of products of two operands that were repeated as a MatMul, or an Einsum; None for anything else."""
    factors, summed = _factors(node), set(node.params["axes"])
    if factors is None or not node.dtype.is_float:
        return None
    x, y = factors
    full = node.inputs[0].shape
    mine, others = ([a for a, d in enumerate(f.shape) if d != 1] for f in (x, y))
    if x.shape == full or y.shape == full or not summed & set(mine) & set(others) or len(full) > len(ascii_letters):
        return None
    if any(d == 1 for a, d in enumerate(full) if a in summed):  # an axis of one element, which neither has
        return None
    kept = [a for a in range(len(full)) if a not in summed and (a in mine or a in others)]
    terms = ["".join(ascii_letters[a] for a in axes) for axes in (mine, others, kept)]
    names = [w.reshape(w.values[f], tuple([f.shape[a] for a in axes])) if len(axes) < len(f.shape) else w.values[f]
             for f, axes in ((x, mine), (y, others))]
    found = _as_matmul(w, names, terms) or w.op("Einsum", *names, equation=f"{terms[0]},{terms[1]}->{terms[2]}")
    if len(kept) < len(node.shape):
        found = w.reshape(found, node.shape)
    return w.narrowed(found, node.dtype)


def _as_matmul(w: Writer, names: list[str], terms: list[str]) -> str | None:
    """[batch, M, K] times [batch, K, N], where one axis is summed and each operand has one of its own."""
    x, y, out = terms
    batch = [c for c in out if c in x and c in y]
    rows, columns = ([c for c in own if c not in other] for own, other in ((x, y), (y, x)))
    inner = [c for c in x if c in y and c not in out]
    if len(rows) != 1 or len(columns) != 1 or len(inner) != 1 or rows[0] not in out or columns[0] not in out:
        return None
    left = w.transpose(names[0], [x.index(c) for c in [*batch, *rows, *inner]])
    right = w.transpose(names[1], [y.index(c) for c in [*batch, *inner, *columns]])
    made = [*batch, *rows, *columns]
    return w.transpose(w.op("MatMul", left, right), [made.index(c) for c in out])


# Orders


def _order(w: Writer, node: Node) -> str:
    """TopK, of equal numbers the first; it says nothing of NaN, the largest number here."""
    dtype, largest, keep = node.inputs[0].dtype, int(node.params["descending"]), node.params["keep"]
    x = w.of(node)
    if not dtype.is_float:
        return w.cast(_topk(w, _comparable(w, x, dtype), keep, largest), int32)
    nan, above = w.op("IsNaN", x), w.constant(np.inf, np.float64)
    if dtype is not float64:  # in float64 there is room behind infinity
        most = w.constant(1e300, np.float64)
        x = w.op("Clip", w.cast(x, float64), w.op("Neg", most), most)
        return w.cast(_topk(w, w.op("Where", nan, above, x), keep, largest), int32)
    first = _topk(w, w.op("Where", nan, above, x), int(node.inputs[0].shape[1]), largest)
    last = w.op("GatherElements", w.cast(nan, int32), first, axis=1)
    return w.cast(w.op("GatherElements", first, _topk(w, last, keep, largest), axis=1), int32)


def _topk(w: Writer, x: str, count: int, largest: int) -> str:
    """The places of the largest or smallest numbers of rows."""
    values, places = w.fresh("topk"), w.fresh("topk")
    w.nodes.append(helper.make_node("TopK", [x, w.constant([count], np.int64)], [values, places], values, axis=1,
                                    largest=largest))
    return places


def _comparable(w: Writer, x: str, dtype: DType) -> str:
    """Integers in a type that is compared, and in their order."""
    if dtype is bool_:
        return w.cast(x, int32)
    return w.op("Add", x, w.constant(np.iinfo(np.int64).min, np.int64)) if dtype is uint64 else x


def _search(w: Writer, node: Node) -> str:
    """The number of elements before each value, counted one by one; NaN is the largest number."""
    dtype, right = node.inputs[0].dtype, node.params["right"]
    runs, values = (w.op("Unsqueeze", _comparable(w, w.values[i], dtype), w.constant([axis], np.int64))
                    for i, axis in zip(node.inputs, (-2, -1), strict=True))
    before = w.op("LessOrEqual" if right else "Less", runs, values)
    if dtype.is_float:
        last = w.op("IsNaN", values)
        before = w.op("Or", before, last if right else w.op("And", last, w.op("Not", w.op("IsNaN", runs))))
    return w.op("ReduceSum", w.cast(before, int32), w.constant([-1], np.int64), keepdims=0)


# Rewriting


def rewritten(node: Node, inputs: Sequence[Node]) -> Node | None:
    """The Nodes that compute attention and loops over these inputs; None for other operations."""
    if type(node.op.lower) is Scan:
        return unrolled(node, inputs)
    if node.op is not ATTENTION:
        return None
    q, k, v, mask, sinks = operands(node, inputs)
    params = score_params(node)
    causal = params["causal"]
    full = causal is None or (params["window"] is None and bounds(causal)[0] >= 0)
    if mask is not None or sinks is not None or not full:  # a row may have nothing to look at
        return attention_by_table(node, inputs)
    scores = scores_of(q, k, None, **params)
    shares = F.softmax(scores, (len(scores.shape) - 1,))
    made: Node = build.cast(dot(shares, transposed(v)), node.dtype)
    return made


def _float(node: Node) -> bool:
    return node.dtype.is_float


KEPT: dict[Op, tuple[Callable[[Node], bool], Rule]] = {
    F.MEAN: (_float, _mean), F.SOFTMAX: (_over_one_axis, _along("Softmax")),
    F.LOG_SOFTMAX: (_over_one_axis, _along("LogSoftmax")), F.STANDARDIZE: (_is_layer_norm, _layer_norm),
    P.MATMUL: (lambda node: node.params["wide"].is_float or node.params["wide"].name == "int32", _matmul),
    P.CONV: (_is_conv, _conv), P.CONV_GRADIENT_X: (_is_conv_transpose, _conv_gradient_x),
    O.ORDER: (lambda node: True, _order), O.SEARCH: (lambda node: True, _search),
}
"""Composites that stay one node where the function says so."""

LAYERS: dict[Op, Rule] = {
    R.SUM: _sum, R.PROD: _reduced("ReduceProd"), R.MAX: _max, R.MIN: _reduced("ReduceMin"),
    M.WINDOW: window, M.UNWINDOW: _unwindow, **{op: rule for op, (_, rule) in KEPT.items()},
}


def keep(node: Node) -> bool:
    """True for a composite that is written as one node."""
    return node.op in KEPT and KEPT[node.op][0](node)
