"""A Schedule on a device: launches in their final order, tables of equal updates, and the memory plan."""
from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from minigrad.codegen.ir.nodes import Function
from minigrad.codegen.ir.walk import touched
from minigrad.codegen.kernel.access import iterations
from minigrad.codegen.kernel.nodes import Kernel
from minigrad.config import current
from minigrad.engine.compile import Compiled, compile_kernels
from minigrad.engine.exchange import with_exchanges
from minigrad.engine.observe import is_timing, run_timed
from minigrad.engine.poison import apart, launch_watched
from minigrad.engine.stats import stats
from minigrad.engine.storage import allocate, arena
from minigrad.errors import present
from minigrad.expr import Index, bounds, evaluate, subs
from minigrad.runtime.device import Buffer, Device, Launch
from minigrad.runtime.host_calls import HostCall
from minigrad.scheduler.graph import Graph
from minigrad.scheduler.memory import Arena, plan_memory
from minigrad.scheduler.schedule import Schedule, Scheduling, Step
from minigrad.stores import Store, at_once

GROUPED_WORK = 500_000.0
"""Estimated nanoseconds of a launch up to which it may join a launch group: one launch more costs a few thousand of
them."""

GROUP_REACH, MOST_IN_GROUP = 8, 16
"""The number of launches that one may move over to join a launch group, and the most launches of one."""

GROUP_BYTES = 1 << 19
"""The most bytes that the launches of a launch group may write: none of it takes the memory of what another one
reads."""

LITTLE_MEMORY = 64 << 20
"""The most bytes of temporaries that are planned for the highest values of symbolic dims, whatever these are."""


@dataclass(slots=True)
class Row:
    """The arguments of one run of a program: slots (scratch ones last), scalars, dims and extent over symbolic dims."""

    values: tuple[int, ...]
    scalars: tuple[int | float, ...]
    dims: tuple[Index, ...]
    extent: Index
    work: float


@dataclass(slots=True)
class Item:
    """One launch: a program over one row, or over a table of rows (the one-launch optimizer).

    Neighbours with one number `group` are a launch group, unless it is negative: they do not depend on each other and
    run together where the device can. `how` is the policy's plan, `origins` the graph positions of the kernel's
    results. `function` is the loop IR, `kernel` what it is a `stage` of, which a plan from disk does not have.
    """

    name: str
    executable: Any
    rows: list[Row]
    reads: frozenset[int]
    writes: frozenset[int]
    flops: float = 0.0
    bytes: float = 0.0
    how: Any = None
    origins: tuple[int, ...] = ()
    function: Function | None = None
    group: int = -1
    kernel: Kernel | None = None
    stage: int = 0


@dataclass(slots=True)
class ExecutionPlan:
    """The launches of one realize, with their memory. `sizes` are bytes per slot, those of scratch last; `lines` says
    for items which lines of the user's program they came from, as far as a profile has seen them.

    `packs` are leaves that kernels would read in panels were they constants, of a plan from disk, which has no kernels.
    `read` are (slot, leaf position), `made` the slots of outputs that are no leaf's. `prepared` is the plan in the form
    that its device keeps from run to run (engine.prepared), from the second run on, where there is one; `single` then
    computes a Node without a graph, if it is a plan for one operation over realized values.
    """

    schedule: Schedule
    device: Device
    items: list[Item]
    sizes: list[Index]
    temporary: list[int]
    arenas: dict[tuple[int, ...], Arena] = field(default_factory=dict)
    flops: float = 0.0
    bytes: float = 0.0
    lines: dict[int, str] = field(default_factory=dict)
    runs: int = 0
    prepared: Any = None
    single: Callable[[Any], bool] | None = None
    packs: tuple[int, ...] = ()
    read: tuple[tuple[int, int], ...] = field(init=False)
    made: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        slots = self.schedule.slots
        self.read = tuple([(k, s.leaf) for k, s in enumerate(slots) if s.leaf is not None])
        self.made = tuple([k for k in dict.fromkeys(self.schedule.outputs) if slots[k].leaf is None])

    @property
    def launches(self) -> int:
        """The number of launches of a run."""
        return len(self.items)


