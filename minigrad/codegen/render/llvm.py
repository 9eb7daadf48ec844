"""Loop IR to LLVM IR text (LLVM 22, opaque pointers) with explicit vectors.

A program is two functions: `name`, which has the ABI of CPU programs and unpacks the argument table, and `name.body`,
whose pointer parameters are `noalias`. Vector loops become vector types; what differs by lane under a condition is
read and written by masked loads and stores, a scalar under a condition is read from a block of zeros instead. Register
buffers are allocas, which `sroa` turns into SSA values. Floating-point arithmetic may be contracted into fused
multiply-adds and is never reassociated. Passes wanted on the result: sroa, instcombine, simplifycfg.
"""
from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import cache, lru_cache

from minigrad.codegen.ir.nodes import Alloc, BufferParam, Call, Function, Loop
from minigrad.codegen.ir.text import meaning_of
from minigrad.codegen.ir.walk import all_values, statements
from minigrad.codegen.microkernels.microkernel import Microkernel, symbol_of
from minigrad.codegen.render.common import Emitter
from minigrad.codegen.render.llvm_dots import dot_of
from minigrad.codegen.render.llvm_tables import table_of
from minigrad.codegen.render.place import INDEX, Memory, OpenLoop, Ref, Scope, argument_kinds
from minigrad.codegen.transforms.math import written_out
from minigrad.dtype import DType, bfloat16, bool_, float16, float32, int32, uint8, uint16
from minigrad.errors import InternalError
from minigrad.expr import Index, bounds
from minigrad.program import Link, Program
from minigrad.target import Target
from minigrad.value import Value, value_atoms

_TYPES = {"float32": "float", "float64": "double", "float16": "i16", "bfloat16": "i16"}
_FLOAT = {"add": "fadd contract", "sub": "fsub contract", "mul": "fmul contract", "div": "fdiv"}
_INTEGER = {"add": "add", "sub": "sub", "mul": "mul", "and": "and", "or": "or", "xor": "xor", "shl": "shl"}
_SIGNED = {"idiv": "sdiv", "irem": "srem", "shr": "ashr", "lt": "icmp slt", "le": "icmp sle"}
_UNSIGNED = {"idiv": "udiv", "irem": "urem", "shr": "lshr", "lt": "icmp ult", "le": "icmp ule"}
_FLOAT_COMPARE = {"lt": "fcmp olt", "le": "fcmp ole", "eq": "fcmp oeq", "ne": "fcmp une"}
MAX_PARTS = 4
"""Whole vectors that a load of scattered lanes is put together from."""

_INTRINSICS = {"abs": "fabs", "sqrt": "sqrt", "floor": "floor", "ceil": "ceil", "trunc": "trunc", "round": "roundeven"}


def render_llvm(function: Function, target: Target) -> Program:
    """The CPU Program of one loop IR function. Raises InternalError for what breaks the rules of loop IR."""
    function = written_out(function)
    emitter = LlvmEmitter(function, target)
    source = emitter.render()
    return Program(function.name, "llvm", source, argument_kinds(function), emitter.scratch,
                   links=tuple(emitter.links.values()))


@lru_cache(maxsize=1024)
def link_of(kernel: Microkernel, target: Target) -> Link:
    """What a call of a microkernel is linked with: its implementation where it fits, else its meaning, compiled."""
    if kernel.implementation is not None and kernel.fits(target):
        return Link(symbol_of(kernel.name, kernel.implementation), kernel.name, kernel.implementation, kernel.language)
    source = LlvmEmitter(written_out(meaning_of(kernel)), target).render_callable(kernel.name)
    return Link(symbol_of(kernel.name, source), kernel.name, source)


def scalar_type(dtype: DType) -> str:
    """The type in registers; in memory a bool is an i8."""
    return "i1" if dtype is bool_ else _TYPES.get(dtype.name) or f"i{dtype.bits}"


def memory_type(dtype: DType) -> str:
    return "i8" if dtype is bool_ else scalar_type(dtype)


