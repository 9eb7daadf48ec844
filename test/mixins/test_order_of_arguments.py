"""Arguments by position stand in PyTorch's order: in layers, functions, optimizers, schedules and methods of Tensor."""
from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from conftest import needs_torch

import minigrad
from minigrad import Tensor, functions, nn, optim
from minigrad.errors import MinigradError

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


NOT_HERE = {"out", "out_dtype", "layout", "memory_format", "generator", "pin_memory", "device", "dtype", "non_blocking",
            "implicit", "sparse_grad", "align_to_window"}
"""Arguments that nothing here stands for."""

OTHER_NAMES = {
    **dict.fromkeys(["random_", "uniform_"], "`from` is a word of Python's: low and high"),
    **dict.fromkeys(["cholesky_solve", "orgqr", "ormqr"], "factor, tau and other, which say what they are"),
    **dict.fromkeys(["dsplit", "hsplit", "vsplit", "tensor_split"], "sections stands for indices too"),
    **dict.fromkeys(["split", "split_with_sizes"], "split_size, as PyTorch's page of split has it"),
    **dict.fromkeys(["max", "min", "to", "copy_", "sum_to_size"], "another tensor and a shape are given by position"),
    "dot": "that of matmul, which it is", "sort": "reverse is no argument of PyTorch's page",
    "swapaxes_": "dim0 and dim1", "bernoulli": "bernoulli_ has p"}
"""Methods of Tensor that lack some of PyTorch's names for arguments, and why."""


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
        kind: Any = getattr(nn, name)
        other: Any = getattr(torch.nn, name, None)
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


def names_of(function: Any, name: str) -> set[str]:
    """PyTorch's names of a method's arguments, by its schemas, that the function does not take."""
    import torch

    own = inspect.signature(function).parameters.values()
    taken = {p.name for p in own if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)}
    if any(p.kind is p.VAR_KEYWORD for p in own):
        return set()
    schemas = [s.arguments for s in torch._C._jit_get_schemas_for_operator(f"aten::{name}")
               if s.overload_name not in ("t", "str", "functional")]
    forms = [form for form in schemas if form and form[0].name == "self" and not any(
        a.is_out or "Dimname" in str(a.type) or (a.name == "dim" and str(a.type) == "str") for a in form)]
    return {a.name for form in forms for a in form[1:]} - taken - NOT_HERE


@needs_torch
def test_arguments_of_methods_have_torchs_names() -> None:
    import torch

    methods = {name: f for name in dir(Tensor) if not name.startswith("_") and hasattr(torch.Tensor, name)
               and inspect.isfunction(f := inspect.getattr_static(Tensor, name))}
    assert len(methods) > 300
    found = {name: lacking for name, f in methods.items() if (lacking := names_of(f, name))}
    assert {name: lacking for name, lacking in found.items() if name not in OTHER_NAMES} == {}
    assert set(OTHER_NAMES) <= set(found)


def test_shapes_and_orders_by_name() -> None:
    x = Tensor(np.arange(6, dtype=np.float32).reshape(2, 3))
    y = x.numpy()
    for ours, theirs in ((x.reshape(shape=(3, 2)), y.reshape(3, 2)), (x.view(size=(6,)), y.reshape(6)),
                         (x.permute(dims=(1, 0)), y.T), (x[:, :1].expand(size=(2, 4)), np.repeat(y[:, :1], 4, 1)),
                         (x.repeat(repeats=(2, 1)), np.tile(y, (2, 1))), (x.tile(dims=(2,)), np.tile(y, 2)),
                         (x[0, 0].reshape(()), y[0, 0]),
                         (x.scatter(1, Tensor([[0], [2]]), value=7.0), np.array([[7, 1, 2], [3, 4, 7]])),
                         (x.where(x > 2, 0.0), np.where(y > 2, y, 0)), (x.where(condition=x > 2, other=-x), np.where(
                             y > 2, y, -y)), (x.where(x > 2, other=1.5), np.where(y > 2, y, 1.5)),
                         ((x > 2).where(x, 0.0), np.where(y > 2, y, 0))):
        np.testing.assert_array_equal(ours.numpy(), theirs)
    for wrong in (lambda: (x > 2).where(x), lambda: x.scatter(1, Tensor([[0]])),
                  lambda: x.scatter(1, Tensor([[0]]), x, value=1.0), lambda: x.where(condition=1.0, other=x)):
        with pytest.raises(MinigradError, match="expected"):
            wrong()
