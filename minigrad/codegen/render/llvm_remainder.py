"""The exact remainder of floats, `rem` of `value/core.py`, as functions of LLVM IR.

LLVM's own instruction calls the C library for each lane. Here all lanes divide at once, by a division and a
multiply-add, while quotients have fewer digits than a float, as they usually have; else each divides significands as
integers.
"""
from __future__ import annotations

import struct

from minigrad.codegen.render.llvm_text import mangled, scalar_type, vector
from minigrad.dtype import DType, float32


def remainder(name: str, dtype: DType, lanes: int, has_fma: bool) -> str:
    """The function `name(a, b)`: a - trunc(a / b) * b of float32 or float64, without rounding; NaN where a is infinite
    or b is 0."""
    scalar = scalar_type(dtype)
    kind, flag = vector(scalar, lanes), vector("i1", lanes)

    def number(value: float) -> str:
        text = "0x" + struct.pack(">d", value).hex().upper()
        return text if lanes == 1 else f"splat ({scalar} {text})"

    def call(intrinsic: str, *args: str) -> str:
        return f"call {kind} @llvm.{intrinsic}.{mangled(scalar, lanes)}({', '.join(f'{kind} {a}' for a in args)})"

    if has_fma:  # which takes exactly as much from x as the quotient says; a quotient that was rounded up is one less
        near, limit = "%near", 2.0 ** (22 if dtype is float32 else 51)
        short = [f"  %quotient = {call('trunc', '%ratio')}", f"  %minus = fneg {kind} %quotient",
                 f"  %left = {call('fma', '%minus', '%y', '%x')}",
                 f"  %below = fcmp olt {kind} %left, {number(0.0)}", f"  %more = fadd {kind} %left, %y",
                 f"  %near = select {flag} %below, {kind} %more, {kind} %left"]
    else:
        near, limit, short = "%x", 1.0, []
    each, all_lanes = _by_lanes(name, scalar, lanes)
    return "\n".join([
        *DIGITS.format(name=name).splitlines(),
        f"define internal {kind} {name}({kind} %a, {kind} %b) nounwind {{", "entry:",
        f"  %a.size = {call('fabs', '%a')}", f"  %b.size = {call('fabs', '%b')}",
        f"  %finite = fcmp olt {kind} %a.size, {number(float('inf'))}",
        f"  %some = fcmp ogt {kind} %b.size, {number(0.0)}",
        f"  %valid = and {flag} %finite, %some",
        f"  %x = select {flag} %valid, {kind} %a.size, {kind} {number(0.0)}",
        f"  %y = select {flag} %valid, {kind} %b.size, {kind} {number(1.0)}",
        f"  %less = fcmp olt {kind} %x, %y", f"  %ratio = fdiv {kind} %x, %y", *short,
        f"  %many = fcmp oge {kind} %ratio, {number(limit)}",
        *([f"  %any = call i1 @llvm.vector.reduce.or.v{lanes}i1({flag} %many)"] if lanes > 1 else []),
        f"  br i1 {'%any' if lanes > 1 else '%many'}, label %long, label %end",
        "long:", *each, "  br label %end",
        "end:", f"  %found = phi {kind} [ {near}, %entry ], [ {all_lanes}, %long ]",
        f"  %size = select {flag} %less, {kind} %x, {kind} %found",
        f"  %signed = {call('copysign', '%size', '%a')}",
        f"  %result = select {flag} %valid, {kind} %signed, {kind} {number(float('nan'))}",
        f"  ret {kind} %result", "}"])


def _by_lanes(name: str, scalar: str, lanes: int) -> tuple[list[str], str]:
    """The remainders of %x by %y one after another, as float64, which has all of float32; and the name of them all."""
    if lanes == 1:
        return _one(name, scalar, "%x", "%y", "%rest"), "%rest"
    kind, lines, made = vector(scalar, lanes), list[str](), "poison"
    for k in range(lanes):
        lines += [f"  %{v}.{k} = extractelement {kind} %{v}, i64 {k}" for v in "xy"]
        lines += _one(name, scalar, f"%x.{k}", f"%y.{k}", f"%rest.{k}")
        lines.append(f"  %all.{k} = insertelement {kind} {made}, {scalar} %rest.{k}, i64 {k}")
        made = f"%all.{k}"
    return lines, made


def _one(name: str, scalar: str, x: str, y: str, rest: str) -> list[str]:
    if scalar == "double":
        return [f"  {rest} = call double {name}.digits(double {x}, double {y})"]
    return [f"  {x}.wide = fpext float {x} to double", f"  {y}.wide = fpext float {y} to double",
            f"  {rest}.wide = call double {name}.digits(double {x}.wide, double {y}.wide)",
            f"  {rest} = fptrunc double {rest}.wide to float"]


DIGITS = """define internal double {name}.digits(double %x, double %y) nounwind {{
entry:
  %x.bits = bitcast double %x to i64
  %y.bits = bitcast double %y to i64
  %x.field = lshr i64 %x.bits, 52
  %y.field = lshr i64 %y.bits, 52
  %x.normal = icmp ne i64 %x.field, 0
  %y.normal = icmp ne i64 %y.field, 0
  %x.first = select i1 %x.normal, i64 4503599627370496, i64 0
  %y.first = select i1 %y.normal, i64 4503599627370496, i64 0
  %x.fraction = and i64 %x.bits, 4503599627370495
  %y.fraction = and i64 %y.bits, 4503599627370495
  %x.digits = or i64 %x.fraction, %x.first
  %y.digits = or i64 %y.fraction, %y.first
  %x.exponent = call i64 @llvm.umax.i64(i64 %x.field, i64 1)
  %y.exponent = call i64 @llvm.umax.i64(i64 %y.field, i64 1)
  %apart = sub i64 %x.exponent, %y.exponent
  %all = call i64 @llvm.smax.i64(i64 %apart, i64 0)
  br label %round
round:
  %i = phi i64 [ %x.digits, %entry ], [ %i.next, %again ]
  %left = phi i64 [ %all, %entry ], [ %left.next, %again ]
  %rest = urem i64 %i, %y.digits
  %more = icmp ne i64 %left, 0
  br i1 %more, label %again, label %end
again:
  %step = call i64 @llvm.umin.i64(i64 %left, i64 11)
  %i.next = shl i64 %rest, %step
  %left.next = sub i64 %left, %step
  br label %round
end:
  %power.bits = shl i64 %y.exponent, 52
  %power = bitcast i64 %power.bits to double
  %float = uitofp i64 %rest to double
  %scaled = fmul double %float, 0x3CB0000000000000
  %result = fmul double %scaled, %power
  ret double %result
}}"""
"""One lane's magnitudes: i * 2**e by j * 2**f leaves (i * 2**(e - f) mod j) * 2**f, 11 bits of the power in a round."""
