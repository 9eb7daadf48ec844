"""Gradients of loops with a carried state (ops/scan.py): a loop the other way round.

Its carries are the gradients of the forward loop's carries. It reads the carries before each step, which the forward
loop then stores, and computes the step again from them. For the gradients of what all steps read, see scan_totals.
"""
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from minigrad.graph.scan_totals import total_of
from minigrad.ops import build as B
from minigrad.ops.build_movement import numel
from minigrad.ops.composite import apart
from minigrad.ops.node import Node
from minigrad.ops.scan import Body, body_of, operand
from minigrad.ops.traced import Traced

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
    slices = [*before, *operands[body.carries:body.carries + body.slices], *[grads[k] for k in back.by_step]]
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
    it reads `of_steps`: the carries before, the forward loop's slices, and gradients of results that are by step
    (`by_step`); by slice it gives the gradients of slices (`sliced`), and `factors` of products over all steps. The
    gradient of a captured operand is one of `totals`.
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
            results = [operand(((*step.results, *step.operands[:carries])[k]).type) for k in self.by_step]
            made = step(*forward)
            seeds = [(made[k], g) for k, g in zip(self.carried, later, strict=True)]
            seeds += [(made[k], g) for k, g in zip(self.by_step, results, strict=True) if k < len(made)]
            targets = [*self.carried, *self.sliced, *summed]
            parts = dict(zip(targets, gradient(_inner(seeds), [forward[k] for k in targets]), strict=True))
            for k, g in zip(self.by_step, results, strict=True):
                if k >= len(made):  # of the carry before a step
                    parts[k - len(made)] = B.add(parts[k - len(made)], g)
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


def _inner(pairs: Sequence[tuple[Node, Node]]) -> Node:
    """The sum of all products of the elements of pairs, whose gradient by the first of a pair is the second."""
    total: Node | None = None
    for x, y in pairs:
        term = B.sum(B.mul(x, y), tuple(range(len(x.shape))))
        term = B.cast(term, term.dtype.compute)
        total = term if total is None else B.add(B.cast(total, term.dtype), term)
    return total  # type: ignore[return-value]
