"""Recurrent networks: LSTMCell, GRUCell and RNNCell are one step, LSTM, GRU and RNN whole sequences."""
from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

from minigrad.errors import ShapeError
from minigrad.mixins.base import as_count, as_number, as_tensor
from minigrad.mixins.blocks import as_block
from minigrad.mixins.linalg import projected
from minigrad.mixins.loops import scan
from minigrad.nn.module import Layer
from minigrad.nn.utils.rnn import PackedSequence
from minigrad.tensor import Tensor

_PARTS = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")


def _uniform(hidden_size: int, *shape: int) -> Tensor:
    """A new parameter, uniform in +-1/sqrt(hidden_size)."""
    bound = 1 / math.sqrt(hidden_size)
    return Tensor.uniform(*shape, low=-bound, high=bound, requires_grad=True)


class _Cell(Layer):
    """`weight_ih` [gates * hidden_size, input_size], `weight_hh` [gates * hidden_size, hidden_size], `bias_ih` and
    `bias_hh` [gates * hidden_size] (None without), all uniform in +-1/sqrt(hidden_size), as in PyTorch."""

    def __init__(self, input_size: int, hidden_size: int, bias: bool, gates: int):
        name = type(self).__name__
        self.input_size = as_count(name, "input_size", input_size)
        self.hidden_size = as_count(name, "hidden_size", hidden_size, 1)
        rows = gates * hidden_size
        self.weight_ih, self.weight_hh = [_uniform(hidden_size, rows, n) for n in (input_size, hidden_size)]
        self.bias_ih, self.bias_hh = [_uniform(hidden_size, rows) if bias else None for _ in range(2)]

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
        return projected(x, self.weight_ih, self.bias_ih), projected(h, self.weight_hh, self.bias_hh)


class LSTMCell(_Cell):
    """i, f, o = sigmoid and g = tanh of W_ih x + b_ih + W_hh h + b_hh;  c' = f * c + i * g;  h' = o * tanh(c').

    x is [N, input_size] or [input_size]; the state (h, c) is [N, hidden_size] each, zeros unless given; the result is
    (h', c'). The gates stand in the weights in the order i, f, g, o.

    Source: Hochreiter & Schmidhuber 1997, https://doi.org/10.1162/neco.1997.9.8.1735
    """

    def __init__(self, input_size: int, hidden_size: int, bias: bool = True):
        super().__init__(input_size, hidden_size, bias, 4)

    def forward(self, x: Tensor, state: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, Tensor]:
        if state is not None and not (isinstance(state, (tuple, list)) and len(state) == 2):
            raise ShapeError(f"[LSTMCell] expected a state (h, c), got {type(state).__name__}")
        h, c = (self._start(x), self._start(x)) if state is None else state
        self._checked(x, h, c)
        of_input, of_state = self._products(x, h)
        return (of_input + of_state).lstm_step(c)


class GRUCell(_Cell):
    """r, z = sigmoid(W_ih x + b_ih + W_hh h + b_hh);  n = tanh(W_in x + b_in + r * (W_hn h + b_hn));
    h' = (1 - z) * n + z * h.

    x is [N, input_size] or [input_size]; the state h [N, hidden_size], zeros unless given. The gates stand in the
    weights in the order r, z, n.

    Source: Cho et al. 2014, https://arxiv.org/abs/1406.1078, with PyTorch's conventions.
    """

    def __init__(self, input_size: int, hidden_size: int, bias: bool = True):
        super().__init__(input_size, hidden_size, bias, 3)

    def forward(self, x: Tensor, h: Tensor | None = None) -> Tensor:
        h = self._start(x) if h is None else h
        self._checked(x, h)
        of_input, of_state = self._products(x, h)
        return of_input.gru_step(of_state, h)


def _nonlinear(name: str, nonlinearity: str) -> str:
    if nonlinearity not in ("tanh", "relu"):
        raise ShapeError(f"[{name}] expected nonlinearity 'tanh' or 'relu', got {nonlinearity!r}")
    return nonlinearity


