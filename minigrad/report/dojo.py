"""A step on cards that are not here: its launches with predicted times.

The step's Python code runs for all cards together, nothing else does: each graph that would be computed is planned for
each card, and what its launches do is counted (codegen/cost/launch.py). What is found is kept on disk, by the graph and
the card's record.
"""
from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from hashlib import sha256
from math import prod
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from minigrad.capture.arguments import tensors_in
from minigrad.capture.journal import settle
from minigrad.codegen.cost.gpu import between, costs_of
from minigrad.codegen.cost.launch import PATTERNS, Launched, launched
from minigrad.codegen.passes import render
from minigrad.config import config, current
from minigrad.engine.collector import collector_paused
from minigrad.engine.observe import dry_runs
from minigrad.engine.plan import ExecutionPlan, Item, arena_for, make_plan, number
from minigrad.engine.plan_store import NotWritable, sources_digest, spell
from minigrad.errors import MinigradError
from minigrad.expr import bounds, evaluate, variables
from minigrad.handles import live
from minigrad.ops.node import Node
from minigrad.report.dry import DryRun, Phantom
from minigrad.report.explained import loop_facts, rules
from minigrad.report.explained.loop_facts import gpu_facts
from minigrad.report.explained.rules import named
from minigrad.runtime import disk_cache
from minigrad.runtime.device import Buffer, Device
from minigrad.runtime.registry import get_device
from minigrad.runtime.simulated import SimulatedGpu
from minigrad.scheduler.graph import Graph, bindings, expressions, structure
from minigrad.scheduler.schedule import schedule
from minigrad.tensor import Tensor

CARDS = ("rtx4090", "rtx3090", "rtx3060", "rtx2080ti", "a100", "h100", "rx7900xtx", "rx6700xt", "rx6600", "mi250x",
         "a770", "m1")
"""Cards that a step is compared on, of each vendor and of several ages."""
KIND = "dojo"
RANGES = {*PATTERNS.values(), "convolution"}


@dataclass(frozen=True, slots=True)
class Program:
    """The launches of one program in a step, `count` of them: of each what it does, with the seconds of all of them and
    their range. `terms` are the model's for one launch; `waves` those that a scheduler holds."""

    name: str
    how: str
    pattern: str
    count: int
    groups: int
    items: int
    waves: float
    registers: int
    spills: int
    compiled: bool
    local: int
    moved: float
    flops: float
    least_bytes: float
    seconds: float
    least: float
    most: float
    bound: str
    terms: dict[str, float]
    counts: dict[str, float]
    buffers: dict[str, dict[str, float]]
    warnings: tuple[str, ...]


def as_dict(program: Program) -> dict[str, Any]:
    """The fields by their names, not copied."""
    return {f.name: getattr(program, f.name) for f in fields(program)}


@dataclass(frozen=True, slots=True)
class Predicted:
    """A step on a card: its programs, the longest first, and the bytes at the peak. `launch` are seconds that a launch
    costs besides."""

    card: str
    programs: tuple[Program, ...]
    peak_bytes: int
    launch: float

    @property
    def launches(self) -> int:
        """The number of launches of a step."""
        return sum(p.count for p in self.programs)

    @property
    def seconds(self) -> float:
        """The time of all launches, one after the other."""
        return sum(p.seconds for p in self.programs)

    @property
    def range(self) -> tuple[float, float]:
        """The least and the most, were all of them off alike."""
        return sum(p.least for p in self.programs), sum(p.most for p in self.programs)


