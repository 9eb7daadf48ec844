"""Normalisation layers. Statistics are of the input's own axes; scale and shift are learnt per feature."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from minigrad.dtype import int64
from minigrad.errors import ShapeError
from minigrad.expr import Index, product
from minigrad.mixins.base import as_count, as_shape, as_tensor, is_index
from minigrad.mixins.blocks import as_block, as_one_node
from minigrad.mixins.rounding import rounded_as_first
from minigrad.nn.module import Layer
from minigrad.ops.op import Shape
from minigrad.optim.statistics import note_moved
from minigrad.tensor import Tensor


def towards(old: Tensor, new: Tensor, momentum: float | None, count: Tensor) -> Tensor:
    """A running statistic moved by `momentum` towards that of a batch; without one, the mean of the `count` batches
    before and this one."""
    return old + (new - old) / (count + 1).cast(old.dtype) if momentum is None else old.moved(new, momentum)


class _ChannelNorm(Layer):
    """A scale and, with `bias`, a shift per channel if `affine`, and running statistics of the channels if they are
    tracked. `positions`: how many further axes an input may have, any number for none."""

    positions: ClassVar[tuple[int, ...]] = ()
    _buffer_names = ("running_mean", "running_var", "num_batches_tracked")

    def __init__(self, num_features: int, eps: float, momentum: float | None, affine: bool, track_running_stats: bool,
                 bias: bool = True):
        if eps <= 0:
            raise ShapeError(f"[{type(self).__name__}] expected eps above 0, got {eps!r}")
        self.num_features, self.eps, self.momentum = num_features, eps, momentum
        self.affine, self.track_running_stats = affine, track_running_stats
        self.weight = Tensor.ones(num_features, requires_grad=True) if affine else None
        self.bias = Tensor.zeros(num_features, requires_grad=True) if affine and bias else None
        if track_running_stats:
            self.running_mean = Tensor.zeros(num_features, requires_grad=False).contiguous()
            self.running_var = Tensor.ones(num_features, requires_grad=False).contiguous()
            self.num_batches_tracked = Tensor.zeros(dtype=int64, requires_grad=False).contiguous()

    def _check(self, x: Tensor, least: int) -> None:
        """Raises ShapeError unless x is [N, num_features, ...] of as many axes as `positions` says, `least` or more."""
        name = type(self).__name__
        further = as_tensor(name, x).ndim - 2
        fits = further in self.positions if self.positions else further >= least
        if not fits or x.shape[1] != self.num_features:
            kinds = [[*"DHW"[3 - n:]] if n > 1 else ["L"] * n for n in self.positions] or [["..."]]
            expected = " or ".join([f"[{', '.join(['N', str(self.num_features), *axes])}]" for axes in kinds])
            further_axes = " with positions" if least and not self.positions else ""
            raise ShapeError(f"[{name}] expected {expected}{further_axes}, got {list(x.shape)}")

    def _by_running(self, x: Tensor) -> Tensor:
        """x normalised by the running statistics."""
        return x._by_statistics(self.weight, self.bias, self.running_mean, self.running_var, self.eps)

    def _move(self, x: Tensor, statistics: Callable[[Tensor], tuple[Tensor, Tensor]]) -> None:
        """Moves the running statistics towards those of x by `momentum`; without one, all batches count the same."""
        momentum = self.momentum

        def moved(mean: Tensor, var: Tensor, count: Tensor, x: Tensor) -> list[Tensor]:
            return [towards(old, new, momentum, count) for old, new in zip((mean, var), statistics(x), strict=True)]

        running = self.running_mean, self.running_var
        new = as_block(statistics.__name__, momentum, moved, *running, self.num_batches_tracked, x, detached=True)
        for old, value in zip(running, new, strict=True):
            old.assign(value)
        note_moved(*running)


class BatchNorm(_ChannelNorm):
    """y = (x - mean) / sqrt(var + eps) * weight + bias per channel, for x of shape [N, num_features, ...].

    While training (`Tensor.train()`), mean and variance are those of the batch, and the running ones move towards them:
    running = (1 - momentum) * running + momentum * batch, with the variance unbiased; with a momentum of None they are
    the means of all batches. Otherwise the running ones are used. The running statistics are lazy like everything else:
    the next step of an optimizer brings them up to date in its plan, if they are not read before.

    Source: Ioffe & Szegedy 2015, https://arxiv.org/abs/1502.03167
    """

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        *,
        bias: bool = True,
    ):
        super().__init__(num_features, eps, momentum, affine, track_running_stats, bias)

    def forward(self, x: Tensor) -> Tensor:
        self._check(x, 0)
        if self.track_running_stats and not Tensor.training:
            return self._by_running(x)
        count = x.numel() // self.num_features
        if isinstance(count, int) and count < 2:
            raise ShapeError(f"[{type(self).__name__}] expected more than one value per channel in training, got "
                             f"{list(x.shape)}")
        if self.track_running_stats:
            self._move(x, _of_batch)
            self.num_batches_tracked.assign(self.num_batches_tracked + 1)
            note_moved(self.num_batches_tracked)
        return x._by_own_statistics(self.weight, self.bias, self.eps)


def _of_batch(x: Tensor) -> tuple[Tensor, Tensor]:
    """The mean and the unbiased variance of each channel of [N, C, ...]."""
    x, axes = wide(x), (0, *range(2, x.ndim))
    return x.mean(axes), x.var(axes)


def wide(x: Tensor) -> Tensor:
    """These numbers in the type that statistics are kept in: half types as float32."""
    x = x._as_float()
    return x.cast(x.dtype.compute)


class BatchNorm1d(BatchNorm):
    """`BatchNorm` of [N, C] and signals [N, C, L]. Raises ShapeError for others."""

    positions = (0, 1)


class BatchNorm2d(BatchNorm):
    """`BatchNorm` of images [N, C, H, W]. Raises ShapeError for others."""

    positions = (2,)


class BatchNorm3d(BatchNorm):
    """`BatchNorm` of volumes [N, C, D, H, W]. Raises ShapeError for others."""

    positions = (3,)


class LayerNorm(Layer):
    """y = (x - mean) / sqrt(var + eps) * weight + bias over the last axes, which must equal `normalized_shape`.

    `weight` and `bias` have that shape (None with elementwise_affine=False; bias=False leaves out the bias).

    Source: Ba et al. 2016, https://arxiv.org/abs/1607.06450
    """

    def __init__(
        self,
        normalized_shape: int | tuple[int, ...],
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
    ):
        self.normalized_shape = _sizes(normalized_shape)
        self.eps = eps
        self.weight = Tensor.ones(*self.normalized_shape, requires_grad=True) if elementwise_affine else None
        self.bias = Tensor.zeros(*self.normalized_shape, requires_grad=True) if elementwise_affine and bias else None

    def forward(self, x: Tensor) -> Tensor:
        if as_tensor("LayerNorm", x).shape[-len(self.normalized_shape):] != self.normalized_shape:
            expected = ", ".join(map(str, self.normalized_shape))
            raise ShapeError(f"[LayerNorm] expected [..., {expected}], got {list(x.shape)}")
        return layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)


class LayerNorm2d(LayerNorm):
    """LayerNorm over the channels of images [N, C, H, W]."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class RMSNorm(Layer):
    """y = x / sqrt(mean(x*x) + eps) * weight over the last axes, of the sizes `normalized_shape`; an `eps` of None is
    what 1 is away from the next number of x's type.

    Source: Zhang & Sennrich 2019, https://arxiv.org/abs/1910.07467
    """

    def __init__(self, normalized_shape: int | tuple[int, ...], eps: float | None = None,
                 elementwise_affine: bool = True):
        self.normalized_shape, self.eps = _sizes(normalized_shape), eps
        self.weight = Tensor.ones(*self.normalized_shape, requires_grad=True) if elementwise_affine else None

    def forward(self, x: Tensor) -> Tensor:
        rank = len(self.normalized_shape)
        if as_tensor("RMSNorm", x).shape[x.ndim - rank:] != self.normalized_shape or x.ndim < rank:
            raise ShapeError(f"[RMSNorm] expected [..., {', '.join(map(str, self.normalized_shape))}], "
                             f"got {list(x.shape)}")
        return rms_norm(x, self.normalized_shape, self.weight, self.eps)


