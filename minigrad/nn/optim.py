"""`minigrad.optim` under the name that PyTorch and tinygrad users expect."""
from minigrad.nn import swa_utils
from minigrad.optim import (
    ASGD,
    LAMB,
    LARS,
    LBFGS,
    SGD,
    Adadelta,
    Adafactor,
    Adagrad,
    Adam,
    Adamax,
    AdamW,
    Lion,
    Muon,
    NAdam,
    Optimizer,
    OptimizerGroup,
    RAdam,
    RMSprop,
    Rprop,
    lr_scheduler,
)

__all__ = ["ASGD", "LAMB", "LARS", "LBFGS", "SGD", "Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax",
           "Lion", "Muon", "NAdam", "Optimizer", "OptimizerGroup", "RAdam", "RMSprop", "Rprop", "lr_scheduler",
           "swa_utils"]
