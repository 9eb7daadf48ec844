"""Messages about what a plan may not say of memory: coordinates of copies and of results, and blocks that go beyond the
end."""
from __future__ import annotations

from collections.abc import Iterator, Sequence

from minigrad.codegen.plan.box import base_of, leaves, taken
from minigrad.codegen.plan.loops import Loops, divides
from minigrad.codegen.plan.text import terms_of


def memory_faults(loops: Loops) -> Iterator[str]:
    """Messages about results by way of memory, and about what needs them."""
    for stage in loops.stages:
        yield from coordinate_faults(str(stage), stage.layout, loops)
    inside = _inside(loops)
    for fused, _, extent in loops.fused.loops.values():
        if fused.pitch > extent and (fused.loop in loops.root and not loops.inside(fused.loop) <= inside):
            yield f"{fused}: expected `results` at a loop around it, as rows are longer than {fused.inner}"
    if loops.results is None:
        return
    results, step = loops.results, str(loops.results)
    yield from coordinate_faults(step, results.layout, loops)
    if len(loops.sums) != 2 or not isinstance(loops.units[0], tuple):
        yield f"{step}: expected a kernel whose sums share their loops, and that has no others"
    if loops.order.index(results.at) >= loops.first_sum or loops.kind[results.at] not in ("serial", "parallel"):
        yield f"{step}: expected a serial or parallel loop outside all sums, got {results.at}"
    covered = frozenset().union(*[leaves(loops, c) for c in results.layout])
    if covered != inside:
        yield (f"{step}: expected coordinates that are all loops of the domain inside {results.at}, "
               f"{' '.join(x for x in loops.order if x in inside)}, got {' '.join(sorted(covered)) or 'none'}")
    for x in loops.order:
        if loops.kind[x] == "vector" and (loops.space[x] or x not in inside):
            yield f"{step}: expected lanes along the domain, inside {results.at}, got {x}"
        if x in loops.parts:
            yield f"{step}: expected sums without parts, got {x}"
    for s in loops.split.values():
        if s.edge in ("back", "rest") and not divides(s, loops.extent(s.loop)) and loops.inside(s.outer) & inside:
            yield f"{s}: expected guard, as results go by way of memory inside {results.at}"


def _inside(loops: Loops) -> frozenset[str]:
    """The loops of the domain whose results go by way of memory."""
    if loops.results is None:
        return frozenset()
    return frozenset([x for x in loops.order[loops.order.index(loops.results.at) + 1:] if not loops.space[x]])


def coordinate_faults(step: str, layout: Sequence[str], loops: Loops) -> Iterator[str]:
    """Each loop is in one coordinate, and of what a loop was fused into, or is cut into by // and %, both parts are."""
    names = [x for c in layout for _, x in terms_of(c)]
    for c in layout:
        if not base_of(c)[1]:
            yield f"{step}: expected a loop without a factor in each coordinate, got {c}"
    for x in names:
        whole, by, n = taken(x)
        fused = loops.fused.member(x)
        others = [f"{whole}{'%' if by == '//' else '//'}{n}"] if by else []
        if fused is not None:
            others = [fused[0].inner if x == fused[0].outer else fused[0].outer]
        for other in others:
            if other not in names and not any(y in _parts(loops, other) for y in names):
                yield f"{step}: expected {other} among the coordinates, as {x} is"
        if names.count(x) > 1 or by and whole in names:
            yield f"{step}: expected each loop once among the coordinates, got {x} again"


def _parts(loops: Loops, name: str) -> list[str]:
    """The loops that were fused into one, and those into them."""
    fused = loops.fused.loops.get(name)
    if fused is None:
        return []
    return [y for x in (fused[0].outer, fused[0].inner) for y in (x, *_parts(loops, x))]
