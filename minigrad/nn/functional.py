"""PyTorch's `torch.nn.functional`: its names, order of arguments and defaults, over the methods of `Tensor`.

    from minigrad.nn import functional as F

The losses take `reduction` and what follows it by name. `training` of dropout and batch norm is an argument here, as it
is in PyTorch, and does not look at `Tensor.train()`.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from minigrad.errors import ShapeError
from minigrad.mixins.base import as_count, as_tensor
from minigrad.mixins.linalg import per_axis
from minigrad.nn.bags import embedding_bag as embedding_bag
from minigrad.nn.distance import bilinear as bilinear
from minigrad.nn.fractional import fractional_max_pool2d as fractional_max_pool2d
from minigrad.nn.fractional import fractional_max_pool3d as fractional_max_pool3d
from minigrad.nn.label_losses import triplet_margin_with_distance_loss as triplet_margin_with_distance_loss
from minigrad.nn.noise import alpha_dropout as alpha_dropout
from minigrad.nn.noise import dropout as dropout
from minigrad.nn.noise import dropout1d as dropout1d
from minigrad.nn.noise import dropout2d as dropout2d
from minigrad.nn.noise import dropout3d as dropout3d
from minigrad.nn.noise import feature_alpha_dropout as feature_alpha_dropout
from minigrad.nn.noise import rrelu as rrelu
from minigrad.nn.norm import local_response_norm as local_response_norm
from minigrad.nn.pool import lp_pool1d as lp_pool1d
from minigrad.nn.pool import lp_pool2d as lp_pool2d
from minigrad.nn.pool import lp_pool3d as lp_pool3d
from minigrad.tensor import Tensor

Sizes = int | Sequence[int]


def _activation(name: str) -> Callable[..., Tensor]:
    """The method `name`, whose result `x` itself gets with `inplace`."""
    def function(input: Tensor, *args: Any, inplace: bool = False, **options: Any) -> Tensor:
        return as_tensor(name, input)._result(name, getattr(input, name)(*args, **options), inplace)

    function.__name__ = name
    function.__doc__ = getattr(Tensor, name).__doc__
    return function


def _plain_activation(name: str) -> Callable[..., Tensor]:
    """`_activation` of a method without arguments."""
    def function(input: Tensor, inplace: bool = False) -> Tensor:
        return as_tensor(name, input)._result(name, getattr(input, name)(), inplace)

    function.__name__ = name
    function.__doc__ = getattr(Tensor, name).__doc__
    return function


# Activations

relu, relu6, selu, silu = (_plain_activation(n) for n in ("relu", "relu6", "selu", "silu"))
mish, hardswish, hardsigmoid = (_plain_activation(n) for n in ("mish", "hardswish", "hardsigmoid"))
elu, celu, hardtanh, threshold = (_activation(n) for n in ("elu", "celu", "hardtanh", "threshold"))
sigmoid, tanh, logsigmoid, softsign, tanhshrink = (
    Tensor.sigmoid, Tensor.tanh, Tensor.logsigmoid, Tensor.softsign, Tensor.tanhshrink)
glu, prelu, hardshrink, softshrink = Tensor.glu, Tensor.prelu, Tensor.hardshrink, Tensor.softshrink


def leaky_relu(input: Tensor, negative_slope: float = 0.01, inplace: bool = False) -> Tensor:
    """x where positive, else negative_slope * x."""
    return input._result("leaky_relu", input.leaky_relu(negative_slope), inplace)


def gelu(input: Tensor, approximate: str = "none") -> Tensor:
    """x * P(normal <= x): exact, or the 'tanh' approximation."""
    return input.gelu(approximate)


def softplus(input: Tensor, beta: float = 1.0, threshold: float = 20.0) -> Tensor:
    """log(1 + exp(beta*x)) / beta, x itself where beta*x is above the threshold."""
    return input.softplus(beta, threshold)


def softmax(input: Tensor, dim: int, dtype: Any = None) -> Tensor:
    """exp(x) / sum(exp(x)) along an axis."""
    return input.softmax(dim, dtype)


def log_softmax(input: Tensor, dim: int, dtype: Any = None) -> Tensor:
    """log(softmax(x)) along an axis."""
    return input.log_softmax(dim, dtype)


def softmin(input: Tensor, dim: int, dtype: Any = None) -> Tensor:
    """softmax(-x) along an axis."""
    return input.softmin(dim, dtype)


gumbel_softmax = Tensor.gumbel_softmax


def _in_place(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def changing(input: Tensor, *args: Any, **options: Any) -> Tensor:
        return function(input, *args, inplace=True, **options)

    changing.__name__ = f"{function.__name__}_"
    changing.__doc__ = f"`{function.__name__}`, whose result `input` itself gets."
    return changing


relu_, selu_, elu_, celu_ = (_in_place(f) for f in (relu, selu, elu, celu))
leaky_relu_, hardtanh_, threshold_, rrelu_ = (_in_place(f) for f in (leaky_relu, hardtanh, threshold, rrelu))

# Products


def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x @ weight.T + bias, for a weight [out, in] (or [in])."""
    weight = as_tensor("linear", weight)
    return input.linear(weight.transpose(), bias) if weight.ndim == 2 else input.dot(weight) + (
        0 if bias is None else bias)


