"""Counts of what the loops of a plan do on a processor: instructions by kind, bytes that caches do not hold, copies.

    order i j l k u v                 a tile: rows u by vectors v of lanes l, k steps of the sum
      instructions                    as often as the loops that they depend on and those around run; a vector's lanes
                                      are one, and what does not depend on an unrolled loop is done once for it
      latency                         steps of a sum, over the accumulators that are in flight
      copies and results              elements and rows, by the way in which they are read or stored
      near, far                       bytes from beyond the first and the second cache: what the inner loops that fit
                                      it touch, as often as the loops around run

What whole blocks leave runs one by one; blocks that reach back compute again. Branch prediction and dependence of
loads are left out.
"""
from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from math import ceil, prod
from operator import itemgetter

from minigrad.codegen.cost.footprint import Footprint, misses
from minigrad.codegen.cost.loop_counts import AT_ONCE, LoopCounts
from minigrad.codegen.cost.reads import Read, together
from minigrad.codegen.cost.terms import terms
from minigrad.codegen.kernel.access import MAX_STRIDE, typical
from minigrad.codegen.kernel.nodes import Define, Nest, Store
from minigrad.codegen.machines.machine import machine
from minigrad.codegen.microkernels.registry import find
from minigrad.codegen.plan.coordinates import base_of, leaves, length, loop_of, room, terms_of
from minigrad.codegen.plan.loops import Cut, Loops
from minigrad.codegen.plan.microkernel_choice import in_matrix_registers, tile_meant
from minigrad.codegen.plan.spaces import units
from minigrad.codegen.plan.stage import copied_parts
from minigrad.codegen.plan.steps.ahead import Ahead
from minigrad.codegen.plan.steps.call import Call
from minigrad.codegen.plan.steps.results import Results
from minigrad.codegen.plan.steps.stage import Stage
from minigrad.codegen.plan.words import PAIRS
from minigrad.codegen.transforms.roll import HEAVY
from minigrad.errors import present
from minigrad.expr import Index, coefficient, variables
from minigrad.target import Target
from minigrad.value import Value, walk


@dataclass(slots=True)
class Counts:
    """Of all iterations together, the lanes of a vector as one. Facts of a machine say what one of them costs.

    arithmetic: operations; masks, tests: conditions on lanes, and on loops alone
    loads, stores: of whole vectors or of one element for all lanes; crossing: loads that begin anywhere in a line;
    gathers, scatters: lanes that lie apart; spills: accumulators that have no register
    latency: steps of sums that wait for the last
    sums: accumulators that are begun and stored; across: vectors whose lanes are joined; loops: iterations of loops
    calls: tiles in matrix registers
    copied, computed: vectors of copies of an operand as it is, and of what is computed of it; transposed, single:
    elements that are copied in square blocks, and one by one; rows of copies
    results, results_transposed, results_single: vectors and elements that are stored from memory of the worker's own
    near, far: bytes from beyond the first and the second cache, near_runs, far_runs: runs of them that wait, as those
    that lie far apart do; copied_near, copied_far: bytes likewise of copies
    waiting: the part of all work that the busiest worker has
    """

    arithmetic: float = 0.0
    masks: float = 0.0
    tests: float = 0.0
    loads: float = 0.0
    stores: float = 0.0
    crossing: float = 0.0
    gathers: float = 0.0
    scatters: float = 0.0
    spills: float = 0.0
    latency: float = 0.0
    sums: float = 0.0
    across: float = 0.0
    loops: float = 0.0
    calls: float = 0.0
    copied: float = 0.0
    computed: float = 0.0
    transposed: float = 0.0
    single: float = 0.0
    rows: float = 0.0
    results: float = 0.0
    results_transposed: float = 0.0
    results_single: float = 0.0
    near: float = 0.0
    far: float = 0.0
    near_runs: float = 0.0
    far_runs: float = 0.0
    copied_near: float = 0.0
    copied_far: float = 0.0
    waiting: float = 1.0


WORD = 4
"""Bytes of a word."""

Flat = Define | Store | tuple[Define, ...]
"""A statement, or sums that share their loops."""


def counts(loops: Loops, target: Target) -> Counts:
    """The counts of the loops of a plan."""
    return _Counter(loops, target).counted()


