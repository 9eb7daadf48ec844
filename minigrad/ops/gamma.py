"""The logarithm of the gamma function, its derivatives, and 1 - erf, as composites whose gradients are written by hand.

Near the origin they are quotients of polynomials times what they vanish by (interpolation at Chebyshev's nodes), far
from it their asymptotic series, in between recurrences towards the origin, and left of it reflections. There are two
sets of constants, for float32 and for float64 (`_Constants`); half types compute in float32.
"""
from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from minigrad.dtype import DType, float32, float64, int32, int64
from minigrad.ops import build as B
from minigrad.ops.composite import composite
from minigrad.ops.node import Node, apply
from minigrad.ops.op import Op, Shape

Quotient = tuple[tuple[float, ...], tuple[float, ...]]  # numerator and denominator, the highest power first


class _Constants(NamedTuple):
    log_gamma: Quotient  # log(gamma(1 + t)) / (t * (t - 1)), t in 0..1.5
    digamma: Quotient    # digamma(1 + t) / (t - root), t in 0..1
    root: tuple[float, float]  # what it vanishes at, in two parts
    erfc: Quotient       # erfc(x) * exp(x*x) / u of u = 1 / (x + shift), x from 0.5 on
    shift: float
    far: float           # where erfc is 0
    series: int          # terms of the asymptotic series
    start: int           # from which they are close enough
    upper: int           # the leading bits of a number whose square is exact
    whole: DType


_SHORT = _Constants(
    ((0.0003013412786, 0.03884365425, 0.3528835521, 0.8483082727, 0.5772156648),
     (0.01345298971, 0.2439721177, 1.147038571, 1.894542539, 1.0)),
    ((0.002426444255, 0.207897002, 1.126160753, 1.250380136),
     (0.06252359773, 0.647353047, 1.584201418, 1.0)),
    (0.46163213253021240234, 1.24381499389e-8),
    ((18.23692618, 16.40859249, 14.51394054, 5.561123405, 2.954459954, 0.5641871577),
     (7.670441555, 0.6815612621, 14.22745134, 2.507708553, 3.736409707, 1.0)),
    1.5, 10.6, 4, 5, -1 << 12, int32)

_LONG = _Constants(
    ((1.61745068382364097e-6, 0.000698016602366607481, 0.0212031760431546343, 0.204391088817007742,
      0.852051398154166703, 1.70581416294524001, 1.61279809882951345, 0.577215664901532849),
     (0.000182146280836669499, 0.00907815276959118299, 0.131884067290405062, 0.82031487990585247,
      2.53115928409605633, 4.05366814931605637, 3.21898655967532487, 1.0)),
    ((1.08946785283839542e-6, 0.000581113506398567664, 0.0199640827415192617, 0.216314072514324551,
      0.971132752626239162, 1.86759251040744542, 1.25038013750340536),
     (0.000120431511722869014, 0.00610097569243482145, 0.0911190225330328488, 0.571045572713312798,
      1.66307369636659077, 2.17716659866713428, 1.0)),
    (0.46163214496836236, -1.55223481628586769e-17),
    ((0.0103759303843029793, 867.180293773506478, 1757.06139585383162, 1978.36956773544783, 1531.51274364124304,
      876.232957316561659, 381.041619085985107, 125.506514596214101, 30.9690796466566205, 5.19368960276723498,
      0.564189583545972162),
     (173.149254273575366, 735.948514447711013, 1474.71160100450042, 1841.50300296987551, 1599.92412298043916,
      1015.37600551230747, 484.972634123450478, 172.666026938122558, 46.1856893732439372, 8.20557513636697865, 1.0)),
    1.0, 27.5, 9, 8, -1 << 27, int64)

_BERNOULLI = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6, -3617 / 510, 43867 / 798)  # B2, B4, ...


def _constants(x: Node) -> _Constants:
    return _LONG if x.dtype is float64 else _SHORT


def _number(x: Node, value: float) -> Node:
    return B.full_like(x, value)


def _polynomial(powers: Sequence[float], x: Node) -> Node:
    result = _number(x, powers[0])
    for c in powers[1:]:
        result = B.add(B.mul(result, x), _number(x, c))
    return result


def _quotient(parts: Quotient, x: Node) -> Node:
    return B.div(_polynomial(parts[0], x), _polynomial(parts[1], x))


