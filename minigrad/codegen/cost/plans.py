"""An estimate of the cycles of one core that a plan of steps takes, from its loops: one function for every pattern.

    in registers     per step of a tile the largest of: operations over issue, loads and stores over ports, latency of
                     sums over the accumulators in flight
    edges            blocks that reach back compute again, what is left runs one by one
    around           a loop's own instructions, a tile's start and end, lanes that are joined
    memory           bytes that each cache does not hold, from footprints of the loops inside it
    workers          the last of them waits for nobody

It ranks plans of one nest. It leaves out copies of operands (`stage`): the time that they take, and that they are read
from in place of the operand. Likewise branch prediction, associativity, prefetchers and dependence of loads.
"""
from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil, prod

from minigrad.codegen.kernel.access import typical
from minigrad.codegen.kernel.nodes import Nest, Store
from minigrad.codegen.kernel.value_walk import locals_of
from minigrad.codegen.machines.machine import machine
from minigrad.codegen.plan.loops import Loops, divides
from minigrad.codegen.plan.spaces import units
from minigrad.codegen.plan.steps import Plan, resolve
from minigrad.expr import Index, coefficient
from minigrad.target import Target
from minigrad.value import Value, free_variables, walk

FREE = frozenset(("load", "const", "index", "local", "reduce", "guard"))
"""Operations that are no instructions of their own; neither is the addition of a sum, which is one with its last
product."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """Cycles of the busiest worker: of arithmetic, of loads and stores, of waiting for sums, around them, of memory."""

    arithmetic: float
    ports: float
    latency: float
    around: float
    memory: float
    waiting: float

    @property
    def cycles(self) -> float:
        return (max(self.arithmetic, self.ports, self.latency, self.memory) + self.around) * self.waiting

    def __str__(self) -> str:
        parts = ("arithmetic", "ports", "latency", "around", "memory")
        most = max(parts[:3] + parts[4:], key=lambda name: getattr(self, name))
        return f"{self.cycles:.3g} cycles, most of them {most}"


def estimate(nest: Nest, plan: Plan, target: Target) -> Estimate:
    """The estimate for the loops of a plan. Raises PlanError as `resolve` does."""
    loops = resolve(nest, plan)
    return _Model(loops.nest, loops, target).estimate()


@dataclass(frozen=True, slots=True)
class _Run:
    """Statements under loops, outermost first: the values they evaluate, and how many accumulators they fill."""

    loops: tuple[str, ...]
    values: tuple[Value, ...]
    store: Store | None = None
    chains: int = 1


class _Model:
    def __init__(self, nest: Nest, loops: Loops, target: Target):
        self.nest, self.loops, self.target, self.facts = nest, loops, target, machine(target)
        self.trips = {x: self.trip(x) for x in loops.order}
        self.domain = tuple([x for x in loops.order if not loops.space[x]])
        self.outside = loops.order[:loops.first_reduction]

    def trip(self, name: str) -> int:
        count = self.loops.extent(name)
        return count if isinstance(count, int) else typical(self.loops.root[name])

    def times(self, names: Sequence[str]) -> int:
        """Iterations of loops, a vector's lanes as one."""
        return prod([self.trips[x] for x in names if self.loops.kind[x] != "vector"])

    def estimate(self) -> Estimate:
        runs = list(self.runs(self.nest, self.domain))
        tiles = self.times(self.outside)
        arithmetic = sum(self.executed(v, run) for run in runs for v in walk(*run.values) if v.op not in FREE)
        loads = sum(self.executed(v, run) * self.width(v.indices[0], run)
                    for run in runs for v in walk(*run.values) if v.op == "load")
        stores = sum(self.times(run.loops) * self.width(run.store.indices[0], run) for run in runs if run.store)
        waits = sum(self.times(run.loops) / run.chains for run in runs if run.store is None)
        around = tiles * self.facts.speed.plan_tile + sum(self.around(run) for run in runs)
        spilled = 1 + max(0, max(run.chains for run in runs) + 3 - self.target.registers) / self.target.registers
        edges = prod([self.edge(s.loop) for s in self.loops.split.values()])
        return Estimate(arithmetic / self.facts.declared.fma_per_cycle * edges,
                        (loads / self.facts.costs.loads + stores) * edges * spilled,
                        waits * self.facts.declared.fma_latency * edges, around, self.memory(runs), self.waiting())

    # ---- what is executed ----

    def runs(self, nest: Nest, loops: tuple[str, ...]) -> Iterator[_Run]:
        for u in units(nest.body):
            if isinstance(u, Nest):
                yield from self.runs(u, (*loops, *self.of(u.domain)))
            elif isinstance(u, tuple):
                own = self.of(u[0].value.over)
                order = tuple([x for x in self.loops.order if x in own or x in loops])
                bodies = tuple([s.value.args[0] for s in u])
                inside = [x for x in order if x not in self.outside and x not in own]
                parts = [x for x in own if x in self.loops.parts]
                yield _Run(order, bodies, None, len(u) * prod([self.trips[x] for x in (*inside, *parts)]))
            else:
                yield _Run(loops, (u.value,), u if isinstance(u, Store) else None)

    def of(self, variables_: Sequence[object]) -> tuple[str, ...]:
        return tuple([x for x in self.loops.order if self.loops.root[x] in variables_])

    def executed(self, v: Value, run: _Run) -> float:
        """The number of times that a value is computed: not in loops inside the last that it depends on, nor for copies
        alike."""
        own = self.depends(v)
        last = max((k for k, x in enumerate(run.loops) if x in own), default=-1)
        return self.times([x for x in run.loops[:last + 1] if x in own or self.loops.kind[x] != "unroll"])

    def depends(self, v: Value) -> frozenset[str]:
        """The loops whose variables a value reads."""
        own = free_variables(v)
        found = frozenset(x for x in self.loops.order if self.loops.root[x] in own)
        return found.union(self.domain) if locals_of(v) else found

    def width(self, offset: Index, run: _Run) -> float:
        """Instructions of one load or store: one for each lane that lies apart."""
        lane = next((x for x in run.loops if self.loops.kind[x] == "vector"), None)
        if lane is None:
            return 1.0
        step = coefficient(offset, self.loops.root[lane])
        return 1.0 if isinstance(step, int) and step in (0, 1) else self.trips[lane] * GATHER

    def around(self, run: _Run) -> float:
        """Instructions of loops, and of lanes that are joined."""
        serial = [k for k, x in enumerate(run.loops) if self.loops.kind[x] == "serial"]
        speed = self.facts.speed
        total = speed.plan_loop * sum(self.times([x for x in run.loops[:k + 1] if self.loops.kind[x] != "unroll"])
                                      for k in serial)
        if run.store is None and any(self.loops.kind[x] == "vector" and self.loops.space[x] for x in run.loops):
            total += self.times(self.outside) * run.chains * speed.plan_across
        return total

    def edge(self, name: str) -> float:
        """The factor by which a split takes longer for a last block that is not whole: its iterations run one by
        one."""
        s, total = self.loops.split[name], self.loops.extent(name)
        if s.edge != "rest" or not isinstance(total, int) or divides(s, total) or not total:
            return 1.0
        lanes = prod([self.trips[x] for x in self.loops.inside(s.inner) if self.loops.kind[x] != "serial"])
        left = total % s.size / total
        return 1 - left + left * lanes

    def waiting(self) -> float:
        """The part of all work that the busiest worker has."""
        units_ = prod([self.trips[x] for x in self.loops.order if self.loops.kind[x] == "parallel"])
        return ceil(units_ / self.target.units) / max(units_, 1)

    # ---- memory ----

    def memory(self, runs: Sequence[_Run]) -> float:
        """Cycles of bytes that the caches do not hold, of the slower of them."""
        near, far = self.missed(runs, self.target.l1), self.missed(runs, self.target.l2)
        return max(near / self.facts.costs.l2_bytes, far / self.facts.speed.plan_bytes)

    def missed(self, runs: Sequence[_Run], size: int) -> float:
        """Bytes that come from beyond a cache of a size."""
        total = 0.0
        for run in runs:
            reads = {v.attr: (self.depends(v), v.dtype.itemsize) for v in walk(*run.values) if v.op == "load"}
            loops = run.loops
            for level in range(len(loops) + 1):
                inside = [prod([self.trips[x] for x in loops[level:] if x in own]) * n for own, n in reads.values()]
                if sum(inside) * 1.3 <= size or level == len(loops):
                    break
            outer = loops[:level]
            for (own, _), part in zip(reads.values(), inside, strict=True):
                again = [x for k, x in enumerate(outer) if x in own or k < level - 1]
                total += part * prod([self.trips[x] for x in again])
        return total


GATHER = 1.5
"""Cost of one lane of a gather or scatter, against 1 for a contiguous vector access or a broadcast."""
