"""Steps of recurrent layers as composites: a step is two or three Nodes with those of its gradient, rather than forty.

Gates lie side by side along the last axis, in PyTorch's order.
"""
from __future__ import annotations

from typing import Any

from minigrad.errors import present
from minigrad.ops import build as B
from minigrad.ops.composite import composite
from minigrad.ops.node import Node, apply


def _like(k: int) -> Any:
    """An `infer` for results with the shape and dtype of the operand k."""
    return lambda shapes, dtypes: (shapes[k], dtypes[k])


def _part(x: Node, k: int, count: int) -> Node:
    """The k-th of `count` equal parts along the last axis."""
    length: Any = x.shape[-1]
    size = length // count
    return B.slice_(x, (*[0] * (len(x.shape) - 1), k * size), (*x.shape[:-1], (k + 1) * size))


def _joined(parts: dict[int, Node], count: int) -> Node:
    """The parts by number, joined along the last axis in their order, zeros for those that are missing."""
    total: Node | None = None
    for k, part in parts.items():
        size: Any = part.shape[-1]
        placed = B.pad(part, (*[(0, 0)] * (len(part.shape) - 1), (k * size, (count - 1 - k) * size)))
        total = placed if total is None else B.add(total, placed)
    return present(total, "[recurrent] expected parts to join")


def _rest(x: Node) -> Node:
    """1 - x."""
    return B.sub(B.full_like(x, 1), x)


def _through_sigmoid(s: Node, g: Node) -> Node:
    return B.mul(g, B.mul(s, _rest(s)))


def _through_tanh(t: Node, g: Node) -> Node:
    return B.mul(g, _rest(B.mul(t, t)))


# LSTM: c' = sigmoid(f) * c + sigmoid(i) * tanh(g) and h' = sigmoid(o) * tanh(c') of gates i, f, g, o


def _lstm_memory(gates: Node, c: Node) -> Node:
    i, f, g = B.sigmoid(_part(gates, 0, 4)), B.sigmoid(_part(gates, 1, 4)), B.tanh(_part(gates, 2, 4))
    return B.add(B.mul(f, c), B.mul(i, g))


def _lstm_memory_vjp(node: Node, grad: Node) -> tuple[Node, Node]:
    gates, c = node.inputs
    return apply(LSTM_MEMORY_GATES, gates, c, grad), apply(LSTM_MEMORY_BEFORE, c, gates, grad)


def _lstm_memory_gates(gates: Node, c: Node, grad: Node) -> Node:
    i, f, g = B.sigmoid(_part(gates, 0, 4)), B.sigmoid(_part(gates, 1, 4)), B.tanh(_part(gates, 2, 4))
    return _joined({0: _through_sigmoid(i, B.mul(grad, g)), 1: _through_sigmoid(f, B.mul(grad, c)),
                    2: _through_tanh(g, B.mul(grad, i))}, 4)


def _lstm_memory_before(c: Node, gates: Node, grad: Node) -> Node:
    return B.mul(grad, B.sigmoid(_part(gates, 1, 4)))


def _lstm_output(gates: Node, c: Node) -> Node:
    return B.mul(B.sigmoid(_part(gates, 3, 4)), B.tanh(c))


def _lstm_output_vjp(node: Node, grad: Node) -> tuple[Node, Node]:
    gates, c = node.inputs
    return apply(LSTM_OUTPUT_GATES, gates, c, grad), apply(LSTM_OUTPUT_MEMORY, c, gates, grad)


def _lstm_output_gates(gates: Node, c: Node, grad: Node) -> Node:
    return _joined({3: _through_sigmoid(B.sigmoid(_part(gates, 3, 4)), B.mul(grad, B.tanh(c)))}, 4)


def _lstm_output_memory(c: Node, gates: Node, grad: Node) -> Node:
    return _through_tanh(B.tanh(c), B.mul(grad, B.sigmoid(_part(gates, 3, 4))))


