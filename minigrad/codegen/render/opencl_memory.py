"""Memory in OpenCL C: loads and stores of elements and vectors, registers, memory of a work-item's own."""
from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from minigrad.codegen.ir.nodes import Alloc
from minigrad.codegen.render.index import index
from minigrad.codegen.render.language import Access, Storage
from minigrad.codegen.render.opencl_values import OpenclLanguage
from minigrad.codegen.render.refs import INDEX, Memory, Ref
from minigrad.dtype import bool_, float16
from minigrad.expr import Index

if TYPE_CHECKING:
    from minigrad.codegen.render.emitter import Emitter

OWN = ("scratch", "local")
"""Memory of the kernel itself: there a float16 is held as in registers."""

ALIGNMENT = 64
"""Bytes: a cache line, and the widest vector."""


class OpenclAccess(Access):
    """Loads and stores to statements."""

    def __init__(self, out: Emitter, language: OpenclLanguage):
        self.out, self.language = out, language

    def element(self, memory: Memory, offset: str) -> str:
        """The expression that reads one element as it is in registers."""
        if memory.dtype is float16 and memory.place not in OWN:
            return f"vload_half({offset}, {memory.text})"
        return f"({memory.text}[{offset}] != 0)" if memory.dtype is bool_ else f"{memory.text}[{offset}]"

    def elements(self, memory: Memory, offset: str) -> str:
        """The expression that reads a whole vector; more than four halves in fours, as PoCL (3.1, LLVM 14)
        reads eight as if they were aligned to 16 bytes, which ends the process where they are not."""
        width = self.out.width
        if memory.dtype is float16 and memory.place not in OWN:
            fours = ", ".join(f"vload_half{min(width, 4)}(0, {memory.text} + {offset}{f' + {i}' if i else ''})"
                              for i in range(0, width, 4))
            return f"({self.language.kind(float16, width)})({fours})" if width > 4 else fours
        text = f"vload{width}(0, {memory.text} + {offset})"
        return f"convert_int{width}({text} != (uchar{width})(0))" if memory.dtype is bool_ else text

    def clamped(self, mask: Ref | None, offset: Ref) -> str:
        return offset.text if mask is None else f"({mask.text} ? {offset.text} : 0)"

    def read(self, memory: Memory, text: str, lanes: int, operands: Sequence[Ref], floor: int) -> Ref:
        if memory.place == "in":
            return self.out.pure(text, memory.dtype, lanes, operands, memory.name, floor)
        return self.out.here(text, memory.dtype, lanes, memory, memory.name)

    def load_scalar(self, memory: Memory, offset: Index, lane: int | None, mask: Ref | None, floor: int) -> Ref:
        at = index(self.out, offset, lane)
        operands = (at,) if mask is None else (at, mask)
        return self.read(memory, self.element(memory, self.clamped(mask, at)), 1, operands, floor)

    def load_vector(self, memory: Memory, start: Index, stride: int, mask: Ref | None, floor: int) -> Ref | None:
        width = self.out.width
        if stride != 1 or self.out.real_width != width:
            return None
        at = index(self.out, start)
        if mask is None:
            return self.read(memory, self.elements(memory, at.text), width, (at,), floor)
        room = isinstance(memory.size, int) and memory.size >= width
        whole = self.language.all_lanes(mask)
        if mask.lanes == 1:
            if not room:
                return None
            return self.read(memory, self.elements(memory, self.clamped(mask, at)), width, (at, mask), floor)
        if not room and self.out.target.is_gpu:
            return None
        first = self.elements(memory, self.clamped(whole, at) if room else at.text)
        masks = [self.language.extract(mask, i) for i in range(width)]
        places = [self.language.integer("add", at, self.out.constant(i, INDEX)) if i else at for i in range(width)]
        sign = "-" if memory.dtype is bool_ else ""
        each = ", ".join(sign + self.element(memory, self.clamped(m, p)) for m, p in zip(masks, places, strict=True))
        text = f"({whole.text} ? {first} : ({self.language.kind(memory.dtype, width)})({each}))"
        return self.read(memory, text, width, (at, whole, *masks, *places), floor)

    def written(self, memory: Memory, at: str, value: Ref) -> str:
        """The statement that stores a scalar; a half is rounded by the store itself."""
        if memory.dtype is float16 and memory.place not in OWN:
            return f"vstore_half_rte({self.language.exact.get(value, value).text}, {at}, {memory.text});"
        return f"{memory.text}[{at}] = {value.text};"

    def store_scalar(self, memory: Memory, offset: Index, lane: int | None, value: Ref, mask: Ref | None) -> None:
        text = self.written(memory, index(self.out, offset, lane).text, value)
        self.out.line(text if mask is None else f"if ({mask.text}) {text}")

    def store_vector(self, memory: Memory, start: Index, value: Ref, mask: Ref | None) -> None:
        at, width = index(self.out, start), self.out.width
        if self.out.real_width != width:
            for text in self.store_lanes(memory, at, value, mask):
                self.out.line(text)
            return
        half = memory.dtype is float16 and memory.place not in OWN
        text = self.language.exact.get(value, value).text if half else value.text
        if memory.dtype is bool_:
            text = f"convert_uchar{width}({text} & 1)"
        full = f"vstore_half{width}_rte" if half else f"vstore{width}"
        text = f"{full}({text}, 0, {memory.text} + {at.text});"
        if mask is None:
            self.out.line(text)
            return
        each = self.store_lanes(memory, at, value, mask)
        self.out.line(f"if ({self.language.all_lanes(mask).text}) {text}")
        self.out.line(f"else {{ {' '.join(each)} }}")

    def store_lanes(self, memory: Memory, at: Ref, value: Ref, mask: Ref | None) -> list[str]:
        """One statement per lane; what they use is defined before them."""
        whole, made = value, []
        if memory.dtype is float16 and memory.place not in OWN:
            whole = self.language.exact.get(value, value)
        for i in range(self.out.real_width):
            place = self.language.integer("add", at, self.out.constant(i, INDEX)) if i else at
            text = self.written(memory, place.text, self.language.extract(whole, i))
            made.append(text if mask is None else f"if ({self.language.extract(mask, i).text}) {text}")
        return made

    def prefetch(self, memory: Memory, offset: Index, far: bool) -> None:
        """The language's own `prefetch` does nothing in drivers for processors."""
        self.language.helpers.add("fetch")
        self.out.line(f"fetch({memory.text} + ({index(self.out, offset).text}), {2 if far else 3});")


