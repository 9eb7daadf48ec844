"""Places where movement reads its operand: the fusion pass and lowering ask for the same ones, and layers repeat."""
from __future__ import annotations

from minigrad.errors import InternalError
from minigrad.expr import Index
from minigrad.ops.node import Node
from minigrad.ops.op import IndexMap, Mapped

MOST = 1 << 14
"""The most places that are kept."""

_known: dict[tuple, Mapped] = {}


def read_at(node: Node, source: Node, at: tuple[Index, ...]) -> Mapped:
    """The place where a Node of movement, at index `at`, reads its operand."""
    key = node.kind, source.type, at
    found = _known.get(key)
    if found is None:
        lower = node.op.lower
        if not isinstance(lower, IndexMap):
            raise InternalError(f"[lower] expected an operation of movement, got {node.op.name}")
        if len(_known) >= MOST:
            _known.clear()
        found = _known[key] = lower.source(at, in_shape=source.shape, **node.params)
    return found
