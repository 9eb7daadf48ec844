"""Interleaved timing: every side of a comparison runs in turn, A B A B ..., so that the machine's moods hit all alike.

One turn of one side is: a pause (idle threads of the side before go to sleep), one untimed call (caches and threads of
this side are warm again), then samples until the turn is full. A sample is as many calls as fill `SAMPLE_S`.
"""
from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple


class Schedule(NamedTuple):
    """The time that one row may take. `rounds` None: as many as fit in `row_s`, between `FEWEST` and `MOST`, fewer
    where they take `most_s`. `clock` times the samples: time.process_time leaves out what other processes take, and is
    for one thread."""

    rounds: int | None = None
    turn_s: float = 0.02
    pause_s: float = 0.03
    row_s: float = 1.2
    clock: Callable[[], float] = time.perf_counter
    most_s: float = math.inf


FEWEST, MOST = 5, 30
SAMPLE_S = 0.003
STEP_S, STEPS = 0.01, 50
"""Seconds between looks at the side before, until its threads sleep, and the most looks."""
LONG_CALL_S = 0.1  # such a call needs no untimed one before it
QUICK = Schedule(rounds=1, turn_s=0.0, pause_s=0.0, row_s=0.0)


@dataclass
class Side:
    """One way of doing the work. `run` returns when its result is ready; it does the work `count` times, which for a
    read stream may be a fraction."""

    peer: str
    variant: str
    run: Callable[[], object]
    count: float = 1
    seconds: list[float] = field(default_factory=list)
    first_s: float = 0.0
    repeats: int = 1
    wall_s: float = 0.0
    cpu_s: float = 0.0

    @property
    def best_s(self) -> float:
        """Seconds of one work in the best sample: noise only adds."""
        return min(self.seconds)

    @property
    def median_s(self) -> float:
        return statistics.median(self.seconds)

    @property
    def quartiles_s(self) -> tuple[float, float]:
        """A quarter of the samples took less than the first, a quarter more than the second."""
        samples = self.seconds if len(self.seconds) > 1 else self.seconds * 2
        low, _, high = statistics.quantiles(samples, method="inclusive")
        return low, high

    @property
    def cores_used(self) -> float:
        """Processor time over wall time, in the samples."""
        return self.cpu_s / self.wall_s if self.wall_s else 0.0


def _go_on() -> None:
    pass


between_turns: Callable[[], None] = _go_on
"""Called after every turn: compare.py makes this process wait there."""


def interleave(sides: list[Side], schedule: Schedule) -> None:
    """Fills in the samples of all sides, in turn."""
    for side in sides:
        _prepare(side, schedule.clock)
    start, done = time.perf_counter(), 0
    while not _enough(done, time.perf_counter() - start, schedule):
        for side in sides:
            _turn(side, schedule, alone=len(sides) == 1)
            between_turns()
        done += 1


def _enough(done: int, spent: float, schedule: Schedule) -> bool:
    if schedule.rounds is not None:
        return done >= schedule.rounds
    return done >= MOST or (done >= FEWEST and spent >= schedule.row_s) or (done >= 1 and spent >= schedule.most_s)


def _prepare(side: Side, clock: Callable[[], float]) -> None:
    """The first call, which compiles and captures, is kept apart (unless it was made before, and timed); the second
    shows how long a call takes."""
    first_s = _elapsed(side.run, clock) / side.count
    side.first_s = side.first_s or first_s
    side.repeats = max(1, math.ceil(SAMPLE_S / max(_elapsed(side.run, clock), 1e-9)))
    if side.repeats > 1:  # the second call may still have been a slow one
        begin = clock()
        for _ in range(min(side.repeats, 3)):
            side.run()
        call_s = (clock() - begin) / min(side.repeats, 3)
        side.repeats = max(1, math.ceil(SAMPLE_S / max(call_s, 1e-9)))


def _turn(side: Side, schedule: Schedule, alone: bool) -> None:
    if not alone and schedule.pause_s:
        settle(schedule.pause_s)
    if not side.seconds or min(side.seconds) * side.count < LONG_CALL_S:
        side.run()
    spent = 0.0
    while True:
        wall, cpu = schedule.clock(), time.process_time()
        for _ in range(side.repeats):
            side.run()
        wall, cpu = schedule.clock() - wall, time.process_time() - cpu
        side.seconds.append(wall / side.repeats / side.count)
        side.wall_s += wall
        side.cpu_s += cpu
        spent += wall
        if spent >= schedule.turn_s:
            return


def settle(pause_s: float) -> None:
    """Sleeps until the threads of the side before do: OpenBLAS's take a core for 0.13 s after a call."""
    time.sleep(pause_s)
    for _ in range(STEPS):
        busy, start = time.process_time(), time.perf_counter()
        time.sleep(STEP_S)
        if time.process_time() - busy < 0.2 * (time.perf_counter() - start):
            return


def _elapsed(run: Callable[[], object], clock: Callable[[], float]) -> float:
    begin = clock()
    run()
    return clock() - begin
