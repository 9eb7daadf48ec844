"""Optimizers as programs for PyTorch make and use them: the same source runs with torch and here."""
# What runs with both has the types of neither.
# mypy: disable-error-code="name-defined,misc"
from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import minigrad
from minigrad import Tensor, config, jit

torch = pytest.importorskip("torch")

LIBRARIES = [minigrad, torch]
KINDS = [n for n in minigrad.optim.__all__
         if hasattr(torch.optim, n) and n not in ("LBFGS", "Muon", "Optimizer", "lr_scheduler")]
"""PyTorch's Muon computes in bfloat16."""

START = [np.random.default_rng(k).standard_normal((4, 3)).astype(np.float32) for k in range(4)]


@pytest.fixture(autouse=True)
def _on_numpy() -> Any:
    with config(device="NUMPY"):
        yield


def parameters(library: Any, dtype: str = "float32") -> list[Any]:
    return [library.nn.Parameter(library.tensor(a).to(getattr(library, dtype))) for a in START]


def train(ps: list[Any], optimizer: Any, steps: int = 3) -> None:
    for k in range(steps):
        optimizer.zero_grad()
        sum([((p - k * 0.1) ** 2 * (n + 1)).sum() for n, p in enumerate(ps) if p.requires_grad]).backward()
        optimizer.step()


def numbers(ps: list[Any]) -> list[np.ndarray]:
    return [p.detach().float().numpy().copy() for p in ps]


def compare(program: Callable[[Any], Any]) -> None:
    """What a program returns is the same with both libraries."""
    ours, theirs = (program(library) for library in LIBRARIES)
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs, strict=True):
        if isinstance(b, (np.ndarray, float)):
            np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-6)
        else:
            assert a == b


@pytest.mark.parametrize("name", KINDS)
def test_groups_that_are_frozen_empty_or_have_more_keys(name: str) -> None:
    """And state that goes from one library to the other, with numbers that count frozen parameters."""
    states = {}

    def program(library: Any) -> list[Any]:
        ps = parameters(library)
        ps[0].requires_grad_(False), ps[2].requires_grad_(False)
        groups = [{"params": ps[:1], "name": "frozen"}, {"params": [], "scale": 3},
                  {"params": ps[1:], "lr": 0.05, "name": "rest"}]
        optimizer = getattr(library.optim, name)(groups, lr=0.1)
        assert isinstance(optimizer, getattr(library.optim, name)) and isinstance(optimizer, library.optim.Optimizer)
        train(ps, optimizer)
        ps[2].requires_grad_()
        train(ps, optimizer, 2)
        g = optimizer.param_groups
        g[1]["more"] = g[0].get("name")
        g[2].setdefault("name", "other")
        state = copy.deepcopy(optimizer.state_dict())
        states[library] = {n: {k: np.asarray(t.tolist() if hasattr(t, "tolist") else t) for k, t in kept.items()}
                           for n, kept in state["state"].items()}, state["param_groups"]
        kept = {k: sorted(v) if isinstance(v, dict) else v for k, v in state["state"].items()}
        return [*numbers(ps), g[0]["name"], g[1]["scale"], g[1]["more"], g[2]["name"], len(g[1]["params"]),
                g[2]["params"][0] is ps[1], name == "Adagrad" or sorted(kept),
                [x["params"] for x in state["param_groups"]]]

    compare(program)
    ps = parameters(minigrad)
    again = getattr(minigrad.optim, name)([{"params": ps[:1]}, {"params": []}, {"params": ps[1:]}], lr=1.0)
    again.load_state_dict({"state": states[torch][0], "param_groups": states[torch][1]})
    assert again.param_groups[2]["lr"] == pytest.approx(0.05) and again.param_groups[2]["name"] == "rest"
    assert again.param_groups[1]["more"] == "frozen"
    for n, kept in states[torch][0].items():
        for what, value in kept.items():
            if value.dtype != object and what in again.state[ps[n]]:
                np.testing.assert_allclose(again.state[ps[n]][what].numpy(), value, rtol=1e-6)


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("before", [0, 2])
def test_a_model_is_moved_after_its_optimizer_is_made(name: str, before: int) -> None:
    """To another type, as torch's before the first step, and to another device, which PyTorch refuses after one."""
    if not before:
        def program(library: Any) -> list[Any]:
            model = library.nn.Linear(3, 4)
            for p, a in zip(model.parameters(), (START[0], START[1][:, 0]), strict=True):
                p.data.copy_(library.tensor(a))
            optimizer = getattr(library.optim, name)(model.parameters(), lr=0.1)
            model.to(library.float64)
            train([*model.parameters()], optimizer, 3)
            return numbers([*model.parameters()])

        compare(program)
    found = []
    for move in (False, True):
        model = minigrad.nn.Linear(3, 4)
        for p, a in zip(model.parameters(), (START[0], START[1][:, 0]), strict=True):
            p.data.copy_(minigrad.tensor(a))
        optimizer = getattr(minigrad.optim, name)(model.parameters(), lr=0.1)
        schedule = minigrad.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
        train([*model.parameters()], optimizer, before)
        model.to("CPU" if move else "NUMPY")
        run = jit(train) if move else train
        for _ in range(3):
            run([*model.parameters()], optimizer, 1)
            schedule.step()
        assert optimizer.param_groups[0]["lr"] == pytest.approx(0.05)
        found.append(numbers([*model.parameters()]))
    for a, b in zip(*found, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-6)