def _sizes(shape: int | tuple[int, ...]) -> Shape:
    """The lengths of the last axes, of one if it is a number."""
    return as_shape(tuple(shape) if isinstance(shape, (tuple, list)) else (shape,))


class GroupNorm(Layer):
    """LayerNorm over each of `num_groups` groups of channels and all positions, for x of shape [N, num_channels, ...];
    scale and shift per channel.

    Source: Wu & He 2018, https://arxiv.org/abs/1803.08494
    """

    def __init__(self, num_groups: int, num_channels: int, eps: float = 1e-5, affine: bool = True, *,
                 bias: bool = True):
        if not is_index(num_groups) or not is_index(num_channels) or num_groups < 1 or num_channels % num_groups:
            raise ShapeError(
                f"[GroupNorm] expected num_channels divisible by num_groups, got {num_channels} and {num_groups}"
            )
        self.num_groups, self.num_channels, self.eps = num_groups, num_channels, eps
        self.weight = Tensor.ones(num_channels, requires_grad=True) if affine else None
        self.bias = Tensor.zeros(num_channels, requires_grad=True) if affine and bias else None

    def forward(self, x: Tensor) -> Tensor:
        if as_tensor("GroupNorm", x).ndim < 2 or x.shape[1] != self.num_channels:
            raise ShapeError(f"[GroupNorm] expected [N, {self.num_channels}, ...], got {list(x.shape)}")
        return group_norm(x, self.num_groups, self.weight, self.bias, self.eps)


