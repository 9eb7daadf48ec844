"""Formulas of exp, log, sin, cos, tanh, sigmoid and erf in float32, free of branches.

Errors are below 2 ulp everywhere.

Polynomials were fitted at Chebyshev nodes with 60 digits and rounded. Constants of argument reductions have few enough
bits that their products are exact, so nothing depends on `fma` being fused.
"""
from __future__ import annotations

import itertools

from minigrad.codegen.transforms.math_number import Number, clamp, copy_sign, scale
from minigrad.dtype import float32, int32, int64, uint32, uint64

INF = float("inf")
NAN = float("nan")
LOG2_E = 1.4426950408889634
LN2_HIGH, LN2_LOW = 0.693145751953125, 1.428606765330187e-06
ROUND = 12582912.0  # 1.5 * 2**23: adding it rounds to an integer, which the low bits of the sum then hold
ROUND_BITS = 0x4B400000

EXP = (1.0, 1.0, 0.5, 0.16666573286056519, 0.04166654869914055, 0.008363774046301842, 0.0013926926767453551)
LOG = (0.3333333134651184, -0.2499999701976776, 0.20000720024108887, -0.16667810082435608, 0.1424887627363205,
       -0.12425360083580017, 0.11687024682760239, -0.11483081430196762, 0.06971346586942673)
SIN = (-0.166666641831398, 0.008332736790180206, -0.0001958537322934717)
COS = (0.0416666641831398, -0.0013888290850445628, 2.454541936458554e-05)
TANH = (-0.333333283662796, 0.1333276927471161, -0.05385090783238411, 0.020997179672122, -0.006096714176237583)
RECIPROCAL = (1632 / 577, -1696 / 577, 768 / 577, -128 / 577)
ERF = (0.12837916612625122, -0.37612593173980713, 0.112832210958004, -0.026838554069399834, 0.005159673281013966,
       -0.0007763599278405309, 7.061182259349152e-05)
ERF_FAR = (0.9995930790901184, 0.0021780934184789658, -0.005446244031190872, 0.00835304707288742, -0.008618004620075226,
           0.006103953812271357, -0.0028118339832872152, 0.0005693388520739973, 0.0002798362693283707,
           -0.0002782649244181812, 6.508754449896514e-05, 2.090204543492291e-05, -9.695592780190054e-06)

# pi / 2 as a sum of numbers of 14 bits, the last one of 24; as a float32; as one of 12 bits and the rest; and the bits
# of 2 / pi, 32 at a time, after a word of zeros.
HALF_PI = (1.5706787109375, 0.00011761486530303955, 9.920313459588215e-10, 6.223371969669989e-14)
HALF_PI_HIGH = 1.5707963705062866
HALF_PI_SHORT, HALF_PI_REST = 1.5703125, 0.000483826794896558
TWO_OVER_PI = (0, 0xA2F9836E, 0x4E441529, 0xFC2757D1, 0xF534DDC0, 0xDB629599, 0x3C439041, 0xFE5163AB)
LARGE = 1500.0  # beyond, the argument of sin and cos is reduced with integers


def whole(shifted: Number) -> Number:
    """n as an int32, where adding ROUND has left ROUND + n."""
    return shifted.bits(int32) - ROUND_BITS


def exp(x: Number) -> Number:
    return exp_within(clamp(x, -105.0, 89.0))


def exp_of_minus(x: Number) -> Number:
    """e**-x for x >= 0 or NaN."""
    return exp_within((x > 105.0).where(x.of(-105.0), -x))


def exp_within(x: Number) -> Number:
    """e**x for x in [-105, 89], or NaN."""
    shifted = x.fma(LOG2_E, ROUND)
    n = shifted - ROUND
    r = n.fma(-LN2_LOW, n.fma(-LN2_HIGH, x))
    return scale(r.polynomial(EXP), whole(shifted))


def log(x: Number) -> Number:
    tiny = x < 1.1754943508222875e-38
    bits = tiny.where(x * 8388608.0, x).bits(int32)
    exponent = (bits - 0x3F3504F3) >> 23
    f = (bits - (exponent << 23)).bits(float32) - 1.0
    e = exponent.cast(float32) - tiny.where(x.of(23.0), 0.0)
    square = f * f
    low = f.polynomial(LOG).fma(square * f, e * LN2_LOW)
    result = e.fma(LN2_HIGH, square.fma(-0.5, low) + f)
    result = (x < INF).where(result, x)
    return (x > 0.0).where(result, x.equals(0.0).where(x.of(-INF), NAN))