def make_plan(schedule: Schedule, device: Device, load: bool = True) -> ExecutionPlan:
    """Compiles the schedule's kernels, unless `load` is false, and fixes order and memory."""
    return _plan_of(schedule, compile_kernels([s.kernel for s in schedule.steps], device, load), device)


def schedule_and_plan(graph: Graph, donated: frozenset[int], device: Device) -> ExecutionPlan:
    """`make_plan` of a graph: kernels are compiled while further ones are being scheduled."""
    kernels = Scheduling(graph, donated, device.target)
    compiled = compile_kernels(kernels, device)
    return _plan_of(kernels.schedule, compiled, device)


def _plan_of(schedule: Schedule, compiled: list[Compiled], device: Device) -> ExecutionPlan:
    sizes: list[Index] = [s.nbytes for s in schedule.slots]
    items: list[Item] = []
    for step, kernel in zip(schedule.steps, compiled, strict=True):
        items += step_items(step, kernel, sizes)
    kept = frozenset(schedule.outputs) | {k for k, s in enumerate(schedule.slots) if s.leaf is not None}
    items = with_exchanges(join_tables(items, kept, sizes), schedule.exchanges, device, call_item)
    items = join_groups(items, sizes)
    temporary = [k for k in range(len(sizes)) if k not in kept]
    return ExecutionPlan(schedule, device, items, sizes, temporary, flops=sum(i.flops for i in items),
                         bytes=sum(i.bytes for i in items))


def step_items(step: Step, kernel: Compiled, sizes: list[Index]) -> list[Item]:
    """One item per stage; scratch buffers become slots of their own."""
    dims = dict(zip(step.kernel.dims, step.dims, strict=True))
    scratch = []
    for dtype, count in kernel.staged.scratch:
        scratch.append(len(sizes))
        sizes.append(subs(count, dims) * dtype.itemsize)
    values = step.values + tuple(scratch)
    items = []
    amounts = [sum(map(iterations, stage.nests)) for stage in kernel.staged.stages]
    for k, (stage, executable, amount) in enumerate(zip(kernel.staged.stages, kernel.executables, amounts,
                                                        strict=True)):
        share = amount / max(sum(amounts), 1.0)
        work = (step.flops / 20 + step.bytes / 10) * share
        values_of_dims = tuple(subs(e, dims) for e in stage.dims)
        row = Row(values, step.scalars, values_of_dims, subs(stage.extent, dims), work)
        buffers = stage.function.buffers
        # All stages of a kernel have its parameters; each keeps alive only what it touches itself.
        used = touched(stage.function) if len(amounts) > 1 else {b.name for b in buffers}
        reads = frozenset(v for v, b in zip(values, buffers, strict=True) if b.mode != "out" and b.name in used)
        writes = frozenset(v for v, b in zip(values, buffers, strict=True) if b.mode != "in" and b.name in used)
        items.append(Item(stage.function.name, executable, [row], reads, writes, step.flops * share,
                          step.bytes * share, stage.plan, step.origins, stage.function, kernel=step.kernel, stage=k))
    return items


def call_item(call: HostCall, slots: tuple[int, ...]) -> Item:
    """A call of Python over the buffers of slots."""
    return Item(call.program.name, call, [Row(slots, (), (), 1, 0.0)], frozenset(slots), frozenset(slots))


