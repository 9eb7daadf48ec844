"""Which expert multiplies which tokens: tokens that choose the same expert are multiplied by its matrices together.

Each expert's tokens are put into blocks of `ROWS` rows, the last one of them filled up. The routing stays on the
device: how many blocks there are follows from the number of tokens alone, so that some may be empty. What is in rows
without a token is computed and never read.
"""
from __future__ import annotations

from dataclasses import dataclass

from minigrad import Tensor
from minigrad.dtype import int32
from minigrad.expr import Index, dim, emin

ROWS = 4
"""Rows of a block: a matrix of quantised blocks is read and taken apart once for so many, at hardly more than what it
costs for one. More of them would mean more rows without a token."""


@dataclass(frozen=True)
class Blocks:
    """The expert of each block [blocks], the token in each of its rows [blocks, rows], and for each token and each of
    the experts that it chose the row of all blocks in which they meet [n, used]. All int32."""

    experts: Tensor
    tokens: Tensor
    places: Tensor


def blocks_of(chosen: Tensor, count: int) -> Blocks:
    """The blocks for tokens that chose different ones of `count` experts each, [n, used]; n may be symbolic."""
    n, used = chosen.shape
    if n == 1:  # nothing is shared, and no row filled up
        return Blocks(chosen.reshape(-1), Tensor.zeros(used, 1, dtype=int32), Tensor.arange(used).reshape(1, used))
    numbers = Tensor.arange(count, dtype=int32)
    chooses = (chosen.unsqueeze(2) == numbers).sum(1, dtype=int32)  # [n, count]
    before = chooses.cumsum(0, dtype=int32) - chooses
    each = (chooses.sum(0, dtype=int32) + (ROWS - 1)) // ROWS  # blocks
    ends = each.cumsum(0, dtype=int32)
    places = ((ends - each) * ROWS + before).gather(1, chosen)
    blocks = _most_blocks(n * used, count)
    experts = (Tensor.arange(blocks, dtype=int32).unsqueeze(1) >= ends).sum(1, dtype=int32).minimum(count - 1)
    owners = Tensor.arange(n, dtype=int32).unsqueeze(1).expand(n, used).reshape(-1)
    tokens = Tensor.zeros(blocks * ROWS, dtype=int32).scatter(0, places.reshape(-1), owners)
    return Blocks(experts, tokens.reshape(blocks, ROWS), places)


def _most_blocks(rows: Index, count: int) -> Index:
    """The most blocks that so many rows can need: as many experts as can have a row each fill up their last block."""
    return dim((rows + emin(rows, count) * (ROWS - 1)) // ROWS)
