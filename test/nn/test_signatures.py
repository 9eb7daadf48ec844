"""Layers, functions, optimizers, schedules and initial values take PyTorch's arguments: names, order and defaults."""
from __future__ import annotations

import inspect
import warnings
from typing import Any

import numpy as np
import pytest

from minigrad import Tensor, config, nn
from minigrad.errors import MinigradError

torch = pytest.importorskip("torch")

PAIRS = {"nn": (nn, torch.nn), "functional": (nn.functional, torch.nn.functional), "optim": (nn.optim, torch.optim),
         "lr_scheduler": (nn.optim.lr_scheduler, torch.optim.lr_scheduler), "utils": (nn.utils, torch.nn.utils),
         "rnn": (nn.utils.rnn, torch.nn.utils.rnn), "init": (nn.init, torch.nn.init),
         "swa_utils": (nn.optim.swa_utils, torch.optim.swa_utils)}
MEANS = {"foreach", "fused", "capturable", "differentiable"}
"""Options of optimizers that are taken without a name in the signature (test/optim/test_torch_programs.py)."""

BY_NAME = {"device", "dtype", "maximize"}
"""What layers, and optimizers, take by name alone."""

EXCEPTIONS = {
    "nn.Buffer": "a value must be given", "nn.Parameter": "a value must be given",
    "nn.ModuleList": "() for None", "nn.ModuleDict": "() for None",
    "functional.normalize": "no out=, which is an in-place operation on a value that is not used",
    "rnn.PackedSequence": "is kept padded, and made by pack_padded_sequence",
    "swa_utils.AveragedModel": "parameters are where the model's are, and averaged by one function",
}


