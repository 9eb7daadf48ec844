"""Torch and minigrad under the same names, so that a training program is written once and built with either."""
from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from minigrad import Tensor, nn
from minigrad.nn import functional


class Ours:
    """`M` has the functions of Tensors, as `torch` does."""

    nn, F, M, optim = nn, functional, Tensor, nn.optim

    @staticmethod
    def cat(tensors: Any, dim: int = 0) -> Any:
        return Tensor.cat(*tensors, dim=dim)

    @staticmethod
    def stack(tensors: Any, dim: int = 0) -> Any:
        return Tensor.stack(*tensors, dim=dim)

    @staticmethod
    def tensor(array: np.ndarray) -> Any:
        """In storage of its own."""
        return Tensor(np.asarray(array)).realize()


@cache
def torch_framework(torch: Any) -> Any:
    """The same names for torch, given as a module."""
    class Theirs:
        nn, F, M, optim, cat, stack = torch.nn, torch.nn.functional, torch, torch.optim, torch.cat, torch.stack
        tensor = torch.tensor

    return Theirs


class Program(NamedTuple):
    """A program to train: the modules that hold the weights, one training step, which takes Tensors and returns the
    loss, the batch that a generator of random numbers gives, and the loss alone where its gradients are to be
    compared."""

    modules: list[Any]
    step: Callable[..., Any]
    draw: Callable[[np.random.Generator], tuple[np.ndarray, ...]]
    loss: Callable[..., Any] | None = None


Build = Callable[[Any], Program]
"""A program for one of the frameworks above."""


def normal(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape, np.float32)


def trained(optimizer: Any, loss_of: Callable[..., Any]) -> Callable[..., Any]:
    """The step that makes a loss smaller."""
    def step(*batch: Any) -> Any:
        optimizer.zero_grad()
        loss = loss_of(*batch)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step
