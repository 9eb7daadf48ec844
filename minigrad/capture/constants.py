"""Constants of a capture in packed form: made once, and again when their buffer holds something else.

A constant is a buffer that the captured function reads and neither changes nor gets as an argument. What is packed is
known by the buffer and its version, which counts how often it was overwritten in place.
"""
from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from weakref import WeakSet, ref

from minigrad.config import current
from minigrad.engine.packing import Packing, with_packed_constants
from minigrad.engine.plan import run_plan
from minigrad.engine.storage import Owned
from minigrad.runtime.device import Buffer

if TYPE_CHECKING:
    from minigrad.capture.recorder import PlanStep, Recording

MOST_CHANGES = 3
"""A constant that changes more often is no longer packed."""


@dataclass(slots=True, eq=False, weakref_slot=True)
class PackedConstant:
    """The packed form of what register `source` holds, for register `target`."""

    source: int
    target: int
    packing: Packing
    buffer: ref[Buffer]
    version: int
    packed: Buffer
    changes: int = 0

    def is_current(self) -> bool:
        """Whether the buffer that was packed lives and holds what it held."""
        buffer = self.buffer()
        return buffer is not None and buffer.version == self.version

    def refresh(self, buffer: Buffer) -> Buffer:
        """The packed form of `buffer`, made now if it is not the one that is known."""
        if self.buffer() is not buffer or buffer.version != self.version:
            self.packed = packed_form(self.packing, buffer)
            self.buffer, self.version = ref(buffer), buffer.version
            self.changes += 1
        return self.packed


_all: WeakSet[PackedConstant] = WeakSet()


def any_packed() -> bool:
    """Whether anybody remembers a buffer's version."""
    return len(_all) > 0


def packed_form(packing: Packing, buffer: Buffer) -> Buffer:
    """What some capture has packed of this buffer as it is now, or a new one."""
    for p in _all:
        if p.packing.kernel == packing.kernel and p.buffer() is buffer and p.version == buffer.version:
            return p.packed
    return run_plan(packing.plan, {0: buffer}, {}, {}, {})[0]


def packed_bytes() -> int:
    """Memory of all packed constants that live."""
    return sum({id(p.packed): p.packing.nbytes for p in _all}.values())


def pack_constants(recording: Recording, fixed: dict[int, Buffer]) -> list[tuple[PlanStep, PlanStep, PackedConstant]]:
    """Lets the steps read packed forms of `fixed` registers, given with their buffers, where that is faster.

    Returns (the step as it reads now, the step as it was, the constant) of each. `config.packed_mb` bounds the memory
    of all captures together; 0 packs nothing.
    """
    found = []
    for at, step in enumerate(recording.steps):
        leaves = dict(getattr(step, "leaves", ()))
        constants = frozenset(k for k, r in leaves.items() if isinstance(fixed.get(r), Owned))
        room = (current().packed_mb << 20) - packed_bytes()
        if not constants or room <= 0 or step.plan.device.target.language != "llvm":  # type: ignore[union-attr]
            continue
        plan, packings = with_packed_constants(step.plan, constants, room)  # type: ignore[union-attr]
        if not packings:
            continue
        changed = step.reading(plan, [(p.packed, recording.size + k) for k, p in enumerate(packings)])  # type: ignore
        recording.steps[at] = changed
        for p in packings:
            source = leaves[p.source]
            buffer = fixed[source]
            made = PackedConstant(source, recording.size, p, ref(buffer), buffer.version, packed_form(p, buffer))
            recording.constants[recording.size] = made.packed
            recording.size += 1
            _all.add(made)
            found.append((changed, step, made))
    return found  # type: ignore[return-value]


def unpacked(recording: Recording, changed: Any, before: Any) -> None:
    """Puts the step that reads the constants as they are back."""
    recording.steps[recording.steps.index(changed)] = before
