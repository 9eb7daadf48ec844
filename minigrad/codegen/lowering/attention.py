"""The kernels of attention Nodes, of their sums, and of their gradients.

    for b, i:
      t0 = max(j: s)                      s = scale * sum(e: q[b, i, e] * k[b, j, e]), capped, with the mask
      t1 = sum(j: exp(s - m))             m = t0, or 0 where t0 is -inf
      sums[b, i] = t0 + log(t1)
      for f:
        t2 = sum(j: exp(s - m) * v[b, j, f])
        o[b, i, f] = t2 / t1            t1 + exp(sink[b, i] - m) with sinks

    for b:
      for i, e: dq[b, i, e] = scale * sum(j: t * k[b, j, e])      p = exp(s - sums[b, i])
      for j, e: dk[b, j, e] = scale * sum(i: t * q[b, i, e])      t = p * (sum(f: g[b, i, f] * v[b, j, f]) - d[b, i])
      for j, f: dv[b, j, f] = sum(i: p * g[b, i, f])

Where it is causal, terms with j > i + offset, or outside of its window, are guarded away. Of a kernel's results some
may be missing. A row with nothing left in has t1 = 0: its result is 0 and its sum infinite, so that its weights are 0
in gradients too.
"""
from __future__ import annotations

import math
from collections.abc import Callable

from minigrad.codegen.kernel.monoid import MONOIDS
from minigrad.codegen.kernel.nodes import Define, Kernel, Nest, Param, Store
from minigrad.codegen.lowering.lower import Lowered, Lowering, lowered
from minigrad.dtype import DType, bool_
from minigrad.expr import Index, Var
from minigrad.ops.node import Node
from minigrad.value import Value, binary, cast, const, guard, local, make, reduce, unary, where


class _Attention:
    """The common parts of the kernels: `q`, `k`, `mask` and the numbers of one Node's weights."""

    def __init__(self, node: Node, mask: Node | None, is_leaf: Callable[[Node], bool]):
        self.q, self.k = node.inputs[:2]
        self.mask, self.params = mask, node.params
        self.compute: DType = self.q.dtype.compute
        self.state = Lowering(is_leaf)
        self.batch = tuple(variable(f"i{d}", extent) for d, extent in enumerate(self.q.shape[:-2]))

    def score(self, i: Index, j: Index, e: Index) -> Value:
        """The score of row i and key j; e is summed over."""
        state = self.state
        product = binary("mul", state.element(self.q, (*self.batch, i, e)), state.element(self.k, (*self.batch, j, e)))
        score = binary("mul", over("sum", e, product), state.constant(self.params["scale"], self.compute))
        if self.params["softcap"] is not None:
            cap = state.constant(self.params["softcap"], self.compute)
            score = binary("mul", cap, unary("tanh", binary("div", score, cap)))
        if self.mask is None:
            return score
        mask = state.element(self.mask, (*self.batch, i, j))
        if mask.dtype is bool_:
            return make("where", self.compute, (mask, score, const(-math.inf, self.compute)))
        return binary("add", score, mask)

    def inside(self, i: Index, j: Index) -> tuple[Index, ...]:
        """The indices that must be >= 0 for key j to count for row i."""
        causal, window = self.params["causal"], self.params["window"]
        if causal is None:
            return ()
        behind = i + causal - j
        return (behind,) if window is None else (behind, window - 1 - behind)

    def total(self, monoid: str, index: Index, term: Value, inside: tuple[Index, ...]) -> Value:
        """The reduction of `term` over all values of `index` that are `inside`."""
        return over(monoid, index, guard(term, MONOIDS[monoid].init(self.compute), inside))

    def lowered(self, name: str, nodes: tuple[Node, ...], nest: Nest) -> Lowered:
        outs = [Param(f"o{n}", node.dtype, node.shape, "out") for n, node in enumerate(nodes)]
        kernel = Kernel(name, (*outs, *self.state.params.values()), tuple(self.state.scalars.values()), (), (nest,))
        return lowered(kernel, (*nodes, *self.state.params), self.state)


def variable(name: str, extent: Index) -> Index:
    return 0 if extent == 1 else Var(name, 0, extent - 1)


def variables_of(*indices: Index) -> tuple[Var, ...]:
    return tuple(x for x in indices if isinstance(x, Var))


