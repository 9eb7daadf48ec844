"""Formulas of exp, log, sin, cos, tanh, sigmoid and erf in float64, free of branches.

Errors are below 4 ulp everywhere.

The same methods as in `math_float32.py`, with more terms.
"""
from __future__ import annotations

import itertools

from minigrad.codegen.transforms.math_number import Number, clamp, copy_sign, power_of_two, scale
from minigrad.dtype import float64, int64, uint64

INF = float("inf")
NAN = float("nan")
LOG2_E = 1.4426950408889634
LN2_HIGH, LN2_LOW = 0.6931471803691238, 1.9082149292705877e-10
ROUND = 6755399441055744.0  # 1.5 * 2**52
ROUND_BITS = 0x4338000000000000
SQRT_HALF_BITS = 0x3FE6A09E667F3BCD

EXP = (0.5000000000000001, 0.16666666666666669, 0.041666666666623824, 0.008333333333330039, 0.0013888888917367081,
       0.00019841269863171557, 2.4801521057868204e-05, 2.7557268276905696e-06, 2.7620201591031547e-07,
       2.5100472505694996e-08)
LOG = (0.666666666666667, 0.3999999999989889, 0.28571428626253836, 0.22222211089379496, 0.1818289243253687,
       0.15331611722055008, 0.14617807153417325)
SIN = (-0.16666666666666666, 0.008333333333330936, -0.00019841269836740532, 2.7557316093198404e-06,
       -2.5051129896450185e-08, 1.5917988979397435e-10)
COS = (0.041666666666666664, -0.0013888888888887389, 2.48015872987544e-05, -2.755731726587808e-07,
       2.087614504941318e-09, -1.138254464534925e-11)
ERF = (0.1283791670955126, -0.3761263890318375, 0.11283791670954879, -0.026866170645076792, 0.0052239776248180145,
       -0.000854832698083379, 0.0001205533111164271, -1.4925595266831182e-05, 1.6461000484121368e-06,
       -1.6350312701054695e-07, 1.4659775274047436e-08, -1.1372848856791674e-09, 5.957176147748911e-11)
LOG_ERFC_AT_1 = (-1.8496055099332482, -2.638967514234788, -0.8431072563586872, -0.04156109804157499,
                 0.010033825371729898, -0.0019779025497035927, 0.00023732240158959468, 2.627811394570755e-05,
                 -2.7159617487844116e-05, 9.609675055947767e-06, -2.0606463640802516e-06, 1.4360745610979629e-07,
                 9.70921547766881e-08, -5.18290484463618e-08, 1.4841926238733359e-08, -2.8477513350158625e-09,
                 3.657084938121614e-10, -2.8579593240479942e-11, 1.0292350740241508e-12)

HALF_PI = (1.5707963267341256, 6.077100506303966e-11, 2.0222662487959506e-21)
HALF_PI_HIGH, HALF_PI_LOW = 1.5707963267948966, 6.123233995736766e-17
# The bits of 2 / pi, 64 at a time, after 35 zeros.
TWO_OVER_PI = (
    0x145F306D, 0xC9C882A53F84EAFA, 0x3EA69BB81B6C52B3, 0x278872083FCA2C75, 0x7BD778AC36E48DC7,
    0x4849BA5C00C925DD, 0x413A32439FC3BD63, 0x962534E7DD1046BE, 0xA5D768909D338E04, 0xD68BEFC827323AC7,
    0x306A673E93908BF1, 0x77BF250763FF12FF, 0xFBC0B301FDE5E231, 0x6B414DA3EDA6CFD9, 0xE4F96136E9E8C7EC,
    0xD3CBFD45AEA4F758, 0xFD7CBE2F67A0E73E, 0xF14A525D4D7F6BF6, 0x23F1ABA10AC06608,
)
LARGE = 524288.0


def exp_parts(x: Number) -> tuple[Number, Number]:
    """(n, e**r - 1) with x = n * log(2) + r, |r| <= log(2) / 2, for |x| below 2**20."""
    shifted = x.fma(LOG2_E, ROUND)
    n = shifted - ROUND
    r = n.fma(-LN2_LOW, n.fma(-LN2_HIGH, x))
    return shifted.bits(int64) - ROUND_BITS, r.polynomial(EXP).fma(r * r, r)


def exp(x: Number) -> Number:
    n, p = exp_parts(clamp(x, -746.0, 710.0))
    return scale(p + 1.0, n)


