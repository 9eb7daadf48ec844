"""Reductions over whole axes. `axes` is a sorted tuple; reduced axes leave the shape. Empty sums give the identity.

Half types accumulate in float32 and round once; integers wrap.
"""
from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from minigrad.dtype import DType, bool_
from minigrad.errors import DTypeError, ShapeError
from minigrad.ops.builders import B
from minigrad.ops.convert import convert
from minigrad.ops.node import Node, apply
from minigrad.ops.op import Op, Reduction, Shape


def _infer(name: str, needs_element: bool) -> Callable[..., tuple[Shape, DType]]:
    def infer(shapes: Sequence[Shape], dtypes: Sequence[DType], *, axes: tuple[int, ...]) -> tuple[Shape, DType]:
        shape = shapes[0]
        if any(not 0 <= a < len(shape) for a in axes) or len(set(axes)) != len(axes):
            raise ShapeError(f"[{name}] expected distinct axes below {len(shape)}, got {axes} for {list(shape)}")
        if dtypes[0] is bool_:
            raise DTypeError(f"[{name}] expected a number type, got bool")
        if needs_element and any(shape[a] == 0 for a in axes):
            raise ShapeError(f"[{name}] expected at least one element to reduce, got {list(shape)} over axes {axes}")
        return tuple(d for i, d in enumerate(shape) if i not in axes), dtypes[0]

    return infer


def _accumulate(reduction: Callable[..., Any]) -> Callable[..., np.ndarray]:
    """Floats accumulate in float64, so that the reference is better than what it judges."""

    def reference(x: np.ndarray, *, axes: tuple[int, ...], shape: Shape, dtype: DType) -> np.ndarray:
        wide = np.float64 if dtype.is_float else x.dtype
        return convert(np.asarray(reduction(x, axis=axes, dtype=wide)), dtype)

    return reference


def _sum_vjp(node: Node, g: Node) -> tuple[Node]:
    return (B.expand_reduced(g, node.inputs[0].shape, node.params["axes"]),)


def _prod_vjp(node: Node, g: Node) -> tuple[Node | None]:
    """The product of the other elements, also where some of them are 0: these are factors, so that the gradient of the
    gradient is right as well."""
    x, axes = node.inputs[0], node.params["axes"]
    if not x.dtype.is_float:
        return (None,)
    zero, one = B.full_like(x, 0), B.full_like(x, 1)
    is_zero = B.eq(x, zero)
    nonzero = B.where(is_zero, one, x)
    others = B.expand_reduced(B.prod(nonzero, axes), x.shape, axes)
    zeros = B.expand_reduced(B.sum(B.where(is_zero, one, zero), axes), x.shape, axes)
    none = B.sum(B.where(is_zero, x, zero), axes)
    none = B.where(B.lt(B.abs_(others), B.full_like(x, math.inf)), B.expand_reduced(none, x.shape, axes), zero)
    two = B.full_like(x, 2)
    at_zero = B.where(B.eq(zeros, one), one, B.where(B.eq(zeros, two), B.sub(none, x), zero))
    elsewhere = B.where(B.eq(zeros, zero), one, B.where(B.eq(zeros, one), none, zero))
    share = B.mul(B.where(is_zero, others, B.div(others, nonzero)), B.where(is_zero, at_zero, elsewhere))
    return (B.mul(B.expand_reduced(g, x.shape, axes), share),)


def _extreme_vjp(node: Node, g: Node) -> tuple[Node | None]:
    """Equal extremes share the gradient. They are counted in float32 at least: float16 ends at 65504."""
    x, axes = node.inputs[0], node.params["axes"]
    if not x.dtype.is_float:
        return (None,)
    if x.storage is None:
        # Once the extreme is read, x is computed again in other kernels, and may differ in the last bit: the gradient
        # has an extreme of its own.
        x = B.alias(x)
        node = apply(node.op, x, axes=axes)
    wide = x.dtype.compute
    hit = B.cast(B.eq(x, B.expand_reduced(node, x.shape, axes)), wide)
    share = B.div(B.cast(g, wide), B.sum(hit, axes))
    return (B.cast(B.mul(hit, B.expand_reduced(share, x.shape, axes)), x.dtype),)


SUM = Op("sum", _infer("sum", False), _sum_vjp, _accumulate(np.sum), Reduction("sum"))
PROD = Op("prod", _infer("prod", False), _prod_vjp, _accumulate(np.prod), Reduction("prod"))
MAX = Op("max", _infer("max", True), _extreme_vjp,
         lambda x, *, axes, shape, dtype: np.asarray(np.max(x, axis=axes)), Reduction("max"))
MIN = Op("min", _infer("min", True), _extreme_vjp,
         lambda x, *, axes, shape, dtype: np.asarray(np.min(x, axis=axes)), Reduction("min"))

REDUCE = (SUM, PROD, MAX, MIN)