class Recorder(DryRun):
    """Plans what would be computed for cards, while `counting`. `programs` are those of each card so far, `peaks` the
    bytes that its step takes at most."""

    def __init__(self, cards: Sequence[str], compiled: bool):
        super().__init__()
        self.cards = {card: _opened(card) for card in cards}
        self.compiled, self.counting = compiled, False
        self.programs: dict[str, list[Program]] = {card: [] for card in cards}
        self.peaks = dict.fromkeys(cards, 0)
        self.arenas = dict.fromkeys(cards, 0)

    def count(self) -> None:
        """Counts from now on. Inputs count when they are read again: weights that were cast before may be gone."""
        self.live -= sum([x.nbytes for x in self.inputs.values()])
        self.inputs.clear()
        self.counting = True

    def plan(self, graph: Graph, donated: frozenset[int], device: Device) -> Any:
        """Nothing but where results are, in the order of the targets."""
        if not device.simulates:
            raise MinigradError(f"[dojo] expected a step on {current().device}, got one on {device.name}")
        with collector_paused():
            for card, opened in self.cards.items() if self.counting else ():
                programs, self.arenas[card] = _on_card(graph, donated, opened, self.compiled)
                self.programs[card] += programs
        return SimpleNamespace(schedule=SimpleNamespace(donated=(), outputs=range(len(graph.targets))), prepared=None,
                               device=device)

    def run(self, plan: Any, graph: Graph, leaves: dict[int, Buffer], values: dict[str, int], highest: dict[str, int]
            ) -> list[Any]:
        """Phantoms for the targets."""
        made = [Phantom(self, plan.device, _bytes(graph.nodes[t], values), "") for t in graph.targets]
        for buffer in leaves.values():
            self.count_input(buffer)
        for card in self.cards if self.counting else ():
            self.peaks[card] = max(self.peaks[card], self.live + self.arenas[card])
        return made


def predict_step(prepare: Callable[[], Any], cards: Sequence[str], compiled: bool = False) -> list[Predicted]:
    """A step on cards, in their order. `prepare` makes values, or a function whose call is the step; that is called
    twice, and counts the second time. With `compiled`, registers are those that a card's compiler tells, where that is
    here. Raises MinigradError where a value is read, DeviceError for a card without a record."""
    recorder = Recorder(cards, compiled)
    dry_runs.append(recorder)
    try:
        with config(device=recorder.cards[cards[0]].name):
            settle(list(live()))
            step = prepare()
            if callable(step) and not isinstance(step, Tensor):
                settle(list(live()))
                _realize(step())
            else:
                _realize(step)
                step = prepare
            recorder.count()
            _realize(step())
            recorder.forget()
    finally:
        dry_runs.remove(recorder)
    return [Predicted(card, _together(recorder.programs[card]), recorder.peaks[card],
                      opened.facts.launch_us_measured * 1e-6) for card, opened in recorder.cards.items()]


def _opened(card: str) -> SimulatedGpu:
    opened = get_device(f"SIM:{card}")
    if not isinstance(opened, SimulatedGpu):
        raise MinigradError(f"[dojo] expected the name of a card, got {card}")
    return opened


def _together(programs: Sequence[Program]) -> tuple[Program, ...]:
    """Equal launches of several graphs together, the longest first."""
    found: dict[Any, Program] = {}
    for p in programs:
        key = p.name, p.how, p.groups, p.items, p.seconds / p.count
        known = found.get(key)
        found[key] = p if known is None else replace(
            p, count=p.count + known.count, seconds=p.seconds + known.seconds, least=p.least + known.least,
            most=p.most + known.most)
    return tuple(sorted(found.values(), key=lambda p: -p.seconds))


def _bytes(node: Node, values: dict[str, int]) -> int:
    return prod([n if isinstance(n, int) else evaluate(n, values) for n in node.shape]) * node.dtype.itemsize


def _on_card(graph: Graph, donated: frozenset[int], device: SimulatedGpu, compiled: bool) -> tuple[list[Program], int]:
    """The programs of a graph on a card, and the bytes of its temporaries: from disk where they are known."""
    key = _key(graph, donated, device, compiled)
    known = disk_cache.get(KIND, key) if key else None
    if known is not None:
        programs, arena = json.loads(zlib.decompress(known))
        return [Program(**{**p, "warnings": tuple(p["warnings"])}) for p in programs], arena
    found, arena = _planned(graph, donated, device, compiled)
    if key:
        disk_cache.put(KIND, key, zlib.compress(json.dumps([[as_dict(p) for p in found], arena]).encode(), 1))
    return found, arena


