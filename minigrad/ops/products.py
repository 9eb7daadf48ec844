"""Contractions as composites: matrix product and convolution, and their gradients by each operand.

All of them are sums of a product of two operands that were brought to one rank; `wide` is the type of the products and
sums, which is the operands' own for floats.
"""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from minigrad.dtype import DType
from minigrad.errors import ShapeError
from minigrad.expr import Index
from minigrad.ops import build as B
from minigrad.ops.composite import composite
from minigrad.ops.movement import window_lengths
from minigrad.ops.node import Node, apply
from minigrad.ops.op import Shape

Axes = tuple[int, ...]
Ints = tuple[int, ...]
Shapes = Sequence[Shape]
DTypes = Sequence[DType]


def _joined(a: Shape, b: Shape) -> Shape:
    """The shape that two of one rank broadcast to."""
    return tuple([e if d == 1 else d for d, e in zip(a, b, strict=True)])


def _contract(x: Node, y: Node, axes: Axes) -> Node:
    """The sum of x * y over axes, broadcast to one shape."""
    full = _joined(x.shape, y.shape)
    return B.sum(B.mul(B.expand(x, full), B.expand(y, full)), axes)


def _contract_gradient(g: Node, other: Node, shape: Shape, axes: Axes) -> Node:
    """The gradient of `_contract` over axes by the operand of this shape, given the other one."""
    full = _joined(shape, other.shape)
    product = B.mul(B.expand_reduced(g, full, axes), B.expand(other, full))
    repeated = tuple([i for i, (d, e) in enumerate(zip(shape, full, strict=True)) if d != e])
    return B.reshape(B.sum(product, repeated), shape)


# Matrix product: x [..., M, K] or [K] times w [..., K, N], with batch axes that broadcast


def _rows_shape(x: Shape, rank: int) -> Shape:
    """x as an operand of [..., M, N, K]."""
    rows = (*x[:-1], 1, x[-1])
    return (*[1] * (rank - len(rows)), *rows)


def _columns_shape(w: Shape, rank: int) -> Shape:
    """w, its last two axes exchanged, as an operand of [..., M, N, K]."""
    columns = (*w[:-2], 1, w[-1], w[-2])
    return (*[1] * (rank - len(columns)), *columns)


def _rank(x: Shape, w: Shape) -> int:
    return max(len(x), len(w), 2) + 1


def _matmul_infer(shapes: Shapes, dtypes: DTypes, *, wide: DType) -> tuple[Shape, DType]:
    x, w = shapes
    rank = _rank(x, w)
    rows, columns = _rows_shape(x, rank), _columns_shape(w, rank)
    if any(d != 1 and e != 1 and d != e for d, e in zip(rows, columns, strict=True)):
        raise ShapeError(f"[matmul] expected shapes that broadcast, got {list(x)} and {list(w)}")
    shape = _joined(rows, columns)[:-1]
    return (shape if len(x) > 1 else (*shape[:-2], shape[-1])), wide


def _exchanged(x: Node) -> Node:
    """The last two axes exchanged."""
    rank = len(x.shape)
    return B.permute(x, (*range(rank - 2), rank - 1, rank - 2))


def _matmul(x: Node, w: Node, wide: DType) -> Node:
    rank = _rank(x.shape, w.shape)
    rows = B.reshape(B.cast(x, wide), _rows_shape(x.shape, rank))
    columns = B.reshape(_exchanged(B.cast(w, wide)), _columns_shape(w.shape, rank))
    shape, _ = _matmul_infer((x.shape, w.shape), (wide, wide), wide=wide)
    return B.reshape(_contract(rows, columns, (rank - 1,)), shape)


def _matmul_vjp(node: Node, g: Node) -> tuple[Node, Node]:
    x, w = node.inputs
    return apply(MATMUL_GRADIENT_X, w, g, to=x.shape), apply(MATMUL_GRADIENT_W, x, g, to=w.shape)


def _as_products(g: Node, x: Shape, w: Shape) -> Node:
    """The gradient of a matrix product as that of its sums [..., M, N]."""
    rank = _rank(x, w)
    return B.reshape(g, _joined(_rows_shape(x, rank), _columns_shape(w, rank))[:-1])


def _matmul_gradient_x(w: Node, g: Node, to: Shape) -> Node:
    rank = _rank(to, w.shape)
    columns = B.reshape(_exchanged(w), _columns_shape(w.shape, rank))
    sums = _as_products(g, to, w.shape)
    return B.reshape(_contract_gradient(sums, columns, _rows_shape(to, rank), (rank - 1,)), to)


def _matmul_gradient_w(x: Node, g: Node, to: Shape) -> Node:
    rank = _rank(x.shape, to)
    rows = B.reshape(x, _rows_shape(x.shape, rank))
    sums = _as_products(g, x.shape, to)
    columns = _contract_gradient(sums, rows, _columns_shape(to, rank), (rank - 1,))
    return _exchanged(B.reshape(columns, (*to[:-2], to[-1], to[-2])))


def _to(shapes: Shapes, dtypes: DTypes, *, to: Shape, **_: Any) -> tuple[Shape, DType]:
    return to, dtypes[0]


MATMUL = composite("matmul", _matmul_infer, _matmul, _matmul_vjp)
MATMUL_GRADIENT_X = composite("matmul_gradient_x", _to, _matmul_gradient_x, None)
MATMUL_GRADIENT_W = composite("matmul_gradient_w", _to, _matmul_gradient_w, None)


