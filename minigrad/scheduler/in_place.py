"""Elementwise kernels that store over an operand: a large temporary that nothing reads afterwards.

    o0[i, j] = f(p0[i, j], p1[j])     ->     o0[i, j] = f(o0[i, j], p1[j])     in the memory of p0

It saves the memory of the result, and reading lines into caches only to write them.
"""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from minigrad.codegen.kernel.nodes import Nest, Store
from minigrad.codegen.kernel.value_walk import Rewriter
from minigrad.codegen.kernel.walk import accesses_of
from minigrad.codegen.lowering.lower import Lowered
from minigrad.expr import Index
from minigrad.ops.node import Node

LEAST_BYTES = 8 << 20
"""Smaller results stay in caches wherever they lie, and their kernels are shared with others that keep the operand."""


def stored_over_operand(lowered: Lowered, is_done: Callable[[Node], bool]) -> tuple[Lowered, Node] | None:
    """The kernel that stores its one result over the first operand for which `is_done` and of which it reads only the
    element that it stores, and that operand; None where there is none."""
    kernel = lowered.kernel
    if kernel.block is not None or [p.mode for p in kernel.params].count("in") != len(kernel.params) - 1:
        return None
    out, nest = kernel.params[0], kernel.nests[0]
    store = nest.body[0]
    if out.mode != "out" or len(kernel.nests) != 1 or len(nest.body) != 1 or not isinstance(store, Store):
        return None
    read: dict[str, set[tuple[Index, ...]]] = {}
    for name, at in accesses_of((nest,)):
        read.setdefault(name, set()).add(at)
    for source, node in list(zip(kernel.params, lowered.nodes, strict=True))[1:]:
        alike = source.dtype is out.dtype and source.shape == out.shape and source.layout == out.layout
        if alike and read.get(source.name) == {store.indices} and is_done(node):
            value = Rewriter({}, {source.name: out.name}).value(store.value)
            into = Nest(nest.domain, (replace(store, value=value),))
            params = tuple([p for p in kernel.params[1:] if p is not source])
            changed = replace(kernel, params=(replace(out, mode="inout"), *params), nests=(into,))
            return replace(lowered, kernel=changed, nodes=tuple([n for n in lowered.nodes if n is not node])), node
    return None
