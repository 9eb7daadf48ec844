"""The works measured of EfficientNet: inference, and a training step with SGD, captured or eager. It imports little, so
that a process of its own can time its start with it."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import minigrad
from examples.efficientnet.model import STAGES, ConvNorm, EfficientNet
from minigrad import Tensor, jit
from minigrad.nn import Linear
from minigrad.nn.optim import SGD
from minigrad.nn.state import get_parameters

QUICK_SIZE, QUICK_HEAD, QUICK_CLASSES = 16, 8, 10


def quick_or_b0(quick: bool) -> EfficientNet:
    """B0, or the first of its blocks with a small head."""
    model = EfficientNet(0)
    if quick:
        model.blocks = model.blocks[:1]
        model.head = ConvNorm(STAGES[0].out_channels, QUICK_HEAD, 1)
        model.classifier = Linear(QUICK_HEAD, QUICK_CLASSES)
    Tensor.realize(*get_parameters(model))
    return model


def _captured(step: Callable, capture: bool) -> Callable:
    return jit(step) if capture else step


def classifier(model: EfficientNet, images: np.ndarray, labels: np.ndarray, capture: bool) -> Callable[[], Any]:
    """Logits of a batch that is on the device. Batch norm uses the running statistics."""
    batch = Tensor(images).realize()
    step = _captured(lambda batch: model(batch).realize(), capture)

    def call() -> None:
        with Tensor.train(False), Tensor.no_grad():
            step(batch)
            minigrad.synchronize()

    return call


def trainer(model: EfficientNet, images: np.ndarray, labels: np.ndarray, capture: bool) -> Callable[[], Any]:
    """Forward, loss, backward, SGD and the running statistics."""
    batch, classes = Tensor(images).realize(), Tensor(labels.astype(np.int32)).realize()
    optimizer = SGD(get_parameters(model), lr=0.001)

    def train(batch: Tensor, classes: Tensor) -> Tensor:
        loss = model(batch).cross_entropy(classes)
        optimizer.zero_grad()
        loss.backward()
        Tensor.realize(loss, *optimizer.schedule_step())
        return loss

    step = _captured(train, capture)

    def call() -> None:
        with Tensor.train():
            step(batch, classes)
            minigrad.synchronize()

    return call
