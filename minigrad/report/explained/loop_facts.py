"""Facts of a launch that warnings are computed from: of loops and plan on a processor, of counts on a GPU."""
from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from math import ceil, prod
from typing import Any

from minigrad.codegen.cost.counts import counts
from minigrad.codegen.cost.launch import Launched
from minigrad.codegen.cost.loop_counts import LoopCounts
from minigrad.codegen.cost.plans import of_counts
from minigrad.codegen.ir.nodes import Call, Function, If, Let, Loop, Stmt, Store
from minigrad.codegen.kernel.nodes import Kernel, Nest
from minigrad.codegen.kernel.walk import assignments, values_of
from minigrad.codegen.machines.gpus import Gpu
from minigrad.codegen.machines.machine import machine
from minigrad.codegen.passes import Stage
from minigrad.codegen.plan.several import Several
from minigrad.codegen.plan.steps import Plan, resolve
from minigrad.codegen.transforms.roll import HEAVY
from minigrad.errors import PlanError
from minigrad.expr import Index, bounds
from minigrad.target import Target
from minigrad.value import Value, walk

FEW_ELEMENTS = 1 << 14
"""Elements below which it does not matter how a kernel's loops run."""

LARGE_PART = 0.25
"""The part of the floats that a kernel moves from which on it matters how wide they are."""


@dataclass(slots=True)
class Facts:
    """Facts of one launch. None is what is not known.

    is_gpu: what is known is of a GPU's counts
    one: seconds of one launch; grouped: others run beside it
    cycles, bound: predicted ones of a processor, and what most time is for
    narrow: the part of the work that is done in less than half of a vector
    apart: the part of the predicted time in which lanes read or write places that lie apart; on a GPU the part of the
        bytes that are moved for that and not used, and the worst of it in words
    again: the part of the arithmetic that computes values which were computed before, and an operation in it
    rest: by how much longer it takes as sizes do not fit blocks, vectors, workers or units
    workers, units: parallel iterations or groups, and who shares them
    spills: registers of a work-item, or moves of vectors in inner loops, that go through memory; `of` how many moves
    waves, most_waves: that a scheduler of a GPU holds, and could hold
    widened: the types, where floats become wider than what is given (`widened`)
    """

    is_gpu: bool = False
    one: float = 0.0
    grouped: bool = False
    cycles: float | None = None
    bound: str = ""
    narrow: float = 0.0
    apart: float = 0.0
    apart_text: str = ""
    again: tuple[float, str] = (0.0, "")
    rest: float = 1.0
    workers: int | None = None
    units: int = 1
    spills: int = 0
    of: int = 0
    waves: float | None = None
    most_waves: float | None = None
    registers: int | None = None
    local: int = 0
    groups: int | None = None
    items: int | None = None
    widened: str = ""
    terms: dict[str, float] = field(default_factory=dict)


# ---- a processor ----


def processor_facts(stage: Stage, kernel: Kernel, target: Target, workers: int | None) -> Facts:
    """Facts of a launch, a stage of the flat `kernel`, whose parallel loop has `workers` iterations."""
    function, nests, plan = stage.function, stage.nests, stage.plan
    sizes = tuple([(p.name, _count(p.shape)) for p in kernel.params])
    found = Facts(workers=workers, units=target.units)
    found.narrow = narrow_share(function, target.vector_bytes)
    if any(v.gathers for v in values_of(nests)):  # single elements, for what lies anywhere
        found.narrow, found.apart = 0.0, found.narrow
    if workers and workers > target.units:
        found.rest = ceil(workers / target.units) * target.units / workers
    plans = plan.plans if isinstance(plan, Several) else (plan,)
    if len(plans) != len(nests) or not all(isinstance(p, Plan) for p in plans):
        return found
    try:
        parts = [_plan_facts(nest, p, sizes, target) for nest, p in zip(nests, plans, strict=True)]
    except PlanError:
        return found
    found.cycles = sum([x.cycles or 0.0 for x in parts])
    most = max(parts, key=lambda x: x.cycles or 0.0)
    found.bound, found.apart, found.again = most.bound, max(found.apart, most.apart), most.again
    found.rest = max(found.rest, most.rest)
    return found