def reduced(x: Number) -> tuple[Number, Number]:
    """(n, x - n * pi / 2) with n correct modulo 4, as int32."""
    shifted = x.fma(0.6366197723675814, ROUND)
    n = shifted - ROUND
    r = n.fma(-HALF_PI[0], x)
    errors = []
    for part in HALF_PI[1:3]:
        taken = n * part
        left = r - taken
        errors.append((r - left) - taken)
        r = left
    r = r + n.fma(-HALF_PI[3], errors[0] + errors[1])
    large = abs(x) > LARGE
    far_quadrant, far = reduced_large(x)
    return large.where(far_quadrant, shifted.bits(int32)), large.where(far, r)


def reduced_large(x: Number) -> tuple[Number, Number]:
    """`reduced` for |x| > 1024: m * 2**e times 96 bits of 2 / pi from weight 2**(1 - e) on, modulo 4. (Payne, Hanek)"""
    bits = x.bits(uint32)
    mantissa = (bits & 0x7FFFFF) | 0x800000
    start = (bits >> 23 & 0xFF) - (150 - 30)  # the position of that weight in TWO_OVER_PI: e + 30
    word, shift = start >> 5, start & 31
    words = []
    for first in range(4):
        picked = word.of(TWO_OVER_PI[first])
        for i in range(1, 5):
            picked = word.equals(i).where(word.of(TWO_OVER_PI[first + i]), picked)
        words.append(picked)
    high, middle, low = [(a << shift) | (b >> 1) >> (31 - shift) for a, b in itertools.pairwise(words)]
    wide = mantissa.cast(uint64)
    window = high.cast(uint64) << 32 | middle.cast(uint64)
    product = wide * window + (wide * low.cast(uint64) >> 32)  # quarter turns: 2 bits before the point, 62 after it
    quadrant = ((product + (1 << 61)) >> 62).cast(int32)
    fraction = (product << 2).bits(int64)  # times 2**-64, in [-0.5, 0.5)
    below = fraction < 0
    size = below.where(-fraction, fraction)
    parts = [(size >> 52).cast(int32), (size >> 40 & 0xFFF).cast(int32), (size >> 16 & 0xFFFFFF).cast(int32),
             (size & 0xFFFF).cast(int32)]
    top, next_, mid, end = [p.cast(float32) for p in parts]
    # The first product has 24 bits: exact without fma. The rest is small against it, and nothing cancels.
    rest = end * (HALF_PI_HIGH * 2.0**-64) + top * (HALF_PI_REST * 2.0**-12)
    rest = next_.fma(HALF_PI_HIGH * 2.0**-24, mid.fma(HALF_PI_HIGH * 2.0**-48, rest))
    r = top.fma(HALF_PI_SHORT * 2.0**-12, rest)
    negative = x < 0.0
    return negative.where(-quadrant, quadrant), (negative ^ below).where(-r, r)


def over_one_plus(a: Number, t: Number) -> Number:
    """a / (1 + t) for t in [0, 1], within 1.1 ulp, on ports that have more time than the divider.

    The polynomial y is 1 / b within 1 / 577 for b = 1 + t, as 1 - b y = T4(2 b - 3) / T4(3) with Chebyshev's T4. What
    (1 + t) a y leaves of a is divided again, by a better 1 / b; a - a y in it is exact but near t = 1.
    """
    b = t + 1.0
    y = b.polynomial(RECIPROCAL)
    first = a * y
    left = (-t).fma(first, a - first)
    return left.fma(y.fma((-b).fma(y, 1.0), y), first)


def tanh(x: Number) -> Number:
    a = abs(x)
    square = x * x
    small = square.polynomial(TANH).fma(square * a, a)
    t = exp_of_minus(a + a)
    return copy_sign((a < 0.625).where(small, over_one_plus(1.0 - t, t)), x)


def sigmoid(x: Number) -> Number:
    """1 / (1 + e**-x), written so that nothing overflows: e**-|x| is at most 1."""
    t = exp_of_minus(abs(x))
    return over_one_plus((x < 0.0).where(t, x.of(1.0)), t)


def erf(x: Number) -> Number:
    """x + x P(x^2) near 0, Q(|x| - 2.5) beyond, which is 1 from 3.84375 on."""
    a = abs(x)
    small = (x * x).polynomial(ERF).fma(x, x)
    far = ((a > 3.84375).where(x.of(3.84375), a) - 2.5).polynomial(ERF_FAR)
    return (a < 1.109375).where(small, copy_sign(far, x))
