"""PyTorch's `torch.nn.functional`: its names, order of arguments and defaults, over the methods of `Tensor`.

    from minigrad.nn import functional as F

`training` of dropout and batch norm is an argument here, as it
is in PyTorch, and does not look at `Tensor.train()`.
"""
from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

from minigrad.errors import ShapeError
from minigrad.mixins.base import as_tensor
from minigrad.mixins.inplace import result_of
from minigrad.mixins.linalg import projected
from minigrad.nn.bags import embedding_bag as embedding_bag
from minigrad.nn.distance import bilinear as bilinear
from minigrad.nn.fractional import fractional_max_pool2d as fractional_max_pool2d
from minigrad.nn.fractional import fractional_max_pool3d as fractional_max_pool3d
from minigrad.nn.functional_losses import binary_cross_entropy as binary_cross_entropy
from minigrad.nn.functional_losses import binary_cross_entropy_with_logits as binary_cross_entropy_with_logits
from minigrad.nn.functional_losses import cosine_embedding_loss as cosine_embedding_loss
from minigrad.nn.functional_losses import cross_entropy as cross_entropy
from minigrad.nn.functional_losses import ctc_loss as ctc_loss
from minigrad.nn.functional_losses import gaussian_nll_loss as gaussian_nll_loss
from minigrad.nn.functional_losses import hinge_embedding_loss as hinge_embedding_loss
from minigrad.nn.functional_losses import huber_loss as huber_loss
from minigrad.nn.functional_losses import kl_div as kl_div
from minigrad.nn.functional_losses import l1_loss as l1_loss
from minigrad.nn.functional_losses import margin_ranking_loss as margin_ranking_loss
from minigrad.nn.functional_losses import mse_loss as mse_loss
from minigrad.nn.functional_losses import multi_margin_loss as multi_margin_loss
from minigrad.nn.functional_losses import multilabel_margin_loss as multilabel_margin_loss
from minigrad.nn.functional_losses import multilabel_soft_margin_loss as multilabel_soft_margin_loss
from minigrad.nn.functional_losses import nll_loss as nll_loss
from minigrad.nn.functional_losses import poisson_nll_loss as poisson_nll_loss
from minigrad.nn.functional_losses import smooth_l1_loss as smooth_l1_loss
from minigrad.nn.functional_losses import soft_margin_loss as soft_margin_loss
from minigrad.nn.functional_losses import triplet_margin_loss as triplet_margin_loss
from minigrad.nn.label_losses import triplet_margin_with_distance_loss as triplet_margin_with_distance_loss
from minigrad.nn.noise import alpha_dropout as alpha_dropout
from minigrad.nn.noise import dropout as dropout
from minigrad.nn.noise import dropout1d as dropout1d
from minigrad.nn.noise import dropout2d as dropout2d
from minigrad.nn.noise import dropout3d as dropout3d
from minigrad.nn.noise import feature_alpha_dropout as feature_alpha_dropout
from minigrad.nn.noise import rrelu as rrelu
from minigrad.nn.norm import group_norm as group_norm
from minigrad.nn.norm import layer_norm as layer_norm
from minigrad.nn.norm import local_response_norm as local_response_norm
from minigrad.nn.norm import rms_norm as rms_norm
from minigrad.nn.pool import lp_pool1d as lp_pool1d
from minigrad.nn.pool import lp_pool2d as lp_pool2d
from minigrad.nn.pool import lp_pool3d as lp_pool3d
from minigrad.nn.tables import embedding as embedding
from minigrad.nn.windows import adaptive_avg_pool1d as adaptive_avg_pool1d
from minigrad.nn.windows import adaptive_avg_pool2d as adaptive_avg_pool2d
from minigrad.nn.windows import adaptive_avg_pool3d as adaptive_avg_pool3d
from minigrad.nn.windows import adaptive_max_pool1d as adaptive_max_pool1d
from minigrad.nn.windows import adaptive_max_pool2d as adaptive_max_pool2d
from minigrad.nn.windows import adaptive_max_pool3d as adaptive_max_pool3d
from minigrad.nn.windows import affine_grid as affine_grid
from minigrad.nn.windows import avg_pool1d as avg_pool1d
from minigrad.nn.windows import avg_pool2d as avg_pool2d
from minigrad.nn.windows import avg_pool3d as avg_pool3d
from minigrad.nn.windows import channel_shuffle as channel_shuffle
from minigrad.nn.windows import conv1d as conv1d
from minigrad.nn.windows import conv2d as conv2d
from minigrad.nn.windows import conv3d as conv3d
from minigrad.nn.windows import conv_transpose1d as conv_transpose1d
from minigrad.nn.windows import conv_transpose2d as conv_transpose2d
from minigrad.nn.windows import conv_transpose3d as conv_transpose3d
from minigrad.nn.windows import fold as fold
from minigrad.nn.windows import grid_sample as grid_sample
from minigrad.nn.windows import interpolate as interpolate
from minigrad.nn.windows import max_pool1d as max_pool1d
from minigrad.nn.windows import max_pool2d as max_pool2d
from minigrad.nn.windows import max_pool3d as max_pool3d
from minigrad.nn.windows import max_unpool1d as max_unpool1d
from minigrad.nn.windows import max_unpool2d as max_unpool2d
from minigrad.nn.windows import max_unpool3d as max_unpool3d
from minigrad.nn.windows import pad as pad
from minigrad.nn.windows import pixel_shuffle as pixel_shuffle
from minigrad.nn.windows import pixel_unshuffle as pixel_unshuffle
from minigrad.nn.windows import unfold as unfold
from minigrad.nn.windows import upsample as upsample
from minigrad.nn.windows import upsample_bilinear as upsample_bilinear
from minigrad.nn.windows import upsample_nearest as upsample_nearest
from minigrad.tensor import Tensor

