"""`Case`: a model, what it is given, and the loss that trains it."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F


class Case(NamedTuple):
    """`model(*inputs)` is the forward pass, `loss(model, *inputs)` a number to train by."""

    model: Any
    inputs: tuple[Any, ...]
    loss: Callable[..., Any]


Build = Callable[[bool], Case]
"""The case of a model: in the size of a test, or in one that is worth timing where the argument is True."""


def mean_square(model: Any, *inputs: Any) -> Any:
    """The mean square of all that a model returns."""
    found = model(*inputs)
    return sum(out.float().square().mean() for out in (found if isinstance(found, tuple) else (found,)))


def classes(model: Any, *inputs: Any) -> Any:
    """The cross entropy of the last axis, for classes that are made up from positions."""
    scores = model(*inputs).flatten(0, -2)
    return F.cross_entropy(scores, torch.arange(scores.shape[0]) % scores.shape[1])