LSTM_MEMORY = composite("lstm_memory", _like(1), _lstm_memory, _lstm_memory_vjp)
LSTM_MEMORY_GATES = composite("lstm_memory_gates", _like(0), _lstm_memory_gates, None)
LSTM_MEMORY_BEFORE = composite("lstm_memory_before", _like(0), _lstm_memory_before, None)
LSTM_OUTPUT = composite("lstm_output", _like(1), _lstm_output, _lstm_output_vjp)
LSTM_OUTPUT_GATES = composite("lstm_output_gates", _like(0), _lstm_output_gates, None)
LSTM_OUTPUT_MEMORY = composite("lstm_output_memory", _like(0), _lstm_output_memory, None)


def lstm_memory(gates: Node, c: Node) -> Node:
    """c' [..., H] of gates [..., 4 * H] and c [..., H], of one float type."""
    return apply(LSTM_MEMORY, gates, c)


def lstm_output(gates: Node, c: Node) -> Node:
    """h' [..., H] of gates [..., 4 * H] and c' [..., H], of one float type."""
    return apply(LSTM_OUTPUT, gates, c)


# GRU: h' = n + sigmoid(zx + zh) * (h - n) with n = tanh(nx + sigmoid(rx + rh) * nh) of parts r, z, n of both products


def _gru_gates(x: Node, s: Node) -> tuple[Node, Node, Node]:
    r, z = [B.sigmoid(B.add(_part(x, k, 3), _part(s, k, 3))) for k in range(2)]
    return r, z, B.tanh(B.add(_part(x, 2, 3), B.mul(r, _part(s, 2, 3))))


def _gru(x: Node, s: Node, h: Node) -> Node:
    _, z, n = _gru_gates(x, s)
    return B.add(n, B.mul(z, B.sub(h, n)))


def _gru_vjp(node: Node, grad: Node) -> tuple[Node, Node, Node]:
    x, s, h = node.inputs
    return apply(GRU_INPUT, x, s, h, grad), apply(GRU_STATE, x, s, h, grad), apply(GRU_BEFORE, x, s, h, grad)


def _gru_sums(x: Node, s: Node, h: Node, grad: Node) -> tuple[Node, Node, Node, Node]:
    """The gradients by the sums inside r, z and n, and r."""
    r, z, n = _gru_gates(x, s)
    by_n = _through_tanh(n, B.add(grad, B.neg(B.mul(grad, z))))
    by_r = _through_sigmoid(r, B.mul(by_n, _part(s, 2, 3)))
    return by_r, _through_sigmoid(z, B.mul(grad, B.sub(h, n))), by_n, r


def _gru_input(x: Node, s: Node, h: Node, grad: Node) -> Node:
    by_r, by_z, by_n, _ = _gru_sums(x, s, h, grad)
    return _joined({0: by_r, 1: by_z, 2: by_n}, 3)


def _gru_state(x: Node, s: Node, h: Node, grad: Node) -> Node:
    by_r, by_z, by_n, r = _gru_sums(x, s, h, grad)
    return _joined({0: by_r, 1: by_z, 2: B.mul(by_n, r)}, 3)


def _gru_before(x: Node, s: Node, h: Node, grad: Node) -> Node:
    return B.mul(grad, B.sigmoid(B.add(_part(x, 1, 3), _part(s, 1, 3))))


GRU = composite("gru", _like(2), _gru, _gru_vjp)
GRU_INPUT = composite("gru_input", _like(0), _gru_input, None)
GRU_STATE = composite("gru_state", _like(0), _gru_state, None)
GRU_BEFORE = composite("gru_before", _like(2), _gru_before, None)


def gru(x: Node, s: Node, h: Node) -> Node:
    """h' [..., H] of the products [..., 3 * H] of input and state, and h [..., H], all of one float type."""
    return apply(GRU, x, s, h)