@lru_cache(maxsize=1024)
def _plan_facts(nest: Nest, plan: Plan, sizes: tuple[tuple[str, int], ...], target: Target) -> Facts:
    loops = resolve(nest, plan)
    c, facts = counts(loops, target), machine(target)
    one, estimate = facts.plans, of_counts(c, facts)
    found = Facts(cycles=estimate.cycles)
    parts = {"arithmetic": estimate.arithmetic, "loads and stores": estimate.ports, "latency": estimate.latency,
             "memory": estimate.memory, "around loops": estimate.around, "copies": estimate.copies}
    found.bound = max(parts, key=lambda name: parts[name])
    whole = estimate.cycles / estimate.waiting if estimate.waiting else 0.0
    if whole:
        found.apart = min(1.0, (c.gathers * one.gathers + c.scatters * one.scatters + c.single * one.single) / whole)
    counted = LoopCounts(loops)
    found.again = _computed_again(nest, counted, dict(sizes), c.arithmetic)
    found.rest = max([counted.one_by_one(loops.order), *[
        s.size * ceil(n / s.size) / n for s, n in counted.backs if isinstance(s.size, int)]])
    return found


def _computed_again(nest: Nest, counted: LoopCounts, sizes: Mapping[str, int], arithmetic: float) -> tuple[float, str]:
    """The part of the arithmetic that computes heavy values once more, and the operation with most of it."""
    if not arithmetic:
        return 0.0, ""
    wasted: dict[str, float] = {}
    for v, order in _values(nest, counted):
        weight = HEAVY.get(v.op, 0)
        if weight:
            own = counted.along(v)
            once = counted.times([x for x in order if x in own]) / _overlap(v, own, counted, sizes)
            more = counted.executed(own, order) - once
            wasted[v.op] = wasted.get(v.op, 0.0) + max(0.0, more) * weight
    if not wasted:
        return 0.0, ""
    return min(1.0, sum(wasted.values()) / arithmetic), max(wasted, key=lambda op: wasted[op])


def _overlap(v: Value, own: frozenset[str], counted: LoopCounts, sizes: Mapping[str, int]) -> float:
    """By how much iterations of the loops that a value depends on outnumber the elements that it is computed of, as
    those of windows do: 1 where no one operand tells."""
    elements = max([sizes[x.buffer] for x in walk(v) if x.op == "load" and x.buffer in sizes
                    and counted.along(x) == own], default=0)
    return max(1.0, prod([counted.trips[x] for x in own]) / elements) if elements else 1.0


def _values(nest: Nest, counted: LoopCounts) -> Iterator[tuple[Value, tuple[str, ...]]]:
    """Each value of a nest with the loops that it runs in: those of the domain, and of the sums around it."""
    seen: set[tuple[Value, tuple[str, ...]]] = set()
    todo: list[tuple[Value, frozenset[Any]]] = [(s.value, frozenset(nest.domain)) for s in assignments((nest,))]
    while todo:
        v, around = todo.pop()
        inside = around | frozenset(v.over) if v.op == "reduce" else around
        order = counted.of(list(inside))
        if (v, order) not in seen:
            seen.add((v, order))
            yield v, counted.of(list(around))
            todo += [(x, inside) for x in v.operands]


