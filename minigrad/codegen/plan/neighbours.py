"""Plans that differ from a plan in one thing: what a search by measuring tries (`engine/search.py`).

    a split       by half, twice or, of what is written out, one more or less
    a loop        serial or written out; for workers or not; one or two places further out or in; in parts, of which
                  the inner one is written out
    a copy        put in or taken out; a prefetch likewise
    sizes         constants

None of them turns the loops of a sum around, or divides a sum among lanes or accumulators in another way. Blocks of
terms of a long sum may still be others, and the order of a window's taps where copies share what is loaded (`taps.py`).
"""
from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from minigrad.codegen.kernel.nodes import Kernel, Nest
from minigrad.codegen.kernel.value_walk import loads
from minigrad.codegen.kernel.walk import assignments
from minigrad.codegen.plan.block import COMPUTED
from minigrad.codegen.plan.check import check
from minigrad.codegen.plan.loops import Loops, Step
from minigrad.codegen.plan.several import AnyPlan
from minigrad.codegen.plan.sizes import without_sizes
from minigrad.codegen.plan.steps import Ahead, Bind, Fuse, Order, Plan, Split, Stage, resolve
from minigrad.errors import InternalError, MinigradError
from minigrad.expr import variables

EDGES = {False: ("back", "short"), True: ("rest", "short")}
"""The edges of splits to try where the size does not divide the extent, of loops of the domain and of sums. Under the
edge guard products are added that are rounded first."""

MOST_WRITTEN_OUT, REACH = 16, 2
"""Iterations of a loop that is written out; places that a loop moves."""

REFUSALS = (MinigradError, InternalError, ArithmeticError, AssertionError, AttributeError, LookupError, StopIteration,
            TypeError, ValueError)
"""Raised for plans that do not fit; by some that nobody would write, others than PlanError."""


def neighbours(kernel: Kernel, plan: AnyPlan) -> Iterator[AnyPlan]:
    """The plans that differ in one thing and pass the check; of several nests, in the plan of one of them. `kernel` is
    the block for a plan of one."""
    if isinstance(plan, Plan):
        yield from _neighbours(kernel, plan)
        return
    alone = [*kernel.alone()] if kernel.block is not None else [kernel.with_nests((nest,)) for nest in kernel.nests]
    for k, (one, own) in enumerate(zip(alone, plan.plans, strict=True)):
        for other in _neighbours(one, own) if own != COMPUTED else ():
            yield replace(plan, plans=(*plan.plans[:k], other, *plan.plans[k + 1:]))


def _neighbours(kernel: Kernel, plan: Plan) -> Iterator[Plan]:
    """Those of the kernel of one nest; of such as differ in the edge of a split, the first one."""
    nest, = kernel.nests
    for some in _alternatives(nest, plan):
        for other in some:
            try:
                check(kernel, resolve(nest, other))
            except REFUSALS:
                continue
            yield other
            break


def _alternatives(nest: Nest, plan: Plan) -> Iterator[Iterable[Plan]]:
    try:
        loops = resolve(nest, plan)
    except REFUSALS:
        return
    yield from _splits(plan, loops)
    yield from _parts(plan, loops)
    every = (*_kinds(plan, loops), *_orders(plan, loops), *_copies(nest, plan, loops),
             *_prefetches(nest, plan, loops))
    yield from [(other,) for other in every]
    if plan.sizes:
        yield (without_sizes(plan),)


def _changed(plan: Plan, old: Step, *new: Step) -> Plan:
    at = plan.steps.index(old)
    return replace(plan, steps=(*plan.steps[:at], *new, *plan.steps[at + 1:]))


