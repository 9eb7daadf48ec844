"""Functions of neural networks: normalisation, dropout, gates."""
from __future__ import annotations

from typing import Any, Self

from minigrad.dtype import DType, promote
from minigrad.errors import ShapeError
from minigrad.mixins.base import Base, as_axis, as_number, as_parameter
from minigrad.mixins.blocks import as_one_node
from minigrad.mixins.modes import modes
from minigrad.mixins.reduce import Axis
from minigrad.mixins.rounding import rounded_as_first, rounded_once
from minigrad.ops import functions, recurrent


class NNMixin(Base):
    """Functions of layers; `minigrad.nn` holds their parameters."""

    __slots__ = ()

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

    @as_one_node
    @rounded_as_first
    def _by_statistics(self, weight: Self | None, bias: Self | None, mean: Self, var: Self, eps: float) -> Self:
        """(x - mean) / sqrt(var + eps) * weight + bias per channel of [N, C, ...]: x * scale + shift.

        Scale and shift are values of their own: a kernel would compute them again for each of its register tiles, and a
        capture for each call.
        """
        scale = (var + eps).rsqrt() if weight is None else (var + eps).rsqrt() * weight
        shift = -mean * scale if bias is None else bias - mean * scale
        shape = [-1, *[1] * (self.ndim - 2)]
        return self * scale.contiguous().reshape(*shape) + shift.contiguous().reshape(*shape)

    def batchnorm_train(self, weight: Self | None, bias: Self | None, eps: float = 1e-5, axis: int = 1,
                        correction: int = 0) -> tuple[Self, Self, Self]:
        """(normalised by the batch's own statistics, their mean, their variance), the latter two detached. `correction`
        is that of the variance which is returned; the values are divided by the biased one.

        The gradient is hand-written: dbias = sum(dy), dweight = sum(dy * xhat) and
        dx = weight * inv * (dy - dbias / n - xhat * dweight / n). Half types compute in float32.
        """
        axes = tuple([a for a in range(self.ndim) if a != axis])
        x = self._as_float()
        x = x.cast(x.dtype.compute)
        return (self._by_own_statistics(weight, bias, eps, axis), x.mean(axes).detach(),
                x.var(axes, correction=correction).detach())

    @as_one_node
    def _by_own_statistics(self, weight: Self | None, bias: Self | None, eps: float, axis: int = 1) -> Self:
        """The first result of `batchnorm_train`."""
        axes = tuple([a for a in range(self.ndim) if a != axis])
        wide = self._as_float()
        wide = wide.cast(wide.dtype.compute)
        scale = wide.full((self.shape[axis],), 1, dtype=wide.dtype, device=self.device) if weight is None else weight
        shift = wide.full((self.shape[axis],), -0.0, dtype=wide.dtype, device=self.device) if bias is None else bias
        scale, shift = scale.cast(wide.dtype), shift.cast(wide.dtype)
        eps = as_number("batch_norm", "eps", eps)
        y = self._wrap(functions.batch_norm(wide.node, scale.node, shift.node, axes, eps), wide, scale, shift)
        return y.cast(self._as_float().dtype)

    # Dropout

    def dropout(self, p: float = 0.5) -> Self:
        """While training, each element is 0 with probability p and the rest are scaled by 1/(1-p)."""
        return self._dropped_channels(p, self.ndim)

    def _dropped_channels(self, p: float, leading: int) -> Self:
        """`dropout` of whole planes: the axes behind the first `leading` ones are kept or not as one."""
        if not 0 <= as_parameter("dropout", "p", p) <= 1:
            raise ShapeError(f"[dropout] expected a probability in 0..1, got {p!r}")
        if not modes.now.training or p == 0:
            return self
        if p == 1:
            return self * 0
        planes = (*self.shape[:leading], *[1] * (self.ndim - leading))
        return (self.rand(*planes, device=self.device) >= p).where(self * (1 / (1 - p)), 0)

    # Gates

    @as_one_node
    @rounded_once
    def glu(self, dim: int = -1) -> Self:
        """The first half of an axis times the sigmoid of the second."""
        n: Any = self.shape[as_axis("glu", dim, self.ndim)]
        if n % 2 != 0:
            raise ShapeError(f"[glu] expected an even length along axis {dim}, got {list(self.shape)}")
        first, second = self.split([n // 2, n // 2], dim)
        return first * second.sigmoid()

    # Steps of recurrent layers

    def lstm_step(self, c: Self) -> tuple[Self, Self]:
        """(h', c') [..., H] of this tensor, gates [..., 4 * H] in the order i, f, g, o, and of c [..., H]:
        c' = sigmoid(f) * c + sigmoid(i) * tanh(g), h' = sigmoid(o) * tanh(c').
        """
        gates, c = self._step_operands("lstm_step", 4, c, self)
        c = self._wrap(recurrent.lstm_memory(gates.node, c.node), gates, c)
        return self._wrap(recurrent.lstm_output(gates.node, c.node), gates, c), c

    def gru_step(self, of_state: Self, h: Self) -> Self:
        """h' [..., H] of this tensor and `of_state`, products [..., 3 * H] of input and state in the order r, z, n, and
        of h [..., H]: h' = n + sigmoid(zx + zh) * (h - n) with n = tanh(nx + sigmoid(rx + rh) * nh).
        """
        x, s, h = self._step_operands("gru_step", 3, h, self, of_state)
        return self._wrap(recurrent.gru(x.node, s.node, h.node), x, s, h)

    def _step_operands(self, name: str, gates: int, state: Self, *products: Self) -> list[Self]:
        """All of them in one type, products first. Raises ShapeError."""
        wanted = (*state.shape[:-1], gates * state.shape[-1]) if state.ndim else None
        for given in products:
            if given.shape != wanted:
                raise ShapeError(f"[{name}] expected {list(wanted or ())} for a state {list(state.shape)}, "
                                 f"got {list(given.shape)}")
        dtype = state.dtype
        for given in products:
            dtype = promote(dtype, given.dtype)
        return [t.cast(dtype)._as_float() for t in (*products, state)]

    def softmin(self, axis: Axis = -1, dtype: DType | str | None = None, *, dim: Axis = None) -> Self:
        """softmax(-x)."""
        return (-self).softmax(axis if dim is None else dim, dtype)

    def gumbel_softmax(self, tau: float = 1.0, hard: bool = False, dim: int = -1) -> Self:
        """softmax((x + g) / tau) along an axis, with g of Gumbel's distribution (Jang et al. 2017); `hard`: 1 at the
        largest and 0 elsewhere, with the gradient of the soft one."""
        noise = -(-(1 - self.rand(*self.shape, device=self.device)).log().minimum(-1e-30)).log()
        soft = ((self + noise) * (1 / as_parameter("gumbel_softmax", "tau", tau))).softmax(dim)
        if not hard:
            return soft
        a = as_axis("gumbel_softmax", dim, self.ndim)
        chosen = self._order(a).eq(soft.argmax(a, keepdim=True)).cast(soft.dtype)
        return (chosen - soft).detach() + soft
