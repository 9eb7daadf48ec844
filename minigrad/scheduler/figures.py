"""Facts of a kernel that are told: its name, and how much it computes."""
from __future__ import annotations

from minigrad.ops.node import Node
from minigrad.ops.op import Elementwise
from minigrad.scheduler.graph import Graph, numel
from minigrad.scheduler.groups import ATTENTIONS, Fusion


def kernel_name(graph: Graph, root: int, members: list[int]) -> str:
    """A readable name from the operations inside: 'sum_mul', 'exp_sub', at most four."""
    names = [graph.nodes[m].op.name for m in members if graph.kinds[m] in ("elementwise", "reduce")]
    name = "_".join(dict.fromkeys(names[:4])) or graph.nodes[root].op.name
    return name if "_" in name else f"k_{name}"  # a bare exp or const is a function or a word of C


def kernel_flops(state: Fusion, g: int) -> float:
    """The arithmetic of one fusion group: each elementwise member once per element, each reduction once per term."""
    total = 0.0
    graph = state.graph
    for m in state.groups[g].members:
        node = graph.nodes[m]
        if isinstance(node.op.lower, Elementwise):
            total += numel(node.shape) * max(min(node.op.lower.flops, 1), 0)
        elif graph.kinds[m] == "reduce":
            total += numel(graph.nodes[graph.inputs[m][0]].shape)
        elif node.op.name in ATTENTIONS:
            total += attention_flops(node)
    return total


def attention_flops(node: Node) -> float:
    """The arithmetic of the products of an attention, its sums or one of its gradients: a multiplication and a sum per
    term."""
    q, k = node.inputs[:2]
    scores = numel((*q.shape[:-1], k.shape[-2]))
    if node.op.name == "attention":
        return 2.0 * scores * numel((q.shape[-1] + node.shape[-1],))
    return 2.0 * scores * numel(q.shape[-1:] if node.op.name == "attention_sums" else node.shape[-1:])