class _Counter(LoopCounts):
    def __init__(self, loops: Loops, target: Target):
        super().__init__(loops)
        self.target, self.found = target, Counts()
        self.stages = {s.operand: s for s in loops.of(Stage)}
        self.copied = frozenset([part for s in self.stages.values() for part, _ in copied_parts(loops, s)])
        tile = next((tile_meant(present(find(c.kernel), c.kernel)) for c in loops.of(Call) if c.runs_tile), None)
        self.kind_of_word, self.group = (tile.kind, tile.group) if tile is not None and tile.group > 1 else ("", 1)
        if self.kind_of_word:
            self.kind |= {s.layout[-1]: "word" for s in self.stages.values()}

    def counted(self) -> Counts:
        nest, found = self.loops.nest, self.found
        for around, inside in groupby(self.statements(nest, self.of(nest.domain)), key=itemgetter(1)):
            for is_sum, group in groupby([u for u, _ in inside], key=lambda u: isinstance(u, tuple)):
                if is_sum:
                    for u in group:
                        self.sums(u, around)  # type: ignore[arg-type]
                else:
                    self.flat(list(group), around)  # type: ignore[arg-type]
        for s in self.stages.values():
            self.copies(s)
        for r in self.loops.of(Results):
            self.stores_results(r)
        workers = prod([self.trips[x] for x in self.loops.order if self.kind[x] == "parallel"])
        found.waiting = ceil(workers / self.target.units) / max(workers, 1)
        return found

    def flat(self, body: Sequence[Define | Store], around: tuple[str, ...]) -> None:
        """Statements that share their loops, sums aside."""
        stored = [s for s in body if isinstance(s, Store) and not self.loops.results_at]
        self.computes(tuple([s.value for s in body]), around, [
            Read(s.value, s.param, s.indices[0], s.value.dtype.itemsize) for s in stored])
        for s in stored:
            self.stores(s.indices[0], around)
        self.iterates(around)

    def statements(self, nest: Nest, around: tuple[str, ...]) -> Iterator[tuple[Flat, tuple[str, ...]]]:
        """The statements with the loops around them, outermost first."""
        for u in units(nest.body):
            if isinstance(u, Nest):
                yield from self.statements(u, (*around, *self.of(u.domain)))
            else:
                yield u, around

    # ---- instructions ----

    def sums(self, group: tuple[Define, ...], around: tuple[str, ...]) -> None:
        """Sums that share their loops."""
        own = self.of(group[0].value.over)
        order = tuple([x for x in self.loops.order if x in own or x in around])
        self.computes(tuple([s.value.args[0] for s in group]), order)
        tile = 1 + max([k for k, x in enumerate(order) if x not in own and self.kind[x] not in ("unroll", "vector")],
                       default=-1)
        copies = [x for x in order[tile:] if x not in own and self.kind[x] == "unroll"]
        chains = len(group) * prod([self.trips[x] for x in (*copies, *(x for x in own if x in self.loops.parts))])
        found, tiles = self.found, self.times(order[:tile])
        found.latency += self.times(order) / chains * self.one_by_one(order)
        if self.in_matrices:
            found.calls += tiles
        else:
            found.spills += max(0.0, chains + 3 - self.target.registers) * self.times(
                [x for x in order if x not in copies])
        again = any(x in own for x in order[:tile])  # sums that go on in the next block of the sum
        found.sums += tiles * chains * (2 if again else 1)
        if any(self.kind[x] == "vector" for x in own):
            found.across += tiles * chains
        self.iterates(order)

    def computes(self, values: tuple[Value, ...], order: tuple[str, ...], stored: Sequence[Read] = ()) -> None:
        """Expressions inside loops, and where they are stored."""
        found, lane = self.found, self.lane(order)
        said = terms(values, self.copied)
        for v in said.operations:
            found.arithmetic += self.done(self.along(v), order) * HEAVY.get(v.op, 1) * self.of_words
        for v in said.guards:
            lanes = False
            for e in v.conditions:
                own = self.along(e)
                lanes = lanes or lane in own
                if lane not in own:
                    found.tests += self.executed(own, order)
            if lanes:
                found.masks += self.done(self.along(v), order)
        for r in (reads := [self.read(v) for v in said.reads]):
            self.loads(r, order, lane)
        self.misses([*reads, *stored], order)

    @cached_property
    def of_words(self) -> float:
        """The number of operations that a product of words counts as."""
        facts = machine(self.target)
        if self.in_matrices:
            return facts.declared.fma_per_cycle / facts.declared.matrix_side
        return facts.costs.dot_step if self.kind_of_word == PAIRS else 1

    @cached_property
    def in_matrices(self) -> bool:
        """True where a microkernel has its tiles in matrix registers."""
        return bool(self.kind_of_word) and in_matrix_registers(self.kind_of_word, self.target)

    def read(self, v: Value) -> Read:
        loaded = v if v.op == "load" else next(
            x for x in walk(v) if x.op == "load" and x.buffer in self.stages)
        copy = self.stages.get(loaded.buffer)
        return Read(v, loaded.buffer, loaded.indices[0], self.bytes_of(v), copy)

    def bytes_of(self, v: Value) -> int:
        """Bytes of an element that is read; of a narrow one where words are copied."""
        return v.dtype.itemsize if self.group == 1 else WORD // self.group

    def loads(self, r: Read, order: tuple[str, ...], lane: str) -> None:
        own = self.touched(r)
        count, found = self.done(own, order) * self.distinct(r, order), self.found
        if lane not in own:
            found.loads += count / machine(self.target).declared.matrix_side if self.in_matrices else count
            return
        if r.copy is not None:
            if lane not in leaves(self.loops, self.layout(r.copy)[-1]):
                found.gathers += count * self.trips[lane]
                return
            found.loads += count
            if not self.in_whole_vectors(r.copy):
                found.crossing += count
            return
        step = self.distance(r.offset, lane)
        if step > MAX_STRIDE:
            found.gathers += count * self.trips[lane]
            return
        found.loads += count * step
        if step > 1 or self.crosses(r.offset, lane):
            found.crossing += count * step

    def distinct(self, r: Read, order: tuple[str, ...]) -> float:
        """The part of reads in unrolled loops that are of different places: rows and taps of a window meet in sums."""
        share, places = 1.0, dict[object, list[float]]()
        unrolled = [x for x in order if self.kind[x] == "unroll"]
        if r.copy is not None:
            for c in r.copy.layout:
                if len(terms_of(c)) > 1:
                    places[c] = [self.trips[x] for x in leaves(self.loops, c) if x in unrolled]
        else:
            for x in unrolled:
                step = self.distance(r.offset, x) * self.stride(x)
                if step:
                    places.setdefault(step, []).append(self.trips[x])
        for trips in places.values():
            share *= (1 + sum(trips) - len(trips)) / prod(trips)
        return share

    def touched(self, r: Read) -> frozenset[str]:
        """The loops that a read depends on."""
        if r.copy is None:
            return self.along(r.offset)
        found = self.known.get(r.copy)
        if found is None:
            found = self.known[r.copy] = frozenset().union(*[leaves(self.loops, c) for c in r.copy.layout])
        return found

    def stores(self, offset: Index, order: tuple[str, ...]) -> None:
        count, lane = self.times(order) * self.one_by_one(order, frozenset(order)), self.lane(order)
        step = self.distance(offset, lane) if lane else 1
        if step <= machine(self.target).declared.strided_stores:
            self.found.stores += count * max(step, 1)
        else:
            self.found.scatters += count * self.trips[lane]

    def misses(self, reads: Sequence[Read], order: tuple[str, ...]) -> None:
        """Bytes of what is read and stored that come from beyond the caches."""
        if not reads:
            return
        around = [x for x in order if self.kind[x] not in AT_ONCE]
        inside = [x for x in order if self.kind[x] in AT_ONCE]
        ahead = {s.operand for s in self.loops.of(Ahead)}
        while around and self.kind[around[-1]] == "unroll":  # in registers
            inside.append(around.pop())
        found = [Footprint(span, self.touched(r), self.steps(r), waits=r.buffer not in ahead)
                 for r, span in together(reads)]
        for x in inside:
            found = [f.around(x, self.trips[x]) for f in found]
        (near, runs), (far, far_runs) = misses(found, [(x, self.trips[x]) for x in around], self.target)
        self.found.near += near
        self.found.far += far
        self.found.near_runs += runs
        self.found.far_runs += far_runs

    def steps(self, r: Read) -> dict[str, int]:
        """By loop, the bytes that a read goes on by."""
        if r.copy is not None:
            return {}
        return {x: int(r.bytes * self.moves(r.offset, x) * self.stride(x)) for x in self.touched(r)}

    def iterates(self, order: tuple[str, ...]) -> None:
        for k, x in enumerate(order):
            if self.kind[x] == "serial":
                self.found.loops += self.times([y for y in order[:k + 1] if self.kind[y] != "unroll"])

    def crosses(self, offset: Index, lane: str) -> bool:
        """True where vectors begin anywhere in a line: rows are no whole vectors apart, or blocks reach back."""
        steps = [coefficient(offset, v) for v in variables(offset)]
        return any([not isinstance(c, int) or (c != 1 and c % self.trips[lane]) for c in steps]) or any(
            [total < 4 * s.size and lane in self.loops.inside(s.loop) for s, total in self.backs])

    def in_whole_vectors(self, s: Stage) -> bool:
        """True where vectors of a copy begin at whole vectors."""
        layout = self.layout(s)
        count = length(self.loops, layout[-1]) if len(terms_of(layout[-1])) == 1 else 1
        return len(layout) == 1 or (isinstance(count, int) and count % self.width == 0)

    # ---- copies and results ----

    def layout(self, s: Stage) -> tuple[str, ...]:
        """The coordinates of a copy, but for the one inside a word."""
        return s.layout[:-1] if self.kind_of_word else s.layout

    @cached_property
    def parts(self) -> dict[str, Value]:
        """By operand, the part of a sum that is copied."""
        values = [s.value.args[0] for u in units(self.loops.nest.body) if isinstance(u, tuple) for s in u]
        reads = [self.read(v) for v in reversed(terms(tuple(values), self.copied).reads)]
        return {r.copy.operand: r.value for r in reads if r.copy is not None}

    def elements(self, layout: Sequence[str]) -> float:
        """Elements of memory that is laid out by coordinates."""
        total = 1.0
        for c in layout:
            n = length(self.loops, c)
            total *= n if isinstance(n, int) else typical(self.root[base_of(c)[1]])
        return total

    def run_along(self, coordinate: str, offset: Index, plain: bool) -> tuple[Index | None, int]:
        """The elements from one place of a coordinate to the next, at an offset before loops were fused; and how many
        places follow each other so."""
        before, step, run = self.loops.given or self.loops, None, 1
        for k, x in enumerate(self.parts_of(loop_of(terms_of(coordinate)[0][1]))):
            count = room(self.loops, x)
            while x not in before.root:
                x = next(s.loop for s in self.loops.steps if isinstance(s, Cut) and x in (s.outer, s.inner))
            c = coefficient(offset, before.root[x])
            if k and not (plain and isinstance(step, int) and c == step * run):
                break
            step, run = (c, count) if not k else (step, run * count)
        return step, run

    def parts_of(self, name: str) -> list[str]:
        """The loops that a loop was fused of, innermost first."""
        f = self.loops.fused.get(name)
        return [name] if f is None else [*self.parts_of(f.inner), *self.parts_of(f.outer)]

    def copies(self, s: Stage) -> None:
        """A copy of an operand."""
        order, part, found = self.loops.order, self.parts.get(s.operand), self.found
        if part is None:
            return
        layout = self.layout(s)
        total = self.elements(layout) * self.times(order[:order.index(s.at) + 1])
        before = [u.value for u in (self.loops.given or self.loops).nest.body if not isinstance(u, Nest)]
        offset = next(v.indices[0] for v in walk(*before) if v.op == "load" and v.buffer == s.operand)
        step, row = self.run_along(layout[-1], offset, part.op == "load" or self.group > 1)
        if s.transposed:
            found.transposed += total
        elif isinstance(step, int) and abs(step) <= MAX_STRIDE and row > 1:
            vectors = total / row * ceil(row / self.width) * max(abs(step), self.group)
            if part.op == "load":
                found.copied += vectors
            else:
                found.computed += vectors
            found.rows += total / row
        else:
            found.single += total
        nbytes = self.bytes_of(part)
        if prod([self.trips[x] for x in self.along(part)]) * nbytes > self.target.l2:
            found.copied_far += total * self.group * nbytes
        else:
            found.copied_near += total * self.group * nbytes

    def stores_results(self, r: Results) -> None:
        """Results that leave memory of the worker's own."""
        order, found = self.loops.order, self.found
        total = self.elements(r.layout) * self.times(order[:order.index(r.at) + 1])
        if self.kind_of_word == PAIRS:  # they are scaled, before anything else
            found.results += total / self.width
        if r.transposed:
            found.results_transposed += total
            return
        for s in (self.loops.given or self.loops).nest.body:
            if isinstance(s, Store):
                step, row = self.run_along(r.layout[-1], s.indices[0], True)
                if step == 1 and row > 1:
                    found.results += total / row * ceil(row / self.width)
                else:
                    found.results_single += total