def join_tables(items: list[Item], lasting: frozenset[int], sizes: list[Index]) -> list[Item]:
    """Launches of one program whose results nothing later uses become one launch over a table of rows.

    Each joins the last of its kind; it may move there only if nothing in between writes what it touches, and if what it
    reads, unless it is `lasting` (slots), need not be kept for it in more memory than it writes: the steps of an
    optimizer join, sums of large values do not.
    """
    last: dict[Function | None, int] = {}
    moved: dict[int, list[int]] = {}
    last_read: dict[int, int] = {}
    next_write: dict[int, int] = {}
    for k in reversed(range(len(items))):
        item, here = items[k], k
        sink = item.writes.isdisjoint(last_read) and item.writes.isdisjoint(next_write)
        goal = last.get(item.function)
        if sink and goal is None:
            last[item.function] = k
        elif sink and goal is not None:
            touched = item.reads | item.writes
            overwritten = any([next_write.get(s, len(items)) <= goal for s in touched])
            kept = [s for s in item.reads - lasting if last_read.get(s, k) < goal]
            if _bytes_of(kept, sizes) <= _bytes_of(item.writes, sizes) and not overwritten:
                moved.setdefault(goal, []).append(k)
                k = goal
        for s in item.reads:
            last_read[s] = max(last_read.get(s, k), k)
        next_write.update(dict.fromkeys(item.writes, here))
    gone = {k for ks in moved.values() for k in ks}
    result = []
    for k, item in enumerate(items):
        if k in gone:
            continue
        for j in sorted(moved.get(k, ())):
            item.rows = item.rows + items[j].rows
            item.reads, item.writes = item.reads | items[j].reads, item.writes | items[j].writes
            item.flops, item.bytes = item.flops + items[j].flops, item.bytes + items[j].bytes
        result.append(item)
    return result


def _bytes_of(slots: Iterable[int], sizes: list[Index]) -> int:
    """Sizes over symbolic dims count at their bounds."""
    return sum([bounds(sizes[s])[1] for s in slots])


def join_groups(items: list[Item], sizes: list[Index]) -> list[Item]:
    """Makes launch groups of small launches that read a common operand and do not depend on each other.

    The products of q, k and v with one activation are such. Each launch moves up to the last one that it can join.
    """
    placed: list[Item] = []
    groups: list[list[Item]] = []
    for item in items:
        at = len(placed)
        for p in reversed(range(max(len(placed) - GROUP_REACH, 0), len(placed))):
            other = placed[p]
            members = groups[other.group] if other.group >= 0 else [other]
            if is_small(item) and may_join(item, members, sizes):
                if other.group < 0:
                    other.group = len(groups)
                    groups.append(members)
                item.group = other.group
                members.append(item)
                at = p + 1
                break
            if depend(item, other):
                break
        placed.insert(at, item)
    return placed


def may_join(item: Item, members: list[Item], sizes: list[Index]) -> bool:
    """True where `item` reads what one of the members reads, and all are small, write little and do not depend on
    it."""
    if len(members) >= MOST_IN_GROUP or not any(item.reads & m.reads for m in members):
        return False
    written = _bytes_of([s for m in (item, *members) for s in m.writes], sizes)
    return written <= GROUP_BYTES and all(is_small(m) and not depend(item, m) for m in members)


def depend(a: Item, b: Item) -> bool:
    """True where one of them writes what the other one touches."""
    return bool(a.writes & (b.reads | b.writes) or b.writes & a.reads)


def is_small(item: Item) -> bool:
    """True where an item is short enough to gain by sharing a launch, and its extent is known beforehand."""
    return len(item.rows) == 1 and isinstance(item.rows[0].extent, int) and 0 < item.rows[0].work <= GROUPED_WORK


def number(e: Index, values: dict[str, int]) -> int:
    """The value of an index for these values of symbolic dims."""
    return e if type(e) is int else evaluate(e, values)


def bucket(values: dict[str, int], highest: dict[str, int]) -> dict[str, int]:
    """Symbolic dims rounded up, so that there are only a few memory plans while a context grows."""
    return {n: min(1 << max(v - 1, 0).bit_length(), max(highest.get(n, v), v)) for n, v in values.items()}


def arena_for(plan: ExecutionPlan, values: dict[str, int], highest: dict[str, int]) -> Arena:
    """Offsets of the temporaries for these values of the symbolic dims, rounded up: to the highest ones where that is
    little memory, so that there is one memory plan for all."""
    rounded = bucket(values, highest) if values else values
    key = tuple(rounded.values())
    found = plan.arenas.get(key)
    if found is None:
        most = {n: max(v, highest.get(n, v)) for n, v in rounded.items()}
        found = _arena(plan, most)
        if found.nbytes > LITTLE_MEMORY and most != rounded:
            found = _arena(plan, rounded)
        plan.arenas[key] = found
    return found


