"""Layers by themselves: sequences against their cells, layers inside `jit`, and mistakes."""
# Mistakes are made on purpose.
# mypy: disable-error-code="arg-type,misc"
from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from conftest import devices
from support.beside_torch import normal

from minigrad import Tensor, config, jit, nn
from minigrad.errors import DTypeError, ShapeError


@pytest.mark.parametrize("device", ["CPU", "NUMPY"])
@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_a_sequence_is_its_cell_step_by_step(kind: str, device: str) -> None:
    with config(device=device):
        layer, cell = getattr(nn, kind)(3, 4), getattr(nn, kind + "Cell")(3, 4)
        nn.state.load_state_dict(cell, {n.removesuffix("_l0"): p for n, p in nn.state.get_state_dict(layer).items()})
        x = Tensor(normal(3, 2, 3))
        output, last = layer(x)
        state: Any = None
        found = []
        for t in range(3):
            state = cell(x[t], state)
            found.append(state[0] if kind == "LSTM" else state)
        np.testing.assert_allclose(output.numpy(), Tensor.stack(*found).numpy(), rtol=1e-5, atol=1e-6)
        for got, expected in zip(last, state, strict=True) if kind == "LSTM" else [(last, state)]:
            np.testing.assert_allclose(got.numpy()[0], expected.numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("device", ["CPU", "NUMPY"])
def test_a_bidirectional_sequence_reads_both_ways(device: str) -> None:
    """The second half of the output is that of the sequence in reverse; a first layer's dropout leaves elements out."""
    with config(device=device):
        both = nn.GRU(3, 4, bidirectional=True, batch_first=True)
        back = nn.GRU(3, 4, batch_first=True)
        state = nn.state.get_state_dict(both)
        nn.state.load_state_dict(back, {n: state[n + "_reverse"] for n in nn.state.get_state_dict(back)})
        x = Tensor(normal(2, 3, 3))
        output, last = both(x)
        wanted, end = back(x.flip(1))
        assert output.shape == (2, 3, 8) and last.shape == (2, 2, 4)
        np.testing.assert_allclose(output[..., 4:].numpy(), wanted.flip(1).numpy(), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(last[1].numpy(), end[0].numpy(), rtol=1e-5, atol=1e-6)


def test_dropout_stands_between_layers_while_training() -> None:
    with config(device="NUMPY"):
        layers, x = nn.LSTM(3, 4, num_layers=2, dropout=1.0), Tensor(normal(4, 2, 3))
        plain = layers(x)[0].numpy()
        with Tensor.train():
            left_out = layers(x)[0].numpy()
        second = nn.LSTM(4, 4)
        state = nn.state.get_state_dict(layers)
        nn.state.load_state_dict(second, {n: state[n.replace("_l0", "_l1")] for n in nn.state.get_state_dict(second)})
        np.testing.assert_allclose(left_out, second(Tensor.zeros(4, 2, 4))[0].numpy(), rtol=1e-5, atol=1e-6)
        assert not np.allclose(plain, left_out)


@pytest.mark.parametrize("device", [d for d in devices() if d != "NUMPY"])
def test_inside_jit(device: str) -> None:
    with config(device=device):
        cell, attention = nn.LSTMCell(4, 4), nn.MultiheadAttention(4, 2, batch_first=True)
        head = nn.Sequential(nn.GELU(), nn.Flatten(), nn.Linear(12, 2), nn.Softmax(-1))

        def run(x: Tensor) -> tuple[Tensor, ...]:
            h, c = cell(x[:, 0])
            return h, c, head(attention(x, x, x)[0])

        step = jit(run)
        for seed in range(4):
            x = Tensor(normal(2, 3, 4, seed=seed)).realize()
            for got, expected in zip(step(x), run(x), strict=True):
                np.testing.assert_allclose(got.numpy(), expected.numpy(), rtol=1e-5, atol=1e-6)


def x(*shape: int) -> Tensor:
    return Tensor.zeros(*shape)


ERRORS: list[tuple[Any, type[Exception], str]] = [
    (lambda: nn.Conv1d(2, 3, 2)(x(1, 3, 5)), ShapeError, r"\[Conv1d\] expected \[N, 2, W\], got \[1, 3, 5\]"),
    (lambda: nn.Conv1d(2, 3, (2, 2)), ShapeError, r"\[Conv1d\] expected one integer or 1 of them, got \(2, 2\)"),
    (lambda: nn.Conv1d(2, 3, 2, 2, "same"), ShapeError, r"\[Conv1d\] expected padding .* with stride \(2,\)"),
    (lambda: nn.Sequential(3), DTypeError, r"\[Sequential\] expected layers that can be called, got int as 0"),
    (lambda: nn.Sequential({"append": nn.ReLU()}), DTypeError, r"\[Sequential\] expected a name of its own"),
    (lambda: nn.MaxPool2d(2, padding=2), ShapeError, r"\[MaxPool2d\] expected a padding of 0 to half the kernel"),
    (lambda: nn.AdaptiveAvgPool2d((1, 2, 3))(x(1, 2, 3)), ShapeError, r"\[AdaptiveAvgPool2d\] expected one size or 2"),
    (lambda: nn.AdaptiveAvgPool2d(-1)(x(1, 2, 3)), ShapeError, r"\[AdaptiveAvgPool2d\] expected an output size"),
    (lambda: nn.Unflatten(1, 3), ShapeError, r"\[Unflatten\] expected sizes of the new axes, got 3"),
    (lambda: nn.GELU("erf"), DTypeError, r"\[GELU\] expected approximate 'none' or 'tanh', got 'erf'"),
    (lambda: nn.MultiheadAttention(6, 4), ShapeError, r"\[MultiheadAttention\] expected embed_dim divisible by num"),
    (lambda: nn.MultiheadAttention(4, 2)(x(2, 3, 5), x(2, 3, 4), x(2, 3, 4)), ShapeError,
     r"\[MultiheadAttention\] expected query and key and value \[L, N, E\].* E = 4, got \[2, 3, 5\]"),
    (lambda: nn.MultiheadAttention(4, 2)(*[x(2, 3, 4)] * 3, attn_mask=x(3, 3)), ShapeError,
     r"\[MultiheadAttention\] expected attn_mask \[2, 2\] or \[6, 2, 2\], got \[3, 3\]"),
    (lambda: nn.MultiheadAttention(4, 2)(*[x(2, 3, 4)] * 3, key_padding_mask=x(2, 3)), ShapeError,
     r"\[MultiheadAttention\] expected key_padding_mask \[3, 2\], got \[2, 3\]"),
    (lambda: nn.LSTMCell(3, 4)(x(2, 4)), ShapeError, r"\[LSTMCell\] expected x \[N, 3\] or \[3\], got \[2, 4\]"),
    (lambda: nn.LSTMCell(3, 4)(x(2, 3), x(2, 4)), ShapeError, r"\[LSTMCell\] expected a state \(h, c\), got Tensor"),
    (lambda: nn.GRUCell(3, 4)(x(2, 3), x(1, 4)), ShapeError, r"\[GRUCell\] expected a state \[2, 4\] for x \[2, 3\]"),
    (lambda: nn.LSTM(3, 4)(x(5, 2, 4)), ShapeError, r"\[LSTM\] expected x \[T, N, 3\] or \[T, 3\] with T at least 1"),
    (lambda: nn.LSTM(3, 4)(x(0, 2, 3)), ShapeError, r"\[LSTM\] expected .* at least 1, got \[0, 2, 3\]"),
    (lambda: nn.LSTM(3, 4)(x(5, 2, 3), x(1, 2, 4)), ShapeError, r"\[LSTM\] expected a state \(h, c\), got Tensor"),
    (lambda: nn.GRU(3, 4, batch_first=True)(x(2, 5, 3), x(2, 2, 4)), ShapeError,
     r"\[GRU\] expected a state \[1, 2, 4\] for x \[2, 5, 3\], got \[2, 2, 4\]"),
    (lambda: nn.GRU(3, 4, dropout=2), ShapeError, r"\[GRU\] expected a dropout in 0..1, got 2"),
    (lambda: nn.GRUCell(3, 0), ShapeError, r"\[GRUCell\] expected hidden_size as an integer of 1 or more, got 0"),
]


@pytest.mark.parametrize("run, kind, message", ERRORS)
def test_mistakes(run: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message), config(device="NUMPY"):
        run()
