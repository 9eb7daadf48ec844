"""A plan as one command table of the CPU that stays: a run writes only the arguments that changed since the last one.

Memory that comes back from the pool mostly lies where it lay before, so that a replay changes a few words.
"""
from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from weakref import ref

from minigrad.engine.plan import (
    ExecutionPlan,
    arena_for,
    count_run,
    lasting_buffers,
    launches_of,
    number,
)
from minigrad.engine.storage import arena, arenas
from minigrad.errors import InternalError, present
from minigrad.expr import Expr
from minigrad.runtime.commands import Encoder
from minigrad.runtime.cpu import CPU
from minigrad.runtime.device import Buffer
from minigrad.runtime.host import address_of
from minigrad.scheduler.memory import Arena

if TYPE_CHECKING:
    from minigrad.engine.prepared_opencl import PreparedQueue


class PreparedPlan:
    """One plan on the CPU, for many runs. `run` gives what `run_plan` does, without buffers for temporaries."""

    def __init__(self, plan: ExecutionPlan, numbers: dict[int, float], values: dict[str, int]):
        if not isinstance(plan.device, CPU):
            raise InternalError(f"[prepare] expected a plan for the CPU, got one for {plan.device.name}")
        self.plan, self.device = plan, plan.device
        # Every argument is patched before the first run: addresses of this stand-in are never used.
        stand_in = Buffer(plan.device, 0, None, 0, None, 1)
        launches = launches_of(plan, [stand_in] * len(plan.sizes), numbers, values)
        self.table = self.device.prepare(launches)
        self._slots: dict[int, list[int]] = {}
        self._numbers: dict[int, list[tuple[int, Encoder]]] = {}
        self._dims: dict[tuple[Expr, Encoder], list[int]] = {}
        self._extents: list[tuple[int, Expr, float]] = []
        self._find_arguments()
        self.table.release()
        self._pool, self._launches = self.device.pool, len(self.table.rows)
        temporary = set(plan.temporary)
        self._lasting = {k: tuple(p) for k, p in self._slots.items() if k not in temporary}
        self._temporary = [(k, tuple(p)) for k, p in self._slots.items() if k in temporary]
        self.lasting = tuple(self._lasting)
        """The slots that `run` gives addresses for, in order."""
        self._few: tuple[tuple[int, ...], list[tuple[int, ...]]] = (), []
        """Slots and where each one's words stand: for `_patch`."""
        self._known_numbers: dict[int, float] = {}
        self._known_dims: dict[str, int] | None = None
        self._layout: tuple[Arena | None, int] = None, 0
        self._arena: Callable[[], Buffer | None] = type(None)
        """The memory that the temporaries were in last."""
        self._varies = bool(self._temporary or self._numbers or self._dims or self._extents)
        self._last: tuple[tuple[int, ...], list[int]] = (), []
        """Slots and addresses that were written last, if they are what stands in the table."""

    def _find_arguments(self) -> None:
        """Where in the table each slot, number, dim and symbolic extent stands."""
        for k, (item, starts) in enumerate(zip(self.plan.items, self.table.rows, strict=True)):
            encoders = item.executable.encoders
            for row, start in zip(item.rows, starts, strict=True):
                for at, slot in enumerate(row.values):
                    self._slots.setdefault(slot, []).append(start + at)
                scalars = len(row.values) + len(row.scalars)
                for at, argument in enumerate((*row.scalars, *row.dims), len(row.values)):
                    encode = present(encoders[at], "[prepare] expected a number after the buffers of a launch")
                    if at < scalars:
                        if type(argument) is int:
                            self._numbers.setdefault(argument, []).append((start + at, encode))
                    elif isinstance(argument, Expr):
                        self._dims.setdefault((argument, encode), []).append(start + at)
                if isinstance(row.extent, Expr):
                    self._extents.append((k, row.extent, row.work))

    def runs_with(self, values: dict[str, int]) -> bool:
        """Whether every launch has iterations for these values of the symbolic dims."""
        return all([number(e, values) > 0 for _, e, _ in self._extents])

    def run(self, leaves: dict[int, Buffer], numbers: dict[int, float], values: dict[str, int],
            highest: dict[str, int]) -> list[Any] | None:
        """Buffers by slot like `run_plan`; None, with nothing done, where some launch has no iterations."""
        if self._extents and not self.runs_with(values):
            return None
        buffers = lasting_buffers(self.plan, leaves, values)
        self.run_patched(self.lasting, [buffers[k].address or address_of(buffers[k]) for k in self._lasting],
                         numbers, values, highest)
        return buffers

    def run_patched(self, slots: tuple[int, ...], addresses: list[int], numbers: dict[int, float],
                    values: dict[str, int], highest: dict[str, int], threads: int = 0) -> None:
        """Runs with these lasting slots at these addresses, and those that are not named where they were last time.

        `threads` are those of the configuration, where the caller has looked.
        """
        memory = None
        with self._pool.lock:
            if self._last[0] is not slots or addresses != self._last[1]:
                self._patch(slots, addresses)
            if self._varies:
                memory = self._patch_others(numbers, values, highest)
            self.device.run_locked(self.table, threads)
        del memory  # nobody could take it from us meanwhile
        count_run(self.plan, self._launches)

    def _patch_others(self, numbers: dict[int, float], values: dict[str, int], highest: dict[str, int]
                      ) -> Buffer | None:
        """Everything but lasting slots; returns the memory that temporaries are in."""
        memory: Buffer | None = None
        if self._temporary:
            memory = arenas.get(self.device.name)
            if memory is None or memory is not self._arena() or values is not self._known_dims:
                memory = self._patch_temporaries(values, highest)
        if self._numbers:
            self._patch_numbers(numbers)
        if values is not self._known_dims and values != self._known_dims:
            self._patch_dims(values)
        return memory

    def _patch(self, slots: tuple[int, ...], addresses: list[int]) -> None:
        """Writes the words of these slots."""
        if slots is not self._few[0]:
            self._few = slots, [self._lasting.get(k, ()) for k in slots]
        words = self.table.words
        for places, address in zip(self._few[1], addresses, strict=True):
            for at in places:
                words[at] = address
        self._last = slots, addresses

    def address(self, slot: int) -> int:
        """Where a lasting slot lay in the last run; 0 for one that no argument names."""
        places = self._lasting.get(slot)
        return self.table.words[places[0]] if places else 0

    def _patch_temporaries(self, values: dict[str, int], highest: dict[str, int]) -> Buffer | None:
        layout = arena_for(self.plan, values, highest)
        if not layout.nbytes:
            return None
        memory = arena(self.device, layout.nbytes)
        base = memory.address or address_of(memory)
        self._arena = ref(memory)
        if self._layout[0] is not layout or self._layout[1] != base:
            self._layout = layout, base
            for k, places in self._temporary:
                self.table.patch(places, base + layout.offsets[k])
        return memory

    def _patch_numbers(self, numbers: dict[int, float]) -> None:
        known = self._known_numbers
        for k, places in self._numbers.items():
            value = numbers[k]
            if known.get(k) is not value:  # the same object: -0.0 and 0.0 are equal, NaN is not equal to itself
                known[k] = value
                for at, encode in places:
                    self.table.patch((at,), encode(value))

    def _patch_dims(self, values: dict[str, int]) -> None:
        self._known_dims = values
        for (e, encode), places in self._dims.items():
            self.table.patch(tuple(places), encode(number(e, values)))
        for k, e, work in self._extents:
            self.table.resize(k, number(e, values), work)


def prepare(plan: ExecutionPlan, numbers: dict[int, float], values: dict[str, int]
            ) -> PreparedPlan | PreparedQueue | None:
    """The plan for many runs, where its device can do that and, on the CPU, every launch has iterations now.

    A table of rows is cut into pieces once, so that their extents must not be symbolic.
    """
    if plan.device.target.language == "opencl" and plan.items:
        from minigrad.engine.prepared_opencl import PreparedQueue

        return PreparedQueue(plan, plan.device)  # type: ignore[arg-type]
    if not isinstance(plan.device, CPU) or not plan.items:
        return None
    for item in plan.items:
        for row in item.rows:
            if number(row.extent, values) <= 0 or len(item.rows) > 1 and isinstance(row.extent, Expr):
                return None
    return PreparedPlan(plan, numbers, values)
