"""Functions of Nodes as the operations that they made of operands which stand for any."""
from __future__ import annotations

from collections.abc import Sequence

from minigrad.ops.composite import rebuilt
from minigrad.ops.kinds import clean
from minigrad.ops.node import Node, apply, apply_once, toposort
from minigrad.ops.storage import DETACH


class Traced:
    """The operations that made `results` of `operands`, in `order`, inputs first. Calls make the same of others."""

    def __init__(self, operands: Sequence[Node], results: Sequence[Node]):
        self.operands, self.results = tuple(operands), tuple(results)
        given = set(operands)
        self.order = [n for n in toposort(*results) if n not in given]

    def __call__(self, *operands: Node) -> list[Node]:
        """The results as operations over these operands."""
        return self.images(self.results, operands)

    def images(self, nodes: Sequence[Node], operands: Sequence[Node]) -> list[Node]:
        """Any of its Nodes as operations over these operands."""
        return remade(self.order, nodes, dict(zip(self.operands, operands, strict=True)))

    def text(self) -> str:
        """The operations that make the results of the operands, one a line: equal for equal ones, in every process."""
        place = {n: f"${k}" for k, n in enumerate(self.operands)}
        lines = [str([(t.dtype.name, t.shape, t.device) for t in [n.type for n in self.operands]])]
        for node in self.order:
            place[node] = f"%{len(lines)}"
            params = [clean(p, []) for p in node.params.values()]
            lines.append(f"{node.op.name} {node.device} {' '.join([place[i] for i in node.inputs])} {params}")
        return "\n".join([*lines, *[place[r] for r in self.results]])


def remade(order: Sequence[Node], results: Sequence[Node], image: dict[Node, Node]) -> list[Node]:
    """The results over the images of what is in `image`, to which those of `order` are added. Gradients still end where
    they ended."""
    for node in order:
        if hasattr(node, "rule"):
            image[node] = made = apply_once(node.op, *[image[i] for i in node.inputs])
            made.rule = node.rule
        elif node not in image:
            image[node] = (apply(DETACH, image[node.inputs[0]], id=0) if node.op is DETACH and node.storage is None
                           else rebuilt(node, image))
    return [image[n] for n in results]
