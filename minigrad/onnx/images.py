"""Resizing and sampling of images, boxes."""
from __future__ import annotations

from typing import Any

import numpy as np

import minigrad.nn.functional as F
from minigrad import Tensor, dtypes
from minigrad.dtype import DType
from minigrad.onnx.node import Node, Operator

NEAREST: dict[str, Any] = {"round_prefer_floor": lambda x: np.ceil(x - 0.5), "floor": np.floor, "ceil": np.ceil,
                           "round_prefer_ceil": lambda x: np.floor(x + 0.5)}


def coordinates(n: Node, size: int, new: int, scale: float, roi: tuple[float, float]) -> np.ndarray:
    """The coordinates in the old axis of the `new` places."""
    x = np.arange(new, dtype=np.float64)
    mode = n.choice("coordinate_transformation_mode", "half_pixel" if n.opset > 10 else "asymmetric", (
        "half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric",
        "tf_crop_and_resize", "tf_half_pixel_for_nn"))
    if mode == "align_corners":
        return x * (size - 1) / (scale * size - 1) if new > 1 else x * 0
    if mode == "asymmetric":
        return x / scale
    if mode == "tf_half_pixel_for_nn":
        return (x + 0.5) / scale
    if mode == "tf_crop_and_resize":
        start, end = roi
        return start * (size - 1) + x * (end - start) * (size - 1) / (scale * size - 1) if new > 1 else np.full(
            1, 0.5 * (start + end) * (size - 1))
    if mode == "half_pixel_symmetric":
        return size / 2 * (1 - new / (scale * size)) + (x + 0.5) / scale - 0.5
    return x * 0 if mode == "pytorch_half_pixel" and new == 1 else (x + 0.5) / scale - 0.5


def cubic(x: np.ndarray, a: float) -> np.ndarray:
    """The cubic kernel."""
    x = np.abs(x)
    near = (a + 2) * x**3 - (a + 3) * x**2 + 1
    return np.where(x <= 1, near, np.where(x < 2, a * x**3 - 5 * a * x**2 + 8 * a * x - 4 * a, 0))


def weights_of(n: Node, size: int, new: int, scale: float, roi: tuple[float, float], mode: str) -> np.ndarray:
    """The matrix [new, size] that resizes an axis."""
    x = coordinates(n, size, new, scale, roi)
    matrix = np.zeros((new, size), np.float64)
    rows = np.arange(new)
    if mode == "nearest":
        rounding = NEAREST[n.choice("nearest_mode", "round_prefer_floor" if n.opset > 10 else "floor", tuple(NEAREST))]
        matrix[rows, np.clip(rounding(x), 0, size - 1).astype(int)] = 1
        return matrix
    a, widen = n.attribute("cubic_coeff_a", -0.75), max(1.0, 1 / scale) if n.attribute("antialias", 0) else 1.0
    reach = int(np.ceil((2 if mode == "cubic" else 1) * widen))
    for tap in range(-reach + 1, reach + 1):
        place = np.floor(x) + tap
        away = (x - place) / widen
        weight = cubic(away, a) if mode == "cubic" else np.maximum(0, 1 - np.abs(away))
        inside = (place >= 0) & (place <= size - 1)
        if n.attribute("exclude_outside", 0):
            weight = weight * inside
        np.add.at(matrix, (rows, np.clip(place, 0, size - 1).astype(int)), weight)
    total = matrix.sum(1, keepdims=True)
    return matrix / np.where(total == 0, 1, total)


def working_type(dtype: DType) -> DType:
    """The type in which numbers of `dtype` are weighted: one that holds them, and the weights."""
    return dtypes.float64 if dtype is dtypes.float64 or (dtype.is_int and dtype.bits >= 32) else dtypes.float32


def nearest(x: Tensor, dtype: DType) -> Tensor:
    """x in another type; integers are the nearest ones, within the type's range."""
    return (x.round() if x.dtype.is_float and dtype.is_int else x).cast(dtype)


