"""Steps of optimizers: the domain ai.onnx.preview.training."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

from minigrad import Tensor
from minigrad.onnx.node import Node, Operator
from minigrad.onnx.refusal import Invalid


def each(update: Callable[..., tuple[Tensor, ...]], kinds: int) -> Operator:
    """The operator that takes a rate, a count of steps and `kinds` lists of tensors one after another, and gives the
    lists that `update(n, rate, count, gradient, x, *moments)` gives; the gradient comes with its penalty."""
    def run(n: Node) -> Any:
        given = n.tensors()
        rate, count, given = given[0], given[1], given[2:]
        many = len(given) // kinds
        if not many or len(given) != many * kinds:
            raise Invalid(f"expected {kinds} lists of tensors of one length, got {len(given)} in all")
        results = []
        for i in range(many):
            x, gradient, *moments = given[i::many]
            penalty = n.attribute("norm_coefficient", 0.0)
            regular = gradient + x * penalty if penalty else gradient
            results.append(update(n, rate.cast(x.dtype), count.cast(x.dtype), regular, x, *moments))
        return tuple(value for column in zip(*results, strict=True) for value in column)
    return run


def momentum(n: Node, rate: Tensor, count: Tensor, g: Tensor, x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """x less the rate times a running sum of gradients; with nesterov as it will be at the next step."""
    nesterov = n.choice("mode", "", ("standard", "nesterov")) == "nesterov"
    alpha = n.required("alpha")
    v = v * alpha + g * (count > 0).where(n.required("beta"), 1.0)
    return x - rate * (g + v * alpha if nesterov else v), v


def adam(n: Node, rate: Tensor, count: Tensor, g: Tensor, x: Tensor, v: Tensor, h: Tensor) -> tuple[Tensor, ...]:
    """x less the mean of gradients over the root of the mean of their squares."""
    alpha, beta = n.attribute("alpha", 0.9), n.attribute("beta", 0.999)
    v = v * alpha + g * (1 - alpha)
    h = h * beta + g * g * (1 - beta)
    corrected = rate * (1 - beta ** count).sqrt() / (count > 0).where(1 - alpha ** count, 1.0)
    x = x - (count > 0).where(corrected, rate) * v / (h.sqrt() + n.attribute("epsilon", 1e-6))
    return x * (1 - n.attribute("norm_coefficient_post", 0.0)), v, h


def adagrad(n: Node, rate: Tensor, count: Tensor, g: Tensor, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    """x less the gradient over the root of the sum of all squares."""
    h = h + g * g
    rate = rate / (1 + count * n.attribute("decay_factor", 0.0))
    return x - rate * g / (h.sqrt() + n.attribute("epsilon", 1e-6)), h


TABLE: dict[str, Operator] = {"Momentum": each(momentum, 3), "Adam": each(adam, 4), "Adagrad": each(adagrad, 3)}
