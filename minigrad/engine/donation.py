"""Which buffers an assign may overwrite: those that nobody else can read any more (docs/architecture.md, versions)."""
from __future__ import annotations

import sys
from operator import attrgetter

from minigrad.engine.transfer import cloned
from minigrad.handles import live
from minigrad.ops.node import Node
from minigrad.scheduler.graph import ALIASES, resolve


def outside_references(roots: list[Node]) -> tuple[list[Node], dict[int, int]]:
    """All unrealized Nodes that `roots` reach with their realized inputs, inputs first, and how often each is held from
    outside, by id.

    Outside means: neither by a Node among them nor by this function; a Tensor, or a Node of another graph.
    """
    inside: dict[Node, int] = dict.fromkeys(roots, 0)
    stack = list(inside)
    while stack:
        node = stack.pop()
        if node.storage is None:
            for i in node.inputs:
                known = inside.get(i)
                if known is None:
                    stack.append(i)
                    known = 0
                inside[i] = known + 1
    node = i = None  # type: ignore[assignment]
    order = list(inside)
    counts = list(map(sys.getrefcount, order))
    outside = {id(n): count - k - _OWN_REFERENCES for n, count, k in zip(order, counts, inside.values(), strict=True)}
    order.sort(key=attrgetter("serial"))
    return order, outside


_OWN_REFERENCES = 2
"""What the count above itself holds of a Node: the list, the dict and the call's argument. Calibrated below."""


def _calibrate() -> int:
    """References that `outside_references` holds itself, measured on a Node that nothing else holds."""
    inner, outer = Node(), Node()
    inner.storage, inner.inputs, inner.serial = object(), (), 0
    outer.storage, outer.inputs, outer.serial = None, (inner,), 1
    key = id(inner)
    del inner
    return outside_references([outer])[1][key] + _OWN_REFERENCES


_OWN_REFERENCES = _calibrate()


def plan_assigns(targets: list[Node]) -> tuple[list[Node], set[Node]]:
    """(further targets, donatable leaves) where the graph has assigns.

    A leaf is donatable when no Tensor and no Node outside this graph reads it. What the user holds and would have to
    compute later from a donated leaf, and every assign that the user holds, is computed now.
    """
    order, outside = outside_references(targets)
    if not any(n.op.name == "assign" and n.storage is None for n in order):
        return [], set()
    beside = lazy_readers(order, targets[0].device)
    if beside:
        del order, outside  # a second list of the Nodes would be counted as another holder
        order, outside = outside_references([*targets, *beside])
    asked = {*targets, *beside}
    donatable: set[Node] = set()
    for a in order:
        if a.op.name == "assign" and a.storage is None:
            leaf = overwritten_leaf(a, outside)
            if leaf is not None:
                donatable.add(leaf)
    readers = dependants(order, donatable)
    held = [n for n in order if outside[id(n)] > 0 and n not in asked and n.storage is None
            and (n in readers or n.op.name == "assign")]
    return beside + held, donatable


def overwritten_leaf(assign: Node, outside: dict[int, int]) -> Node | None:
    """The realized Node that an assign may overwrite, if nobody else holds it; it gets a buffer of its own for that."""
    old = assign.inputs[0]
    while old.op.name in ALIASES and old.storage is None:
        if outside[id(old)] > 0:
            return None
        old = old.inputs[0]
    if old.storage is None or outside[id(old)] > 0:
        return None
    if sys.getrefcount(old.storage) > 2:
        old.storage = cloned(old.storage)
    return old


def lazy_readers(order: list[Node], device: str) -> list[Node]:
    """Lazy values held by Tensors beside this graph that read what its assigns replace, and share most of its work.

    A loss that was differentiated and is printed after the step, for one: computing it now costs little, later the
    whole forward pass and a second copy of every parameter.
    """
    known = {id(n) for n in order}
    replaced: set[Node] = set()
    for a in order:
        if a.op.name == "assign" and a.storage is None:
            replaced.update(chain(a.inputs[0]))
    readers = {id(n) for n in dependants(order, replaced) | replaced}
    found: list[Node] = []
    limit = max(64, len(order) // 4)
    for tensor in live():
        node = tensor._node
        if id(node) in known or node.device != device or resolve(node).storage is not None:
            continue
        fresh, reads, stack, seen = 0, False, [node], {id(node)}
        while stack and fresh <= limit:
            n = stack.pop()
            if id(n) in known:
                reads |= id(n) in readers
                continue
            fresh += 1
            for i in n.inputs if n.storage is None else ():
                if id(i) not in seen:
                    seen.add(id(i))
                    stack.append(i)
        if reads and fresh <= limit:
            found.append(node)
    return list(dict.fromkeys(found))


def chain(node: Node) -> list[Node]:
    """A Node and what it is an alias of."""
    found = [node]
    while node.op.name in ALIASES and node.storage is None:
        node = node.inputs[0]
        found.append(node)
    return found


def dependants(order: list[Node], leaves: set[Node]) -> set[Node]:
    """The unrealized Nodes of `order`, which has inputs first, that need any of `leaves`."""
    reached = set(leaves)
    for n in order:
        if n.storage is None and not reached.isdisjoint(n.inputs):
            reached.add(n)
    return reached - leaves
