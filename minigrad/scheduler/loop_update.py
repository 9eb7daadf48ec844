"""Loops with a carried state that store their last carry over the first one: a state that is kept between calls.

    s0 = p0; steps t: ...; o0 = s0; then p0 = o0     ->     s0 = o0; steps t: ...; o0 = s0
"""
from __future__ import annotations

from dataclasses import replace

from minigrad.codegen.kernel.nodes import Nest, Store
from minigrad.codegen.kernel.value_walk import Rewriter
from minigrad.codegen.kernel.walk import accesses_of
from minigrad.codegen.lowering.independent_axes import carried, independent_axes
from minigrad.codegen.lowering.lower import Lowered
from minigrad.codegen.policy.scan import choose
from minigrad.errors import present
from minigrad.ops.node import Node
from minigrad.target import Target


def stored_over(lowered: Lowered, last: Node, first: Node, target: Target) -> Lowered | None:
    """The kernel of a loop that stores the last carry where the first one lies; None where one independent part of it
    could read what another one has stored."""
    kernel = lowered.kernel
    if first not in lowered.nodes:
        return None
    steps, block = carried(kernel), present(kernel.block, "[scan] expected a block")
    out, source = [kernel.params[lowered.nodes.index(n)] for n in (last, first)]
    reading = [k for k, nest in enumerate(steps.nests) for name, _ in accesses_of((nest,)) if name == source.name]
    storing = [k for k, nest in enumerate(steps.nests) for name, _ in accesses_of((nest,)) if name == out.name]
    if len(reading) != 1 or len(storing) != 1 or reading[0] >= steps.first or storing[0] < steps.last:
        return None
    read, write = _moved(steps.nests[reading[0]]), _moved(steps.nests[storing[0]])
    if read is None or write is None or read[1] != write[0] or source.shape != out.shape:
        return None
    if source.dtype is not out.dtype or not _apart(lowered, read[1], target):
        return None
    nest = steps.nests[reading[0]]
    store = nest.body[0]
    if not isinstance(store, Store):
        return None
    into = Nest(nest.domain, (replace(store, value=Rewriter({}, {source.name: out.name}).value(store.value)),))
    body = tuple([into if k == reading[0] else s for k, s in enumerate(block.body)])
    params = tuple([replace(p, mode="inout") if p is out else p for p in kernel.params if p is not source])
    nodes = tuple([n for n in lowered.nodes if n is not first])
    return replace(lowered, kernel=replace(kernel, params=params, block=replace(block, body=body)), nodes=nodes)


def _moved(nest: Nest) -> tuple[str, str] | None:
    """(from, to) of a nest that only copies a buffer, element by element."""
    s = nest.body[0]
    if len(nest.body) != 1 or not isinstance(s, Store) or s.value.op != "load" or s.value.indices != s.indices:
        return None
    return s.value.buffer, s.param


def _apart(lowered: Lowered, carry: str, target: Target) -> bool:
    """True where each element of the carry belongs to one worker."""
    axes, places = independent_axes(lowered.kernel), choose(lowered.kernel, target)
    if places is None or any(carry not in a.axes for a in axes):
        return False
    return places.across < 0 or axes[places.across].extent % places.lanes == 0
