"""A step's launches on memory of their own, timed where they stand in the step: where a search measures."""
from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from statistics import median
from typing import Any
from weakref import ref

import numpy as np

from minigrad.config import config
from minigrad.dtype import DType
from minigrad.engine.observe import Observer, Ran
from minigrad.engine.plan import ExecutionPlan, Item, arena_for, launches_of, number
from minigrad.errors import MinigradError
from minigrad.runtime.device import Buffer, Device, Launch
from minigrad.runtime.host_calls import HostCall

WINDOW_BYTES, WINDOW_SHARE = 64 << 20, 1.0
"""Bytes that the launches before a kernel touch, more than the last cache holds, and the time that they may take beside
its own."""


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
        """Notes a run."""
        leaves: dict[int, Callable[[], Buffer | None]] = {k: ref(b) for k, b in run.leaves.items()}
        self.works.append(Work(run.plan, leaves, dict(run.numbers), dict(run.values), dict(run.highest)))


class Clock:
    """The clock of a search, which has launches timed; tests have another one. `alone` is a context with one
    worker, in which a search runs but for what all workers do, and compilers."""

    def __init__(self) -> None:
        self.alone, self.together = config(threads=1), config()
        self.compiling = 0.1
        """Seconds that a program takes to compile, of late."""

    def now(self) -> float:
        """Seconds."""
        return time.perf_counter()

    def work(self, device: Device, before: list[Launch], launch: Launch) -> float:
        """Seconds of a launch after some that come before it: on the CPU of the processor that its one worker runs on,
        which others who want it do not lengthen."""
        if before:
            device.launch(before)
        if device.name != "CPU":
            return self._elapsed(device, launch)
        start = time.thread_time()
        device.launch([launch])
        return time.thread_time() - start

    def wall(self, device: Device, launch: Launch) -> float:
        """Seconds of a launch by all workers."""
        with self.together:
            return self._elapsed(device, launch)

    def _elapsed(self, device: Device, launch: Launch) -> float:
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
        """Their median."""
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
    """A plan's launches over memory of their own, with what its leaves hold. `times`: its runs in a step."""

    def __init__(self, work: Work, times: int = 1):
        plan, device = work.plan, work.plan.device
        self.plan, self.device, self.times = plan, device, times
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
        self.launches = [launch for launch in launches_of(plan, buffers, work.numbers, work.values)
                         if not isinstance(launch.executable, HostCall)]  # other processes do not search
        self.seconds = [0.0] * len(self.launches)

    def _alloc(self, nbytes: int) -> Buffer:
        self.own.append(self.device.alloc(nbytes))
        return self.own[-1]

    def free(self) -> None:
        """Gives the memory back."""
        with suppress(MinigradError):
            for buffer in self.own:
                self.device.free(buffer)
        self.own = []

    def item(self, at: int) -> Item:
        """The item of the plan that a launch is of."""
        return self.plan.items[self.launches[at].item]

    def types(self, at: int) -> dict[int, DType]:
        """By slot that a launch touches, the type of its elements."""
        item = self.item(at)
        buffers = item.function.buffers if item.function is not None else ()
        return {slot: b.dtype for row in item.rows for slot, b in zip(row.values, buffers, strict=True)}

    def window(self, at: int) -> list[Launch]:
        """The launches before one, as many as decide what the caches hold."""
        first, touched, seconds = at, 0, 0.0
        while first > 0 and (first == at or (touched < WINDOW_BYTES and seconds < WINDOW_SHARE * self.seconds[at])):
            first -= 1
            item = self.item(first)
            touched += sum(self.buffers[k].nbytes for k in item.reads | item.writes)
            seconds += self.seconds[first]
        return self.launches[first:at]


def read(buffer: Buffer) -> np.ndarray:
    """The bytes of a buffer."""
    found = np.empty(buffer.nbytes, np.uint8)
    buffer.device.copy_out(buffer, found)
    return found