def resized(x: Tensor, axis: int, matrix: np.ndarray) -> Tensor:
    """An axis times a matrix: by its few numbers per row where it has few, else as a product."""
    taps = int((matrix != 0).sum(1).max(initial=1))
    if taps > 4:
        return (x.moveaxis(axis, -1) @ Tensor(matrix.T, dtype=x.dtype, device=x.device)).moveaxis(-1, axis)
    order = np.argsort(matrix == 0, axis=1, kind="stable")[:, :taps]
    values = np.take_along_axis(matrix, order, 1)
    shape = [1] * x.ndim
    shape[axis] = len(matrix)
    result: Any = None
    for tap in range(taps):
        part = x.index_select(axis, Tensor(order[:, tap].astype(np.int64), device=x.device))
        if not (values[:, tap] == 1).all():
            part = part * Tensor(values[:, tap], dtype=x.dtype, device=x.device).reshape(*shape)
        result = part if result is None else result + part
    return result


def resize(n: Node) -> Tensor:
    """Other sizes of some axes, by scales or sizes."""
    x, mode = n.tensor(0), n.choice("mode", "nearest", ("nearest", "linear", "cubic"))
    at = {"Upsample": (None, 1, None)}.get(n.op, (1, 2, 3) if n.opset > 10 else (None, 1, None))
    axes = [a % x.ndim for a in n.attribute("axes", list(range(x.ndim)))]
    scales = n.attribute("scales") if at[1] is None or not n.has(at[1]) else n.known(at[1]).reshape(-1).tolist()
    sizes = n.ints(at[2], "") if at[2] is not None and n.has(at[2]) else None
    old = [x.shape[a] for a in axes]
    if sizes:
        scales = [s / o for s, o in zip(sizes, old, strict=True)]
        policy = n.choice("keep_aspect_ratio_policy", "stretch", ("stretch", "not_larger", "not_smaller"))
        if policy != "stretch":
            scales = [(min if policy == "not_larger" else max)(scales)] * len(axes)
            sizes = [int(np.floor(s * o + 0.5)) for s, o in zip(scales, old, strict=True)]
    else:
        sizes = [int(np.floor(np.float32(s) * o)) for s, o in zip(scales, old, strict=True)]
    crop = n.attribute("coordinate_transformation_mode") == "tf_crop_and_resize"
    roi = n.known(1).reshape(-1).tolist() if crop else [0.0] * len(axes) + [1.0] * len(axes)
    wide = x.dtype if mode == "nearest" else working_type(x.dtype)
    y, outside = x, np.zeros((1,) * x.ndim, bool)
    for i, axis in enumerate(axes):
        edges = (roi[i], roi[i + len(axes)])
        if crop:
            place = coordinates(n, old[i], sizes[i], scales[i], edges)
            shape = [-1 if a == axis else 1 for a in range(x.ndim)]
            outside = outside | ((place < 0) | (place > old[i] - 1)).reshape(shape)
        if sizes[i] != old[i] or scales[i] != 1 or crop:
            y = resized(y.cast(wide), axis, weights_of(n, old[i], sizes[i], scales[i], edges, mode))
    if crop:
        y = n.constant(np.broadcast_to(outside, y.shape)).where(n.attribute("extrapolation_value", 0.0), y)
    return nearest(y, x.dtype)


def grid_sample(n: Node) -> Tensor:
    """Numbers of x [N, C, ...] at the places of a grid."""
    mode = n.attribute("mode", "bilinear")
    mode, x = {"linear": "bilinear", "cubic": "bicubic"}.get(mode, mode), n.tensor(0)
    y = F.grid_sample(x, n.tensor(1), mode, n.attribute("padding_mode", "zeros"), bool(n.attribute("align_corners", 0)))
    return nearest(y, x.dtype)


def roi_align(n: Node) -> Tensor:
    """Means or maxima of bilinear samples in boxes."""
    x, boxes, batch = n.tensor(0), n.tensor(1), n.tensor(2)
    H, W, scale = n.attribute("output_height", 1), n.attribute("output_width", 1), n.attribute("spatial_scale", 1.0)
    ratio, half = n.attribute("sampling_ratio", 0), n.opset >= 16
    half = half and n.attribute("coordinate_transformation_mode", "half_pixel") == "half_pixel"
    if ratio == 0:  # as many samples as a bin is wide, which only the boxes know
        numbers = n.known(1) * scale
        spans = np.ceil(np.maximum(numbers[:, 2:] - numbers[:, :2], 0 if half else 1) / [W, H]).astype(int)
        parts = [_aligned(n, x, boxes[i:i + 1], batch[i:i + 1], (H, W), scale, half, (max(1, int(h)), max(1, int(w))))
                 for i, (w, h) in enumerate(spans)]
        return parts[0].cat(*parts[1:], dim=0) if len(parts) > 1 else parts[0]
    return _aligned(n, x, boxes, batch, (H, W), scale, half, (ratio, ratio))


