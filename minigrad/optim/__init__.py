"""Optimizers, with PyTorch's arguments and numbers, and `lr_scheduler`: learning rates that change on the way."""
from minigrad.optim import lr_scheduler
from minigrad.optim.adam import Adam, AdamW
from minigrad.optim.lion import Lion
from minigrad.optim.optimizer import Optimizer
from minigrad.optim.rmsprop import Adagrad, RMSprop
from minigrad.optim.sgd import SGD

__all__ = ["SGD", "Adagrad", "Adam", "AdamW", "Lion", "Optimizer", "RMSprop", "lr_scheduler"]
