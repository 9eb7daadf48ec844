"""Values that a capture computes from constants alone: made once, and again when one of those buffers has other
contents.

A constant is a buffer that the captured function reads and neither changes nor gets as an argument. The made values are
known by the buffers that they were made of and their versions, which count how often they were overwritten in place.
"""
from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from weakref import WeakSet, ref

from minigrad.config import current
from minigrad.engine.hoisting import OncePart, with_packed_constants, without_constant_work
from minigrad.engine.plan import ExecutionPlan, run_plan
from minigrad.engine.storage import Owned
from minigrad.runtime.device import Buffer

if TYPE_CHECKING:
    from minigrad.capture.recorder import PlanStep, Recording

MOST_CHANGES = 3
"""The number of changes of a constant after which values made of it are no longer kept apart from the steps."""


@dataclass(slots=True, eq=False, weakref_slot=True)
class Derived:
    """Buffers `made` for registers `targets`, of what registers `sources` hold or held: see `OncePart`."""

    part: OncePart
    sources: tuple[int, ...]
    targets: tuple[int, ...]
    numbers: dict[int, float]
    buffers: tuple[ref[Buffer], ...]
    versions: tuple[int, ...]
    made: list[Buffer]
    changes: int = 0

    def is_current(self) -> bool:
        """True where the source buffers live and have the contents that they had."""
        for buffer, version in zip(self.buffers, self.versions, strict=True):
            held = buffer()
            if held is None or held.version != version or held.shared:
                return False
        return True

    def is_of(self, buffers: list[Buffer]) -> bool:
        """True where it was made of these buffers as they are now."""
        return self.is_current() and all([was() is b for was, b in zip(self.buffers, buffers, strict=True)])

    def refresh(self, registers: list[Any]) -> None:
        """Fills the targets in, made now if the sources are others than those that are known."""
        buffers = [registers[r] for r in self.sources]
        if not self.is_of(buffers):
            self.made = _made(self.part, buffers, self.numbers)
            self.buffers, self.versions = tuple(map(ref, buffers)), tuple([b.version for b in buffers])
            self.changes += 1
        for r, buffer in zip(self.targets, self.made, strict=True):
            registers[r] = buffer


Changed = tuple["PlanStep", "PlanStep", Derived]
"""The step as it reads now, the step as it was, and something that it reads."""
_all: WeakSet[Derived] = WeakSet()


def any_derived() -> bool:
    """True where some capture remembers a buffer's version."""
    return len(_all) > 0


def derived_bytes() -> int:
    """Bytes of all live values that were made of constants."""
    return sum({id(d.made[0]): d.part.nbytes for d in _all if d.made}.values())


def _made(part: OncePart, buffers: list[Buffer], numbers: dict[int, float]) -> list[Buffer]:
    """The values that some capture has made of these buffers as they are now, or new ones."""
    for d in _all:
        if d.part.key == part.key and d.is_of(buffers) and d.numbers == numbers:
            return d.made
    made = run_plan(part.plan, dict(zip(part.sources, buffers, strict=True)), numbers, {}, {})
    return [made[slot] for slot, _ in part.made]


def derive_constants(recording: Recording, fixed: dict[int, Buffer]) -> list[Changed]:
    """Takes work on `fixed` registers, given with their buffers, out of the steps: matrices in panels where kernels
    read those faster, and whatever launches read nothing else.

    `config.packed_mb` bounds the memory of all captures together; 0 leaves the steps as they are.
    """
    found: list[Changed] = []
    steps: list[Any] = recording.steps
    for at, step in enumerate(steps):
        plan, leaves = getattr(step, "plan", None), dict(getattr(step, "leaves", ()))
        constants = frozenset(k for k, r in leaves.items() if _stays(fixed.get(r)))
        room = (current().packed_mb << 20) - derived_bytes()
        if plan is None or room <= 0:
            continue
        plan, parts = _apart(plan, step, constants, room)
        if not parts:
            continue
        registers = {leaf: recording.size + k for k, leaf in enumerate(leaf for p in parts for _, leaf in p.made)}
        recording.size += len(registers)
        changed = step.reading(plan, list(registers.items()))
        recording.steps[at] = changed
        held: dict[int, Any] = {r: fixed.get(r) for r in leaves.values()}
        for part in parts:
            derived = _derive(part, leaves | registers, held, step.numbers)
            recording.constants.update(dict.fromkeys(derived.targets))
            held.update(zip(derived.targets, derived.made, strict=True))
            found.append((changed, step, derived))
    return found


def _stays(buffer: Buffer | None) -> bool:
    """True where nobody but a plan writes a buffer."""
    return isinstance(buffer, Owned) and not buffer.shared


def _apart(plan: ExecutionPlan, step: PlanStep, constants: frozenset[int], room: int
           ) -> tuple[ExecutionPlan, list[OncePart]]:
    """The plan of a step without the work that can be done once, and the parts that do that."""
    parts: list[OncePart] = []
    if constants and plan.device.target.language == "llvm":
        plan, parts = with_packed_constants(plan, constants, room)
    constants |= {leaf for p in parts for _, leaf in p.made}
    varying = frozenset([k for k, _ in step.counters]) | frozenset(step.keys)
    plan, hoisted = without_constant_work(plan, constants, varying, room - sum(p.nbytes for p in parts))
    return plan, parts if hoisted is None else [*parts, hoisted]


def _derive(part: OncePart, registers: dict[int, int], held: dict[int, Any], numbers: dict[int, float]) -> Derived:
    sources, targets = tuple([registers[k] for k in part.sources]), tuple([registers[k] for _, k in part.made])
    buffers = [held[r] for r in sources]
    made = _made(part, buffers, numbers)
    derived = Derived(part, sources, targets, numbers, tuple(map(ref, buffers)), tuple([b.version for b in buffers]),
                      made)
    _all.add(derived)
    return derived


def undone(recording: Recording, changed: Any, before: Any) -> None:
    """Puts back the step as it was before work on a constant was taken out of it."""
    recording.steps[recording.steps.index(changed)] = before
