"""Arguments by position stand in PyTorch's order: in layers, functions, optimizers, schedules and methods of Tensor."""
from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from conftest import needs_torch

import minigrad
from minigrad import Tensor, functions, nn, optim

SAME = {"axis": "dim", "axis0": "dim0", "axis1": "dim1", "sizes": "split_size", "split_sizes": "split_size",
        "dimension": "dim", "source": "src", "x1": "input", "x2": "other", "self": "input", "vec2": "other"}
"""Names of ours and of PyTorch's for one thing."""

ELSEWHERE: dict[str, str] = {
    "Tensor.norm": "norm(axis) is the Euclidean norm, as the page of operations says",
    "Tensor.polygamma": "the schema is the function's, polygamma(n, input)",
    "F.softmax": "nobody gives a dtype by position, behind _stacklevel",
    "F.log_softmax": "as softmax", "F.gumbel_softmax": "eps, which stands before dim, is gone in PyTorch too",
    "F.multi_margin_loss": "`reduction` stands where the arguments that PyTorch has no more are"}
"""Where the order is another one, and why."""


def named(parameters: Any) -> list[str]:
    """The names of arguments by position, but of those that PyTorch alone knows."""
    return [SAME.get(name, name) for name in parameters]


def ours_of(function: Callable[..., Any]) -> list[str] | None:
    """Names by position; None for any number of them."""
    kinds = [(p.name, p.kind) for p in inspect.signature(function).parameters.values()]
    if any(kind is inspect.Parameter.VAR_POSITIONAL for _, kind in kinds):
        return None
    return named([name for name, kind in kinds if kind is inspect.Parameter.POSITIONAL_OR_KEYWORD])


def theirs_of(function: Callable[..., Any], name: str) -> list[list[str]]:
    """Names by position of each form: from the signature, or from the schemas of what is written in C++."""
    import torch

    try:
        kinds = inspect.signature(function).parameters.values()
        if any(p.kind is p.VAR_POSITIONAL for p in kinds):
            return []
        return [named([p.name for p in kinds if p.kind is not p.KEYWORD_ONLY])]
    except ValueError:
        schemas = torch._C._jit_get_schemas_for_operator(f"aten::{name}")
        return [named([a.name for a in s.arguments if not a.kwarg_only]) for s in schemas]


def mistaken(ours: list[str], theirs: list[list[str]]) -> list[str]:
    """The arguments of ours that stand where PyTorch has another one that ours has elsewhere, in the form that fits
    best."""
    found = [[a for a, b in zip(ours[1:], form[1:], strict=False) if a != b and (a in form or b in ours)]
             for form in theirs]
    return min(found, key=len) if found else []


def pairs() -> Iterator[tuple[str, Any, Any]]:
    """(name, ours, theirs) of everything that both have."""
    import torch

    for name in nn.__all__:
        kind, other = getattr(nn, name), getattr(torch.nn, name, None)
        if isinstance(kind, type) and isinstance(other, type):
            yield f"nn.{name}", kind.__init__, other.__init__  # type: ignore[misc]
    for name in [n for n in vars(nn.functional) if not n.startswith("_") and hasattr(torch.nn.functional, n)]:
        function = getattr(nn.functional, name)
        if inspect.isfunction(function):
            yield f"F.{name}", function, getattr(torch.nn.functional, name)
    for ours, theirs in ((optim, torch.optim), (optim.lr_scheduler, torch.optim.lr_scheduler)):
        for name, kind in vars(ours).items():
            other = getattr(theirs, name, None)
            if isinstance(kind, type) and isinstance(other, type) and name not in ("Optimizer", "Tensor"):
                yield f"optim.{name}", kind.__init__, other.__init__  # type: ignore[misc]
    for name in [n for n in dir(Tensor) if not n.startswith("_") and callable(getattr(torch.Tensor, n, None))]:
        if callable(getattr(Tensor, name)):
            yield f"Tensor.{name}", getattr(Tensor, name), getattr(torch.Tensor, name)
    for name in functions.__all__:
        if inspect.isfunction(getattr(minigrad, name)) and hasattr(torch, name):
            yield f"minigrad.{name}", getattr(minigrad, name), getattr(torch, name)


@needs_torch
@pytest.mark.filterwarnings("ignore")
def test_arguments_by_position_are_not_taken_for_others() -> None:
    compared, found = 0, {}
    for name, ours, theirs in pairs():
        own, forms = ours_of(ours), theirs_of(theirs, name.rpartition(".")[2])
        if own is not None and forms:
            compared += 1
            wrong = mistaken(own, forms)
            if wrong:
                found[name] = (wrong, own, forms)
    assert compared > 550
    assert {name: f for name, f in found.items() if name not in ELSEWHERE} == {}
