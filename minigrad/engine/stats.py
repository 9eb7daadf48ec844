"""Counters of what the engine did, for benchmarks and tests. `stats.snapshot()` before and after, and subtract."""
from __future__ import annotations

from dataclasses import dataclass, fields, replace


@dataclass(slots=True)
class Stats:
    """Counts since the process started. Times are seconds of this thread; `mem_used` the live bytes of realized values.

    A launch is one stage, `calls` counts lists of launches handed to a device;
    `kernels` counts distinct kernels lowered, `programs` distinct rendered programs, which kernels share, `schedules`
    plans made, `plan_loads` plans taken from disk, `plan_hits` reuses.
    """

    launches: int = 0
    calls: int = 0
    kernels: int = 0
    programs: int = 0
    schedules: int = 0
    plan_loads: int = 0
    plan_hits: int = 0
    nodes: int = 0
    flops: float = 0.0
    bytes: float = 0.0
    schedule_s: float = 0.0
    lower_s: float = 0.0
    render_s: float = 0.0
    compile_s: float = 0.0
    launch_s: float = 0.0
    mem_used: int = 0

    def snapshot(self) -> Stats:
        """A copy, to be taken off later ones."""
        return replace(self)

    def __sub__(self, other: Stats) -> Stats:
        return Stats(*(getattr(self, f.name) - getattr(other, f.name) for f in fields(self)))


stats = Stats()