Sizes = int | Sequence[int]


def _plain_activation(name: str) -> Callable[..., Tensor]:
    """The method `name` without arguments, whose result `x` itself gets with `inplace`."""
    def function(input: Tensor, inplace: bool = False) -> Tensor:
        return result_of(as_tensor(name, input), name, getattr(input, name)(), inplace)

    function.__name__ = name
    function.__doc__ = getattr(Tensor, name).__doc__
    return function


# Activations

relu, relu6, selu, silu = (_plain_activation(n) for n in ("relu", "relu6", "selu", "silu"))
mish, hardswish, hardsigmoid = (_plain_activation(n) for n in ("mish", "hardswish", "hardsigmoid"))
prelu, hardshrink, softshrink, logsigmoid = Tensor.prelu, Tensor.hardshrink, Tensor.softshrink, Tensor.logsigmoid


def _method(name: str) -> Callable[..., Tensor]:
    """The method `name` without arguments, as a function of `input`."""
    def function(input: Tensor) -> Tensor:
        return getattr(as_tensor(name, input), name)()

    function.__name__ = name
    function.__doc__ = getattr(Tensor, name).__doc__
    return function


sigmoid, tanh, softsign, tanhshrink = (_method(n) for n in ("sigmoid", "tanh", "softsign", "tanhshrink"))


def glu(input: Tensor, dim: int = -1) -> Tensor:
    """The first half of an axis times the sigmoid of the second."""
    return as_tensor("glu", input).glu(dim)


def elu(input: Tensor, alpha: float = 1.0, inplace: bool = False) -> Tensor:
    """x where positive, else alpha * (exp(x) - 1)."""
    return result_of(as_tensor("elu", input), "elu", input.elu(alpha), inplace)


def celu(input: Tensor, alpha: float = 1.0, inplace: bool = False) -> Tensor:
    """x where positive, else alpha * (exp(x / alpha) - 1)."""
    return result_of(as_tensor("celu", input), "celu", input.celu(alpha), inplace)