def narrow_share(function: Function, vector_bytes: int) -> float:
    """The part of the work of loops that is done in less than half of a vector at once; 0 of what is small."""
    done: dict[bool, float] = {True: 0.0, False: 0.0}
    elements = 0.0
    stack: list[tuple[Stmt, float, int]] = [(s, 1.0, 1) for s in function.body]
    while stack:
        s, times, lanes = stack.pop()
        if isinstance(s, Loop):
            n = _trips(s.start, s.stop)
            stack += [(x, times * n, n if s.kind == "vector" else lanes) for x in s.body]
        elif isinstance(s, If):
            stack += [(x, times, lanes) for x in s.then]
        elif isinstance(s, Call):
            return 0.0  # a microkernel: vectors by hand
        elif isinstance(s, (Store, Let)):
            width = lanes * max([v.dtype.itemsize for v in walk(s.value) if v.op == "load"] or [s.value.dtype.itemsize])
            done[2 * width < vector_bytes] += times * max(1, len([v for v in walk(s.value) if v.args]))
            elements += times
    total = done[True] + done[False]
    return done[True] / total if total and elements >= FEW_ELEMENTS else 0.0


def _trips(start: Index, stop: Index) -> int:
    return max(0, stop - start if isinstance(start, int) and isinstance(stop, int) else bounds(stop - start)[1])


# ---- a GPU ----


def gpu_facts(one: Launched, gpu: Gpu) -> Facts:
    """Facts of a launch on a card."""
    work, p = one.work, one.prediction
    waves = -(-work.items // gpu.wave)
    held = float(p.resident) * waves / gpu.schedulers_per_unit
    most = gpu.warps_per_unit / gpu.schedulers_per_unit
    found = Facts(is_gpu=True, one=one.seconds, bound=p.bound, workers=work.groups, units=gpu.units, spills=one.spills,
                  waves=min(held, most), most_waves=most, registers=one.registers, local=work.local,
                  groups=work.groups, items=work.items)
    found.terms = {term: float(seconds) for term, seconds in p.terms.items()}
    apart = {name: m for name, m in work.buffers.items()
             if m.apart and m.sectors > 2 * m.asked < m.group * work.groups}
    if apart:
        unused = sum([m.sectors - m.asked for m in apart.values()])
        found.apart = unused / (unused + sum([m.asked for m in work.buffers.values()]))
        name = max(apart, key=lambda name: apart[name].sectors)
        worst = apart[name]
        found.apart_text = (f"{'reads' if worst.loads else 'writes'} {name} {worst.apart:g} bytes apart, "
                            f"{worst.sectors / worst.asked:.1f} times what it asks for")
    together = max(1.0, float(p.resident)) * gpu.units
    if work.groups > gpu.units:
        found.rest = ceil(work.groups / together) * together / work.groups if work.groups > together else \
            ceil(work.groups / gpu.units) * gpu.units / work.groups
    return found


# ---- types ----


def widened(kernel: Kernel) -> str:
    """'float16 to float32' where a kernel writes floats that are wider than all that it reads many of, or computes in
    float64 what is given and wanted in less; else ''."""
    inputs = [(p.dtype, _count(p.shape)) for p in kernel.params if p.mode != "out" and p.dtype.is_float]
    outputs = [(p.dtype, _count(p.shape)) for p in kernel.params if p.mode != "in" and p.dtype.is_float]
    if not inputs or not outputs:
        return ""
    out, size = max(outputs, key=lambda o: (o[0].itemsize, o[1]))
    large = [d for d, n in inputs if 8 * n >= size]
    moved = sum([d.itemsize * n for d, n in (*inputs, *outputs)])
    if large and size * out.itemsize >= LARGE_PART * moved and all(d.itemsize < out.itemsize for d in large):
        return f"{max(large, key=lambda d: d.itemsize)} to {out}"
    widest = max(inputs + outputs, key=lambda x: x[0].itemsize)[0]
    if widest.itemsize < 8 and any(v.dtype.itemsize == 8 and v.dtype.is_float for v in walk(*values_of(kernel.nests))):
        return f"{widest} to float64"
    return ""


def _count(shape: tuple[Index, ...]) -> int:
    return prod([n if isinstance(n, int) else bounds(n)[1] for n in shape])
