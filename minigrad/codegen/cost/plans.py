"""An estimate of the cycles of one core that a plan takes, whatever its pattern; plans of one nest are ordered by it.

    in registers     the largest of: arithmetic, loads and stores, waiting for sums, bytes that caches do not hold
    around           sums that are begun and stored, lanes that are joined, iterations of loops
    copies           of operands, and results that leave memory of the worker's own
    workers          the last of them waits for nobody

The counts are those of `counts.py`, and what one costs is a fact of the machine (`[plans]` in machines/*.toml).
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from minigrad.codegen.cost.counts import Counts, counts
from minigrad.codegen.cost.footprint import FULL
from minigrad.codegen.kernel.nodes import Nest
from minigrad.codegen.machines.machine import Machine, machine
from minigrad.codegen.plan.steps import Plan, resolve
from minigrad.target import Target


@dataclass(frozen=True, slots=True)
class Estimate:
    """Cycles of the busiest worker: of arithmetic, of loads and stores, of waiting for sums, of memory, around them,
    and of copies of operands and results."""

    arithmetic: float
    ports: float
    latency: float
    memory: float
    around: float
    copies: float
    waiting: float

    @property
    def cycles(self) -> float:
        return (max(self.arithmetic, self.ports, self.latency, self.memory) + self.around + self.copies) * self.waiting

    def __str__(self) -> str:
        parts = ("arithmetic", "ports", "latency", "memory", "around", "copies")
        most = max(parts, key=lambda name: getattr(self, name))
        return f"{self.cycles:.3g} cycles, most of them {most}"


def estimate(nest: Nest, plan: Plan, target: Target) -> Estimate:
    """The estimate for the loops of a plan. Raises PlanError as `resolve` does."""
    loops = resolve(nest, plan)
    return of_counts(counts(loops, target), machine(target))


def cheapest_plan(nest: Nest, plans: Sequence[Plan], target: Target) -> Plan:
    """The cheapest of some plans of a nest."""
    return min(plans, key=lambda plan: estimate(nest, plan, target).cycles) if len(plans) > 1 else plans[0]


def of_counts(c: Counts, facts: Machine) -> Estimate:
    """The estimate for counts on a machine."""
    one = facts.plans
    memory = max(c.near * one.near + c.near_runs * one.near_run, c.far * one.far + c.far_runs * one.far_run)
    copied = c.copied * one.copied + c.computed * one.computed + c.transposed * one.transposed + c.single * one.single
    results = (c.results * one.results + c.results_transposed * one.results_transposed
               + c.results_single * one.results_single)
    return Estimate(
        c.arithmetic / facts.declared.fma_per_cycle + c.masks * one.masks + c.tests * one.tests,
        (c.loads * one.loads + c.crossing * one.crossing + c.gathers * one.gathers + c.stores * one.stores
         + c.scatters * one.scatters + c.spills * one.spills),
        c.latency * one.latency * facts.declared.fma_latency, memory,
        (c.sums * one.sums + c.across * one.across + c.loops * one.loops
         + c.calls * facts.costs.matrix_call),
        max(copied + c.rows * one.rows, c.copied_near * one.copied_near + c.copied_far * one.copied_far) + results,
        c.waiting)


def tile_cycles(copies: float, loads: float, steps: float, nbytes: float, target: Target, rate: float = 0.0,
                chains: int = 1) -> float:
    """Cycles of one register tile by what its loop does: so many accumulators, loads and bytes of operands in each of
    the steps of a sum. They put tiles in order before their plans are estimated. `rate`: of multiply-adds, where
    vectors are not the target's; `chains`: of each accumulator."""
    facts = machine(target)
    one, waits = facts.plans, facts.plans.latency * facts.declared.fma_latency / chains
    missed = nbytes * one.near if nbytes * steps * FULL > target.l1 else 0.0
    step = max(copies / (rate or facts.declared.fma_per_cycle), loads * one.loads, waits, missed)
    return step * steps + copies * (one.sums + one.stores)
