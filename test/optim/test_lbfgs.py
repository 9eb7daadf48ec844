"""LBFGS against PyTorch and against figures of it, with closures that are captured, saved and loaded."""
# mypy: disable-error-code="arg-type"
from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from conftest import needs_torch

from minigrad import Tensor, jit, nn
from minigrad.errors import MinigradError
from minigrad.nn.optim import LBFGS

try:
    import torch
except ImportError:
    torch = None

_RNG = np.random.default_rng(0)
INPUTS, WEIGHT, HEAD = (_RNG.standard_normal(shape) for shape in ((30, 6), (6, 8), (8, 1)))
TARGETS = np.tanh(INPUTS @ _RNG.standard_normal((6, 1)))
CASES: dict[str, dict[str, Any]] = {
    "steps": {"lr": 0.1, "max_iter": 4},
    "a step of one": {"lr": 0.1, "max_iter": 1},
    "short history": {"lr": 0.3, "max_iter": 5, "history_size": 2},
    "search": {"max_iter": 4, "line_search_fn": "strong_wolfe"},
    "few evaluations": {"max_iter": 6, "max_eval": 5, "line_search_fn": "strong_wolfe"},
    "tolerant": {"tolerance_grad": 1e-2, "line_search_fn": "strong_wolfe"},
    "far": {"lr": 40.0, "max_iter": 3, "line_search_fn": "strong_wolfe"},
}
FIGURES: dict[str, tuple[list[float], int]] = {
    "steps": ([6.30427, 3.694644, 1.706031, 0.90403, 0.5277415, 0.3108745], 24),
    "a step of one": ([6.30427, 6.166882, 5.305354, 4.466665, 3.694644, 3.029679], 6),
    "short history": ([6.30427, 1.07578, 0.2281101, 0.07753251, 0.03676208, 0.01918614], 30),
    "search": ([6.30427, 0.348458, 0.1215419, 0.04235447, 0.02236999, 0.01235722], 30),
    "few evaluations": ([6.30427, 0.348458, 0.1215419, 0.04235447, 0.02236999, 0.01235722], 30),
    "tolerant": ([6.30427, 0.01082126, 0.009656118, 0.009656118, 0.009656118, 0.009656118], 28),
    "far": ([6.30427, 1.833585, 1.209502, 0.5020348, 0.3129394, 0.187611], 20),
}
"""Of PyTorch: the losses of six steps, and how often the closure was called."""


pytestmark = pytest.mark.usefixtures("on_cpu")


def problem(kind: Any, make: Callable[..., Any], options: dict[str, Any]) -> tuple[Any, Any, list[Any]]:
    """(optimizer, closure, parameters) of ours or of torch's."""
    w, v = make(WEIGHT, requires_grad=True), make(HEAD, requires_grad=True)
    x, y = make(INPUTS), make(TARGETS)
    optimizer = kind([w, v], **options)

    def closure() -> Any:
        optimizer.zero_grad()
        loss = (((x @ w).tanh() @ v - y) ** 2).mean()
        loss.backward()
        return loss

    return optimizer, closure, [w, v]


@needs_torch
@pytest.mark.parametrize("name", CASES)
def test_steps_equal_torchs(name: str) -> None:
    ours, closure, mine = problem(LBFGS, Tensor, CASES[name])
    reference, other, theirs = problem(torch.optim.LBFGS, torch.tensor, CASES[name])
    for _ in range(6):
        assert ours.step(closure).item() == pytest.approx(reference.step(other).item(), rel=1e-6)
    for p, q in zip(mine, theirs, strict=True):
        np.testing.assert_allclose(p.numpy(), q.detach().numpy(), rtol=1e-5, atol=1e-6)
    assert ours.state[mine[0]]["func_evals"] == reference.state[theirs[0]]["func_evals"]
    assert ours.state[mine[0]]["n_iter"] == reference.state[theirs[0]]["n_iter"]


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("captured", [False, True])
def test_steps_give_figures(name: str, captured: bool) -> None:
    optimizer, closure, parameters = problem(LBFGS, Tensor, CASES[name])
    run = jit(closure) if captured else closure
    losses, calls = FIGURES[name]
    assert [optimizer.step(run).item() for _ in range(6)] == pytest.approx(losses, rel=1e-5)
    assert optimizer.state[parameters[0]]["func_evals"] == calls


