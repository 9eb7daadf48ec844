"""Layers that mix features without a window: Linear, Embedding, Dropout."""
from __future__ import annotations

import math
from typing import Any, ClassVar

from minigrad.errors import OutOfRangeError, ShapeError
from minigrad.mixins.base import as_count, as_tensor, is_index
from minigrad.mixins.inplace import result_of
from minigrad.mixins.linalg import projected
from minigrad.mixins.modes import modes
from minigrad.nn.module import Layer
from minigrad.nn.noise import dropout1d, dropout2d, dropout3d
from minigrad.nn.tables import embedding
from minigrad.tensor import Tensor


class Linear(Layer):
    """y = x @ weight.T + bias, for x of shape [..., in_features]; y is [..., out_features].

    `weight` is [out_features, in_features] and `bias` [out_features] (None without), both uniform in
    +-1/sqrt(in_features), as in PyTorch.
    """

    def __init__(self, in_features: int, out_features: int, bias: bool = True):
        in_features = as_count("Linear", "in_features", in_features)
        out_features = as_count("Linear", "out_features", out_features)
        self.in_features, self.out_features = in_features, out_features
        bound = 1 / math.sqrt(in_features) if in_features > 0 else 0.0
        self.weight = Tensor.uniform(out_features, in_features, low=-bound, high=bound, requires_grad=True)
        self.bias = Tensor.uniform(out_features, low=-bound, high=bound, requires_grad=True) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        return projected(as_tensor("Linear", x), self.weight, self.bias)


class Embedding(Layer):
    """Rows of a table: indices of any shape S give S + [embedding_dim].

    `weight` is [num_embeddings, embedding_dim], standard normal. Indices are integers in [0, num_embeddings). The row
    `padding_idx`, if there is one, starts as zeros and gets no gradient. Other options are those of
    `functional.embedding`. Raises OutOfRangeError for a row outside the table.
    """

    def __init__(self, num_embeddings: int, embedding_dim: int, padding_idx: int | None = None,
                 max_norm: float | None = None, norm_type: float = 2.0, scale_grad_by_freq: bool = False,
                 sparse: bool = False, _weight: Tensor | None = None, _freeze: bool = False):
        self.max_norm, self.norm_type, self.scale_grad_by_freq = max_norm, norm_type, scale_grad_by_freq
        self.num_embeddings, self.embedding_dim, self.padding_idx = num_embeddings, embedding_dim, padding_idx
        if padding_idx is not None and (
                not is_index(padding_idx) or not -num_embeddings <= padding_idx < num_embeddings):
            raise OutOfRangeError(f"[Embedding] expected a padding_idx in {-num_embeddings}..{num_embeddings - 1}, "
                                  f"got {padding_idx}")
        if _weight is not None and as_tensor("Embedding", _weight).shape != (num_embeddings, embedding_dim):
            raise ShapeError(f"[{type(self).__name__}] expected a _weight [{num_embeddings}, {embedding_dim}], got "
                             f"{list(_weight.shape)}")
        start = Tensor.randn(num_embeddings, embedding_dim) if _weight is None else _weight.detach().clone()
        if padding_idx is not None:
            self.padding_idx = padding_idx % num_embeddings
            rows = Tensor.arange(num_embeddings, device=start.device).reshape(-1, 1)
            start = start if _weight is not None else rows.eq(self.padding_idx).where(0.0, start)
        self.weight = start.requires_grad_(not _freeze)

    @classmethod
    def from_pretrained(cls, embeddings: Tensor, freeze: bool = True, padding_idx: int | None = None,
                        **options: Any) -> Any:
        """A layer over the rows of `embeddings` [num_embeddings, embedding_dim], which no step changes with `freeze`.
        """
        if as_tensor("from_pretrained", embeddings).ndim != 2:
            raise ShapeError(f"[from_pretrained] expected a table [num_embeddings, embedding_dim], got "
                             f"{list(embeddings.shape)}")
        rows, columns = (as_count("from_pretrained", "a length", n) for n in embeddings.shape)
        made = cls(rows, columns, padding_idx=padding_idx, _weight=embeddings, **options)
        made.weight.requires_grad_(not freeze)
        return made

    def forward(self, indices: Tensor) -> Tensor:
        return embedding(indices, self.weight, self.padding_idx, self.max_norm, self.norm_type,
                         self.scale_grad_by_freq)


class Dropout(Layer):
    """While training, zeroes each element with probability `p` and scales the rest by 1/(1-p); else the identity.

    Source: Srivastava et al. 2014, https://jmlr.org/papers/v15/srivastava14a.html
    """

    def __init__(self, p: float = 0.5, inplace: bool = False):
        self.p, self.inplace = p, inplace

    def forward(self, x: Tensor) -> Tensor:
        return result_of(as_tensor("Dropout", x), "Dropout", x.dropout(self.p), self.inplace)


class _PlaneDropout(Layer):
    """While training, zeroes whole channels with probability `p` and scales the rest by 1/(1-p)."""

    axes: ClassVar[int]

    def __init__(self, p: float = 0.5, inplace: bool = False):
        self.p, self.inplace = p, inplace

    def forward(self, x: Tensor) -> Tensor:
        dropped = (dropout1d, dropout2d, dropout3d)[self.axes - 1]
        return dropped(x, self.p, modes.now.training, self.inplace)


class Dropout1d(_PlaneDropout):
    __doc__ = _PlaneDropout.__doc__
    axes = 1


class Dropout2d(_PlaneDropout):
    __doc__ = _PlaneDropout.__doc__
    axes = 2


class Dropout3d(_PlaneDropout):
    __doc__ = _PlaneDropout.__doc__
    axes = 3
