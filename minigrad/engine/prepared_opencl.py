"""A plan on an OpenCL device whose launches keep their arguments: a run sets those that changed since the last one."""
from __future__ import annotations

from threading import Lock
from typing import Any

from minigrad.engine.plan import ExecutionPlan, arena_for, count_run, lasting_buffers, number
from minigrad.engine.storage import arena
from minigrad.expr import Expr
from minigrad.runtime.device import Buffer
from minigrad.runtime.opencl import OpenCL
from minigrad.runtime.opencl_prepared import Place


class PreparedQueue:
    """One plan on an OpenCL device, for many runs. `run` gives what `run_plan` does, without temporaries."""

    def __init__(self, plan: ExecutionPlan, device: OpenCL):
        self.plan, self.device = plan, device
        self._lock = Lock()
        rows = [(item.executable, row) for item in plan.items for row in item.rows]
        self._launches = device.prepare([executable for executable, _ in rows])
        self._slots: dict[int, list[Place]] = {}
        self._numbers: dict[int, list[Place]] = {}
        self._dims: list[tuple[Place, Expr]] = []
        self._extents: list[tuple[int, Expr]] = []
        for k, (_, row) in enumerate(rows):
            for at, slot in enumerate(row.values):
                self._slots.setdefault(slot, []).append((k, at))
            for at, argument in enumerate(row.scalars, len(row.values)):
                if type(argument) is int:
                    self._numbers.setdefault(argument, []).append((k, at))
                else:
                    self._launches.set_number([(k, at)], argument)
            for at, e in enumerate(row.dims, len(row.values) + len(row.scalars)):
                if isinstance(e, Expr):
                    self._dims.append(((k, at), e))
                else:
                    self._launches.set_number([(k, at)], e)
            if isinstance(row.extent, Expr):
                self._extents.append((k, row.extent))
            else:
                self._launches.set_extent(k, row.extent)
        self._known: dict[int, tuple[Any, int]] = {}
        self._known_numbers: dict[int, float] = {}
        self._known_dims: dict[str, int] | None = None
        self._temporary = frozenset(plan.temporary)

    def run(self, leaves: dict[int, Buffer], numbers: dict[int, float], values: dict[str, int],
            highest: dict[str, int]) -> list[Any]:
        """Buffers by slot; None for temporaries."""
        buffers = lasting_buffers(self.plan, leaves, values)
        layout = arena_for(self.plan, values, highest)
        with self._lock:
            memory = arena(self.device, layout.nbytes) if layout.nbytes else None
            known, launches = self._known, self._launches
            for slot, places in self._slots.items():
                if slot in self._temporary:
                    assert memory is not None
                    handle, offset = memory.handle, memory.offset + layout.offsets[slot]
                else:
                    handle, offset = buffers[slot].handle, buffers[slot].offset
                before = known.get(slot)
                if before is None or before[0] is not handle or before[1] != offset:
                    known[slot] = handle, offset
                    launches.set_buffer(places, handle, offset)
            for k, places in self._numbers.items():
                value = numbers[k]
                if self._known_numbers.get(k) is not value:  # -0.0 equals 0.0, NaN does not equal itself
                    self._known_numbers[k] = value
                    launches.set_number(places, value)
            if values != self._known_dims:
                self._known_dims = values
                for place, e in self._dims:
                    launches.set_number([place], number(e, values))
                for k, e in self._extents:
                    launches.set_extent(k, number(e, values))
            self.device.run(launches)
        count_run(self.plan, len(self.plan.items))
        return buffers
