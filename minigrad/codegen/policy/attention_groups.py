"""Attention by work-groups: a work-item per row of q, keys and values block by block through local memory.

    for batch, blocks of rows group:
      for rows item:
        q to registers
        for blocks of keys:
          barrier
          all work-items copy k, transposed: [e][key], and v: [key][f] to local memory
          barrier
          for eight keys of the block:
            s[key] = k q                                          registers
            top' = max(top, s);  shrink = exp(top - top');  s = exp(s - top')
            total = total * shrink + sum of s;  o[f] = o[f] * shrink + v s
        store o / total

How many rows and keys depends on shapes and the target only.
"""
from __future__ import annotations

from math import ceil

from minigrad.codegen.kernel.access import typical
from minigrad.codegen.kernel.nodes import Block, Nest
from minigrad.codegen.patterns.recognise_attention import recognise
from minigrad.codegen.policy.attention import EIGHT, Rule, has_room
from minigrad.target import Target

ROWS, KEYS = (128, 64, 32), (32, 16, 8)
"""Rows of q per group and keys in local memory that are tried, the most first."""

PADDING = 4
"""Elements after a row of keys, so that a column of them uses all banks."""

MAX_WIDTH = 128
"""Columns of q and of the result, which a work-item holds in registers."""


def block_of(nest: Nest, target: Target) -> Block | None:
    """Attention as a block of work-items; None where the nest is something else, or the target has no room for one."""
    found = recognise(nest) if target.has_groups else None
    if found is None or found.mix is None or not all(isinstance(v.hi, int) for v in (found.depth, found.mix.column)):
        return None
    sizes = typical(found.depth), typical(found.mix.column), typical(found.key)
    blocks = blocks_of(*sizes, max(found.q.dtype.bits, 32) // 8, target)
    return None if blocks is None else Rule(found, *blocks, PADDING).block()


def blocks_of(depth: int, columns: int, keys: int, itemsize: int, target: Target) -> tuple[int, int] | None:
    """(rows of a group, keys of a block) for these extents, the most that fit; None if none do."""
    if not target.has_groups or max(depth, columns) > MAX_WIDTH:
        return None
    for rows in ROWS:
        for block in KEYS:
            local = depth * (block + PADDING) + block * columns
            copies = ceil(block * depth / rows) + ceil(block * columns / rows)
            steps = ceil(keys / block) * (copies + block // EIGHT)
            fits = local * itemsize <= target.local_memory and rows <= target.max_group
            if fits and not 0 < target.max_iterations < steps:
                return rows, block
    return None


def has_blocks(depth: int, columns: int, keys: int, itemsize: int, target: Target) -> bool:
    """True where attention with these extents is a block on the target, here or in attention.py."""
    if target.is_gpu:
        return blocks_of(depth, columns, keys, itemsize, target) is not None
    return has_room(depth, columns, itemsize, target)
