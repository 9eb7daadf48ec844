"""Operators that reduce axes, and running sums."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from minigrad import Tensor, dtypes
from minigrad.onnx.node import Node, Operator

Step = Callable[[Tensor], Tensor]


def reduced(function: Any, empty: Any = None, before: Step | None = None, after: Step | None = None) -> Operator:
    """The operator `after(function(before(x), axes))`. `empty` is the result over no numbers."""
    def run(n: Node) -> Tensor:
        x = n.tensor(0)
        axes = n.ints(1, "axes")
        keep = bool(n.attribute("keepdims", 1))
        y = x if before is None else before(x)
        if not axes and n.attribute("noop_with_empty_axes", 0):
            return y if after is None else after(y)
        axes = sorted(a % x.ndim for a in axes) if axes else list(range(x.ndim))
        if not axes:
            return y if after is None else after(y)
        if empty is not None and any(x.shape[a] == 0 for a in axes):
            shape = [1 if a in axes else size for a, size in enumerate(x.shape) if keep or a not in axes]
            low = _extreme(x, empty)
            y = Tensor.full(tuple(shape), low, dtype=x.dtype, device=x.device)
        else:
            y = function(y, axes, keep)
        return (y if after is None else after(y)).cast(x.dtype)
    return run


def _extreme(x: Tensor, sign: int) -> Any:
    if x.dtype.is_float:
        return sign * float("inf")
    if x.dtype is dtypes.bool_:
        return sign > 0
    limits = np.iinfo(x.dtype.name)
    return limits.max if sign > 0 else limits.min


def arg(largest: bool) -> Operator:
    """The place of the largest or smallest number of an axis: the first, or the last with select_last_index."""
    def run(n: Node) -> Tensor:
        x = n.tensor(0)
        axis, keep = n.attribute("axis", 0) % x.ndim, bool(n.attribute("keepdims", 1))
        last = n.attribute("select_last_index", 0)
        y = x.flip(axis) if last else x
        index = (y.argmax if largest else y.argmin)(axis, keepdim=keep)
        return (x.shape[axis] - 1 - index if last else index).cast(dtypes.int64)
    return run


def running(n: Node) -> Tensor:
    """Running sums or products of an axis."""
    x = n.tensor(0)
    axis = int(n.scalar(1)) % x.ndim
    total = Tensor.cumprod if n.op == "CumProd" else Tensor.cumsum
    y = x.flip(axis) if n.attribute("reverse", 0) else x
    if n.attribute("exclusive", 0):
        first = y.narrow(axis, 0, 1)
        start = first.ones_like() if n.op == "CumProd" else first.zeros_like()
        y = start.cat(y.narrow(axis, 0, x.shape[axis] - 1), dim=axis)
    y = total(y, axis).cast(x.dtype)
    return y.flip(axis) if n.attribute("reverse", 0) else y


def log_sum_exp(x: Tensor, axes: list[int], keep: bool) -> Tensor:
    """The logarithm of the sum of exponentials."""
    y = x.float() if x.dtype.bits < 32 else x
    return y.logsumexp(tuple(axes), keepdim=keep)


def wide_sum(x: Tensor, axes: list[int], keep: bool) -> Tensor:
    """The sum, in float32 for halves."""
    y = x.float() if x.dtype in (dtypes.float16, dtypes.bfloat16) else x
    return y.sum(tuple(axes), keepdim=keep)


def mean(x: Any, axes: list[int], keep: bool) -> Tensor:
    """The mean; of integers, cut towards zero."""
    if x.dtype.is_float:
        return x.mean(tuple(axes), keepdim=keep)
    count = int(np.prod([x.shape[a] for a in axes]))
    return x.cast(dtypes.int64).sum(tuple(axes), keepdim=keep).div(count, rounding_mode="trunc")


def product(x: Tensor, axes: list[int], keep: bool) -> Tensor:
    """The product of the axes."""
    return x.prod(tuple(axes), keepdim=keep)


TABLE: dict[str, Operator] = {
    "ReduceSum": reduced(wide_sum), "ReduceMean": reduced(mean), "ReduceProd": reduced(product),
    "ReduceMax": reduced(lambda x, axes, keep: x.amax(tuple(axes), keepdim=keep), empty=-1),
    "ReduceMin": reduced(lambda x, axes, keep: x.amin(tuple(axes), keepdim=keep), empty=1),
    "ReduceL1": reduced(wide_sum, before=Tensor.abs), "ReduceL2": reduced(wide_sum, before=Tensor.square,
                                                                          after=lambda x: x.float().sqrt()
                                                                          if x.dtype.bits < 32 or not x.dtype.is_float
                                                                          else x.sqrt()),
    "ReduceSumSquare": reduced(wide_sum, before=Tensor.square),
    "ReduceLogSum": reduced(wide_sum, after=lambda x: x.log()), "ReduceLogSumExp": reduced(log_sum_exp),
    "ArgMax": arg(True), "ArgMin": arg(False), "CumSum": running, "CumProd": running,
}
