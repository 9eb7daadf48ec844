"""Operators that read and write by index tensors."""
from __future__ import annotations

from typing import Any

from minigrad import Tensor, dtypes
from minigrad.torch_compile.node import Node, Operator, Unsupported

REDUCTIONS = {"sum": "sum", "prod": "prod", "amax": "amax", "amin": "amin", "mean": "mean"}


def _checked(indices: list[Tensor | None]) -> None:
    if any(i is not None and i.dtype in (dtypes.bool_, dtypes.uint8) for i in indices):
        raise Unsupported("an index by a mask, whose result has as many elements as the mask's values say")


def index(n: Node, x: Tensor, indices: list[Tensor | None]) -> Tensor:
    """x[indices], None for a whole axis."""
    _checked(indices)
    return x[tuple(slice(None) if i is None else i for i in indices)]


def index_put(n: Node, x: Tensor, indices: list[Tensor | None], values: Tensor, accumulate: bool = False) -> Tensor:
    """x with x[indices] = values, or added up."""
    if len(indices) == 1 and indices[0] is not None and indices[0].dtype is dtypes.bool_ and not accumulate and \
            not values.ndim:
        mask = indices[0]
        return mask.reshape(*mask.shape, *[1] * (x.ndim - mask.ndim)).where(n.typed(values), x)
    _checked(indices)
    return x.index_put(indices, n.typed(values), accumulate)


def gather(n: Node, x: Tensor, dim: int, places: Tensor, **_: Any) -> Tensor:
    """The numbers at places along an axis."""
    return x.gather(dim, places)


def scatter(n: Node, x: Tensor, dim: int, places: Tensor, source: Any, *, reduce: str | None = None) -> Tensor:
    """x with a number, or those of a tensor, at places along an axis."""
    if isinstance(source, Tensor):
        return x.scatter(dim, places, source, reduce)
    return x.scatter(dim, places, value=source, reduce=reduce)


def scatter_reduce(n: Node, x: Tensor, dim: int, places: Tensor, source: Tensor, reduce: str, *,
                   include_self: bool = True) -> Tensor:
    """x with numbers combined into places along an axis."""
    return x.scatter_reduce(dim, places, source, REDUCTIONS[reduce], include_self=include_self)


def embedding(n: Node, weight: Tensor, places: Tensor, *_: Any) -> Tensor:
    """Rows of a table."""
    return weight.embedding(places)


def embedding_backward(n: Node, gradient: Tensor, places: Tensor, count: int, padding: int,
                       scale_by_frequency: bool) -> Tensor:
    """The sum of the gradients of each row; none for the row of padding."""
    if scale_by_frequency:
        raise Unsupported("gradients of an embedding scaled by frequency")
    width = gradient.shape[-1]
    if padding >= 0:
        gradient = (places == padding).unsqueeze(-1).where(0.0, gradient)
    rows = gradient.reshape(-1, width) if gradient.numel() else gradient.reshape(0, width)
    return n.full((count, width), 0).index_add(0, places.reshape(rows.shape[0]), rows)


def index_add(n: Node, x: Tensor, dim: int, places: Tensor, source: Tensor, *, alpha: Any = 1) -> Tensor:
    """x with slices added at places of an axis."""
    return x.index_add(dim, places, n.typed(source), alpha=alpha)


def searchsorted(n: Node, sequence: Tensor, values: Any, *, out_int32: bool = False, right: bool = False,
                 side: str | None = None, sorter: Tensor | None = None) -> Tensor:
    """The places at which values keep a sorted sequence sorted."""
    return sequence.searchsorted(values, right=right or side == "right", sorter=sorter)


TABLE: dict[str, Operator] = {
    "index": index, "_unsafe_index": index, "index_put": index_put, "_unsafe_index_put": index_put,
    "gather": gather, "scatter": scatter,
    "scatter_add": lambda n, x, dim, places, source: x.scatter_add(dim, places, source),
    "scatter_reduce": scatter_reduce, "index_select": lambda n, x, dim, places: x.index_select(dim, places),
    "index_add": index_add, "embedding": embedding, "embedding_dense_backward": embedding_backward,
    "searchsorted": searchsorted, "bucketize": lambda n, x, bounds, *, out_int32=False, right=False: x.bucketize(
        bounds, right=right),
    "masked_scatter": lambda n, x, mask, source: x.masked_scatter(mask, source),
}
