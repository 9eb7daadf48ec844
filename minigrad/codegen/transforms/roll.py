"""Loop -> loop: unrolled loops of much code become serial ones, through memory.

Code is written out to keep a tile in registers. What is done once per tile, its stores, is as fast from the first-level
cache: where it is long, or only happens at edges, a loop over the tile's rows costs a compiler far less than their
copies.
"""
from __future__ import annotations

from minigrad.codegen.ir.nodes import Alloc, Function, If, Loop, Stmt, Store
from minigrad.codegen.ir.walk import Body, indices, map_blocks, map_function, names, statements
from minigrad.codegen.kernel.value_walk import guarded_loads, replace_values
from minigrad.errors import InternalError
from minigrad.expr import Index, Var, product, variables
from minigrad.value import Value, const, guard, load, value_atoms, walk

LONG, LONG_AT_EDGE = 256, 64
"""The most lines of code that copies may have together; the second for stores under conditions."""

LIGHT = 20
"""Lines of a copy up to which the columns of an in-register transpose are written out."""

GATHER, MAX_STRIDE = 4, 4
"""Lines per lane of a read or a store whose lanes are further apart than `MAX_STRIDE` elements, and that distance."""

HEAVY = {"exp": 20, "log": 25, "sigmoid": 25, "tanh": 35, "erf": 40, "sin": 50, "cos": 50, "pow": 70, "rem": 40,
         "across": 16}
"""Lines of operations that are not one instruction."""


def roll(function: Function, transposing: bool = True) -> Function:
    """Makes unrolled loops over stores serial where their copies would be long, the outermost first, as far as needed.
    `transposing`: the language transposes in registers, and copies share that work.

        for u in 0..8 unroll:                          alloc tile: f32[8] scratch
          y[u] = exp(acc[u])               ->          for u_ in 0..8 unroll:
                                                         tile[u_] = acc[u_]
                                                       for u in 0..8 serial:
                                                         y[u] = exp(tile[u])

    Loops that store to register buffers stay.
    """
    if not any(type(s) is Loop and s.kind == "unroll" for s in statements(function)):
        return function
    return map_function(function, _Roller(function, transposing).body)