def vector(kind: str, lanes: int) -> str:
    return kind if lanes == 1 else f"<{lanes} x {kind}>"


def mangled(kind: str, lanes: int) -> str:
    """A type as it is spelled in the name of an intrinsic."""
    short = {"float": "f32", "double": "f64"}.get(kind, kind)
    return short if lanes == 1 else f"v{lanes}{short}"


@cache
def register_type(dtype: DType, lanes: int) -> str:
    return vector(scalar_type(dtype), lanes)


def type_of(x: Ref) -> str:
    return register_type(x.dtype, x.lanes)


def typed(x: Ref) -> str:
    return f"{register_type(x.dtype, x.lanes)} {x.text}"


class LlvmEmitter(Emitter):
    """See `Emitter`. `prologue` holds the allocas of the entry block."""

    def __init__(self, function: Function, target: Target):
        super().__init__(function)
        self.target = target
        self.prologue: list[str] = []
        self.scratch = 0
        self.zeros = 0
        self.links: dict[str, Link] = {}
        self.declarations: dict[str, list[str]] = {}
        self.squares: frozenset[tuple[str, Index]] = frozenset()

    # ---- the whole text ----

    def render(self) -> str:
        """The program."""
        lines = self.render_body()
        lines += [f"declare void @{symbol}({', '.join(types)})" for symbol, types in self.declarations.items()]
        return "\n".join([*lines, *self.entry_point(), ""])

    def render_callable(self, name: str) -> str:
        """A function to be called with the parameters themselves, for one that has no parallel loop."""
        lines, own = self.render_body(), len(self.function.scalars) + len(self.function.dims)
        params = self.parameters()[:len(self.function.buffers) + own]
        passed = [*(p.replace("noalias ", "").replace("readonly ", "") for p in params), "i64 0", "i64 1", "ptr null"]
        return "\n".join([*lines, f"define void @{name}({', '.join(params)}) nounwind {{",
                          f"  call void @{self.function.name}.body({', '.join(passed)})", "  ret void", "}", ""])

    def render_body(self) -> list[str]:
        f = self.function
        for b in f.buffers:
            self.memory[b.name] = Memory(b.name, b.dtype, b.size, b.mode, f"%{b.name}")
        for s in f.scalars:
            text = f"%{s.name}"
            if s.dtype is bool_:
                text = self.pure(f"icmp ne i8 {text}, 0", bool_, 1, ()).text
            self.locals[s.name] = Ref(text, s.dtype)
        for d in f.dims:
            self.variables[d] = Ref(f"%{d.name}", INDEX)
        self.block(f.body)
        lines = [f"; func {f.name}"]
        if self.zeros:
            block = f"[{self.zeros} x i8] zeroinitializer, align 64"
            lines.append(f"@{f.name}.zeros = private unnamed_addr constant {block}")
        lines += [f"define internal void @{f.name}.body({', '.join(self.parameters())}) nounwind {{", "entry:"]
        return [*lines, *self.prologue, *self.scopes[0].lines, "  ret void", "}", ""]

    def parameters(self) -> list[str]:
        f = self.function
        buffers = [f"ptr noalias{' readonly' if b.mode == 'in' else ''} %{b.name}" for b in f.buffers]
        scalars = [f"{memory_type(s.dtype)} %{s.name}" for s in f.scalars]
        dims = [f"i64 %{d.name}" for d in f.dims]
        return [*buffers, *scalars, *dims, "i64 %begin.", "i64 %end.", "ptr noalias %scratch."]

    def entry_point(self) -> list[str]:
        """`void name(const u64 *args, i64 begin, i64 end, u8 *scratch)`."""
        f = self.function
        lines = [f"define void @{f.name}(ptr %args, i64 %begin, i64 %end, ptr %scratch) nounwind {{"]
        passed = []
        for i, p in enumerate((*f.buffers, *f.scalars, *f.dims)):
            kind = "ptr" if isinstance(p, BufferParam) else memory_type(p.dtype) if hasattr(p, "dtype") else "i64"
            lines += [f"  %at{i} = getelementptr i64, ptr %args, i64 {i}",
                      f"  %arg{i} = load {kind}, ptr %at{i}, align 8"]
            passed.append(f"{kind} %arg{i}")
        passed += ["i64 %begin", "i64 %end", "ptr %scratch"]
        return [*lines, f"  call void @{f.name}.body({', '.join(passed)})", "  ret void", "}"]

    def definition(self, ref: Ref, text: str) -> str:
        return f"{'  ' * (ref.level + 1)}{ref.text} = {text}"

    def name(self, hint: str) -> str:
        return ("" if hint == "branch." else "%") + super().name(hint + "." if hint[-1] != "." else hint)

    def line(self, text: str) -> None:
        self.scope.lines.append("  " * len(self.scopes) + text)

    def comment(self, text: str) -> None:
        self.line(f"; {text}")

    # ---- literals, lanes, indices ----

    def literal(self, value: int | float | bool, dtype: DType) -> str:
        if dtype is bool_:
            return "true" if value else "false"
        if dtype.is_int:
            return str(int(value))
        if dtype is float16:
            return str(struct.unpack("<H", struct.pack("<e", value))[0])
        if dtype is bfloat16:
            bits = struct.unpack("<I", struct.pack("<f", value))[0]
            return str((bits + 0x7FFF + (bits >> 16 & 1)) >> 16 if value == value else 0x7FC0)
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
        chosen = ", ".join("i32 poison" if i < 0 else f"i32 {i}" for i in picks)
        return self.pure(f"shufflevector {typed(x)}, {second}, <{len(picks)} x i32> <{chosen}>", x.dtype, len(picks),
                         (x,) if y is None else (x, y), "shuf")

    def integer(self, op: str, x: Ref, y: Ref, small: bool = False) -> Ref:
        if op in ("add", "mul") and x.literal is not None and y.literal is not None:
            return self.constant(x.literal + y.literal if op == "add" else x.literal * y.literal, INDEX)
        if op in ("add", "mul"):
            return self.pure(f"{op} nsw i64 {x.text}, {y.text}", INDEX, 1, (x, y), "i")
        if op in ("min", "max"):
            return self.pure(f"call i64 @llvm.s{op}.i64(i64 {x.text}, i64 {y.text})", INDEX, 1, (x, y), "i")
        if op in ("fdiv", "fmod"):
            return self.floor_division(op, x, y)
        code = "udiv" if op == "div" else "urem"
        floor = 0 if y.literal is not None else self.safe_floor()
        if not small:
            return self.pure(f"{code} i64 {x.text}, {y.text}", INDEX, 1, (x, y), "i", floor)
        a = self.pure(f"trunc i64 {x.text} to i32", int32, 1, (x,), "i")
        b = y if y.literal is not None else self.pure(f"trunc i64 {y.text} to i32", int32, 1, (y,), "i")
        q = self.pure(f"{code} i32 {a.text}, {b.text}", int32, 1, (a, b), "i", floor)
        return self.pure(f"zext i32 {q.text} to i64", INDEX, 1, (q,), "i")

    def floor_division(self, op: str, x: Ref, y: Ref) -> Ref:
        floor = self.safe_floor()
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
        dtype = int32 if small else INDEX
        wide = self.splat(self.convert(x, dtype), len(limits))
        edge = self.gather_lanes([self.constant(n, dtype) for n in limits])
        return self.pure(f"icmp sge {typed(wide)}, {edge.text}", bool_, len(limits), (wide,), "m")

    # ---- arithmetic ----

    def parts_of(self, v: Value) -> tuple[Value, ...]:
        table, dot = self.table_of(v), self.dot_of(v)
        return (table[0],) if table is not None else v.args if dot is None else dot

    def emit(self, v: Value, mask: Ref | None) -> Ref:
        """One Value; what the processor has one instruction for is recognised."""
        table, dot = self.table_of(v), self.dot_of(v)
        if table is not None:
            return self.look_up(table[1], self.spread(self.operand(table[0], mask), self.width))
        if dot is not None:
            return self.dot(*[self.spread(self.operand(x, mask), self.width) for x in dot])
        return super().emit(v, mask)

    def table_of(self, v: Value) -> tuple[Value, tuple[float, ...]] | None:
        """What `llvm_tables.table_of` finds, inside loops over as many lanes as a register has entries."""
        usable = v.dtype is float32 and self.width == 16 and "avx512f" in self.target.features
        return table_of(v) if usable else None

    def dot_of(self, v: Value) -> tuple[Value, Value] | None:
        """What `llvm_dots.dot_of` finds, where vectors have the instruction."""
        need = {16: "avx512vnni", 8: "avxvnni"}.get(self.width)
        return dot_of(v) if v.op == "add" and need in self.target.features else None

    def look_up(self, entries: Sequence[float], x: Ref) -> Ref:
        """entries[x & 15] in each of sixteen lanes."""
        table = self.gather_lanes([self.constant(e, float32) for e in entries])
        text = f"call <16 x float> @llvm.x86.avx512.permvar.sf.512(<16 x float> {table.text}, {typed(x)})"
        return self.pure(text, float32, 16, (x,))

    def dot(self, w: Ref, x: Ref) -> Ref:
        """In each lane the sum of the products of the unsigned bytes of `w` and the signed bytes of `x`."""
        sums, kind = type_of(w), f"<{4 * w.lanes} x i8>"
        words = [self.pure(f"bitcast {typed(r)} to {kind}", r.dtype, r.lanes, (r,), "bytes") for r in (w, x)]
        zero = self.every(0, int32, w.lanes)
        text = (f"call {sums} @llvm.x86.avx512.vpdpbusd.{32 * w.lanes}({sums} {zero.text}, {kind} {words[0].text}, "
                f"{kind} {words[1].text})")
        return self.pure(text, int32, w.lanes, (w, x, *words), "dot")

    def operation(self, op: str, args: Sequence[Ref], dtype: DType) -> Ref:
        kind = args[-1].dtype
        if op == "where":
            c, x, y = args
            return self.pure(f"select {typed(c)}, {typed(x)}, {typed(y)}", dtype, x.lanes, args)
        if kind.compute is not kind:
            wide = self.operation(op, [self.convert(a, kind.compute) for a in args], dtype.compute)
            return self.convert(wide, dtype)
        if op in ("max", "min"):
            return self.extremum(op, args[0], args[1])
        return self.pure(self.instruction(op, args, kind), dtype, args[0].lanes, args, floor=self.trap_floor(op))

    def trap_floor(self, op: str) -> int:
        return self.safe_floor() if op in ("idiv", "irem") else 0

    def instruction(self, op: str, args: Sequence[Ref], kind: DType) -> str:
        t, rest = typed(args[0]), ", ".join(a.text for a in args)
        if kind.is_float:
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
                return f"{self.call('abs', args[0], args)[:-1]}, i1 false)" if signed else f"or {t}, {args[0].text}"
        raise InternalError(f"[render] {self.function.name}: no LLVM instruction for {op} of {kind}")

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
            zero = self.spread(self.constant(0, source), x.lanes)
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
        """Whether the processor converts float16; elsewhere LLVM would call a library."""
        return "sse" not in self.target.features or "f16c" in self.target.features

    def widen(self, x: Ref) -> Ref:
        """float16 or bfloat16 bits -> float32."""
        if x.dtype is bfloat16 or not self.has_half:
            return (self.bits_to_bfloat if x.dtype is bfloat16 else self.bits_to_half)(self.relabel(x, uint16))
        half = self.unary_text("bitcast", x, "half", x.dtype)
        text = f"fpext {vector('half', x.lanes)} {half.text} to {vector('float', x.lanes)}"
        return self.pure(text, float32, x.lanes, (half,))

    def narrow(self, x: Ref, dtype: DType) -> Ref:
        """float32 -> float16 or bfloat16 bits, to nearest even."""
        if dtype is bfloat16 or not self.has_half:
            return self.relabel((self.bfloat_to_bits if dtype is bfloat16 else self.half_to_bits)(x), dtype)
        half = self.unary_text("fptrunc", x, "half", dtype)
        text = f"bitcast {vector('half', x.lanes)} {half.text} to {vector('i16', x.lanes)}"
        return self.pure(text, dtype, x.lanes, (half,))

    def across(self, combine: str, x: Ref) -> Ref:
        """Halves onto halves; odd counts lane by lane, neighbours first."""
        while x.lanes > 1 and x.lanes % 2 == 0:
            half = x.lanes // 2
            low, high = self.shuffle(x, None, range(half)), self.shuffle(x, None, range(half, 2 * half))
            if half == 1:
                low, high = self.extract(x, 0), self.extract(x, 1)
            x = self.operation(combine, (low, high), x.dtype)
        return self.pairwise(combine, [self.extract(x, i) for i in range(x.lanes)])

    def any_lane(self, mask: Ref) -> Ref:
        if mask.lanes == 1:
            return mask
        return self.pure(f"call i1 @llvm.vector.reduce.or.v{mask.lanes}i1({typed(mask)})", bool_, 1, (mask,), "any")

    # ---- memory ----

    def pointer(self, memory: Memory, offset: Index, lane: int | None = None) -> Ref:
        kind = memory_type(memory.dtype)
        sums, constant = self.sums(offset, lane)
        p = Ref(memory.text, memory.dtype)
        for part in sums:
            p = self.pure(f"getelementptr {kind}, ptr {p.text}, i64 {part.text}", memory.dtype, 1, (p, part), "p")
        if constant:
            p = self.pure(f"getelementptr {kind}, ptr {p.text}, i64 {constant}", memory.dtype, 1, (p,), "p")
        return p

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
        return self.load_square(memory, start, stride, floor) if mask is None else None

    def load_block(self, memory: Memory, start: Index, mask: Ref | None, floor: int) -> Ref:
        kind, width = memory_type(memory.dtype), self.width
        p, align = self.pointer(memory, start), memory.dtype.itemsize
        if mask is None or mask.lanes == 1:
            p = self.safe_pointer(memory, p, mask, width)
            return self.fetch(memory, f"load <{width} x {kind}>, ptr {p.text}, align {align}", width, (p,), floor, mask)
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
        """Whole vectors that are in bounds, and shuffles: lanes of interleaved runs."""
        left = set(steps)
        parts: list[tuple[Ref, dict[int, int]]] = []
        while left:
            first = min(left)
            if len(parts) == MAX_PARTS or not (self.in_bounds(memory, start + first) and
                                               self.in_bounds(memory, start + first + self.width - 1)):
                return None
            inside = {s for s in left if s < first + self.width}
            left -= inside
            picks = {lane: s - first for lane, s in enumerate(steps) if s in inside}
            parts.append((self.load_block(memory, start + first, None, floor), picks))
        return self.join_parts(parts)

    def to_memory(self, value: Ref) -> Ref:
        return self.convert(value, uint8) if value.dtype is bool_ else value

    def load_square(self, memory: Memory, start: Index, stride: int, floor: int) -> Ref | None:
        """A column of a square of rows `stride` apart, transposed in registers: its other columns share the work.

        None where the loop wants few of them, or the square is not known to be inside the buffer.
        """
        width = self.width
        column = (start if isinstance(start, int) else start.const) % width
        corner = start - column
        if (memory.name, corner) not in self.squares or not self.in_bounds(memory, corner) \
                or not self.in_bounds(memory, corner + (width - 1) * (stride + 1)):
            return None
        rows = [self.load_block(memory, corner + i * stride, None, floor) for i in range(width)]
        pairs = [i // 2 + i % 2 * width + i // 4 * 2 for i in range(width)]  # 0, w, 1, w + 1; 4, ...
        twos = [i % 2 + i // 2 % 2 * width + i // 4 * 4 for i in range(width)]  # 0, 1, w, w + 1; 4, ...

        def four(g: int) -> Ref:
            """Rows 4g..4g+3 in each block of four lanes, at the wanted column of that block."""
            high, second = 2 * (column // 2 % 2), 2 * (column % 2)
            x, y = (self.shuffle(rows[4 * g + r], rows[4 * g + r + 1], [p + high for p in pairs]) for r in (0, 2))
            return self.shuffle(x, y, [p + second for p in twos])

        parts, block = [four(g) for g in range(width // 4)], column // 4
        while len(parts) > 1:
            # Of two parts the even or the odd blocks, so that the wanted one stays among fewer and fewer.
            chosen = [4 * b + i for b in range(block % 2, width // 4, 2) for i in range(4)]
            if width == 8:
                chosen = [4 * block + i for i in range(4)]
            picks = chosen + [width + i for i in chosen]
            parts = [self.shuffle(x, y, picks) for x, y in zip(parts[::2], parts[1::2], strict=True)]
            block //= 2
        return parts[0]


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

    def allocate(self, s: Alloc) -> Memory:
        if s.scope == "register":
            memory = Memory(s.name, s.dtype, s.size, "register", "", self.width)
            kind = vector(scalar_type(s.dtype), self.width)
            memory.slots = tuple([self.name(s.name) for _ in range(s.size)])
            self.prologue += [f"  {slot} = alloca {kind}" for slot in memory.slots]
            return memory
        text = self.pure(f"getelementptr i8, ptr %scratch., i64 {self.scratch}", s.dtype, 1, (), s.name).text
        self.scratch += -(-s.size * self.width * s.dtype.itemsize // 64) * 64
        return Memory(s.name, s.dtype, s.size, "scratch", text, self.width)

    def read_slot(self, memory: Memory, slot: int) -> Ref:
        kind = vector(scalar_type(memory.dtype), memory.lanes)
        return self.here(f"load {kind}, ptr {memory.slots[slot]}", memory.dtype, memory.lanes, memory, memory.name)

    def write_slot(self, memory: Memory, slot: int, value: Ref) -> None:
        memory.version += 1
        self.line(f"store {typed(value)}, ptr {memory.slots[slot]}")
        if memory.version % len(memory.slots) == 0 and self.is_big(len(memory.slots)):
            # One step of the sum is done: no registers for loads of the next ones before it, or of its own after it.
            self.line('call void asm sideeffect "", "~{memory}"()')
            self.epoch += 1

    def is_big(self, tile: int) -> bool:
        """Whether so many sums take most of the vector registers."""
        return 2 * tile > self.target.registers and "sse" in self.target.features

    # ---- control ----

    def vector_body(self, s: Loop) -> None:
        """A big register tile starts with all vector registers free: LLVM would else keep constants of loops before it
        in registers across it, and accumulators on the stack. The empty instruction makes it put them away."""
        tile = sum(a.size for a in s.body if isinstance(a, Alloc) and a.scope == "register")
        if self.is_big(tile):
            clobbered = ",".join(f"~{{xmm{i}}}" for i in range(self.target.registers))
            self.line(f'call void asm sideeffect "", "{clobbered}"()')
        self.squares = self.wanted_squares(s)
        super().vector_body(s)

    def wanted_squares(self, s: Loop) -> frozenset[tuple[str, Index]]:
        """Buffer and corner of each square of which a vector loop reads several columns (see `load_square`).

        None beside accumulators, whose registers a square would take.
        """
        columns: dict[tuple[str, Index], set[int]] = {}
        width = s.stop
        if not isinstance(width, int) or width not in (4, 8, 16) or any(isinstance(i, Alloc) for i in s.body):
            return frozenset()
        for inner in statements((s,)):
            for v in all_values(inner):
                if v.op != "load" or isinstance(e := v.attr[1][0], int) or value_atoms(e):
                    continue
                step = dict(e.terms).get((s.var,), 0)
                if step > 4:
                    start = e - step * s.var
                    at = (start if isinstance(start, int) else start.const) % width
                    columns.setdefault((v.attr[0], start - at), set()).add(at)
        return frozenset(corner for corner, found in columns.items() if 4 * len(found) >= width)

    def open_loop(self, s: Loop) -> tuple[Ref, OpenLoop]:
        parallel = s.kind == "parallel"
        start = Ref("%begin.", INDEX) if parallel else self.index(s.start)
        stop = Ref("%end.", INDEX) if parallel else self.index(s.stop)
        runs = bounds(s.stop - s.start)[0] >= 1
        some = None
        if parallel or not runs:
            some = self.pure(f"icmp slt i64 {start.text}, {stop.text}", bool_, 1, (start, stop), "c")
        self.counter += 1
        label = f"{s.var.name}.{self.counter}"
        self.scopes.append(Scope(crossable=runs or parallel, label=f"{label}.body"))
        return Ref(f"%{label}", INDEX, 1, len(self.scopes) - 1), OpenLoop(label, start, stop, some)

    def close_loop(self, s: Loop, inner: Scope, state: OpenLoop) -> None:
        label, start, stop, some = state.name, state.start, state.stop, state.some
        body, deep = f"label %{label}.body", "  " * (len(self.scopes) + 1)
        self.line(f"br {body}" if some is None else f"br i1 {some.text}, {body}, label %{label}.end")
        self.scope.lines += [
            f"{label}.body:",
            f"{deep}%{label} = phi i64 [ {start.text}, %{self.scope.label} ], [ %{label}.next, %{inner.label} ]",
            *inner.lines,
            f"{deep}%{label}.next = add nuw nsw i64 %{label}, 1",
            f"{deep}%{label}.more = icmp slt i64 %{label}.next, {stop.text}",
            f"{deep}br i1 %{label}.more, {body}, label %{label}.end",
            f"{label}.end:",
        ]
        self.scope.label = f"{label}.end"

    def close_if(self, condition: Ref, then: Scope, otherwise: Scope | None) -> None:
        end = f"{then.entry}.end"
        no = end if otherwise is None else otherwise.entry
        self.line(f"br i1 {condition.text}, label %{then.entry}, label %{no}")
        for side in (then, otherwise):
            if side is not None:
                self.scope.lines += [f"{side.entry}:", *side.lines, "  " * (len(self.scopes) + 1) + f"br label %{end}"]
        self.scope.lines.append(f"{end}:")
        self.scope.label = end

    def call_microkernel(self, s: Call) -> None:
        link = link_of(s.kernel, self.target)
        self.links[link.symbol] = link
        meaning = meaning_of(s.kernel)
        args = [f"ptr {self.pointer(self.memory[name], offset).text}" for name, offset in s.buffers]
        args += [f"{memory_type(p.dtype)} {self.to_memory(self.value(v)).text}"
                 for p, v in zip(meaning.scalars, s.scalars, strict=True)]
        args += [f"i64 {self.index(e).text}" for e in s.dims]
        self.declarations[link.symbol] = [a.split(" ")[0] for a in args]
        self.line(f"call void @{link.symbol}({', '.join(args)})")

    def prefetch(self, memory: Memory, offset: Index) -> None:
        p = self.pointer(memory, offset)
        self.line(f"call void @llvm.prefetch.p0(ptr {p.text}, i32 0, i32 3, i32 1)")

    def barrier(self) -> None:
        raise InternalError(f"[render] {self.function.name}: a CPU program has no work-groups to join")


def round_to_float32(value: float) -> float:
    """The nearest float32; what overflows becomes infinite."""
    try:
        return struct.unpack("<f", struct.pack("<f", value))[0]
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")