class InstanceNorm(_ChannelNorm):
    """GroupNorm with a group per channel: y = (x - mean) / sqrt(var + eps) over the positions of each channel of x
    [N, num_features, ...]. `affine` adds a scale and a shift per channel, which are none by default.

    With `track_running_stats`, what is not training uses running means of the statistics, which training moves by
    `momentum`.

    Source: Ulyanov et al. 2016, https://arxiv.org/abs/1607.08022
    """

    def __init__(self, num_features: int, eps: float = 1e-5, momentum: float = 0.1, affine: bool = False,
                 track_running_stats: bool = False, *, bias: bool = True):
        super().__init__(num_features, eps, momentum, affine, track_running_stats, bias)

    def forward(self, x: Tensor) -> Tensor:
        as_tensor(type(self).__name__, x)
        if self.positions and x.ndim == self.positions[0] + 1 and x.shape[0] == self.num_features:
            return self.forward(x.unsqueeze(0)).squeeze(0)
        self._check(x, 1)
        if self.track_running_stats and not Tensor.training:
            return self._by_running(x)
        if self.track_running_stats:
            self._move(x, _of_instances)
        return group_norm(x, self.num_features, self.weight, self.bias, self.eps)


def _of_instances(x: Tensor) -> tuple[Tensor, Tensor]:
    """Of each channel of [N, C, ...] the mean, and the mean of the unbiased variances of all N."""
    flat = wide(x).flatten(2)
    return flat.mean((0, 2)), flat.var(2).mean(0)


class InstanceNorm1d(InstanceNorm):
    """`InstanceNorm` of signals [N, C, L], or of one [C, L]. Raises ShapeError for others."""

    positions = (1,)


class InstanceNorm2d(InstanceNorm):
    """`InstanceNorm` of images [N, C, H, W], or of one [C, H, W]. Raises ShapeError for others."""

    positions = (2,)


