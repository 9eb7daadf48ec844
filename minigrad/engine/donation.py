"""Buffers that an assign may overwrite: those that nobody else can read (docs/decisions/0013-assign-is-pure.md)."""
from __future__ import annotations

from collections import Counter
from itertools import chain

from minigrad.engine.transfer import cloned
from minigrad.handles import live
from minigrad.ops.node import Node
from minigrad.ops.storage import ALIASES
from minigrad.ownership import held_by_at_most, holders
from minigrad.scheduler.graph import Graph, build_graph, resolve


def outside_references(graph: Graph) -> dict[int, int]:
    """The number of references from outside to each Node of the graph, aliases among them, by id.

    References from outside are those of Tensors and of Nodes of other graphs: neither of an unrealized Node of this
    graph nor of the graph itself.
    """
    aliases = graph.aliases
    lazy = [n.inputs for n in graph.nodes if n.storage is None]
    inside = Counter(map(id, chain(chain.from_iterable(lazy), [a.inputs[0] for a in aliases], graph.position)))
    found = chain(zip(graph.nodes, holders(graph.nodes), strict=True), zip(aliases, holders(aliases), strict=True))
    return {id(n): count - inside[id(n)] for n, count in found}


def graph_with_assigns(targets: list[Node]) -> tuple[Graph, list[Node], set[Node]]:
    """(the graph of `targets`, further targets, donatable leaves); further and donatable are of graphs with assigns.

    A leaf is donatable when no Tensor and no Node outside this graph reads it. What the user holds and would have to
    compute later from a donated leaf, and every assign that the user holds, is computed now.
    """
    graph = build_graph(targets)
    if not graph.assigns:
        return graph, [], set()
    graph.connect()
    beside = lazy_readers(graph, targets[0].device)
    if all([resolve(n) in graph.position for n in beside]):
        graph.add_targets(beside)
    else:
        graph.extend(beside)
    outside = outside_references(graph)
    shown = {resolve(a) for a in graph.aliases if outside[id(a)] > 0}
    found = [overwritten_leaf(graph.nodes[k], outside) for k in graph.assigns]
    donatable = {n for n in found if n is not None and n not in shown}
    readers = graph.dependants(frozenset([graph.position[n] for n in donatable])).union(graph.assigns)
    asked = {*targets, *beside}
    held = [n for n in chain(graph.nodes, graph.aliases) if outside[id(n)] > 0 and n.storage is None and n not in asked
            and graph.position[resolve(n)] in readers]
    graph.add_targets(held)
    return graph, beside + held, donatable


def overwritten_leaf(assign: Node, outside: dict[int, int]) -> Node | None:
    """The realized Node that an assign may overwrite, if nobody else holds it; it gets a buffer of its own for that."""
    old = assign.inputs[0]
    while old.op in ALIASES and old.storage is None:
        if outside[id(old)] > 0:
            return None
        old = old.inputs[0]
    if old.storage is None or outside[id(old)] > 0:
        return None
    if old.storage.shared or not held_by_at_most(1, [old.storage]):
        old.storage = cloned(old.storage)
    return old


def lazy_readers(graph: Graph, device: str) -> list[Node]:
    """Lazy values held by Tensors, of this graph or beside it, that read what its assigns replace and share its work.

    A loss that was differentiated and is printed after the step, for one: computing it now costs little, later the
    whole forward pass and a second copy of every parameter.
    """
    position = graph.position
    asked = {graph.nodes[k] for k in graph.targets}
    lazy = [t.node for t in live() if t.node.storage is None and t.node.device == device]
    nodes = [n for n in lazy if n not in asked and resolve(n).storage is None]
    if not nodes:
        return []
    replaced = frozenset([graph.inputs[k][0] for k in graph.assigns])
    readers = graph.dependants(replaced) | replaced
    found: list[Node] = []
    limit = max(64, len(position) // 4)
    for node in nodes:
        fresh, reads, stack, seen = 0, False, [node], {node}
        while stack and fresh <= limit:
            n = stack.pop()
            if n in position:
                reads |= position[n] in readers
                continue
            fresh += 1
            for i in n.inputs if n.storage is None else ():
                if i not in seen:
                    seen.add(i)
                    stack.append(i)
        if reads and fresh <= limit:
            found.append(node)
    return list(dict.fromkeys(found))
