"""Messages about what a plan may not say of work-groups."""
from __future__ import annotations

from collections.abc import Iterator

from minigrad.codegen.microkernels.matrix import matrix_microkernel
from minigrad.codegen.microkernels.sub_group import width_of
from minigrad.codegen.plan.loops import Loops, divides
from minigrad.codegen.plan.steps import Step


def group_faults(loops: Loops) -> Iterator[str]:
    """Messages that name the step, what was expected and why."""
    groups, items = ([x for x in loops.order if loops.kind[x] == kind] for kind in ("group", "item"))
    calls = [s for s in loops.calls if s not in loops.blocks and (loops.tile is None or s != loops.tile.step)]
    for call in calls:
        if not width_of(call.kernel) and matrix_microkernel(call.kernel) is None:
            yield f"{call}: expected a microkernel of a matrix unit, of sub-groups, of blocks or of a tile"
    together: list[Step] = [*[s for s in loops.stages if s.items], *calls]
    if together and not items:
        yield f"{together[0]}: expected work-items, `bind item`, that do it together"
    if not groups and not items:
        return
    if not items or not groups and any(not loops.space[x] and x not in items for x in loops.order):
        has, needs = ("item", "group") if items else ("group", "item")
        yield f"bind {has} {(groups + items)[0]}: expected `bind {needs}` too, as work-groups consist of work-items"
    for x in loops.order:
        if loops.kind[x] in ("parallel", "vector"):
            yield f"bind {loops.kind[x]} {x}: expected another kind, as work-groups have neither workers nor lanes"
    yield from _items(loops, items)
    yield from _shared(loops, [x for x in items if loops.space[x]], items)
    for x in loops.kept:
        yield f"order: expected {x} unrolled or outside all sums, as work-items keep these in registers"
    yield from _uniform(loops, items)


def _items(loops: Loops, items: list[str]) -> Iterator[str]:
    """Work-items follow the groups; how many there are is known, and there are several."""
    if items and all([loops.extent(x) == 1 for x in items]):
        yield f"bind item {' '.join(items)}: expected two work-items of a group at least, got one"
    others = [k for k, x in enumerate(loops.order) if loops.kind[x] not in ("group", "item")]
    for x in items:
        if loops.cut_short(x) or not isinstance(loops.extent(x), int):
            yield f"bind item {x}: expected a known number of iterations, the same in every block"
        if others and loops.order.index(x) > others[0]:
            yield f"order: expected the item loop {x} after those over groups and before all others"


def _shared(loops: Loops, shared: list[str], items: list[str]) -> Iterator[str]:
    """Loops of sums and inner nests that share their work-items are as long, and at one place of the order."""
    for x in shared:
        if loops.most(x) != loops.most(shared[0]):
            yield f"bind item {x}: expected {loops.most(shared[0])} iterations as of {shared[0]}, whose work-items " \
                  f"these are, got {loops.most(x)}"
        if [loops.space[y] for y in shared].count(loops.space[x]) > 1 or loops.around[loops.space[x]]:
            yield f"bind item {x}: expected one loop of work-items for each sum and inner nest, and none inside another"
    if shared and items.index(shared[-1]) - items.index(shared[0]) >= len(shared):
        yield f"order: expected the item loops {' '.join(shared)} beside each other, as they share work-items"
    for x in loops.order if any(loops.sums[loops.space[y]] for y in shared) else ():
        if not loops.space[x] and loops.kind[x] not in ("group", "item"):
            yield f"bind {loops.kind[x]} {x}: expected group or item, as work-items join their sums once"
    for call in loops.calls:
        width = width_of(call.kernel)
        if width and (call.at not in shared or loops.most(call.at) % width or items[-1] not in shared):
            yield f"{call}: expected a sum's loop of neighbours, {width} work-items or a multiple of it"


def _uniform(loops: Loops, items: list[str]) -> Iterator[str]:
    """Loops and conditions are the same for all work-items, so that all come to each barrier, and make each copy."""
    for s in loops.split.values():
        shares = not loops.space[s.loop] or any(loops.root[x] is loops.root[s.loop] for x in items)
        if shares and s.edge not in ("exact", "guard") and not divides(s, loops.extent(s.loop)):
            yield f"{s}: expected guard, as all work-items run the same loops"
    for stage in loops.stages:
        step = str(stage)
        if not stage.items:
            yield f"{step}: expected by items, as a copy of each work-item's own has no room"
        if loops.kind[stage.at] != "serial":
            yield f"{step}: expected a serial loop, got {stage.at}, which is bound {loops.kind[stage.at]}"
        for c in stage.layout:
            if loops.cut_short(c) or not isinstance(loops.extent(c), int):
                yield f"{step}: expected coordinates of known lengths, the same in every block, got {c}"
