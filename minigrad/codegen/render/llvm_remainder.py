"""The exact remainder of floats, `rem` of `value/core.py`, as a function of LLVM IR over vectors.

LLVM's own instruction calls the C library for each lane. Here all lanes divide at once while quotients have no more
digits than a float, the usual case; else significands are divided as integers, some bits of the quotient in a round.
"""
from __future__ import annotations

import struct

from minigrad.codegen.render.llvm_text import mangled, scalar_type, vector
from minigrad.dtype import DType, float32

_FRACTION = {"float32": 23, "float64": 52}
"""Bits of a fraction."""

_STEP = 50
"""Bits of a quotient in a round: a float64 is less than 1 off."""


class _Text:
    """The spelling of vectors of a type and so many lanes."""

    def __init__(self, dtype: DType, lanes: int):
        self.kind, self.whole, self.flag = (vector(k, lanes) for k in (scalar_type(dtype), "i64", "i1"))
        self.dtype, self.lanes, self.fraction = dtype, lanes, _FRACTION[dtype.name]

    def number(self, value: float) -> str:
        return self._every(scalar_type(self.dtype), "0x" + struct.pack(">d", value).hex().upper())

    def integer(self, value: int) -> str:
        return self._every("i64", str(value))

    def _every(self, kind: str, text: str) -> str:
        return text if self.lanes == 1 else f"splat ({kind} {text})"

    def call(self, intrinsic: str, kind: str, *args: str) -> str:
        """`kind` is a scalar one."""
        full = vector(kind, self.lanes)
        return f"call {full} @llvm.{intrinsic}.{mangled(kind, self.lanes)}({', '.join(f'{full} {a}' for a in args)})"

    def of_floats(self, intrinsic: str, *args: str) -> str:
        return self.call(intrinsic, scalar_type(self.dtype), *args)

    def any_lane(self, name: str, mask: str) -> str:
        if self.lanes == 1:
            return f"  {name} = and i1 {mask}, true"
        return f"  {name} = call i1 @llvm.vector.reduce.or.v{self.lanes}i1({self.flag} {mask})"


def remainder(name: str, dtype: DType, lanes: int, has_fma: bool) -> str:
    """The function `name(a, b)`: a - trunc(a / b) * b of float32 or float64, without rounding; NaN where a is infinite
    or b is 0."""
    t = _Text(dtype, lanes)
    kind, flag = t.kind, t.flag
    short, limit = _short(t, has_fma)
    lines = [
        f"define internal {kind} {name}({kind} %a, {kind} %b) nounwind {{", "entry:",
        f"  %a.size = {t.of_floats('fabs', '%a')}", f"  %b.size = {t.of_floats('fabs', '%b')}",
        f"  %finite = fcmp olt {kind} %a.size, {t.number(float('inf'))}",
        f"  %some = fcmp ogt {kind} %b.size, {t.number(0.0)}",
        f"  %valid = and {flag} %finite, %some",
        f"  %x = select {flag} %valid, {kind} %a.size, {kind} {t.number(0.0)}",
        f"  %y = select {flag} %valid, {kind} %b.size, {kind} {t.number(1.0)}",
        f"  %less = fcmp olt {kind} %x, %y", f"  %ratio = fdiv {kind} %x, %y",
        f"  %many = fcmp oge {kind} %ratio, {t.number(limit)}", t.any_lane("%far", "%many"),
        "  br i1 %far, label %long, label %short",
        "short:", *short, "  br label %end",
        "long:", *_long(t), "  br label %end",
        "end:", f"  %found = phi {kind} [ %near, %short ], [ %distant, %join ]",
        f"  %size = select {flag} %less, {kind} %x, {kind} %found",
        f"  %signed = {t.of_floats('copysign', '%size', '%a')}",
        f"  %result = select {flag} %valid, {kind} %signed, {kind} {t.number(float('nan'))}",
        f"  ret {kind} %result", "}"]
    return "\n".join(lines)


def _short(t: _Text, has_fma: bool) -> tuple[list[str], float]:
    """(%near, the remainder of quotients below a limit, that limit)."""
    kind = t.kind
    if has_fma:  # which takes exactly as much from x as the quotient says; a quotient that was rounded up is one less
        return [f"  %quotient = {t.of_floats('trunc', '%ratio')}", f"  %minus = fneg {kind} %quotient",
                f"  %left = {t.of_floats('fma', '%minus', '%y', '%x')}",
                f"  %below = fcmp olt {kind} %left, {t.number(0.0)}", f"  %more = fadd {kind} %left, %y",
                f"  %near = select {t.flag} %below, {kind} %more, {kind} %left"], 2.0 ** (t.fraction - 1)
    if t.dtype is not float32:
        return [f"  %near = fadd {kind} %x, {t.number(0.0)}"], 0.0
    wide = vector("double", t.lanes)  # which has the digits of such a quotient, and of its product with y
    return [f"  %x.wide = fpext {kind} %x to {wide}", f"  %y.wide = fpext {kind} %y to {wide}",
            f"  %ratio.wide = fdiv {wide} %x.wide, %y.wide",
            f"  %quotient = {t.call('trunc', 'double', '%ratio.wide')}",
            f"  %taken = fmul {wide} %quotient, %y.wide", f"  %left = fsub {wide} %x.wide, %taken",
            f"  %near = fptrunc {wide} %left to {kind}"], 2.0 ** 27