def over(monoid: str, index: Index, body: Value) -> Value:
    return reduce(monoid, (index,), body) if isinstance(index, Var) else body


def shift_of(top: Value) -> Value:
    """The number that is subtracted from the scores of a row whose largest is `top`: that, or 0 where all of them are
    -inf."""
    return where(binary("eq", top, const(-math.inf, top.dtype)), const(0, top.dtype), top)


def lower_attention(nodes: tuple[Node, ...], is_leaf: Callable[[Node], bool]) -> Lowered:
    """An attention, its sums, or both of them."""
    node = next((n for n in nodes if n.op.name == "attention"), nodes[0])
    mixes = node.op.name == "attention"
    masks = list(node.inputs[3 if mixes else 2:])
    sinks = masks.pop() if mixes and node.params["sinks"] else None
    parts = _Attention(node, masks[0] if masks else None, is_leaf)
    state, compute, batch = parts.state, parts.compute, parts.batch
    i, j = variable(f"i{len(batch)}", parts.q.shape[-2]), variable("r0", parts.k.shape[-2])
    score, inside = parts.score(i, j, variable("r1", parts.q.shape[-1])), parts.inside(i, j)
    weight = unary("exp", binary("sub", score, shift_of(local("t0", compute))))
    total = local("t1", compute)
    nothing = binary("eq", total, const(0, compute))
    body: list[Define | Store | Nest] = [Define("t0", parts.total("max", j, score, inside)),
                                         Define("t1", parts.total("sum", j, weight, inside))]
    for n, root in enumerate(nodes):
        if root.op.name == "attention":
            f = variable(f"i{len(batch) + 1}", node.shape[-1])
            term = binary("mul", weight, state.element(node.inputs[2], (*batch, j, f)))
            whole = where(nothing, const(1, compute), total)
            if sinks is not None:
                sink = binary("sub", state.element(sinks, (*batch, i)), shift_of(local("t0", compute)))
                whole = binary("add", whole, unary("exp", sink))
            mean = binary("div", local("t2", compute), whole)
            mixed = Define("t2", parts.total("sum", j, term, inside))
            row = (mixed, Store(f"o{n}", (*batch, i, f), cast(mean, node.dtype)))
            body.append(Nest(variables_of(f), row))
        else:
            sums = binary("add", local("t0", compute), unary("log", total))
            sums = where(nothing, const(math.inf, compute), sums)
            body.append(Store(f"o{n}", (*batch, i), sums))
    return parts.lowered("attention", nodes, Nest(variables_of(*batch, i), tuple(body)))


def lower_gradient(nodes: tuple[Node, ...], is_leaf: Callable[[Node], bool]) -> Lowered:
    """Up to three gradients of one attention."""
    q, k, v, g, sums, inner, *masks = nodes[0].inputs
    parts = _Attention(nodes[0], masks[0] if masks else None, is_leaf)
    state, compute, batch = parts.state, parts.compute, parts.batch
    scale = state.constant(nodes[0].params["scale"], compute)
    made: list[Define | Store | Nest] = []
    for n, node in enumerate(nodes):
        of = node.params["of"]
        outer, c = variable(f"x{n}", node.shape[-2]), variable(f"y{n}", node.shape[-1])
        summed = variable(f"r{3 * n}", (k if of == "q" else q).shape[-2])
        i, j = (outer, summed) if of == "q" else (summed, outer)
        score = parts.score(i, j, variable(f"r{3 * n + 1}", q.shape[-1]))
        weight = unary("exp", binary("sub", score, state.element(sums, (*batch, i))))
        if of != "v":
            f = variable(f"r{3 * n + 2}", v.shape[-1])
            product = binary("mul", state.element(g, (*batch, i, f)), state.element(v, (*batch, j, f)))
            weight = binary("mul", weight, binary("sub", over("sum", f, product), state.element(inner, (*batch, i))))
        other = state.element(k if of == "q" else q if of == "k" else g, (*batch, summed, c))
        total = parts.total("sum", summed, binary("mul", weight, other), parts.inside(i, j))
        found = local(f"t{n}", compute)
        value = found if of == "v" else binary("mul", found, scale)
        store = Store(f"o{n}", (*batch, outer, c), cast(value, node.dtype))
        made.append(Nest(variables_of(outer, c), (Define(f"t{n}", total), store)))
    return parts.lowered("attention_gradient", nodes, Nest(variables_of(*batch), tuple(made)))