class RNNCell(_Cell):
    """h' = tanh (or relu) of W_ih x + b_ih + W_hh h + b_hh.

    x is [N, input_size] or [input_size]; the state h [N, hidden_size], zeros unless given.

    Source: Elman 1990, https://doi.org/10.1207/s15516709cog1402_1
    """

    def __init__(self, input_size: int, hidden_size: int, bias: bool = True, nonlinearity: str = "tanh"):
        self.nonlinearity = _nonlinear("RNNCell", nonlinearity)
        super().__init__(input_size, hidden_size, bias, 1)

    def forward(self, x: Tensor, h: Tensor | None = None) -> Tensor:
        h = self._start(x) if h is None else h
        self._checked(x, h)
        of_input, of_state = self._products(x, h)
        return getattr(of_input + of_state, self.nonlinearity)()


class _Layers(Layer):
    """`num_layers` recurrent layers over a sequence, each reading what the one before gave, both ways if
    `bidirectional`; while training, `dropout` is the share of that which is left out.

    x is [T, N, input_size] for T steps, [N, T, input_size] with `batch_first`, or [T, input_size]. The result is the
    last layer's states of all steps, as x with directions * hidden_size elements, and the states after the last step,
    [num_layers * directions, N, hidden_size] each (no N if x has none), which is also the form of the states before the
    first one, zeros unless given. Parameters are those of a cell, with `_l0`, `_l0_reverse`, `_l1`, ... added to their
    names, as in PyTorch. Graphs and plans grow with T where it is known; with a symbolic one a layer is one loop, for
    all lengths (`scan`). For a PackedSequence, each sequence ends, and its states stay, after its length.
    """

    gates: ClassVar[int]
    states: ClassVar[int]  # Tensors that a state is made of

    def __init__(self, input_size: int, hidden_size: int, num_layers: int = 1, bias: bool = True,
                 batch_first: bool = False, dropout: float = 0.0, bidirectional: bool = False):
        name = type(self).__name__
        self.input_size = as_count(name, "input_size", input_size)
        self.hidden_size = as_count(name, "hidden_size", hidden_size, 1)
        self.num_layers = as_count(name, "num_layers", num_layers, 1)
        self.dropout = as_number(name, "dropout", dropout)
        if not 0 <= self.dropout <= 1:
            raise ShapeError(f"[{name}] expected a dropout in 0..1, got {dropout!r}")
        self.bias, self.batch_first, self.bidirectional = bias, batch_first, bidirectional
        rows = self.gates * hidden_size
        for k, suffix in enumerate(self._suffixes()):
            depth = input_size if k < self._directions() else hidden_size * self._directions()
            for part, shape in zip(_PARTS, ((rows, depth), (rows, hidden_size), (rows,), (rows,)), strict=True):
                if bias or part.startswith("weight"):
                    setattr(self, part + suffix, _uniform(hidden_size, *shape))

    def flatten_parameters(self) -> None:
        """Nothing, as weights need not lie in one block of memory here."""

    def _directions(self) -> int:
        return 2 if self.bidirectional else 1

    def _suffixes(self) -> list[str]:
        """The ends of the parameters' names, by layer and direction."""
        return [f"_l{k}{end}" for k in range(self.num_layers) for end in ("", "_reverse")[:self._directions()]]

    def _step(self, of_input: Tensor, of_state: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """The state after a step, h first, from the products with the weights, [N, gates * hidden_size]."""
        raise NotImplementedError

    def _run(self, x: Any, state: Sequence[Tensor] | None) -> tuple[Any, tuple[Tensor, ...]]:
        if isinstance(x, PackedSequence):
            inside = x.inside().unsqueeze(-1)
            steps, last = self._all(inside.where(x.padded, 0), self._states(x.padded, x.padded, state), inside)
            return PackedSequence(steps, x.lengths), last
        name = type(self).__name__
        if as_tensor(name, x).ndim not in (2, 3) or x.shape[-1] != self.input_size or \
                x.shape[self._time(x)] == 0:
            raise ShapeError(f"[{name}] expected x {'[N, T' if self.batch_first else '[T, N'}, {self.input_size}] or "
                             f"[T, {self.input_size}] with T at least 1, got {list(x.shape)}")
        steps = x.unsqueeze(1) if x.ndim == 2 else x.transpose(0, 1) if self.batch_first else x
        steps, last = self._all(steps, self._states(x, steps, state), None)
        if x.ndim == 2:
            return steps.squeeze(1), tuple([each.squeeze(1) for each in last])
        return steps.transpose(0, 1) if self.batch_first else steps, last

    def _all(self, steps: Tensor, before: list[Tensor], inside: Tensor | None) -> tuple[Tensor, tuple[Tensor, ...]]:
        """(states h of the last layer, the last states of all); `inside` [T, N, 1]: which steps sequences have."""
        after: list[tuple[Tensor, ...]] = []
        suffixes = self._suffixes()
        for layer in range(self.num_layers):
            found = []
            for k in range(layer * self._directions(), (layer + 1) * self._directions()):
                given = tuple([s[k] for s in before])
                found.append(self._sequence(steps, suffixes[k], given, suffixes[k].endswith("reverse"), inside))
            steps = found[0][0].cat(*[f[0] for f in found[1:]], dim=-1)
            after += [f[1] for f in found]
            steps = steps.dropout(self.dropout) if layer + 1 < self.num_layers else steps
        return steps, tuple([Tensor.stack(*each) for each in zip(*after, strict=True)])

    def _time(self, x: Tensor) -> int:
        return 1 if self.batch_first and x.ndim == 3 else 0

    def _states(self, x: Tensor, steps: Tensor, given: Sequence[Tensor] | None) -> list[Tensor]:
        """The states before the first step, [layers * directions, N, hidden_size] each."""
        name, rows = type(self).__name__, self.num_layers * self._directions()
        shape = (rows, steps.shape[1], self.hidden_size)
        if given is None:
            return [Tensor.zeros(*shape, dtype=x.dtype, device=x.device)] * self.states
        wanted = shape if x.ndim == 3 else (rows, self.hidden_size)
        for state in given:
            if as_tensor(name, state).shape != wanted:
                raise ShapeError(f"[{name}] expected a state {list(wanted)} for x {list(x.shape)}, "
                                 f"got {list(state.shape)}")
        return [state.reshape(*shape) for state in given]

    def _sequence(self, steps: Tensor, suffix: str, state: tuple[Tensor, ...],
                  backward: bool, inside: Tensor | None) -> tuple[Tensor, tuple[Tensor, ...]]:
        """(states h of all steps [T, N, hidden_size], the last state) of one layer in one direction."""
        weights: list[Any] = [getattr(self, part + suffix, None) for part in _PARTS]
        weight_ih, weight_hh, bias_ih, bias_hh = weights
        given = {"inputs": projected(steps, weight_ih, bias_ih), "weight": weight_hh, "bias": bias_hh,
                 "inside": inside, **dict(zip("hc", state, strict=False))}
        there = {name: t for name, t in given.items() if t is not None}
        if inside is None and not isinstance(steps.shape[0], int):
            return self._scanned(backward, **there)
        key = type(self), self._kind(), backward, *there
        count = len(steps)

        def unrolled(*operands: Tensor) -> list[Tensor]:
            return [self._unrolled(backward, **dict(zip(there, operands, strict=True)))]

        states, = as_block(type(self).__name__.lower(), key, unrolled, *there.values())
        return states[:count], tuple([states[count + k] for k in range(self.states)])

    def _unrolled(self, backward: bool, inputs: Tensor, weight: Tensor, h: Tensor, c: Tensor | None = None,
                  bias: Tensor | None = None, inside: Tensor | None = None) -> Tensor:
        """The states h of all steps, and then the last state, [T + states, N, hidden_size], of products of the input
        [T, N, gates * hidden_size]: one result, whose gradient is one as well."""
        state: tuple[Tensor, ...] = (h,) if c is None else (h, c)
        weight, count = weight.transpose(), len(inputs)
        outputs = []
        for t in range(count):
            at = count - 1 - t if backward else t
            after = self._step(inputs[at], state[0].linear(weight, bias), state)
            state = after if inside is None else tuple(
                [inside[at].where(new, old) for new, old in zip(after, state, strict=True)])
            outputs.append(state[0] if inside is None else inside[at].where(state[0], 0))
        return Tensor.stack(*(outputs[::-1] if backward else outputs), *state)

    def _scanned(self, backward: bool, inputs: Tensor, weight: Tensor, h: Tensor, c: Tensor | None = None,
                 bias: Tensor | None = None) -> tuple[Tensor, tuple[Tensor, ...]]:
        """(states h of all steps, the last state) as one loop."""
        weight = weight.transpose()

        def step(state: tuple[Tensor, ...], x: Tensor) -> tuple[tuple[Tensor, ...], Tensor]:
            after = self._step(x, state[0].linear(weight, bias), state)
            return after, after[0]

        last, states = scan(step, (h,) if c is None else (h, c), inputs, reverse=backward)
        return states, last

    def _kind(self) -> str:
        """The function of a step, where a class has several."""
        return ""


class LSTM(_Layers):
    __doc__ = (_Layers.__doc__ or "") + """
    A state is (h, c): the result is (output, (h, c)). See LSTMCell.
    """
    gates, states = 4, 2

    def forward(self, x: Any, state: tuple[Tensor, Tensor] | None = None) -> tuple[
            Tensor, tuple[Tensor, Tensor]]:
        if state is not None and not (isinstance(state, (tuple, list)) and len(state) == 2):
            raise ShapeError(f"[LSTM] expected a state (h, c), got {type(state).__name__}")
        output, (h, c) = self._run(x, state)
        return output, (h, c)

    def _step(self, of_input: Tensor, of_state: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return (of_input + of_state).lstm_step(state[1])


class GRU(_Layers):
    __doc__ = (_Layers.__doc__ or "") + """
    A state is h: the result is (output, h). See GRUCell.
    """
    gates, states = 3, 1

    def forward(self, x: Any, h: Tensor | None = None) -> tuple[Any, Tensor]:
        output, (last,) = self._run(x, None if h is None else (h,))
        return output, last

    def _step(self, of_input: Tensor, of_state: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return (of_input.gru_step(of_state, state[0]),)


class RNN(_Layers):
    __doc__ = (_Layers.__doc__ or "") + """
    A state is h: the result is (output, h). See RNNCell.
    """
    gates, states = 1, 1

    def __init__(self, input_size: int, hidden_size: int, num_layers: int = 1, nonlinearity: str = "tanh",
                 bias: bool = True, batch_first: bool = False, dropout: float = 0.0, bidirectional: bool = False):
        self.nonlinearity = _nonlinear("RNN", nonlinearity)
        super().__init__(input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional)

    def _scanned(self, backward: bool, inputs: Tensor, weight: Tensor, h: Tensor, c: Tensor | None = None,
                 bias: Tensor | None = None) -> tuple[Tensor, tuple[Tensor, ...]]:
        """(states h of all steps, the last state) as one loop."""
        weight = weight.transpose()

        def step(state: tuple[Tensor, ...], x: Tensor) -> tuple[tuple[Tensor, ...], Tensor]:
            after = self._step(x, state[0].linear(weight, bias), state)
            return after, after[0]

        last, states = scan(step, (h,) if c is None else (h, c), inputs, reverse=backward)
        return states, last

    def _kind(self) -> str:
        return self.nonlinearity

    def forward(self, x: Any, h: Tensor | None = None) -> tuple[Any, Tensor]:
        output, (last,) = self._run(x, None if h is None else (h,))
        return output, last

    def _step(self, of_input: Tensor, of_state: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return (getattr(of_input + of_state, self.nonlinearity)(),)
