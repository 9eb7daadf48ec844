"""Optimizers, with PyTorch's arguments and numbers, and `lr_scheduler`: learning rates that change on the way."""
from minigrad.optim import lr_scheduler
from minigrad.optim.adafactor import Adafactor
from minigrad.optim.adam import Adam, AdamW
from minigrad.optim.adam_variants import Adamax, NAdam, RAdam
from minigrad.optim.groups import OptimizerGroup
from minigrad.optim.layerwise import LAMB, LARS, Muon
from minigrad.optim.lbfgs import LBFGS
from minigrad.optim.lion import Lion
from minigrad.optim.optimizer import Optimizer
from minigrad.optim.rmsprop import Adadelta, Adagrad, RMSprop
from minigrad.optim.rprop import Rprop
from minigrad.optim.sgd import ASGD, SGD

__all__ = ["ASGD", "LAMB", "LARS", "LBFGS", "SGD", "Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax",
           "Lion", "Muon", "NAdam", "Optimizer", "OptimizerGroup", "RAdam", "RMSprop", "Rprop", "lr_scheduler"]
