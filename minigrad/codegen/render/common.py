"""What both renderers share: a scoped emitter that numbers values and places each in the outermost loop it can live in.

Every instruction goes through `Emitter.pure`, which knows the scope (function, loop, branch) of each operand. It puts the
instruction at the end of the deepest of those scopes, so that whatever does not depend on a loop leaves it, and it
returns the earlier result when the same text was emitted before. Address polynomials are summed by loop level, outer
terms first, so that an inner loop only adds what it changes. A renderer supplies the texts: see the abstract methods.
"""
from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from minigrad.codegen.ir.nodes import Alloc, Barrier, Function, If, Let, Loop, Stmt, Store
from minigrad.codegen.monoid import MONOIDS
from minigrad.dtype import DType, bool_, float32, int64, uint16, uint32
from minigrad.errors import InternalError
from minigrad.expr import Atom, FloorDiv, Index, Max, Min, Mod, Opaque, Var, bounds, prove_nonneg, subs, to_text
from minigrad.value import BINARY, UNARY, Value, ValueIndex, indices_of, value_atoms, walk


# The type of index arithmetic: 64 bits unless a renderer knows that less is enough.
INDEX = DType("index", "i", 64, int64.np)


class Ref:
    """An emitted value: its text, element type, lanes (1: a scalar), and the scope level that defines it (0: function).

    `zero_outside` is the mask outside which it is known to be zero (a masked load); `literal` a constant's number.
    """

    __slots__ = ("text", "dtype", "lanes", "level", "zero_outside", "literal")

    def __init__(self, text: str, dtype: DType, lanes: int = 1, level: int = 0):
        self.text, self.dtype, self.lanes, self.level = text, dtype, lanes, level
        self.zero_outside: Ref | None = None
        self.literal: int | float | bool | None = None


class Scope:
    """The lines of one block and the values defined in it. Loads may leave it for the enclosing one if `crossable`.

    `entry` and `label` name its first and its present basic block, for a renderer that has such.
    """

    __slots__ = ("lines", "known", "crossable", "entry", "label")

    def __init__(self, crossable: bool, label: str = "entry"):
        self.lines: list[str] = []
        self.known: dict[tuple, Ref] = {}
        self.crossable = crossable
        self.entry = self.label = label


class Memory:
    """A buffer of the function. `place`: 'in', 'out', 'inout', 'scratch' or 'register'; `text` is its pointer.

    `lanes` > 1: one copy per lane (allocated inside a vector loop); `slots` are the variables of a register buffer.
    """

    __slots__ = ("name", "dtype", "size", "place", "text", "lanes", "slots", "version")

    def __init__(self, name: str, dtype: DType, size: Index, place: str, text: str, lanes: int = 1):
        self.name, self.dtype, self.size, self.place, self.text, self.lanes = name, dtype, size, place, text, lanes
        self.slots: tuple[str, ...] = ()
        self.version = 0  # counts its stores: a load of what may be stored to is shared within one version


def argument_kinds(function: Function) -> tuple[str, ...]:
    """What `Program.arguments` says: 'buffer:<bytes per element>', a scalar's type, 'i64' for a dim."""
    return (*(f"buffer:{b.dtype.itemsize}" for b in function.buffers), *(s.dtype.short for s in function.scalars),
            *("i64" for _ in function.dims))


