"""`minigrad.optim` under the name that PyTorch and tinygrad users expect."""
from minigrad.nn import swa_utils
from minigrad.optim import (
    LAMB,
    LARS,
    SGD,
    Adadelta,
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
    lr_scheduler,
)

__all__ = ["LAMB", "LARS", "SGD", "Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "Lion", "Muon", "NAdam",
           "Optimizer", "OptimizerGroup", "RAdam", "RMSprop", "lr_scheduler", "swa_utils"]
