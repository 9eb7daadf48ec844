"""Products of few rows with an operand in interleaved rows, which is read once, front to back, at the speed of memory.

    y[m, n0, l] = sum over k of x[m, k] * w[n0, k, l]        l < 16 (or a multiple of the vector width)
    y[b, m, n0, l] = sum over k of x[b, m, k] * w[i[b], n0, k, l]        for a batch that looks its w up

The streamed operand w may be any expression of loads that step by one with l: weights packed in panels, quantised
blocks. Lanes go along l, so that there is no horizontal sum; a tile has all rows of x and a few n0, whose streams are
read side by side; x is broadcast.

A factor that depends on outer variables of the sum only (the scale of a block) multiplies the sum over the others:

    sum(b, c: d[b, l] * q[b, c, l] * x[b, c])  =  sum(b: d[b, l] * sum(c: q[b, c, l] * x[b, c]))
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, prod

from minigrad.codegen.kernel.access import Access, accesses, extent, reductions, typical, value_accesses
from minigrad.codegen.kernel.factors import factors_of
from minigrad.codegen.kernel.nodes import Nest
from minigrad.codegen.lowering.scales import scaled_terms, take_scales
from minigrad.codegen.machines.caches import LINE
from minigrad.codegen.machines.machine import Speed, machine
from minigrad.codegen.plan.general import Choice, general_plan
from minigrad.codegen.plan.steps import Ahead, Plan
from minigrad.codegen.policy.lanes import domain_order, parallel_prefix
from minigrad.dtype import int32
from minigrad.expr import Var, coefficient, variables
from minigrad.target import Target
from minigrad.value import Value, free_variables, substitute, walk

MAX_ROWS = 16
"""Rows of x up to which one pass over w is worth a tile of all of them."""

NEAR_STEP = 128
"""Elements from one step of the sum to the next that still make a front-to-back stream."""

MIN_STREAM = 1 << 12
"""Elements of w below which there is nothing to gain."""

MIN_INNER = 4
"""Steps of the sum below a factor that make it worth being taken out."""

FEW_ROWS = 2
"""Rows of x up to which a product waits for memory alone. More wait for multiply-adds: fewer streams lost 1-2%."""

FEW_LEFT = 32
"""Part of all panels that may be left by tiles of several, and go one by one: 3 panels at a time rather than 2 gain
2-5% with 8 rows."""

MIN_TILES, FEW_TILES, SMALL_STREAM = 12, 4, 1 << 17
"""Iterations of the parallel loop worth having, and where w has fewer elements than the third number."""

SPARE_REGISTERS = 4
SHORT = 8
"""Innermost steps of a sum that are always written out: shifts and masks of packed bits become constants."""

MAX_UNROLLED = 64
"""Copies of the innermost statement, else."""


@dataclass(frozen=True, slots=True)
class Streamed:
    """The streams of a nest: the lane variable, the other variables of w's rows, those of x's rows, and the sums'.

    `bodies` are those of all sums, over the variables of the first one; `spaces` are the variables of each.
    """

    lane: Var
    panels: tuple[Var, ...]
    rows: tuple[Var, ...]
    over: tuple[Var, ...]
    bodies: tuple[Value, ...]
    spaces: tuple[tuple[Var, ...], ...]

    def accumulators(self, width: int, side: int) -> int:
        """Accumulators of a tile of all lanes, `width` in a register, and so many rows side by side at most."""
        rows = prod([rows_at_once(v, side) for v in self.rows])
        return rows * (extent(self.lane) // width) * len(self.bodies)

    def everywhere(self, chosen: Sequence[Var]) -> tuple[str, ...]:
        """The names of these variables of the first sum, and of those in their places in the others."""
        return tuple([space[self.over.index(v)].name for space in dict.fromkeys(self.spaces) for v in chosen])


def recognise_stream(nest: Nest, target: Target) -> Streamed | None:
    """The products of few rows with interleaved rows that a flat nest computes, all over one space; or None."""
    reduced = reductions(nest)
    if target.is_gpu or not reduced or any(r.monoid != "sum" or not r.body.dtype.is_float for r in reduced):
        return None
    over = reduced[0].over
    if any([v.hi for v in r.over] != [v.hi for v in over] or r.body.dtype is not reduced[0].body.dtype
           for r in reduced[1:]):
        return None
    bodies = tuple(substitute(r.body, dict(zip(r.over, over, strict=True))) for r in reduced)
    domain = tuple(v for v in nest.domain if v.hi != 0)
    found = [a for body in bodies for a in value_accesses(body, ())]
    lane = next((v for v in domain if any(a.step(v) == 1 for a in found)
                 and all(a.step(v) in (0, 1) for a in found)), None)
    if lane is None or not isinstance(lane.hi, int):
        return None
    width = lane_width(lane, bodies[0], target)
    streamed = [a for a in found if a.step(lane) == 1]
    others = [a for a in found if a.step(lane) == 0]
    batch = [v for v in domain if any(a.step(v) is None for a in streamed)]  # it looks its w up
    panels = tuple([v for v in domain if v not in (lane, *batch) and any(a.step(v) != 0 for a in streamed)])
    rows = tuple([v for v in domain if v not in (lane, *batch, *panels)])
    if width < 4 or any(a.step(v) != 0 for a in others for v in panels):
        return None
    if any(a.step(v) is None for a in found for v in (*domain, *over) if v not in batch):
        return None
    steps = [shortest_step(a, over) for a in streamed]
    if not all(0 < step <= NEAR_STEP for step in steps):
        return None
    count = prod([typical(v) for v in (lane, *panels, *over)])
    many = prod([typical(v) if isinstance(v.hi, int) else MAX_ROWS + 1 for v in rows])
    if count < MIN_STREAM or not all(is_product(body, lane) for body in bodies):
        return None
    made = Streamed(lane, panels, rows, over, bodies, tuple([r.over for r in reduced]))
    if min(steps) < extent(lane) and made.accumulators(width, machine(target).declared.side_by_side) > target.registers:
        return None  # a window over long rows
    return made if many <= MAX_ROWS or is_of_integers(made) else None


def lane_width(lane: Var, body: Value, target: Target) -> int:
    """Lanes that divide the lane variable's extent."""
    width = min(16, target.lanes(max(body.dtype.bits, 32)))
    return width if extent(lane) % width == 0 else 1