class _Roller:
    """`registers` are the register buffers of the function; `lane` and `width` belong to the enclosing vector loop;
    `sums_up` is True where that has register buffers, as accumulators."""

    def __init__(self, function: Function, transposing: bool):
        self.transposing = transposing
        self.registers = {s.name: s for s in statements(function) if isinstance(s, Alloc) and s.scope == "register"}
        self.function = function
        self.used: set[str] | None = None
        self.tiles: dict[str, str] = {}
        self.lane: Var | None = None
        self.width, self.sums_up = 1, False

    def fresh(self, stem: str) -> str:
        if self.used is None:
            self.used = names(self.function)
        while stem in self.used:
            stem += "_"
        self.used.add(stem)
        return stem

    def body(self, body: Body) -> Body:
        made: list[Stmt] = []
        for s in body:
            if isinstance(s, (Loop, If)):
                made += self.statement(s)
            else:
                made.append(s)
        return tuple(made)

    def statement(self, s: Loop | If) -> list[Stmt]:
        if isinstance(s, Loop) and s.kind == "unroll":
            return self.rolled(s)
        if isinstance(s, Loop) and s.kind == "vector" and isinstance(s.stop, int):
            self.lane, self.width = s.var, s.stop
            self.sums_up = any(type(x) is Alloc and x.scope == "register" for x in statements(s.body))
            inner = map_blocks(s, self.body)
            self.lane, self.width = None, 1
            return [inner]
        return [map_blocks(s, self.body)]

    def rolled(self, s: Loop) -> list[Stmt]:
        """The loop, and before it copies of the register buffers that it reads, and of columns that are transposed in
        registers."""
        inside = list(statements((s,)))
        loops, stores = [x for x in inside if isinstance(x, Loop)], [x for x in inside if isinstance(x, Store)]
        copies = product(x.stop - x.start for x in loops)
        if len(loops) + len(stores) < len(inside) or any(x.kind != "unroll" for x in loops) \
                or not isinstance(copies, int) or any(x.buffer in self.registers for x in stores) \
                or any(value_atoms(e) for x in stores for e in (*indices(x), *_offsets(x))):
            return [s]
        lines = sum(self.lines(x) for x in stores)
        most = LONG_AT_EDGE if all(x.conditions for x in stores) else LONG
        if copies * lines <= most:
            return [s]
        made: list[Stmt] = []
        moved: dict[Value, Value] = {}
        found = self.transposes(stores, loops) if self.transposing and 4 * copies >= self.width else {}
        if found and (copies >= self.width or not any(found.values())):
            if len(stores) > 1 or len(found) > 1 or lines - GATHER * self.width < LIGHT:
                return [s]
            (read, conditions), = found.items()
            made, moved[read] = self.transposed(s, read, conditions, copies)
        for v in walk(*(x.value for x in stores)):
            if v.op == "load" and v.buffer in self.registers:
                name, (offset,) = v.buffer, v.indices
                made += self.copy(name)
                moved[v] = load(self.tiles[name], (offset,), v.dtype)
        self.tiles = {}
        return [*made, self.serial(s, copies * lines, most, moved)]

    def copy(self, name: str) -> list[Stmt]:
        """A register buffer's values in memory, where they are not yet."""
        if name in self.tiles:
            return []
        buffer, tile, slot = self.registers[name], self.fresh(f"tile_{name}"), self.fresh("slot")
        self.tiles[name], x = tile, Var(slot, 0, self.registers[name].size - 1)
        kept = Store(tile, x, load(name, (x,), buffer.dtype))
        return [Alloc(tile, buffer.dtype, buffer.size, "scratch"), Loop(x, 0, buffer.size, "unroll", (kept,))]

    def transposed(self, s: Stmt, read: Value, conditions: tuple[Index, ...], copies: int) -> tuple[list[Stmt], Value]:
        """Statements that put the columns that the copies read across lanes, where conditions hold, into memory,
        transposed in registers; and a read of that memory."""
        tile, inner = self.fresh("columns"), s
        place: Index = 0
        loops: list[Loop] = []
        while isinstance(inner, Loop):
            place = place * (inner.stop - inner.start) + inner.var - inner.start
            loops.append(inner)
            inner, = inner.body
        made: Stmt = Store(tile, place, guard(read, const(0, read.dtype), conditions))
        for x in reversed(loops):
            made = Loop(x.var, x.start, x.stop, x.kind, (made,))
        return [Alloc(tile, read.dtype, copies, "scratch"), made], load(tile, (place,), read.dtype)

    def serial(self, s: Stmt, lines: int, most: int, moved: dict[Value, Value]) -> Stmt:
        """Loops from the outermost on made serial until what is left to be written out is short."""
        if isinstance(s, Loop):
            count = s.stop - s.start
            if not isinstance(count, int):
                raise InternalError(f"[roll] expected a known number of copies, got {count}")
            kind = "serial" if lines > most // 2 else "unroll"
            left = lines // max(count, 1) if kind == "serial" else lines
            return Loop(s.var, s.start, s.stop, kind, tuple([self.serial(x, left, most, moved) for x in s.body]))
        if not isinstance(s, Store):
            raise InternalError(f"[roll] expected loops around stores, got {type(s).__name__}")
        return Store(s.buffer, s.offset, replace_values(s.value, moved), s.conditions)

    def transposes(self, stores: list[Store], loops: list[Loop]) -> dict[Value, tuple[Index, ...]]:
        """Reads of which the copies take columns of one in-register transpose, and the conditions of each: they share
        the work. None where conditions differ by column, or beside accumulators: those are read one by one."""
        own = {x.var for x in loops}
        found: dict[Value, tuple[Index, ...]] = {}
        for s in stores:
            for v, conditions in guarded_loads((s.value,), s.conditions, lambda conditions: conditions):
                offset, = v.indices
                if not self.is_scattered(offset) or not steps_by_columns(offset, own):
                    continue
                if found.setdefault(v, conditions) != conditions or (conditions and self.sums_up) or \
                        any(not own.isdisjoint(variables(c)) for c in conditions):
                    return {}
                found[v] = conditions
        return found

    def is_scattered(self, e: Index) -> bool:
        """True where lanes are further apart than `MAX_STRIDE` elements, or by an argument."""
        return not isinstance(e, int) and any([self.lane in m and (len(m) > 1 or abs(step) > MAX_STRIDE)
                                               for m, step in e.terms])

    def lines(self, s: Store) -> int:
        """An estimate of the lines of code that a store takes."""
        total = 3 + 2 * len(s.conditions) + (GATHER * self.width if self.is_scattered(s.offset) else 0)
        for v in walk(s.value):
            if v.op == "load":
                total += 1 if v.buffer in self.registers else 2
                total += GATHER * self.width if self.is_scattered(v.indices[0]) else 0
            elif v.op not in ("const", "local"):
                total += HEAVY.get(v.op, 1)
        return total


def steps_by_columns(offset: Index, own: set[Var]) -> bool:
    """True where copies by `own` variables read elements beside each other."""
    return not isinstance(offset, int) and any([len(m) == 1 and m[0] in own and abs(step) <= MAX_STRIDE
                                                for m, step in offset.terms])


def _offsets(s: Store) -> list[Index]:
    return [e for v in walk(s.value) if v.op == "load" for e in v.indices]
