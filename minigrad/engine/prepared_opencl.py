"""A plan on an OpenCL device whose launches keep their arguments: a run sets those that changed since the last one."""
from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from typing import Any
from weakref import ref

from minigrad.engine.plan import ExecutionPlan, arena_for, count_run, lasting_buffers, number
from minigrad.engine.storage import arena, arenas
from minigrad.expr import Expr
from minigrad.runtime.device import Buffer
from minigrad.runtime.host import address_of
from minigrad.runtime.opencl import OpenCL
from minigrad.runtime.opencl_chain import Planned
from minigrad.runtime.opencl_prepared import Place
from minigrad.scheduler.memory import Arena

ARENA = -1
"""The memory that all temporaries are parts of; others have the numbers of their slots."""


class PreparedQueue:
    """One plan on an OpenCL device, for many runs. `run` gives what `run_plan` does, without temporaries."""

    def __init__(self, plan: ExecutionPlan, device: OpenCL):
        self.plan, self.device = plan, device
        self._lock = Lock()
        temporary = frozenset(plan.temporary)
        rows = [(item.executable, row) for item in plan.items for row in item.rows]
        self.launches = device.prepare(_planned(plan, temporary))
        slots: dict[int, list[Place]] = {}
        self._numbers: dict[int, list[Place]] = {}
        self._dims: dict[Expr, list[Place]] = {}
        self._extents: dict[Expr, list[int]] = {}
        for k, (_, row) in enumerate(rows):
            for at, slot in enumerate(row.values):
                slots.setdefault(slot, []).append((k, at))
            for at, argument in enumerate(row.scalars, len(row.values)):
                if type(argument) is int:
                    self._numbers.setdefault(argument, []).append((k, at))
                else:
                    self.launches.set_number([(k, at)], argument)
            for at, e in enumerate(row.dims, len(row.values) + len(row.scalars)):
                if isinstance(e, Expr):
                    self._dims.setdefault(e, []).append((k, at))
                else:
                    self.launches.set_number([(k, at)], e)
            if isinstance(row.extent, Expr):
                self._extents.setdefault(row.extent, []).append(k)
            else:
                self.launches.set_extents([k], row.extent)
        self._lasting = {k: p for k, p in slots.items() if k not in temporary}
        self._temporary = [(k, p) for k, p in slots.items() if k in temporary]
        self._slots_lasting = tuple(self._lasting)
        self._addresses: dict[int, int] = {}
        self._last: tuple[tuple[int, ...], list[int]] = (), []
        """Slots and addresses of the last run."""
        self._layout: Arena | None = None
        self._arena: Callable[[], Buffer | None] = type(None)
        """The memory that the temporaries were in last."""
        self._known_numbers: dict[int, float] = {}
        self._known_dims: dict[str, int] | None = None

    def runs_with(self, values: dict[str, int]) -> bool:
        """Launches without iterations are left out: any values will do."""
        return True

    def run(self, leaves: dict[int, Buffer], numbers: dict[int, float], values: dict[str, int],
            highest: dict[str, int]) -> list[Any]:
        """Buffers by slot; None for temporaries."""
        buffers = lasting_buffers(self.plan, leaves, values)
        self.run_patched(self._slots_lasting, [buffers[k].address or address_of(buffers[k]) for k in self._lasting],
                         numbers, values, highest)
        return buffers

    def run_patched(self, slots: tuple[int, ...], addresses: list[int],
                    numbers: dict[int, float], values: dict[str, int], highest: dict[str, int], threads: int = 0
                    ) -> None:
        """Queues a run with these lasting slots at these addresses, and those that are not named where they were last
        time. `threads` are the driver's affair."""
        with self._lock:
            if slots is not self._last[0] or addresses != self._last[1]:
                self._patch(slots, addresses)
            memory = self._patch_temporaries(values, highest) if self._temporary else None
            for k, places in self._numbers.items():
                value = numbers[k]
                if self._known_numbers.get(k) is not value:  # -0.0 equals 0.0, NaN does not equal itself
                    self._known_numbers[k] = value
                    self.launches.set_number(places, value)
            if values != self._known_dims:
                self._known_dims = values
                for e, places in self._dims.items():
                    self.launches.set_number(places, number(e, values))
                for e, launches in self._extents.items():
                    self.launches.set_extents(launches, number(e, values))
            self.device.run(self.launches)
        del memory  # nobody could take it from us meanwhile
        count_run(self.plan, len(self.plan.items))

    def address(self, slot: int) -> int:
        """Where a lasting slot lay in the last run; 0 for one that no argument names."""
        return self._addresses.get(slot, 0)

    def _patch(self, slots: tuple[int, ...], addresses: list[int]) -> None:
        known = self._addresses
        for slot, address in zip(slots, addresses, strict=True):
            if known.get(slot) != address and slot in self._lasting:
                known[slot] = address
                self.launches.set_buffer(self._lasting[slot], slot, *self.device.locate(address))
        self._last = slots, addresses

    def _patch_temporaries(self, values: dict[str, int], highest: dict[str, int]) -> Buffer | None:
        memory = arenas.get(self.device.name)
        if memory is not None and memory is self._arena() and values is self._known_dims:
            return memory
        layout = arena_for(self.plan, values, highest)
        memory = arena(self.device, layout.nbytes)
        if layout is not self._layout or memory is not self._arena():
            self._layout, self._arena = layout, ref(memory)
            for slot, places in self._temporary:
                self.launches.set_buffer(places, ARENA, memory.handle, memory.offset + layout.offsets[slot])
        return memory


def _planned(plan: ExecutionPlan, temporary: frozenset[int]) -> list[Planned]:
    """All launches of a plan, rows of a table one by one."""
    found, before = [], -1
    for item in plan.items:
        for n, row in enumerate(item.rows):
            memories = tuple([ARENA if slot in temporary else slot for slot in row.values])
            found.append(Planned(item.executable, memories, row.work, n > 0 or before == item.group >= 0))
        before = item.group
    return found
