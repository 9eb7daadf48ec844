"""One kernel of a step under trial: other plans for it, checked bit for bit and timed where it stands in the step."""
from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from statistics import median
from typing import Any
from weakref import ref

import numpy as np

from minigrad.codegen.cost.plans import estimate
from minigrad.codegen.kernel.nodes import Kernel
from minigrad.codegen.passes import MISTAKES, Stage, drafted, render, stage_by
from minigrad.codegen.plan.neighbours import neighbours
from minigrad.codegen.plan.several import AnyPlan
from minigrad.codegen.plan.steps import Plan
from minigrad.codegen.policy import contraction, panels
from minigrad.dtype import DType
from minigrad.engine.observe import Observer, Ran
from minigrad.engine.plan import ExecutionPlan, Item, arena_for, launches_of, number
from minigrad.errors import CompileError, MinigradError
from minigrad.runtime.device import Buffer, Device, Launch

BATCH, BEAM, STALE = 16, 2, 3
"""Plans that are compiled together; the best ones whose neighbours come next; rounds with little gain that end it."""

LITTLE, KNOWN, MOST_RUNS, LEAST_RUNS = 0.03, 0.02, 15, 3
"""Gain of a round that is little; error to which a time is to be known; runs of one plan at most and at least."""

HOPELESS, TOO_SLOW, SLOWER, ENDED = 10.0, 1.5, 1.1, 100.0
"""Factors over the plan in force: of a prediction that is not run; of one run, and of several, that are the last; and
of a run alone that ends the hope for a plan."""

WINDOW_BYTES, WINDOW_SHARE = 64 << 20, 2.0
"""What the launches before a kernel touch, which is more than the last cache holds, and the time that they may take
beside its own."""


@dataclass(frozen=True, slots=True)
class Work:
    """A run of a plan: what `run_plan` takes."""

    plan: ExecutionPlan
    leaves: dict[int, Callable[[], Buffer | None]]
    numbers: dict[int, float]
    values: dict[str, int]
    highest: dict[str, int]


class Watch(Observer):
    """Notes the runs of plans, whose leaves it does not keep alive: who asks how many hold a buffer must not count it.
    """

    needs_kernels = True

    def __init__(self) -> None:
        self.works: list[Work] = []

    def ran(self, run: Ran) -> None:
        leaves: dict[int, Callable[[], Buffer | None]] = {k: ref(b) for k, b in run.leaves.items()}
        self.works.append(Work(run.plan, leaves, dict(run.numbers), dict(run.values), dict(run.highest)))


class Clock:
    """Where a search reads the time and has launches timed; tests have another one."""

    def now(self) -> float:
        """Seconds."""
        return time.perf_counter()

    def run(self, device: Device, before: list[Launch], launch: Launch) -> float:
        """Seconds of a launch after some that come before it."""
        if before:
            device.launch(before)
        device.synchronize()
        device.elapsed()
        device.launch([launch])
        device.synchronize()
        return device.elapsed()


@dataclass(slots=True)
class Timing:
    """Seconds of the runs of a launch."""

    runs: list[float] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        return median(self.runs)

    @property
    def error(self) -> float:
        """The standard error of the median, in parts of it."""
        middle = self.seconds
        deviation = median([abs(s - middle) for s in self.runs])
        return 1.9 * deviation / max(middle, 1e-12) / len(self.runs) ** 0.5

    def __str__(self) -> str:
        return f"{1e3 * self.seconds:.4g} ms, within {100 * self.error:.1f}%, of {len(self.runs)} runs"


