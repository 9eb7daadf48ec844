"""Random choices: orders, coin throws, classes by their probabilities."""
from __future__ import annotations

from typing import Self

from minigrad import random
from minigrad.dtype import DType, float32, int32
from minigrad.errors import DTypeError, ShapeError
from minigrad.mixins.base import Base, as_count
from minigrad.mixins.ranges import check_weights

_LEAST = 1e-30  # of a waiting time, so that 0 divided by it is 0


class SamplingMixin(Base):
    """None of these has a gradient, but for `bernoulli`, whose gradient is 0."""

    __slots__ = ()

    @classmethod
    def randperm(cls, n: int, *, dtype: DType | str = int32, device: str | None = None) -> Self:
        """A random order of 0..n-1, [n]: that of random keys."""
        keys = cls._wrap(random.random_bits((as_count("randperm", "n", n),), cls._device(device)))
        return keys.argsort().cast(dtype)

    def bernoulli(self) -> Self:
        """1 with the probability that each element says, else 0; of this shape and type. NaN gives 0."""
        if not self.dtype.is_float:
            raise DTypeError(f"[bernoulli] expected probabilities of a float type, got {self.dtype}")
        return (self.rand(*self.shape, device=self.device) < self).cast(self.dtype)

    def multinomial(self, num_samples: int = 1, replacement: bool = False) -> Self:
        """Indices of classes drawn by weights [C] or [N, C], that need not sum to 1: int32 [num_samples] or
        [N, num_samples].

        Without replacement a class of weight 0 is drawn after all others; with it, never. Weights must not be negative,
        which is checked under `check_indices` alone: values are not there yet. Raises ShapeError for more samples than
        classes without replacement, and for none to draw or to draw from.
        """
        if self.ndim not in (1, 2) or not self.dtype.is_float:
            raise ShapeError(f"[multinomial] expected float weights [C] or [N, C], got {self.dtype} "
                             f"{list(self.shape)}")
        count = as_count("multinomial", "num_samples", num_samples, 1)
        if self.shape[-1] == 0:
            raise ShapeError(f"[multinomial] expected weights of at least one class, got {list(self.shape)}")
        weights = self.detach().cast(float32)
        check_weights("multinomial", weights, drawn=True)
        if not replacement:
            # Who comes first of processes with these rates: the order of times that are exponential.
            times = -(1 - weights.rand(*weights.shape, device=self.device)).log()
            return (weights / times.maximum(_LEAST)).topk(count)[1]
        sums = weights.cumsum(-1)
        total = sums[..., -1:].contiguous()
        points = self.rand(*self.shape[:-1], count, device=self.device) * total
        # Where a product is rounded up to the total, the last class that can be drawn.
        return sums.searchsorted(points, right=True).minimum(sums.searchsorted(total))
