"""A graph without composites, and its schedule in terms of the graph that had them."""
from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from minigrad.errors import InternalError
from minigrad.ops.composite import expanded
from minigrad.ops.node import Node
from minigrad.ops.op import Composite
from minigrad.scheduler.graph import Graph, build_graph

if TYPE_CHECKING:
    from minigrad.scheduler.schedule import Schedule


@dataclass(slots=True)
class Expanded:
    """`graph` without composites; `back[k]` is the position, in the graph that it came from, of what its Node k is a
    part of."""

    graph: Graph
    back: list[int]

    def donatable(self, positions: frozenset[int]) -> frozenset[int]:
        """Those leaves, given by positions in the original graph, in this one."""
        return frozenset(k for k, leaf in enumerate(self.graph.leaf) if leaf and self.back[k] in positions)

    def restored(self, schedule: Schedule) -> Schedule:
        """The schedule with positions of the original graph."""
        back = self.back
        slots = tuple([s if s.leaf is None else replace(s, leaf=back[s.leaf]) for s in schedule.slots])
        steps = tuple([replace(s, scalars=tuple([back[x] if type(x) is int else x for x in s.scalars]),
                               origins=tuple(dict.fromkeys([back[k] for k in s.origins]))) for s in schedule.steps])
        return replace(schedule, steps=steps, slots=slots, donated=frozenset([back[k] for k in schedule.donated]))


def expand_graph(graph: Graph) -> Expanded | None:
    """None where there are no composites."""
    if not any(isinstance(n.op.lower, Composite) and not leaf for n, leaf in zip(graph.nodes, graph.leaf, strict=True)):
        return None
    targets = [graph.nodes[k] for k in graph.targets]
    image = expanded(targets)
    plain = build_graph([image[t] for t in targets])
    owner: dict[Node, int] = {}
    for k, node in enumerate(graph.nodes):  # inputs come first: what is not theirs is the Node's own
        stack = [image[node]] if node in image else []
        while stack:
            made = stack.pop()
            if made not in owner:
                owner[made] = k
                stack.extend(made.inputs)
    missing = next((n for n in plain.nodes if n not in owner), None)
    if missing is not None:
        raise InternalError(f"[expand] {missing} comes from no Node of the graph")
    return Expanded(plain, [owner[n] for n in plain.nodes])
