"""In-register transposes in LLVM IR: lanes that read far apart are loaded row by row and transposed in registers.

A square has as many rows as a vector has lanes, and a lane per row; a column of it is what the lanes read.
"""
from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from minigrad.codegen.ir.nodes import Loop, Stmt, Store
from minigrad.codegen.ir.walk import indices, values
from minigrad.codegen.kernel.value_walk import Conditions, guarded_loads
from minigrad.codegen.render.accesses import in_bounds
from minigrad.codegen.render.conditions import mask_of
from minigrad.codegen.render.index import far_step, index
from minigrad.codegen.render.llvm_text import memory_type, stores_masked
from minigrad.codegen.render.refs import Memory, Ref
from minigrad.codegen.render.statements import block
from minigrad.dtype import bool_
from minigrad.errors import present
from minigrad.expr import Index
from minigrad.value import value_atoms, values_inside

if TYPE_CHECKING:
    from minigrad.codegen.render.llvm_memory import LlvmAccess

NEAR = 4
"""Columns of a square that a load of each row has, where the loop reads no more of them than these."""

Corner = tuple[str, Index]
"""The buffer of a square, and the index of its first element there."""


class Transposes:
    """`vectors`: the present vector loop; `sums_up`: it has accumulators; `inside`: the block around what is emitted,
    of which all statements run.

    `columns_read`: the columns of squares that the vector loop reads. `whole`: the squares of which the block reads all
    columns, each under the same conditions; `parts`: those of which it reads `NEAR` columns. They are found when they
    are first needed.
    """

    def __init__(self, access: LlvmAccess):
        self.access, self.out, self.language = access, access.out, access.language
        self.vectors: Loop | None = None
        self.sums_up = False
        self.inside: Sequence[Stmt] = ()
        self.columns_read: dict[Corner, set[int]] | None = None
        self.whole: dict[Corner, list[Conditions]] | None = None
        self.parts: dict[Corner, list[Conditions]] | None = None

    def enter(self, vectors: Loop, sums_up: bool) -> None:
        """Begins a vector loop."""
        self.vectors, self.columns_read, self.sums_up = vectors, None, sums_up

    def region(self, body: Sequence[Stmt]) -> None:
        """A block of which all statements run if one does."""
        outer = self.inside, self.whole, self.parts
        self.inside, self.whole, self.parts = body, None, None
        block(self.out, body)
        self.inside, self.whole, self.parts = outer

    def load(self, memory: Memory, start: Index, stride: Index, mask: Ref | None, floor: int) -> Ref | None:
        """A column of a square of rows `stride` apart, transposed in registers: its other columns share the work.

        None where the loop reads too small a part of them, or the square is not known to be inside the buffer; none
        beside accumulators, whose registers a square would take.
        """
        column = (start if isinstance(start, int) else start.const) % self.out.width
        corner = start - column
        at = column % NEAR
        with self.looking_ahead():
            masks = self.masks_of_parts(memory, corner, start - at, mask)
        if masks is not None:
            return self.four(self.load_parts(memory, start - at, stride, masks, floor), at)
        with self.looking_ahead():
            masks = self.masks_of_rows(memory, corner, stride, mask)
        if masks is None:
            return None
        rows = [self.access.load_block(memory, corner + stride * i, m, floor) for i, m in enumerate(masks)]
        return self.transposed(rows, column)

    @contextmanager
    def looking_ahead(self) -> Iterator[None]:
        """For looks at other copies of statements: the numbers of this one are back after it."""
        copies = self.out.copies
        here = copies.copy
        copies.copy = dict(here)
        yield
        copies.copy = here

    def load_parts(self, memory: Memory, corner: Index, stride: Index, masks: list[Ref | None], floor: int
                   ) -> list[Ref]:
        """`NEAR` elements of each row: those of row 4b + r are lanes 4b.. of vector r."""
        kind, align, rows = memory_type(memory.dtype), memory.dtype.itemsize, list[Ref]()
        for m, p in zip(masks, self.row_pointers(memory, corner, stride), strict=True):
            p = self.access.safe_pointer(memory, p, m, NEAR)
            text = f"load <{NEAR} x {kind}>, ptr {p.text}, align {align}"
            rows.append(self.access.fetch(memory, text, NEAR, (p,), floor))
        made = []
        for r in range(NEAR):
            parts = rows[r::NEAR]
            while len(parts) > 1:
                pairs = zip(parts[::2], parts[1::2], strict=True)
                parts = [self.language.shuffle(x, y, range(2 * x.lanes)) for x, y in pairs]
            made += parts
        return made

    def row_pointers(self, memory: Memory, corner: Index, stride: Index) -> list[Ref]:
        """Pointers to the start of each row of a square. Of a stride that is an argument, multiples up to `NEAR` are
        enough: more of them than there are registers would be read from the stack in each iteration."""
        if isinstance(stride, int):
            return [self.access.pointer(memory, corner + stride * i) for i in range(self.out.width)]
        steps = [index(self.out, stride * i) for i in range(1, NEAR + 1)]
        made = [self.access.pointer(memory, corner)]
        while len(made) < self.out.width:
            start, step = made[-1 - (len(made) - 1) % NEAR], steps[(len(made) - 1) % NEAR]
            made.append(self.access.moved(start, step.text, step))
        return made

    def masks_of_parts(self, memory: Memory, corner: Index, part: Index, mask: Ref | None) -> list[Ref | None] | None:
        """The mask of each row of a square of which the loop wants `NEAR` columns and the block reads them all, from
        `part` on; else None."""
        if self.out.width not in (8, 16) or self.sums_up or len(self.columns_of((memory.name, corner))) > NEAR:
            return None
        if self.parts is None:
            self.parts = self.read_whole(NEAR)
        return self.masks_in(self.parts, (memory.name, part), mask)

    def masks_of_rows(self, memory: Memory, corner: Index, stride: Index, mask: Ref | None) -> list[Ref | None] | None:
        """The mask of each row, or None where rows are not to be read."""
        width, place = self.out.width, (memory.name, corner)
        if width not in (4, 8, 16) or self.sums_up:
            return None
        if mask is None and self.wanted(place) and in_bounds(self.out, memory, corner):
            if in_bounds(self.out, memory, corner + (stride + 1) * (width - 1)):
                return [None] * width
            last = max(self.columns_of(place))
            end = corner + last + stride * (width - 1)
            if stores_masked(memory.dtype, self.out.target) and in_bounds(self.out, memory, end):
                lanes = ", ".join(f"i1 {'true' if lane <= last else 'false'}" for lane in range(width))
                return [Ref(f"<{lanes}>", bool_, width)] * width
        if self.whole is None:
            self.whole = self.read_whole(width)
        return self.masks_in(self.whole, place, mask)

    def masks_in(self, found: dict[Corner, list[Conditions]], place: Corner, mask: Ref | None
                 ) -> list[Ref | None] | None:
        """The masks of the rows of a square that is read under conditions which make this mask of a column."""
        for conditions in found.get(place, ()):
            if mask_of(self.out, conditions) is mask:
                return [mask_of(self.out, conditions, lane) for lane in range(self.out.width)]
        return None

    def wanted(self, place: Corner) -> bool:
        """True where the vector loop reads a quarter of the columns or more."""
        return 4 * len(self.columns_of(place)) >= self.out.width

    def columns_of(self, place: Corner) -> set[int]:
        """The numbers of the columns of a square that the vector loop reads."""
        if self.columns_read is None:
            vectors = present(self.vectors, "[render] expected a vector loop around squares")
            self.columns_read = {}
            for name, corner, at, _ in self.columns(self.out.copies.everywhere(vectors.body)):
                self.columns_read.setdefault((name, corner), set()).add(at)
        return self.columns_read.get(place, set())

    def read_whole(self, count: int) -> dict[Corner, list[Conditions]]:
        """The places where the block reads `count` columns beside each other under the same conditions, those of their
        rows."""
        columns: dict[tuple[Corner, Conditions], set[int]] = {}
        for name, corner, at, conditions in self.columns(self.out.copies.straight(self.inside)):
            place = name, corner + at // count * count
            columns.setdefault((place, conditions), set()).add(at % count)
        found: dict[Corner, list[Conditions]] = {}
        for (place, conditions), read in columns.items():
            if len(read) == count and not any([value_atoms(c) for c in conditions]):
                found.setdefault(place, []).append(conditions)
        return found

    def columns(self, body: Iterable[Stmt]) -> Iterator[tuple[str, Index, int, Conditions]]:
        """(buffer, corner, number, conditions) of each column that stores and other statements read."""
        for s in body:
            own = self.out.copies.left(s.conditions) if type(s) is Store else ()
            if own is None:
                continue
            roots = (*values(s), *values_inside(indices(s)))
            for v, conditions in guarded_loads(roots, own, self.out.copies.left):
                name, (offset,) = v.buffer, v.indices
                far = far_step(self.out, self.out.copies.at(offset))
                if far is not None:
                    start = far[0]
                    at = (start if isinstance(start, int) else start.const) % self.out.width
                    yield name, start - at, at, conditions

    def four(self, rows: list[Ref], column: int) -> Ref:
        """Four rows transposed in each block of four lanes: a column of them."""
        width = self.out.width
        pairs = [i // 2 + i % 2 * width + i // 4 * 2 for i in range(width)]  # 0, w, 1, w + 1; 4, ...
        twos = [i % 2 + i // 2 % 2 * width + i // 4 * 4 for i in range(width)]  # 0, 1, w, w + 1; 4, ...
        high, second = 2 * (column // 2 % 2), 2 * (column % 2)
        x, y = (self.language.shuffle(rows[r], rows[r + 1], [p + high for p in pairs]) for r in (0, 2))
        return self.language.shuffle(x, y, [p + second for p in twos])

    def transposed(self, rows: list[Ref], column: int) -> Ref:
        """A column of a square, given its rows."""
        width = self.out.width
        parts, block = [self.four(rows[g:g + 4], column) for g in range(0, width, 4)], column // 4
        while len(parts) > 1:
            # Of two parts the even or the odd blocks, so that the wanted one stays among fewer and fewer.
            chosen = [4 * b + i for b in range(block % 2, width // 4, 2) for i in range(4)]
            if width == 8:
                chosen = [4 * block + i for i in range(4)]
            picks = chosen + [width + i for i in chosen]
            parts = [self.language.shuffle(x, y, picks) for x, y in zip(parts[::2], parts[1::2], strict=True)]
            block //= 2
        return parts[0]
