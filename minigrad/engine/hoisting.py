"""Work on constants alone, taken out of a plan: done once, and again when a constant holds something else.

    w = scale * weight          reads constants only: once      s = rows(x)
    y = x @ w            ->     w = scale * weight              y = s @ w     w is a leaf like any other

A copy of a constant in panels, where kernels read those faster, is such work too.
"""
from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace

from minigrad.codegen.kernel.nodes import Kernel
from minigrad.codegen.panels import panelled
from minigrad.engine.plan import ExecutionPlan, Item, make_plan
from minigrad.errors import InternalError, present
from minigrad.expr import product
from minigrad.runtime.host_calls import HostCall
from minigrad.scheduler.schedule import Schedule, Slot, Step


@dataclass(frozen=True, slots=True, eq=False)
class OncePart:
    """The part of a plan that is run once. Its own `plan` reads its leaves `sources` and nothing else; `made` are (slot
    of `plan`, leaf position in the plan that is left). Parts with equal keys compute the same from equal buffers and
    numbers."""

    sources: tuple[int, ...]
    made: tuple[tuple[int, int], ...]
    plan: ExecutionPlan
    nbytes: int
    key: Hashable


def without_constant_work(plan: ExecutionPlan, constants: frozenset[int], varying: frozenset[int], room: int
                          ) -> tuple[ExecutionPlan, OncePart | None]:
    """The plan less the launches that read constant leaves (positions) only, and the part that makes their results.

    Results take memory of their own from then on, at most `room` bytes: where they would take more, the largest ones
    stay in the plan. `varying` are positions of run-time numbers that differ from run to run. Leaves of results have
    negative positions. Outputs of the plan are always made anew.
    """
    once = _Once(plan, constants, varying)
    chosen = once.choose(room)
    if not chosen:
        return plan, None
    kept = once.results(chosen)
    lowest = min([0, *[leaf for _, leaf in plan.read]])
    leaf_of = {slot: lowest - 1 - k for k, slot in enumerate(kept)}
    rest = [k for k in range(len(plan.items)) if k not in chosen]
    slots = [*plan.schedule.slots, *map(Slot, plan.sizes[len(plan.schedule.slots):])]  # scratch has a slot as well
    changed = tuple([replace(s, leaf=leaf_of[k]) if k in leaf_of else s for k, s in enumerate(slots)])
    left = _plan_of(plan, rest, changed, plan.schedule.outputs)
    read = {s for k in chosen for s in plan.items[k].reads}
    sources = tuple([leaf for slot, leaf in plan.read if slot in read])
    part = _plan_of(plan, sorted(chosen), tuple([s if k in read else Slot(s.nbytes) for k, s in enumerate(slots)]),
                    tuple(kept))
    nbytes = sum(once.bytes_of(s) for s in kept)
    return left, OncePart(sources, tuple(leaf_of.items()), part, nbytes, (id(plan), constants, tuple(sorted(chosen))))


def _plan_of(plan: ExecutionPlan, which: list[int], slots: tuple[Slot, ...], outputs: tuple[int, ...]
             ) -> ExecutionPlan:
    """The launches `which` of a plan as a plan; it has no kernels any more."""
    items = [plan.items[k] for k in which]
    used = {s for item in items for s in item.reads | item.writes}
    donated = plan.schedule.donated if outputs == plan.schedule.outputs else frozenset()
    schedule = replace(plan.schedule, steps=(), slots=slots, outputs=outputs, donated=donated)
    lasting = set(outputs) | {k for k, s in enumerate(slots) if s.leaf is not None}
    items = [_without_strangers(item, used | lasting) for item in items]
    return ExecutionPlan(schedule, plan.device, items, plan.sizes, [k for k in plan.temporary if k in used - lasting],
                         flops=sum(i.flops for i in items), bytes=sum(i.bytes for i in items),
                         lines={new: plan.lines[old] for new, old in enumerate(which) if old in plan.lines})


def _without_strangers(item: Item, known: set[int]) -> Item:
    """The launch without arguments that the plan does not have: each stage of a kernel takes all of the kernel's
    buffers, and touches some."""
    if all([v in known for row in item.rows for v in row.values]):
        return item
    other = min(item.writes)
    rows = [replace(row, values=tuple([v if v in known else other for v in row.values])) for row in item.rows]
    return replace(item, rows=rows)


