"""RNN, GRU and LSTM: one `scan` over time for each direction."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

from minigrad import Tensor
from minigrad import scan as scan_over
from minigrad.onnx.node import Node, Operator
from minigrad.onnx.refusal import refuse

ACTIVATIONS: dict[str, Callable[[Tensor, float, float], Tensor]] = {
    "Sigmoid": lambda x, a, b: x.sigmoid(), "Tanh": lambda x, a, b: x.tanh(), "Relu": lambda x, a, b: x.relu(),
    "Affine": lambda x, a, b: x * a + b, "LeakyRelu": lambda x, a, b: (x < 0).where(x * a, x),
    "ThresholdedRelu": lambda x, a, b: (x > a).where(x, 0), "ScaledTanh": lambda x, a, b: (x * b).tanh() * a,
    "HardSigmoid": lambda x, a, b: (x * a + b).clip(0, 1), "Elu": lambda x, a, b: (x < 0).where(a * (x.exp() - 1), x),
    "Softsign": lambda x, a, b: x.softsign(), "Softplus": lambda x, a, b: x.softplus(),
}
DEFAULTS = {"Affine": (1.0, 0.0), "LeakyRelu": (0.01, 0.0), "ThresholdedRelu": (1.0, 0.0), "ScaledTanh": (1.0, 1.0),
            "HardSigmoid": (0.2, 0.5), "Elu": (1.0, 0.0)}
USUAL = {"RNN": ["Tanh"], "GRU": ["Sigmoid", "Tanh"], "LSTM": ["Sigmoid", "Tanh", "Tanh"]}


def activations(n: Node, op: str, directions: int) -> list[list[Any]]:
    """The functions of each direction, after the clip."""
    names = n.attribute("activations") or USUAL[op] * directions
    alphas, betas = list(n.attribute("activation_alpha", [])), list(n.attribute("activation_beta", []))
    limit, found = n.attribute("clip"), []
    for name in names:
        if name not in ACTIVATIONS:
            raise refuse(f"activation {name!r}", ", ".join(ACTIVATIONS))
        a, b = DEFAULTS.get(name, (0.0, 0.0))
        a = alphas.pop(0) if alphas and name in DEFAULTS else a
        b = betas.pop(0) if betas and name in ("Affine", "ScaledTanh", "HardSigmoid") else b

        def function(x: Tensor, f: Any = ACTIVATIONS[name], a: float = a, b: float = b) -> Tensor:
            return f(x if limit is None else x.clip(-limit, limit), a, b)
        found.append(function)
    each = len(USUAL[op])
    return [found[i * each:(i + 1) * each] for i in range(directions)]


Product = Callable[[Tensor, Any], Tensor]
"""x W^T, for rows x [N, K] and weights W [M, K] in whatever form."""


def rnn_step(n: Node, x: Tensor, state: list[Tensor], R: Any, bias: Tensor, f: list, P: Any,
             product: Product) -> list[Tensor]:
    """h' = f(x + h R^T + b)."""
    return [f[0](x + product(state[0], R) + bias)]


def gru_step(n: Node, x: Tensor, state: list[Tensor], R: Any, bias: Tensor, f: list, P: Any,
             product: Product) -> list[Tensor]:
    """Update and reset gates; the new value sees h reset before or after its product."""
    h, size = state[0], state[0].shape[-1]
    gates = x[:, :2 * size] + product(h, R[:2 * size]) + bias[:2 * size]
    z, r = f[0](gates[:, :size]), f[0](gates[:, size:])
    if n.attribute("linear_before_reset", 0):
        new = r * (product(h, R[2 * size:]) + bias[2 * size:])
    else:
        new = product(r * h, R[2 * size:]) + bias[2 * size:]
    return [(1 - z) * f[1](x[:, 2 * size:] + new) + z * h]


def lstm_step(n: Node, x: Tensor, state: list[Tensor], R: Any, bias: Tensor, f: list, P: Any,
              product: Product) -> list[Tensor]:
    """Input, output and forget gates, which may see the cell."""
    h, c = state
    i, o, g, new = (x + product(h, R) + bias).chunk(4, dim=1)
    if P is not None:
        p_i, p_o, p_f = P.chunk(3, dim=0)
        i, g = i + p_i * c, g + p_f * c
    forget = 1 - f[0](i) if n.attribute("input_forget", 0) else f[0](g)
    cell = forget * c + f[0](i) * f[1](new)
    return [f[0](o if P is None else o + p_o * cell) * f[2](cell), cell]


STEPS = {"RNN": (1, rnn_step), "GRU": (3, gru_step), "LSTM": (4, lstm_step)}


def recurrent(n: Node, op: str, W: Any = None, R: Any = None, product: Product = lambda x, w: x @ w.T) -> Any:
    """(all h [T, directions, N, H], the last h, for an LSTM the last c), batch first with layout.

    `W` and `R` are the weights of each direction, of inputs and of states, for which `product` is called; inputs 1 and
    2 where they are not given.
    """
    X, B, lengths = n.tensor(0), n.tensor(3, None), n.tensor(4, None)
    W, R = n.tensor(1) if W is None else W, n.tensor(2) if R is None else R
    batch_first = n.attribute("layout", 0)
    X = X.transpose(0, 1) if batch_first else X
    (T, N, _), directions, size = X.shape, n.tensor(1).shape[0], n.attribute("hidden_size", R[0].shape[-1])
    gates, step = STEPS[op]
    first = [n.tensor(5, None), n.tensor(6, None)] if op == "LSTM" else [n.tensor(5, None)]
    first = [s if s is None or not batch_first else s.transpose(0, 1) for s in first]
    zeros = Tensor.zeros(N, size, dtype=X.dtype, device=X.device)
    functions, outputs, lasts = activations(n, op, directions), [], []
    steps = Tensor.arange(T, device=X.device).reshape(T, 1, 1)
    alive = None if lengths is None else steps < lengths.reshape(1, N, 1).cast(steps.dtype)
    for d in range(directions):
        reverse = n.attribute("direction", "forward") == "reverse" or d == 1
        bias = zeros[0] if B is None else B[d, gates * size:]
        xs = product(X, W[d]) if B is None else product(X, W[d]) + B[d, :gates * size]
        bias = bias if B is not None else Tensor.zeros(gates * size, dtype=X.dtype, device=X.device)
        peep = n.tensor(7, None) if op == "LSTM" else None

        def go(state: Any, x: Any, d: int = d, bias: Tensor = bias, peep: Any = peep) -> Any:
            x, live = x if alive is not None else (x, None)
            new = step(n, x, state, R[d], bias, functions[d], None if peep is None else peep[d], product)
            if live is None:
                return new, new[0]
            return [live.where(a, b) for a, b in zip(new, state, strict=True)], live.where(new[0], 0)
        state = [zeros if s is None else s[d] for s in first]
        state, ys = scan_over(go, state, xs if alive is None else (xs, alive), reverse=reverse)
        outputs.append(ys)
        lasts.append(state)
    Y = outputs[0].stack(*outputs[1:], dim=1)
    last = [lasts[0][i].stack(*[state[i] for state in lasts[1:]], dim=0) for i in range(len(first))]
    if batch_first:
        return [Y.permute(2, 0, 1, 3), *[v.transpose(0, 1) for v in last]]
    return [Y, *last]


TABLE: dict[str, Operator] = {op: lambda n: recurrent(n, n.op) for op in STEPS}
