"""Values in LLVM IR: literals, lanes, index arithmetic, arithmetic, conversions."""
from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from minigrad.codegen.render.halves import (
    bfloat_bits,
    bfloat_to_bits,
    bits_to_bfloat,
    bits_to_half,
    half_to_bits,
    round_to_float32,
)
from minigrad.codegen.render.language import Language
from minigrad.codegen.render.llvm_instructions import instruction_for
from minigrad.codegen.render.llvm_remainder import remainder
from minigrad.codegen.render.llvm_text import (
    lane_numbers,
    mangled,
    scalar_type,
    type_of,
    typed,
    vector,
)
from minigrad.codegen.render.refs import INDENT, INDEX, Ref, folded
from minigrad.dtype import DType, bfloat16, bool_, float16, float32, int32, uint8, uint16
from minigrad.errors import InternalError
from minigrad.value import Value

if TYPE_CHECKING:
    from minigrad.codegen.render.emitter import Emitter
    from minigrad.codegen.render.steps import Maker

_FLOAT = {"add": "fadd", "sub": "fsub", "mul": "fmul", "div": "fdiv"}
_INTEGER = {"add": "add", "sub": "sub", "mul": "mul", "and": "and", "or": "or", "xor": "xor", "shl": "shl"}
_SIGNED = {"idiv": "sdiv", "irem": "srem", "shr": "ashr", "lt": "icmp slt", "le": "icmp sle"}
_UNSIGNED = {"idiv": "udiv", "irem": "urem", "shr": "lshr", "lt": "icmp ult", "le": "icmp ule"}
_FLOAT_COMPARE = {"lt": "fcmp olt", "le": "fcmp ole", "eq": "fcmp oeq", "ne": "fcmp une"}

NEAR = 1 << 20
"""Lanes whose conditions compare with numbers below this one compare in 32 bits: half the registers, and the text of
every edge is compiled in four fifths of the time."""

_INTRINSICS = {"abs": "fabs", "sqrt": "sqrt", "floor": "floor", "ceil": "ceil", "trunc": "trunc", "round": "roundeven"}


@dataclass(slots=True)
class Tile:
    """The loop that sums up a register tile. `inside`: what is emitted is in one; `seen`: there was one; `odd`: one of
    several loops, or not of rows and columns; `counted`: its variable, if that begins at 0, and `strides` the number
    added there in each iteration, by the sum so far."""

    inside: bool = False
    seen: bool = False
    odd: bool = False
    counted: str = ""
    strides: dict[Ref, Ref] = field(default_factory=dict)