def shortest_step(a: Access, over: tuple[Var, ...]) -> int:
    """Elements from one step of the sum to the next, in a load's memory; 0 where they are not known, or none."""
    steps = [coefficient(a.offset, v) for v in over if a.step(v) != 0]
    known = [abs(s) for s in steps if isinstance(s, int)]
    return min(known) if len(known) == len(steps) > 0 else 0


def is_product(body: Value, lane: Var) -> bool:
    """True where the body is a product of something that uses the lane variable and something that does not, or a sum
    of such ones."""
    if body.op == "add":
        return all(is_product(term, lane) for term in body.args)
    uses = [lane in free_variables(f) for f in factors_of(body)]
    return any(uses) and not all(uses)


def plan(nest: Nest, target: Target) -> tuple[Nest, Plan] | None:
    """The nest with scales outside its sums, and its plan; None for everything but products of few rows with
    interleaved rows."""
    found = recognise_stream(nest, target)
    if found is None:
        return None
    width = lane_width(found.lane, found.bodies[0], target)
    vectors = extent(found.lane) // width
    outer = scaled_prefix(found.bodies, found.over)
    alone = one_panel_at_a_time(found, outer, target)
    sums = len(found.bodies)
    facts = machine(target)
    speed, side = facts.speed, facts.declared.side_by_side
    many = not alone and prod(map(typical, found.rows)) > side and is_of_integers(found)
    tile: list[tuple[str, int]] = [(v.name, rows_at_once(v, side)) for v in found.rows]
    if vectors > 1:
        tile.append((found.lane.name, vectors))
    copies = prod([f for _, f in tile]) * sums
    panel = max(found.panels, key=typical, default=None)
    if panel is not None:
        tiles = prod([typical(v) for v in found.panels])
        room = (target.registers - SPARE_REGISTERS - len(found.rows)) // (copies + sums * vectors)
        streamed = extent(found.lane) * tiles * prod(typical(v) for v in found.over)
        least = FEW_TILES if streamed < SMALL_STREAM else MIN_TILES
        most = 1 if alone or many else streams_at_once(found, nest, target) // (vectors * sums)
        factor = max(1, min(most, room, tiles // least, typical(panel)))
        factor = whole_tiles(panel, factor, copies, target)
        if factor > 1:
            tile.append((panel.name, factor))
            copies *= factor
    order = domain_order(nest, accesses(nest))
    first = [v for v in order if v in found.panels] + [v for v in order if v in found.rows]
    order = [*[v for v in order if v not in first and v is not found.lane], *first, found.lane]
    blocks = dict(tile)
    counts = [ceil(typical(v) / (blocks.get(v.name, 1) * (width if v is found.lane else 1))) for v in order]
    short: list[Var] = []
    steps = 1
    for v in reversed(found.over[len(outer):]):
        steps *= typical(v)
        if not isinstance(v.hi, int) or (steps > SHORT and steps * copies > MAX_UNROLLED):
            break
        short.append(v)
    tall = prod(blocks.get(v.name, 1) for v in found.rows) >= speed.ahead_rows
    far = speed.ahead if alone or (tall and not outer and not short and takes_lines(found, nest)) else 0
    nest = take_scales(nest, len(outer)) if outer else nest
    names = {v.name for v in short} if outer else set(found.everywhere(short))
    return nest, general_plan("stream", nest, Choice(
        tuple([v.name for v in order]), parallel_prefix(counts, target), dict(tile), lanes=found.lane.name, width=width,
        unroll=frozenset(names), ahead=tuple(prefetches(found, outer, short, far, speed))))


def prefetches(found: Streamed, outer: tuple[Var, ...], short: list[Var], far: int, speed: Speed) -> list[Ahead]:
    """The prefetches of what streams past: panels `far` bytes ahead where that is not 0; below factors scales and what
    else is not dense enough for the processor to see, as unrolled steps of the sum move it."""
    inner = found.over[len(outer):]
    if not outer:
        return [Ahead(name, inner[-1].name, far) for name in streamed_along(found.bodies, found.lane)] if far else []
    terms = [term for body in found.bodies for term in scaled_terms(body, inner)]
    scales = streamed_along([scale for scale, _ in terms if scale is not None], found.lane)
    made = [Ahead(name, outer[-1].name, speed.ahead_scales) for name in scales]
    rest = [rest for _, rest in terms]
    if far:
        return made + [Ahead(name, inner[0].name, far) for name in streamed_along(rest, found.lane, inner[1:])]
    at = next((v for v in reversed(inner) if v not in short), outer[-1])
    return made + [Ahead(name, at.name, speed.ahead_inner) for name in streamed_along(rest, found.lane, short)]


def streamed_along(values: Sequence[Value], lane: Var, without: Sequence[Var] = ()) -> list[str]:
    """Buffers that values read along the lanes, and not along other variables."""
    loads = [v for value in values for v in walk(value) if v.op == "load"]
    used = [(v.buffer, variables(v.indices[0])) for v in loads]
    return list(dict.fromkeys([name for name, own in used if lane in own and not own & set(without)]))


def takes_lines(found: Streamed, nest: Nest) -> bool:
    """True where a step of the sum takes a whole line, or several, of each panel."""
    loads = [a for body in found.bodies for a in value_accesses(body, nest.domain)]
    return all(extent(found.lane) * a.bits // 8 >= LINE for a in loads if a.step(found.lane) == 1)


def is_of_integers(found: Streamed) -> bool:
    """True where the sums below a factor are of integers: no panel of floats is as fast, however many rows there
    are."""
    outer = scaled_prefix(found.bodies, found.over)
    terms = [rest for body in found.bodies for _, rest in scaled_terms(body, found.over[len(outer):])]
    return bool(outer) and any(rest.op == "cast" and rest.args[0].dtype is int32 for rest in terms)


def one_panel_at_a_time(found: Streamed, outer: tuple[Var, ...], target: Target) -> bool:
    """True where the sums below a factor are of integers, so little arithmetic that few rows wait for memory alone: in
    one stream it is read fastest, where it is in long ones. It is prefetched: 81 to 92% of the rate of reading in 4
    bits, 88 to 97 in 8, where eight panels side by side went at 66 and 72."""
    if not (outer and machine(target).speed.long_streams and prod(map(typical, found.rows)) <= FEW_ROWS):
        return False
    return is_of_integers(found)


def streams_at_once(found: Streamed, nest: Nest, target: Target) -> int:
    """Panels that are read side by side, at most."""
    waits = prod(map(typical, found.rows)) <= FEW_ROWS
    speed = machine(target).speed
    return speed.streams_of_lines if waits and takes_lines(found, nest) else speed.streams


def whole_tiles(panel: Var, most: int, copies: int, target: Target) -> int:
    """The number of panels, at most so many, with so many sums each, that are read side by side."""
    if not isinstance(panel.hi, int):
        return most
    count = extent(panel)
    enough = min(machine(target).speed.enough_sums, most * copies)
    factor = next((f for f in range(most, 0, -1) if count % f == 0 and f * copies >= enough), most)
    while factor > 2 and count % factor * FEW_LEFT > count:
        factor -= 1
    return factor


def rows_at_once(v: Var, most: int) -> int:
    """Rows of x in a tile: of rows that lie a power of two apart the first-level cache holds so many."""
    count = extent(v)
    if count <= most:
        return count
    whole = next((f for f in range(most, 3, -1) if count % f == 0), None) if isinstance(v.hi, int) else None
    return whole or (count if count <= MAX_ROWS else most)


def scaled_prefix(bodies: tuple[Value, ...], over: tuple[Var, ...]) -> tuple[Var, ...]:
    """The outer variables of sums around factors that do not depend on the rest, as few as take all such factors out;
    empty where there are none."""
    found, most = 0, 0
    for count in range(1, len(over)):
        inner = over[count:]
        if not isinstance(over[count].hi, int):
            continue
        if prod([typical(v) for v in inner]) < MIN_INNER:
            break
        terms = [term for body in bodies for term in scaled_terms(body, inner)]
        if any(scale is None for scale, _ in terms):
            continue
        factors = sum([len(factors_of(scale)) for scale, _ in terms if scale is not None])
        if factors > most:
            found, most = count, factors
    return over[:found]
