"""Layers that mix features without a window: Linear, Embedding, Dropout."""
from __future__ import annotations

import math

from minigrad.mixins.base import as_count, as_tensor
from minigrad.tensor import Tensor


class Linear:
    """y = x @ weight.T + bias, for x of shape [..., in_features]; y is [..., out_features].

    `weight` is [out_features, in_features] and `bias` [out_features] (None without), both uniform in
    +-1/sqrt(in_features), as in PyTorch.
    """

    def __init__(self, in_features: int, out_features: int, bias: bool = True):
        in_features = as_count("Linear", "in_features", in_features)
        out_features = as_count("Linear", "out_features", out_features)
        bound = 1 / math.sqrt(in_features) if in_features > 0 else 0.0
        self.weight = Tensor.uniform(out_features, in_features, low=-bound, high=bound, requires_grad=True)
        self.bias = Tensor.uniform(out_features, low=-bound, high=bound, requires_grad=True) if bias else None

    def __call__(self, x: Tensor) -> Tensor:
        return as_tensor("Linear", x).linear(self.weight.transpose(), self.bias)


class Embedding:
    """Rows of a table: indices of any shape S give S + [embedding_dim].

    `weight` is [num_embeddings, embedding_dim], standard normal. Indices are integers in [0, num_embeddings).
    """

    def __init__(self, num_embeddings: int, embedding_dim: int):
        self.num_embeddings, self.embedding_dim = num_embeddings, embedding_dim
        self.weight = Tensor.randn(num_embeddings, embedding_dim, requires_grad=True)

    def __call__(self, indices: Tensor) -> Tensor:
        return self.weight.embedding(indices)


class Dropout:
    """While training, zeroes each element with probability `p` and scales the rest by 1/(1-p); else the identity.

    Source: Srivastava et al. 2014, https://jmlr.org/papers/v15/srivastava14a.html
    """

    def __init__(self, p: float = 0.5):
        self.p = p

    def __call__(self, x: Tensor) -> Tensor:
        return x.dropout(self.p)