class _Once:
    """Finds the launches of a plan that depend on constants alone."""

    def __init__(self, plan: ExecutionPlan, constants: frozenset[int], varying: frozenset[int]):
        self.plan, self.varying = plan, varying
        self.fixed = {slot for slot, leaf in plan.read if leaf in constants}
        self.lasting = {slot for slot, _ in plan.read} | set(plan.schedule.outputs)

    def choose(self, room: int) -> set[int]:
        """The numbers of the launches to run once, chosen so that their results fit into `room` bytes."""
        barred: set[int] = set()
        while True:
            chosen = self._closed(barred)
            sizes = {slot: self.bytes_of(slot) for slot in self.results(chosen)}
            if sum(sizes.values()) <= room:
                return chosen
            largest = max(sizes, key=lambda slot: sizes[slot])
            barred |= {k for k in chosen if largest in self.plan.items[k].writes}

    def results(self, chosen: set[int]) -> list[int]:
        """Slots that the chosen launches write and others read."""
        items = self.plan.items
        read = {s for k, item in enumerate(items) if k not in chosen for s in item.reads}
        return sorted({s for k in chosen for s in items[k].writes} & read)

    def bytes_of(self, slot: int) -> int:
        nbytes = self.plan.sizes[slot]
        if not isinstance(nbytes, int):
            raise InternalError(f"[hoist] expected a value of a known size, got {nbytes} bytes")
        return nbytes

    def _closed(self, barred: set[int]) -> set[int]:
        """Launches over constants and each other's results, which nobody else writes or has read before, but for those
        `barred`."""
        items = self.plan.items
        while True:
            known, chosen = set(self.fixed), set()
            for k, item in enumerate(items):
                if k not in barred and self._is_settled(item) and item.reads <= known | item.writes:
                    chosen.add(k)
                    known |= item.writes
            others = {s for k, item in enumerate(items) if k not in chosen for s in item.writes}
            shared: set[int] = set()
            earlier: set[int] = set()
            for k, item in enumerate(items):
                if k not in chosen:
                    earlier |= item.reads
                elif item.writes & (others | earlier):  # else what stays would read a later value than before
                    shared.add(k)
            if not shared:
                return chosen
            barred = barred | shared

    def _is_settled(self, item: Item) -> bool:
        """True where nothing but buffers decides what a launch does, and nobody outside sees what it writes."""
        if item.writes & self.lasting or not all([isinstance(self.plan.sizes[s], int) for s in item.writes]):
            return False
        if isinstance(item.executable, HostCall):
            return False
        return all([isinstance(e, int) for row in item.rows for e in (row.extent, *row.dims)]) and \
            not any([type(s) is int and s in self.varying for row in item.rows for s in row.scalars])


# Constants in panels

def packable(plan: ExecutionPlan) -> tuple[int, ...]:
    """Leaves (positions) that kernels of the plan would read in packed form if they were constants."""
    if plan.device.target.language != "llvm":
        return ()
    slots, found = plan.schedule.slots, set[int]()
    known: dict[tuple[Kernel, str], bool] = {}
    for step in plan.schedule.steps:
        for param, slot in zip(step.kernel.params, step.values, strict=True):
            leaf, key = slots[slot].leaf, (step.kernel, param.name)
            if leaf is None or leaf in plan.schedule.donated:
                continue
            if key not in known:
                known[key] = panelled(step.kernel, frozenset({param.name}), plan.device.target) is not None
            if known[key]:
                found.add(leaf)
    return tuple(sorted(found))


def with_packed_constants(plan: ExecutionPlan, constants: frozenset[int], room: int
                          ) -> tuple[ExecutionPlan, list[OncePart]]:
    """The plan with constant leaves (positions) in packed form where kernels gain by that, within `room` bytes.

    Leaves of packed forms have negative positions. A plan from disk has no kernels any more, and stays as it is: where
    it says that it `packs`, a capture has it made anew (`compiled.find_plan`).
    """
    device, slots = plan.device, list(plan.schedule.slots)
    slot_of = {slot.leaf: k for k, slot in enumerate(slots) if slot.leaf is not None}
    fixed = {slot_of[leaf] for leaf in constants if leaf in slot_of}
    found: list[OncePart] = []
    known: dict[tuple, int] = {}
    steps: list[Step] = []
    for step in plan.schedule.steps:
        names = frozenset(p.name for p, slot in zip(step.kernel.params, step.values, strict=True) if slot in fixed)
        made = panelled(step.kernel, names, device.target) if names else None
        if made is None:
            steps.append(step)
            continue
        at = next(k for k, p in enumerate(step.kernel.params) if p.name == made.param)
        source = present(slots[step.values[at]].leaf, "[pack] expected a leaf as packed operand")
        key = source, made.pack
        if key not in known:
            out = made.pack.params[0]
            nbytes = product(out.shape) * out.dtype.itemsize
            if not isinstance(nbytes, int):
                raise InternalError(f"[pack] expected panels of a known size, got {nbytes} bytes")
            if nbytes > room:
                steps.append(step)
                continue
            room -= nbytes
            pack = Schedule((Step(made.pack, (0, 1), (), (), 0.0, 2.0 * nbytes),), (Slot(nbytes), Slot(nbytes, source)),
                            (0,), frozenset())
            leaf = -1 - len(found)
            found.append(OncePart((source,), ((0, leaf),), make_plan(pack, device), nbytes, made.pack))
            known[key] = len(slots)
            slots.append(Slot(nbytes, leaf))
        values = tuple(known[key] if k == at else v for k, v in enumerate(step.values))
        steps.append(replace(step, kernel=made.kernel, values=values))
    if not found:
        return plan, []
    changed = make_plan(replace(plan.schedule, steps=tuple(steps), slots=tuple(slots)), device)
    changed.lines.update(plan.lines)
    return changed, found
