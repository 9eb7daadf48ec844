"""Layers: plain classes that hold Tensors and are called. There is no base class; `nn.state` finds the parameters.

Parameters have `requires_grad=True`; running statistics have `requires_grad=False`. Weights start as in PyTorch.
"""
from minigrad.nn import optim, state, utils
from minigrad.nn.activation import (
    ELU,
    GELU,
    Hardswish,
    LeakyReLU,
    LogSoftmax,
    Mish,
    ReLU,
    ReLU6,
    Sigmoid,
    SiLU,
    Softmax,
    Softplus,
    Tanh,
)
from minigrad.nn.attention import MultiheadAttention
from minigrad.nn.container import Flatten, Identity, Sequential, Unflatten
from minigrad.nn.conv import Conv1d, Conv2d, Conv3d, ConvTranspose1d, ConvTranspose2d
from minigrad.nn.linear import Dropout, Embedding, Linear
from minigrad.nn.norm import (
    BatchNorm,
    BatchNorm1d,
    BatchNorm2d,
    BatchNorm3d,
    GroupNorm,
    LayerNorm,
    LayerNorm2d,
    RMSNorm,
)
from minigrad.nn.pool import AdaptiveAvgPool2d, AvgPool1d, AvgPool2d, MaxPool1d, MaxPool2d
from minigrad.nn.recurrent import GRU, LSTM, GRUCell, LSTMCell

__all__ = [
    "AdaptiveAvgPool2d",
    "AvgPool1d",
    "AvgPool2d",
    "BatchNorm",
    "BatchNorm1d",
    "BatchNorm2d",
    "BatchNorm3d",
    "Conv1d",
    "Conv2d",
    "Conv3d",
    "ConvTranspose1d",
    "ConvTranspose2d",
    "Dropout",
    "ELU",
    "Embedding",
    "Flatten",
    "GELU",
    "GRU",
    "GRUCell",
    "GroupNorm",
    "Hardswish",
    "Identity",
    "LSTM",
    "LSTMCell",
    "LayerNorm",
    "LayerNorm2d",
    "LeakyReLU",
    "Linear",
    "LogSoftmax",
    "MaxPool1d",
    "MaxPool2d",
    "Mish",
    "MultiheadAttention",
    "RMSNorm",
    "ReLU",
    "ReLU6",
    "Sequential",
    "SiLU",
    "Sigmoid",
    "Softmax",
    "Softplus",
    "Tanh",
    "Unflatten",
    "optim",
    "state",
    "utils",
]
