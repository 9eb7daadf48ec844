"""Embeddings of bags: rows of a table added, averaged, or their largest elements."""
from __future__ import annotations

from typing import Any

from minigrad.dtype import int32
from minigrad.errors import ShapeError
from minigrad.mixins.base import as_position, as_tensor
from minigrad.mixins.ranges import check_indices
from minigrad.mixins.rounding import rounded_once
from minigrad.nn.linear import Embedding
from minigrad.nn.tables import by_frequency, renormed
from minigrad.tensor import Tensor

MODES = ("sum", "mean", "max")


def embedding_bag(input: Tensor, weight: Tensor, offsets: Tensor | None = None, max_norm: float | None = None,
                  norm_type: float = 2.0, scale_grad_by_freq: bool = False, mode: str = "mean", sparse: bool = False,
                  per_sample_weights: Tensor | None = None, include_last_offset: bool = False,
                  padding_idx: int | None = None) -> Tensor:
    """Rows of a table [V, D] for bags of indices, reduced to one row per bag, [bags, D]; 0 of none.

    Bags are the rows of `input` [bags, N], or begin at `offsets` [bags] of `input` [N]; with `include_last_offset`
    these say where the last one ends, too. `per_sample_weights`, of the input's shape, scales rows, for 'sum' alone.
    Indices that are `padding_idx` are in no bag. Other options are those of `functional.embedding`.
    """
    table, index = as_tensor("embedding_bag", weight), as_tensor("embedding_bag", input)
    if mode not in MODES or (per_sample_weights is not None and mode != "sum"):
        raise ShapeError(f"[embedding_bag] expected mode among {', '.join(MODES)}, and 'sum' beside weights, "
                         f"got {mode!r}")
    if scale_grad_by_freq and mode == "max":
        raise ShapeError("[embedding_bag] expected mode 'sum' or 'mean' with scale_grad_by_freq, got 'max'")
    if index.ndim not in (1, 2) or (index.ndim == 1) is (offsets is None) or table.ndim != 2:
        raise ShapeError(f"[embedding_bag] expected indices [bags, N], or [N] and offsets, and a table [V, D], got "
                         f"{list(index.shape)}, {None if offsets is None else list(offsets.shape)} and "
                         f"{list(table.shape)}")
    renormed("embedding_bag", table, index, max_norm, norm_type)
    rows = table._rows(table._indices("embedding_bag", index, table.shape[0]))
    rows = by_frequency(rows, index, table.shape[0]) if scale_grad_by_freq else rows
    row = padding_idx if padding_idx is None else as_position("embedding_bag", padding_idx, table.shape, 0)
    counts = index.full_like(1).int() if row is None else index.ne(row).int()
    return _bags(rows, per_sample_weights, counts, offsets, mode, include_last_offset)


@rounded_once
def _bags(rows: Tensor, weights: Tensor | None, counts: Tensor, offsets: Tensor | None, mode: str,
          ends: bool) -> Tensor:
    rows = rows if weights is None else rows * weights.unsqueeze(-1)
    if offsets is None:
        return _reduced_rows(rows, counts, mode)
    return _reduced_segments(rows, counts, as_tensor("embedding_bag", offsets), mode, ends)


def _reduced_rows(rows: Tensor, counts: Tensor, mode: str) -> Tensor:
    """[bags, N, D] where counts [bags, N] are 1."""
    kept, number = counts.eq(1).unsqueeze(-1), counts.sum(1, keepdim=True)
    if mode == "max":
        if rows.shape[1] == 0:
            return rows.sum(1)
        return number.eq(0).where(0, kept.where(rows, rows.dtype.min).max(1))
    total = kept.where(rows, 0).sum(1)
    return total if mode == "sum" else total / number.maximum(1)


def _reduced_segments(rows: Tensor, counts: Tensor, offsets: Tensor, mode: str, ends: bool) -> Tensor:
    """[N, D] where counts [N] are 1, by the bag that each is in."""
    n, width = rows.shape
    bags: Any = offsets.shape[0] - (1 if ends else 0)
    if bags == 0 or n == 0:
        return rows.sum(0, keepdim=True).expand(bags, width) * 0 if bags else rows.reshape(-1, width)[:0]
    check_indices("embedding_bag", offsets, n + 1)
    place = (offsets[:bags].searchsorted(Tensor.arange(n, device=rows.device), right=True) - 1).maximum(0)
    wide, kept = place.unsqueeze(-1).expand(n, width), counts.eq(1).unsqueeze(-1)
    number = Tensor.zeros(bags, dtype=int32, device=rows.device).scatter_add(0, place, counts).unsqueeze(-1)
    start = Tensor.zeros(bags, width, dtype=rows.dtype, device=rows.device)
    if mode == "max":
        rows = kept.where(rows, rows.dtype.min)
        found = start.scatter_reduce(0, wide, rows, "amax", include_self=False)
        return number.eq(0).where(0, found)
    total = start.scatter_add(0, wide, kept.where(rows, 0))
    return total if mode == "sum" else total / number.maximum(1)


class EmbeddingBag(Embedding):
    """`functional.embedding_bag` with a table `weight` [num_embeddings, embedding_dim], standard normal; the row
    `padding_idx` starts as zeros.
    """

    def __init__(self, num_embeddings: int, embedding_dim: int, max_norm: float | None = None, norm_type: float = 2.0,
                 scale_grad_by_freq: bool = False, mode: str = "mean", sparse: bool = False,
                 _weight: Tensor | None = None, include_last_offset: bool = False, padding_idx: int | None = None):
        if mode not in MODES:
            raise ShapeError(f"[EmbeddingBag] expected mode among {', '.join(MODES)}, got {mode!r}")
        super().__init__(num_embeddings, embedding_dim, padding_idx, max_norm, norm_type, scale_grad_by_freq, sparse,
                         _weight)
        self.mode, self.include_last_offset = mode, include_last_offset

    def forward(self, indices: Tensor, offsets: Tensor | None = None,
                 per_sample_weights: Tensor | None = None) -> Tensor:
        return embedding_bag(indices, self.weight, offsets, self.max_norm, self.norm_type, self.scale_grad_by_freq,
                             self.mode, per_sample_weights=per_sample_weights,
                             include_last_offset=self.include_last_offset, padding_idx=self.padding_idx)
