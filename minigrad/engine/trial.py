"""One kernel of a step under trial: other plans for it, checked bit for bit and timed where it stands in the step."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from minigrad.codegen.cost.plans import estimate
from minigrad.codegen.kernel.nodes import Kernel
from minigrad.codegen.passes import MISTAKES, Stage, drafted, render, stage_by
from minigrad.codegen.plan.neighbours import neighbours
from minigrad.codegen.plan.several import AnyPlan, BlockPlan
from minigrad.codegen.plan.steps import Plan
from minigrad.codegen.policy.blocks import block_form
from minigrad.codegen.policy.choose import product_ways
from minigrad.config import config
from minigrad.dtype import DType
from minigrad.engine.scene import Clock, Scene, Timing, read
from minigrad.errors import CompileError, DeviceError, MinigradError, present
from minigrad.program import Program
from minigrad.runtime.device import Buffer, Device, Launch

BATCH, ROUNDS, BEAM, STALE, MOST_TEXT = 8, 3, 2, 3, 5
"""Plans that are compiled together, and rounds that compilers are to leave time for; the best ones whose neighbours
come next; rounds with little gain that end it; how long a program's text may be, over that of the plan in force."""

LITTLE, KNOWN, MOST_RUNS, LEAST_RUNS = 0.03, 0.02, 15, 3
"""Gain of a round that is little; error to which a time is to be known; runs of one plan at most and at least."""

HOPELESS, TOO_SLOW, SLOWER = 10.0, 1.5, 1.1
"""Factors over the plan in force: of a prediction that is not run; of one run, and of several, that are the last."""

REPEATED = 1_000_003
"""The elements after which random operands repeat."""

ODD = np.array([np.inf, -np.inf, np.nan, -0.0, 1e-40, -1e-40, 3e38], np.float32)


@dataclass(slots=True)
class Found:
    """A kernel of the step and what is known of it: its launches there, its plan in force with the time, and the best
    plan. `tried` counts plans that ran; `seconds` are those of one step."""

    name: str
    kernel: Kernel
    stage: int
    before: AnyPlan
    places: list[tuple[Scene, int]]
    seconds: float = 0.0
    tried: int = 0
    old: Timing = field(default_factory=Timing)
    new: Timing = field(default_factory=Timing)
    best: AnyPlan | None = None
    launch: Callable[[Launch], Launch] | None = None

    @property
    def device(self) -> Device:
        """The device that it runs on."""
        return self.places[0][0].device