class InstanceNorm3d(InstanceNorm):
    """`InstanceNorm` of volumes [N, C, D, H, W], or of one [C, D, H, W]. Raises ShapeError for others."""

    positions = (3,)


class LocalResponseNorm(Layer):
    """x / (k + alpha * mean)**beta, where the mean is that of the squares of `size` channels around each, zeros beyond
    the first and the last, for x [N, C, ...].

    Source: Krizhevsky et al. 2012, section 3.3 of "ImageNet classification with deep convolutional neural networks"
    """

    def __init__(self, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0):
        size = as_count("LocalResponseNorm", "size", size, 1)
        self.size, self.alpha, self.beta, self.k = size, alpha, beta, k

    def forward(self, x: Tensor) -> Tensor:
        return local_response_norm(x, self.size, self.alpha, self.beta, self.k)


@as_one_node
@rounded_as_first
def layer_norm(input: Tensor, normalized_shape: Sequence[Index], weight: Tensor | None = None,
               bias: Tensor | None = None, eps: float = 1e-5) -> Tensor:
    """(x - mean) / sqrt(var + eps) * weight + bias over the last axes, which are `normalized_shape`."""
    y = input.layernorm(_last_axes("layer_norm", input, normalized_shape), eps)
    y = y if weight is None else y * weight
    return y if bias is None else y + bias


@as_one_node
@rounded_as_first
def rms_norm(input: Tensor, normalized_shape: Sequence[Index], weight: Tensor | None = None,
             eps: float | None = None) -> Tensor:
    """x / sqrt(mean(x*x) + eps) * weight over the last axes; `eps` is the type's unless told."""
    least = {"float64": 2.0**-52, "float16": 2.0**-10, "bfloat16": 2.0**-7}.get(input.dtype.name, 2.0**-23)
    y = input.rms_norm(_last_axes("rms_norm", input, normalized_shape), least if eps is None else eps)
    return y if weight is None else y * weight


@as_one_node
@rounded_as_first
def group_norm(input: Tensor, num_groups: int, weight: Tensor | None = None, bias: Tensor | None = None,
               eps: float = 1e-5) -> Tensor:
    """`layer_norm` over each of `num_groups` groups of channels of [N, C, ...] and all positions."""
    groups = as_count("group_norm", "num_groups", num_groups, 1)
    if input.ndim < 2 or input.shape[1] % groups != 0:
        raise ShapeError(f"[group_norm] expected [N, C * {groups}, ...], got {list(input.shape)}")
    size = product(input.shape[1:]) // groups
    y = input.reshape(input.shape[0], groups, size).layernorm(-1, eps).reshape(*input.shape)
    shape = (1, -1, *[1] * (input.ndim - 2))
    y = y if weight is None else y * weight.reshape(*shape)
    return y if bias is None else y + bias.reshape(*shape)


def _last_axes(name: str, x: Tensor, shape: Sequence[Index]) -> tuple[int, ...]:
    if not shape or tuple(x.shape[x.ndim - len(shape):]) != tuple(shape) or len(shape) > x.ndim:
        raise ShapeError(f"[{name}] expected [..., {', '.join(map(str, shape)) or 'at least one length'}], got "
                         f"{list(x.shape)}")
    return tuple(range(-len(shape), 0))


@as_one_node
def local_response_norm(input: Tensor, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0) -> Tensor:
    """`LocalResponseNorm` of [N, C, ...]."""
    if as_tensor("LocalResponseNorm", input).ndim < 3:
        raise ShapeError(f"[LocalResponseNorm] expected [N, C, ...] with positions, got {list(input.shape)}")
    squares = input.square().transpose(1, -1).pad((size // 2, (size - 1) // 2))
    means = squares.unfold(-1, size).mean(-1).transpose(1, -1)
    return input / (means * alpha + k) ** beta
