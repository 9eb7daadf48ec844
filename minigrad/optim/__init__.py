"""Optimizers. `SGD`, `Adam` and `AdamW` take the same arguments as PyTorch's and give the same numbers."""
from minigrad.optim.adam import Adam, AdamW
from minigrad.optim.optimizer import Optimizer
from minigrad.optim.sgd import SGD

__all__ = ["SGD", "Adam", "AdamW", "Optimizer"]
