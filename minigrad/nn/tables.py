"""Options of embeddings besides looking rows up: rows scaled down, gradients by how often rows are named."""
from __future__ import annotations

from minigrad.dtype import bool_
from minigrad.mixins.base import as_number, as_position, as_tensor
from minigrad.ops.functions import passed
from minigrad.tensor import Tensor


def embedding(input: Tensor, weight: Tensor, padding_idx: int | None = None, max_norm: float | None = None,
              norm_type: float = 2.0, scale_grad_by_freq: bool = False, sparse: bool = False) -> Tensor:
    """Rows of a table [V, D] for indices [...]: [..., D]. The row `padding_idx` gets no gradient. With `max_norm` rows
    that are named are scaled down to that norm first, in the table; with `scale_grad_by_freq` a row's gradient is
    divided by how often it is named. Gradients are dense, also with `sparse`."""
    table, index = as_tensor("embedding", weight), as_tensor("embedding", input)
    renormed("embedding", table, index, max_norm, norm_type)
    found = table.embedding(index)
    found = by_frequency(found, index, table.shape[0]) if scale_grad_by_freq else found
    if padding_idx is None:
        return found
    row = as_position("embedding", padding_idx, table.shape, 0)
    return index.eq(row).unsqueeze(-1).where(found.detach(), found)


def renormed(name: str, table: Tensor, index: Tensor, max_norm: float | None, norm_type: float) -> None:
    """Scales the rows of a table [V, D] that are named in `index` down to a `norm_type`-norm of at most `max_norm`: the
    table itself changes, and no gradient knows of it. None leaves all as they are."""
    if max_norm is None:
        return
    most = as_number(name, "max_norm", max_norm)
    rows = as_tensor(name, table).detach()
    places = rows._indices(name, index, rows.shape[0]).flatten()
    named = Tensor.zeros(rows.shape[0], dtype=bool_, device=rows.device)
    named = named.scatter(0, places, True)
    table.data.copy_(named.unsqueeze(-1).where(rows.renorm(norm_type, 0, most), rows))


def by_frequency(rows: Tensor, index: Tensor, count: int) -> Tensor:
    """Rows [..., D] of a table of `count` rows, whose gradients are divided by how often `index` [...] names each."""
    places = index.flatten().int()
    often = Tensor.zeros(count, dtype=places.dtype, device=rows.device).scatter_add(0, places, Tensor.ones_like(places))
    shared = rows / often.gather(0, places).reshape(*index.shape, 1).cast(rows.dtype)
    return rows._wrap(passed(shared.node, rows.detach().node), rows)