def _splits(plan: Plan, loops: Loops) -> Iterator[Iterable[Plan]]:
    """Other sizes of blocks: not of lanes and accumulators of a sum."""
    for s in [s for s in plan.steps if isinstance(s, Split)]:
        inside = [x for x in loops.order if x in loops.inside(s.loop)] if s.loop in loops.root else []
        summed = any(loops.sums(x) for x in inside)
        if any(x in loops.parts or loops.kind[x] == "vector" and summed for x in inside):
            continue
        sizes = {2 * s.size, s.size // 2}
        if loops.kind.get(s.inner) == "unroll":
            sizes |= {s.size + 1, s.size - 1}
        for size in sorted(sizes - {0, 1}):
            edges = dict.fromkeys((s.edge, "exact", *EDGES[summed]))
            yield [_changed(plan, s, replace(s, size=size, edge=edge)) for edge in edges]


def _bound(plan: Plan, loop: str, kind: str) -> Plan:
    """The plan with a loop of another kind."""
    steps: list[Step] = []
    for s in plan.steps:
        if isinstance(s, Bind):
            names = tuple([x for x in s.loops if x != loop] + [loop] * (s.kind == kind))
            steps += [replace(s, loops=names)] if names else []
        else:
            steps.append(s)
    if kind != "serial" and not any(isinstance(s, Bind) and s.kind == kind for s in steps):
        steps.append(Bind(kind, (loop,)))
    return replace(plan, steps=tuple(steps))


def _kinds(plan: Plan, loops: Loops) -> Iterator[Plan]:
    """Loops written out or not, for workers or not."""
    workers = loops.bound_to("parallel")
    for k, x in enumerate(loops.order):
        extent = loops.extent(x)
        if loops.kind[x] == "unroll" and x not in loops.parts:
            yield _bound(plan, x, "serial")
        elif loops.kind[x] == "serial":
            if isinstance(extent, int) and 1 < extent <= MOST_WRITTEN_OUT:
                yield _bound(plan, x, "unroll")
            if k == len(workers) and not loops.space[x]:
                yield _bound(plan, x, "parallel")
    if workers:
        yield _bound(plan, workers[-1], "serial")


def _parts(plan: Plan, loops: Loops) -> Iterator[Iterable[Plan]]:
    """A serial loop in parts of two or four, the inner one written out beside it or, of the domain, inside the sums;
    and a loop for workers in parts, of which the outer ones are for them."""
    for x in loops.order:
        names = outer, inner = f"{x}_o", f"{x}_i"
        if loops.kind[x] not in ("serial", "parallel") or not loops.gone.union(loops.root).isdisjoint(names):
            continue
        edges = ("exact", *EDGES[loops.sums(x)], *(() if loops.sums(x) else ("rest",)))
        at, workers = loops.order.index(x), len(loops.bound_to("parallel"))
        rest = (*loops.order[:at], outer, *loops.order[at + 1:])
        for size in (2, 4, 8) if loops.kind[x] == "parallel" else (2, 4):
            made = [_in_two(plan, Split(x, outer, inner, size, edge)) for edge in edges]
            if loops.kind[x] == "parallel":
                made = [_bound(_bound(p, x, "serial"), outer, "parallel") for p in made]
                yield [_ordered(p, (*rest[:workers], inner, *rest[workers:])) for p in made]
            else:
                yield [_ordered(_bound(p, inner, "unroll"), (*rest[:at + 1], inner, *rest[at + 1:])) for p in made]
            if not loops.space[x] and len(loops.spaces) > 1:
                yield [_ordered(_bound(p, inner, "unroll"), (*rest, inner)) for p in made]


def _in_two(plan: Plan, split: Split) -> Plan:
    """The plan with one more split, after all that make loops."""
    last = max([k for k, s in enumerate(plan.steps, 1) if s.shapes], default=0)
    return replace(plan, steps=(*plan.steps[:last], split, *plan.steps[last:]))


def _ordered(plan: Plan, order: Sequence[str]) -> Plan:
    """The plan with its loops in this order."""
    steps = tuple([s for s in plan.steps if not isinstance(s, Order)])
    return replace(plan, steps=(*steps, Order(tuple(order))))


def _orders(plan: Plan, loops: Loops) -> Iterator[Plan]:
    """A loop elsewhere, but for those of a sum among each other."""
    order = loops.order
    for k, x in enumerate(order):
        for to in range(max(0, k - REACH), min(len(order), k + REACH + 1)):
            passed = order[to:k] if to < k else order[k + 1:to + 1]
            if to == k or to == k + 1 or any(loops.sums(x) and loops.space[y] == loops.space[x] for y in passed):
                continue  # one place further in is its neighbour one further out
            others = [y for y in order if y != x]
            yield _ordered(plan, (*others[:to], x, *others[to:]))


def _copies(nest: Nest, plan: Plan, loops: Loops) -> Iterator[Plan]:
    """Without one of the copies, or with one more: of what a sum reads, along the loops inside that it depends on."""
    for s in plan.stages:
        yield _changed(plan, s)
    if plan.results is not None or loops.first_reduction == len(loops.order) or any(
            isinstance(s, Fuse) for s in plan.steps):
        return
    copied = {s.operand for s in plan.stages}
    for name, roots in _reads(nest).items():
        if name in copied:
            continue
        for at, x in enumerate(loops.order[:loops.first_reduction]):
            inside = [y for y in loops.order[at + 1:] if loops.root[y].name in roots]
            if loops.kind[x] in ("serial", "parallel") and inside:
                lanes = [y for y in inside if loops.kind[y] == "vector"]
                layout = (*[y for y in inside if y not in lanes], *lanes)
                yield replace(plan, steps=(*plan.steps, Stage(name, x, tuple(layout))))


def _prefetches(nest: Nest, plan: Plan, loops: Loops) -> Iterator[Plan]:
    """Without one of the prefetches, or with one more: a block of the domain ahead, or so many bytes."""
    for s in plan.ahead:
        yield _changed(plan, s)
    known = {s.operand for s in plan.ahead}
    around = [x for x in loops.order[:loops.first_reduction] if loops.kind[x] == "serial"][-1:]
    inside = [x for x in loops.order[loops.first_reduction:] if loops.kind[x] == "serial" and loops.space[x]][-1:]
    for name in [name for name in _reads(nest) if name not in known]:
        for x in inside:
            for y in around:
                yield replace(plan, steps=(*plan.steps, Ahead(name, x, 1, y)))
        for x in dict.fromkeys((*inside, *around)):
            yield replace(plan, steps=(*plan.steps, Ahead(name, x, 4096)))


def _reads(nest: Nest) -> dict[str, set[str]]:
    """By buffer that a nest reads, the variables that the place depends on."""
    found: dict[str, set[str]] = {}
    for v in loads(*[s.value for s in assignments(nest.body)]):
        found.setdefault(v.buffer, set()).update([x.name for x in variables(v.indices[0])])
    return found