def log(x: Number) -> Number:
    """f - f*f/2 + s * (f*f/2 + s*s * P(s*s)) for the mantissa 1 + f, with s = f / (2 + f)."""
    tiny = x < 2.2250738585072014e-308
    bits = tiny.where(x * 18014398509481984.0, x).bits(int64)
    exponent = (bits - SQRT_HALF_BITS) >> 52
    f = (bits - (exponent << 52)).bits(float64) - 1.0
    e = exponent.cast(float64) - tiny.where(x.of(54.0), 0.0)
    s = f / (f + 2.0)
    z = s * s
    half = f * f * 0.5
    low = s.fma(z.polynomial(LOG).fma(z, half), e * LN2_LOW)
    result = e.fma(LN2_HIGH, f - (half - low))
    result = (x < INF).where(result, x)
    return (x > 0.0).where(result, x.equals(0.0).where(x.of(-INF), NAN))


def reduced(x: Number) -> tuple[Number, Number]:
    """(n, x - n * pi / 2) with n correct modulo 4, as int64."""
    shifted = x.fma(0.6366197723675814, ROUND)
    n = shifted - ROUND
    r = x
    for part in HALF_PI:
        r = n.fma(-part, r)
    large = abs(x) > LARGE
    far_quadrant, far = reduced_large(x)
    return large.where(far_quadrant, shifted.bits(int64)), large.where(far, r)


def high_product(x: Number, y: Number) -> Number:
    """The upper 64 bits of a product of uint64."""
    a, b, c, d = x >> 32, x & 0xFFFFFFFF, y >> 32, y & 0xFFFFFFFF
    middle = a * d + (b * d >> 32)
    other = b * c + (middle & 0xFFFFFFFF)
    return a * c + (middle >> 32) + (other >> 32)


def window(start: Number) -> list[Number]:
    """192 bits of TWO_OVER_PI from bit `start` below 1024 on, as three uint64."""
    word, shift = start >> 6, start & 63
    words = [word.of(w) for w in TWO_OVER_PI]
    for step in (8, 4, 2, 1):
        skip = (word & step).differs(0)
        words = [skip.where(words[i + step], words[i]) for i in range(step + 3)]
    return [(a << shift) | (b >> 1) >> (63 - shift) for a, b in itertools.pairwise(words)]


def reduced_large(x: Number) -> tuple[Number, Number]:
    """`reduced` for |x| > 2**19: m * 2**e times 192 bits of 2 / pi from weight 2**(1 - e) on, modulo 4."""
    bits = x.bits(uint64)
    mantissa = (bits & ((1 << 52) - 1)) | (1 << 52)
    high, middle, low = window((bits >> 52 & 0x7FF) - (1075 - 33) & 1023)
    second = mantissa * middle
    rest = second + high_product(mantissa, low)
    first = mantissa * high + high_product(mantissa, middle) + (rest < second).cast(uint64)
    quadrant = ((first + (1 << 61)) >> 62).bits(int64)
    fraction = ((first << 2) | (rest >> 62)).bits(int64)  # times 2**-64, in [-0.5, 0.5)
    more = rest << 2
    unit = HALF_PI_HIGH * 2.0**-32
    top = (fraction >> 32).cast(float64)
    parts = [(fraction & 0xFFFFFFFF).cast(float64), (more >> 32).bits(int64).cast(float64),
             (more & 0xFFFFFFFF).bits(int64).cast(float64)]
    tail = top * (HALF_PI_LOW * 2.0**-32)
    for i in (2, 1, 0):
        tail = parts[i].fma(unit * 2.0**(-32 * (i + 1)), tail)
    r = top.fma(unit, tail)
    negative = x < 0.0
    return negative.where(-quadrant, quadrant), negative.where(-r, r)


def tanh(x: Number) -> Number:
    """m / (m + 2) with m = e**(2|x|) - 1."""
    a = clamp(abs(x), 0.0, 22.0)
    n, p = exp_parts(a + a)
    power = power_of_two(n)
    m = p.fma(power, power - 1.0)
    result = m / (m + 2.0)
    return (abs(x) > 22.0).where(copy_sign(x.of(1.0), x), copy_sign(result, x))


def sigmoid(x: Number) -> Number:
    """1 / (1 + e**-x), written so that nothing overflows."""
    t = exp(-abs(x))
    return (x < 0.0).where(t, x.of(1.0)) / (t + 1.0)


def erf(x: Number) -> Number:
    """x + x P(x^2) near 0, 1 - exp(log(erfc)) beyond."""
    a = abs(x)
    small = (x * x).polynomial(ERF).fma(x, x)
    large = 1.0 - exp((clamp(a, 0.0, 5.95) - 1.0).polynomial(LOG_ERFC_AT_1))
    return (a < 1.0).where(small, copy_sign(large, x))
