"""Gradients of loops with a carried state (ops/scan.py): a loop the other way round.

Its carries are the gradients of the forward loop's carries. It reads the carries before each step, and long sums, which
the forward loop then stores, and computes the step again from them. For the gradients of what all steps read, see
scan_totals.
"""
from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from minigrad.graph.scan_totals import total_of
from minigrad.ops import build as B
from minigrad.ops.build_movement import numel
from minigrad.ops.composite import apart
from minigrad.ops.node import Node, toposort
from minigrad.ops.op import Reduction
from minigrad.ops.products import MATMUL
from minigrad.ops.scan import Body, body_of, operand
from minigrad.ops.traced import Traced, remade

Gradient = Callable[[Node, Sequence[Node]], list[Node]]
"""The gradients of a Node of one element by others."""


def scan_gradients(node: Node, grads: Mapping[int, Node], needed: Sequence[bool], gradient: Gradient,
                   ) -> list[Node | None]:
    """The gradients by the operands of a loop, one of whose results is `node`, from those of its results by number;
    None for an operand that does not need one."""
    body: Body = node.op.lower.body  # type: ignore[union-attr]
    length, reverse, operands = node.params["length"], node.params["reverse"], node.inputs
    wanted = tuple([k for k, need in enumerate(needed) if need and operands[k].dtype.is_float])
    given = tuple(sorted(grads))
    back = body.gradients.get((wanted, given))
    if back is None:
        back = body.gradients[wanted, given] = _Backward(body, wanted, given, gradient)
    before = [body.result(body.carries + body.results + k, operands, length, reverse) for k in range(body.carries)]
    starts = [grads[k] if k in grads else B.full_like(operands[k], 0) for k in back.carried]
    sums = [B.full(0, n.shape, n.dtype.compute, n.device) for n in back.added]
    kept = [body.result(k, operands, length, reverse) for k in back.kept]
    slices = [*before, *operands[body.carries:body.carries + body.slices], *[grads[k] for k in back.by_step], *kept]
    captured = operands[body.carries + body.slices:]
    made = back.body([*starts, *sums, *slices, *captured], length, not reverse)
    names = (*back.carried, *[("sum", n) for n in back.added], *back.sliced, *back.factors)
    found: dict[Any, Node] = dict(zip(names, made, strict=True))
    known = dict(zip(back.of_steps, slices, strict=True))
    fixed = dict(zip(back.captured, captured, strict=True))

    def stacked(n: Node) -> Node:
        if n in fixed:
            return B.expand(B.reshape(fixed[n], (1, *n.shape)), (length, *n.shape))
        return known[n] if n in known else found[n]

    added = {n: found["sum", n] for n in back.added}
    found |= {k: total.made(added, stacked) for k, total in back.totals.items()}
    return [B.cast(found[k], x.dtype) if k in wanted else None for k, x in enumerate(operands)]


MOST_STACKED = 4
"""The most elements by step that sums over all steps may need besides, for each that a step reads by step."""


class _Backward:
    """The loop for gradients by the operands `wanted`, given those of the results `given`.

    Its carries are the gradients of float carries (`carried`), and sums of what is `added` up over all steps; by slice
    it reads `of_steps`: the carries before, the forward loop's slices, gradients of results that are by step
    (`by_step`), and results of the forward loop that are not computed again (`kept`); by slice it gives the gradients
    of slices (`sliced`), and `factors` of products over all steps. The gradient of a captured operand is one of
    `totals`.
    """

    def __init__(self, body: Body, wanted: Sequence[int], given: Sequence[int], gradient: Gradient):
        step, carries, slices = body.step, body.carries, body.slices
        self.carried = [k for k in range(carries) if step.operands[k].dtype.is_float]
        summed = [k for k in wanted if k >= carries + slices]
        self.sliced = [k for k in wanted if carries <= k < carries + slices]
        self.by_step = [k for k in given if k >= carries]
        with apart():
            later = [operand(step.operands[k].type) for k in self.carried]
            forward = [operand(n.type) for n in step.operands]
            results = [operand(body.by_step[k - carries].type) for k in self.by_step]
            image = dict(zip(step.operands, forward, strict=True))
            made = remade(step.order, [*step.results[:carries], *body.by_step], image)
            before = forward[:carries]
            seeds = [(made[k], g) for k, g in zip(self.carried, later, strict=True)]
            seeds += [(made[k], g) for k, g in zip(self.by_step, results, strict=True) if made[k] not in before]
            targets = [*self.carried, *self.sliced, *summed]
            parts = dict(zip(targets, gradient(_inner(seeds), [forward[k] for k in targets]), strict=True))
            for k, g in zip(self.by_step, results, strict=True):
                if made[k] in before:
                    at = before.index(made[k])
                    parts[at] = B.add(parts[at], g)
            long = [n for n in step.order if _is_long(n)]
            kept = _met(parts.values(), {image[n]: n for n in long})
            self.kept = [body.keep(n) for n in kept.values()]
            given_again = {n: operand(n.type) for n in kept}
            leaves = {n: n for n in (*later, *forward, *results)}
            order = [n for n in toposort(*parts.values()) if n not in leaves]
            parts = dict(zip(parts, remade(order, list(parts.values()), {**leaves, **given_again}), strict=True))
            results += given_again.values()
            self.of_steps, self.captured = [*forward[:carries + slices], *results], forward[carries + slices:]
            known, room = {*self.of_steps, *self.captured}, sum([int(numel(n.shape)) for n in self.of_steps])
            self.totals = {k: total_of(parts[k], known, MOST_STACKED * room) for k in summed}
            factors = dict.fromkeys([n for total in self.totals.values() for n in total.factors])
            self.factors = [n for n in factors if n not in known]
            self.added = list(dict.fromkeys([n for total in self.totals.values() for n in total.added]))
            sums = [operand(B.cast(n, n.dtype.compute).type) for n in self.added]
            added = [B.add(total, B.cast(n, total.dtype)) for n, total in zip(self.added, sums, strict=True)]
            results = [*[parts[k] for k in self.carried], *added, *[parts[k] for k in self.sliced], *self.factors]
            operands = [*later, *sums, *self.of_steps, *self.captured]
            self.body = body_of(Traced(operands, results), len(later) + len(sums), len(self.of_steps))


LONG = 16
"""Terms of a sum from which it is kept for the way back."""


def _is_long(node: Node) -> bool:
    """True for sums and products that take longer to compute again than to read."""
    if node.op is MATMUL:
        return int(node.inputs[0].shape[-1]) >= LONG
    return isinstance(node.op.lower, Reduction) and int(numel(node.inputs[0].shape)) >= LONG * int(numel(node.shape))


def _met(roots: Iterable[Node], wanted: Mapping[Node, Node]) -> dict[Node, Node]:
    """Those of `wanted` that roots need, but for what only they need."""
    found: dict[Node, Node] = {}
    stack, seen = list(roots), set[Node]()
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        if node in wanted:
            found[node] = wanted[node]
        elif node.storage is None:
            stack += node.inputs
    return found


def _inner(pairs: Sequence[tuple[Node, Node]]) -> Node:
    """The sum of all products of the elements of pairs, whose gradient by the first of a pair is the second."""
    total: Node | None = None
    for x, y in pairs:
        term = B.sum(B.mul(x, y), tuple(range(len(x.shape))))
        term = B.cast(term, term.dtype.compute)
        total = term if total is None else B.add(B.cast(total, term.dtype), term)
    return total  # type: ignore[return-value]
