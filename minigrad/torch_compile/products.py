"""Products, convolutions, pools, resampling and attention, with their gradients."""
from __future__ import annotations

from typing import Any

import minigrad.nn.functional as F
from minigrad import Tensor
from minigrad.torch_compile.node import Node, Operator, Unsupported

CONV = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
TRANSPOSED = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}
MAX = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}
AVERAGE = {1: F.avg_pool1d, 2: F.avg_pool2d, 3: F.avg_pool3d}
ADAPTIVE = {1: F.adaptive_avg_pool1d, 2: F.adaptive_avg_pool2d, 3: F.adaptive_avg_pool3d}


def scaled(x: Tensor, factor: Any) -> Tensor:
    """factor * x, x itself for 1."""
    return x if factor == 1 else x * factor


def matmul(n: Node, x: Tensor, y: Tensor) -> Tensor:
    """The product of matrices."""
    return n.typed(x) @ n.typed(y)


def addmm(n: Node, bias: Tensor, x: Tensor, y: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Tensor:
    """beta * bias + alpha * (x @ y)."""
    product = scaled(matmul(n, x, y), alpha)
    return product if beta == 0 else product + scaled(n.typed(bias), beta)


def convolution(n: Node, x: Tensor, weight: Tensor, bias: Tensor | None, stride: list[int], padding: list[int],
                dilation: list[int], transposed: bool, more: list[int], groups: int) -> Tensor:
    """x [N, C, ...] with kernels [M, C / groups, ...], or transposed with kernels [C, M / groups, ...]."""
    rank = x.ndim - 2
    if rank not in CONV:
        raise Unsupported(f"a convolution over {rank} axes")
    stride, padding, dilation, more = (_each(v, rank) for v in (stride, padding, dilation, more))
    if transposed:
        return TRANSPOSED[rank](x, weight, bias, stride, padding, more, groups, dilation)
    return CONV[rank](x, weight, bias, stride, padding, dilation, groups)


def _each(values: list[int], rank: int) -> list[int]:
    return list(values) * rank if len(values) == 1 else list(values)


def convolution_backward(n: Node, gradient: Tensor, x: Tensor, weight: Tensor, bias_sizes: Any, stride: list[int],
                         padding: list[int], dilation: list[int], transposed: bool, more: list[int], groups: int,
                         wanted: list[bool]) -> list[Tensor | None]:
    """The gradients of `convolution` in x, the kernels and the bias: those that are wanted."""
    targets = [t for t, want in zip((x, weight), wanted, strict=False) if want]
    found: list[Any] = []
    if targets:
        y = convolution(n, x, weight, None, stride, padding, dilation, transposed, more, groups)
        found = y.gradient(*targets, gradient=gradient)
    of_x = found.pop(0) if wanted[0] else None
    of_weight = found.pop(0) if wanted[1] else None
    return [of_x, of_weight, gradient.sum((0, *range(2, x.ndim))) if wanted[2] else None]


def max_pool(rank: int) -> Operator:
    """The operator that gives the largest number of each window and its place in the last axes."""
    def run(n: Node, x: Tensor, kernel: list[int], stride: list[int] | None = None, padding: Any = (0,),
            dilation: Any = (1,), ceil: bool = False) -> Any:
        args = (_each(kernel, rank), _each(stride or kernel, rank), _each(padding, rank), _each(dilation, rank), ceil)
        return [MAX[rank](x, *args), MAX[rank](x, *args, return_indices=True)[1]]
    return run


def max_pool_backward(rank: int) -> Operator:
    """The operator that adds the gradients of windows up at the places of their largest numbers."""
    def run(n: Node, gradient: Tensor, x: Tensor, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil: bool,
            places: Tensor) -> Tensor:
        outer = x.shape[:-rank]
        flat = x.zeros_like().reshape(*outer, -1)
        return flat.scatter_add(-1, places.reshape(*outer, -1), gradient.reshape(*outer, -1)).reshape(*x.shape)
    return run


def average_pool(rank: int) -> Operator:
    """The operator that gives the mean of each window."""
    def run(n: Node, x: Tensor, kernel: list[int], stride: list[int] | None = None, padding: Any = (0,),
            ceil: bool = False, pads: bool = True, divisor: int | None = None) -> Tensor:
        args = (_each(kernel, rank), _each(stride or kernel, rank), _each(padding, rank), ceil, pads)
        return AVERAGE[rank](x, *args) if divisor is None else AVERAGE[rank](x, *args, divisor)
    return run


def backward(operator: Operator) -> Operator:
    """The operator whose arguments are a gradient and those of `operator`, and which gives the gradient in the first
    of these."""
    return lambda n, gradient, x, *args: operator(n, x, *args).gradient(x, gradient=gradient)[0]


def adaptive(rank: int) -> Operator:
    """The operator that gives means of windows that divide the last axes evenly."""
    return lambda n, x, sizes: ADAPTIVE[rank](x, sizes)


def adaptive_backward(rank: int) -> Operator:
    """The operator that gives the gradient of `adaptive`."""
    return lambda n, gradient, x: ADAPTIVE[rank](x, list(gradient.shape[-rank:])).gradient(x, gradient=gradient)[0]


def _resampled(x: Tensor, sizes: Any, scales: Any, mode: str, aligned: bool | None) -> Tensor:
    if sizes is None or any(s is not None for s in scales or ()):
        kept = x.shape[2:] if sizes is None else sizes
        return F.interpolate(x, scale_factor=[s if s is not None else 1.0 * o / i for s, o, i in zip(
            scales, kept, x.shape[2:], strict=True)], mode=mode, align_corners=aligned)
    return F.interpolate(x, list(sizes), mode=mode, align_corners=aligned)


def resampling(mode: str) -> Operator:
    """The operator that resamples x [N, C, ...] by a mode of F.interpolate; overload vec has all scales in a list."""
    def run(n: Node, x: Tensor, sizes: Any, *args: Any) -> Tensor:
        aligned, scales = (None, args) if mode.startswith("nearest") else (args[0], args[1:])
        scales = tuple(scales[0] if len(scales) == 1 and isinstance(scales[0], (list, tuple)) else scales)
        return _resampled(x, sizes, scales, mode, aligned)
    return run


def resampling_backward(mode: str) -> Operator:
    """The operator that gives the gradient of `resampling`, by the shape of x."""
    def run(n: Node, gradient: Tensor, sizes: Any, shape: list[int], *args: Any) -> Tensor:
        x = Tensor.empty(*shape, dtype=gradient.dtype, device=gradient.device)
        return resampling(mode)(n, x, sizes, *args).gradient(x, gradient=gradient)[0]
    return run


def attention(n: Node, q: Tensor, k: Tensor, v: Tensor, p: float = 0.0, causal: bool = False, *,
              attn_mask: Tensor | None = None, scale: float | None = None) -> list[Tensor]:
    """Attention of heads [B, H, T, E]. The second result, the logarithms of sums that torch's gradient reads, is zeros,
    as `attention_backward` needs none."""
    if p:
        raise Unsupported("dropout in attention")
    y = q.scaled_dot_product_attention(k, v, attn_mask, is_causal=causal, scale=scale)
    return [y, n.full(q.shape[:-1], 0)]


def attention_backward(n: Node, gradient: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Any, sums: Any, p: float,
                       causal: bool, *, attn_mask: Tensor | None = None, scale: float | None = None) -> list[Tensor]:
    """The gradients of `attention`."""
    y, _ = attention(n, q, k, v, p, causal, attn_mask=attn_mask, scale=scale)
    return y.gradient(q, k, v, gradient=gradient)


def encoder_layer(n: Node, x: Tensor, dim: int, heads: int, qkv: Tensor, qkv_bias: Tensor, out: Tensor,
                  out_bias: Tensor, gelu: bool, norm_first: bool, eps: float, norm1: Tensor, bias1: Tensor,
                  norm2: Tensor, bias2: Tensor, up: Tensor, up_bias: Tensor, down: Tensor, down_bias: Tensor,
                  mask: Tensor | None = None, mask_type: int | None = None) -> Tensor:
    """nn.TransformerEncoderLayer as torch runs it for inference."""
    if mask is not None:
        raise Unsupported("a mask")

    def attended(y: Tensor) -> Tensor:
        parts = F.linear(y, qkv, qkv_bias).chunk(3, -1)
        q, k, v = (t.reshape(*x.shape[:2], heads, dim // heads).transpose(1, 2) for t in parts)
        return F.linear(q.scaled_dot_product_attention(k, v).transpose(1, 2).reshape(*x.shape), out, out_bias)

    def fed(y: Tensor) -> Tensor:
        y = F.linear(y, up, up_bias)
        return F.linear(y.gelu("none") if gelu else y.relu(), down, down_bias)

    if norm_first:
        x = x + attended(F.layer_norm(x, (dim,), norm1, bias1, eps))
        return x + fed(F.layer_norm(x, (dim,), norm2, bias2, eps))
    x = F.layer_norm(x + attended(x), (dim,), norm1, bias1, eps)
    return F.layer_norm(x + fed(x), (dim,), norm2, bias2, eps)


MODES = ("bilinear", "zeros"), ("nearest", "border"), ("bicubic", "reflection")


def grid_sample(n: Node, x: Tensor, grid: Tensor, mode: int, padding: int, aligned: bool) -> Tensor:
    """x at places between -1 and 1."""
    return F.grid_sample(x, grid, MODES[mode][0], MODES[padding][1], aligned)


RESAMPLED = {"nearest1d": "nearest", "nearest2d": "nearest", "nearest3d": "nearest", "linear1d": "linear",
             "bilinear2d": "bilinear", "trilinear3d": "trilinear", "bicubic2d": "bicubic"}
TABLE: dict[str, Operator] = {
    "mm": matmul, "bmm": matmul, "mv": matmul, "dot": matmul, "addmm": addmm, "baddbmm": addmm,
    "convolution": convolution, "convolution_backward": convolution_backward,
    "max_pool2d_with_indices": max_pool(2), "max_pool3d_with_indices": max_pool(3),
    "max_pool2d_with_indices_backward": max_pool_backward(2), "max_pool3d_with_indices_backward": max_pool_backward(3),
    "avg_pool1d": average_pool(1), "avg_pool2d": average_pool(2), "avg_pool3d": average_pool(3),
    "avg_pool2d_backward": backward(average_pool(2)), "avg_pool3d_backward": backward(average_pool(3)),
    "_adaptive_avg_pool2d": adaptive(2), "_adaptive_avg_pool3d": adaptive(3),
    "_adaptive_avg_pool2d_backward": adaptive_backward(2), "_adaptive_avg_pool3d_backward": adaptive_backward(3),
    **{f"upsample_{name}": resampling(mode) for name, mode in RESAMPLED.items()},
    **{f"upsample_{name}_backward": resampling_backward(mode) for name, mode in RESAMPLED.items()},
    "grid_sampler_2d": grid_sample, "_transformer_encoder_layer_fwd": encoder_layer,
    "_scaled_dot_product_flash_attention_for_cpu": attention,
    "_scaled_dot_product_flash_attention_for_cpu_backward": attention_backward,
}
UNREAD = {"_scaled_dot_product_flash_attention_for_cpu_backward": (4, 5)}
"""Arguments of operators that their expressions never read, so that nothing keeps them from the forward pass."""