class Emitter(ABC):
    """Walks one Function. `scopes[0]` is the function; `lane`, `width` describe the enclosing vector loop, if any.

    A renderer may do such a loop in parts: lanes from `first_lane` on, `real_width` of the `width` lanes of its types.
    """

    def __init__(self, function: Function):
        self.function = function
        self.scopes = [Scope(crossable=False)]
        self.counter = 0
        self.lane: Var | None = None
        self.width = self.real_width = 1
        self.first_lane = 0
        self.locals: dict[str, Ref] = {}
        self.variables: dict[Var, Ref] = {}
        self.memory: dict[str, Memory] = {}
        self.memo: dict[tuple[Value, Ref | None], Ref] = {}
        self.loading: dict[Value, bool] = {}
        self.under: Ref | None = None
        self.literals: dict[tuple, Ref] = {}
        self.epoch = 0

    # ---- texts that a renderer supplies ----

    @abstractmethod
    def definition(self, ref: Ref, text: str) -> str:
        """The line that defines `ref` as `text`."""

    @abstractmethod
    def literal(self, value: int | float | bool, dtype: DType) -> str:
        """A scalar literal."""

    @abstractmethod
    def splat(self, x: Ref, lanes: int) -> Ref:
        """A scalar in every lane."""

    @abstractmethod
    def gather_lanes(self, parts: Sequence[Ref]) -> Ref:
        """A vector of scalars."""

    @abstractmethod
    def extract(self, x: Ref, lane: int) -> Ref:
        """One lane of a vector."""

    @abstractmethod
    def integer(self, op: str, x: Ref, y: Ref, small: bool = False) -> Ref:
        """Index arithmetic on scalars: add, mul, min, max, div and mod of non-negative numbers (`small`: of 32 bits),
        fdiv and fmod that floor."""

    @abstractmethod
    def at_least(self, x: Ref, limit: int) -> Ref:
        """x >= limit for a scalar index."""

    @abstractmethod
    def lanes_at_least(self, x: Ref, limits: Sequence[int], small: bool) -> Ref:
        """x >= limits[lane] in each lane, for a scalar index; `small`: all of it fits 32 bits."""

    @abstractmethod
    def operation(self, op: str, args: Sequence[Ref], dtype: DType) -> Ref:
        """A unary, binary, fma or where Value op; vector operands have equal lanes, a `where` condition may be scalar."""

    @abstractmethod
    def convert(self, x: Ref, dtype: DType) -> Ref:
        """The cast of `value.py`; also to and from INDEX."""

    @abstractmethod
    def reinterpret(self, x: Ref, dtype: DType) -> Ref:
        """The bitcast of `value.py`."""

    @abstractmethod
    def across(self, combine: str, x: Ref) -> Ref:
        """All lanes combined in a fixed tree; a scalar."""

    @abstractmethod
    def any_lane(self, mask: Ref) -> Ref:
        """True if a lane of a mask is."""

    @abstractmethod
    def load_scalar(self, memory: Memory, offset: Index, lane: int | None, mask: Ref | None, floor: int) -> Ref:
        """One element, in memory only read where the scalar mask is true; not placed outside scope level `floor`."""

    @abstractmethod
    def load_vector(self, memory: Memory, start: Index, stride: int, mask: Ref | None, floor: int) -> Ref | None:
        """`width` elements at start + lane * stride, or None if there is no better way than one by one."""

    @abstractmethod
    def store_scalar(self, memory: Memory, offset: Index, lane: int | None, value: Ref, mask: Ref | None) -> None:
        """One element, where the scalar mask is true."""

    @abstractmethod
    def store_vector(self, memory: Memory, start: Index, value: Ref, mask: Ref | None) -> None:
        """`width` elements at consecutive offsets, where the mask (scalar or vector) is true."""

    @abstractmethod
    def read_slot(self, memory: Memory, slot: int) -> Ref:
        """The present value of an element of a register buffer."""

    @abstractmethod
    def write_slot(self, memory: Memory, slot: int, value: Ref) -> None:
        """Sets an element of a register buffer."""

    @abstractmethod
    def allocate(self, s: Alloc) -> Memory:
        """Declares a register or scratch buffer."""

    @abstractmethod
    def open_loop(self, s: Loop) -> tuple[Ref, object]:
        """The loop's variable (its level is the new scope's) and what `close_loop` needs; lines of bounds are out."""

    @abstractmethod
    def close_loop(self, s: Loop, inner: Scope, state: object) -> None:
        """Appends the finished loop to the current scope."""

    @abstractmethod
    def close_if(self, condition: Ref, then: Scope, otherwise: Scope | None) -> None:
        """Appends a branch on a scalar condition to the current scope."""

    @abstractmethod
    def barrier(self) -> None:
        """Joins the work-items of one group."""

    @abstractmethod
    def comment(self, text: str) -> None:
        """A remark in the source."""

    # ---- placing instructions ----

    @property
    def scope(self) -> Scope:
        return self.scopes[-1]

    def name(self, hint: str) -> str:
        self.counter += 1
        return f"{hint}{self.counter}"

    def constant(self, value: int | float | bool, dtype: DType) -> Ref:
        key = (repr(value), dtype)
        if key not in self.literals:
            ref = self.literals[key] = Ref(self.literal(value, dtype), dtype)
            ref.literal = value
        return self.literals[key]

    def pure(self, text: str, dtype: DType, lanes: int, operands: Sequence[Ref], hint: str = "v", floor: int = 0) -> Ref:
        """The value `text`, defined in the outermost scope where its operands exist, not outside level `floor`."""
        level = 0
        for o in operands:
            if o.level > level:
                level = o.level
        key = (text, dtype, lanes)
        while True:
            scope = self.scopes[level]
            found = scope.known.get(key)
            if found is not None:
                return found
            if level >= floor:
                break
            level += 1
        ref = Ref(self.name(hint), dtype, lanes, level)
        scope.known[key] = ref
        scope.lines.append(self.definition(ref, text))
        return ref

    def here(self, text: str, dtype: DType, lanes: int, memory: Memory, hint: str = "v") -> Ref:
        """A value read from `memory` at this very place; shared until something may have been stored there."""
        key = (text, dtype, lanes, memory.text, memory.version, self.epoch)
        ref = self.scope.known.get(key)
        if ref is None:
            ref = self.scope.known[key] = Ref(self.name(hint), dtype, lanes, len(self.scopes) - 1)
            self.scope.lines.append(self.definition(ref, text))
        return ref

    def load_floor(self, memory: Memory, proven: bool) -> int:
        """The outermost level that a load may move to: past loops that run, past anything if it is always in bounds."""
        top = len(self.scopes) - 1
        if memory.place != "in":
            return top
        return 0 if proven else self.safe_floor()

    def safe_floor(self) -> int:
        """The outermost level for what may trap: it stays inside branches and loops that may not run."""
        top = len(self.scopes) - 1
        while top > 0 and self.scopes[top].crossable:
            top -= 1
        return top

    # ---- index expressions ----

    def sums(self, e: Index, lane: int | None = None) -> tuple[list[Ref], int]:
        """`e` as one partial sum per loop level, outermost first, and its constant. `lane` stands for the lane index."""
        if lane is not None and self.lane is not None and not value_atoms(e):
            e, lane = subs(e, {self.lane: self.first_lane + lane}), None
        if isinstance(e, int):
            return [], e
        levels: dict[int, Ref] = {}
        constant = e.const
        for monomial, coefficient in e.terms:
            factors = sorted((self.atom(a, lane) for a in monomial), key=lambda r: r.level)
            product = factors[0] if coefficient == 1 else None
            for f in factors if product is None else factors[1:]:
                left = self.constant(coefficient, INDEX) if product is None else product
                product = self.integer("mul", left, f)
            assert product is not None
            known = levels.get(product.level)
            levels[product.level] = product if known is None else self.integer("add", known, product)
        return [levels[level] for level in sorted(levels)], constant

    def total(self, parts: list[Ref], constant: int) -> Ref:
        """The sum of what `sums` returns."""
        result: Ref | None = None
        for p in parts:
            result = p if result is None else self.integer("add", result, p)
        if result is None:
            return self.constant(constant, INDEX)
        return self.integer("add", result, self.constant(constant, INDEX)) if constant else result

    def index(self, e: Index, lane: int | None = None) -> Ref:
        """A scalar index."""
        return self.total(*self.sums(e, lane))

    def atom(self, a: Atom, lane: int | None) -> Ref:
        if isinstance(a, Var):
            if a is self.lane:
                if lane is None:
                    raise InternalError(f"[render] {self.function.name}: lane {a.name} used where a scalar is needed")
                return self.constant(self.first_lane + lane, INDEX)
            if a not in self.variables:
                raise InternalError(f"[render] {self.function.name}: unbound index variable {a.name}")
            return self.variables[a]
        if isinstance(a, ValueIndex):
            x = self.value(a.value, self.under)
            if x.lanes > 1:
                if lane is None:
                    raise InternalError(f"[render] {self.function.name}: an index that differs by lane needs a lane")
                x = self.extract(x, lane)
            return self.convert(x, INDEX)
        if isinstance(a, Opaque):
            return self.index(a.inner, lane)
        if isinstance(a, Min | Max):
            return self.integer("min" if isinstance(a, Min) else "max", self.index(a.a, lane), self.index(a.b, lane))
        if isinstance(a, FloorDiv | Mod):
            return self.division(a, lane)
        raise InternalError(f"[render] {self.function.name}: cannot render index {to_text(a)}")

    def division(self, a: FloorDiv | Mod, lane: int | None) -> Ref:
        """Floor division of a possibly negative number by a constant is shifted to be one of a non-negative number."""
        (lo, hi), op = bounds(a.a), "div" if isinstance(a, FloorDiv) else "mod"
        x, y = self.index(a.a, lane), self.index(a.b, lane)
        if lo >= 0:
            return self.integer(op, x, y, small=hi < 2**31 and bounds(a.b)[1] < 2**31)
        if not isinstance(a.b, int) or lo < -2**62:
            return self.integer("f" + op, x, y)
        shift = -(lo // a.b)
        x = self.integer("add", x, self.constant(shift * a.b, INDEX))
        q = self.integer(op, x, y, small=hi + shift * a.b < 2**31)
        return self.integer("add", q, self.constant(-shift, INDEX)) if op == "div" else q

    def varies(self, a: Atom) -> bool:
        """Whether an atom differs from lane to lane."""
        if self.lane is None:
            return False
        if isinstance(a, Var):
            return a is self.lane
        if isinstance(a, ValueIndex):
            return self.value(a.value, self.under).lanes > 1
        return any(self.varies(f) for e in a.children() if not isinstance(e, int) for m, _ in e.terms for f in m)

    def by_lane(self, e: Index) -> tuple[Index, int] | None:
        """(rest, stride) with e = rest + stride * lane and nothing else that varies, or None."""
        if isinstance(e, int) or self.lane is None:
            return e, 0
        stride = 0
        for monomial, coefficient in e.terms:
            if monomial == (self.lane,):
                stride = coefficient
            elif any(self.varies(a) for a in monomial):
                return None
        return (e + stride * (self.first_lane - self.lane) if stride else e), stride

    # ---- conditions ----

    def conjunction(self, x: Ref | None, y: Ref | None) -> Ref | None:
        """Both masks; None is always true."""
        if x is None or y is None or x is y:
            return x if y is None else y
        lanes = max(x.lanes, y.lanes)
        return self.operation("and", [self.spread(x, lanes), self.spread(y, lanes)], bool_)

    def conditions(self, conditions: Sequence[Index], lane: int | None = None) -> Ref | None:
        """The mask of all of them (scalar if none differs by lane), None if there are none to check."""
        uniform: Ref | None = None
        varying: Ref | None = None
        for e in conditions:
            if isinstance(e, int):
                if e < 0:
                    return self.constant(False, bool_)
                continue
            mask = self.condition(e, lane)
            if mask.lanes > 1:
                varying = self.conjunction(varying, mask)
            else:
                uniform = self.conjunction(uniform, mask)
        return self.conjunction(uniform, varying)

    def condition(self, e: Index, lane: int | None) -> Ref:
        split = (e, 0) if lane is not None else self.by_lane(e)
        if split is None:
            parts = [self.condition(e, i) for i in range(self.width)]
            return self.gather_lanes(parts)
        rest, stride = split
        sums, constant = self.sums(rest, lane)
        if not stride:
            return self.at_least(self.total(sums, 0), -constant)
        limits = [-constant - stride * i for i in range(self.width)]
        lo, hi = bounds(rest)
        small = -2**31 < min(lo - constant, *limits) and max(hi - constant, *limits) < 2**31
        return self.lanes_at_least(self.total(sums, 0), limits, small)

    # ---- values ----

    def spread(self, x: Ref, lanes: int) -> Ref:
        return x if x.lanes == lanes else self.splat(x, lanes)

    def _note_loads(self, root: Value) -> None:
        if root in self.loading:
            return
        for v in walk(root):
            if v not in self.loading:
                inside = (a.value for e in indices_of(v) for a in value_atoms(e))
                self.loading[v] = v.op == "load" or any(self.loading[a] for a in (*v.args, *inside))

    def value(self, root: Value, mask: Ref | None = None) -> Ref:
        """Emits a value whose loads happen only where `mask` is true; iterative, each part once per statement."""
        self._note_loads(root)
        stack: list[tuple[Value, Ref | None, bool]] = [(root, mask, False)]
        while stack:
            v, m, ready = stack.pop()
            if not self.loading[v]:
                m = None
            if (v, m) in self.memo:
                continue
            if ready:
                self.memo[v, m] = self.emit(v, m)
                continue
            stack.append((v, m, True))
            if v.op == "guard":
                stack.append((v.args[1], m, False))
                stack.append((v.args[0], self.conjunction(m, self._own_mask(v, m)), False))
            else:
                stack.extend((a, m, False) for a in v.args)
        return self.memo[root, mask if self.loading[root] else None]

    def _own_mask(self, v: Value, under: Ref | None) -> Ref | None:
        saved, self.under = self.under, under
        mask = self.conditions(v.attr)  # type: ignore[arg-type]
        self.under = saved
        return mask

    def operand(self, v: Value, mask: Ref | None) -> Ref:
        return self.memo[v, mask if self.loading[v] else None]

    def emit(self, v: Value, mask: Ref | None) -> Ref:
        """One Value whose operands are in the memo."""
        op = v.op
        if op == "const":
            return self.constant(v.attr, v.dtype)  # type: ignore[arg-type]
        if op == "local":
            return self.locals[v.attr]  # type: ignore[index]
        if op == "index":
            return self.index_value(v, mask)
        if op == "load":
            name, (offset,) = v.attr  # type: ignore[misc]
            return self.load(self.memory[name], offset, mask)
        if op == "guard":
            return self.guarded(v, mask)
        args = [self.operand(a, mask) for a in v.args]
        if op == "across":
            return self.across(MONOIDS[v.attr].combine, self.spread(args[0], self.width))  # type: ignore[index]
        if op == "cast":
            return self.convert(args[0], v.dtype)
        if op == "bitcast":
            return self.reinterpret(args[0], v.dtype)
        lanes = max(a.lanes for a in args)
        if op == "where":
            return self.operation(op, [args[0], self.spread(args[1], lanes), self.spread(args[2], lanes)], v.dtype)
        if op in UNARY or op in BINARY or op == "fma":
            return self.operation(op, [self.spread(a, lanes) for a in args], v.dtype)
        raise InternalError(f"[render] {self.function.name}: cannot render value {op}")

    def guarded(self, v: Value, mask: Ref | None) -> Ref:
        own = self._own_mask(v, mask)
        both = self.conjunction(mask, own)
        inside, otherwise = self.operand(v.args[0], both), self.operand(v.args[1], mask)
        if own is None:
            return inside
        zero = v.args[1].op == "const" and repr(v.args[1].attr) in ("0", "0.0", "False")
        if zero and inside.zero_outside is not None and inside.zero_outside is both and own is both:
            return inside
        lanes = max(own.lanes, inside.lanes, otherwise.lanes)
        args = [own, self.spread(inside, lanes), self.spread(otherwise, lanes)]
        return self.operation("where", args, v.dtype)

    def index_value(self, v: Value, mask: Ref | None) -> Ref:
        """An index as a value: `rest + stride * lane` in the value's own type, which wraps alike."""
        saved, self.under = self.under, mask
        split = self.by_lane(v.attr)  # type: ignore[arg-type]
        if split is None:
            parts = [self.convert(self.index(v.attr, i), v.dtype) for i in range(self.width)]  # type: ignore[arg-type]
            result = self.gather_lanes(parts)
        else:
            result = self.convert(self.index(split[0]), v.dtype)
            if split[1]:
                steps = self.gather_lanes([self.constant(split[1] * i, v.dtype) for i in range(self.width)])
                result = self.operation("add", [self.splat(result, self.width), steps], v.dtype)
        self.under = saved
        return result

    # ---- half types ----

    def every(self, value: int | float, dtype: DType, lanes: int) -> Ref:
        """A constant in every lane."""
        return self.spread(self.constant(value, dtype), lanes)

    def bits_to_half(self, x: Ref) -> Ref:
        """float16 bits (uint16) -> float32, exact, without subnormal float32 on the way."""
        def op(name: str, a: Ref, b: int) -> Ref:
            return self.operation(name, (a, self.every(b, uint32, x.lanes)), uint32)

        wide = self.convert(x, uint32)
        size = op("and", wide, 0x7FFF)
        shifted = op("shl", size, 13)
        tiny = self.operation("mul", (self.convert(size, float32), self.every(2.0**-24, float32, x.lanes)), float32)
        small = self.operation("lt", (size, self.every(0x400, uint32, x.lanes)), bool_)
        usual = self.operation("lt", (size, self.every(0x7C00, uint32, x.lanes)), bool_)
        bits = self.operation("where", (usual, op("add", shifted, 0x38000000), op("add", shifted, 0x70000000)), uint32)
        bits = self.operation("where", (small, self.reinterpret(tiny, uint32), bits), uint32)
        sign = op("shl", op("and", wide, 0x8000), 16)
        return self.reinterpret(self.operation("or", (bits, sign), uint32), float32)

    def half_to_bits(self, x: Ref) -> Ref:
        """float32 -> float16 bits (uint16), to nearest even."""
        def op(name: str, a: Ref, b: Ref | int) -> Ref:
            return self.operation(name, (a, self.every(b, uint32, x.lanes) if isinstance(b, int) else b), uint32)

        def below(limit: int, yes: Ref, no: Ref) -> Ref:
            test = self.operation("lt", (size, self.every(limit, uint32, x.lanes)), bool_)
            return self.operation("where", (test, yes, no), uint32)

        wide = self.reinterpret(x, uint32)
        size = op("and", wide, 0x7FFFFFFF)
        odd = op("and", op("shr", size, 13), 1)
        usual = op("shr", op("add", op("add", op("sub", size, 0x38000000), 0xFFF), odd), 13)
        # Adding 0.5 rounds to multiples of 2**-24, the spacing of subnormal halves.
        half = self.every(0.5, float32, x.lanes)
        shifted = self.operation("add", (self.reinterpret(size, float32), half), float32)
        tiny = op("sub", self.reinterpret(shifted, uint32), 0x3F000000)
        special = below(0x7F800001, self.every(0x7C00, uint32, x.lanes), self.every(0x7E00, uint32, x.lanes))
        bits = below(0x38800000, tiny, below(0x477FF000, usual, special))
        return self.convert(op("or", bits, op("shr", op("and", wide, 0x80000000), 16)), uint16)

    def bits_to_bfloat(self, x: Ref) -> Ref:
        """bfloat16 bits (uint16) -> float32, exact."""
        wide = self.operation("shl", (self.convert(x, uint32), self.every(16, uint32, x.lanes)), uint32)
        return self.reinterpret(wide, float32)

    def bfloat_to_bits(self, x: Ref) -> Ref:
        """float32 -> bfloat16 bits (uint16), to nearest even; NaN stays a quiet NaN."""
        def op(name: str, a: Ref, b: Ref | int) -> Ref:
            return self.operation(name, (a, self.every(b, uint32, x.lanes) if isinstance(b, int) else b), uint32)

        bits = self.reinterpret(x, uint32)
        high = op("shr", bits, 16)
        rounded = op("shr", op("add", op("add", bits, 0x7FFF), op("and", high, 1)), 16)
        nan = self.operation("ne", (x, x), bool_)
        return self.convert(self.operation("where", (nan, op("or", high, 0x40), rounded), uint32), uint16)

    # ---- memory ----

    def in_bounds(self, memory: Memory, offset: Index) -> bool:
        """Whether every offset that the variables' bounds allow is inside the buffer."""
        if isinstance(memory.size, int):
            lo, hi = bounds(offset)
            return 0 <= lo and hi < memory.size
        return prove_nonneg(offset) and prove_nonneg(memory.size - 1 - offset)

    def place_of(self, memory: Memory, offset: Index) -> Index:
        """Memory allocated inside a vector loop holds one element per lane at each offset."""
        if memory.lanes == 1 or self.lane is None:
            return offset
        return offset * memory.lanes + (self.lane - self.first_lane)

    def load(self, memory: Memory, offset: Index, mask: Ref | None) -> Ref:
        if memory.place == "register":
            return self.read_slot(memory, self.slot(memory, offset))
        if isinstance(memory.size, int) and memory.size == 0:
            return self.constant(0, memory.dtype)
        proven = self.in_bounds(memory, offset)
        if proven:
            mask = None
        floor, offset = self.load_floor(memory, proven), self.place_of(memory, offset)
        saved, self.under = self.under, mask
        split = self.by_lane(offset)
        result: Ref | None = None
        if split is not None and split[1] == 0:
            mask = self.any_lane(mask) if mask is not None and mask.lanes > 1 else mask
            result = self.load_scalar(memory, offset, None, mask, floor)
        elif split is not None:
            result = self.load_vector(memory, split[0], split[1], mask, floor)
        if result is None:
            lanes = [i if i < self.real_width else 0 for i in range(self.width)]
            masks = [self.extract(mask, i) if mask is not None and mask.lanes > 1 else mask for i in lanes]
            parts = [self.load_scalar(memory, offset, i, m, floor) for i, m in zip(lanes, masks, strict=True)]
            result = self.gather_lanes(parts)
        self.under = saved
        return result

    def slot(self, memory: Memory, offset: Index) -> int:
        if not isinstance(offset, int) or not 0 <= offset < len(memory.slots):
            raise InternalError(f"[render] {self.function.name}: register {memory.name}[{to_text(offset)}] "
                                f"expected a constant below {len(memory.slots)}; unroll the loop over it")
        return offset

    def store(self, s: Store) -> None:
        """A store under conditions that are the same in every lane is a branch; others are masked."""
        memory = self.memory[s.buffer]
        mask = self.conditions(s.conditions)
        if mask is not None and mask.lanes == 1 and memory.place != "register":
            self.branch(mask, (Store(s.buffer, s.offset, s.value),), ())
            return
        value = self.value(s.value, mask)
        if memory.place == "register":
            self.store_slot(memory, self.slot(memory, s.offset), value, mask)
            return
        offset = self.place_of(memory, s.offset)
        saved, self.under = self.under, mask
        split = self.by_lane(offset)
        if split is not None and split[1] == 0:
            if value.lanes > 1:
                raise InternalError(f"[render] {self.function.name}: store to {s.buffer}[{to_text(offset)}] "
                                    f"expected one value for all lanes, got one per lane")
            self.store_scalar(memory, offset, None, value, self.any_lane(mask) if mask is not None else None)
        elif split is not None and split[1] == 1:
            self.store_vector(memory, split[0], self.spread(value, self.width), mask)
        else:
            for i in range(self.real_width):
                part = self.extract(value, i) if value.lanes > 1 else value
                self.store_scalar(memory, offset, i, part, self.extract(mask, i) if mask is not None else None)
        memory.version += 1
        self.under = saved

    def store_slot(self, memory: Memory, slot: int, value: Ref, mask: Ref | None) -> None:
        if value.lanes > memory.lanes or (mask is not None and mask.lanes > memory.lanes):
            raise InternalError(f"[render] {self.function.name}: register {memory.name} was allocated outside the vector "
                                f"loop; expected one value for all lanes, got one per lane")
        value = self.spread(value, memory.lanes)
        if mask is not None:
            value = self.operation("where", [mask, value, self.read_slot(memory, slot)], memory.dtype)
        self.write_slot(memory, slot, value)

    # ---- statements ----

    def block(self, body: Sequence[Stmt]) -> None:
        """Statements in order; names given in it end with it."""
        locals_, memory = dict(self.locals), dict(self.memory)
        for s in body:
            self.memo = {}
            if isinstance(s, Let):
                self.locals[s.name] = self.value(s.value)
            elif isinstance(s, Store):
                self.store(s)
            elif isinstance(s, Loop):
                self.loop(s)
            elif isinstance(s, If):
                self.comment("if " + " and ".join(f"{to_text(e)} >= 0" for e in s.conditions))
                mask = self.conditions(s.conditions)
                if mask is not None and mask.lanes > 1:
                    raise InternalError(f"[render] {self.function.name}: an if inside a vector loop may not depend on the lane")
                self.branch(mask, s.then, s.otherwise)
            elif isinstance(s, Alloc):
                self.memory[s.name] = self.allocate(s)
            elif isinstance(s, Barrier):
                self.barrier()
        self.locals, self.memory = locals_, memory

    def loop(self, s: Loop) -> None:
        self.comment(f"for {s.var.name} in {to_text(s.start)}..{to_text(s.stop)} {s.kind}")
        if s.kind == "vector":
            if s.stop == 1:
                self.variables[s.var] = self.constant(0, INDEX)
                self.block(s.body)
                return
            if self.lane is not None or s.start != 0 or not isinstance(s.stop, int):
                raise InternalError(f"[render] {self.function.name}: vector loop {s.var.name} expected 0..constant, not nested")
            self.lane, self.width, self.real_width = s.var, s.stop, s.stop
            self.vector_body(s)
            self.lane, self.width, self.real_width = None, 1, 1
            return
        if s.kind == "unroll":
            raise InternalError(f"[render] {self.function.name}: loop {s.var.name} should have been unrolled")
        trips = s.stop - s.start
        if bounds(trips)[1] <= 0:
            return
        if trips == 1 and s.kind == "serial":
            self.variables[s.var] = self.index(s.start)
            self.block(s.body)
            return
        variable, state = self.open_loop(s)
        self.variables[s.var] = variable
        self.epoch += 1
        self.block(s.body)
        self.epoch += 1
        self.close_loop(s, self.scopes.pop(), state)

    def vector_body(self, s: Loop) -> None:
        """The statements of a vector loop for all its lanes."""
        self.block(s.body)

    def branch(self, mask: Ref | None, then: Sequence[Stmt], otherwise: Sequence[Stmt]) -> None:
        if mask is None:
            self.block(then)
            return
        sides: list[Scope | None] = []
        for body in (then, otherwise):
            if not body and sides:
                sides.append(None)
                continue
            self.epoch += 1
            self.scopes.append(Scope(crossable=False, label=self.name("branch.")))
            self.block(body)
            sides.append(self.scopes.pop())
        self.epoch += 1
        assert sides[0] is not None
        self.close_if(mask, sides[0], sides[1])
