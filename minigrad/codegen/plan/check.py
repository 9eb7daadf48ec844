"""Messages about what a plan may not say of a nest: each names the loop, what was expected and why. What concerns one
step alone its class says (`faults`), here is what concerns all of them together."""
from __future__ import annotations

from minigrad.codegen.kernel.nodes import Kernel, Nest, Store
from minigrad.codegen.plan.loops import Faults, Loops, divides
from minigrad.codegen.plan.steps import STEPS, Ahead, Call, Stage
from minigrad.errors import PlanError
from minigrad.expr import coefficient, variables

MOST_COPIES = 4096
"""Statements that a plan may write out of one: more than any register file holds, and all that compilers bear."""

RANK = {kind: k for k, kind in enumerate(STEPS)}


def check(kernel: Kernel, loops: Loops) -> None:
    """Raises PlanError for a plan that does not fit its nest of the kernel."""
    for message in _faults(kernel, loops):
        raise PlanError(f"[plan] {message}")


def _faults(kernel: Kernel, loops: Loops) -> Faults:
    arguments = {p.name for p in kernel.params} | {s.name for s in kernel.scalars} | {d.name for d in kernel.dims}
    for name in loops.root:
        if name in arguments:
            step = str(loops.made_by[name]) if name in loops.made_by else f"fuse -> {name}"
            yield f"{step}: expected names that no argument of the kernel has, got {name}"
    for a in loops.of(Ahead):
        if a.operand not in {p.name for p in kernel.params}:
            yield f"{a}: expected a buffer of the kernel, got {a.operand}"
    yield from _order(loops)
    yield from _groups(loops)
    for s in sorted(loops.left, key=lambda s: RANK[type(s)]):
        yield from s.faults(loops)
    yield from _lanes_and_copies(loops)
    yield from _scatter(loops.nest, loops)


def _order(loops: Loops) -> Faults:
    """Loops of workers are outermost; what a loop's extent depends on is outside it."""
    serial = False
    for x in loops.order:
        kind = loops.kind[x]
        if kind not in ("parallel", "group"):
            serial = True
        elif loops.space[x]:
            yield f"bind {kind} {x}: expected a loop of the domain, got one of {loops.root[x]}: workers share no sums"
        elif loops.cut_short(x) or any([s.edge == "rest" and x in loops.inside(s.inner)
                                        and not loops.is_whole(s) for s in loops.split.values()]):
            yield f"bind {kind} {x}: expected a loop that runs equally often in every block"
        elif serial:
            yield f"order: expected the {kind} loop {x} before all others"
    places = {x: k for k, x in enumerate(loops.order)}
    for x in loops.order:
        hi = loops.root[x].hi
        for v in () if isinstance(hi, int) else variables(hi):
            if v.name in loops.root and any(places[o] > places[x] for o in loops.inside(v.name)):
                yield f"order: expected {x} inside the loops of {v.name}, on which its extent depends"


def _groups(loops: Loops) -> Faults:
    """Work-groups consist of work-items, which run the same loops and do together what is theirs."""
    groups, items = loops.bound_to("group"), loops.bound_to("item")
    calls = [s for s in loops.of(Call) if not s.of_blocks]
    tile = next((s for s in calls if s.runs_tile), None)
    for call in calls:
        if not call.by_items and call != tile:
            yield f"{call}: expected a microkernel of a matrix unit, of sub-groups, of blocks or of a tile"
    together = [*[s for s in loops.of(Stage) if s.items], *[s for s in calls if s.by_items]]
    if together and not items:
        yield f"{together[0]}: expected work-items, `bind item`, that do it together"
    if not groups and not items:
        return
    if not items:
        yield f"bind group {groups[0]}: expected `bind item` too, as work-groups consist of work-items"
    for x in loops.order:
        if loops.kind[x] in ("parallel", "vector"):
            yield f"bind {loops.kind[x]} {x}: expected another kind, as work-groups have neither workers nor lanes"
    yield from _items(loops, items)
    yield from _shared(loops, [x for x in items if loops.space[x]], items)
    for x in loops.accumulated_outside:
        yield f"order: expected {x} unrolled or outside all sums, as work-items keep these in registers"
    yield from _uniform(loops, items)