def test_it_finds_the_minimum_of_a_curved_valley() -> None:
    """Rosenbrock's, with a frozen parameter beside, one without a gradient, and float32."""
    p, frozen, none = (Tensor(a, requires_grad=True) for a in ([-1.2, 1.0], [3.0], [4.0]))
    optimizer = LBFGS([p, frozen, none], line_search_fn="strong_wolfe", max_iter=100)
    frozen.requires_grad_(False)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = (1 - p[0]) ** 2 + 100 * (p[1] - p[0] ** 2) ** 2 + frozen.sum() * 0
        return loss.backward()

    optimizer.step(closure)
    np.testing.assert_allclose(p.numpy(), [1.0, 1.0], rtol=1e-3)
    assert frozen.item() == 3.0 and none.item() == 4.0
    assert optimizer.step(closure).item() < 1e-8


@pytest.mark.parametrize("name", ["steps", "search"])
def test_saved_and_loaded_it_goes_on(name: str) -> None:
    optimizer, closure, parameters = problem(LBFGS, Tensor, CASES[name])
    for _ in range(2):
        optimizer.step(closure)
    saved = pickle.dumps((optimizer.state_dict(), [p.detach() for p in parameters]))
    expected = [optimizer.step(closure).item() for _ in range(3)]
    again, closure, parameters = problem(LBFGS, Tensor, {})
    state, values = pickle.loads(saved)
    again.load_state_dict(state)
    for p, value in zip(parameters, values, strict=True):
        p.data.copy_(value)
    assert [again.step(closure).item() for _ in range(3)] == expected


@needs_torch
def test_states_of_torch_are_loaded() -> None:
    options = CASES["search"]
    reference, other, theirs = problem(torch.optim.LBFGS, torch.tensor, options)
    ours, closure, mine = problem(LBFGS, Tensor, {})
    for _ in range(2):
        reference.step(other)
    ours.load_state_dict(reference.state_dict())
    for p, q in zip(mine, theirs, strict=True):
        p.data.copy_(Tensor(q.detach().numpy()))
    for _ in range(3):
        assert ours.step(closure).item() == pytest.approx(reference.step(other).item(), rel=1e-6)


def test_mistakes() -> None:
    p = Tensor.ones(2, requires_grad=True)
    optimizer = LBFGS([p])
    for run, message in (
            (lambda: LBFGS([p], line_search_fn="armijo"), "[LBFGS] expected line_search_fn None or 'strong_wolfe'"),
            (lambda: LBFGS([{"params": [p]}, {"params": []}]), "[LBFGS] expected parameters in one list, got groups"),
            (lambda: optimizer.step(), "[LBFGS.step] expected a closure that computes the loss"),
            (lambda: optimizer.step(lambda: None), "[LBFGS.step] expected a closure that returns the loss, got None"),
            (lambda: optimizer.add_param_group({"params": [p]}), "[LBFGS] expected parameters in one list"),
            (lambda: nn.optim.OptimizerGroup(optimizer).step(), "[LBFGS] expected a call of step(closure)"),
            (lambda: optimizer.load_state_dict({}), "[LBFGS.load_state_dict] expected a dictionary with 'state'"),
            (lambda: optimizer.load_state_dict({"state": {0: {"d": [1.0]}}, "param_groups": [{"lr": 1}]}),
             "[LBFGS.load_state_dict]")):
        with pytest.raises(MinigradError) as caught:
            run()
        assert message in str(caught.value)
