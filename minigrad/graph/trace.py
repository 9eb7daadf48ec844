"""The gradients of a graph that was seen before: one Block of all that a loss was made from.

A training step makes an equal graph each time. What leads from the operands to the loss is named by numbers in one
pass; by them the Block of its gradients is found, so that no rule of an operation runs a second time.
"""
from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from minigrad.graph.autodiff import History, check_seed, gradient
from minigrad.graph.blocks import Block
from minigrad.interned import remember
from minigrad.ops.calls import FUNCTION
from minigrad.ops.composite import rebuilt
from minigrad.ops.node import Node, hooked
from minigrad.ops.storage import CONST, DETACH, IOTA, SAME

MOST = 256
"""The most graphs whose gradients are kept."""
_known: dict[tuple[Any, ...], Block] = {}


class Trace:
    """The Nodes that `output` was made from, as `History` has them, with a name for their structure.

    `operands` are where gradients end: leaves, detached Nodes and Nodes that are no floats. `order` is everything,
    inputs first, and `words` has a name for each: minus the number of an operand's type, or that of its kind and the
    places of its inputs.
    """

    __slots__ = ("output", "operands", "order", "places", "words")

    def __init__(self, output: Node):
        self.output = output
        self.operands: dict[Node, None] = {}
        self.order: list[Node] = []
        self.words: list[int] = []
        self.places: dict[Node, int] = {}

    def __contains__(self, node: Node) -> bool:
        return node in self.places

    def gradients(self, targets: Sequence[Node], seed: Node | None) -> Iterator[Node]:
        """The gradients of sum(output * seed) with respect to operands, made when they are asked for."""
        key = (*self.words, *[self.places[t] for t in targets], 0 if seed is None else -seed.type.number)
        found = _known.get(key)
        if found is None:
            found = self._block(targets, seed)
            remember(_known, key, found, MOST)
        return found(self.output, *self.operands, *(() if seed is None else (seed,)))

    def _block(self, targets: Sequence[Node], seed: Node | None) -> Block:
        """The Block of the gradients. The output is an operand of it too, though the Block does not read it: Nodes that
        are asked for with the gradients share all that leads to the output, and should be computed with them."""
        operands = [self.output, *self.operands, *(() if seed is None else (seed,))]

        def body(*apart: Node) -> list[Node]:
            image = dict(zip(self.operands, apart[1:], strict=False))
            for node in self.order:
                if node not in image:
                    image[node] = rebuilt(node, image)
            made_from = History(image[self.output])
            return gradient(made_from, [image[t] for t in targets], None if seed is None else apart[-1])

        return Block("backward", body, [n.type for n in operands])


def trace(output: Node) -> Trace | None:
    """The Trace of a Node; None where a gradient may be asked in between (hooks, functions with gradients of their
    own), where there are values in between that need not be computed again, over symbolic dims, and where it was made
    from one of several results of a Block."""
    if hooked or not output.dtype.is_float or output.storage is not None:
        return None
    made = Trace(output)
    places, order, words = made.places, made.order, made.words
    stack: list[Node] = [output]
    device = output.device
    while stack:
        node = stack[-1]
        if node in places:
            stack.pop()
            continue
        inputs = node.inputs
        if not inputs or node.op is DETACH or not node.dtype.is_float:
            if node.type.symbolic or node.device != device or (node.kind is not None and (
                    node.kind.symbolic or node.kind.special == "call")):
                return None
            constant = (node.op is CONST or node.op is IOTA) and not node.owned and node.storage is None
            if constant and node.kind is not None:
                words.append(node.kind.number)
            else:
                words.append(-node.type.number)
                made.operands[node] = None
        else:
            waiting = [i for i in inputs if i not in places]
            if waiting:
                stack += waiting
                continue
            kind = node.kind
            if kind is None or kind.symbolic or node.op in FUNCTION or node.storage is not None or \
                    node.device != device:
                return None
            words.append(0 if node.op is SAME else kind.number)
            words += [places[i] for i in inputs]
        places[node] = len(order)
        order.append(node)
        stack.pop()
    return made


def gradients(made_from: History | Trace, targets: list[Node], seed: Node | None) -> Iterator[Node]:
    """The gradients by the targets: from a graph that was seen before, where there is one of this structure."""
    if isinstance(made_from, Trace):
        check_seed(made_from.output, seed)
        if all([n in made_from.operands for n in targets]):
            return made_from.gradients(targets, seed)
        made_from = History(made_from.output)
    return iter(gradient(made_from, targets, seed))


def reaches_back(node: Node, serial: int) -> bool:
    """True where a Node with inputs that is not realized, or one that it is made from, has a smaller serial number."""
    seen: set[Node] = set()
    stack = [node]
    while stack:
        n = stack.pop()
        if n in seen or n.storage is not None or not n.inputs:
            continue
        if n.serial < serial:
            return True
        seen.add(n)
        stack += n.inputs
    return False
