"""Fusion groups of equal structure are lowered once: the layers of a network repeat."""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from minigrad.codegen.lowering.lower import Lowered, lower_group
from minigrad.expr import Index
from minigrad.ops.node import Node

Tails = dict[Node, tuple[Index, ...]]


class Lowerings:
    """The results of `lower_group` for the fusion groups of one graph."""

    def __init__(self) -> None:
        self._known: dict[tuple, tuple[Lowered | None, list[Node]]] = {}

    def lower(self, outputs: tuple[Node, ...], is_leaf: Callable[[Node], bool], name: str, in_place: frozenset[Node],
              tails: Tails) -> Lowered | None:
        """`lower_group`, or its result for an equal fusion group before, with this one's Nodes."""
        words, order = outline(outputs, is_leaf)
        if words is None:
            return lower_group(outputs, is_leaf, name, in_place, tails)
        key = name, len(outputs), words, tuple([n in in_place for n in outputs]), tuple([tails.get(n) for n in outputs])
        known = self._known.get(key)
        if known is None:
            made = lower_group(outputs, is_leaf, name, in_place, tails, symbolic=False)
            self._known[key] = made, order
            return made
        made, first = known
        if made is None:
            return None
        like = dict(zip(first, order, strict=True))
        scalars = tuple([like[s] if isinstance(s, Node) else s for s in made.scalars])
        return replace(made, nodes=tuple([like[n] for n in made.nodes]), scalars=scalars)


def outline(outputs: tuple[Node, ...], is_leaf: Callable[[Node], bool]) -> tuple[tuple[int, ...] | None, list[Node]]:
    """The structure below some Nodes as numbers, down to leaves, and the Nodes in the order in which it names them.

    Equal numbers mean equal kernels. None with symbolic dims, which a kernel's arguments have by the user's names.
    """
    order = list(dict.fromkeys(outputs))
    place = {n: k for k, n in enumerate(order)}
    words = [place[n] for n in outputs]
    symbolic = False
    for k, node in enumerate(order):  # which grows meanwhile
        if (k >= len(outputs) and is_leaf(node)) or node.kind is None:
            words.append(-node.type.number)
            symbolic |= node.type.symbolic
            continue
        words.append(node.kind.number)
        symbolic |= node.kind.symbolic
        for i in node.inputs:
            if i not in place:
                place[i] = len(order)
                order.append(i)
            words.append(place[i])
    return (None if symbolic else tuple(words)), order
