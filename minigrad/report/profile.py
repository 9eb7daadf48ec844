"""`profile`: every launch with its time, where it came from, and how near it is to what the machine can do.

    with minigrad.profile() as p:
        step(x, y)
    print(p.table())
    p.save("trace.json")        # opens in Perfetto and in chrome://tracing

Launches run one by one meanwhile, each timed by its device, so that the sum of their times is a little more than what
they take together. Lines are known of graphs that are built inside; a function under `jit` has them if it was captured
inside.
"""
from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from time import perf_counter
from typing import Any, TypeVar

from minigrad.config import current
from minigrad.engine.observe import Observer, Ran, lines_kept, note_lines, observing
from minigrad.engine.plan import ExecutionPlan
from minigrad.engine.stats import stats
from minigrad.errors import quantity
from minigrad.runtime.limits import Limits, Probe
from minigrad.runtime.registry import get_device
from minigrad.runtime.simulated import SimulatedGpu

PHASES = ("build", "schedule", "lower", "render", "compile", "launch")


@dataclass(slots=True)
class KernelRun:
    """One launch: seconds since the profile began, and how long it took; `rows` > 1 for a table of equal updates."""

    name: str
    device: str
    plan: ExecutionPlan
    item: int
    start: float
    seconds: float

    @property
    def flops(self) -> float:
        """Operations that it counts."""
        return self.plan.items[self.item].flops

    @property
    def bytes(self) -> float:
        """The bytes that it must move: each value that it reads or writes, once."""
        return self.plan.items[self.item].bytes

    @property
    def rows(self) -> int:
        """The number of programs that run in its one launch."""
        return len(self.plan.items[self.item].rows)

    @property
    def how(self) -> str:
        """The policy's plan, as text."""
        return str(self.plan.items[self.item].how)

    @property
    def line(self) -> str:
        """The line of the user's program that asked for its result; '' where it is not known."""
        return self.plan.lines.get(self.item, "")


@dataclass(slots=True)
class Row:
    """All launches of one kernel from one line. Times in seconds; `limit` is the share of the machine's limit reached,
    None where no limits are known."""

    name: str
    line: str
    device: str
    how: str
    count: int = 0
    seconds: float = 0.0
    flops: float = 0.0
    bytes: float = 0.0
    limit: float | None = None


