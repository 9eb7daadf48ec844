"""`minigrad.optim` under the name that PyTorch and tinygrad users expect."""
from minigrad.optim import SGD, Adam, AdamW, Optimizer

__all__ = ["SGD", "Adam", "AdamW", "Optimizer"]
