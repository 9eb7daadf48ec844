"""A plan as one command table of the CPU that stays: a run writes only the arguments that changed since the last one.

Memory that comes back from the pool mostly lies where it lay before, so that a replay changes a few words.
"""
from __future__ import annotations

from threading import Lock
from typing import Any

from minigrad.engine.plan import (
    ExecutionPlan,
    arena_for,
    count_run,
    lasting_buffers,
    launches_of,
    number,
)
from minigrad.engine.storage import arena
from minigrad.expr import Expr
from minigrad.runtime.commands import Encoder
from minigrad.runtime.cpu import CPU
from minigrad.runtime.device import Buffer
from minigrad.runtime.host import address_of
from minigrad.scheduler.memory import Arena


class PreparedPlan:
    """One plan on the CPU, for many runs. `run` gives what `run_plan` does, without buffers for temporaries."""

    def __init__(self, plan: ExecutionPlan, numbers: dict[int, float], values: dict[str, int]):
        assert isinstance(plan.device, CPU)
        self.plan, self.device = plan, plan.device
        self._lock = Lock()
        # Every argument is patched before the first run: addresses of this stand-in are never used.
        stand_in = Buffer(plan.device, 0, None, 0, None, 1)
        launches = launches_of(plan, [stand_in] * len(plan.sizes), numbers, values)
        self.table = self.device.prepare(launches)
        slots: dict[int, list[int]] = {}
        self.numbers: list[tuple[int, int, Encoder]] = []
        self.dims: list[tuple[int, Expr, Encoder]] = []
        self.extents: list[tuple[int, Expr, float]] = []
        for k, (item, starts) in enumerate(zip(plan.items, self.table.rows, strict=True)):
            encoders = item.executable.encoders
            for row, start in zip(item.rows, starts, strict=True):
                for at, slot in enumerate(row.values):
                    slots.setdefault(slot, []).append(start + at)
                for at, argument in enumerate((*row.scalars, *row.dims), len(row.values)):
                    if at < len(row.values) + len(row.scalars):
                        if type(argument) is int:
                            self.numbers.append((start + at, argument, encoders[at]))
                    elif isinstance(argument, Expr):
                        self.dims.append((start + at, argument, encoders[at]))
                if isinstance(row.extent, Expr):
                    self.extents.append((k, row.extent, row.work))
        self.table.release()
        temporary = set(plan.temporary)
        self.lasting = [(k, tuple(p)) for k, p in slots.items() if k not in temporary]
        self.temporary = [(k, tuple(p)) for k, p in slots.items() if k in temporary]
        self.addresses: dict[int, int] = {}
        self.layout: tuple[Arena | None, int] = None, 0

    def run(self, leaves: dict[int, Buffer], numbers: dict[int, float], values: dict[str, int],
            highest: dict[str, int]) -> list[Any] | None:
        """Buffers by slot like `run_plan`; None, with nothing done, where some launch has no iterations."""
        extents = [(k, number(e, values), work) for k, e, work in self.extents]
        if any(extent <= 0 for _, extent, _ in extents):
            return None
        plan, table = self.plan, self.table
        layout = arena_for(plan, values, highest)
        memory = arena(plan.device, layout.nbytes) if layout.nbytes else None
        buffers = lasting_buffers(plan, leaves, values)
        with self._lock:
            known = self.addresses
            for k, positions in self.lasting:
                buffer = buffers[k]
                address = buffer.address or address_of(buffer)
                if known.get(k) != address:
                    known[k] = address
                    table.patch(positions, address)
            if memory is not None:
                base = address_of(memory)
                if self.layout[0] is not layout or self.layout[1] != base:
                    self.layout = layout, base
                    for k, positions in self.temporary:
                        table.patch(positions, base + layout.offsets[k])
            for at, k, encode in self.numbers:
                table.patch((at,), encode(numbers[k]))
            for at, e, encode in self.dims:
                table.patch((at,), encode(number(e, values)))
            for k, extent, work in extents:
                table.resize(k, extent, work)
            self.device.run(table)
        count_run(plan, table.count)
        return buffers


def prepare(plan: ExecutionPlan, numbers: dict[int, float], values: dict[str, int]) -> PreparedPlan | None:
    """The plan for many runs, where its device can do that and every launch has iterations now.

    A table of rows is cut into pieces once, so that their extents must not be symbolic.
    """
    if not isinstance(plan.device, CPU) or not plan.items:
        return None
    for item in plan.items:
        for row in item.rows:
            if number(row.extent, values) <= 0 or len(item.rows) > 1 and isinstance(row.extent, Expr):
                return None
    return PreparedPlan(plan, numbers, values)
