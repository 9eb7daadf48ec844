"""Values in OpenCL C: literals, lanes, indices, arithmetic, conversions. `opencl.py` says how types are held."""
from __future__ import annotations

from collections.abc import Sequence
from math import copysign
from typing import TYPE_CHECKING

from minigrad.codegen.ir.nodes import group_size
from minigrad.codegen.ir.walk import names
from minigrad.codegen.render.halves import bfloat_bits, bfloat_to_bits, bits_to_bfloat, bits_to_half, half_to_bits
from minigrad.codegen.render.language import Language
from minigrad.codegen.render.opencl_instructions import instruction_for
from minigrad.codegen.render.opencl_language import RESERVED, TYPES, fits_int, float_literal, integer_literal
from minigrad.codegen.render.opencl_remainder import remainder
from minigrad.codegen.render.refs import INDENT, INDEX, Ref
from minigrad.dtype import DType, bfloat16, bool_, float16, float32, float64, int8, int32, int64, uint8, uint16
from minigrad.errors import InternalError
from minigrad.target import SIGNS_LOST
from minigrad.value import Value

if TYPE_CHECKING:
    from minigrad.codegen.render.emitter import Emitter
    from minigrad.codegen.render.steps import Maker

_INFIX = {"add": "+", "sub": "-", "mul": "*", "div": "/", "idiv": "/", "irem": "%", "and": "&", "or": "|", "xor": "^",
          "shl": "<<", "shr": ">>", "lt": "<", "le": "<=", "eq": "==", "ne": "!="}
_COMPARE = ("lt", "le", "eq", "ne")
_CALLS = {"abs": "fabs", "round": "rint"} | {name: name for name in ("sqrt", "floor", "ceil", "trunc", "fma")}
LANES = "0123456789abcdef"
ZEROS = {"zero_": "float zero_ = as_float((int)(extent >> 63))",
         "double_zero_": "double double_zero_ = as_double(extent >> 63)"}


