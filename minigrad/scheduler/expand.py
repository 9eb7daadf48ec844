"""A graph without composites, and its schedule in terms of the graph that had them."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from minigrad.codegen.policy.attention_groups import has_blocks
from minigrad.codegen.transforms.bounded_sums import TERMS
from minigrad.dtype import bfloat16, float16, float32, float64
from minigrad.errors import InternalError
from minigrad.expr import bounds
from minigrad.ops.attention import ATTENTION, attention_by_table
from minigrad.ops.attention_gradient import ATTENTION_GRADIENT, ATTENTION_SUMS
from minigrad.ops.build import full, is_simple, number_of
from minigrad.ops.composite import expanded
from minigrad.ops.indexed import SCATTER, scattered_in_parts, scattered_wide
from minigrad.ops.node import Node
from minigrad.ops.op import Composite, IndexMap, Scan
from minigrad.ops.scan import unrolled
from minigrad.ops.storage import CONST
from minigrad.scheduler.graph import Graph, build_graph, kind_of, resolve
from minigrad.target import Target

if TYPE_CHECKING:
    from minigrad.scheduler.schedule import Schedule


@dataclass(slots=True)
class Expanded:
    """`graph` without composites. `back[k]` is the position, in the graph that it came from, of the Node that Node k is
    a part of; `targets[k]` is the number of the target here that is target k there, as several may expand to the
    same."""

    graph: Graph
    back: list[int]
    targets: list[int]

    def donatable(self, positions: frozenset[int]) -> frozenset[int]:
        """The leaves at these positions of the original graph, as positions in this one."""
        return frozenset(k for k in self.graph.leaves if self.back[k] in positions)

    def restored(self, schedule: Schedule) -> Schedule:
        """The schedule with positions of the original graph."""
        back = self.back
        slots = tuple([s if s.leaf is None else replace(s, leaf=back[s.leaf]) for s in schedule.slots])
        steps = tuple([s.moved(back) for s in schedule.steps])
        outputs = tuple([schedule.outputs[k] for k in self.targets])
        donated = frozenset([back[k] for k in schedule.donated])
        return replace(schedule, steps=steps, slots=slots, outputs=outputs, donated=donated)


def expand_graph(graph: Graph, target: Target, is_loop: Callable[[Node], bool]) -> Expanded | None:
    """The graph without composites; None where there is nothing to expand (composites, attention that the target has no
    policy for, loops for which not `is_loop`, scatters that add many values, and what has no elements), to merge or to
    simplify."""

    def is_kernel(node: Node) -> bool:
        if node.op is ATTENTION:
            return suits_blocks(node, target)
        if type(node.op.lower) is Scan:
            return is_loop(node)
        return node.op in IN_PARTS and suits_parts(node, target)

    def changes(node: Node) -> bool:
        composite = node.op is ATTENTION or isinstance(node.op.lower, Composite | Scan) or adds_many(node)
        return computes_nothing(node) or (composite and not is_kernel(node))

    def rewrite(node: Node, inputs: Sequence[Node]) -> Node | None:
        if computes_nothing(node):
            return full(0, node.shape, node.dtype, node.device)
        if is_kernel(node):
            return None
        if node.op is ATTENTION:
            return attention_by_table(node, inputs)
        if adds_many(node):
            return _added(node, inputs, target)
        return unrolled(node, inputs) if type(node.op.lower) is Scan else None

    graph.connect()
    if not any(not leaf and changes(n)
               for n, leaf in zip(graph.nodes, graph.leaf, strict=True)) and _is_settled(graph):
        return None
    targets = [graph.nodes[k] for k in graph.targets]
    image = expanded(targets, rewrite, is_kernel)
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
    place = {plain.nodes[k]: i for i, k in enumerate(plain.targets)}
    return Expanded(plain, [owner[n] for n in plain.nodes], [place[resolve(image[t])] for t in targets])


def _is_settled(graph: Graph) -> bool:
    """True where all operations are different, and none is simpler than it was written. Variables keep apart Nodes that
    are equal (ops/identity.py)."""
    seen: set[tuple[Any, ...]] = set()
    for node, inputs, leaf in zip(graph.nodes, graph.inputs, graph.leaf, strict=True):
        if leaf:
            continue
        key = (node.kind, inputs)
        if key in seen or not is_simple(node.op, [graph.nodes[i] for i in inputs if not graph.leaf[i]]):
            return False
        seen.add(key)
    return True


def computes_nothing(node: Node) -> bool:
    """True for a value without elements that operations before it give: none of them has to run for it."""
    return 0 in node.shape and number_of(node) is None and kind_of(node) != "special"


def adds_many(node: Node) -> bool:
    """True for a scatter that may add so many values to one place that its type would lose digits of their sum. Where
    they are few beside the places that there are already, these would have to be copied for it."""
    if node.op is not SCATTER or node.params["reduction"] != "add" or node.dtype not in (float32, float16, bfloat16):
        return False
    base, index, _ = node.inputs
    count, rows = (bounds(x.shape[node.params["axis"]])[1] for x in (index, base))
    while isinstance(base.op.lower, IndexMap):
        base = base.inputs[0]
    return count > (TERMS if node.dtype is float32 else 1) and (base.op is CONST or 4 * count >= rows)


def _added(node: Node, inputs: Sequence[Node], target: Target) -> Node | None:
    """The values added in float64, if the target has that, or in parts; a few halves in float32."""
    count, rows = (x.shape[node.params["axis"]] for x in (node.inputs[1], node.inputs[0]))
    if bounds(count)[1] <= TERMS:
        return scattered_wide(node, inputs, float32)
    if "fp64" in target.features:
        return scattered_wide(node, inputs, float64)
    parts = count // max(TERMS, rows) if isinstance(count, int) and isinstance(rows, int) else 1
    if parts > 1:
        return scattered_in_parts(node, inputs, parts)
    return None if node.dtype is float32 else scattered_wide(node, inputs, float32)


FEW_ROWS = 8
"""Rows of the query below which blocks of them are mostly empty."""

IN_PARTS = (ATTENTION_SUMS, ATTENTION_GRADIENT)


def suits_parts(node: Node, target: Target) -> bool:
    """True where the gradient of attention, and the sums that it needs, go through the keys block by block
    (codegen/policy/attention_gradient.py)."""
    q, k = node.inputs[:2]
    sizes = (*q.shape[-2:], k.shape[-2], node.inputs[2].shape[-1] if node.op is ATTENTION_GRADIENT else 2)
    whole = all(isinstance(n, int) and n > 1 for n in sizes)
    return whole and bounds(q.shape[-2])[0] >= FEW_ROWS and target.language == "llvm" and not target.is_gpu


def suits_blocks(node: Node, target: Target) -> bool:
    """True where attention goes through the keys block by block on this target (codegen/policy/attention.py,
    attention_decode.py), rather than by a table of all weights."""
    q, k, v = node.inputs[:3]
    few = bounds(q.shape[-2])[1] < FEW_ROWS
    sizes = (2 if few else q.shape[-2], q.shape[-1], k.shape[-2], v.shape[-1])
    if (few and (target.language != "llvm" or target.is_gpu)) or any(isinstance(n, int) and n < 2 for n in sizes):
        return False
    if not isinstance(q.shape[-1], int) or not isinstance(v.shape[-1], int):
        return False
    return has_blocks(q.shape[-1], v.shape[-1], bounds(k.shape[-2])[1], node.dtype.compute.itemsize, target)