def _aligned(n: Node, x: Any, boxes: Tensor, batch: Tensor, out: tuple[int, int], scale: float, half: bool,
             samples: tuple[int, int]) -> Tensor:
    shift = 0.5 if half else 0.0
    edges = boxes * scale - shift
    sides = edges[:, 2:] - edges[:, :2]
    sides = sides if half else sides.maximum(1.0)

    def places(axis: int, count: int, each: int, size: int) -> tuple[Tensor, Tensor, Tensor]:
        step = (Tensor.arange(count * each, device=x.device).float() + 0.5) / (count * each)
        at = edges[:, axis:axis + 1] + sides[:, axis:axis + 1] * step.reshape(1, -1)
        inside = ((at >= -1) & (at <= size)).cast(x.dtype)
        at = at.clip(0, size - 1)
        low = at.floor().minimum(max(size - 2, 0))
        return low, at - low, inside
    y, fy, iny = places(1, out[0], samples[0], x.shape[2])
    z, fz, inz = places(0, out[1], samples[1], x.shape[3])
    rows, columns = y.long().unsqueeze(2), z.long().unsqueeze(1)
    which = batch.long().reshape(-1, 1, 1)
    fy, fz = fy.unsqueeze(2).unsqueeze(-1), fz.unsqueeze(1).unsqueeze(-1)
    last = x.permute(0, 2, 3, 1)
    corners = [last[which, (rows + a).minimum(x.shape[2] - 1), (columns + b).minimum(x.shape[3] - 1)]
               * (fy if a else 1 - fy) * (fz if b else 1 - fz) for a in (0, 1) for b in (0, 1)]
    keep = (iny.unsqueeze(2) * inz.unsqueeze(1)).unsqueeze(-1)
    shape = (boxes.shape[0], out[0], samples[0], out[1], samples[1], x.shape[1])
    if n.choice("mode", "avg", ("avg", "max")) == "max":
        largest = corners[0].maximum(corners[1]).maximum(corners[2]).maximum(corners[3]) * keep
        return largest.reshape(*shape).amax((2, 4)).permute(0, 3, 1, 2)
    total = (corners[0] + corners[1] + corners[2] + corners[3]) * keep
    return total.reshape(*shape).mean((2, 4)).permute(0, 3, 1, 2)


def non_max_suppression(n: Node) -> Tensor:
    """[batch, class, box] of boxes that no better one of their class overlaps. Reads the values of boxes and scores."""
    boxes, scores = n.known(0).astype(np.float64), n.known(1)
    most, overlap, least = int(n.scalar(2, 0)), float(n.scalar(3, 0.0)), n.scalar(4)
    if n.attribute("center_point_box", 0):
        middle, side = boxes[..., :2], boxes[..., 2:]
        boxes = np.concatenate([middle - side / 2, middle + side / 2], -1)
    low, high = np.minimum(boxes[..., :2], boxes[..., 2:]), np.maximum(boxes[..., :2], boxes[..., 2:])
    area, found = np.prod(high - low, -1), []
    for b in range(scores.shape[0]):
        for c in range(scores.shape[1]):
            order = np.argsort(-scores[b, c], kind="stable")
            order = order if least is None else order[scores[b, c][order] > least]
            kept: list[int] = []
            while len(order) and len(kept) < most:
                best, order = order[0], order[1:]
                kept.append(int(best))
                both = np.minimum(high[b, order], high[b, best]) - np.maximum(low[b, order], low[b, best])
                shared = np.prod(np.maximum(both, 0), -1)
                union = area[b, order] + area[b, best] - shared
                order = order[shared <= overlap * union]
            found += [(b, c, k) for k in kept]
    return n.constant(np.array(found, np.int64).reshape(-1, 3))


TABLE: dict[str, Operator] = {
    "Resize": resize, "Upsample": resize, "GridSample": grid_sample, "RoiAlign": roi_align,
    "NonMaxSuppression": non_max_suppression,
}
