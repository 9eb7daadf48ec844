"""Functions of Tensors as Blocks (graph/blocks.py): layers and updates that are made again at each step."""
from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import TypeVar

from minigrad.graph.blocks import block
from minigrad.mixins.base import Base
from minigrad.ops.node import Node

T = TypeVar("T", bound=Base)


def as_block(name: str, key: Hashable, function: Callable[..., Sequence[T]], *operands: T) -> tuple[T, ...]:
    """`function(*operands)`, as one Node per result with those of the gradient, rather than all that it is made of.

    `function` runs only where no Block of this `name` and `key` over operands of these types is known yet: all else
    that its results depend on is part of `key`. It reads no values, draws no random numbers and assigns nothing.
    """
    kind = type(operands[0])

    def body(*nodes: Node) -> list[Node]:
        return [t._node for t in function(*[kind._wrap(n) for n in nodes])]

    parents = {max(operands, key=lambda t: t._node.depth), *[t for t in operands if t._requires_grad][:1]}
    return tuple([kind._wrap(n, *parents) for n in block(name, (key,), body, [t._node for t in operands])])
