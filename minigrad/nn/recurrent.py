"""One step of recurrent networks: LSTMCell and GRUCell."""
from __future__ import annotations

import math

from minigrad.errors import ShapeError
from minigrad.mixins.base import as_count, as_tensor
from minigrad.tensor import Tensor


class _Cell:
    """`weight_ih` [gates * hidden_size, input_size], `weight_hh` [gates * hidden_size, hidden_size], `bias_ih` and
    `bias_hh` [gates * hidden_size] (None without), all uniform in +-1/sqrt(hidden_size), as in PyTorch."""

    def __init__(self, input_size: int, hidden_size: int, bias: bool, gates: int):
        name = type(self).__name__
        self.input_size = as_count(name, "input_size", input_size)
        self.hidden_size = as_count(name, "hidden_size", hidden_size, 1)
        bound, rows = 1 / math.sqrt(hidden_size), gates * hidden_size

        def uniform(*shape: int) -> Tensor:
            return Tensor.uniform(*shape, low=-bound, high=bound, requires_grad=True)

        self.weight_ih, self.weight_hh = uniform(rows, input_size), uniform(rows, hidden_size)
        self.bias_ih = uniform(rows) if bias else None
        self.bias_hh = uniform(rows) if bias else None

    def _checked(self, x: Tensor, *states: Tensor) -> None:
        name = type(self).__name__
        if as_tensor(name, x).ndim not in (1, 2) or x.shape[-1] != self.input_size:
            raise ShapeError(f"[{name}] expected x [N, {self.input_size}] or [{self.input_size}], got {list(x.shape)}")
        wanted = (*x.shape[:-1], self.hidden_size)
        for state in states:
            if as_tensor(name, state).shape != wanted:
                raise ShapeError(f"[{name}] expected a state {list(wanted)} for x {list(x.shape)}, "
                                 f"got {list(state.shape)}")

    def _start(self, x: Tensor) -> Tensor:
        as_tensor(type(self).__name__, x)
        return Tensor.zeros(*x.shape[:-1], self.hidden_size, dtype=x.dtype, device=x.device)

    def _products(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        """[..., gates * hidden_size] of the input and of the state."""
        return x.linear(self.weight_ih.transpose(), self.bias_ih), h.linear(self.weight_hh.transpose(), self.bias_hh)


class LSTMCell(_Cell):
    """i, f, o = sigmoid and g = tanh of W_ih x + b_ih + W_hh h + b_hh;  c' = f * c + i * g;  h' = o * tanh(c').

    x is [N, input_size] or [input_size]; the state (h, c) is [N, hidden_size] each, zeros unless given; the result is
    (h', c'). The gates stand in the weights in the order i, f, g, o.

    Source: Hochreiter & Schmidhuber 1997, https://doi.org/10.1162/neco.1997.9.8.1735
    """

    def __init__(self, input_size: int, hidden_size: int, bias: bool = True):
        super().__init__(input_size, hidden_size, bias, 4)

    def __call__(self, x: Tensor, state: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, Tensor]:
        if state is not None and not (isinstance(state, (tuple, list)) and len(state) == 2):
            raise ShapeError(f"[LSTMCell] expected a state (h, c), got {type(state).__name__}")
        h, c = (self._start(x), self._start(x)) if state is None else state
        self._checked(x, h, c)
        of_input, of_state = self._products(x, h)
        i, f, g, o = (of_input + of_state).chunk(4, -1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        return o.sigmoid() * c.tanh(), c


class GRUCell(_Cell):
    """r, z = sigmoid(W_ih x + b_ih + W_hh h + b_hh);  n = tanh(W_in x + b_in + r * (W_hn h + b_hn));
    h' = (1 - z) * n + z * h.

    x is [N, input_size] or [input_size]; the state h [N, hidden_size], zeros unless given. The gates stand in the
    weights in the order r, z, n.

    Source: Cho et al. 2014, https://arxiv.org/abs/1406.1078, with PyTorch's conventions.
    """

    def __init__(self, input_size: int, hidden_size: int, bias: bool = True):
        super().__init__(input_size, hidden_size, bias, 3)

    def __call__(self, x: Tensor, h: Tensor | None = None) -> Tensor:
        h = self._start(x) if h is None else h
        self._checked(x, h)
        of_input, of_state = self._products(x, h)
        (ri, zi, ni), (rh, zh, nh) = of_input.chunk(3, -1), of_state.chunk(3, -1)
        n = (ni + (ri + rh).sigmoid() * nh).tanh()
        return n + (zi + zh).sigmoid() * (h - n)