def _items(loops: Loops, items: list[str]) -> Faults:
    """Work-items follow the groups; how many there are is known, and there are several."""
    counts = [loops.extent(x) for x in items]
    if items and (0 in counts or set(counts) == {1}):
        yield f"bind item {' '.join(items)}: expected two work-items of a group at least, got {int(0 not in counts)}"
    others = [k for k, x in enumerate(loops.order) if loops.kind[x] not in ("group", "item")]
    for x in items:
        if loops.cut_short(x) or not isinstance(loops.extent(x), int):
            yield f"bind item {x}: expected a known number of iterations, the same in every block"
        if others and loops.order.index(x) > others[0]:
            yield f"order: expected the item loop {x} after those over groups and before all others"


def _shared(loops: Loops, shared: list[str], items: list[str]) -> Faults:
    """Loops of sums and inner nests that share their work-items are as many and as long, and at one place of the order.
    """
    first = [x for x in shared if loops.space[x] == loops.space[shared[0]]]
    for k, x in enumerate(shared):
        y, space = first[k % len(first)], loops.space[shared[k - k % len(first)]]
        if loops.most(x) != loops.most(y):
            yield f"bind item {x}: expected {loops.most(y)} iterations as of {y}, whose work-items these are, got " \
                  f"{loops.most(x)}"
        if loops.space[x] != space or loops.spaces[space].around or len(shared) % len(first):
            yield f"bind item {x}: expected {len(first)} loops of work-items for each sum and inner nest, and none " \
                  "inside another"
    if shared and items.index(shared[-1]) - items.index(shared[0]) >= len(shared):
        yield f"order: expected the item loops {' '.join(shared)} beside each other, as they share work-items"
    one = len(loops.spaces) == 2 and isinstance(loops.units[0], tuple)
    for k, x in enumerate(loops.order if any(loops.sums(y) for y in shared) else ()):
        tile = one and k > loops.first_reduction and loops.kind[x] == "unroll"  # sums are there before they are joined
        if not loops.space[x] and loops.kind[x] not in ("group", "item") and not tile:
            yield f"bind {loops.kind[x]} {x}: expected group or item, as work-items join their sums once"


def _uniform(loops: Loops, items: list[str]) -> Faults:
    """Loops and conditions are the same for all work-items, so that all come to each barrier, and make each copy."""
    for s in loops.split.values():
        shares = not loops.space[s.loop] or any(loops.root[x] is loops.root[s.loop] for x in items)
        if shares and s.edge not in ("exact", "guard") and not divides(s, loops.extent(s.loop)):
            yield f"{s}: expected guard, as all work-items run the same loops"


def _lanes_and_copies(loops: Loops) -> Faults:
    """One loop is across lanes at a time; what is written out is not too much."""
    lanes = loops.bound_to("vector")
    for x in lanes:
        space = loops.space[x]
        around = [y for y in lanes if y != x and (loops.space[y] in (0, space)
                                                  or loops.root[y] in loops.spaces[space].around)]
        if around:
            yield f"bind vector {x}: expected one loop across lanes at a time, got {around[0]} around it"
        if not space and loops.root[x].hi == 0 and loops.most(x) > 1:
            yield f"bind vector {x}: expected lanes along several elements, got {loops.root[x]}, which has one"
        if space and loops.sums(x) and loops.accumulated_outside:
            outside = loops.accumulated_outside[0]
            yield f"order: expected {outside} unrolled or outside all sums, as lanes along one are added up once"
    copies = [1] * len(loops.spaces)  # of statements in each loop nest, those beside it not counted
    for x in loops.bound_to("unroll"):
        for k, inner in enumerate(loops.spaces):
            if loops.space[x] in (0, k) or loops.root[x] in inner.around:
                copies[k] *= loops.most(x)
    if max(copies) > MOST_COPIES:
        yield f"bind unroll: expected {MOST_COPIES} copies of a statement at most, got {max(copies)}"


def _scatter(nest: Nest, loops: Loops) -> Faults:
    """Stores that combine with what is there happen in order."""
    for s in nest.body:
        if not isinstance(s, Store) or not s.combine:
            continue
        for x in loops.order:
            if loops.kind[x] not in ("serial", "unroll") and coefficient(s.indices[0], loops.root[x]) in (None, 0):
                yield f"bind {loops.kind[x]} {x}: expected serial, as elements that meet are combined in order"
        for split in loops.split.values():
            if split.edge in ("back", "guard"):
                yield (f"split {split.loop}, {split.edge}: expected rest, as elements outside would be looked up, or "
                       "combined twice")
