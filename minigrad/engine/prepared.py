"""A plan whose launches its device keeps: a run writes only the arguments that changed since the last one.

Memory that comes back from the pool mostly lies where it lay before, so that a replay changes a few words.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any
from weakref import ref

from minigrad.config import Config, current
from minigrad.engine.observe import dry_runs, is_timing, observers
from minigrad.engine.plan import (
    ExecutionPlan,
    HandOut,
    arena_for,
    count_run,
    lasting_buffers,
    launches_of,
    number,
    run_plan,
)
from minigrad.engine.stats import stats
from minigrad.engine.storage import allocate, arena, arenas
from minigrad.expr import Expr
from minigrad.ops.node import Node
from minigrad.runtime.device import Buffer, Kept
from minigrad.runtime.host import address_of
from minigrad.scheduler.memory import Arena
from minigrad.stores import Store

ARENA = -1
"""The number that stands for the memory of which all temporaries are parts; other buffers have the numbers of their
slots."""


class PreparedPlan:
    """One plan for many runs. `run` gives what `run_plan` does, without buffers for temporaries."""

    def __init__(self, plan: ExecutionPlan, kept: Kept):
        self.plan, self.kept, self._launches = plan, kept, plan.launches
        self._slots: dict[int, list[Any]] = {}
        self._numbers: dict[int, list[Any]] = {}
        self._dims: dict[Expr, list[Any]] = {}
        self._extents: dict[Expr, list[int]] = {}
        for k, row in enumerate([row for item in plan.items for row in item.rows]):
            self._find_arguments(k, row)
        temporary = set(plan.temporary)
        self._lasting = {k: p for k, p in self._slots.items() if k not in temporary}
        self._temporary = {k: p for k, p in self._slots.items() if k in temporary}
        self.lasting = tuple(self._lasting)
        """The slots that `run` gives addresses for, in order."""
        self._places: tuple[tuple[int, ...], list[Any]] = (), []
        """Slots and the places of each: for `run_patched`."""
        self._known_numbers: dict[int, float] = {}
        self._known_dims: dict[str, int] | None = None
        self._layout: tuple[Arena | None, int] = None, 0
        self._arena: Callable[[], Buffer | None] = type(None)
        """The memory that the temporaries were in last."""
        self._varies = bool(self._temporary or self._numbers or self._dims or self._extents)
        self._last: tuple[tuple[int, ...], list[int]] = (), []
        """Slots and addresses that were written last."""

    def _find_arguments(self, k: int, row: Any) -> None:
        """Notes where each slot, number, dim and symbolic extent of a row stands."""
        place = self.kept.place
        for at, slot in enumerate(row.values):
            self._slots.setdefault(slot, []).append(place(k, at))
        for at, scalar in enumerate(row.scalars, len(row.values)):
            if type(scalar) is int:
                self._numbers.setdefault(scalar, []).append(place(k, at))
        for at, dim in enumerate(row.dims, len(row.values) + len(row.scalars)):
            if isinstance(dim, Expr):
                self._dims.setdefault(dim, []).append(place(k, at))
        if isinstance(row.extent, Expr):
            self._extents.setdefault(row.extent, []).append(k)

    def runs_with(self, values: dict[str, int]) -> bool:
        """True where every launch has iterations for these values of the symbolic dims."""
        return all([number(e, values) > 0 for e in self._extents])

    def run(self, leaves: dict[int, Buffer], numbers: dict[int, float], values: dict[str, int],
            highest: dict[str, int], hand_out: HandOut | None = None) -> list[Any] | None:
        """Buffers by slot like `run_plan`; None, with nothing done, where some launch has no iterations."""
        if self._extents and not self.runs_with(values):
            return None
        buffers = lasting_buffers(self.plan, leaves, values)
        self.run_patched(self.lasting, [buffers[k].address or address_of(buffers[k]) for k in self._lasting],
                         numbers, values, highest, 0, () if hand_out is None else hand_out(buffers))
        return buffers

    def run_patched(self, slots: tuple[int, ...], addresses: list[int], numbers: dict[int, float],
                    values: dict[str, int], highest: dict[str, int], threads: int = 0, stores: Sequence[Store] = (),
                    ) -> None:
        """Runs with these lasting slots at these addresses, and those that are not named where they were last time;
        the stores are made at once with the last launch.

        `threads` are those of the configuration, where the caller has looked. What was written last is noted when all
        of it is, and forgotten before anything is written.
        """
        memory, kept = None, self.kept
        with kept.lock:
            if self._last[0] is not slots or addresses != self._last[1]:
                if slots is not self._places[0]:
                    self._places = slots, [self._lasting.get(k, ()) for k in slots]
                self._last = (), []
                kept.set_addresses(self._places[1], addresses)
                self._last = slots, addresses
            if self._varies:
                memory = self._patch_others(numbers, values, highest)
            kept.run(threads, stores)
        del memory  # nobody could take it from us meanwhile
        count_run(self.plan, self._launches)

    @property
    def has_run(self) -> bool:
        """True where the last run was in this form, so that slots that are not named are where they were in it."""
        return bool(self._last[0])

    def forget(self) -> None:
        """Forgets where slots were: the plan runs in another form."""
        self._last = (), []

    def address(self, slot: int) -> int:
        """The address of a lasting slot in the last run; 0 for one that no argument names."""
        places = self._lasting.get(slot)
        return self.kept.address(places[0]) if places else 0

    def _patch_others(self, numbers: dict[int, float], values: dict[str, int], highest: dict[str, int]
                      ) -> Buffer | None:
        """Everything but lasting slots; returns the memory that temporaries are in."""
        memory: Buffer | None = None
        if self._temporary:
            memory = arenas.get(self.plan.device.name)
            if memory is None or memory is not self._arena() or values is not self._known_dims:
                memory = self._patch_temporaries(values, highest)
        for k, places in self._numbers.items():
            value = numbers[k]
            if self._known_numbers.get(k) is not value:  # the same object: -0.0 equals 0.0, NaN does not equal itself
                self._known_numbers.pop(k, None)
                self.kept.set_number(places, value)
                self._known_numbers[k] = value
        if values is not self._known_dims and values != self._known_dims:
            self._known_dims = None
            for e, places in self._dims.items():
                self.kept.set_number(places, number(e, values))
            for e, rows in self._extents.items():
                extent = number(e, values)
                for k in rows:
                    self.kept.set_extent(k, extent)
            self._known_dims = values
        return memory

    def _patch_temporaries(self, values: dict[str, int], highest: dict[str, int]) -> Buffer | None:
        layout = arena_for(self.plan, values, highest)
        if not layout.nbytes:
            return None
        memory = arena(self.plan.device, layout.nbytes)
        base = memory.address or address_of(memory)
        if self._layout[0] is not layout or self._layout[1] != base:
            self._arena, self._layout = type(None), (None, 0)
            self.kept.set_addresses(list(self._temporary.values()), [base + layout.offsets[k] for k in self._temporary])
            self._layout = layout, base
        self._arena = ref(memory)
        return memory


def prepare(plan: ExecutionPlan, numbers: dict[int, float], values: dict[str, int]) -> PreparedPlan | None:
    """The plan for many runs, where its device keeps launches and every one of them has iterations now.

    A table of rows is cut into pieces once, so that their extents must not be symbolic.
    """
    rows = [row for item in plan.items for row in item.rows]
    if not rows or current().poison or any([number(row.extent, values) <= 0 for row in rows]) or \
            any([isinstance(row.extent, Expr) for item in plan.items if len(item.rows) > 1 for row in item.rows]):
        return None
    temporary = set(plan.temporary)
    memories = [tuple([ARENA if slot in temporary else slot for slot in row.values]) for row in rows]
    stand_in = Buffer(plan.device, 0, None, 0, None, 1)  # addresses are written before the first run
    kept = plan.device.keep(launches_of(plan, [stand_in] * len(plan.sizes), numbers, values), memories)
    return None if kept is None else PreparedPlan(plan, kept)


def run_as(prepared: PreparedPlan | None, plan: ExecutionPlan, leaves: dict[int, Buffer], numbers: dict[int, float],
           values: dict[str, int], highest: dict[str, int], hand_out: HandOut | None = None) -> list[Any]:
    """`run_plan` of a plan, in its prepared form where there is one that can and nobody times launches."""
    if prepared is not None and not (observers and is_timing()):
        buffers = prepared.run(leaves, numbers, values, highest, hand_out)
        if buffers is not None:
            return buffers
    if prepared is not None:
        prepared.forget()
    return run_plan(plan, leaves, numbers, values, highest, hand_out)


# One operation over realized values, realized again and again
#
#     for batch in batches: y = (batch @ w).realize()
#
# The graph of such a Node is the Node and its inputs. None is numbered, and no key is made, which took half of what the
# host did for a product of small matrices.


def single(plan: ExecutionPlan, node: Node, settings: Config) -> Callable[[Node], bool]:
    """A function that runs a prepared plan for a Node of this one's Kind, of whose inputs as many are the same; it
    returns False, with nothing done, where it cannot."""
    prepared: PreparedPlan = plan.prepared
    inputs = list(dict.fromkeys(node.inputs))
    count, pattern = len(inputs), _pattern(node)
    repeats = count < len(pattern)
    places = {**dict(plan.read), plan.made[0]: count}  # leaves are numbered in the order of inputs
    slots, order = prepared.lasting, [places[k] for k in prepared.lasting]
    device, nbytes, planning = plan.device, number(plan.sizes[plan.made[0]], {}), settings.planning
    none: dict[Any, Any] = {}

    def run(node: Node) -> bool:
        if observers or dry_runs:
            return False
        now = current()
        if now is not settings and (now.planning != planning or now.debug):
            return False
        inputs: Any = node.inputs
        if len({*inputs}) != count:
            return False
        if repeats:
            if _pattern(node) != pattern:
                return False
            inputs = dict.fromkeys(inputs)
        held = [i.storage for i in inputs]
        if None in held:
            return False
        start = perf_counter()
        made = allocate(device, nbytes)
        held.append(made)
        addresses = [b.address or address_of(b) for b in held]
        prepared.run_patched(slots, [addresses[k] for k in order], none, none, none, now.threads)
        node.storage = made
        stats.nodes += count + 1
        stats.plan_hits += 1
        stats.launch_s += perf_counter() - start
        return True

    return run


def _pattern(node: Node) -> list[int]:
    """The position among the inputs where each input stands first: equal for Nodes that read the same ones twice."""
    return list(map(node.inputs.index, node.inputs))
