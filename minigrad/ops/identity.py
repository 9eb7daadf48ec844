"""Variables: float Nodes that a handle owns, by which a gradient may be asked.

Hash-consing makes equal expressions one Node, which must not make one variable of them:

    y, z = x * 2, x * 2
    (y + z * 10).sum().gradient(y, z)  # 1 and 10

So a handle's float Node is its own: `apply` never gives it to anybody else, but makes another equal one, and no rewrite
of `build` looks through it. A Node that is there already (of x in y = x * 1, or of a constant) becomes the handle's own
by SAME. Making a plan merges all of them again (scheduler/expand.py).
"""
from __future__ import annotations

from minigrad.handles import changes
from minigrad.ops.node import Node, apply_once
from minigrad.ops.storage import SAME


def own(node: Node) -> Node:
    """The Node by which a new handle stands for the value of `node`: this one if it was just made, and is nobody's."""
    if changes.mark is not node.serial:
        if not node.dtype.is_float:
            return node
        node = apply_once(SAME, node)
    node.owned = True
    return node
