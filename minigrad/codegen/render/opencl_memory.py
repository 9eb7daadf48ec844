"""Memory in OpenCL C: loads and stores of elements and vectors, registers, memory of a work-item's own."""
from __future__ import annotations

from collections.abc import Sequence

from minigrad.codegen.ir.nodes import Alloc, Function
from minigrad.codegen.render.copies import Maker
from minigrad.codegen.render.opencl_values import OpenclValues
from minigrad.codegen.render.place import INDEX, Memory, Ref
from minigrad.dtype import bool_, float16, uint16
from minigrad.expr import Index
from minigrad.target import Target
from minigrad.value import Value

OWN = ("scratch", "local")
"""Memory of the kernel itself: there a float16 is held as in registers."""

ALIGNMENT = 64
"""Bytes: a cache line, and the widest vector."""


class OpenclMemory(OpenclValues):
    """Loads and stores to statements. `scratch`, `shared`: bytes of the scratch and local arrays in `declared`, which
    has (scope, type, name, elements) of each."""

    def __init__(self, function: Function, target: Target):
        super().__init__(function, target)
        self.declared: list[tuple[str, str, str, int]] = []
        self.scratch = self.shared = 0

    def element(self, memory: Memory, offset: str) -> str:
        """The expression that reads one element as it is in registers."""
        if memory.dtype is float16 and memory.place not in OWN:
            return f"vload_half({offset}, {memory.text})"
        return f"({memory.text}[{offset}] != 0)" if memory.dtype is bool_ else f"{memory.text}[{offset}]"

    def elements(self, memory: Memory, offset: str) -> str:
        """The expression that reads a whole vector."""
        half = "_half" if memory.dtype is float16 and memory.place not in OWN else ""
        text = f"vload{half}{self.width}(0, {memory.text} + {offset})"
        return f"convert_int{self.width}({text} != (uchar{self.width})(0))" if memory.dtype is bool_ else text

    def parts_of(self, v: Value) -> tuple[tuple[Value, ...], Maker]:
        """The bits of a float16 in memory are read as they are."""
        return ((), self.load_bits) if self.is_bits_in_memory(v) else super().parts_of(v)

    def load_bits(self, v: Value, mask: Ref | None, args: list[Ref]) -> Ref:
        name, (offset,) = v.args[0].attr
        memory = self.memory[name]
        pointer = f"((__global {'const ' if memory.place == 'in' else ''}ushort *){memory.text})"
        return self.load(Memory(name, uint16, memory.size, memory.place, pointer), self.at(offset), mask)

    def is_bits_in_memory(self, v: Value) -> bool:
        """True where a value is the bits of a float16 that a parameter holds."""
        if v.op != "bitcast" or v.dtype is not uint16 or v.args[0].op != "load" or v.args[0].dtype is not float16:
            return False
        return self.memory[v.args[0].attr[0]].place in ("in", "out", "inout")

    def clamped(self, mask: Ref | None, offset: Ref) -> str:
        return offset.text if mask is None else f"({mask.text} ? {offset.text} : 0)"

    def read(self, memory: Memory, text: str, lanes: int, operands: Sequence[Ref], floor: int) -> Ref:
        if memory.place == "in":
            return self.pure(text, memory.dtype, lanes, operands, memory.name, floor)
        return self.here(text, memory.dtype, lanes, memory, memory.name)

    def load_scalar(self, memory: Memory, offset: Index, lane: int | None, mask: Ref | None, floor: int) -> Ref:
        at = self.index(offset, lane)
        operands = (at,) if mask is None else (at, mask)
        return self.read(memory, self.element(memory, self.clamped(mask, at)), 1, operands, floor)

    def load_vector(self, memory: Memory, start: Index, stride: int, mask: Ref | None, floor: int) -> Ref | None:
        width = self.width
        if stride != 1 or self.real_width != width:
            return None
        at = self.index(start)
        if mask is None:
            return self.read(memory, self.elements(memory, at.text), width, (at,), floor)
        room = isinstance(memory.size, int) and memory.size >= width
        whole = self.all_lanes(mask)
        if mask.lanes == 1:
            if not room:
                return None
            return self.read(memory, self.elements(memory, self.clamped(mask, at)), width, (at, mask), floor)
        if not room and self.target.is_gpu:
            return None
        first = self.elements(memory, self.clamped(whole, at) if room else at.text)
        masks = [self.extract(mask, i) for i in range(width)]
        places = [self.integer("add", at, self.constant(i, INDEX)) if i else at for i in range(width)]
        sign = "-" if memory.dtype is bool_ else ""
        each = ", ".join(sign + self.element(memory, self.clamped(m, p)) for m, p in zip(masks, places, strict=True))
        text = f"({whole.text} ? {first} : ({self.kind(memory.dtype, width)})({each}))"
        return self.read(memory, text, width, (at, whole, *masks, *places), floor)

    def written(self, memory: Memory, at: str, value: Ref) -> str:
        """The statement that stores a scalar; a half is rounded by the store itself."""
        if memory.dtype is float16 and memory.place not in OWN:
            return f"vstore_half_rte({self.exact.get(value, value).text}, {at}, {memory.text});"
        return f"{memory.text}[{at}] = {value.text};"

    def store_scalar(self, memory: Memory, offset: Index, lane: int | None, value: Ref, mask: Ref | None) -> None:
        text = self.written(memory, self.index(offset, lane).text, value)
        self.line(text if mask is None else f"if ({mask.text}) {text}")

    def store_vector(self, memory: Memory, start: Index, value: Ref, mask: Ref | None) -> None:
        at, width = self.index(start), self.width
        if self.real_width != width:
            for text in self.store_lanes(memory, at, value, mask):
                self.line(text)
            return
        half = memory.dtype is float16 and memory.place not in OWN
        text = self.exact.get(value, value).text if half else value.text
        if memory.dtype is bool_:
            text = f"convert_uchar{width}({text} & 1)"
        full = f"vstore_half{width}_rte" if half else f"vstore{width}"
        text = f"{full}({text}, 0, {memory.text} + {at.text});"
        if mask is None:
            self.line(text)
            return
        each = self.store_lanes(memory, at, value, mask)
        self.line(f"if ({self.all_lanes(mask).text}) {text}")
        self.line(f"else {{ {' '.join(each)} }}")

    def store_lanes(self, memory: Memory, at: Ref, value: Ref, mask: Ref | None) -> list[str]:
        """One statement per lane; what they use is defined before them."""
        whole, made = value, []
        if memory.dtype is float16 and memory.place not in OWN:
            whole = self.exact.get(value, value)
        for i in range(self.real_width):
            place = self.integer("add", at, self.constant(i, INDEX)) if i else at
            text = self.written(memory, place.text, self.extract(whole, i))
            made.append(text if mask is None else f"if ({self.extract(mask, i).text}) {text}")
        return made

    def allocate(self, s: Alloc) -> Memory:
        base = self.name(self.safe(s.name))
        if s.scope == "register":
            memory = Memory(s.name, s.dtype, s.size, "register", base, self.width)
            memory.slots = tuple([f"{base}_{i}" for i in range(s.size)])
            for slot in memory.slots:
                self.line(f"{self.kind(s.dtype, self.width)} {slot};")
            return memory
        name = "uchar" if s.dtype is bool_ else self.kind(s.dtype)
        self.declared.append((s.scope, name, base, s.size * self.width))
        bits = 32 if s.dtype is float16 else s.dtype.bits
        size = -(-s.size * self.width * max(bits // 8, 1) // ALIGNMENT) * ALIGNMENT
        if s.scope == "local":
            self.shared += size
        else:
            self.scratch += size
        return Memory(s.name, s.dtype, s.size, s.scope, base, self.width)

    def read_slot(self, memory: Memory, slot: int) -> Ref:
        return self.here(memory.slots[slot], memory.dtype, memory.lanes, memory, memory.name)

    def write_slot(self, memory: Memory, slot: int, value: Ref) -> None:
        memory.version += 1
        self.line(f"{memory.slots[slot]} = {value.text};")
