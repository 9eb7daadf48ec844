"""Launches, distinct programs and bytes moved by a captured step, by policy and kernel.

Bytes are counted from the compiled stages: of every buffer that a stage loads from, and of every one that it stores to,
the distinct elements, scratch and weights included. A stage's reads of its own output do not count.
"""
from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from minigrad.codegen.kernel.access import extent
from minigrad.codegen.kernel.nodes import Nest, Store
from minigrad.codegen.passes import Stage, stages_of
from minigrad.engine.observe import Observer, Ran, observing
from minigrad.errors import quantity
from minigrad.expr import Index, evaluate, variables
from minigrad.value import indices_of, value_atoms, walk


@dataclass
class Group:
    """Launches of one policy and kernel name."""

    stages: int = 0
    bytes: int = 0
    programs: set[Any] = field(default_factory=set)


class _Plans(Observer):
    def __init__(self) -> None:
        self.runs: list[Ran] = []

    def ran(self, run: Ran) -> None:
        self.runs.append(run)


def table(step: Callable[[], Any], images: int) -> list[str]:
    """Lines on what one eager run of `step` moves, the most bytes first; MB are per image."""
    plans = _Plans()
    with observing(plans):
        step()
    groups: dict[tuple[str, str], Group] = defaultdict(Group)
    launches = 0
    for run in plans.runs:
        launches += run.plan.launches
        for made in run.plan.schedule.steps:
            for stage in stages_of(made.kernel, run.plan.device.target).stages:
                group = groups[stage.plan.pattern, made.kernel.name]
                group.stages += 1
                group.bytes += stage_bytes(stage)
                group.programs.add(stage.function)
    total = sum(g.bytes for g in groups.values()) / images / 1e6
    programs = len({p for g in groups.values() for p in g.programs})
    lines = [f"one step: {quantity(launches, 'launch')}, {quantity(programs, 'program')}, {total:.1f} MB per image"]
    for (policy, name), g in sorted(groups.items(), key=lambda item: -item[1].bytes):
        lines.append(f"{g.bytes / images / 1e6:9.2f} MB  {g.stages:4} stages  {len(g.programs):3} programs  "
                     f"{policy:<12} {name}")
    return lines


def stage_bytes(stage: Stage) -> int:
    """Distinct bytes that a stage loads and stores, each buffer at most whole."""
    accesses: dict[tuple[str, str], set[Index]] = defaultdict(set)
    for nest in stage.nests:
        _collect(nest, accesses)
    values = {d: int(v) for d, v in zip(stage.function.dims, stage.dims, strict=True) if isinstance(v, int)}
    total = 0
    for b in stage.function.buffers:
        size = evaluate(b.size, {d.name: v for d, v in values.items()}) if not isinstance(b.size, int) else b.size
        for kind in ("load", "store"):
            if kind == "load" and b.mode == "out":
                continue
            total += min(sum(map(_elements, accesses[b.name, kind])), size) * b.dtype.itemsize
    return total


def _collect(nest: Nest, accesses: dict[tuple[str, str], set[Index]]) -> None:
    for s in nest.body:
        if isinstance(s, Nest):
            _collect(s, accesses)
            continue
        if isinstance(s, Store):
            accesses[s.param, "store"].add(s.indices[0])
        inside = [s.value, *(a.value for v in walk(s.value) for e in indices_of(v) for a in value_atoms(e))]
        for v in walk(*inside):
            if v.op == "load":
                accesses[v.buffer, "load"].add(v.indices[0])


def _elements(offset: Index) -> int:
    """A bound on the number of elements that an access meets: no more than its variables have values."""
    total = 1
    for v in () if isinstance(offset, int) else variables(offset):
        total *= extent(v)
    return total
