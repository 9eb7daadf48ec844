"""A small model that optimizers train."""
from __future__ import annotations

from typing import Any

import numpy as np

from minigrad.nn.optim import (
    ASGD,
    SGD,
    Adadelta,
    Adafactor,
    Adagrad,
    Adam,
    Adamax,
    AdamW,
    NAdam,
    Optimizer,
    RAdam,
    RMSprop,
    Rprop,
)

CASES: dict[str, tuple[type[Optimizer], str, dict[str, Any]]] = {
    "sgd": (SGD, "SGD", {"lr": 0.1}),
    "sgd weight decay": (SGD, "SGD", {"lr": 0.1, "weight_decay": 0.1}),
    "sgd momentum": (SGD, "SGD", {"lr": 0.05, "momentum": 0.9}),
    "sgd nesterov": (SGD, "SGD", {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.01, "nesterov": True}),
    "sgd dampening": (SGD, "SGD", {"lr": 0.05, "momentum": 0.9, "dampening": 0.3, "weight_decay": 0.1}),
    "adam": (Adam, "Adam", {"lr": 0.01}),
    "adam weight decay": (Adam, "Adam", {"lr": 0.01, "betas": (0.8, 0.95), "eps": 1e-6, "weight_decay": 0.1}),
    "adamw": (AdamW, "AdamW", {"lr": 0.01}),
    "adamw weight decay": (AdamW, "AdamW", {"lr": 0.01, "weight_decay": 0.5}),
    "rmsprop": (RMSprop, "RMSprop", {"lr": 0.01}),
    "rmsprop momentum": (RMSprop, "RMSprop", {"lr": 0.01, "alpha": 0.9, "momentum": 0.8, "weight_decay": 0.1}),
    "rmsprop centered": (RMSprop, "RMSprop", {"lr": 0.01, "centered": True, "eps": 1e-3}),
    "adagrad": (Adagrad, "Adagrad", {"lr": 0.05, "weight_decay": 0.1}),
    "adadelta": (Adadelta, "Adadelta", {"lr": 0.5, "weight_decay": 0.1}),
    "nadam": (NAdam, "NAdam", {"lr": 0.01, "weight_decay": 0.1}),
    "radam": (RAdam, "RAdam", {"lr": 0.01, "betas": (0.9, 0.99), "weight_decay": 0.1}),
    "adamax": (Adamax, "Adamax", {"lr": 0.01, "weight_decay": 0.1}),
    "nadam decoupled": (NAdam, "NAdam", {"lr": 0.01, "weight_decay": 0.1, "decoupled_weight_decay": True}),
    "radam decoupled": (RAdam, "RAdam", {"lr": 0.01, "weight_decay": 0.1, "decoupled_weight_decay": True}),
    "adagrad decay": (Adagrad, "Adagrad", {"lr": 0.05, "lr_decay": 0.5}),
    "adafactor": (Adafactor, "Adafactor", {"lr": 0.05}),
    "adafactor decay": (Adafactor, "Adafactor", {"lr": 0.05, "beta2_decay": -0.5, "eps": (1e-4, 1e-2), "d": 1.5,
                                                 "weight_decay": 0.1}),
    "rprop": (Rprop, "Rprop", {"lr": 0.01}),
    "rprop bounds": (Rprop, "Rprop", {"lr": 0.05, "etas": (0.7, 1.5), "step_sizes": (0.02, 0.1)}),
    "asgd": (ASGD, "ASGD", {"lr": 0.1, "lambd": 0.1, "weight_decay": 0.1}),
    "asgd averages": (ASGD, "ASGD", {"lr": 0.5, "lambd": 0.2, "alpha": 0.6, "t0": 3}),
    "adagrad from": (Adagrad, "Adagrad", {"lr": 0.05, "initial_accumulator_value": 0.5}),
}
INPUTS = np.random.default_rng(0).standard_normal((8, 4), np.float32)
WEIGHT = np.random.default_rng(1).standard_normal((4, 3), np.float32)
BIAS = np.random.default_rng(2).standard_normal(3, np.float32)


def loss_of(x, weight, bias):
    """A loss with curvature that every parameter has its own part in; `x` may be ours or torch's."""
    y = (x @ weight + bias).tanh()
    return (y * y * y + y).mean()