def _series(x: Node, terms: Sequence[float]) -> Node:
    """terms[0] + terms[1] / x**2 + terms[2] / x**4 + ..."""
    inverse = B.div(_number(x, 1), x)
    return _polynomial(terms[::-1], B.mul(inverse, inverse))


def _lowered(x: Node, least: float) -> tuple[Node, Node, Node]:
    """x less the integer that leaves it in least - 1..least, for x up to the start of the series; the product of the
    numbers passed, and of their reciprocals the sum times that product."""
    one = _number(x, 1)
    product, total = one, _number(x, 0)
    for _ in range(_constants(x).start - int(least)):
        over = B.le(_number(x, least), x)
        x = B.where(over, B.sub(x, one), x)
        total = B.where(over, B.add(B.mul(total, x), product), total)
        product = B.where(over, B.mul(product, x), product)
    return x, product, total


def _log_gamma(x: Node) -> Node:
    """Left of 0 -log(|x| * sin(pi * |x|) / pi) - log_gamma(|x|), where for |x| < 1 the logarithms of |x| cancel."""
    known, one = _constants(x), _number(x, 1)
    a = B.abs_(x)
    near, far = B.lt(a, one), B.le(_number(x, known.start), a)
    z, product, _ = _lowered(a, 2.5)
    t = B.where(near, a, B.sub(z, one))
    middle = B.mul(B.mul(t, B.sub(t, one)), _quotient(known.log_gamma, t))
    log = B.log(B.where(near, a, B.where(far, a, product)))
    terms = [b / (2 * k * (2 * k - 1)) for k, b in enumerate(_BERNOULLI[:known.series], 1)]
    stirling = B.add(B.mul(B.sub(a, _number(x, 0.5)), B.sub(log, one)), B.add(
        _number(x, (math.log(2 * math.pi) - 1) / 2), B.div(_series(a, terms), a)))
    right = B.where(far, stirling, B.add(middle, B.where(near, B.neg(log), log)))
    fraction = B.sub(a, B.floor(a))
    sine = B.sin(B.mul(B.minimum(fraction, B.sub(one, fraction)), _number(x, math.pi)))
    size = B.mul(B.where(near, sine, B.mul(a, sine)), _number(x, 1 / math.pi))
    left = B.neg(B.add(B.log(size), B.where(near, middle, right)))
    infinite = B.or_(B.eq(fraction, _number(x, 0)), B.eq(a, _number(x, math.inf)))
    left = B.where(infinite, _number(x, math.inf), left)
    return B.where(B.lt(x, _number(x, 0)), left, right)


def _cotangent(x: Node) -> Node:
    """cot(pi * x)."""
    angle = B.mul(B.sub(x, B.round_(x)), _number(x, math.pi))
    return B.div(B.cos(angle), B.sin(angle))


def _digamma(x: Node) -> Node:
    known, one, zero = _constants(x), _number(x, 1), _number(x, 0)
    negative = B.lt(x, zero)
    a = B.where(negative, B.sub(one, x), x)
    near, far = B.lt(a, one), B.le(_number(x, known.start), a)
    z, product, total = _lowered(a, 2)
    t = B.where(near, a, B.sub(z, one))
    from_root = B.sub(B.sub(t, _number(x, known.root[0])), _number(x, known.root[1]))
    middle = B.mul(from_root, _quotient(known.digamma, t))
    middle = B.add(middle, B.where(near, B.div(_number(x, -1), a), B.div(total, product)))
    terms = [b / (2 * k) for k, b in enumerate(_BERNOULLI[:known.series], 1)]
    inverse = B.div(one, a)
    tail = B.mul(inverse, B.add(_number(x, 0.5), B.mul(inverse, _series(a, terms))))
    right = B.where(far, B.sub(B.log(a), tail), middle)
    left = B.sub(right, B.mul(_number(x, math.pi), _cotangent(x)))
    pole = B.and_(negative, B.eq(x, B.floor(x)))
    return B.where(negative, B.where(pole, _number(x, math.nan), left), right)