def _key(graph: Graph, donated: frozenset[int], device: SimulatedGpu, compiled: bool) -> str | None:
    """A text for what the programs of a graph depend on, None where it has none."""
    try:
        text = spell((structure(graph), donated, current().planning, tuple(sorted(_values(graph).items()))))
    except NotWritable:
        return None
    gpu = device.facts
    facts = f"{gpu!r} {sorted(costs_of(gpu).items())} {[between(1, pattern, gpu) for pattern in sorted(RANGES)]}"
    return "\n".join([sources_digest(), _own_digest(), facts, str(compiled and device.counts_registers), text])


@cache
def _own_digest() -> str:
    files = [__file__, *[str(module.__file__) for module in (loop_facts, rules)]]
    return sha256(b"".join([Path(file).read_bytes() for file in files])).hexdigest()


def _values(graph: Graph) -> dict[str, int]:
    return bindings(graph) if graph.symbolic else {}


def _planned(graph: Graph, donated: frozenset[int], device: SimulatedGpu, compiled: bool) -> tuple[list[Program], int]:
    plan, values = make_plan(schedule(graph, donated, device.target), device, load=False), _values(graph)
    symbols = [v for n in graph.nodes for e in expressions(n) for v in variables(e)] if values else []
    highest = {v.name: bounds(v)[1] for v in symbols}
    rows: dict[tuple[Any, ...], list[Any]] = {}
    for item, dims in _rows(plan, values):
        row = rows.setdefault((item.function, dims, str(item.how)), [item.name, 0, 0.0, 0.0])
        for k, more in ((1, 1), (2, item.flops / len(item.rows)), (3, item.bytes / len(item.rows))):
            row[k] += more
    resources = _resources(device, [key[0] for key in rows]) if compiled else {}
    found = []
    for (function, dims, how), (name, count, flops, moved) in rows.items():
        one = launched(function, dims, device.facts, how, resources.get(function))
        found.append(_program(name, how, count, one, device, flops, moved))
    return found, arena_for(plan, values, highest).nbytes


def _realize(result: Any) -> None:
    Tensor.realize(*tensors_in(result))


def _rows(plan: ExecutionPlan, values: dict[str, int]) -> Iterator[tuple[Item, tuple[int, ...]]]:
    """Each row that runs, with its dims."""
    for item in plan.items:
        for row in item.rows:
            if item.function is not None and number(row.extent, values) > 0:
                yield item, tuple([number(d, values) for d in row.dims])


def _resources(device: SimulatedGpu, functions: list[Any]) -> dict[Any, tuple[int, int]]:
    """Registers and spills of functions, as the card's compiler makes them where it is here."""
    distinct = list(dict.fromkeys(functions))
    loaded = device.load([render(f, device.target) for f in distinct])
    return {f: x.compiled for f, x in zip(distinct, loaded, strict=True) if x.compiled is not None}


def _program(name: str, how: str, count: int, one: Launched, device: SimulatedGpu, flops: float, moved: float
             ) -> Program:
    gpu, work = device.facts, one.work
    waves = -(-work.items // gpu.wave)
    held = float(one.prediction.resident) * waves / gpu.schedulers_per_unit
    counts = {field: float(getattr(one.counts, field)) for field in one.counts.__dataclass_fields__}
    buffers = {b: {"loads": m.loads, "stores": m.stores, "asked": m.asked, "sectors": m.sectors, "group": m.group,
                   "all": m.all} for b, m in work.buffers.items() if m.all}
    terms = {term: float(seconds) for term, seconds in one.prediction.terms.items()}
    return Program(name, how, one.pattern, count, work.groups, work.items, held, one.registers, one.spills,
                   one.compiled, work.local, one.moved, flops / count, moved / count, count * one.seconds,
                   count * one.least, count * one.most, one.prediction.bound, terms, counts, buffers,
                   tuple(_warnings(one, device)))


def _warnings(one: Launched, device: SimulatedGpu) -> Iterator[str]:
    """Texts about what makes a launch slow whatever it computes."""
    yield from [f"{name}: {text}" for name, text in named(gpu_facts(one, device.facts)).items()]
    if one.work.local > device.facts.local_bytes_per_group:
        yield f"local memory: {one.work.local} bytes, of {device.facts.local_bytes_per_group}"
