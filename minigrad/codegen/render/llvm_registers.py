"""Register buffers in LLVM IR: each slot is the value that it holds, passed through loops and branches as phis."""
from __future__ import annotations

from collections.abc import Sequence

from minigrad.codegen.ir.nodes import Stmt, Store
from minigrad.codegen.ir.walk import statements
from minigrad.codegen.render.llvm_squares import LlvmSquares
from minigrad.codegen.render.llvm_text import register_type
from minigrad.codegen.render.place import Memory, OpenLoop, Ref, Scope
from minigrad.errors import present

POISON = "poison"


class LlvmRegisters(LlvmSquares):
    """The values of slots are kept with the scope (`Scope.held`); one that holds nothing yet is poison, which nobody
    uses.

    In a scope a value counts as defined there, wherever it comes from: values computed from it stay beside it. Else
    everything that a loop computes from registers that it does not change would be computed before it, and take
    registers there.
    """

    def read_slot(self, memory: Memory, slot: int) -> Ref:
        held, name, level = self.scopes[-1].held, memory.slots[slot], len(self.scopes) - 1
        ref = held.get(name)
        if ref is None:
            return Ref(POISON, memory.dtype, memory.lanes, level)
        if ref.level != level:
            ref = held[name] = Ref(ref.text, ref.dtype, ref.lanes, level)
        return ref

    def write_slot(self, memory: Memory, slot: int, value: Ref) -> None:
        memory.version += 1
        level = len(self.scopes) - 1
        if value.level != level or value.literal is not None or value.zero_outside is not None:
            value = Ref(value.text, value.dtype, value.lanes, level)
        self.scopes[-1].held[memory.slots[slot]] = value
        if memory.version % len(memory.slots) == 0 and self.is_big(len(memory.slots)):
            # One step of the sum is done: no registers for loads of the next ones before it, or of its own after it.
            self.line('call void asm sideeffect "", "~{memory}"()')
            self.epoch += 1

    def is_big(self, tile: int) -> bool:
        """True where so many sums take most of the vector registers."""
        return 2 * tile > self.target.registers and "sse" in self.target.features

    # ---- between blocks ----

    def stored_registers(self, body: tuple[Stmt, ...]) -> list[Memory]:
        """The register buffers around the body of a loop that it may store to."""
        registers = [m for m in self.memory.values() if m.slots]
        if not registers:
            return registers
        stored = {s.buffer for s in statements(body) if type(s) is Store}
        return [m for m in registers if m.name in stored]

    def carry(self, stored: Sequence[Memory]) -> tuple[tuple[str, Ref], ...]:
        """Their slots, each with a name for what it holds when an iteration begins."""
        level = len(self.scopes) - 1
        slots = tuple([(slot, Ref(self.name(m.name), m.dtype, m.lanes, level)) for m in stored for slot in m.slots])
        self.scope.held.update(slots)
        return slots

    def carried(self, state: OpenLoop, inner: Scope, indent: str) -> list[str]:
        """The lines that say so: before the first iteration what the slots hold here, later what the last one left."""
        held, here, last, label = self.scope.held, self.scope.label, inner.held, inner.label
        return [f"{indent}{x.text} = phi {register_type(x.dtype, x.lanes)} "
                f"[ {held[slot].text if slot in held else POISON}, %{here} ], [ {last[slot].text}, %{label} ]"
                for slot, x in state.carried]

    def after_loop(self, state: OpenLoop, inner: Scope, before: str) -> None:
        """Sets the values of slots after a loop: as after its last iteration, or as `before`, where it may not run."""
        held = self.scope.held
        for slot, x in state.carried:
            last = inner.held[slot]
            if state.some is None:
                held[slot] = last
            elif last is not x:
                self.join(slot, last, inner.label, held.get(slot), before)

    def after_branch(self, then: Scope, otherwise: Scope | None, before: str) -> None:
        """Sets the values of slots after a branch."""
        held = self.scope.held
        no, label = (held, before) if otherwise is None else (otherwise.held, otherwise.label)
        for slot in {**then.held, **no}:
            x, y = then.held.get(slot), no.get(slot)
            if x is not y:
                self.join(slot, x, then.label, y, label)

    def join(self, slot: str, x: Ref | None, x_label: str, y: Ref | None, y_label: str) -> None:
        """A slot holds x if control comes from one block, y from the other."""
        some = present(x or y, "[render] expected a value from one of two blocks")
        first, second = POISON if x is None else x.text, POISON if y is None else y.text
        if first != second:
            text = f"phi {register_type(some.dtype, some.lanes)} [ {first}, %{x_label} ], [ {second}, %{y_label} ]"
            some = self.define(text, some.dtype, some.lanes, len(self.scopes) - 1, "phi")
        self.scope.held[slot] = some