@dataclass(repr=False)
class Profile(Observer):
    """The launches of a profile. `runs` in order; `calls` counts lists of launches handed to a device, which it runs in
    one go outside a profile (on the CPU: native calls). `wall` is the whole time in seconds, `phases` that of the host
    alone."""

    runs: list[KernelRun] = field(default_factory=list)
    calls: int = 0
    wall: float = 0.0
    phases: dict[str, float] = field(default_factory=dict)
    times_launches = True
    _begin: float = 0.0

    # ---- told by the engine ----

    def called(self) -> None:
        """Counts a list of launches."""
        self.calls += 1

    def launched(self, plan: ExecutionPlan, item: int, start: float, seconds: float, buffers: list[Any]) -> None:
        """Keeps what a launch took."""
        name = plan.items[item].name
        self.runs.append(KernelRun(name, plan.device.name, plan, item, start - self._begin, seconds))

    def ran(self, run: Ran) -> None:
        """Finds the user's lines that asked for what a plan computes."""
        note_lines(run.plan, run.graph)

    # ---- for the user ----

    def __repr__(self) -> str:
        return self.table()

    @property
    def seconds(self) -> float:
        """Time in kernels."""
        return sum(r.seconds for r in self.runs)

    def rows(self) -> list[Row]:
        """Runs of one kernel from one line together, the longest first."""
        found: dict[tuple[str, str, str, str], Row] = {}
        for r in self.runs:
            key = r.name, r.line, r.device, r.how
            row = found.setdefault(key, Row(*key))
            row.count += 1
            row.seconds += r.seconds
            row.flops += r.flops
            row.bytes += r.bytes
        for row in found.values():
            limits = limits_of(row.device)
            if limits is not None and row.seconds:
                least = max(row.flops / 1e9 / limits.gflops, row.bytes / 1e9 / limits.gb_s)
                row.limit = least / row.seconds
        return sorted(found.values(), key=lambda row: -row.seconds)

    def table(self, most: int = 40) -> str:
        """The longest `most` rows, then totals. 'limit' is the least time that the machine's float32 rate and reading
        from memory allow, over the time taken; what lies in a cache may pass 100%."""
        head = f"{'ms':>9} {'share':>6} {'runs':>5} {'GFLOP/s':>8} {'GB/s':>7} {'limit':>6}  kernel"
        lines, total = [head], self.seconds or 1.0
        rows = self.rows()
        for r in rows[:most]:
            rate, moved = (r.flops / r.seconds / 1e9, r.bytes / r.seconds / 1e9) if r.seconds else (0.0, 0.0)
            limit = f"{100 * r.limit:5.0f}%" if r.limit is not None else "     -"
            pattern = "".join(re.findall(r"^plan (\w+)", r.how))
            where = f" at {r.line}" if r.line else ""
            lines.append(f"{1e3 * r.seconds:9.3f} {100 * r.seconds / total:5.1f}% {r.count:5} {rate:8.1f} {moved:7.1f} "
                         f"{limit}  {r.name} ({pattern}){where}")
        if len(rows) > most:
            lines.append(f"... and {len(rows) - most} more")
        if any(r.plan.device.simulates for r in self.runs):
            lines.append("predicted, as nothing runs on " + ", ".join(sorted({r.device for r in self.runs})))
        phases = ", ".join(f"{name} {1e3 * self.phases.get(name, 0.0):.1f}" for name in PHASES)
        lines.append(f"{quantity(len(self.runs), 'launch')} in {quantity(self.calls, 'call')}: "
                     f"{1e3 * self.seconds:.3f} ms of {1e3 * self.wall:.3f} ms; host, in ms: {phases}")
        return "\n".join(lines)

    def save(self, path: str | Path) -> None:
        """Writes the launches in the Chrome trace format (JSON, times in microseconds)."""
        threads = {device: k for k, device in enumerate(dict.fromkeys(r.device for r in self.runs))}
        events: list[dict] = [{"ph": "M", "name": "thread_name", "pid": 0, "tid": k, "args": {"name": device}}
                              for device, k in threads.items()]
        for r in self.runs:
            args = {"plan": r.how, "line": r.line, "flops": r.flops, "bytes": r.bytes, "rows": r.rows}
            if r.seconds:
                args |= {"GFLOP/s": r.flops / r.seconds / 1e9, "GB/s": r.bytes / r.seconds / 1e9}
            events.append({"ph": "X", "name": r.name, "cat": "kernel", "pid": 0, "tid": threads[r.device],
                           "ts": 1e6 * r.start, "dur": 1e6 * r.seconds, "args": args})
        phases = {f"{name}_s": seconds for name, seconds in self.phases.items()}
        Path(path).write_text(json.dumps({"traceEvents": events, "displayTimeUnit": "ms", "otherData": phases}))


P = TypeVar("P", bound=Profile)


@contextmanager
def profile() -> Iterator[Profile]:
    """`with profile() as p:` times every launch of the process meanwhile; see the top of this file."""
    with profiling(Profile()) as p:
        yield p


@contextmanager
def profiling(p: P) -> Iterator[P]:
    """`profile`, with an object that notes more than the launches."""
    before, p._begin = stats.snapshot(), perf_counter()
    try:
        with observing(p), lines_kept():
            yield p
    finally:
        p.wall = perf_counter() - p._begin
        spent = stats - before
        p.phases = {name: getattr(spent, f"{name}_s") for name in PHASES[1:]}
        p.phases["launch"] = max(p.phases["launch"] - p.seconds, 0.0)
        p.phases["build"] = max(p.wall - p.seconds - sum(p.phases.values()), 0.0)


@cache
def limits_of(device: str) -> Limits | None:
    """The limits of a device, measured on first use, of SIM:<card> those of its specification; None for others."""
    opened = get_device(device)
    if isinstance(opened, SimulatedGpu):
        return Limits(1e3 * opened.facts.f32_tflops, opened.facts.dram_gbs)
    if device != "CPU":
        return None
    return Probe(current().threads).limits