class LlvmLanguage(Language):
    """Values to instructions. `tile`: the loop that sums up a register tile, if it is inside one;
    `templates`: texts of operations by name, type and lanes; `helpers`: functions that the program needs, by name."""

    def __init__(self, out: Emitter):
        super().__init__(out)
        self.tile = Tile()
        self.templates: dict[tuple[str, DType, int], str] = {}
        self.helpers: dict[str, str] = {}

    def name(self, hint: str) -> str:
        out = self.out
        out.counter += 1
        return f"{hint}{out.counter}" if hint == "branch." else f"%{hint}.{out.counter}"

    def define(self, text: str, dtype: DType, lanes: int, level: int, hint: str) -> Ref:
        out = self.out
        out.counter += 1
        name = f"%{hint}.{out.counter}"
        out.scopes[level].lines.append(f"{INDENT[level + 1]}{name} = {text}")
        return Ref(name, dtype, lanes, level)

    def comment(self, text: str) -> None:
        self.out.line(f"; {text}")

    def instruction_for(self, v: Value) -> tuple[tuple[Value, ...], Maker] | None:
        return instruction_for(self.out, v)

    # ---- literals, lanes, indices ----

    def literal(self, value: int | float | bool, dtype: DType) -> str:
        if dtype is bool_:
            return "true" if value else "false"
        if dtype.is_int:
            return str(int(value))
        if dtype is float16:
            return str(struct.unpack("<H", struct.pack("<e", value))[0])
        if dtype is bfloat16:
            return str(bfloat_bits(value))
        if dtype is float32:
            value = round_to_float32(value)
        return "0x" + struct.pack(">d", value).hex().upper()

    def splat(self, x: Ref, lanes: int) -> Ref:
        kind = scalar_type(x.dtype)
        if x.literal is not None:
            ref = Ref(f"splat ({kind} {x.text})", x.dtype, lanes)
            ref.literal = x.literal
            return ref
        full = vector(kind, lanes)
        one = self.pure(f"insertelement {full} poison, {kind} {x.text}, i64 0", x.dtype, lanes, (x,), "one")
        text = f"shufflevector {full} {one.text}, {full} poison, <{lanes} x i32> zeroinitializer"
        return self.pure(text, x.dtype, lanes, (one,), "all")

    def gather_lanes(self, parts: Sequence[Ref]) -> Ref:
        kind, lanes, dtype = scalar_type(parts[0].dtype), len(parts), parts[0].dtype
        if all(p.literal is not None for p in parts):
            return Ref("<" + ", ".join(f"{kind} {p.text}" for p in parts) + ">", dtype, lanes)
        if all(p is parts[0] for p in parts):
            return self.splat(parts[0], lanes)
        result = Ref("poison", dtype, lanes)
        for i, p in enumerate(parts):
            text = f"insertelement {vector(kind, lanes)} {result.text}, {kind} {p.text}, i64 {i}"
            result = self.pure(text, dtype, lanes, (result, p), "ins")
        return result

    def extract(self, x: Ref, lane: int) -> Ref:
        return x if x.lanes == 1 else self.pure(f"extractelement {typed(x)}, i64 {lane}", x.dtype, 1, (x,), "lane")

    def shuffle(self, x: Ref, y: Ref | None, picks: Sequence[int]) -> Ref:
        """Lanes of x, then y, by number; negative: whatever."""
        second = f"{type_of(x)} {'poison' if y is None else y.text}"
        return self.pure(f"shufflevector {typed(x)}, {second}, {lane_numbers(tuple(picks))}", x.dtype, len(picks),
                         (x,) if y is None else (x, y), "shuf")

    def integer(self, op: str, x: Ref, y: Ref, small: bool = False, traps: bool = False) -> Ref:
        if op == "add" or op == "mul":
            if x.literal is not None or y.literal is not None:
                known = folded(op, x, y)
                if known is not None:
                    return known if isinstance(known, Ref) else self.constant(known, INDEX)
            if op == "mul" and y.text == self.tile.counted and x.literal is None and x.level < y.level:
                return self.stride(x, y.level)
            return self.pure(f"{op} nsw i64 {x.text}, {y.text}", INDEX, 1, (x, y), "i")
        if op in ("min", "max"):
            return self.pure(f"call i64 @llvm.s{op}.i64(i64 {x.text}, i64 {y.text})", INDEX, 1, (x, y), "i")
        if op in ("fdiv", "fmod"):
            return self.floor_division(op, x, y, traps)
        code = "udiv" if op == "div" else "urem"
        floor = self.out.safe_floor() if traps else 0
        if not small:
            return self.pure(f"{code} i64 {x.text}, {y.text}", INDEX, 1, (x, y), "i", floor)
        a = self.pure(f"trunc i64 {x.text} to i32", int32, 1, (x,), "i")
        b = y if y.literal is not None else self.pure(f"trunc i64 {y.text} to i32", int32, 1, (y,), "i")
        q = self.pure(f"{code} i32 {a.text}, {b.text}", int32, 1, (a, b), "i", floor)
        return self.pure(f"zext i32 {q.text} to i64", INDEX, 1, (q,), "i")

    def index_value(self, x: Ref) -> Ref:
        """Outside vectors behind an empty instruction: LLVM takes arithmetic on a loop's variable apart, term by term,
        and a hash of an index has hundreds."""
        if x.lanes > 1 or x.literal is not None or not x.dtype.is_int or "sse" not in self.target.features:
            return x
        kind = scalar_type(x.dtype)
        return self.pure(f'call {kind} asm "", "=r,0"({kind} {x.text})', x.dtype, 1, (x,))

    def stride(self, x: Ref, level: int) -> Ref:
        """x times the variable of the tile's loop, as a sum that goes along with it. Multiplications of indices would
        wait for a port that multiply-adds of 32 bytes need too, and what is loaded next for them."""
        key = f"stride {x.text}", INDEX, 1
        known = self.out.scopes[level].known
        if key not in known:
            known[key] = total = Ref(self.name("i"), INDEX, 1, level)
            self.tile.strides[total] = x
        return known[key]

    def floor_division(self, op: str, x: Ref, y: Ref, traps: bool) -> Ref:
        floor = self.out.safe_floor() if traps else 0
        r = self.pure(f"srem i64 {x.text}, {y.text}", INDEX, 1, (x, y), "i", floor)
        below = self.pure(f"icmp slt i64 {r.text}, 0", bool_, 1, (r,), "c")
        if op == "fmod":
            up = self.pure(f"add i64 {r.text}, {y.text}", INDEX, 1, (r, y), "i")
            return self.pure(f"select i1 {below.text}, i64 {up.text}, i64 {r.text}", INDEX, 1, (below, up, r), "i")
        q = self.pure(f"sdiv i64 {x.text}, {y.text}", INDEX, 1, (x, y), "i", floor)
        step = self.pure(f"sext i1 {below.text} to i64", INDEX, 1, (below,), "i")
        return self.pure(f"add i64 {q.text}, {step.text}", INDEX, 1, (q, step), "i")

    def at_least(self, x: Ref, limit: int) -> Ref:
        if x.literal is not None:
            return self.constant(x.literal >= limit, bool_)
        return self.pure(f"icmp sge i64 {x.text}, {limit}", bool_, 1, (x,), "c")

    def lanes_at_least(self, x: Ref, limits: Sequence[int], small: bool) -> Ref:
        if not small and max(map(abs, limits)) < NEAR:  # a far x is as good as one at this distance
            x = self.integer("max", self.integer("min", x, self.constant(NEAR, INDEX)), self.constant(-NEAR, INDEX))
            small = True
        dtype = int32 if small else INDEX
        wide = self.splat(self.convert(x, dtype), len(limits))
        edge = self.gather_lanes([self.constant(n, dtype) for n in limits])
        mask = self.pure(f"icmp sge {typed(wide)}, {edge.text}", bool_, len(limits), (wide,), "m")
        if x.literal is not None:
            mask.true = frozenset([lane for lane, n in enumerate(limits) if x.literal >= n])
        return mask

    # ---- arithmetic ----

    def operation(self, op: str, args: Sequence[Ref], dtype: DType) -> Ref:
        kind, lanes = args[-1].dtype, args[0].lanes
        template = self.templates.get((op, kind, lanes))
        if template is not None:
            floor = self.out.safe_floor() if op in ("idiv", "irem") else 0
            return self.pure(template % tuple([a.text for a in args]), dtype, lanes, args, "v", floor)
        if op == "where":
            c, x, y = args
            return self.pure(f"select {typed(c)}, {typed(x)}, {typed(y)}", dtype, x.lanes, args)
        if kind.compute is not kind:
            wide = self.operation(op, [self.convert(a, kind.compute) for a in args], dtype.compute)
            return self.convert(wide, dtype)
        if op in ("max", "min"):
            return self.extremum(op, args[0], args[1])
        self.templates[op, kind, lanes] = self.instruction(op, [Ref("%s", a.dtype, lanes) for a in args], kind)
        return self.operation(op, args, dtype)

    def instruction(self, op: str, args: Sequence[Ref], kind: DType) -> str:
        t, rest = typed(args[0]), ", ".join(a.text for a in args)
        if kind.is_float:
            if op == "rem":
                return f"call {type_of(args[0])} {self.remainder(kind, args[0].lanes)}({', '.join(map(typed, args))})"
            if op in _FLOAT or op in _FLOAT_COMPARE:
                return f"{_FLOAT.get(op) or _FLOAT_COMPARE[op]} {type_of(args[0])} {rest}"
            if op == "neg":
                return f"fneg {t}"
            if op in _INTRINSICS or op == "fma":
                intrinsic = _INTRINSICS.get(op) or ("fma" if self.has_fma else "fmuladd")
                return self.call(intrinsic, args[0], args)
        else:
            code = _INTEGER.get(op) or (_SIGNED if kind.kind == "i" else _UNSIGNED).get(op)
            code = code or {"eq": "icmp eq", "ne": "icmp ne"}.get(op)
            if code is not None:
                return f"{code} {type_of(args[0])} {rest}"
            lanes = args[0].lanes
            if op == "neg":
                return f"sub {type_of(args[0])} {self.every(0, kind, lanes).text}, {args[0].text}"
            if op == "not":
                return f"xor {t}, {self.every(True if kind is bool_ else -1, kind, lanes).text}"
            if op == "abs":
                signed = kind.kind == "i"
                zero = self.every(0, kind, lanes).text
                return f"{self.call('abs', args[0], args)[:-1]}, i1 false)" if signed else f"or {t}, {zero}"
        raise InternalError(f"[render] {self.out.function.name}: no LLVM instruction for {op} of {kind}")

    def remainder(self, kind: DType, lanes: int) -> str:
        """The name of the function for `rem`, which the program then has."""
        name = f"@{self.out.function.name}.rem.{mangled(scalar_type(kind), lanes)}"
        self.helpers[name] = remainder(name, kind, lanes, self.has_fma)
        return name

    @property
    def has_fma(self) -> bool:
        return "sse" not in self.target.features or "fma" in self.target.features

    def call(self, intrinsic: str, shape: Ref, args: Sequence[Ref]) -> str:
        name = f"@llvm.{intrinsic}.{mangled(scalar_type(shape.dtype), shape.lanes)}"
        return f"call {type_of(shape)} {name}({', '.join(map(typed, args))})"

    def extremum(self, op: str, x: Ref, y: Ref) -> Ref:
        """NaN if either is: an ordered compare keeps its second operand, so only the first needs a check."""
        kind, lanes = x.dtype, x.lanes
        if kind is bool_:
            return self.operation("or" if op == "max" else "and", (x, y), bool_)
        if not kind.is_float:
            return self.pure(self.call(("s" if kind.kind == "i" else "u") + op, x, (x, y)), kind, lanes, (x, y))
        if y.literal is not None:
            x, y = y, x
        test = "fcmp ogt" if op == "max" else "fcmp olt"
        c = self.pure(f"{test} {typed(x)}, {y.text}", bool_, lanes, (x, y), "c")
        r = self.pure(f"select {typed(c)}, {typed(x)}, {typed(y)}", kind, lanes, (c, x, y))
        if x.literal is not None and x.literal == x.literal:
            return r
        nan = self.pure(f"fcmp uno {typed(x)}, {x.text}", bool_, lanes, (x,), "c")
        return self.pure(f"select {typed(nan)}, {typed(x)}, {typed(r)}", kind, lanes, (nan, x, r))

    def unary_text(self, code: str, x: Ref, kind: str, dtype: DType) -> Ref:
        return self.pure(f"{code} {typed(x)} to {vector(kind, x.lanes)}", dtype, x.lanes, (x,))

    def convert(self, x: Ref, dtype: DType) -> Ref:
        source = x.dtype
        if source is dtype:
            return x
        if x.literal is not None and source.is_int and dtype.is_int and dtype.min <= x.literal <= dtype.max:
            return self.constant(x.literal, dtype)
        if source.compute is not source:
            return self.convert(self.widen(x), dtype)
        if dtype is bool_:
            zero = self.out.spread(self.constant(0, source), x.lanes)
            return self.operation("ne", (x, zero), bool_)
        if dtype.compute is not dtype:
            return self.narrow(self.convert(x, float32), dtype)
        kind = scalar_type(dtype)
        if source.is_float and dtype.is_float:
            return self.unary_text("fpext" if dtype.bits > source.bits else "fptrunc", x, kind, dtype)
        if dtype.is_float:
            return self.unary_text("sitofp" if source.kind == "i" else "uitofp", x, kind, dtype)
        if source.is_float:
            sign = "s" if dtype.kind == "i" else "u"
            name = f"@llvm.fpto{sign}i.sat.{mangled(kind, x.lanes)}.{mangled(scalar_type(source), x.lanes)}"
            return self.pure(f"call {vector(kind, x.lanes)} {name}({typed(x)})", dtype, x.lanes, (x,))
        if source is not bool_ and dtype.bits == source.bits:
            return self.relabel(x, dtype)
        if source is not bool_ and dtype.bits < source.bits:
            return self.unary_text("trunc", x, kind, dtype)
        return self.unary_text("sext" if source.kind == "i" else "zext", x, kind, dtype)

    def relabel(self, x: Ref, dtype: DType) -> Ref:
        """The same register read as another type of the same LLVM type."""
        ref = Ref(x.text, dtype, x.lanes, x.level)
        if x.literal is not None and dtype.is_int:
            ref.literal = x.literal
        return ref

    def reinterpret(self, x: Ref, dtype: DType) -> Ref:
        if bool_ in (x.dtype, dtype):
            return self.convert(self.relabel(x, uint8) if dtype is bool_ else self.convert(x, uint8), dtype)
        if scalar_type(x.dtype) == scalar_type(dtype):
            return self.relabel(x, dtype)
        return self.unary_text("bitcast", x, scalar_type(dtype), dtype)

    @property
    def has_half(self) -> bool:
        """True where the processor converts float16; elsewhere LLVM would call a library."""
        return "sse" not in self.target.features or "f16c" in self.target.features

    def widen(self, x: Ref) -> Ref:
        """float16 or bfloat16 bits -> float32."""
        if x.dtype is bfloat16 or not self.has_half:
            return (bits_to_bfloat if x.dtype is bfloat16 else bits_to_half)(self, self.relabel(x, uint16))
        half = self.unary_text("bitcast", x, "half", x.dtype)
        text = f"fpext {vector('half', x.lanes)} {half.text} to {vector('float', x.lanes)}"
        return self.pure(text, float32, x.lanes, (half,))

    def narrow(self, x: Ref, dtype: DType) -> Ref:
        """float32 -> float16 or bfloat16 bits, to nearest even."""
        has = "bf16" in self.target.features if dtype is bfloat16 else self.has_half
        if not has:
            return self.relabel((bfloat_to_bits if dtype is bfloat16 else half_to_bits)(self, x), dtype)
        kind = "bfloat" if dtype is bfloat16 else "half"
        half = self.unary_text("fptrunc", x, kind, dtype)
        text = f"bitcast {vector(kind, x.lanes)} {half.text} to {vector('i16', x.lanes)}"
        return self.pure(text, dtype, x.lanes, (half,))

    def across(self, combine: str, xs: Sequence[Ref]) -> list[Ref]:
        """Halves onto halves, those of two vectors in one; odd counts lane by lane, neighbours first."""
        lanes, left = xs[0].lanes, list(xs)
        while lanes % 2 == 0:
            whole, left, lanes = left[::-1], [], lanes // 2
            while whole:
                x = whole.pop()
                y = whole.pop() if whole and whole[-1].lanes == x.lanes else None
                left.append(self.halved(combine, x, y, lanes))
        return [self.pairwise(combine, [self.extract(x, start + i) for i in range(lanes)])
                for x in left for start in range(0, x.lanes, lanes)]

    def halved(self, combine: str, x: Ref, y: Ref | None, half: int) -> Ref:
        """Of runs of 2 * `half` lanes of one vector or two, the second half onto the first."""
        if x.lanes == 2 and y is None:
            return self.operation(combine, (self.extract(x, 0), self.extract(x, 1)), x.dtype)
        runs = range(0, x.lanes if y is None else 2 * x.lanes, 2 * half)
        low, high = (self.shuffle(x, y, [start + at + i for start in runs for i in range(half)]) for at in (0, half))
        return self.operation(combine, (low, high), x.dtype)

    def any_lane(self, mask: Ref) -> Ref:
        if mask.lanes == 1:
            return mask
        return self.pure(f"call i1 @llvm.vector.reduce.or.v{mask.lanes}i1({typed(mask)})", bool_, 1, (mask,), "any")