class OpenclStorage(Storage):
    """`scratch`, `shared`: bytes of the scratch and local arrays in `declared`, which has (scope, type, name, elements)
    of each."""

    def __init__(self, out: Emitter, language: OpenclLanguage):
        self.out, self.language = out, language
        self.declared: list[tuple[str, str, str, int]] = []
        self.scratch = self.shared = 0

    def allocate(self, s: Alloc) -> Memory:
        base = self.language.name(self.language.safe(s.name))
        if s.scope == "register":
            memory = Memory(s.name, s.dtype, s.size, "register", base, self.out.width)
            memory.slots = tuple([f"{base}_{i}" for i in range(s.size)])
            for slot in memory.slots:
                self.out.line(f"{self.language.kind(s.dtype, self.out.width)} {slot};")
            return memory
        name = "uchar" if s.dtype is bool_ else self.language.kind(s.dtype)
        self.declared.append((s.scope, name, base, s.size * self.out.width))
        bits = 32 if s.dtype is float16 else s.dtype.bits
        size = -(-s.size * self.out.width * max(bits // 8, 1) // ALIGNMENT) * ALIGNMENT
        if s.scope == "local":
            self.shared += size
        else:
            self.scratch += size
        return Memory(s.name, s.dtype, s.size, s.scope, base, self.out.width)

    def read_slot(self, memory: Memory, slot: int) -> Ref:
        return self.out.here(memory.slots[slot], memory.dtype, memory.lanes, memory, memory.name)

    def write_slot(self, memory: Memory, slot: int, value: Ref) -> None:
        memory.version += 1
        self.out.line(f"{memory.slots[slot]} = {value.text};")
