"""x ** y in float32 and float64: 2 ** (y * log2(x)) with the logarithm as a sum of two numbers. Below 2 ulp.

Signs, zeros, infinities and NaN are those of IEEE 754's `pow`.
"""
from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType

from minigrad.codegen.transforms import math_float32, math_float64
from minigrad.codegen.transforms.math_number import Number, clamp, scale
from minigrad.dtype import DType, float32, int32, int64

INF, NAN = float("inf"), float("nan")


@dataclass(frozen=True)
class Constants:
    """The constants of one type. `tail`: ((atanh(s) / s - 1) / s^2 - 1 / 3) / s^2 in s^2; `exp2`: (2^f - 1) / f in
    f."""

    module: ModuleType
    integer: DType
    mantissa_bits: int
    normal: float
    sqrt_half_bits: int
    limit: float            # beyond, 2**limit is infinite and 2**-limit zero
    split_mask: int         # keeps the upper half of a number's bits
    third: tuple[float, float]
    two_over_ln2: tuple[float, float]
    tail: tuple[float, ...]
    exp2: tuple[float, ...]


FLOAT32 = Constants(
    math_float32, int32, 23, 1.1754943508222875e-38, 0x3F3504F3, 200.0, -(1 << 12),
    (0.3333333432674408, -9.934107758624577e-09), (2.885390043258667, 3.851926067000022e-08),
    (0.20000000298023224, 0.1428576558828354, 0.11102364957332611, 0.09560664743185043),
    (0.6931471824645996, 0.24022650718688965, 0.05550356209278107, 0.009618082083761692, 0.001339132315479219,
     0.00015453562082257122))
FLOAT64 = Constants(
    math_float64, int64, 52, 2.2250738585072014e-308, 0x3FE6A09E667F3BCD, 1200.0, -(1 << 27),
    (0.3333333333333333, 1.850371707708594e-17), (2.8853900817779268, 4.0710547481862066e-17),
    (0.2, 0.14285714285714285, 0.11111111111111079, 0.09090909090923331, 0.07692307689172895, 0.06666667062602441,
     0.05882322545999993, 0.05264598158896214, 0.047208807631245985, 0.04986290549982797),
    (0.6931471805599453, 0.24022650695910072, 0.05550410866482163, 0.00961812910762848, 0.0013333558146405757,
     0.0001540353039337038, 1.5252733842466233e-05, 1.3215486809155723e-06, 1.0178056621871601e-07,
     7.054897073566271e-09, 4.455900399004889e-10, 2.5729732482995757e-11))


def product(x: Number, y: Number | float, k: Constants) -> tuple[Number, Number]:
    """x * y as its rounded value and the error, exactly; also where `fma` is not fused. (Dekker)"""
    y = x.of(y)
    p = x.fma(y, -0.0)  # an addition would not be fused into this one
    a, b = high_half(x, k), high_half(y, k)
    c, d = x - a, y - b
    return p, c * d + (c * b + (a * d + (a * b - p)))


def high_half(x: Number, k: Constants) -> Number:
    return (x.bits(k.integer) & k.split_mask).bits(x.dtype)


def log2(x: Number, k: Constants) -> tuple[Number, Number]:
    """log2 of a positive number, high and low part: log(m) = 2 s + 2 s^3 / 3 + ... with s = (m - 1) / (m + 1)."""
    tiny = x < k.normal
    bits = tiny.where(x * 2.0**(k.mantissa_bits + 1), x).bits(k.integer)
    exponent = (bits - k.sqrt_half_bits) >> k.mantissa_bits
    m = (bits - (exponent << k.mantissa_bits)).bits(x.dtype)
    e = exponent.cast(x.dtype) - tiny.where(x.of(float(k.mantissa_bits + 1)), 0.0)
    f, d = m - 1.0, m + 1.0
    d_low = m - (d - 1.0)
    s = f / d
    p, p_low = product(s, d, k)
    s_low = ((f - p) - p_low - s * d_low) / d
    t, t_low = product(s, s, k)
    t_low = t_low + s * s_low * 2.0
    q = t * t.polynomial(k.tail)
    a = q + k.third[0]
    a_low = ((a - k.third[0]) * -1.0 + q) + k.third[1]
    b, b_low = product(t, a, k)
    b_low = b_low + (t * a_low + t_low * a)
    c, c_low = product(s, b, k)
    c_low = c_low + (s * b_low + s_low * b)
    high = s + c
    low = ((s - high) + c) + (c_low + s_low)
    u, u_low = product(high, k.two_over_ln2[0], k)
    u_low = u_low + (high * k.two_over_ln2[1] + low * k.two_over_ln2[0])
    total = e + u
    return total, ((e - total) + u) + u_low


def pow(x: Number, y: Number) -> Number:
    k = FLOAT32 if x.dtype is float32 else FLOAT64
    a = abs(x)
    high, low = log2(a, k)
    p, p_low = product(y, high, k)
    p_low = (abs(p) < k.limit).where(p_low + y * low, 0.0)
    p = clamp(p, -k.limit, k.limit)
    shifted = p + k.module.ROUND
    f = (p - (shifted - k.module.ROUND)) + p_low
    size = scale(f.fma(f.polynomial(k.exp2), 1.0), shifted.bits(k.integer) - k.module.ROUND_BITS)
    zero = a.equals(0.0)
    size = (zero | a.equals(INF)).where((zero ^ (y < 0.0)).where(x.of(0.0), INF), size)
    size = (a.equals(1.0) & abs(y).equals(INF)).where(x.of(1.0), size)
    whole = y.trunc().equals(y)
    half = y * 0.5
    odd = whole & half.trunc().differs(half)
    negative = x.bits(k.integer) < 0
    size = (negative & odd).where(-size, size)
    undefined = (x < 0.0) & ~whole & (a < INF)
    undefined = undefined | x.differs(x) | y.differs(y)
    size = undefined.where(x.of(NAN), size)
    return (x.equals(1.0) | y.equals(0.0)).where(x.of(1.0), size)
