"""Memory in LLVM IR: loads and stores of elements and vectors, registers, memory of a worker's own."""
from __future__ import annotations

from collections.abc import Sequence

from minigrad.codegen.ir.nodes import Alloc
from minigrad.codegen.render.llvm_instructions import LlvmInstructions
from minigrad.codegen.render.llvm_text import mangled, memory_type, typed
from minigrad.codegen.render.place import Memory, Ref
from minigrad.dtype import DType, bool_, uint8
from minigrad.expr import Atom, Index, Var, product, varying
from minigrad.target import Target
from minigrad.value import value_atoms

MAX_PARTS = 4
"""The most whole vectors that a load of scattered lanes is put together from."""


MAX_STORE_STEP = 4
"""The most elements between lanes that are still stored as parts of whole vectors."""


def stores_masked(dtype: DType, target: Target) -> bool:
    """True where the processor stores some lanes of a vector of such elements and leaves the memory of others alone."""
    return "avx512bw" in target.features or ("avx" in target.features and dtype.itemsize in (4, 8))


class LlvmMemory(LlvmInstructions):
    """Loads and stores to instructions."""

    def pointer(self, memory: Memory, offset: Index, lane: int | None = None) -> Ref:
        """The pointer to an element; copies of an access that differ in a constant share all but that.

        What depends on arguments alone, as steps from row to row do, is added last, so that rows share the rest; but
        ahead of what the loop adds that sums up a register tile. There each row has a pointer of its own, which LLVM
        must not know to be a multiple of others: it would compute one from the other in each step, with the ports that
        multiply-adds need.
        """
        kind = memory_type(memory.dtype)
        whole, constant = (0, offset) if isinstance(offset, int) else (varying(offset), offset.const)
        key = memory.text, whole, lane
        found = self.memo.get(key)
        if found is None:
            p = Ref(memory.text, memory.dtype)
            row = self.row_of(whole) if self.least_level else None
            sums, extra = self.sums(offset if row is None else row[0] + constant, lane)
            if row is not None or (len(sums) > 1 and sums[0].level == 0):
                last = len(sums) - self.in_tile
                for part in sums[row is None:last]:
                    p = self.moved(p, part)
                p = self.moved(p, sums[0]) if row is None else self.row_pointer(p, *row[1])
                if self.in_tile and memory.place == "in":
                    p = self.pure(f'call ptr asm "", "=r,0"(ptr {p.text})', memory.dtype, 1, (p,), "p")
                sums = sums[last:]
            for part in sums:
                p = self.moved(p, part)
            known: dict[int, Ref] = {}
            found = p, extra - constant, known
            if not value_atoms(offset):
                self.memo[key] = found
        p, extra, known = found
        constant += extra
        if not constant:
            return p
        there = known.get(constant)
        if there is None:
            text = f"getelementptr {kind}, ptr {p.text}, i64 {constant}"
            there = known[constant] = self.pure(text, memory.dtype, 1, (p,), "p")
        return there

    def moved(self, p: Ref, by: Ref) -> Ref:
        text = f"getelementptr {memory_type(p.dtype)}, ptr {p.text}, i64 {by.text}"
        return self.pure(text, p.dtype, 1, (p, by), "p")

    def row_of(self, e: Index) -> tuple[Index, tuple[tuple[Atom, ...], int]] | None:
        """(rest, term) with e = rest + term, which is all that is made of arguments alone; None if there is no such."""
        if isinstance(e, int):
            return None
        fixed = [t for t in e.terms
                 if all([type(a) is Var and a in self.variables and self.variables[a].level == 0 for a in t[0]])]
        if len(fixed) != 1 or len(e.terms) == 1 or fixed[0][1] < 1:
            return None
        return e - product(fixed[0][0]) * fixed[0][1], fixed[0]

    def row_pointer(self, p: Ref, step: tuple[Atom, ...], count: int) -> Ref:
        """The pointer `count` steps after p: one step after the one before it, where that is known, whose multiples
        would be kept from outside all loops."""
        key = "rows", p.text, step
        rows = self.memo.setdefault(key, {0: p})
        if count not in rows:
            near = count - 1 in rows
            rows[count] = self.moved(rows[count - 1 if near else 0], self.term(step, 1 if near else count, None))
        found: Ref = rows[count]
        return found

    def safe_pointer(self, memory: Memory, p: Ref, mask: Ref | None, lanes: int) -> Ref:
        """The pointer where the scalar mask is true, else that of a block of zeros."""
        if mask is None:
            return p
        self.zeros = max(self.zeros, lanes * memory.dtype.itemsize)
        text = f"select i1 {mask.text}, ptr {p.text}, ptr @{self.function.name}.zeros"
        return self.pure(text, memory.dtype, 1, (mask, p), "p")

    def fetch(self, memory: Memory, text: str, lanes: int, operands: Sequence[Ref], floor: int,
              mask: Ref | None) -> Ref:
        """The load `text`, shared and moved as far as what it reads allows; bools become i1."""
        dtype = uint8 if memory.dtype is bool_ else memory.dtype
        if memory.place == "in":
            x = self.pure(text, dtype, lanes, operands, memory.name, floor)
        else:
            x = self.here(text, dtype, lanes, memory, memory.name)
        if memory.dtype is bool_:
            x = self.convert(x, bool_)
        if mask is not None:
            x.zero_outside = mask
        return x

    def load_scalar(self, memory: Memory, offset: Index, lane: int | None, mask: Ref | None, floor: int) -> Ref:
        p = self.safe_pointer(memory, self.pointer(memory, offset, lane), mask, 1)
        text = f"load {memory_type(memory.dtype)}, ptr {p.text}, align {memory.dtype.itemsize}"
        return self.fetch(memory, text, 1, (p,), floor, mask)

    def load_vector(self, memory: Memory, start: Index, stride: int, mask: Ref | None, floor: int) -> Ref | None:
        width = self.width
        if stride == 1:
            return self.load_block(memory, start, mask, floor)
        if stride == -1:
            reverse = range(width - 1, -1, -1)
            turned = self.shuffle(mask, None, reverse) if mask is not None and mask.lanes > 1 else mask
            x = self.shuffle(self.load_block(memory, start - (width - 1), turned, floor), None, reverse)
            x.zero_outside = mask
            return x
        if 2 <= stride <= 4:
            return self.load_strided(memory, start, stride, mask, floor)
        return self.load_square(memory, start, stride, mask, floor)

    def load_block(self, memory: Memory, start: Index, mask: Ref | None, floor: int) -> Ref:
        kind, width = memory_type(memory.dtype), self.width
        p, align = self.pointer(memory, start), memory.dtype.itemsize
        if mask is None or mask.lanes == 1:
            p = self.safe_pointer(memory, p, mask, width)
            text = f"load <{width} x {kind}>, ptr {p.text}, align {align}"
            return self.in_first(self.fetch(memory, text, width, (p,), floor, mask))
        text = (f"call <{width} x {kind}> @llvm.masked.load.{mangled(kind, width)}.p0(ptr align {align} {p.text}, "
                f"{typed(mask)}, <{width} x {kind}> zeroinitializer)")
        return self.fetch(memory, text, width, (p, mask), floor, mask)

    def load_strided(self, memory: Memory, start: Index, stride: int, mask: Ref | None, floor: int) -> Ref:
        """Every `stride`-th element out of `stride` whole vectors; the last one ends at the last element wanted.

        Where all of it is in bounds, the vectors start at a multiple of the stride, for other taps to share.
        """
        width = self.width
        shift = start % stride if isinstance(start, int) else start.const % stride
        if mask is None and self.in_bounds(memory, start - shift) \
                and self.in_bounds(memory, start - shift + stride * width - 1):
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
                part = self.shuffle(mask, no, [by_position.get(at, width) for at in range(width)])
            parts.append((self.load_block(memory, start + s, part, floor), picks))
        result = self.join_parts(parts)
        result.zero_outside = mask
        return result

    def join_parts(self, parts: list[tuple[Ref, dict[int, int]]]) -> Ref:
        """One vector of the lanes that each of several vectors has, given as {lane: place in it}; two at a time."""
        width = self.width
        while len(parts) > 1:
            (x, at), (y, more) = parts[0], parts[1]
            picks = at | {lane: width + p for lane, p in more.items()}
            joined = self.shuffle(x, y, [picks.get(lane, -1) for lane in range(width)])
            parts = [*parts[2:], (joined, {lane: lane for lane in picks})]
        x, at = parts[0]
        lanes = [at.get(lane, -1) for lane in range(width)]
        return x if all(p in (lane, -1) for lane, p in enumerate(lanes)) else self.shuffle(x, None, lanes)

    def load_steps(self, memory: Memory, start: Index, steps: Sequence[int], floor: int) -> Ref | None:
        """Whole vectors that are in bounds, and shuffles: lanes of interleaved runs. Neighbours that all lanes share in
        turn are one load of these alone."""
        for few in (2, 4):
            if self.width % few == 0 and list(steps) == [*range(few)] * (len(steps) // few):
                kind, align = memory_type(memory.dtype), memory.dtype.itemsize
                p = self.pointer(memory, start)
                x = self.fetch(memory, f"load <{few} x {kind}>, ptr {p.text}, align {align}", few, (p,), floor, None)
                return self.shuffle(x, None, [lane % few for lane in range(self.width)])
        left = set(steps)
        parts: list[tuple[Ref, dict[int, int]]] = []
        while left:
            first = min(left)
            inside = {s for s in left if s < first + self.width}
            if not self.in_bounds(memory, start + first + self.width - 1):
                first = max(inside) - self.width + 1  # a vector that ends with the last one wanted
            if len(parts) == MAX_PARTS or not (self.in_bounds(memory, start + first) and
                                               self.in_bounds(memory, start + first + self.width - 1)):
                return None
            left -= inside
            picks = {lane: s - first for lane, s in enumerate(steps) if s in inside}
            parts.append((self.load_block(memory, start + first, None, floor), picks))
        return self.join_parts(parts)

    def to_memory(self, value: Ref) -> Ref:
        return self.convert(value, uint8) if value.dtype is bool_ else value

    def store_scalar(self, memory: Memory, offset: Index, lane: int | None, value: Ref, mask: Ref | None) -> None:
        value, p = self.to_memory(value), self.pointer(memory, offset, lane)
        done = self.begin_branch(mask)
        self.line(f"store {typed(value)}, ptr {p.text}, align {memory.dtype.itemsize}")
        self.end_branch(done)

    def begin_branch(self, mask: Ref | None) -> str:
        if mask is None:
            return ""
        label = self.name("branch.")
        self.line(f"br i1 {mask.text}, label %{label}, label %{label}.end")
        self.scope.lines.append(f"{label}:")
        return f"{label}.end"

    def end_branch(self, label: str) -> None:
        if label:
            self.line(f"br label %{label}")
            self.scope.lines.append(f"{label}:")
            self.scope.label = label

    def store_vector(self, memory: Memory, start: Index, value: Ref, mask: Ref | None) -> None:
        value, p, align = self.to_memory(value), self.pointer(memory, start), memory.dtype.itemsize
        if mask is None:
            self.line(f"store {typed(value)}, ptr {p.text}, align {align}")
            return
        mask, name = self.spread(mask, value.lanes), mangled(memory_type(memory.dtype), value.lanes)
        self.line(f"call void @llvm.masked.store.{name}.p0({typed(value)}, ptr align {align} {p.text}, {typed(mask)})")

    def store_strided(self, memory: Memory, start: Index, stride: int, value: Ref, mask: Ref | None) -> bool:
        """Whole vectors of which every `stride`-th lane is stored, on processors that have such stores."""
        if not (2 <= stride <= MAX_STORE_STEP and stores_masked(memory.dtype, self.target)):
            return False
        width, none = self.width, Ref("zeroinitializer", bool_, self.width)
        value = self.spread(value, width)
        every = self.spread(mask if mask is not None else self.constant(True, bool_), width)
        for first in range(0, (width - 1) * stride + 1, width):
            places = range(first, first + width)
            lanes = [p // stride if p % stride == 0 and p // stride < width else -1 for p in places]
            part = self.shuffle(every, none, [width if lane < 0 else lane for lane in lanes])
            self.store_vector(memory, start + first, self.shuffle(value, None, lanes), part)
        return True

    def allocate(self, s: Alloc) -> Memory:
        if s.scope == "register":
            memory = Memory(s.name, s.dtype, s.size, "register", "", self.width)
            memory.slots = tuple([self.name(s.name) for _ in range(s.size)])
            return memory
        text = self.pure(f"getelementptr i8, ptr %scratch., i64 {self.scratch}", s.dtype, 1, (), s.name).text
        self.scratch += -(-s.size * self.width * s.dtype.itemsize // 64) * 64
        return Memory(s.name, s.dtype, s.size, "scratch", text, self.width)