def hardtanh(input: Tensor, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> Tensor:
    """x held within min_val..max_val."""
    return result_of(as_tensor("hardtanh", input), "hardtanh", input.hardtanh(min_val, max_val), inplace)


def threshold(input: Tensor, threshold: float, value: float, inplace: bool = False) -> Tensor:
    """x where it is above the threshold, else `value`."""
    return result_of(as_tensor("threshold", input), "threshold", input.threshold(threshold, value), inplace)


def leaky_relu(input: Tensor, negative_slope: float = 0.01, inplace: bool = False) -> Tensor:
    """x where positive, else negative_slope * x."""
    return result_of(input, "leaky_relu", input.leaky_relu(negative_slope), inplace)


def gelu(input: Tensor, approximate: str = "none") -> Tensor:
    """x * P(normal <= x): exact, or the 'tanh' approximation."""
    return input.gelu(approximate)


def softplus(input: Tensor, beta: float = 1.0, threshold: float = 20.0) -> Tensor:
    """log(1 + exp(beta*x)) / beta, x itself where beta*x is above the threshold."""
    return input.softplus(beta, threshold)


def softmax(input: Tensor, dim: int | None = None, _stacklevel: int = 3, dtype: Any = None) -> Tensor:
    """exp(x) / sum(exp(x)) along an axis."""
    return input.softmax(_axis_of("softmax", input, dim, _stacklevel), dtype)


def log_softmax(input: Tensor, dim: int | None = None, _stacklevel: int = 3, dtype: Any = None) -> Tensor:
    """log(softmax(x)) along an axis."""
    return input.log_softmax(_axis_of("log_softmax", input, dim, _stacklevel), dtype)


def softmin(input: Tensor, dim: int | None = None, _stacklevel: int = 3, dtype: Any = None) -> Tensor:
    """softmax(-x) along an axis."""
    return input.softmin(_axis_of("softmin", input, dim, _stacklevel), dtype)


def _axis_of(name: str, x: Tensor, dim: int | None, stacklevel: int) -> int:
    """`dim`; where none is given, the one that PyTorch takes, with a warning as there."""
    if dim is not None:
        return dim
    implied = 0 if as_tensor(name, x).ndim in (0, 1, 3) else 1
    warnings.warn(f"[{name}] expected dim=, got none, which is taken for {implied} of {list(x.shape)}", UserWarning,
                  stacklevel=stacklevel)
    return implied


def gumbel_softmax(logits: Tensor, tau: float = 1.0, hard: bool = False, eps: float = 1e-10, dim: int = -1) -> Tensor:
    """A sample of one of many by their logits; see `Tensor.gumbel_softmax`. `eps` has no effect, as in PyTorch."""
    return logits.gumbel_softmax(tau, hard, dim)


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
    return projected(input, weight, bias) if weight.ndim == 2 else input.dot(weight) + (
        0 if bias is None else bias)


def one_hot(tensor: Tensor, num_classes: int = -1) -> Tensor:
    """A new last axis with 1 at each class; -1: as many as the largest says, which is read."""
    return tensor.one_hot(None if num_classes == -1 else num_classes)


scaled_dot_product_attention = Tensor.scaled_dot_product_attention

# Norms


def batch_norm(input: Tensor, running_mean: Tensor | None, running_var: Tensor | None, weight: Tensor | None = None,
               bias: Tensor | None = None, training: bool = False, momentum: float = 0.1, eps: float = 1e-5) -> Tensor:
    """(x - mean) / sqrt(var + eps) * weight + bias per channel of [N, C, ...]: of the batch's statistics in training,
    which move the running ones by `momentum`, else of the running ones."""
    if as_tensor("batch_norm", input).ndim < 2:
        raise ShapeError(f"[batch_norm] expected [N, C, ...], got {list(input.shape)}")
    if not training:
        return input._by_statistics(weight, bias, as_tensor("batch_norm", running_mean),
                                    as_tensor("batch_norm", running_var), eps)
    y, mean, var = input.batchnorm_train(weight, bias, eps, correction=1)
    for kept, found in ((running_mean, mean), (running_var, var)):
        if kept is not None:
            kept.assign(kept.moved(found, momentum))
    return y


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
    return group_norm(input, int(input.shape[1]), weight, bias, eps)


def normalize(input: Tensor, p: float = 2.0, dim: int = 1, eps: float = 1e-12) -> Tensor:
    """x over its p-norm along an axis, which is no less than `eps`."""
    return input.normalize(p, dim, eps)


cosine_similarity, pairwise_distance, pdist = Tensor.cosine_similarity, Tensor.pairwise_distance, Tensor.pdist