def _arena(plan: ExecutionPlan, values: dict[str, int]) -> Arena:
    """The memory plan for these values, made once."""
    key = tuple(values.values())
    found = plan.arenas.get(key)
    if found is None:
        sizes = {k: number(plan.sizes[k], values) for k in plan.temporary}
        found = plan.arenas[key] = apart(sizes) if current().poison else plan_memory(sizes, uses_of(plan.items))
    return found


def uses_of(items: list[Item]) -> list[tuple[int, ...]]:
    """The slots that are touched at each item: those of a launch group at every one of its items."""
    together: dict[int, set[int]] = {}
    for item in items:
        if item.group >= 0:
            together.setdefault(item.group, set()).update(item.reads, item.writes)
    return [tuple(item.reads | item.writes if item.group < 0 else together[item.group]) for item in items]


HandOut = Callable[[list[Any]], list[Store]]
"""A function that gives the stores to make at once with a plan's last launch, for the buffers by slot."""


def run_plan(plan: ExecutionPlan, leaves: dict[int, Buffer], numbers: dict[int, float], values: dict[str, int],
             highest: dict[str, int], hand_out: HandOut | None = None) -> list[Buffer]:
    """Launches everything; gives the buffer of every slot that outlives the run, by slot (others None).

    `leaves` are buffers by leaf position, `numbers` the values of lifted scalars by position, `values` symbolic dims.
    """
    device = plan.device
    layout = arena_for(plan, values, highest)
    poisoned = current().poison
    memory = None
    if layout.nbytes:
        memory = allocate(device, layout.nbytes) if poisoned else arena(device, layout.nbytes)
    buffers = lasting_buffers(plan, leaves, values)
    for k, offset in layout.offsets.items():
        within = present(memory, "[plan] expected memory for temporaries")
        buffers[k] = Buffer(device, number(plan.sizes[k], values), within.handle, within.offset + offset, within)
    launches = launches_of(plan, buffers, numbers, values)
    stores = [] if hand_out is None else hand_out(buffers)
    if not launches:
        at_once(stores)
        return buffers
    if is_timing():
        run_timed(plan, launches, buffers, stores)
    elif poisoned:
        launch_watched(device, launches)
        at_once(stores)
    else:
        device.launch_and(launches, stores)
    count_run(plan, len(launches))
    return buffers


def lasting_buffers(plan: ExecutionPlan, leaves: dict[int, Buffer], values: dict[str, int]) -> list[Any]:
    """By slot: the leaves' buffers, and new ones for what else outlives the run; None for the rest."""
    buffers: list[Any] = [None] * len(plan.sizes)
    for k, leaf in plan.read:
        buffers[k] = leaves[leaf]
    for k in plan.made:
        buffers[k] = allocate(plan.device, number(plan.sizes[k], values))
    return buffers


def launches_of(plan: ExecutionPlan, buffers: list[Any], numbers: dict[int, float], values: dict[str, int],
                ) -> list[Launch]:
    """The plan's launches over these buffers by slot; those without iterations are left out."""
    launches = []
    for at, item in enumerate(plan.items):
        rows = []
        for row in item.rows:
            extent = number(row.extent, values)
            if extent > 0:
                rows.append(((*[buffers[v] for v in row.values],
                              *[numbers[s] if type(s) is int else s for s in row.scalars],
                              *[number(d, values) for d in row.dims]), extent))
        if not rows:
            continue
        work = sum(r.work for r in item.rows)
        if len(rows) == 1:
            launches.append(Launch(item.executable, rows[0][0], rows[0][1], (), work, at, item.group))
        else:
            launches.append(Launch(item.executable, (), 0, tuple(rows), work, at, item.group))
    return launches


def count_run(plan: ExecutionPlan, launches: int) -> None:
    """Adds one run to the statistics."""
    stats.flops += plan.flops
    stats.bytes += plan.bytes
    stats.launches += launches
    stats.calls += 1