def _polygamma(x: Node, n: int) -> Node:
    """(-1)**(n + 1) * n! * (the sum of 1 / (x + k)**(n + 1) over k >= 0), by Euler and Maclaurin; left of 0 the
    derivatives of pi * cot(pi * x) reflect it."""
    one, negative = _number(x, 1), B.lt(x, _number(x, 0))
    a = B.where(negative, B.sub(one, x), x)
    s, total = n + 1, _number(x, 0)
    count = (10 if x.dtype is float64 else 5) + n
    for _ in range(count):
        total = B.add(total, _power(B.div(one, a), s))
        a = B.add(a, one)
    inverse = B.div(one, a)
    terms = [b * math.prod(range(s, s + 2 * k - 1)) / math.factorial(2 * k)
             for k, b in enumerate(_BERNOULLI[:_constants(x).series], 1)]
    tail = B.add(B.add(_number(x, 1 / (s - 1)), B.mul(_number(x, 0.5), inverse)),
                 B.mul(B.mul(inverse, inverse), _series(a, terms)))
    total = B.mul(B.add(total, B.mul(_power(inverse, s - 1), tail)), _number(x, math.factorial(n) * (-1) ** s))
    powers = [1.0, 0.0]  # of the n-th derivative of the cotangent as a polynomial in it: (-1 - c**2) d/dc
    for _ in range(n):
        slope = [c * (len(powers) - 1 - k) for k, c in enumerate(powers[:-1])]
        powers = [-c for c in _sum([*slope, 0.0, 0.0], slope)]
    reflected = B.mul(_polynomial(powers, _cotangent(x)), _number(x, -math.pi ** s))
    return B.where(negative, B.add(B.mul(total, _number(x, (-1) ** n)), reflected), total)


def _power(x: Node, n: int) -> Node:
    result = x
    for _ in range(n - 1):
        result = B.mul(result, x)
    return result


def _sum(long: list[float], short: list[float]) -> list[float]:
    """Of two polynomials."""
    shift = len(long) - len(short)
    return [c + (short[k - shift] if k >= shift else 0.0) for k, c in enumerate(long)]


def _erfc(x: Node) -> Node:
    """exp(-x*x) of x = h + l is exp(-h*h) * exp(-l * (x + h)), where h has so few bits that its square is exact."""
    known, one = _constants(x), _number(x, 1)
    u = B.div(one, B.add(x, _number(x, known.shift)))
    bits = B.bitcast(x, known.whole)
    h = B.bitcast(B.and_(bits, B.full_like(bits, known.upper)), x.dtype)
    size = B.mul(B.exp(B.neg(B.mul(h, h))), B.exp(B.mul(B.sub(h, x), B.add(h, x))))
    tail = B.mul(size, B.mul(u, _quotient(known.erfc, u)))
    tail = B.where(B.lt(_number(x, known.far), x), _number(x, 0), tail)
    return B.where(B.lt(x, _number(x, 0.5)), B.sub(one, B.erf(x)), tail)


def _composite(name: str, write: Callable[..., Node], slope: Callable[..., Node]) -> Op:
    """A function of one float Node; `slope(g, x, **params)` is the gradient."""
    def infer(shapes: Sequence[Shape], dtypes: Sequence[DType], **_: Any) -> tuple[Shape, DType]:
        return shapes[0], dtypes[0]

    def expand(x: Node, **params: Any) -> Node:
        return B.cast(write(B.cast(x, float64 if x.dtype is float64 else float32), **params), x.dtype)

    return composite(name, infer, expand, lambda node, g: (slope(g, node.inputs[0], **node.params),))


def _erfc_slope(g: Node, x: Node) -> Node:
    return B.mul(B.mul(g, _number(x, -2 / math.sqrt(math.pi))), B.exp(B.neg(B.mul(x, x))))


ERFC = _composite("erfc", _erfc, _erfc_slope)
LOG_GAMMA = _composite("lgamma", _log_gamma, lambda g, x: B.mul(g, digamma(x)))
DIGAMMA = _composite("digamma", _digamma, lambda g, x: B.mul(g, polygamma(x, 1)))
POLYGAMMA = _composite("polygamma", _polygamma, lambda g, x, n: B.mul(g, polygamma(x, n + 1)))


def erfc(x: Node) -> Node:
    """1 - erf(x), accurate where that is small."""
    return apply(ERFC, x)


def log_gamma(x: Node) -> Node:
    """log(|gamma(x)|)."""
    return apply(LOG_GAMMA, x)


def digamma(x: Node) -> Node:
    """The derivative of log(gamma(x))."""
    return apply(DIGAMMA, x)


def polygamma(x: Node, n: int) -> Node:
    """The n-th derivative of digamma, n >= 1."""
    return apply(POLYGAMMA, x, n=n)


GAMMAS = (ERFC, LOG_GAMMA, DIGAMMA, POLYGAMMA)
