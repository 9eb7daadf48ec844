"""Convolutions over places that are moved by offsets."""
from __future__ import annotations

import numpy as np

from minigrad import Tensor, dtypes
from minigrad.onnx.convolution import Windows, channels
from minigrad.onnx.node import Node, Operator
from minigrad.onnx.refusal import Invalid, refuse


def _places(n: Node, x: Tensor, kernel: list[int], offset: Tensor, groups: int) -> tuple[Tensor, Tensor]:
    """The rows and columns [N, groups, kH * kW, oH, oW] that the kernels read, in numbers of x."""
    w = Windows(n, x, kernel)
    sizes = [(x.shape[2 + i] + sum(w.around[i]) - w.reach[i]) // w.steps[i] + 1 for i in range(2)]
    each = kernel[0] * kernel[1]
    if list(offset.shape) != [x.shape[0], groups * each * 2, *sizes]:
        raise Invalid(f"expected offsets {[x.shape[0], groups * each * 2, *sizes]}, got {list(offset.shape)}")
    moved = offset.reshape(x.shape[0], groups, each, 2, *sizes)
    taps = np.indices(kernel).reshape(2, each, 1, 1)
    outputs = np.indices(sizes).reshape(2, 1, *sizes)
    base = [outputs[i] * w.steps[i] - w.around[i][0] + taps[i] * w.dilations[i] for i in range(2)]
    rows, columns = (n.constant(b.astype(np.float32)).reshape(1, 1, each, *sizes).cast(offset.dtype) for b in base)
    return rows + moved[:, :, :, 0], columns + moved[:, :, :, 1]


def _sampled(x: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """x [N, groups, C, H, W] at broken places [N, groups, ...], as [N, groups, C, -1]: means of the four numbers around
    each, 0 outside."""
    N, groups, C, H, W = x.shape
    flat, total = x.reshape(N, groups, C, H * W), None
    top, left = rows.floor(), columns.floor()
    for dy in (0, 1):
        for dx in (0, 1):
            y, z = top + dy, left + dx
            inside = (y >= 0) & (y < H) & (z >= 0) & (z < W)
            share = (1 - (rows - y).abs()) * (1 - (columns - z).abs())
            place = (y.clip(0, H - 1) * W + z.clip(0, W - 1)).cast(dtypes.int64).reshape(N, groups, 1, -1)
            found = flat.gather(3, place.expand(N, groups, C, place.shape[-1]))
            part = found * inside.where(share, 0).reshape(N, groups, 1, -1)
            total = part if total is None else total + part
    if total is None:
        raise Invalid("expected four numbers around a place")
    return total


def deformed(n: Node) -> Tensor:
    """x [N, C, H, W] with kernels [M, C / group, kH, kW] whose places are moved by offsets and weighed by a mask."""
    x, weight, offset, bias, mask = n.tensor(0), n.tensor(1), n.tensor(2), n.tensor(3, None), n.tensor(4, None)
    if x.ndim != 4 or weight.ndim != 4:
        raise refuse(f"a convolution of {x.ndim} axes", "4")
    kernel, groups, moved = list(weight.shape[2:]), n.attribute("group", 1), n.attribute("offset_group", 1)
    (N, C, H, W), M, each = x.shape, weight.shape[0], kernel[0] * kernel[1]
    if groups < 1 or moved < 1 or C % groups or C % moved or M % groups or weight.shape[1] * groups != C:
        raise Invalid(f"expected groups that divide {C} and {M} channels, got group {groups} and offset_group {moved}")
    rows, columns = _places(n, x, kernel, offset, moved)
    found = _sampled(x.reshape(N, moved, C // moved, H, W), rows, columns)
    if mask is not None:
        found = found * mask.reshape(N, moved, 1, -1)
    sizes = rows.shape[-2:]
    columns = found.reshape(N, groups, C // groups * each, sizes[0] * sizes[1])
    y = (weight.reshape(groups, M // groups, -1) @ columns).reshape(N, M, *sizes)
    return y if bias is None else y + channels(y, bias)


TABLE: dict[str, Operator] = {"DeformConv": deformed}
