"""Products, convolutions, pools and norms."""
from __future__ import annotations

from typing import Any

import numpy as np

import minigrad.nn.functional as F
from minigrad import Tensor, dtypes
from minigrad.onnx.node import Node, Operator
from minigrad.onnx.refusal import Invalid, refuse
from minigrad.onnx.shapes import padded

CONV = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
TRANSPOSED = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}
MAX = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}


def gemm(n: Node) -> Tensor:
    """alpha * A @ B + beta * C, A and B transposed on request."""
    A, B, C = n.tensor(0), n.tensor(1), n.tensor(2, None)
    A, B = A.T if n.attribute("transA", 0) else A, B.T if n.attribute("transB", 0) else B
    alpha, beta = n.attribute("alpha", 1.0), n.attribute("beta", 1.0)
    y = (A @ B) if alpha == 1 else (A @ B) * alpha
    return (y if C is None else y + (C if beta == 1 else C * beta)).cast(A.dtype)


class Windows:
    """Windows of a kernel over the last axes of x [N, C, ...]: sizes, steps, dilations and the padding around."""

    def __init__(self, n: Node, x: Tensor, kernel: list[int]):
        rank = len(kernel)
        self.kernel, self.rank = kernel, rank
        self.steps: list[int] = n.attribute("strides", [1] * rank)
        self.dilations: list[int] = n.attribute("dilations", [1] * rank)
        if not len(self.steps) == len(self.dilations) == rank == x.ndim - 2:
            raise Invalid(f"expected a kernel, strides and dilations of {x.ndim - 2} axes, got {kernel}, {self.steps} "
                          f"and {self.dilations}")
        self.reach = [(k - 1) * d + 1 for k, d in zip(kernel, self.dilations, strict=True)]
        pads = n.attribute("pads", [0] * (2 * rank))
        auto = n.choice("auto_pad", "NOTSET", ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"))
        self.around = list(zip(pads[:rank], pads[rank:], strict=True)) if auto == "NOTSET" else [(0, 0)] * rank
        if auto.startswith("SAME"):
            for i, size in enumerate(x.shape[2:]):
                more = max(0, (-(-size // self.steps[i]) - 1) * self.steps[i] + self.reach[i] - size)
                less = more // 2
                self.around[i] = (less, more - less) if auto == "SAME_UPPER" else (more - less, less)
        self.extra = [0] * rank
        if n.attribute("ceil_mode", 0):
            for i, size in enumerate(x.shape[2:]):
                whole = size + sum(self.around[i])
                count = -(-(whole - self.reach[i]) // self.steps[i]) + 1
                count -= (count - 1) * self.steps[i] >= size + self.around[i][0]  # none begins behind the axis
                self.extra[i] = max(0, (count - 1) * self.steps[i] + self.reach[i] - whole)

    @property
    def symmetric(self) -> bool:
        """True where as much is added before as behind."""
        return all(a == b for a, b in self.around) and not any(self.extra)

    def pad(self, x: Tensor, value: Any = 0, extra: bool = True) -> Tensor:
        """x with numbers around."""
        widths = [(a, b + (more if extra else 0)) for (a, b), more in zip(self.around, self.extra, strict=True)]
        return padded(x, [(0, 0), (0, 0), *widths], value=value)

    def of(self, x: Tensor) -> Tensor:
        """The windows [N, C, ..., *kernel] of what was padded."""
        for i in range(self.rank):
            x = x.unfold(2 + i, self.reach[i], self.steps[i])
            if self.dilations[i] > 1:
                x = x[..., ::self.dilations[i]]
        return x

    @property
    def axes(self) -> tuple[int, ...]:
        """The last axes of `of`."""
        return tuple(range(-self.rank, 0))


def convolution(n: Node) -> Tensor:
    """x [N, C, ...] with kernels [M, C / group, ...]."""
    x, weight, bias = n.tensor(0), n.tensor(1), n.tensor(2, None)
    return convolved(n, x, weight, bias)


def convolved(n: Node, x: Tensor, weight: Any, bias: Tensor | None = None) -> Tensor:
    """The convolution that the attributes of `n` describe."""
    w = Windows(n, x, list(weight.shape[2:]))
    if w.rank not in CONV:
        raise refuse(f"a convolution over {w.rank} axes", "1, 2 and 3")
    padding: Any = [a for a, _ in w.around] if w.symmetric else 0
    return CONV[w.rank](x if w.symmetric else w.pad(x), weight, bias, w.steps, padding, w.dilations,
                        n.attribute("group", 1))


def transposed(n: Node) -> Tensor:
    """The transposed convolution, cut or padded to the asked shape."""
    x, weight, bias = n.tensor(0), n.tensor(1), n.tensor(2, None)
    kernel = list(weight.shape[2:])
    rank = len(kernel)
    if rank not in TRANSPOSED:
        raise refuse(f"a convolution over {rank} axes", "1, 2 and 3")
    steps, dilations = n.attribute("strides", [1] * rank), n.attribute("dilations", [1] * rank)
    more, pads = n.attribute("output_padding", [0] * rank), n.attribute("pads", [0] * (2 * rank))
    full = [(x.shape[2 + i] - 1) * steps[i] + (kernel[i] - 1) * dilations[i] + 1 + more[i] for i in range(rank)]
    auto, sizes = n.attribute("auto_pad", "NOTSET"), n.attribute("output_shape")
    if auto.startswith("SAME") and sizes is None:
        sizes = [x.shape[2 + i] * steps[i] for i in range(rank)]
    cut = list(zip(pads[:rank], pads[rank:], strict=True))
    if sizes is not None:
        totals = [f - s for f, s in zip(full, sizes, strict=True)]
        cut = [(t // 2, t - t // 2) if auto == "SAME_UPPER" else (t - t // 2, t // 2) for t in totals]
    y = TRANSPOSED[rank](x, weight, None, steps, 0, 0, n.attribute("group", 1), dilations)
    y = padded(y, [(0, 0), (0, 0), *[(-a, o - b) for (a, b), o in zip(cut, more, strict=True)]])
    return y if bias is None else y + bias.reshape(-1, *[1] * rank)


def max_pool(n: Node) -> Any:
    """The largest number of each window, and its place in x as a whole."""
    x = n.tensor(0)
    w = Windows(n, x, n.required("kernel_shape"))
    low = -float("inf") if x.dtype.is_float else int(np.iinfo(x.dtype.name).min)
    if not n.wants(1):
        if w.rank in MAX:
            padding: Any = [a for a, _ in w.around]
            if w.symmetric and all(2 * a <= k for (a, _), k in zip(w.around, w.kernel, strict=True)):
                return MAX[w.rank](x, w.kernel, w.steps, padding, w.dilations)
            return MAX[w.rank](w.pad(x, low), w.kernel, w.steps, 0, w.dilations)
        return w.of(w.pad(x, low)).amax(w.axes)
    sizes = list(x.shape[2:])
    column = n.attribute("storage_order", 0)
    place = Tensor.arange(int(np.prod(sizes)), device=x.device)
    place = place.reshape(*sizes[::-1]).permute(*range(w.rank)[::-1]) if column else place.reshape(*sizes)
    place = w.of(w.pad(place.reshape(1, 1, *sizes), 0))
    windows = w.of(w.pad(x, low))
    flat = windows.reshape(*windows.shape[:-w.rank], -1)
    index = flat.argmax(-1, keepdim=True)
    place = place.expand(*windows.shape).reshape(*flat.shape).gather(-1, index).squeeze(-1)
    whole = Tensor.arange(x.shape[0] * x.shape[1], device=x.device).reshape(*x.shape[:2], *[1] * w.rank)
    return [flat.amax(-1), (place + whole * int(np.prod(sizes))).cast(dtypes.int64)]


def average_pool(n: Node) -> Tensor:
    """The mean of each window: of the numbers inside, with count_include_pad of the padding too."""
    x = n.tensor(0)
    w = Windows(n, x, n.required("kernel_shape"))
    total = w.of(w.pad(x)).sum(w.axes)
    if n.attribute("count_include_pad", 0) and not any(w.extra):
        return total / int(np.prod(w.kernel))
    if not any(a or b for a, b in w.around) and not any(w.extra):
        return total / int(np.prod(w.kernel))
    ones = Tensor.ones(1, 1, *x.shape[2:], dtype=x.dtype, device=x.device)
    if n.attribute("count_include_pad", 0):
        ones = w.pad(ones, 1, extra=False)
        ones = padded(ones, [(0, 0), (0, 0), *[(0, more) for more in w.extra]])
        return total / w.of(ones).sum(w.axes)
    return total / w.of(w.pad(ones)).sum(w.axes)


def lp_pool(n: Node) -> Tensor:
    """The p-norm of each window."""
    x, p = n.tensor(0), n.attribute("p", 2)
    w = Windows(n, x, n.required("kernel_shape"))
    return w.of(w.pad(x)).norm(p, w.axes)


def over_places(function: Any) -> Operator:
    """The operator that reduces all axes behind the channels."""
    def run(n: Node) -> Tensor:
        x = n.tensor(0)
        return function(n, x, tuple(range(2, x.ndim)))
    return run


def max_unpool(n: Node) -> Tensor:
    """Numbers at the places that max_pool gave, in x as a whole."""
    x, index = n.tensor(0), n.tensor(1)
    kernel = n.required("kernel_shape")
    rank = len(kernel)
    steps, pads = n.attribute("strides", [1] * rank), n.attribute("pads", [0] * (2 * rank))
    sizes = [(x.shape[2 + i] - 1) * steps[i] + kernel[i] - pads[i] - pads[rank + i] for i in range(rank)]
    shape = [*x.shape[:2], *sizes]
    wanted = n.ints(2, "") if n.has(2) else shape
    flat = Tensor.zeros(int(np.prod(shape)), dtype=x.dtype, device=x.device)
    y = flat.scatter(0, index.cast(dtypes.int64).reshape(-1), x.reshape(-1)).reshape(*shape)
    return padded(y, [(0, w - s) for w, s in zip(wanted, shape, strict=True)])


def channels(x: Tensor, per_channel: Tensor) -> Tensor:
    """Numbers per channel as they broadcast to x [N, C, ...]."""
    return per_channel.reshape(-1, *[1] * (x.ndim - 2))


def batch_norm(n: Node) -> Any:
    """Scaled and shifted by running statistics; in training mode by those of the batch, with new running ones."""
    x, scale, bias, mean, var = n.tensors()[:5]
    eps = n.attribute("epsilon", 1e-5)
    if n.attribute("training_mode", 0) and n.opset >= 14:
        axes, m = (0, *range(2, x.ndim)), n.attribute("momentum", 0.9)
        here = x.float()
        new_mean, new_var = here.mean(axes), here.var(axes, correction=0)
        y = (here - channels(x, new_mean)) / (channels(x, new_var) + eps).sqrt()
        y = (y * channels(x, scale) + channels(x, bias)).cast(x.dtype)
        return [y, (mean * m + new_mean * (1 - m)).cast(mean.dtype), (var * m + new_var * (1 - m)).cast(var.dtype)]
    wide, mean, var, scale, bias = [t.cast(x.dtype.compute) for t in (x, mean, var, scale, bias)]
    return F.batch_norm(wide, mean, var, scale, bias, eps=eps).cast(x.dtype)


def normalised(x: Tensor, axes: Any, eps: float) -> Tensor:
    """x less its mean, divided by its deviation, over axes."""
    mean = x.mean(axes, keepdim=True)
    return (x - mean) * ((x - mean).square().mean(axes, keepdim=True) + eps).rsqrt()


def instance_norm(n: Node) -> Tensor:
    """Each channel of each example normalised."""
    x = n.tensor(0)
    y = normalised(x.float(), tuple(range(2, x.ndim)), n.attribute("epsilon", 1e-5))
    return (y * channels(x, n.tensor(1)) + channels(x, n.tensor(2))).cast(x.dtype)


def group_norm(n: Node) -> Tensor:
    """Groups of channels normalised."""
    x, groups, scale, bias = n.tensor(0), n.required("num_groups"), n.tensor(1), n.tensor(2)
    if n.opset < 21:  # one scale per group
        each = x.shape[1] // groups
        scale, bias = scale.repeat_interleave(each), bias.repeat_interleave(each)
    y = x.float().reshape(x.shape[0], groups, -1)
    y = normalised(y, -1, n.attribute("epsilon", 1e-5)).reshape(*x.shape)
    return (y.cast(x.dtype) * channels(x, scale) + channels(x, bias)).cast(x.dtype)


def layer_norm(n: Node) -> Any:
    """The axes from `axis` on normalised; also the mean and the inverse deviation."""
    x = n.tensor(0)
    axis, eps = n.attribute("axis", -1) % x.ndim, n.attribute("epsilon", 1e-5)
    axes = tuple(range(axis, x.ndim))
    wide = x.float() if x.dtype.bits < 32 else x
    mean = wide.mean(axes, keepdim=True)
    inverse = ((wide - mean).square().mean(axes, keepdim=True) + eps).rsqrt()
    y = ((wide - mean) * inverse).cast(x.dtype) * n.tensor(1)
    return [y + n.tensor(2) if n.has(2) else y, mean, inverse]


def rms_norm(n: Node) -> Tensor:
    """The axes from `axis` on divided by their root mean square."""
    x = n.tensor(0)
    axes = tuple(range(n.attribute("axis", -1) % x.ndim, x.ndim))
    wide = x.float() if x.dtype.bits < 32 else x
    y = wide * (wide.square().mean(axes, keepdim=True) + n.attribute("epsilon", 1e-5)).rsqrt()
    return y.cast(x.dtype) * n.tensor(1)


def lp_normalization(n: Node) -> Tensor:
    """An axis divided by its norm."""
    x, axis = n.tensor(0), n.attribute("axis", -1)
    norm = x.norm(n.attribute("p", 2), axis, keepdim=True)
    return (norm == 0).where(0, x / (norm == 0).where(1, norm))


def local_response(n: Node) -> Tensor:
    """Divided by the sum of squares of the channels around."""
    x, size = n.tensor(0), n.required("size")
    before = (size - 1) // 2
    squares = padded(x.square(), [(0, 0), (before, size - 1 - before)] + [(0, 0)] * (x.ndim - 2))
    total = squares.unfold(1, size, 1).sum(-1)
    return x / (n.attribute("bias", 1.0) + n.attribute("alpha", 1e-4) / size * total) ** n.attribute("beta", 0.75)


def mean_variance(n: Node) -> Tensor:
    """Normalised over axes."""
    x, axes = n.tensor(0), tuple(n.attribute("axes", [0, 2, 3]))
    mean = x.mean(axes, keepdim=True)
    return (x - mean) / ((x - mean).square().mean(axes, keepdim=True).sqrt() + 1e-9)


def col2im(n: Node) -> Tensor:
    """Sums columns into the image that they came from."""
    x, image, block = n.tensor(0), n.ints(1, ""), n.ints(2, "")
    rank = len(block)
    steps, dilations = n.attribute("strides", [1] * rank), n.attribute("dilations", [1] * rank)
    pads = n.attribute("pads", [0] * (2 * rank))
    full = [s + pads[i] + pads[rank + i] for i, s in enumerate(image)]
    counts = [(full[i] - (block[i] - 1) * dilations[i] - 1) // steps[i] + 1 for i in range(rank)]
    place: Any = np.zeros((1,), np.int64)
    for i in range(rank):  # [block..., counts...] -> the place in the padded image
        one = np.arange(block[i])[:, None] * dilations[i] + np.arange(counts[i])[None] * steps[i]
        rows, columns = place.shape[0], place.size // place.shape[0]
        place = place.reshape(rows, 1, columns, 1) * full[i] + one[None, :, None, :]
        place = place.reshape(rows * block[i], columns * counts[i])
    N, C = x.shape[0], x.shape[1] // int(np.prod(block))
    flat = Tensor.zeros(N, C, int(np.prod(full)), dtype=x.dtype, device=x.device)
    index = Tensor(place.reshape(1, 1, -1), device=x.device).expand(N, C, place.size)
    y = flat.scatter_reduce(2, index, x.reshape(N, C, -1), "sum").reshape(N, C, *full)
    return padded(y, [(0, 0), (0, 0), *[(-pads[i], -pads[rank + i]) for i in range(rank)]])


def global_lp(n: Node, x: Tensor, axes: tuple[int, ...]) -> Tensor:
    """The p-norm over all places."""
    return x.norm(n.attribute("p", 2), axes, keepdim=True)


TABLE: dict[str, Operator] = {
    "MatMul": lambda n: n.tensor(0) @ n.tensor(1), "Gemm": gemm, "Det": lambda n: n.tensor(0).det(),
    "Einsum": lambda n: Tensor.einsum(n.required("equation").replace(" ", ""), *n.tensors()),
    "Conv": convolution, "ConvTranspose": transposed, "MaxPool": max_pool, "AveragePool": average_pool,
    "LpPool": lp_pool, "MaxUnpool": max_unpool, "Col2Im": col2im,
    "GlobalAveragePool": over_places(lambda n, x, axes: x.mean(axes, keepdim=True)),
    "GlobalMaxPool": over_places(lambda n, x, axes: x.amax(axes, keepdim=True)),
    "GlobalLpPool": over_places(global_lp),
    "BatchNormalization": batch_norm, "InstanceNormalization": instance_norm, "GroupNormalization": group_norm,
    "LayerNormalization": layer_norm, "RMSNormalization": rms_norm, "LpNormalization": lp_normalization,
    "LRN": local_response, "MeanVarianceNormalization": mean_variance,
}