class Trial:
    """Plans for a kernel, one after another. `ready` is False where its own plan does not give the same bits twice, or
    there is no memory."""

    def __init__(self, found: Found, clock: Clock, rounding: bool):
        self.found, self.clock, self.rounding = found, clock, rounding
        self.scene, self.at = found.places[0]
        self.device, self.launch = self.scene.device, self.scene.launches[self.at]
        self.window = self.scene.window(self.at)
        units, parts, _ = drafted(found.kernel, self.device.target)
        self.nests, self.form = units[found.stage][0], parts[found.stage]
        if isinstance(found.before, BlockPlan):
            self.form = block_form(self.form, self.device.target)
        item = self.scene.item(self.at)
        row, = item.rows
        self.slots, self.kept = row.values, len(row.values) + len(row.scalars)
        self.types = self.scene.types(self.at)
        self.written = sorted(item.writes)
        self.functions = {item.function}
        self.text = len(render(present(item.function, "[search] expected loops"), self.device.target).source)
        self.best: list[tuple[float, AnyPlan]] = [(1.0, found.before)]
        self.random = np.random.default_rng(0)
        self.own: dict[int, Buffer] = {}
        self.results: dict[bool, list[np.ndarray]] = {}
        try:
            self.ready = self._has_room()
            for odd in (True, False) if self.ready else ():
                self._fill(odd, [*self.own])
                self.results[odd] = self._written(self.launch)
            self.ready = self.ready and self._same(self.launch)
            self.seconds = self.clock.work(self.device, self.window, self.launch)
        except BaseException:
            self.free()
            raise

    def _has_room(self) -> bool:
        """True where the device had memory for the operands once more."""
        with suppress(DeviceError):
            for slot in dict.fromkeys(self.slots):
                self.own[slot] = self.device.alloc(max(self.scene.buffers[slot].nbytes, 1))
            return True
        return False

    def free(self) -> None:
        """Gives the memory back."""
        with suppress(MinigradError):
            for buffer in self.own.values():
                self.device.free(buffer)
        self.own = {}

    # ---- the same bits ----

    def _fill(self, odd: bool, slots: Sequence[int]) -> None:
        for slot in slots:
            self.device.copy_in(self.own[slot], operand(self.types[slot], self.scene.buffers[slot].nbytes, odd, slot))

    def _written(self, launch: Launch) -> list[np.ndarray]:
        """The bytes that a launch writes to memory of the trial's own."""
        self.device.launch([replace(launch, arguments=(*[self.own[s] for s in self.slots],
                                                       *launch.arguments[len(self.slots):]))])
        return [read(self.own[s]) for s in self.written]

    def _same(self, launch: Launch) -> bool:
        """True where a launch gives the bits of the plan in force, on operands and on odd ones."""
        same = True
        for odd, slots in ((False, self.written), (True, [*self.own])):
            self._fill(odd, slots)
            found = self._written(launch)
            same = all([alike(a, b, self.types[s], self.rounding)
                        for s, a, b in zip(self.written, found, self.results[odd], strict=True)])
            if not same:
                break
        if odd:
            self._fill(False, [*self.own])
        return same

    # ---- plans ----

    def search(self, first: Sequence[AnyPlan], until: float) -> None:
        """Rounds of plans, some that others gained by first, until their gain is little, or until a time."""
        target = self.device.target
        pool: dict[str, AnyPlan] = {}
        known = {str(self.found.before)}
        grown: set[str] = set()
        stale = 0
        nest = self.nests[0]
        self.round([plan for plan in first if str(plan) not in known], until)
        known.update(map(str, first))
        ways = product_ways(nest, target) if len(self.nests) == 1 and not target.is_gpu else ()
        made = [way.made(choice, target) for way in ways for _, choice in way.choices]
        new: list[AnyPlan] = [plan for own, plan in made if own == nest]
        while stale < STALE * BATCH and self.clock.now() < until:
            new += [other for _, plan in self.best if str(plan) not in grown
                    for other in neighbours(self.form, plan)]
            grown.update([str(plan) for _, plan in self.best])
            fresh = {str(plan): plan for plan in new if str(plan) not in known}
            known.update(fresh)
            pool, new = self._ordered(fresh) | pool, []
            if not pool:
                return
            count = int((until - self.clock.now()) / (ROUNDS * self.clock.compiling))
            some = [pool.pop(text) for text in [*pool][:max(1, min(BATCH, count))]]
            before = self.best[0][0]
            self.round(some, until)
            stale = 0 if self.best[0][0] < before * (1 - LITTLE) else stale + len(some)

    def _ordered(self, plans: dict[str, AnyPlan]) -> dict[str, AnyPlan]:
        """Plans that are worth a run, cheapest by the model first; what it knows nothing of is as the plan in force."""
        own = self._predicted(self.found.before) or 1.0
        cost = {text: (self._predicted(plan) or own, self.random.random()) for text, plan in plans.items()}
        return {text: plans[text] for text in sorted(plans, key=lambda text: cost[text])
                if cost[text][0] < HOPELESS * own}

    def _predicted(self, plan: AnyPlan) -> float:
        return predicted(self.nests, plan, self.device)

    def round(self, plans: Sequence[AnyPlan], until: float = float("inf")) -> None:
        """Compiles plans and tries each, until a time."""
        stages: list[tuple[AnyPlan, Stage]] = []
        for plan in plans:
            with suppress(CompileError, *MISTAKES):
                stage = stage_by(self.found.kernel, self.found.stage, plan, self.device.target)
                if stage.function not in self.functions:
                    self.functions.add(stage.function)
                    stages.append((plan, stage))
        for plan, stage, executable in self._loaded(stages):
            if self.clock.now() >= until:
                return
            self._try(plan, lambda launch, stage=stage, executable=executable: replace(  # type: ignore[misc]
                launch, executable=executable, arguments=(*launch.arguments[:self.kept], *stage.dims),
                extent=stage.extent), until)

    def _loaded(self, stages: Sequence[tuple[AnyPlan, Stage]]) -> list[tuple[AnyPlan, Stage, Any]]:
        """Stages with their executables; those that a compiler refuses, or that would keep it busy, are left out."""
        start, programs = self.clock.now(), list[tuple[AnyPlan, Stage, Program]]()
        for plan, stage in stages:
            with suppress(*MISTAKES):
                program = render(stage.function, self.device.target)
                if len(program.source) <= MOST_TEXT * self.text:
                    programs.append((plan, stage, program))
        try:
            found = self._load([program for _, _, program in programs])
        except (CompileError, *MISTAKES):
            found = [self._alone(program) for _, _, program in programs]
        self.clock.compiling += 0.5 * ((self.clock.now() - start) / max(len(programs), 1) - self.clock.compiling)
        return [(plan, stage, x) for (plan, stage, _), x in zip(programs, found, strict=True) if x is not None]

    def _alone(self, program: Program) -> Any:
        try:
            return self._load([program])[0]
        except (CompileError, *MISTAKES):
            return None

    def _load(self, programs: list[Program]) -> list[Any]:
        with self.clock.together, config(disk_cache=False):
            return self.device.load(programs)

    def _try(self, plan: AnyPlan, launch: Callable[[Launch], Launch], until: float) -> None:
        """Checks and times a plan; it is the best so far if it is faster than all others."""
        mine = launch(self.launch)
        self.found.tried += 1
        old, new = Timing(), Timing()
        units = self.device.target.units
        waits = waiting(mine.extent, units) / waiting(self.launch.extent, units)
        while len(new.runs) < MOST_RUNS:
            new.runs.append(self.clock.work(self.device, self.window, mine))
            if new.runs[0] * waits > TOO_SLOW * self.seconds:
                return
            old.runs.append(self.clock.work(self.device, self.window, self.launch))
            ratio, count = new.seconds / max(old.seconds, 1e-12) * waits, len(new.runs)
            if count >= LEAST_RUNS and ratio > SLOWER * self.best[0][0]:
                return
            if (count >= LEAST_RUNS and max(old.error, new.error) < KNOWN) or self.clock.now() >= until:
                break
        if ratio > self.best[min(BEAM, len(self.best)) - 1][0] or not self._same(mine):
            return
        if ratio < self.best[0][0]:
            self.found.best, self.found.launch, self.found.old, self.found.new = plan, launch, old, new
            self.seconds = old.seconds
        self.best = sorted([*self.best, (ratio, plan)], key=lambda pair: pair[0])[:BEAM]


