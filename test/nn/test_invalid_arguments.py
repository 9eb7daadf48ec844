"""What PyTorch refuses when a layer, an optimizer or a schedule is made or first used, is refused here, in words."""
from __future__ import annotations

import inspect
import math
from typing import Any

import numpy as np
import pytest
from conftest import needs_torch

from minigrad import Tensor, nn, optim
from minigrad.errors import MinigradError

ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "Linear": (3, 4), "Conv1d": (4, 4, 3), "Conv2d": (4, 4, 3), "ConvTranspose1d": (4, 4, 3), "BatchNorm1d": (4,),
    "ConvTranspose2d": (4, 4, 3), "BatchNorm2d": (4,), "InstanceNorm2d": (4,), "GroupNorm": (2, 4), "LayerNorm": (4,),
    "RMSNorm": (4,), "LocalResponseNorm": (2,), "Embedding": (5, 4), "EmbeddingBag": (5, 4), "LSTM": (4, 4),
    "GRU": (4, 4), "RNN": (4, 4), "LSTMCell": (4, 4), "GRUCell": (4, 4), "RNNCell": (4, 4),
    "MultiheadAttention": (4, 2), "TransformerEncoderLayer": (4, 2), "MaxPool1d": (2,), "MaxPool2d": (2,),
    "AvgPool1d": (2,), "AvgPool2d": (2,),
    "AdaptiveAvgPool2d": (2,), "AdaptiveMaxPool2d": (2,), "LPPool2d": (2, 2), "FractionalMaxPool2d": (2, 2),
    "Unfold": (2,), "Fold": (4, 2), "PixelShuffle": (2,), "PixelUnshuffle": (2,), "ChannelShuffle": (2,),
    "Upsample": (None, 2), "Flatten": (), "Unflatten": (1, (2, 2)), "PReLU": (), "Threshold": (0.0, 0.0),
    "Dropout": (), "Dropout2d": (), "AlphaDropout": (), "GLU": (), "ReflectionPad2d": (1,), "ZeroPad2d": (1,),
    "ConstantPad2d": (1, 1.0), "ReplicationPad2d": (1,), "CircularPad2d": (1,)}
WRONG = [-1, 0, 1.5, -0.5, 2.0, "x", None, (0, 0), (-1, -1), (1, 2, 3, 4, 5, 6, 7), True, 7]
TAKEN = {"AdaptiveAvgPool2d": "None keeps an axis", "AdaptiveMaxPool2d": "None keeps an axis",
         "Upsample": "align_corners without meaning for a mode", "MaxUnpool2d": "0 as stride"}
"""Layers that take more than PyTorch's."""


pytestmark = pytest.mark.usefixtures("on_numpy")


def example(name: str) -> np.ndarray:
    random = np.random.default_rng(0)
    if name.startswith("Embedding"):
        return np.array([[1, 2]])
    shapes = {"LSTM": (3, 2, 4), "GRU": (3, 2, 4), "RNN": (3, 2, 4), "Unflatten": (2, 4), "Fold": (2, 8, 9),
              "TransformerEncoderLayer": (3, 2, 4), "MultiheadAttention": (3, 2, 4), "BatchNorm1d": (3, 4)}
    plain = (3, 4) if name in ("Linear", "LayerNorm", "RMSNorm", "GroupNorm") or name.endswith("Cell") else (2, 4, 6, 6)
    return random.standard_normal(shapes.get(name, (2, 4, 6) if name.endswith("1d") else plain)).astype(np.float32)


def used(kind: Any, args: list[Any], options: dict[str, Any], x: Any) -> None:
    """Makes the layer and calls it in training, once."""
    layer = kind(*args, **options)
    layer.train()
    found = layer(x, x, x) if kind.__name__ == "MultiheadAttention" else layer(x)
    while isinstance(found, tuple):
        found = found[0]
    found.detach().numpy()


@needs_torch
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ARGUMENTS)
def test_a_layer_refuses_what_pytorchs_refuses(name: str) -> None:
    import torch

    theirs, ours, args = getattr(torch.nn, name), getattr(nn, name), ARGUMENTS[name]
    known = inspect.signature(ours.__init__).parameters
    names = [p for p in inspect.signature(theirs.__init__).parameters if p in known and p not in ("self", "activation")]
    x, accepted = example(name), []
    for place, argument in enumerate(names):
        for wrong in WRONG:
            given, options = list(args), {}
            if place < len(args):
                given[place] = wrong
            else:
                options[argument] = wrong
            try:
                used(theirs, given, options, torch.from_numpy(x))
                continue
            except Exception:
                pass
            try:
                used(ours, given, options, Tensor(x))
                accepted.append((argument, wrong))
            except (MinigradError, TypeError) as error:
                assert isinstance(error, MinigradError) or "argument" in str(error), (argument, wrong, error)
    # 0 is False wherever a bool is expected: PyTorch has it so for some
    accepted = [(a, w) for a, w in accepted if not (w == 0 and known[a].annotation == "bool")]
    assert not accepted or name in TAKEN, accepted


HYPERPARAMETERS = ["lr", "momentum", "weight_decay", "dampening", "eps", "alpha", "rho", "lr_decay", "lambd", "betas",
                   "momentum_decay", "initial_accumulator_value", "etas", "step_sizes", "beta2_decay", "d", "nesterov"]
WRONG_NUMBERS = [-1.0, -1e-3, "x", None, (2.0, 0.5), (-0.1, 0.9), (0.9, 1.0), (0.9,), math.nan, [0.1]]


@needs_torch
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [n for n in optim.__all__ if n not in ("Optimizer", "LBFGS", "OptimizerGroup")])
def test_an_optimizer_refuses_what_pytorchs_refuses(name: str) -> None:
    import torch

    theirs, ours = getattr(torch.optim, name, None), getattr(optim, name)
    if theirs is None:
        pytest.skip("PyTorch has none of that name")
    known = inspect.signature(ours.__init__).parameters
    for argument in [a for a in HYPERPARAMETERS if a in known and a in inspect.signature(theirs.__init__).parameters]:
        for wrong in WRONG_NUMBERS:
            p = torch.nn.Parameter(torch.ones(2, 2))
            p.grad = torch.ones(2, 2)
            try:
                theirs([p], **{argument: wrong}).step()
                continue
            except Exception:
                pass
            with pytest.raises(MinigradError, match=rf"\[{name}"):
                q = Tensor.ones(2, 2).realize().requires_grad_()
                (q * 1).sum().backward()
                ours([q], **{argument: wrong}).step()
                raise AssertionError(f"{name} took {argument}={wrong!r}")