def parameters(function: Any) -> dict[str, inspect.Parameter] | None:
    try:
        return dict(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return None


def differences(name: str, ours: Any, theirs: Any) -> list[str]:
    """One line per argument of theirs that ours has not, has elsewhere or has with another default."""
    mine, wanted, found = parameters(ours), parameters(theirs), []
    if mine is None or wanted is None:
        return []
    by_position = [n for n, p in mine.items() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    for place, (n, p) in enumerate(wanted.items()):
        if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) or n in MEANS:
            continue
        if n not in mine:
            found.append(f"{name}: no {n}")
        elif p.kind is not p.KEYWORD_ONLY and n not in BY_NAME and by_position[place:place + 1] != [n]:
            found.append(f"{name}: {n} is not the argument number {place}")
        elif p.default is not mine[n].default and p.default != mine[n].default and not callable(p.default):
            found.append(f"{name}: {n} is {mine[n].default!r}, not {p.default!r}")
    return found


@pytest.mark.parametrize("pair", PAIRS)
def test_arguments_are_pytorchs(pair: str) -> None:
    ours, theirs = PAIRS[pair]
    names = [n for n in dir(ours) if n[0] != "_" and callable(getattr(ours, n)) and callable(getattr(theirs, n, None))]
    assert len(names) > 2
    found = [line for n in names if f"{pair}.{n}" not in EXCEPTIONS
             for line in differences(f"{pair}.{n}", getattr(ours, n), getattr(theirs, n))]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("name", EXCEPTIONS)
def test_exceptions_are_some(name: str) -> None:
    pair, _, function = name.partition(".")
    assert differences(name, *[getattr(library, function) for library in PAIRS[pair]])


X = np.random.default_rng(0).standard_normal((4, 6, 5)).astype(np.float32)
Y = np.random.default_rng(1).random((4, 6, 5)).astype(np.float32)
CASES: dict[str, Any] = {
    "softplus": lambda lib, x, y: lib.nn.Softplus(2.0, 0.5)(x),
    "hardtanh": lambda lib, x, y: lib.nn.Hardtanh(min_value=-0.2, max_value=0.3)(x),
    "norm": lambda lib, x, y: lib.nn.BatchNorm1d(6, bias=False).train()(x),
    "group norm": lambda lib, x, y: lib.nn.GroupNorm(2, 6, bias=False)(x),
    "instance norm": lambda lib, x, y: lib.nn.InstanceNorm1d(6, affine=True, bias=False)(x),
    "embedding": lambda lib, x, y: lib.nn.Embedding(4, 6, 1, _weight=x[:, :, 0], _freeze=True)(lib.tensor([1, 3])),
    "embedding bag": lambda lib, x, y: lib.nn.EmbeddingBag(4, 6, _weight=x[:, :, 0])(lib.tensor([[1, 3]])),
    "pad": lambda lib, x, y: lib.nn.utils.rnn.pad_sequence([x[0], x[1, :2]], True, 7.0, "left"),
    "unpack": lambda lib, x, y: lib.nn.utils.rnn.unpack_sequence(lib.nn.utils.rnn.pack_sequence([x[0], x[1, :2]]))[1],
    "weights of squares": lambda lib, x, y: lib.nn.functional.mse_loss(x, y, weight=y),
    "weights of distances": lambda lib, x, y: lib.nn.functional.l1_loss(x, y, reduction="none", weight=y),
    "weights of huber": lambda lib, x, y: lib.nn.functional.huber_loss(x, y, "mean", 0.5, y),
    "sum": lambda lib, x, y: lib.nn.functional.mse_loss(x, y, False),
    "none": lambda lib, x, y: lib.nn.SmoothL1Loss(None, False, "mean", 0.5)(x, y),
    "mean": lambda lib, x, y: lib.nn.functional.kl_div(x, y, True, True, "none", True),
    "classes": lambda lib, x, y: lib.nn.CrossEntropyLoss(None, False, 1)(x[:, :, 0], lib.tensor([1, 2, 3, 4])),
    "poisson": lambda lib, x, y: lib.nn.functional.poisson_nll_loss(x, y, True, False, None, 1e-8, None, "sum"),
    "triplets": lambda lib, x, y: lib.nn.TripletMarginLoss(1.0, 2.0, 1e-6, False, None, None, "sum")(x, y, x * 2),
    "elu": lambda lib, x, y: lib.nn.functional.elu(x, 0.5) + lib.nn.functional.glu(input=x[:, :, :4]).sum(),
    "grid": lambda lib, x, y: lib.nn.functional.affine_grid(theta=x[:, :2, :3], size=[4, 1, 2, 3], align_corners=False),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CASES)
def test_what_they_do_is_pytorchs(name: str) -> None:
    import minigrad

    with config(device="NUMPY"):
        ours, theirs = (CASES[name](lib, lib.tensor(X), lib.tensor(Y)) for lib in (minigrad, torch))
        np.testing.assert_allclose(ours.numpy(), theirs.detach().numpy(), rtol=1e-5, atol=1e-6)


def test_old_reductions_warn_and_are_given_once() -> None:
    x = Tensor(X, device="NUMPY")
    with pytest.warns(UserWarning, match="expected reduction='sum'"):
        nn.functional.mse_loss(x, x, size_average=False)
    with pytest.raises(TypeError, match="several values for 'size_average'"):
        nn.functional.mse_loss(x, x, None, size_average=None)
    made: Any = nn.optim.SGD
    with pytest.raises(MinigradError, match="expected differentiable=False"):
        made([x], differentiable=True)


def test_initial_values_of_a_generator_are_its_own() -> None:
    from minigrad import Generator

    with config(device="NUMPY"), warnings.catch_warnings():
        for fill in (nn.init.uniform_, nn.init.normal_, nn.init.trunc_normal_, nn.init.xavier_uniform_,
                     nn.init.xavier_normal_, nn.init.kaiming_uniform_, nn.init.kaiming_normal_, nn.init.orthogonal_):
            first, again, other = (fill(Tensor.zeros(40, 30), generator=Generator().manual_seed(seed)).numpy()
                                   for seed in (1, 1, 2))
            assert np.array_equal(first, again) and not np.array_equal(first, other)
            assert first.std() == pytest.approx(fill(Tensor.zeros(40, 30)).numpy().std(), rel=0.15)