def _long(t: _Text) -> list[str]:
    """%distant, the remainder of any quotient, in a block %join: with x = i * 2**e and y = j * 2**f it is
    (i * 2**(e - f) mod j) * 2**f, some bits of the power in a round."""
    whole, flag, kind, bits = t.whole, t.flag, t.kind, vector("i32", t.lanes)
    lines = []
    for v in ("x", "y"):
        if t.dtype is float32:
            lines += [f"  %{v}.short = bitcast {kind} %{v} to {bits}",
                      f"  %{v}.bits = zext {bits} %{v}.short to {whole}"]
        else:
            lines.append(f"  %{v}.bits = bitcast {kind} %{v} to {whole}")
        lines += [f"  %{v}.field = lshr {whole} %{v}.bits, {t.integer(t.fraction)}",
                  f"  %{v}.normal = icmp ne {whole} %{v}.field, {t.integer(0)}",
                  f"  %{v}.exponent = {t.call('umax', 'i64', f'%{v}.field', t.integer(1))}",
                  f"  %{v}.fraction = and {whole} %{v}.bits, {t.integer((1 << t.fraction) - 1)}",
                  f"  %{v}.first = select {flag} %{v}.normal, {whole} {t.integer(1 << t.fraction)}, {whole} "
                  f"{t.integer(0)}", f"  %{v}.digits = or {whole} %{v}.fraction, %{v}.first"]
    wide = vector("double", t.lanes)
    lines += [
        f"  %divisor = sitofp {whole} %y.digits to {wide}",
        *_reduced(t, "all", "%x.digits", t.integer(0)),
        f"  %apart = sub {whole} %x.exponent, %y.exponent",
        f"  %shift.all = {t.call('smax', 'i64', '%apart', t.integer(0))}", "  br label %round",
        "round:", f"  %digits = phi {whole} [ %digits.all, %long ], [ %digits.next, %round ]",
        f"  %shift = phi {whole} [ %shift.all, %long ], [ %shift.next, %round ]",
        f"  %step = {t.call('umin', 'i64', '%shift', t.integer(_STEP))}",
        *_reduced(t, "next", "%digits", "%step"),
        f"  %shift.next = sub {whole} %shift, %step", f"  %open = icmp ne {whole} %shift.next, {t.integer(0)}",
        t.any_lane("%again", "%open"), "  br i1 %again, label %round, label %join",
        "join:", f"  %fixed = sitofp {whole} %digits.next to {kind}",
        f"  %scaled = fmul {kind} %fixed, {t.number(2.0 ** -t.fraction)}",
        f"  %power.bits = shl {whole} %y.exponent, {t.integer(t.fraction)}"]
    if t.dtype is float32:
        lines += [f"  %power.short = trunc {whole} %power.bits to {bits}",
                  f"  %power = bitcast {bits} %power.short to {kind}"]
    else:
        lines.append(f"  %power = bitcast {whole} %power.bits to {kind}")
    return [*lines, f"  %distant = fmul {kind} %scaled, %power"]


def _reduced(t: _Text, name: str, digits: str, step: str) -> list[str]:
    """%digits.<name> = (digits << step) mod %y.digits. The quotient is a float64 whose whole part is right or, rounded
    up, one too many; in what is left of 64 bits only less than a divisor counts, so that the others may overflow."""
    whole, wide = t.whole, vector("double", t.lanes)
    return [f"  %float.{name} = sitofp {whole} {digits} to {wide}",
            f"  %biased.{name} = add {whole} {step}, {t.integer(1023)}",
            f"  %scale.{name} = shl {whole} %biased.{name}, {t.integer(52)}",
            f"  %factor.{name} = bitcast {whole} %scale.{name} to {wide}",
            f"  %raised.{name} = fmul {wide} %float.{name}, %factor.{name}",
            f"  %ratio.{name} = fdiv {wide} %raised.{name}, %divisor",
            f"  %count.{name} = fptosi {wide} %ratio.{name} to {whole}",
            f"  %taken.{name} = mul {whole} %count.{name}, %y.digits",
            f"  %shifted.{name} = shl {whole} {digits}, {step}",
            f"  %left.{name} = sub {whole} %shifted.{name}, %taken.{name}",
            f"  %below.{name} = icmp slt {whole} %left.{name}, {t.integer(0)}",
            f"  %more.{name} = add {whole} %left.{name}, %y.digits",
            f"  %digits.{name} = select {t.flag} %below.{name}, {whole} %more.{name}, {whole} %left.{name}"]
