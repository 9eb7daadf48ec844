"""Gradients of loops with a carried state (ops/scan.py): a loop the other way round.

Its carries are the gradients of the forward loop's carries, and sums of those of what all steps read. It reads the
carries before each step, which the forward loop then stores, and computes the step again from them.
"""
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from minigrad.ops import build as B
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
    sums = [B.full(0, operands[k].shape, operands[k].dtype.compute, operands[k].device) for k in back.summed]
    slices = [*before, *operands[body.carries:body.carries + body.slices], *[grads[k] for k in back.by_step]]
    made = back.body([*starts, *sums, *slices, *operands[body.carries + body.slices:]], length, not reverse)
    found = dict(zip((*back.carried, *back.summed, *back.sliced), made, strict=True))
    return [B.cast(found[k], x.dtype) if k in wanted else None for k, x in enumerate(operands)]


class _Backward:
    """The loop for gradients by the operands `wanted`, given those of the results `given`.

    Its carries are the gradients of float carries (`carried`) and of captured operands (`summed`); by slice it reads
    the carries before, the forward loop's slices, and gradients of results that are by step (`by_step`); by slice it
    gives the gradients of slices (`sliced`).
    """

    def __init__(self, body: Body, wanted: Sequence[int], given: Sequence[int], gradient: Gradient):
        step, carries, slices = body.step, body.carries, body.slices
        self.carried = [k for k in range(carries) if step.operands[k].dtype.is_float]
        self.summed = [k for k in wanted if k >= carries + slices]
        self.sliced = [k for k in wanted if carries <= k < carries + slices]
        self.by_step = [k for k in given if k >= carries]
        with apart():
            later = [operand(step.operands[k].type) for k in self.carried]
            sums = [operand(B.cast(step.operands[k], step.operands[k].dtype.compute).type) for k in self.summed]
            forward = [operand(n.type) for n in step.operands]
            of_steps = [operand(((*step.results, *step.operands[:carries])[k]).type) for k in self.by_step]
            made = step(*forward)
            seeds = [(made[k], g) for k, g in zip(self.carried, later, strict=True)]
            seeds += [(made[k], g) for k, g in zip(self.by_step, of_steps, strict=True) if k < len(made)]
            targets = [*self.carried, *self.sliced, *self.summed]
            parts = dict(zip(targets, gradient(_inner(seeds), [forward[k] for k in targets]), strict=True))
            for k, g in zip(self.by_step, of_steps, strict=True):
                if k >= len(made):  # of the carry before a step
                    parts[k - len(made)] = B.add(parts[k - len(made)], g)
            added = [B.add(total, B.cast(parts[k], total.dtype)) for k, total in zip(self.summed, sums, strict=True)]
            results = [*[parts[k] for k in self.carried], *added, *[parts[k] for k in self.sliced]]
            operands = [*later, *sums, *forward[:carries + slices], *of_steps, *forward[carries + slices:]]
            self.body = body_of(Traced(operands, results), len(later) + len(sums), carries + slices + len(of_steps))


def _inner(pairs: Sequence[tuple[Node, Node]]) -> Node:
    """The sum of all products of the elements of pairs, whose gradient by the first of a pair is the second."""
    total: Node | None = None
    for x, y in pairs:
        term = B.sum(B.mul(x, y), tuple(range(len(x.shape))))
        term = B.cast(term, term.dtype.compute)
        total = term if total is None else B.add(B.cast(total, term.dtype), term)
    return total  # type: ignore[return-value]
