"""Scalar meanings that need more than one Value: division, remainders and shifts that no machine can trap on.

Integer x // 0 and x % 0 give 0, INT_MIN // -1 wraps, both round towards minus infinity; a shift by the width or more
(or by a negative count) gives 0, or the sign for a signed right shift.
"""
from __future__ import annotations

from functools import partial, reduce

from minigrad import value as V
from minigrad.dtype import DType
from minigrad.ops.convert import rounded
from minigrad.value import Value


def _is_plain_divisor(b: Value) -> bool:
    return b.op == "const" and b.number not in (0, -1)


def _safe_divisor(b: Value) -> Value:
    """`b` with the divisors that trap (0, and -1 for signed types) replaced by 1."""
    if _is_plain_divisor(b):
        return b
    one = V.const(1, b.dtype)
    safe = V.where(V.binary("eq", b, V.const(0, b.dtype)), one, b)
    return safe if b.dtype.kind == "u" else V.where(V.binary("eq", b, V.const(-1, b.dtype)), one, safe)


def _select_divisor(b: Value, by_zero: Value, by_minus_one: Value, otherwise: Value) -> Value:
    if _is_plain_divisor(b):
        return otherwise
    result = V.where(V.binary("eq", b, V.const(0, b.dtype)), by_zero, otherwise)
    if b.dtype.kind == "u":
        return result
    return V.where(V.binary("eq", b, V.const(-1, b.dtype)), by_minus_one, result)


def _rounds_down(remainder: Value, b: Value) -> Value:
    """True where the truncated quotient lies above the floor: a remainder whose sign differs from the divisor's."""
    zero = V.const(0, b.dtype)
    signs_differ = V.binary("ne", V.binary("lt", remainder, zero), V.binary("lt", b, zero))
    return V.binary("and", V.binary("ne", remainder, zero), signs_differ)


def _float_floordiv(a: Value, b: Value) -> Value:
    """The quotient without the rest that `mod` gives, rounded to a whole number; of the sign of a / b where it is 0."""
    rest, ratio, zero = V.binary("rem", a, b), V.binary("div", a, b), V.const(0, a.dtype)
    exact = V.binary("div", V.binary("sub", a, rest), b)
    exact = V.where(_rounds_down(rest, b), V.binary("sub", exact, V.const(1, a.dtype)), exact)
    whole = V.unary("floor", exact)
    short = V.binary("lt", V.const(0.5, a.dtype), V.binary("sub", exact, whole))
    whole = V.where(short, V.binary("add", whole, V.const(1, a.dtype)), whole)
    whole = V.where(V.binary("eq", exact, zero), V.binary("mul", ratio, zero), whole)
    return V.where(V.binary("eq", b, zero), ratio, whole)


def floordiv(a: Value, b: Value, *, dtype: DType) -> Value:
    if a.dtype.is_float:
        return _float_floordiv(a, b)
    safe = _safe_divisor(b)
    quotient = V.binary("idiv", a, safe)
    if a.dtype.kind == "i":
        down = V.binary("sub", quotient, V.const(1, a.dtype))
        quotient = V.where(_rounds_down(V.binary("irem", a, safe), safe), down, quotient)
    return _select_divisor(b, V.const(0, a.dtype), V.unary("neg", a) if a.dtype.kind == "i" else a, quotient)


def mod(a: Value, b: Value, *, dtype: DType) -> Value:
    """a - floor(a/b)*b, exact, but where a rest of the other sign has b added and is rounded."""
    if a.dtype.is_float:
        rest = V.binary("rem", a, b)
        return V.where(_rounds_down(rest, b), V.binary("add", rest, b), rest)
    safe, zero = _safe_divisor(b), V.const(0, a.dtype)
    remainder = V.binary("irem", a, safe)
    if a.dtype.kind == "i":
        remainder = V.where(_rounds_down(remainder, safe), V.binary("add", remainder, safe), remainder)
    return _select_divisor(b, zero, zero, remainder)


def _in_width(n: Value) -> Value:
    below = V.binary("lt", n, V.const(n.dtype.bits, n.dtype))
    return below if n.dtype.kind == "u" else V.binary("and", below, V.binary("le", V.const(0, n.dtype), n))


def shl(a: Value, n: Value, *, dtype: DType) -> Value:
    if n.op == "const":
        return V.binary("shl", a, n) if 0 <= n.number < a.dtype.bits else V.const(0, a.dtype)
    ok, zero = _in_width(n), V.const(0, a.dtype)
    return V.where(ok, V.binary("shl", a, V.where(ok, n, zero)), zero)


def shr(a: Value, n: Value, *, dtype: DType) -> Value:
    """Arithmetic for signed types, logical for unsigned ones."""
    last = V.const(a.dtype.bits - 1, a.dtype)
    if n.op == "const":
        if 0 <= n.number < a.dtype.bits:
            return V.binary("shr", a, n)
        return V.binary("shr", a, last) if a.dtype.kind == "i" else V.const(0, a.dtype)
    ok = _in_width(n)
    shifted = V.binary("shr", a, V.where(ok, n, last))
    return shifted if a.dtype.kind == "i" else V.where(ok, shifted, V.const(0, a.dtype))


def dot_bytes(w: Value, x: Value, *, dtype: DType, signed: tuple[bool, bool] = (False, True)) -> Value:
    """The sum of the products of the bytes of w and of x, unsigned and signed ones if nothing else is said: VNNI's
    instruction, written out."""
    def number(n: int) -> Value:
        return V.const(n, dtype)

    def byte(word: Value, j: int, signed: bool) -> Value:
        if not signed:
            return V.binary("and", V.binary("shr", word, number(8 * j)) if j else word, number(255))
        return V.binary("shr", V.binary("shl", word, number(24 - 8 * j)) if j < 3 else word, number(24))

    first, *others = [V.binary("mul", byte(w, j, signed[0]), byte(x, j, signed[1])) for j in range(4)]
    return reduce(partial(V.binary, "add"), others, first)


def look_up(x: Value, *, dtype: DType, table: tuple[int, ...]) -> Value:
    """table[x & 15] of signed bytes, int32: a byte chosen in one of four words."""
    def number(n: int) -> Value:
        return V.const(n, x.dtype)

    code = V.binary("and", x, number(15))
    words = [sum([(n & 255) << 8 * k for k, n in enumerate(table[i:i + 4])]) for i in range(0, 16, 4)]
    chosen = number(words[3])
    for k in (2, 1, 0):
        chosen = V.where(V.binary("lt", code, number(4 * k + 4)), number(words[k]), chosen)
    place = V.binary("shl", V.binary("and", code, number(3)), number(3))
    byte = V.cast(V.binary("shr", chosen, place), dtype)
    return V.binary("shr", V.binary("shl", byte, V.const(24, dtype)), V.const(24, dtype))


def cast(x: Value, *, dtype: DType, to: DType) -> Value:
    """Through the storage type, so that a cast to a half type rounds, then back to the type kernels compute in."""
    return V.cast(V.cast(x, to), to.compute)


def bitcast(x: Value, *, dtype: DType, to: DType, of: DType) -> Value:
    return V.cast(V.bitcast(V.cast(x, of), to), to.compute)


def as_stored(x: Value, of: DType) -> Value:
    """x, computed for a Node of this type, as memory would hold it."""
    if of.compute is of or (x.op == "cast" and x.args[0].dtype is of):
        return x
    if x.op == "const":
        return V.const(rounded(x.number, of), x.dtype)
    if x.op == "guard":
        return V.guard(as_stored(x.args[0], of), as_stored(x.args[1], of), x.conditions)
    return cast(x, dtype=of, to=of)
