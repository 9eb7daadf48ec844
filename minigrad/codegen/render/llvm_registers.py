"""Register buffers in LLVM IR: each slot is the value that it holds, passed through loops and branches as phis."""
from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from minigrad.codegen.ir.nodes import Alloc, Stmt, Store
from minigrad.codegen.ir.walk import statements
from minigrad.codegen.render.language import Storage
from minigrad.codegen.render.llvm_text import register_type
from minigrad.codegen.render.refs import Memory, OpenLoop, Ref, Scope
from minigrad.errors import present
from minigrad.target import MARGIN, MARGINS, Target

if TYPE_CHECKING:
    from minigrad.codegen.render.emitter import Emitter

POISON = "poison"


class LlvmStorage(Storage):
    """The values of slots are kept with the scope (`Scope.held`); one that holds nothing yet is poison, which nobody
    uses.

    In a scope a value counts as defined there, wherever it comes from: values computed from it stay beside it. Else
    everything that a loop computes from registers that it does not change would be computed before it, and take
    registers there. `scratch`: the bytes of a worker's own memory that are taken.
    """

    def __init__(self, out: Emitter):
        self.out, self.scratch = out, 0

    def read_slot(self, memory: Memory, slot: int) -> Ref:
        scopes, name = self.out.scopes, memory.slots[slot]
        held, level = scopes[-1].held, len(scopes) - 1
        ref = held.get(name)
        if ref is None:
            return Ref(POISON, memory.dtype, memory.lanes, level)
        if ref.level != level:
            ref = held[name] = Ref(ref.text, ref.dtype, ref.lanes, level)
        return ref

    def write_slot(self, memory: Memory, slot: int, value: Ref) -> None:
        memory.version += 1
        scopes = self.out.scopes
        level = len(scopes) - 1
        if value.level != level or value.literal is not None:
            value = Ref(value.text, value.dtype, value.lanes, level)
        scopes[-1].held[memory.slots[slot]] = value
        if memory.version % len(memory.slots) == 0 and is_big(self.out.target, len(memory.slots)):
            # One step of the sum is done: no registers for loads of the next ones before it, or of its own after it.
            self.out.line('call void asm sideeffect "", "~{memory}"()')
            self.out.epoch += 1

    def allocate(self, s: Alloc) -> Memory:
        if s.scope == "register":
            memory = Memory(s.name, s.dtype, s.size, "register", "", self.out.width)
            memory.slots = tuple([self.out.language.name(s.name) for _ in range(s.size)])
            return memory
        margin = MARGIN if MARGINS in self.out.target.features else 0
        at = self.scratch + margin
        text = self.out.pure(f"getelementptr i8, ptr %scratch., i64 {at}", s.dtype, 1, (), s.name).text
        self.scratch = at + margin + -(-s.size * self.out.width * s.dtype.itemsize // 64) * 64
        return Memory(s.name, s.dtype, s.size, "scratch", text, self.out.width)


def is_big(target: Target, tile: int) -> bool:
    """True where so many sums take most of the vector registers."""
    return 2 * tile > target.registers and "sse" in target.features


def stored_registers(out: Emitter, body: tuple[Stmt, ...]) -> list[Memory]:
    """The register buffers around the body of a loop that it may store to."""
    registers = [m for m in out.memory.values() if m.slots]
    if not registers:
        return registers
    stored = {s.buffer for s in statements(body) if type(s) is Store}
    return [m for m in registers if m.name in stored]


def carry(out: Emitter, stored: Sequence[Memory]) -> tuple[tuple[str, Ref], ...]:
    """Their slots, each with a name for what it holds when an iteration begins."""
    level = len(out.scopes) - 1
    slots = tuple([(slot, Ref(out.language.name(m.name), m.dtype, m.lanes, level)) for m in stored for slot in m.slots])
    out.scope.held.update(slots)
    return slots


def carried(out: Emitter, state: OpenLoop, inner: Scope, indent: str) -> list[str]:
    """The lines that say so: before the first iteration what the slots hold here, later what the last one left."""
    held, here, last, label = out.scope.held, out.scope.label, inner.held, inner.label
    return [f"{indent}{x.text} = phi {register_type(x.dtype, x.lanes)} "
            f"[ {held[slot].text if slot in held else POISON}, %{here} ], [ {last[slot].text}, %{label} ]"
            for slot, x in state.carried]


def after_loop(out: Emitter, state: OpenLoop, inner: Scope, before: str) -> None:
    """Sets the values of slots after a loop: as after its last iteration, or as `before`, where it may not run."""
    held = out.scope.held
    for slot, x in state.carried:
        last = inner.held[slot]
        if state.some is None:
            held[slot] = last
        elif last is not x:
            join(out, slot, last, inner.label, held.get(slot), before)


def after_branch(out: Emitter, then: Scope, otherwise: Scope | None, before: str) -> None:
    """Sets the values of slots after a branch."""
    held = out.scope.held
    no, label = (held, before) if otherwise is None else (otherwise.held, otherwise.label)
    for slot in {**then.held, **no}:
        x, y = then.held.get(slot), no.get(slot)
        if x is not y:
            join(out, slot, x, then.label, y, label)


def join(out: Emitter, slot: str, x: Ref | None, x_label: str, y: Ref | None, y_label: str) -> None:
    """A slot holds x if control comes from one block, y from the other."""
    some = present(x or y, "[render] expected a value from one of two blocks")
    first, second = POISON if x is None else x.text, POISON if y is None else y.text
    if first != second:
        text = f"phi {register_type(some.dtype, some.lanes)} [ {first}, %{x_label} ], [ {second}, %{y_label} ]"
        some = out.language.define(text, some.dtype, some.lanes, len(out.scopes) - 1, "phi")
    out.scope.held[slot] = some
