"""Memory in LLVM IR: loads and stores of elements and vectors."""
from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from minigrad.codegen.render.accesses import in_bounds
from minigrad.codegen.render.index import sums
from minigrad.codegen.render.language import Access
from minigrad.codegen.render.llvm_text import mangled, memory_type, stores_masked, typed
from minigrad.codegen.render.llvm_transposes import Transposes
from minigrad.codegen.render.llvm_values import LlvmLanguage
from minigrad.codegen.render.refs import Memory, Ref
from minigrad.dtype import bool_, uint8
from minigrad.expr import Index, varying
from minigrad.value import value_atoms

if TYPE_CHECKING:
    from minigrad.codegen.render.emitter import Emitter

MAX_PARTS = 4
"""The most whole vectors that a load of scattered lanes is put together from."""


MAX_STORE_STEP = 4
"""The most elements between lanes that are still stored as parts of whole vectors."""


class LlvmAccess(Access):
    """Loads and stores to instructions. `from_zeros`: a scalar under a condition is read from a block of zeros where
    that is false, the first `zeros` bytes of it; else from the start of its buffer."""

    def __init__(self, out: Emitter, language: LlvmLanguage, from_zeros: bool = True):
        self.out, self.language, self.from_zeros = out, language, from_zeros
        self.zeros = 0
        self.transposes = Transposes(self)

    def pointer(self, memory: Memory, offset: Index, lane: int | None = None) -> Ref:
        """The pointer to an element; copies of an access that differ in a constant share all but that."""
        whole, constant = (0, offset) if isinstance(offset, int) else \
            (offset.known_varying or varying(offset), offset.const)
        key = memory.text, whole, lane
        found = self.out.memo.get(key)
        if found is None:
            p = Ref(memory.text, memory.dtype)
            parts, extra = sums(self.out, offset, lane)
            for part in parts:
                p = self.moved(p, part.text, part)
            known: dict[int, Ref] = {}
            found = p, extra - constant, known
            if not value_atoms(offset):
                self.out.memo[key] = found
        p, extra, known = found
        constant += extra
        if constant and constant not in known:
            known[constant] = self.moved(p, constant)
        return known[constant] if constant else p

    def moved(self, p: Ref, count: str | int, *by: Ref) -> Ref:
        """The pointer so many elements on."""
        text = f"getelementptr {memory_type(p.dtype)}, ptr {p.text}, i64 {count}"
        return self.out.pure(text, p.dtype, 1, (p, *by), "p")

    def safe_pointer(self, memory: Memory, p: Ref, mask: Ref | None, lanes: int) -> Ref:
        """The pointer where the scalar mask is true, else one that may be read as well."""
        if mask is None:
            return p
        other = memory.text
        if self.from_zeros:
            self.zeros = max(self.zeros, lanes * memory.dtype.itemsize)
            other = f"@{self.out.function.name}.zeros"
        return self.out.pure(f"select i1 {mask.text}, ptr {p.text}, ptr {other}", memory.dtype, 1, (mask, p), "p")

    def fetch(self, memory: Memory, text: str, lanes: int, operands: Sequence[Ref], floor: int) -> Ref:
        """The load `text`, shared and moved as far as what it reads allows; bools become i1."""
        dtype = uint8 if memory.dtype is bool_ else memory.dtype
        if memory.place == "in":
            x = self.out.pure(text, dtype, lanes, operands, memory.name, floor)
        else:
            x = self.out.here(text, dtype, lanes, memory, memory.name)
        return self.language.convert(x, bool_) if memory.dtype is bool_ else x

    def load_scalar(self, memory: Memory, offset: Index, lane: int | None, mask: Ref | None, floor: int) -> Ref:
        p = self.safe_pointer(memory, self.pointer(memory, offset, lane), mask, 1)
        text = f"load {memory_type(memory.dtype)}, ptr {p.text}, align {memory.dtype.itemsize}"
        return self.fetch(memory, text, 1, (p,), floor)

    def load_vector(self, memory: Memory, start: Index, stride: int, mask: Ref | None, floor: int) -> Ref | None:
        width = self.out.width
        if stride == 1:
            return self.load_block(memory, start, mask, floor)
        if stride == -1:
            reverse = range(width - 1, -1, -1)
            mask = self.language.shuffle(mask, None, reverse) if mask is not None and mask.lanes > 1 else mask
            return self.language.shuffle(self.load_block(memory, start - (width - 1), mask, floor), None, reverse)
        if 2 <= stride <= 4:
            return self.load_strided(memory, start, stride, mask, floor)
        return self.load_square(memory, start, stride, mask, floor)

    def load_square(self, memory: Memory, start: Index, stride: Index, mask: Ref | None, floor: int) -> Ref | None:
        return self.transposes.load(memory, start, stride, mask, floor)

    def load_block(self, memory: Memory, start: Index, mask: Ref | None, floor: int) -> Ref:
        kind, width = memory_type(memory.dtype), self.out.width
        p, align = self.pointer(memory, start), memory.dtype.itemsize
        if mask is None or mask.lanes == 1:
            p = self.safe_pointer(memory, p, mask, width)
            text = f"load <{width} x {kind}>, ptr {p.text}, align {align}"
            return self.fetch(memory, text, width, (p,), floor)
        text = (f"call <{width} x {kind}> @llvm.masked.load.{mangled(kind, width)}.p0(ptr align {align} {p.text}, "
                f"{typed(mask)}, <{width} x {kind}> zeroinitializer)")
        return self.fetch(memory, text, width, (p, mask), floor)

    def load_strided(self, memory: Memory, start: Index, stride: int, mask: Ref | None, floor: int) -> Ref:
        """Every `stride`-th element out of `stride` whole vectors; the last one ends at the last element wanted.

        Where all of it is in bounds, the vectors start at a multiple of the stride, for other taps to share.
        """
        width = self.out.width
        shift = start % stride if isinstance(start, int) else start.const % stride
        if mask is None and in_bounds(self.out, memory, start - shift) \
                and in_bounds(self.out, memory, start - shift + stride * width - 1):
            starts = [i * width - shift for i in range(stride)]
        else:
            starts = [min(i * width, (width - 1) * stride + 1 - width) for i in range(stride)]
        owner = [max(i for i, s in enumerate(starts) if s <= lane * stride) for lane in range(width)]
        parts: list[tuple[Ref, dict[int, int]]] = []
        for i, s in enumerate(starts):
            picks = {lane: lane * stride - s for lane in range(width) if owner[lane] == i}
            part = mask
            if mask is not None and mask.lanes > 1:
                by_position = {at: lane for lane, at in picks.items()}
                no = Ref("zeroinitializer", bool_, width)
                part = self.language.shuffle(mask, no, [by_position.get(at, width) for at in range(width)])
            parts.append((self.load_block(memory, start + s, part, floor), picks))
        return self.join_parts(parts)

    def join_parts(self, parts: list[tuple[Ref, dict[int, int]]]) -> Ref:
        """One vector of the lanes that each of several vectors has, given as {lane: place in it}; two at a time."""
        width = self.out.width
        while len(parts) > 1:
            (x, at), (y, more) = parts[0], parts[1]
            picks = at | {lane: width + p for lane, p in more.items()}
            joined = self.language.shuffle(x, y, [picks.get(lane, -1) for lane in range(width)])
            parts = [*parts[2:], (joined, {lane: lane for lane in picks})]
        x, at = parts[0]
        lanes = [at.get(lane, -1) for lane in range(width)]
        return x if all(p in (lane, -1) for lane, p in enumerate(lanes)) else self.language.shuffle(x, None, lanes)

    def load_steps(self, memory: Memory, start: Index, steps: Sequence[int], floor: int) -> Ref | None:
        """Whole vectors that are in bounds, and shuffles: lanes of interleaved runs. Neighbours that all lanes share in
        turn are one load of these alone."""
        for n in (2, 4):
            if self.out.width % n == 0 and list(steps) == [*range(n)] * (len(steps) // n):
                kind, align = memory_type(memory.dtype), memory.dtype.itemsize
                p = self.pointer(memory, start)
                x = self.fetch(memory, f"load <{n} x {kind}>, ptr {p.text}, align {align}", n, (p,), floor)
                return self.language.shuffle(x, None, [lane % n for lane in range(self.out.width)])
        left, width = set(steps), self.out.width
        parts: list[tuple[Ref, dict[int, int]]] = []
        while left:
            first = min(left)
            inside = {s for s in left if s < first + width}
            if not in_bounds(self.out, memory, start + first + width - 1):
                first = max(inside) - width + 1  # a vector that ends with the last one wanted
            if len(parts) == MAX_PARTS or not (in_bounds(self.out, memory, start + first) and
                                               in_bounds(self.out, memory, start + first + width - 1)):
                return None
            left -= inside
            picks = {lane: s - first for lane, s in enumerate(steps) if s in inside}
            parts.append((self.load_block(memory, start + first, None, floor), picks))
        return self.join_parts(parts)

    def to_memory(self, value: Ref) -> Ref:
        return self.language.convert(value, uint8) if value.dtype is bool_ else value

    def store_scalar(self, memory: Memory, offset: Index, lane: int | None, value: Ref, mask: Ref | None) -> None:
        value, p = self.to_memory(value), self.pointer(memory, offset, lane)
        done = self.begin_branch(mask)
        self.out.line(f"store {typed(value)}, ptr {p.text}, align {memory.dtype.itemsize}")
        self.end_branch(done)

    def begin_branch(self, mask: Ref | None) -> str:
        if mask is None:
            return ""
        out, label = self.out, self.language.name("branch.")
        out.line(f"br i1 {mask.text}, label %{label}, label %{label}.end")
        out.scope.lines.append(f"{label}:")
        return f"{label}.end"

    def end_branch(self, label: str) -> None:
        if label:
            self.out.line(f"br label %{label}")
            self.out.scope.lines.append(f"{label}:")
            self.out.scope.label = label

    def store_vector(self, memory: Memory, start: Index, value: Ref, mask: Ref | None) -> None:
        value, p, align = self.to_memory(value), self.pointer(memory, start), memory.dtype.itemsize
        if mask is None:
            self.out.line(f"store {typed(value)}, ptr {p.text}, align {align}")
            return
        if mask.true is not None and len(mask.true) == 1:
            # LLVM 22 stores 32 bits of one lane that was narrowed to fewer, with AVX-512.
            lane, = mask.true
            one, p = self.language.extract(value, lane), self.pointer(memory, start + lane)
            self.out.line(f"store {typed(one)}, ptr {p.text}, align {align}")
            return
        mask, name = self.out.spread(mask, value.lanes), mangled(memory_type(memory.dtype), value.lanes)
        self.out.line(f"call void @llvm.masked.store.{name}.p0({typed(value)}, ptr align {align} {p.text}, "
                      f"{typed(mask)})")

    def store_strided(self, memory: Memory, start: Index, stride: int, value: Ref, mask: Ref | None) -> bool:
        """Whole vectors of which every `stride`-th lane is stored, on processors that have such stores. Not those with
        one lane each, which need as many stores: of such in turn, in 16 bits, LLVM 22 loses some."""
        width, none = self.out.width, Ref("zeroinitializer", bool_, self.out.width)
        if not (2 <= stride <= min(MAX_STORE_STEP, width - 1) and stores_masked(memory.dtype, self.out.target)):
            return False
        value = self.out.spread(value, width)
        every = self.out.spread(mask if mask is not None else self.out.constant(True, bool_), width)
        for first in range(0, (width - 1) * stride + 1, width):
            places = range(first, first + width)
            lanes = [p // stride if p % stride == 0 and p // stride < width else -1 for p in places]
            part = self.language.shuffle(every, none, [width if lane < 0 else lane for lane in lanes])
            self.store_vector(memory, start + first, self.language.shuffle(value, None, lanes), part)
        return True

    def prefetch(self, memory: Memory, offset: Index, far: bool) -> None:
        p = self.pointer(memory, offset)
        self.out.line(f"call void @llvm.prefetch.p0(ptr {p.text}, i32 0, i32 {2 if far else 3}, i32 1)")
