"""`minigrad.optim` under the name that PyTorch and tinygrad users expect."""
from minigrad.optim import SGD, Adagrad, Adam, AdamW, Lion, Optimizer, RMSprop, lr_scheduler

__all__ = ["SGD", "Adagrad", "Adam", "AdamW", "Lion", "Optimizer", "RMSprop", "lr_scheduler"]