def matmul(x: Node, w: Node, wide: DType) -> Node:
    """x [..., M, K] or [K] times w [..., K, N], of one dtype and equal K; batch axes broadcast."""
    return apply(MATMUL, x, w, wide=wide)


# Convolution: x [N, Cin, *spatial] and w [Cout, Cin / groups, *kernel], and a bias [Cout] perhaps


class Steps(NamedTuple):
    """The stride, the dilation and the padding of a window, per spatial axis."""

    stride: Ints
    dilation: Ints
    padding: tuple[tuple[int, int], ...]


class _Form(NamedTuple):
    """The shapes of a convolution as a contraction over [N, groups, Cout / groups, Cin / groups, *positions, *kernel],
    and the axes that it sums over. `windows` is [N, Cin, *positions, *kernel]."""

    windows: Shape
    x: Shape
    w: Shape
    y: Shape
    axes: Axes


def _form(x: Shape, w: Shape, groups: int, steps: Steps) -> _Form:
    out_channels, depth, *kernel = w
    n = len(kernel)
    positions = window_lengths("conv2d", x[2:], tuple(map(int, kernel)), *steps)
    per_group = out_channels // groups
    return _Form((*x[:2], *positions, *kernel), (x[0], groups, 1, depth, *positions, *kernel),
                 (1, groups, per_group, depth, *[1] * n, *kernel), (x[0], out_channels, *positions),
                 (3, *range(4 + n, 4 + 2 * n)))


def _conv_infer(shapes: Shapes, dtypes: DTypes, *, groups: int, steps: Steps, wide: DType) -> tuple[Shape, DType]:
    return _form(shapes[0], shapes[1], groups, steps).y, wide


def _spatial(rank: int) -> Axes:
    return tuple(range(2, rank))


def _windows(x: Node, kernel: Sequence[Index], steps: Steps) -> Node:
    return B.window(x, _spatial(len(x.shape)), tuple(map(int, kernel)), *steps)


def _conv(x: Node, w: Node, bias: Node | None = None, *, groups: int, steps: Steps, wide: DType) -> Node:
    form = _form(x.shape, w.shape, groups, steps)
    rows = B.cast(B.reshape(_windows(x, w.shape[2:], steps), form.x), wide)
    y = B.reshape(_contract(rows, B.cast(B.reshape(w, form.w), wide), form.axes), form.y)
    if bias is None:
        return y
    return B.add(y, B.expand(B.reshape(bias, (1, *bias.shape, *[1] * len(form.y[2:]))), form.y))


def _conv_vjp(node: Node, g: Node) -> tuple[Node, ...]:
    (x, w, *bias), groups, steps = node.inputs, node.params["groups"], node.params["steps"]
    dx = apply(CONV_GRADIENT_X, w, g, to=x.shape, groups=groups, steps=steps)
    dw = apply(CONV_GRADIENT_W, x, g, to=w.shape, groups=groups, steps=steps)
    return (dx, dw, B.sum(g, (0, *_spatial(len(g.shape))))) if bias else (dx, dw)


def _conv_gradient_x(w: Node, g: Node, to: Shape, groups: int, steps: Steps) -> Node:
    form = _form(to, w.shape, groups, steps)
    windows = B.reshape(_contract_gradient(_sums(g, form), B.reshape(w, form.w), form.x, form.axes), form.windows)
    return B.unwindow(windows, _spatial(len(to)), tuple(map(int, w.shape[2:])), *steps, to[2:])


def _conv_gradient_w(x: Node, g: Node, to: Shape, groups: int, steps: Steps) -> Node:
    form = _form(x.shape, to, groups, steps)
    rows = B.reshape(_windows(x, to[2:], steps), form.x)
    return B.reshape(_contract_gradient(_sums(g, form), rows, form.w, form.axes), to)


def _conv_gradient_x_vjp(node: Node, g: Node) -> tuple[Node, Node]:
    (w, y), groups, steps = node.inputs, node.params["groups"], node.params["steps"]
    return (apply(CONV_GRADIENT_W, g, y, to=w.shape, groups=groups, steps=steps),
            apply(CONV, g, w, groups=groups, steps=steps, wide=y.dtype))


def _conv_gradient_w_vjp(node: Node, g: Node) -> tuple[Node, Node]:
    (x, y), groups, steps = node.inputs, node.params["groups"], node.params["steps"]
    return (apply(CONV_GRADIENT_X, g, y, to=x.shape, groups=groups, steps=steps),
            apply(CONV, x, g, groups=groups, steps=steps, wide=y.dtype))


def _sums(g: Node, form: _Form) -> Node:
    """The gradient of a convolution as that of its sums [N, groups, Cout / groups, *positions]."""
    full = _joined(form.x, form.w)
    return B.reshape(g, tuple([d for i, d in enumerate(full) if i not in form.axes]))


CONV = composite("conv", _conv_infer, _conv, _conv_vjp)
CONV_GRADIENT_X = composite("conv_gradient_x", _to, _conv_gradient_x, _conv_gradient_x_vjp)
CONV_GRADIENT_W = composite("conv_gradient_w", _to, _conv_gradient_w, _conv_gradient_w_vjp)


def conv(x: Node, w: Node, bias: Node | None, groups: int, steps: Steps, wide: DType) -> Node:
    """Cross-correlation; channels fit, and x and w have one dtype. Raises ShapeError for a window that does not fit."""
    return apply(CONV, x, w, *(() if bias is None else (bias,)), groups=groups, steps=steps, wide=wide)


PRODUCTS = (MATMUL, MATMUL_GRADIENT_X, MATMUL_GRADIENT_W, CONV, CONV_GRADIENT_X, CONV_GRADIENT_W)
