"""Plans that read constants in a packed form: which kernels can, and the plans that pack."""
from __future__ import annotations

from dataclasses import replace

from minigrad.codegen.kernel import Kernel
from minigrad.codegen.panels import panelled
from minigrad.engine.hoisting import OncePart
from minigrad.engine.plan import ExecutionPlan, make_plan
from minigrad.errors import InternalError, present
from minigrad.expr import product
from minigrad.scheduler.schedule import Schedule, Slot, Step


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
