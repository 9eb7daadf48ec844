"""Functions of complex numbers, as pairs of Tensors (real part, imaginary part)."""
from __future__ import annotations

from collections.abc import Callable
from math import log as number_log

from minigrad.tensor import Tensor

Pair = tuple[Tensor, Tensor]


def multiply(x: Pair, y: Pair) -> Pair:
    """The product."""
    (a, b), (c, d) = x, y
    return a * c - b * d, a * d + b * c


def divide(x: Pair, y: Pair) -> Pair:
    """The quotient, with the divisor scaled to about 1, so that squares do not overflow."""
    (a, b), (c, d) = x, y
    scale = c.abs().maximum(d.abs())
    c, d = (c / scale).where(condition=scale > 0, other=c), (d / scale).where(condition=scale > 0, other=d)
    whole = (c * c + d * d) * scale.where(condition=scale > 0, other=scale.ones_like())
    return (a * c + b * d) / whole, (b * c - a * d) / whole


def reciprocal(x: Pair) -> Pair:
    """1 / x."""
    return divide((x[0].ones_like(), x[0].zeros_like()), x)


def square(x: Pair) -> Pair:
    """x x, infinite rather than NaN where a square overflows."""
    a, b = x
    return (a - b) * (a + b), 2 * a * b


def sign(x: Pair) -> Pair:
    """Of length 1, in the same direction; 0 of 0."""
    length = x[0].hypot(x[1])
    some = length.where(condition=length != 0, other=length.ones_like())
    return x[0] / some, x[1] / some


def exp(x: Pair) -> Pair:
    """exp(x)."""
    size = x[0].exp()
    return size * x[1].cos(), _times(size, x[1].sin())


def expm1(x: Pair) -> Pair:
    """exp(x) - 1, without cancelling near 0."""
    a, b = x
    return a.expm1() * b.cos() - 2 * (b / 2).sin().square(), a.exp() * b.sin()


def log(x: Pair) -> Pair:
    """The logarithm, with an angle in (-pi, pi]."""
    return x[0].hypot(x[1]).log(), x[1].atan2(x[0])


def log1p(x: Pair) -> Pair:
    """log(1 + x), by log1p(|1 + x|^2 - 1) / 2 near 0."""
    a, b = x
    near = (a * (a + 2) + b * b).log1p() / 2
    far, angle = log((a + 1, b))
    return near.where(condition=a.abs().maximum(b.abs()) < 0.5, other=far), angle


def log2(x: Pair) -> Pair:
    """The logarithm to the base 2."""
    return _scaled(log(x), 1 / number_log(2))


def log10(x: Pair) -> Pair:
    """The logarithm to the base 10."""
    return _scaled(log(x), 1 / number_log(10))


def _scaled(x: Pair, by: float) -> Pair:
    return x[0] * by, x[1] * by


def sqrt(x: Pair) -> Pair:
    """The root with a real part of 0 or more, and the sign of the imaginary part kept."""
    a, b = x
    long = ((a.abs() + a.hypot(b)) / 2).sqrt()
    short = (b.abs() / (2 * long)).where(condition=long > 0, other=long)
    right = a >= 0
    return long.where(condition=right, other=short), short.where(condition=right, other=long).copysign(b)


def power(x: Pair, y: Pair) -> Pair:
    """exp(y log x); 1 where y is 0, and 0 where x is and y is positive."""
    zero, one = (x[0] == 0) & (x[1] == 0), (y[0] == 0) & (y[1] == 0)
    re, im = exp(multiply(y, log((x[0].ones_like().where(condition=zero, other=x[0]), x[1]))))
    re, im = (t.zeros_like().where(condition=zero & (y[0] > 0), other=t) for t in (re, im))
    return re.ones_like().where(condition=one, other=re), im.zeros_like().where(condition=one, other=im)


def _times(size: Tensor, part: Tensor) -> Tensor:
    """The product, 0 where `part` is, of infinite sizes too."""
    return (size * part).where(condition=part != 0, other=part)


def sinh(x: Pair) -> Pair:
    """The hyperbolic sine."""
    a, b = x
    return _times(b.cos(), a.sinh()), _times(a.cosh(), b.sin())


def cosh(x: Pair) -> Pair:
    """The hyperbolic cosine."""
    a, b = x
    return a.cosh() * b.cos(), _times(a.sinh(), b.sin())


def tanh(x: Pair) -> Pair:
    """The hyperbolic tangent, of real parts that are cut to where it is 1 already."""
    a, b = x[0].clamp(-20, 20), x[1]
    sine, cosine, size = b.sin(), b.cos(), a.sinh()
    whole = size * size + cosine * cosine
    return size * a.cosh() / whole, sine * cosine / whole


def _roots(x: Pair) -> tuple[Pair, Pair]:
    """sqrt(1 - x) and sqrt(1 + x)."""
    return sqrt((1 - x[0], -x[1])), sqrt((x[0] + 1, x[1]))


def asin(x: Pair) -> Pair:
    """As W. Kahan ("Branch cuts for complex elementary functions", 1987): nothing cancels or overflows."""
    (a, b), (c, d) = _roots(x)
    return x[0].atan2(a * c - b * d), (a * d - b * c).asinh()


def acos(x: Pair) -> Pair:
    """As `asin`."""
    (a, b), (c, d) = _roots(x)
    return 2 * a.atan2(c), (b * c - a * d).asinh()


def acosh(x: Pair) -> Pair:
    """As `asin`."""
    (a, b), (c, d) = sqrt((x[0] - 1, x[1])), sqrt((x[0] + 1, x[1]))
    return (a * c + b * d).asinh(), 2 * b.atan2(c)


def atanh(x: Pair) -> Pair:
    """(log(1 + x) - log(1 - x)) / 2."""
    (a, b), (c, d) = log1p(x), log1p((-x[0], -x[1]))
    return (a - c) / 2, (b - d) / 2


def by_turned(function: Callable[[Pair], Pair]) -> Callable[[Pair], Pair]:
    """-i f(ix): a function of angles by the hyperbolic one."""
    def turned(x: Pair) -> Pair:
        re, im = function((-x[1], x[0]))
        return im, -re

    return turned


sin, tan, atan, asinh = by_turned(sinh), by_turned(tanh), by_turned(atanh), by_turned(asin)


def cos(x: Pair) -> Pair:
    """cosh(ix)."""
    return cosh((-x[1], x[0]))