def derived(library: Any) -> dict[str, Callable[[list[Any]], Any]]:
    """Classes as programs derive them."""
    class Own(library.optim.Optimizer):
        def __init__(self, params: Any, lr: float = 0.1, momentum: float = 0.9):
            super().__init__(params, {"lr": lr, "momentum": momentum})

        @library.no_grad()
        def step(self, closure: Any = None) -> Any:
            loss = None
            if closure is not None:
                with library.enable_grad():
                    loss = closure()
            for group in self.param_groups:
                for p in group["params"]:
                    if p.grad is None:
                        continue
                    state = self.state[p]
                    if len(state) == 0:
                        state["step"], state["mean"] = 0, library.zeros_like(p)
                    state["step"] += 1
                    state["mean"].mul_(group["momentum"]).add_(p.grad, alpha=1 - group["momentum"])
                    p.add_(state["mean"], alpha=-group["lr"] / (1 - group["momentum"] ** state["step"]))
            return loss

    class Clipped(library.optim.SGD):
        def __init__(self, params: Any, limit: float, **options: Any):
            super().__init__(params, **options)
            self.limit, self.steps = limit, 0

        def step(self, closure: Any = None) -> Any:
            for group in self.param_groups:
                library.nn.utils.clip_grad_norm_(group["params"], self.limit)
            self.steps += 1
            return super().step(closure)

    class Split(library.optim.AdamW):
        def __init__(self, ps: Any):
            super().__init__([{"params": ps[:2], "weight_decay": 0.0}, {"params": ps[2:], "lr": 0.02}], lr=0.1)

    def grouped(kind: Any, first: dict[str, Any], second: dict[str, Any], *args: Any, **options: Any) -> Any:
        return lambda ps: kind([{"params": ps[:1], **first}, {"params": ps[1:], **second}], *args, **options)

    return {"own": Own, "own in groups": grouped(Own, {"momentum": 0.5}, {"lr": 0.3}),
            "derived": lambda ps: Clipped(ps, 0.5, lr=0.1, momentum=0.9),
            "derived in groups": grouped(Clipped, {"lr": 0.2}, {"weight_decay": 1.0}, 0.5, lr=0.1, momentum=0.9),
            "derived with groups": Split}


@pytest.mark.parametrize("name", derived(minigrad))
def test_classes_derived_from_optimizers(name: str) -> None:
    """They step, are scheduled, saved and loaded, and get another group."""
    def program(library: Any) -> list[Any]:
        ps = parameters(library)
        optimizer = derived(library)[name](ps[:3])
        schedule = library.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
        train(ps[:3], optimizer)
        schedule.step()
        saved = copy.deepcopy(optimizer.state_dict())
        train(ps[:3], optimizer)
        kept = [numbers(ps)[2]]
        again = derived(library)[name](ps[:3])
        again.load_state_dict(saved)
        train(ps[:3], again)
        again.add_param_group({"params": ps[3:], "lr": 0.01, "name": "late"})
        train(ps, again)
        groups = again.param_groups
        return [*kept, *numbers(ps), *[float(g["lr"]) for g in groups], groups[-1]["name"], len(groups),
                getattr(again, "limit", None), getattr(again, "steps", None), type(again).__name__, len(again.state),
                again.defaults["lr"]]

    compare(program)


def test_a_step_of_ones_own_takes_a_closure_and_is_trained_long() -> None:
    def program(library: Any) -> list[Any]:
        ps = parameters(library)
        optimizer = derived(library)["own"](ps)

        def closure() -> Any:
            optimizer.zero_grad()
            loss = sum((p ** 2).sum() for p in ps)
            loss.backward()
            return loss

        losses = [optimizer.step(closure).item() for _ in range(60)]
        return [losses[0], losses[-1], *numbers(ps)]

    compare(program)


@pytest.mark.parametrize("make, message", [
    (lambda o, p: o.Optimizer([p], 0.1), "[Optimizer] expected a dictionary of options as defaults, got 0.1"),
    (lambda o, p: o.Optimizer([p], {"lr": 0.1}).step(), "[Optimizer] expected a method step"),
    (lambda o, p: o.Optimizer([], {"lr": 0.1}), "[Optimizer] expected at least one parameter, got none"),
    (lambda o, p: o.Adam([{"params": p}, p]), "[Adam] expected Tensors under 'params' in each group, got"),
    (lambda o, p: o.Adam([p]).param_groups[0].update(params=[p]), "[param_groups] expected another group by add"),
])
def test_mistakes(make: Any, message: str) -> None:
    with pytest.raises(minigrad.errors.MinigradError) as caught:
        make(minigrad.optim, Tensor.ones(2, requires_grad=True))
    assert message in str(caught.value)
