"""Graph building: movement, whose rewrites combine it with the movement of its operand."""
from __future__ import annotations

import math

from minigrad.expr import Index, dim, product
from minigrad.ops import movement
from minigrad.ops.convert import rounded
from minigrad.ops.node import Node, apply, is_variable
from minigrad.ops.op import Shape


def numel(shape: Shape) -> Index:
    return dim(product(shape))


def _repeats_a_number(x: Node) -> bool:
    return x.op is movement.EXPAND and x.inputs[0].shape == () and not is_variable(x)


def reshape(x: Node, to: Shape) -> Node:
    if x.shape == to:
        return x
    if x.op is movement.RESHAPE and not is_variable(x):
        return reshape(x.inputs[0], to)
    result = apply(movement.RESHAPE, x, to=to)
    return expand(x.inputs[0], to) if _repeats_a_number(x) else result


def expand(x: Node, to: Shape) -> Node:
    """Repeats dims of length 1, and adds leading dims, to give the shape `to`."""
    if x.shape == to:
        return x
    result = apply(movement.EXPAND, x, to=to)
    return apply(movement.EXPAND, x.inputs[0], to=to) if x.op is movement.EXPAND and not is_variable(x) else result


def permute(x: Node, order: tuple[int, ...]) -> Node:
    if order == tuple(range(len(x.shape))):
        return x
    if x.op is movement.PERMUTE and not is_variable(x):
        first = x.params["order"]
        return permute(x.inputs[0], tuple([first[a] for a in order]))
    result = apply(movement.PERMUTE, x, order=order)
    return expand(x.inputs[0], result.shape) if _repeats_a_number(x) else result


def slice_(x: Node, starts: tuple[Index, ...], stops: tuple[Index, ...], steps: tuple[int, ...] | None = None) -> Node:
    """Elements start, start + step, ... below stop along each axis; steps are positive, 1 unless told."""
    steps = steps or (1,) * len(x.shape)
    result = apply(movement.SLICE, x, starts=starts, stops=stops, steps=steps)
    if stops == x.shape and all(s == 0 for s in starts) and all(s == 1 for s in steps):
        return x
    return expand(x.inputs[0], result.shape) if _repeats_a_number(x) else result


def flip(x: Node, axes: tuple[int, ...]) -> Node:
    return apply(movement.FLIP, x, axes=axes) if axes else x


def pad(x: Node, pads: tuple[tuple[Index, Index], ...], fill: float = 0) -> Node:
    """(before, after) elements of `fill` along each axis."""
    if all(lo == 0 and hi == 0 for lo, hi in pads):
        return x
    fill = rounded(fill, x.dtype)
    return apply(movement.PAD, x, pads=pads, fill=fill, negative=fill == 0 and math.copysign(1, fill) < 0)


def window_is_reshape(shape: Shape, axes: tuple[int, ...], kernel: tuple[int, ...], stride: tuple[int, ...],
                      padding: tuple[tuple[int, int], ...]) -> bool:
    """True where such windows of a tensor of this shape have one tap, which stays where it is."""
    return all([0 <= a < len(shape) and shape[a] != 0 and k == s == 1 and p == (0, 0)
                for a, k, s, p in zip(axes, kernel, stride, padding, strict=True)])


def window(x: Node, axes: tuple[int, ...], kernel: tuple[int, ...], stride: tuple[int, ...],
           dilation: tuple[int, ...], padding: tuple[tuple[int, int], ...], fill: float = 0) -> Node:
    """Element (o, k) is x[o*stride + k*dilation - lo], `fill` outside; kernel axes come last. Axes with one tap that
    stays where it is only gain a kernel axis."""
    if window_is_reshape(x.shape, axes, kernel, stride, padding):
        return reshape(x, (*x.shape, *kernel))
    return apply(movement.WINDOW, x, axes=axes, kernel=kernel, stride=stride, dilation=dilation, padding=padding,
                 fill=rounded(fill, x.dtype))


def unwindow(g: Node, axes: tuple[int, ...], kernel: tuple[int, ...], stride: tuple[int, ...],
             dilation: tuple[int, ...], padding: tuple[tuple[int, int], ...], lengths: Shape) -> Node:
    """The transpose of `window`: every (o, k) is added to the element it came from; `lengths` are the axes' lengths.
    Windows side by side, of which each element is in one, are only put into another order."""
    if all([o * k == n and k == s and (d == 1 or k == 1) and p == (0, 0) for o, k, s, d, p, n in zip(
            [g.shape[a] for a in axes], kernel, stride, dilation, padding, lengths, strict=True)]):
        rank, length = len(g.shape) - len(axes), dict(zip(axes, lengths, strict=True))
        order = [e for a in range(rank) for e in ((a, rank + axes.index(a)) if a in length else (a,))]
        return reshape(permute(g, tuple(order)), tuple([length.get(a, g.shape[a]) for a in range(rank)]))
    return apply(movement.UNWINDOW, g, axes=axes, kernel=kernel, stride=stride, dilation=dilation, padding=padding,
                 lengths=lengths)
