"""Layers: plain classes that hold Tensors and are called. There is no base class; `nn.state` finds the parameters.

Parameters have `requires_grad=True`; running statistics have `requires_grad=False`. Weights start as in PyTorch.
"""
from minigrad.nn import optim, state
from minigrad.nn.conv import Conv2d, ConvTranspose2d
from minigrad.nn.linear import Dropout, Embedding, Linear
from minigrad.nn.norm import BatchNorm, BatchNorm2d, GroupNorm, LayerNorm, LayerNorm2d, RMSNorm

__all__ = [
    "BatchNorm",
    "BatchNorm2d",
    "Conv2d",
    "ConvTranspose2d",
    "Dropout",
    "Embedding",
    "GroupNorm",
    "LayerNorm",
    "LayerNorm2d",
    "Linear",
    "RMSNorm",
    "optim",
    "state",
]
