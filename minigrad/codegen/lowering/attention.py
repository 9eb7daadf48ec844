"""The kernel of an attention Node.

    for b, i:
      t0 = max(j: s)                      s = scale * sum(e: q[b, i, e] * k[b, j, e]), with the mask
      t1 = sum(j: exp(s - t0))
      for f:
        t2 = sum(j: exp(s - t0) * v[b, j, f])
        o[b, i, f] = t2 / t1

Where it is causal, terms with j > i + offset are guarded away.
"""
from __future__ import annotations

import math
from collections.abc import Callable

from minigrad.codegen.kernel import Define, Kernel, Nest, Param, Store
from minigrad.codegen.lowering.lower import Lowered, Lowering, lowered
from minigrad.dtype import bool_
from minigrad.expr import Index, Var
from minigrad.ops.node import Node
from minigrad.value import Value, binary, cast, const, guard, local, make, reduce, unary


def lower_attention(node: Node, is_leaf: Callable[[Node], bool]) -> Lowered:
    q, k, v = node.inputs[:3]
    state = Lowering(is_leaf)
    compute = node.dtype.compute

    def variable(name: str, extent: Index) -> Index:
        return 0 if extent == 1 else Var(name, 0, extent - 1)

    *batch, i, f = (variable(f"i{d}", extent) for d, extent in enumerate(node.shape))
    j, e = variable("r0", k.shape[-2]), variable("r1", q.shape[-1])
    batch = list(batch)

    def over(monoid: str, index: Index, body: Value) -> Value:
        return reduce(monoid, (index,), body) if isinstance(index, Var) else body

    product = binary("mul", state.element(q, (*batch, i, e)), state.element(k, (*batch, j, e)))
    score = binary("mul", over("sum", e, product), state.constant(node.params["scale"], compute))
    if len(node.inputs) > 3:
        mask = state.element(node.inputs[3], (*batch, i, j))
        if mask.dtype is bool_:
            score = make("where", compute, (mask, score, const(-math.inf, compute)))
        else:
            score = binary("add", score, mask)
    inside: tuple[Index, ...] = () if node.params["causal"] is None else (i + node.params["causal"] - j,)
    top = over("max", j, guard(score, const(-math.inf, compute), inside))
    weight = unary("exp", binary("sub", score, local("t0", compute)))
    total = over("sum", j, guard(weight, const(0, compute), inside))
    term = binary("mul", weight, state.element(v, (*batch, j, f)))
    mixed = over("sum", j, guard(term, const(0, compute), inside))
    result = binary("div", local("t2", compute), local("t1", compute))
    store = Store("o0", (*batch, i, f), cast(result, node.dtype))
    row = Nest((f,) if isinstance(f, Var) else (), (Define("t2", mixed), store))
    nest = Nest(tuple(x for x in (*batch, i) if isinstance(x, Var)), (Define("t0", top), Define("t1", total), row))
    out = Param("o0", node.dtype, node.shape, "out")
    kernel = Kernel("attention", (out, *state.params.values()), tuple(state.scalars.values()), (), (nest,))
    return lowered(kernel, (node, *state.params), state)