class Scene:
    """A step's launches over memory of their own, with what its leaves hold."""

    def __init__(self, work: Work):
        plan, device = work.plan, work.plan.device
        self.plan, self.device = plan, device
        self.own: list[Buffer] = []
        sizes = [number(size, work.values) for size in plan.sizes]
        layout = arena_for(plan, work.values, work.highest)
        try:
            memory = self._alloc(max(layout.nbytes, 1))
            buffers: list[Any] = [
                Buffer(device, size, memory.handle, memory.offset + layout.offsets[k], memory)
                if k in layout.offsets else self._alloc(size) for k, size in enumerate(sizes)]
            random = np.random.default_rng(0)
            for k, leaf in plan.read:
                held = work.leaves[leaf]() if leaf in work.leaves else None
                data = random.standard_normal(-(-sizes[k] // 4), np.float32).view(np.uint8)[:sizes[k]]
                if held is not None and held.handle is not None:
                    device.copy_out(held, data)
                device.copy_in(buffers[k], data)
        except BaseException:
            self.free()
            raise
        self.buffers = buffers
        self.launches = launches_of(plan, buffers, work.numbers, work.values)
        self.seconds = [0.0] * len(self.launches)

    def _alloc(self, nbytes: int) -> Buffer:
        self.own.append(self.device.alloc(nbytes))
        return self.own[-1]

    def free(self) -> None:
        with suppress(MinigradError):
            for buffer in self.own:
                self.device.free(buffer)
        self.own = []

    def item(self, at: int) -> Item:
        return self.plan.items[self.launches[at].item]

    def types(self, at: int) -> dict[int, DType]:
        """By slot that a launch touches, the type of its elements."""
        item = self.item(at)
        buffers = item.function.buffers if item.function is not None else ()
        return {slot: b.dtype for row in item.rows for slot, b in zip(row.values, buffers, strict=True)}

    def window(self, at: int) -> list[Launch]:
        """The launches before one, as many as decide what the caches hold."""
        first, touched, seconds = at, 0, 0.0
        while first > 0 and (first == at or touched < WINDOW_BYTES and seconds < WINDOW_SHARE * self.seconds[at]):
            first -= 1
            item = self.item(first)
            touched += sum(self.buffers[k].nbytes for k in item.reads | item.writes)
            seconds += self.seconds[first]
        return self.launches[first:at]


@dataclass(slots=True)
class Found:
    """What is known of a kernel of the step: its launches there, its plan in force with the time, and the best plan.
    `tried` counts plans that ran; `seconds` are those of one step."""

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


class Trial:
    """Plans for a kernel, one after another. `ready` is false where the kernel's own plan gives no same bits twice."""

    def __init__(self, found: Found, clock: Clock, rounding: bool):
        self.found, self.clock, self.rounding = found, clock, rounding
        self.scene, self.at = found.places[0]
        self.device, self.launch = self.scene.device, self.scene.launches[self.at]
        self.window = self.scene.window(self.at)
        units, self.parts, _ = drafted(found.kernel, self.device.target)
        self.nests = units[found.stage][0]
        item = self.scene.item(self.at)
        row, = item.rows
        self.slots, self.kept = row.values, len(row.values) + len(row.scalars)
        self.types = self.scene.types(self.at)
        self.written = sorted(item.writes)
        self.functions = {item.function}
        self.best: list[tuple[float, AnyPlan]] = [(1.0, found.before)]
        self.random = np.random.default_rng(0)
        self.own: dict[int, Buffer] = {}
        self.operands: list[dict[int, np.ndarray]] = []
        self.results: list[list[np.ndarray]] = []
        self.alone = 0.0
        try:
            for slot in dict.fromkeys(self.slots):
                self.own[slot] = self.device.alloc(max(self.scene.buffers[slot].nbytes, 1))
            for odd in (False, True):
                self.operands.append({slot: operand(self.types[slot], self.scene.buffers[slot].nbytes, odd, self.random)
                                      for slot in self.own})
                self.results.append(self._apart(self.launch, self.operands[-1], self.own))
            self.alone = self.clock.run(self.device, [], self._over_own(self.launch))
            self.ready = self._same(self.launch)
        except BaseException:
            self.free()
            raise

    def free(self) -> None:
        """Gives the memory back."""
        with suppress(MinigradError):
            for buffer in self.own.values():
                self.device.free(buffer)
        self.own = {}

    # ---- the same bits ----

    def _over_own(self, launch: Launch) -> Launch:
        return replace(launch, arguments=(*[self.own[s] for s in self.slots], *launch.arguments[len(self.slots):]))

    def _apart(self, launch: Launch, operands: dict[int, np.ndarray], fill: Sequence[int]) -> list[np.ndarray]:
        """What a launch writes to memory that held these operands; all but `fill` of it does already."""
        for slot in fill:
            self.device.copy_in(self.own[slot], operands[slot])
        self.device.launch([self._over_own(launch)])
        return [read(self.own[s]) for s in self.written]

    def _same(self, launch: Launch) -> bool:
        """True where a launch gives the bits of the plan in force."""
        for operands, expected in zip(self.operands, self.results, strict=True):
            found = self._apart(launch, operands, [*self.own])
            if not all([alike(a, b, self.types[s], self.rounding)
                        for s, a, b in zip(self.written, found, expected, strict=True)]):
                return False
        return True

    # ---- plans ----

    def search(self, until: float) -> None:
        """Rounds of plans until their gain is little, or until a time."""
        target, stage = self.device.target, self.found.stage
        pool: dict[str, AnyPlan] = {}
        known = {str(self.found.before)}
        grown: set[str] = set()
        stale = 0
        nest = self.nests[0]
        first = [plan for policy in (panels, contraction) for plan in islice(policy.candidates(nest, target), BATCH * 4)
                 ] if len(self.nests) == 1 else []
        while stale < STALE and self.clock.now() < until:
            new = first + [other for _, plan in self.best[:BEAM] if str(plan) not in grown
                           for other in neighbours(self.parts[stage], plan)]
            grown.update([str(plan) for _, plan in self.best[:BEAM]])
            first = []
            fresh = {str(plan): plan for plan in new if str(plan) not in known}
            known.update(fresh)
            pool = self._ordered(fresh) | pool
            if not pool:
                return
            some = [pool.pop(text) for text in [*pool][:BATCH]]
            before = self.best[0][0]
            self.round(some, until)
            stale = 0 if self.best[0][0] < before * (1 - LITTLE) else stale + 1

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

    def _loaded(self, stages: Sequence[tuple[AnyPlan, Stage]]) -> Iterator[tuple[AnyPlan, Stage, Any]]:
        """Stages with their executables; those that a compiler refuses are left out."""
        def load(some: Sequence[tuple[AnyPlan, Stage]]) -> list[Any]:
            return self.device.load([render(s.function, self.device.target) for _, s in some])
        try:
            yield from [(plan, s, x) for (plan, s), x in zip(stages, load(stages), strict=True)]
        except (CompileError, *MISTAKES):
            for plan, stage in stages:
                with suppress(CompileError, *MISTAKES):
                    yield plan, stage, load([(plan, stage)])[0]

    def _try(self, plan: AnyPlan, launch: Callable[[Launch], Launch], until: float) -> None:
        """Checks and times a plan; it is the best so far if it is faster than all others."""
        mine = launch(self.launch)
        self.found.tried += 1
        first = self.clock.run(self.device, [], self._over_own(mine))
        if first > ENDED * max(self.alone, 1e-6) or not self._same(mine):
            return
        old, new = Timing(), Timing()
        while len(new.runs) < MOST_RUNS:
            old.runs.append(self.clock.run(self.device, self.window, self.launch))
            new.runs.append(self.clock.run(self.device, self.window, mine))
            ratio, count = new.seconds / max(old.seconds, 1e-12), len(new.runs)
            if ratio > TOO_SLOW or count >= LEAST_RUNS and ratio > min(SLOWER, SLOWER * self.best[0][0]):
                return
            if count >= LEAST_RUNS and max(old.error, new.error) < KNOWN or self.clock.now() >= until:
                break
        if ratio < self.best[0][0]:
            self.found.best, self.found.launch, self.found.old, self.found.new = plan, launch, old, new
        self.best = sorted([*self.best, (ratio, plan)], key=lambda pair: pair[0])[:BEAM + 1]


def predicted(nests: Sequence[Any], plan: AnyPlan, device: Device) -> float:
    """Cycles of a plan by the model; 0.0 where it says nothing."""
    if not isinstance(plan, Plan) or len(nests) != 1 or device.target.is_gpu:
        return 0.0
    with suppress(*MISTAKES):
        return estimate(nests[0], plan, device.target).cycles
    return 0.0


def read(buffer: Buffer) -> np.ndarray:
    """The bytes of a buffer."""
    found = np.empty(buffer.nbytes, np.uint8)
    buffer.device.copy_out(buffer, found)
    return found


def operand(dtype: DType, nbytes: int, odd: bool, random: np.random.Generator) -> np.ndarray:
    """Bytes of random values of a type; among `odd` ones are infinities, NaN, -0.0, the smallest and the largest."""
    count = nbytes // max(dtype.itemsize, 1)
    if dtype.name in ("float16", "float32", "float64", "bfloat16"):
        values = random.standard_normal(count, np.float32)
        if odd:
            where = random.random(count) < min(0.01, 8 / max(count, 1))
            values[where] = random.choice(np.array([np.inf, -np.inf, np.nan, -0.0, 1e-40, -1e-40, 3e38], np.float32),
                                          int(where.sum()))
        with np.errstate(over="ignore"):
            found = (values.view(np.uint32) >> 16).astype(np.uint16) if dtype.name == "bfloat16" else \
                values.astype(dtype.np)
    elif dtype.kind == "b":
        found = random.integers(0, 2, count).astype(np.uint8)
    else:
        found = random.integers(0, 100 if odd else 8, count).astype(dtype.np)
    data = np.zeros(nbytes, np.uint8)
    data[:found.nbytes] = found.view(np.uint8)[:nbytes]
    return data


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