def embedding(input: Tensor, weight: Tensor, padding_idx: int | None = None, *, sparse: bool = False) -> Tensor:
    """Rows of a table [V, D]; the row `padding_idx` gets no gradient."""
    found = as_tensor("embedding", weight).embedding(input)
    if padding_idx is None:
        return found
    row = weight._position("embedding", padding_idx, 0)
    return input.eq(row).unsqueeze(-1).where(found.detach(), found)


def one_hot(tensor: Tensor, num_classes: int = -1) -> Tensor:
    """A new last axis with 1 at each class; -1: as many as the largest says, which is read."""
    return tensor.one_hot(None if num_classes == -1 else num_classes)


scaled_dot_product_attention = Tensor.scaled_dot_product_attention


def _conv(axes: int) -> Callable[..., Tensor]:
    def conv(input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Sizes = 1, padding: Any = 0,
             dilation: Sizes = 1, groups: int = 1) -> Tensor:
        """Cross-correlation of x [N, C, ...] with a weight [out, C / groups, *kernel]; `padding` is one integer, one
        per axis, 'valid' or 'same'."""
        name = f"conv{axes}d"
        _check_axes(name, input, weight, axes)
        if isinstance(padding, str):
            kernel: Any = weight.shape[2:]
            reach = [d * (k - 1) for d, k in zip(per_axis(name, dilation, axes), kernel, strict=True)]
            if padding not in ("same", "valid") or (padding == "same" and set(per_axis(name, stride, axes)) != {1}):
                raise ShapeError(f"[{name}] expected padding as an integer, one per axis, 'valid', or 'same' with "
                                 f"stride 1, got {padding!r} with stride {stride}")
            padding = [p for r in reach[::-1] for p in (r // 2, r - r // 2)] if padding == "same" else 0
        else:
            padding = [p for size in per_axis(name, padding, axes)[::-1] for p in (size, size)]
        return input.conv2d(weight, bias, groups, stride, dilation, padding)

    conv.__name__ = f"conv{axes}d"
    return conv


def _conv_transpose(axes: int) -> Callable[..., Tensor]:
    def conv_transpose(input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Sizes = 1,
                       padding: Sizes = 0, output_padding: Sizes = 0, groups: int = 1, dilation: Sizes = 1) -> Tensor:
        """The gradient of a convolution by its input: x [N, C, ...], weight [C, out / groups, *kernel]."""
        name = f"conv_transpose{axes}d"
        _check_axes(name, input, weight, axes)
        pads = [p for size in per_axis(name, padding, axes)[::-1] for p in (size, size)]
        return input.conv_transpose2d(weight, bias, groups, stride, dilation, pads, output_padding)

    conv_transpose.__name__ = f"conv_transpose{axes}d"
    return conv_transpose


def _check_axes(name: str, x: Tensor, weight: Tensor, axes: int) -> None:
    if as_tensor(name, x).ndim != axes + 2 or as_tensor(name, weight).ndim != axes + 2:
        raise ShapeError(f"[{name}] expected x and weight of {axes + 2} axes, got {list(x.shape)} and "
                         f"{list(weight.shape)}")


conv1d, conv2d, conv3d = (_conv(n) for n in (1, 2, 3))
conv_transpose1d, conv_transpose2d, conv_transpose3d = (_conv_transpose(n) for n in (1, 2, 3))


def unfold(input: Tensor, kernel_size: Sizes, dilation: Sizes = 1, padding: Sizes = 0, stride: Sizes = 1) -> Tensor:
    """Windows of images [N, C, H, W] as columns [N, C * prod(kernel), L]: `Tensor.im2col`."""
    return input.im2col(kernel_size, dilation, padding, stride)


def fold(input: Tensor, output_size: Sizes, kernel_size: Sizes, dilation: Sizes = 1, padding: Sizes = 0,
         stride: Sizes = 1) -> Tensor:
    """Columns added where they came from: `Tensor.col2im`."""
    return input.col2im(output_size, kernel_size, dilation, padding, stride)


# Pooling


def _max_pool(axes: int) -> Callable[..., Any]:
    def max_pool(input: Tensor, kernel_size: Sizes, stride: Sizes | None = None, padding: Sizes = 0,
                 dilation: Sizes = 1, ceil_mode: bool = False, return_indices: bool = False) -> Any:
        """The largest element of each window of the last axes; see `Tensor.max_pool2d`."""
        name = f"max_pool{axes}d"
        return input.max_pool2d(per_axis(name, kernel_size, axes), stride, dilation, per_axis(name, padding, axes),
                                ceil_mode, return_indices)

    max_pool.__name__ = f"max_pool{axes}d"
    return max_pool


def _avg_pool(axes: int) -> Callable[..., Tensor]:
    def avg_pool(input: Tensor, kernel_size: Sizes, stride: Sizes | None = None, padding: Sizes = 0,
                 ceil_mode: bool = False, count_include_pad: bool = True) -> Tensor:
        """The mean of each window of the last axes; see `Tensor.avg_pool2d`."""
        name = f"avg_pool{axes}d"
        return input.avg_pool2d(per_axis(name, kernel_size, axes), stride, 1, per_axis(name, padding, axes),
                                count_include_pad, ceil_mode)

    avg_pool.__name__ = f"avg_pool{axes}d"
    return avg_pool


def _adaptive(kind: str, axes: int) -> Callable[..., Tensor]:
    def adaptive_pool(input: Tensor, output_size: Any) -> Tensor:
        """As many windows of the last axes as `output_size` says; None keeps an axis."""
        sizes = tuple(output_size) if isinstance(output_size, (tuple, list)) else (output_size,) * axes
        return getattr(input, f"adaptive_{kind}_pool2d")(sizes)

    adaptive_pool.__name__ = f"adaptive_{kind}_pool{axes}d"
    return adaptive_pool


max_pool1d, max_pool2d, max_pool3d = (_max_pool(n) for n in (1, 2, 3))
avg_pool1d, avg_pool2d, avg_pool3d = (_avg_pool(n) for n in (1, 2, 3))
adaptive_avg_pool1d, adaptive_avg_pool2d, adaptive_avg_pool3d = (_adaptive("avg", n) for n in (1, 2, 3))
adaptive_max_pool1d, adaptive_max_pool2d, adaptive_max_pool3d = (_adaptive("max", n) for n in (1, 2, 3))


def _max_unpool(axes: int) -> Callable[..., Tensor]:
    def max_unpool(input: Tensor, indices: Tensor, kernel_size: Sizes, stride: Sizes | None = None,
                   padding: Sizes = 0, output_size: Sequence[int] | None = None) -> Tensor:
        """The elements of max pooling with return_indices put where they were; see `Tensor.max_unpool2d`."""
        name = f"max_unpool{axes}d"
        return input.max_unpool2d(indices, per_axis(name, kernel_size, axes), stride, per_axis(name, padding, axes),
                                  output_size)

    max_unpool.__name__ = f"max_unpool{axes}d"
    return max_unpool


max_unpool1d, max_unpool2d, max_unpool3d = (_max_unpool(n) for n in (1, 2, 3))


def interpolate(input: Tensor, size: Any = None, scale_factor: Any = None, mode: str = "nearest",
                align_corners: bool | None = None) -> Tensor:
    """The last axes resampled; see `Tensor.interpolate`."""
    return input.interpolate(size, mode, bool(align_corners), scale_factor=scale_factor)


upsample = interpolate


def grid_sample(input: Tensor, grid: Tensor, mode: str = "bilinear", padding_mode: str = "zeros",
                align_corners: bool | None = None) -> Tensor:
    """x [N, C, H, W] at the places `grid` [N, A, B, 2]; see `Tensor.grid_sample`."""
    return input.grid_sample(grid, mode, padding_mode, bool(align_corners))


affine_grid = Tensor.affine_grid
pixel_shuffle, pixel_unshuffle, channel_shuffle = Tensor.pixel_shuffle, Tensor.pixel_unshuffle, Tensor.channel_shuffle


def pad(input: Tensor, pad: Sequence[int], mode: str = "constant", value: float | None = None) -> Tensor:
    """Elements around the last axes: (left, right, top, bottom, ...); see `Tensor.pad`."""
    return input.pad(pad, mode, 0.0 if value is None else value)


# Norms


def batch_norm(input: Tensor, running_mean: Tensor | None, running_var: Tensor | None, weight: Tensor | None = None,
               bias: Tensor | None = None, training: bool = False, momentum: float = 0.1, eps: float = 1e-5) -> Tensor:
    """(x - mean) / sqrt(var + eps) * weight + bias per channel of [N, C, ...]: of the batch's statistics in training,
    which move the running ones by `momentum`, else of the running ones."""
    if not training:
        mean, var = as_tensor("batch_norm", running_mean), as_tensor("batch_norm", running_var)
        return input.batchnorm(weight, bias, mean, (var + eps).rsqrt())
    y, mean, var = input.batchnorm_train(weight, bias, eps, correction=1)
    for kept, found in ((running_mean, mean), (running_var, var)):
        if kept is not None:
            kept.assign(kept.moved(found, momentum))
    return y


def layer_norm(input: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None,
               bias: Tensor | None = None, eps: float = 1e-5) -> Tensor:
    """(x - mean) / sqrt(var + eps) * weight + bias over the last axes, which are `normalized_shape`."""
    y = input.layernorm(_last_axes("layer_norm", input, normalized_shape), eps)
    y = y if weight is None else y * weight
    return y if bias is None else y + bias


def rms_norm(input: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None,
             eps: float | None = None) -> Tensor:
    """x / sqrt(mean(x*x) + eps) * weight over the last axes; `eps` is the type's unless told."""
    least = {"float64": 2.0**-52, "float16": 2.0**-10, "bfloat16": 2.0**-7}.get(input.dtype.name, 2.0**-23)
    y = input.rms_norm(_last_axes("rms_norm", input, normalized_shape), least if eps is None else eps)
    return y if weight is None else y * weight


def group_norm(input: Tensor, num_groups: int, weight: Tensor | None = None, bias: Tensor | None = None,
               eps: float = 1e-5) -> Tensor:
    """`layer_norm` over each of `num_groups` groups of channels of [N, C, ...] and all positions."""
    groups = as_count("group_norm", "num_groups", num_groups, 1)
    if input.ndim < 2 or input.shape[1] % groups != 0:  # type: ignore[operator]
        raise ShapeError(f"[group_norm] expected [N, C * {groups}, ...], got {list(input.shape)}")
    y = input.reshape(input.shape[0], groups, -1).layernorm(-1, eps).reshape(*input.shape)
    shape = (1, -1, *[1] * (input.ndim - 2))
    y = y if weight is None else y * weight.reshape(*shape)
    return y if bias is None else y + bias.reshape(*shape)


def instance_norm(input: Tensor, running_mean: Tensor | None = None, running_var: Tensor | None = None,
                  weight: Tensor | None = None, bias: Tensor | None = None, use_input_stats: bool = True,
                  momentum: float = 0.1, eps: float = 1e-5) -> Tensor:
    """`group_norm` with a group per channel, or by running statistics without `use_input_stats`."""
    if not use_input_stats:
        return batch_norm(input, running_mean, running_var, weight, bias, False, momentum, eps)
    seen = input.detach().flatten(2)
    for kept, found in ((running_mean, seen.mean((0, 2))), (running_var, seen.var(2).mean(0))):
        if kept is not None:
            kept.assign(kept.moved(found, momentum))
    return group_norm(input, int(input.shape[1]), weight, bias, eps)  # type: ignore[arg-type]


def _last_axes(name: str, x: Tensor, shape: Sequence[int]) -> tuple[int, ...]:
    if tuple(x.shape[x.ndim - len(shape):]) != tuple(shape) or len(shape) > x.ndim:
        raise ShapeError(f"[{name}] expected [..., {', '.join(map(str, shape))}], got {list(x.shape)}")
    return tuple(range(-len(shape), 0))


def normalize(input: Tensor, p: float = 2.0, dim: int = 1, eps: float = 1e-12) -> Tensor:
    """x over its p-norm along an axis, which is no less than `eps`."""
    return input.normalize(p, dim, eps)


cosine_similarity, pairwise_distance, pdist = Tensor.cosine_similarity, Tensor.pairwise_distance, Tensor.pdist

# Losses


def cross_entropy(input: Tensor, target: Tensor, weight: Tensor | None = None, *, ignore_index: int = -100,
                  reduction: str = "mean", label_smoothing: float = 0.0) -> Tensor:
    """Of logits [N, C, ...] with class indices [N, ...] or probabilities; see `Tensor.cross_entropy`."""
    return input.cross_entropy(target, reduction, label_smoothing, ignore_index, weight)


def nll_loss(input: Tensor, target: Tensor, weight: Tensor | None = None, *, ignore_index: int = -100,
             reduction: str = "mean") -> Tensor:
    """Negative log likelihood of log-probabilities [N, C, ...] and class indices [N, ...]."""
    return input.nll_loss(target, reduction, weight, ignore_index)


def binary_cross_entropy(input: Tensor, target: Tensor, weight: Tensor | None = None, *,
                         reduction: str = "mean") -> Tensor:
    """Of probabilities with targets in 0..1."""
    return input.binary_cross_entropy(target, reduction, weight)


def binary_cross_entropy_with_logits(input: Tensor, target: Tensor, weight: Tensor | None = None, *,
                                     reduction: str = "mean", pos_weight: Tensor | None = None) -> Tensor:
    """Of logits with targets in 0..1."""
    return input.binary_cross_entropy_with_logits(target, reduction, weight, pos_weight)


def _loss(name: str, *options: str) -> Callable[..., Tensor]:
    """The method `name` of predictions and targets; `options` of it, besides `reduction`, are given by name."""
    def loss(input: Tensor, *targets: Any, reduction: str = "mean", **given: Any) -> Tensor:
        unknown = [n for n in given if n not in options]
        if unknown:
            raise TypeError(f"{name}() expected {', '.join(['reduction', *options])} by name, got {unknown[0]!r}")
        return getattr(as_tensor(name, input), name)(*targets, reduction=reduction, **given)

    loss.__name__ = name
    loss.__doc__ = getattr(Tensor, name).__doc__
    return loss


mse_loss, l1_loss, soft_margin_loss = _loss("mse_loss"), _loss("l1_loss"), _loss("soft_margin_loss")
smooth_l1_loss, huber_loss = _loss("smooth_l1_loss", "beta"), _loss("huber_loss", "delta")
kl_div, gaussian_nll_loss = _loss("kl_div", "log_target"), _loss("gaussian_nll_loss", "full", "eps")
poisson_nll_loss = _loss("poisson_nll_loss", "log_input", "full", "eps")
margin_ranking_loss, hinge_embedding_loss = _loss("margin_ranking_loss", "margin"), _loss(
    "hinge_embedding_loss", "margin")
cosine_embedding_loss = _loss("cosine_embedding_loss", "margin")
triplet_margin_loss = _loss("triplet_margin_loss", "margin", "p", "eps", "swap")
ctc_loss, multi_margin_loss = Tensor.ctc_loss, Tensor.multi_margin_loss
multilabel_margin_loss, multilabel_soft_margin_loss = _loss("multilabel_margin_loss"), _loss(
    "multilabel_soft_margin_loss", "weight")