class OpenclLanguage(Language):
    """Values to expressions. `parts`: the number of parts that a vector loop is cut into; `exact`: a float16's value
    before it was rounded; `zeros`: the names of unknown zeros that the text uses; `helpers`: those of
    `opencl_language.HELPERS`; `functions`: texts of others, in their order."""

    def __init__(self, out: Emitter):
        super().__init__(out)
        self.index_type = "int" if fits_int(out.function) else "long"
        self.names = names(out.function) | ZEROS.keys()
        self.parts = 1
        self.exact: dict[Ref, Ref] = {}
        self.zeros: set[str] = set()
        self.helpers: set[str] = set()
        self.functions: dict[str, None] = {}

    def safe(self, name: str) -> str:
        return name + "_" if name in RESERVED or name.startswith(("vload", "vstore", "convert_", "as_")) else name

    def name(self, hint: str) -> str:
        while True:
            self.out.counter += 1
            text = f"{hint.rstrip('.')}_{self.out.counter}"
            if text not in self.names:
                return text

    def define(self, text: str, dtype: DType, lanes: int, level: int, hint: str) -> Ref:
        name = self.name(hint)
        self.out.scopes[level].lines.append(f"{INDENT[level + 1]}const {self.kind(dtype, lanes)} {name} = {text};")
        return Ref(name, dtype, lanes, level)

    def comment(self, text: str) -> None:
        self.out.line(f"// {text}")

    def kind(self, dtype: DType, lanes: int = 1) -> str:
        name = self.index_type if dtype is INDEX else TYPES[dtype.name]
        return name if lanes == 1 else f"{name}{lanes}"

    def instruction_for(self, v: Value) -> tuple[tuple[Value, ...], Maker] | None:
        return instruction_for(self, v)

    # ---- literals, lanes, indices ----

    def literal(self, value: int | float | bool, dtype: DType) -> str:
        if dtype is bool_:
            return "1" if value else "0"
        if dtype is bfloat16:
            return str(bfloat_bits(value))
        if dtype.is_float:
            return float_literal(float(value), dtype)
        return integer_literal(int(value), dtype, self.kind(dtype))

    def splat(self, x: Ref, lanes: int) -> Ref:
        text = x.text if x.dtype is not bool_ else f"-{x.text}"
        if x.literal is not None:
            ref = Ref(f"({self.kind(x.dtype, lanes)})({text})", x.dtype, lanes)
            ref.literal = x.literal
            return ref
        return self.pure(f"({self.kind(x.dtype, lanes)})({text})", x.dtype, lanes, (x,), "all")

    def gather_lanes(self, parts: Sequence[Ref]) -> Ref:
        """Lanes beyond the real width repeat the first."""
        dtype, lanes = parts[0].dtype, len(parts)
        if all(p is parts[0] for p in parts):
            return self.splat(parts[0], lanes)
        sign = "-" if dtype is bool_ else ""
        text = f"({self.kind(dtype, lanes)})({', '.join(sign + p.text for p in parts)})"
        if all(p.literal is not None for p in parts):
            return Ref(text, dtype, lanes)
        return self.pure(text, dtype, lanes, parts, "vec")

    def extract(self, x: Ref, lane: int) -> Ref:
        if x.lanes == 1:
            return x
        text = f"{x.text}.s{LANES[lane]}"
        return self.pure(f"-{text}" if x.dtype is bool_ else text, x.dtype, 1, (x,), "lane")

    def integer(self, op: str, x: Ref, y: Ref, small: bool = False, traps: bool = False) -> Ref:
        if op in ("add", "mul"):
            if x.literal is not None and y.literal is not None:
                return self.constant(x.literal + y.literal if op == "add" else x.literal * y.literal, INDEX)
            return self.pure(f"{x.text} {_INFIX[op]} {y.text}", INDEX, 1, (x, y), "i")
        if op in ("min", "max"):
            return self.pure(f"{op}({x.text}, {y.text})", INDEX, 1, (x, y), "i")
        floor = self.out.safe_floor() if traps else 0
        a, b = x.text, y.text
        texts = {"div": f"{a} / {b}", "mod": f"{a} % {b}", "fdiv": f"{a} / {b} - ({a} % {b} < 0)",
                 "fmod": f"{a} % {b} + ({a} % {b} < 0 ? {b} : 0)"}
        return self.pure(texts[op], INDEX, 1, (x, y), "i", floor)

    def at_least(self, x: Ref, limit: int) -> Ref:
        if x.literal is not None:
            return self.constant(x.literal >= limit, bool_)
        return self.pure(f"({x.text} >= {self.constant(limit, INDEX).text})", bool_, 1, (x,), "c")

    def lanes_at_least(self, x: Ref, limits: Sequence[int], small: bool) -> Ref:
        dtype = int32 if small else int64
        edge = ", ".join(self.literal(n, dtype) for n in limits)
        wide = self.splat(self.convert(x, dtype), len(limits))
        text = f"{wide.text} >= ({self.kind(dtype, len(limits))})({edge})"
        return self.pure(text if small else f"convert_int{len(limits)}({text})", bool_, len(limits), (wide,), "m")

    # ---- arithmetic ----

    def operation(self, op: str, args: Sequence[Ref], dtype: DType) -> Ref:
        kind, lanes = args[-1].dtype, args[-1].lanes
        if op == "where":
            return self.pure(self.choice(*args), dtype, lanes, args)
        if kind.compute is not kind:
            wide = self.operation(op, [self.convert(a, kind.compute) for a in args], dtype.compute)
            return self.convert(wide, dtype)
        if op in ("mul", "div") and kind.is_float and args[1].literal == -1:
            op, args = "neg", args[:1]
        if op in ("max", "min") and kind is not bool_:
            return self.pure(self.extremum(op, args[0], args[1]), dtype, lanes, args)
        floor = self.out.safe_floor() if op in ("idiv", "irem") else 0
        if kind is bool_:
            text = self.boolean(op, args)
        else:
            text = self.real(op, args) if kind.is_float else self.whole(op, args, kind)
        if op in _COMPARE and kind is not bool_:
            text = f"({text})" if lanes == 1 or kind.bits == 32 else f"convert_int{lanes}({text})"
        return self.pure(text, dtype, lanes, args, floor=floor)

    def choice(self, c: Ref, yes: Ref, no: Ref) -> str:
        if c.lanes == 1 and yes.dtype is int8 and yes.lanes == 1:
            # llvmpipe (Mesa 22.3) ends the process on a choice of signed chars.
            return f"(char)({c.text} ? (uchar){yes.text} : (uchar){no.text})"
        if c.lanes == 1:
            return f"({c.text} ? {yes.text} : {no.text})"
        bits = 32 if yes.dtype in (bool_, float16) else yes.dtype.bits
        mask = c.text if bits == 32 else f"convert_{ {8: 'char', 16: 'short', 64: 'long'}[bits]}{c.lanes}({c.text})"
        if bits == 64 and yes.dtype.is_int:
            # rusticl (Mesa 22.3) takes the wrong lanes when it selects 64 bit integers by a mask that was widened.
            name = self.kind(yes.dtype, c.lanes)
            mask = f"as_{name}({mask})"
            return f"(({yes.text} & {mask}) | ({no.text} & ~{mask}))"
        return f"select({no.text}, {yes.text}, {mask})"

    def boolean(self, op: str, args: Sequence[Ref]) -> str:
        """Bools are ordered false < true, although a lane's true is -1."""
        a, b = args[0].text, args[-1].text
        no = "!" if args[0].lanes == 1 else "~"
        texts = {"not": f"{no}{a}", "and": f"({a} & {b})", "min": f"({a} & {b})", "mul": f"({a} & {b})",
                 "or": f"({a} | {b})", "max": f"({a} | {b})", "xor": f"({a} ^ {b})", "ne": f"({a} ^ {b})",
                 "eq": f"{no}({a} ^ {b})", "lt": f"({no}{a} & {b})", "le": f"({no}{a} | {b})"}
        if op not in texts:
            raise InternalError(f"[render] {self.out.function.name}: no operation {op} of bool")
        return texts[op]

    def factor(self, x: Ref) -> str:
        """The text of an operand of float arithmetic. A literal zero becomes one that no compiler knows: rusticl's
        (Mesa 22.3) turns x * 0, x / 0 and 0 / x into 0 and x + 0 into x, whatever NaN, infinity or signed zero x is."""
        if x.literal is None or x.literal != 0:
            return x.text
        name = "zero_" if x.dtype.compute is float32 else "double_zero_"
        self.zeros.add(name)
        sign = "-" if copysign(1.0, x.literal) < 0 else ""
        return f"({self.kind(x.dtype, x.lanes)})({sign}{name})" if x.lanes > 1 else f"({sign}{name})" if sign else name

    def real(self, op: str, args: Sequence[Ref]) -> str:
        texts = [a.text for a in args]
        if op == "fma" and "fma" not in self.target.features:  # emulated there, at 15 times the cost
            return "mad({}, {}, {})".format(*map(self.factor, args))
        if op == "rem":
            function, defined = remainder(args[0].dtype, args[0].lanes, "fma" in self.target.features)
            self.functions.update(dict.fromkeys(defined))
            return f"{function}({', '.join(texts)})"
        if op in _CALLS:
            return f"{_CALLS[op]}({', '.join(texts)})"
        if op == "neg":
            return self.negated(args[0])
        if op in _COMPARE:
            return f"{texts[0]} {_INFIX[op]} {texts[1]}"
        if op in _INFIX:
            return f"{self.factor(args[0])} {_INFIX[op]} {self.factor(args[1])}"
        raise InternalError(f"[render] {self.out.function.name}: no OpenCL operation {op} of {args[0].dtype}")

    @property
    def signs_lost(self) -> bool:
        """True where a work-item may lose the sign of a negated float at a barrier."""
        return SIGNS_LOST in self.target.features and group_size(self.out.function) > 0

    def negated(self, x: Ref) -> str:
        """The float with its other sign; by its bits where a work-item may lose the sign."""
        if not self.signs_lost:
            return f"-{x.text}"
        word, sign = ("ulong", "0x8000000000000000ul") if x.dtype is float64 else ("uint", "0x80000000u")
        kind, lanes = self.kind(x.dtype, x.lanes), x.lanes if x.lanes > 1 else ""
        return f"as_{kind}(as_{word}{lanes}({x.text}) ^ {sign})"

    def whole(self, op: str, args: Sequence[Ref], kind: DType) -> str:
        """Integer arithmetic wraps: signed operations run on the unsigned type, narrow ones are cut after promotion."""
        texts, lanes, result = [a.text for a in args], args[0].lanes, self.kind(kind, args[0].lanes)
        if op in ("neg", "not"):
            text = f"{'-' if op == 'neg' else '~'}{texts[0]}"
        elif op == "abs":
            text = f"abs({texts[0]})" if kind.kind == "i" else texts[0]
        elif op in _INFIX and op != "div":
            text = f"{texts[0]} {_INFIX[op]} {texts[1]}"
        else:
            raise InternalError(f"[render] {self.out.function.name}: no OpenCL operation {op} of {kind}")
        if op in _COMPARE:
            return text
        if kind.kind == "i" and op in ("add", "sub", "mul", "shl", "neg", "abs"):
            unsigned = "u" + result
            if op != "abs":
                parts = [f"as_{unsigned}({t})" if lanes > 1 else f"({unsigned}){t}" for t in texts]
                text = f"-{parts[0]}" if op == "neg" else f"{parts[0]} {_INFIX[op]} {parts[1]}"
            return f"as_{result}({text})" if lanes > 1 else f"({result})({text})"
        return f"({result})({text})" if lanes == 1 and kind.bits < 32 else text

    def extremum(self, op: str, x: Ref, y: Ref) -> str:
        """NaN if either is: a comparison with NaN keeps the second operand, so only the first needs a check."""
        if not x.dtype.is_float:
            return f"{op}({x.text}, {y.text})"
        if y.literal is not None:
            x, y = y, x
        test = f"{x.text} {'>' if op == 'max' else '<'} {y.text}"
        if x.literal is None or x.literal != x.literal:
            test = f"({test}) | ({x.text} != {x.text})"
        mask = Ref(f"({test})", bool_, x.lanes)
        if x.dtype is float64 and x.lanes > 1:
            return f"select({y.text}, {x.text}, {mask.text})"
        return self.choice(mask, x, y)

    def convert(self, x: Ref, dtype: DType) -> Ref:
        source, lanes = x.dtype, x.lanes
        if source is dtype:
            return x
        if x.literal is not None and source.is_int and dtype.is_int and dtype.min <= x.literal <= dtype.max:
            return self.every(x.literal, dtype, lanes)
        if source.compute is not source:
            return self.convert(self.widened(x), dtype)
        if dtype.compute is not dtype:
            return self.narrowed(self.convert(x, float32), dtype)
        if dtype is bool_:
            return self.operation("ne", (x, self.every(0, source, lanes)), bool_)
        text, name = x.text, self.kind(dtype, lanes)
        if source.is_float and dtype.is_int:
            return self.saturated(x, dtype)
        if source is bool_ and lanes > 1:  # a lane's true is -1
            text = f"({text} & 1)"
            return self.pure(text if dtype is int32 else f"convert_{name}({text})", dtype, lanes, (x,))
        if self.kind(source, lanes) == name:
            return self.relabel(x, dtype)
        if lanes == 1 and source.is_int and source.bits < min(32, dtype.bits) and name != "int":
            # llvmpipe (Mesa 22.3) makes wrong numbers of some (float)uchar.
            return self.convert(self.convert(x, int32), dtype)
        if lanes == 1 and source is int8 and name == "int":
            # llvmpipe (Mesa 22.3) ends the process on a choice of chars, which it makes of one of (int)char.
            return self.pure(f"(((int){text} << 24) >> 24)", dtype, lanes, (x,))
        if lanes == 1 and dtype is int64 and self.kind(source, 1) == "int":
            # rusticl (Mesa 22.3) compares (long)int wrongly.
            return self.pure(f"(((long){text} << 32) >> 32)", dtype, lanes, (x,))
        return self.pure(f"({name}){text}" if lanes == 1 else f"convert_{name}({text})", dtype, lanes, (x,))

    def saturated(self, x: Ref, dtype: DType) -> Ref:
        """Float to integer: the ends beyond the range, 0 for NaN. (llvmpipe's `convert_*_sat`, of Mesa 22.3, makes
        the least number of NaN.)"""
        lanes, wide = x.lanes, int32 if dtype.bits < 32 else dtype
        low, high = (self.every(float(n), x.dtype, lanes) for n in (dtype.min, int(dtype.max) + 1))
        under, over = self.operation("lt", (x, low), bool_), self.operation("le", (high, x), bool_)
        outside = self.operation("or", (under, over), bool_)
        outside = self.operation("or", (outside, self.operation("ne", (x, x), bool_)), bool_)
        inside = self.operation("where", (outside, self.every(0.0, x.dtype, lanes), x), x.dtype)
        name = self.kind(wide, lanes)
        text = f"({name}){inside.text}" if lanes == 1 else f"convert_{name}({inside.text})"
        result = self.pure(text, wide, lanes, (inside,))
        result = self.operation("where", (under, self.every(int(dtype.min), wide, lanes), result), wide)
        result = self.operation("where", (over, self.every(int(dtype.max), wide, lanes), result), wide)
        return self.convert(result, dtype)

    def relabel(self, x: Ref, dtype: DType) -> Ref:
        """The same variable read as another type of the same C type."""
        ref = Ref(x.text, dtype, x.lanes, x.level)
        if dtype.is_int:
            ref.literal = x.literal
        return ref

    def widened(self, x: Ref) -> Ref:
        return self.relabel(x, float32) if x.dtype is float16 else bits_to_bfloat(self, self.relabel(x, uint16))

    def narrowed(self, x: Ref, dtype: DType) -> Ref:
        if dtype is bfloat16:
            return self.relabel(bfloat_to_bits(self, x), bfloat16)
        made = self.relabel(bits_to_half(self, half_to_bits(self, x)), float16)
        self.exact[made] = x
        return made

    def reinterpret(self, x: Ref, dtype: DType) -> Ref:
        if x.dtype is float16:
            return self.reinterpret(half_to_bits(self, self.relabel(x, float32)), dtype)
        if dtype is float16:
            return self.relabel(bits_to_half(self, self.reinterpret(x, uint16)), float16)
        if bool_ in (x.dtype, dtype):
            return self.convert(self.convert(x, uint8) if dtype is not bool_ else x, dtype)
        if self.kind(x.dtype) == self.kind(dtype):
            return self.relabel(x, dtype)
        return self.pure(f"as_{self.kind(dtype, x.lanes)}({x.text})", dtype, x.lanes, (x,))

    def across(self, combine: str, xs: Sequence[Ref]) -> list[Ref]:
        """Halves onto halves."""
        return [self.total(combine, x) for x in xs]

    def total(self, combine: str, x: Ref) -> Ref:
        if self.parts > 1:
            raise InternalError(f"[render] {self.out.function.name}: across expected at most 16 lanes, "
                                f"got more than {16 * (self.parts - 1)}")
        if self.out.real_width != x.lanes:
            return self.pairwise(combine, [self.extract(x, i) for i in range(self.out.real_width)])
        while x.lanes > 2:
            low, high = (self.pure(f"{x.text}.{half}", x.dtype, x.lanes // 2, (x,), "half") for half in ("lo", "hi"))
            x = self.operation(combine, (low, high), x.dtype)
        return self.operation(combine, (self.extract(x, 0), self.extract(x, 1)), x.dtype)

    def any_lane(self, mask: Ref) -> Ref:
        if mask.lanes == 1:
            return mask
        lanes = [f"{mask.text}.s{LANES[i]}" for i in range(self.out.real_width)]
        text = f"any({mask.text})" if self.out.real_width == self.out.width else f"(({' | '.join(lanes)}) != 0)"
        return self.pure(text, bool_, 1, (mask,), "any")

    def all_lanes(self, mask: Ref) -> Ref:
        return mask if mask.lanes == 1 else self.pure(f"all({mask.text})", bool_, 1, (mask,), "every")
