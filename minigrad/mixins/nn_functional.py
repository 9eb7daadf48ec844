"""What neural networks are made of: pooling, normalisation, losses, dropout, attention."""
from __future__ import annotations

from typing import Any, Self

from minigrad.errors import DTypeError, ShapeError
from minigrad.mixins.base import as_axis, as_count, as_number, as_tensor
from minigrad.mixins.linalg import LinalgMixin, per_axis, spatial_padding
from minigrad.ops import functions


class NNMixin(LinalgMixin):
    """Functions of layers; `minigrad.nn` holds their parameters."""

    __slots__ = ()

    # Pooling

    def max_pool2d(self, kernel_size: Any = (2, 2), stride: Any = None, dilation: Any = 1, padding: Any = 0) -> Self:
        """The largest element of each window over the last axes; the stride defaults to the kernel."""
        kernel = self._kernel("max_pool2d", kernel_size)
        step = kernel if stride is None else stride
        windows = self._windows("max_pool2d", kernel, step, dilation, padding, self.dtype.min)
        return windows.max(tuple(range(-len(kernel), 0)))

    def avg_pool2d(self, kernel_size: Any = (2, 2), stride: Any = None, dilation: Any = 1, padding: Any = 0,
                   count_include_pad: bool = True) -> Self:
        """The mean of each window over the last axes; padding counts as zeros unless told."""
        kernel = self._kernel("avg_pool2d", kernel_size)
        step = kernel if stride is None else stride
        axes = tuple(range(-len(kernel), 0))
        windows = self._as_float()._windows("avg_pool2d", kernel, step, dilation, padding)
        padded = any(p != (0, 0) for p in spatial_padding("avg_pool2d", padding, len(kernel)))
        if count_include_pad or not padded:
            return windows.mean(axes)
        ones = self.ones(*self.shape[-len(kernel):], dtype=windows.dtype, device=self.device)
        return windows.sum(axes) / ones._windows("avg_pool2d", kernel, step, dilation, padding).sum(axes)

    def adaptive_avg_pool2d(self, output_size: Any) -> Self:
        """Means over as many windows of the last two axes as `output_size` says: one int or a pair; None keeps an axis.

        Window i of n along an axis of h elements is floor(i * h / n) .. ceil((i + 1) * h / n), as in PyTorch: where n
        does not divide h they differ in length or overlap, and all h elements are looked at for each.
        """
        sizes = tuple(output_size) if isinstance(output_size, (tuple, list)) else (output_size,) * 2
        if len(sizes) != 2 or self.ndim < 2:
            raise ShapeError(f"[adaptive_avg_pool2d] expected one size or two for the last axes, got {output_size!r} "
                             f"for {list(self.shape)}")
        x = self._as_float()
        for axis, n in zip((-2, -1), sizes, strict=True):
            if n is not None:
                x = x._mean_windows(as_count("adaptive_avg_pool2d", "an output size", n), self.ndim + axis)
        return x

    def _mean_windows(self, n: int, axis: int) -> Self:
        length: Any = self.shape[axis]
        if n and length % n == 0 and length:
            return self.unflatten(axis, (n, length // n)).mean(axis + 1)
        i = type(self).arange(n, device=self.device).reshape(n, 1)
        place = type(self).arange(length, device=self.device)
        start, stop = i * length // n if n else i, ((i + 1) * length + n - 1) // n if n else i
        inside = (place >= start).bitwise_and(place < stop)
        sums = inside.where(self.transpose(axis, -1).unsqueeze(-2), 0).sum(-1)
        return (sums / (stop - start).reshape(n)).transpose(axis, -1)

    def _kernel(self, name: str, size: Any) -> tuple[int, ...]:
        """The sizes of a window over the last axes, two of them for one int."""
        kernel = per_axis(name, size, len(size) if isinstance(size, (tuple, list)) else 2)
        if not 0 < len(kernel) <= self.ndim:
            raise ShapeError(f"[{name}] expected one size per axis of a window, got {size} for {list(self.shape)}")
        return kernel

    def interpolate(self, size: tuple[int, ...], mode: str = "nearest") -> Self:
        """The last axes resampled to `size`, each element the nearest one at or before it."""
        if mode != "nearest":
            raise ShapeError(f"[interpolate] expected mode 'nearest', got {mode!r}")
        if not isinstance(size, (tuple, list)) or len(size) > self.ndim:
            raise ShapeError(f"[interpolate] expected one size for each of the last axes of {list(self.shape)}, "
                             f"got {size!r}")
        x = self
        for i, n in enumerate(size):
            axis = self.ndim - len(size) + i
            index = (type(self).arange(n, device=self.device) * self.shape[axis]) // n
            x = x.index_select(axis, index)
        return x

    # Normalisation

    def batchnorm(self, weight: Self | None, bias: Self | None, mean: Self, invstd: Self, axis: int = 1) -> Self:
        """(x - mean) * invstd * weight + bias per channel, all given: inference."""
        axis = as_axis("batchnorm", axis, self.ndim)
        shape = [d if a == axis else 1 for a, d in enumerate(self.shape)]
        for given in (weight, bias, mean, invstd):
            if given is not None and given.shape not in ((self.shape[axis],), tuple(shape)):
                raise ShapeError(f"[batchnorm] expected [{self.shape[axis]}] per channel of {list(self.shape)}, "
                                 f"got {list(given.shape)}")
        x = self - mean.reshape(*shape)
        scale = invstd if weight is None else invstd * weight
        x = x * scale.reshape(*shape)
        return x if bias is None else x + bias.reshape(*shape)

    def batchnorm_train(self, weight: Self | None, bias: Self | None, eps: float = 1e-5, axis: int = 1,
                        correction: int = 0) -> tuple[Self, Self, Self]:
        """(normalised by the batch's own statistics, their mean, their variance), the latter two detached. `correction`
        is that of the variance which is returned; the values are divided by the biased one.

        The gradient is hand-written: dbias = sum(dy), dweight = sum(dy * xhat) and
        dx = weight * inv * (dy - dbias / n - xhat * dweight / n). Half types compute in float32.
        """
        axes = tuple([a for a in range(self.ndim) if a != axis])
        wide = self._as_float()
        wide = wide.cast(wide.dtype.compute)
        scale = wide.full((self.shape[axis],), 1, dtype=wide.dtype, device=self.device) if weight is None else weight
        shift = wide.full((self.shape[axis],), -0.0, dtype=wide.dtype, device=self.device) if bias is None else bias
        scale, shift = scale.cast(wide.dtype), shift.cast(wide.dtype)
        y = self._wrap(functions.batch_norm(wide._node, scale._node, shift._node, axes, eps), wide, scale, shift)
        y = y.cast(self._as_float().dtype)
        x = self._wrap(self._node)._as_float()
        return y, x.mean(axes), x.var(axes, correction=correction)

    # Losses

    def cross_entropy(self, target: Any, reduction: str = "mean", label_smoothing: float = 0.0,
                      ignore_index: int | None = None) -> Self:
        """Of logits [N, C, ...] with class indices [N, ...] or probabilities [N, C, ...].

        Rows of the class `ignore_index` do not count (PyTorch's is -100 unless told; here none is). Other indices
        must be in 0..C-1, which nothing checks: values are not there yet.
        """
        target = as_tensor("cross_entropy", self._operand(target))
        if not 0 <= as_number("cross_entropy", "label_smoothing", label_smoothing) <= 1:
            raise ShapeError(f"[cross_entropy] expected a label_smoothing in 0..1, got {label_smoothing}")
        axis = 1 if self.ndim > 1 else 0
        if target.dtype.is_int and target.ndim == self.ndim - 1:
            return self.sparse_categorical_crossentropy(target, ignore_index, label_smoothing, reduction, axis)
        if target.shape != self.shape:
            raise ShapeError(f"[cross_entropy] expected class indices or probabilities for logits {list(self.shape)}, "
                             f"got {target.dtype} {list(target.shape)}")
        classes: Any = self.shape[axis]
        smooth = target * (1 - label_smoothing) + label_smoothing / classes
        return _reduced(-(self.log_softmax(axis) * smooth).sum(axis), reduction)

    def sparse_categorical_crossentropy(self, target: Self, ignore_index: int | None = -1, label_smoothing: float = 0.0,
                                        reduction: str = "mean", axis: int = -1) -> Self:
        """Cross-entropy of logits with class indices along `axis`; rows labelled `ignore_index` do not count."""
        target = as_tensor("cross_entropy", self._operand(target))
        axis = as_axis("cross_entropy", axis, self.ndim)
        rows = tuple([d for a, d in enumerate(self.shape) if a != axis])
        if target.shape != rows:
            raise ShapeError(f"[cross_entropy] expected class indices {list(rows)} for logits {list(self.shape)}, "
                             f"got {list(target.shape)}")
        if not target.dtype.is_int:
            raise DTypeError(f"[cross_entropy] expected integer class indices, got {target.dtype}")
        x = self._as_float()
        x = x.cast(x.dtype.compute)
        loss = self._wrap(functions.cross_entropy(x._node, target._node, axis, label_smoothing), self)
        if ignore_index is None:
            return _reduced(loss, reduction)
        counted = target.ne(ignore_index)
        loss = counted.where(loss, 0)
        return loss.sum() / counted.sum() if reduction == "mean" else _reduced(loss, reduction)

    def nll_loss(self, target: Self, reduction: str = "mean") -> Self:
        """Negative log likelihood of log-probabilities [N, C, ...] and class indices [N, ...]."""
        target = self._indices("nll_loss", target)
        if self.ndim < 2 or target.shape != (*self.shape[:1], *self.shape[2:]):
            raise ShapeError(f"[nll_loss] expected log-probabilities [N, C, ...] and classes [N, ...], "
                             f"got {list(self.shape)} and {list(target.shape)}")
        return _reduced(-self.gather(1, target.unsqueeze(1)).squeeze(1), reduction)

    def binary_crossentropy(self, target: Any, reduction: str = "mean") -> Self:
        """Of probabilities with targets in 0..1."""
        return _reduced(-(self.log() * target + (1 - self).log() * (1 - target)), reduction)

    def binary_crossentropy_logits(self, target: Any, reduction: str = "mean") -> Self:
        """Of logits with targets in 0..1, without overflow."""
        return _reduced(self.maximum(0) - self * target + (-self.abs()).exp().log1p(), reduction)

    def mse_loss(self, target: Any, reduction: str = "mean") -> Self:
        return _reduced((self - target).square(), reduction)

    def l1_loss(self, target: Any, reduction: str = "mean") -> Self:
        return _reduced((self - target).abs(), reduction)

    # Dropout and attention

    def dropout(self, p: float = 0.5) -> Self:
        """While training, each element is 0 with probability p and the rest are scaled by 1/(1-p)."""
        if not isinstance(p, (int, float)) or not 0 <= p <= 1:
            raise ShapeError(f"[dropout] expected a probability in 0..1, got {p!r}")
        if not type(self).training or p == 0:
            return self
        if p == 1:
            return self * 0
        return (self.rand(*self.shape, device=self.device) >= p).where(self * (1 / (1 - p)), 0)


def _reduced(loss: Any, reduction: str) -> Any:
    if reduction not in ("mean", "sum", "none"):
        raise ShapeError(f"[loss] expected reduction mean, sum or none, got {reduction!r}")
    return loss.mean() if reduction == "mean" else loss.sum() if reduction == "sum" else loss