def waiting(extent: int, units: int) -> float:
    """The factor by which the busiest of so many workers has more than its part of so many iterations."""
    return -(-extent // units) * units / max(extent, 1)


def predicted(nests: Sequence[Any], plan: object, device: Device) -> float:
    """Cycles of a plan by the model; 0.0 where it says nothing."""
    if not isinstance(plan, Plan) or len(nests) != 1 or device.target.is_gpu:
        return 0.0
    with suppress(*MISTAKES):
        return estimate(nests[0], plan, device.target).cycles
    return 0.0


def operand(dtype: DType, nbytes: int, odd: bool, seed: int) -> np.ndarray:
    """Bytes of random values of a type; among `odd` ones are infinities, NaN, -0.0, the smallest and the largest. Large
    ones repeat."""
    random = np.random.default_rng(seed)
    count = min(nbytes // max(dtype.itemsize, 1), REPEATED)
    if dtype.is_float:
        values = random.standard_normal(count, np.float32)
        if odd:
            values[random.random(count) < min(0.01, 8 / max(count, 1))] = random.choice(ODD)
        with np.errstate(over="ignore"):
            found = (values.view(np.uint32) >> 16).astype(np.uint16) if dtype.name == "bfloat16" else \
                values.astype(dtype.np)
    else:
        found = random.integers(0, 2 if dtype.kind == "b" else 100 if odd else 8, count).astype(dtype.np)
    return np.resize(found.view(np.uint8), nbytes)


def alike(a: np.ndarray, b: np.ndarray, dtype: DType, rounding: bool) -> bool:
    """True where bytes are the same, or both NaN; with `rounding`, where values of a float type are near."""
    if np.array_equal(a, b):
        return True
    if not dtype.is_float or len(a) % dtype.itemsize:
        return False
    x, y = (_floats(v, dtype) for v in (a, b))
    bits = np.dtype(f"u{dtype.itemsize}")
    same = (a.view(bits) == b.view(bits)) | (np.isnan(x) & np.isnan(y))
    if rounding:
        scale = np.abs(y[np.isfinite(y)]).max(initial=0.0)
        with np.errstate(invalid="ignore"):
            same |= np.abs(x - y) <= (1e-5 if dtype.itemsize > 2 else 1e-2) * scale
    return bool(same.all())


def _floats(data: np.ndarray, dtype: DType) -> np.ndarray:
    if dtype.name == "bfloat16":
        return (data.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    return data.view(dtype.np).astype(np.float64)
