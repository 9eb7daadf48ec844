"""Further names of PyTorch, for what other methods do already or nearly."""
from __future__ import annotations

from typing import Any, Self

from minigrad.errors import ShapeError
from minigrad.mixins.attention import AttentionMixin
from minigrad.mixins.base import as_axis, as_count
from minigrad.mixins.reduce import Axis


class AliasMixin(AttentionMixin):
    """Every method is one expression of others."""

    __slots__ = ()

    # Shapes

    def dim(self) -> int:
        return self.ndim

    def nelement(self) -> Any:
        return self.numel()

    def t(self) -> Self:
        """The transpose of a matrix; fewer axes stay as they are."""
        if self.ndim > 2:
            raise ShapeError(f"[t] expected at most 2 axes, got {list(self.shape)}; use transpose or mT")
        return self.transpose(0, 1) if self.ndim == 2 else self

    @property
    def mT(self) -> Self:  # noqa: N802  (PyTorch's name)
        """The last two axes exchanged."""
        return self.transpose(-1, -2)

    def ravel(self) -> Self:
        return self.flatten()

    def swapaxes(self, axis0: int, axis1: int) -> Self:
        return self.transpose(axis0, axis1)

    def movedim(self, source: int, destination: int) -> Self:
        """One axis moved to another place, the others in their order."""
        start, stop = as_axis("movedim", source, self.ndim), as_axis("movedim", destination, self.ndim)
        order = [a for a in range(self.ndim) if a != start]
        order.insert(stop, start)
        return self.permute(*order)

    def narrow(self, dim: int, start: int, length: int) -> Self:
        """`length` elements of an axis from `start` on."""
        a = as_axis("narrow", dim, self.ndim)
        start, length = as_count("narrow", "start", start), as_count("narrow", "length", length)
        return self.shrink(tuple([(start, start + length) if i == a else (0, n) for i, n in enumerate(self.shape)]))

    def unbind(self, dim: int = 0) -> tuple[Self, ...]:
        """All slices along an axis, without it."""
        return tuple([part.squeeze(dim) for part in self.split(1, dim)])

    def tile(self, *repeats: Any) -> Self:
        """`repeat`, where fewer counts than axes mean the last ones."""
        counts = tuple(repeats[0]) if len(repeats) == 1 and isinstance(repeats[0], (tuple, list)) else repeats
        return self.repeat(*[1] * (self.ndim - len(counts)), *counts)

    # Products

    def mm(self, other: Any) -> Self:
        return self.dot(other)

    def bmm(self, other: Any) -> Self:
        return self.dot(other)

    def mv(self, other: Any) -> Self:
        return self.dot(other)

    # Reductions

    def amax(self, axis: Axis = None, keepdim: bool = False) -> Self:
        return self.max(axis, keepdim)

    def amin(self, axis: Axis = None, keepdim: bool = False) -> Self:
        return self.min(axis, keepdim)

    def count_nonzero(self, axis: Axis = None) -> Self:
        """How many elements are not 0, as int32."""
        return self.ne(0).sum(axis)

    # Elementwise

    def logical_and(self, other: Any) -> Self:
        return self.ne(0).bitwise_and(self._truth(other))

    def logical_or(self, other: Any) -> Self:
        return self.ne(0).bitwise_or(self._truth(other))

    def logical_xor(self, other: Any) -> Self:
        return self.ne(0).bitwise_xor(self._truth(other))

    def _truth(self, other: Any) -> Any:
        other = self._operand(other)
        return other.ne(0) if isinstance(other, AliasMixin) else bool(other)

    def expm1(self) -> Self:
        """exp(x) - 1, accurate near 0."""
        half = (self * 0.5).tanh()
        return (self.abs() < 0.5).where(2 * half / (1 - half), self.exp() - 1)

    def logaddexp(self, other: Any) -> Self:
        """log(exp(x) + exp(other)), without overflow."""
        larger = self.maximum(other)
        distance = (self - other).abs()
        return larger.isinf().where(larger, larger + (-distance).exp().log1p())

    def isclose(self, other: Any, rtol: Any = 1e-5, atol: Any = 1e-8) -> Self:
        """abs(x - other) <= atol + rtol * abs(other), or equal; NaN is close to nothing."""
        other = self._operand(other)
        distance = (self - other).abs()
        return self.eq(other).bitwise_or((distance <= abs(other) * rtol + atol).bitwise_and(distance.isfinite()))

    def allclose(self, other: Any, rtol: Any = 1e-5, atol: Any = 1e-8) -> Any:
        """Whether all elements are close, as a Python bool: it reads the values."""
        return bool(self.isclose(other, rtol, atol).all())  # type: ignore[call-overload]
