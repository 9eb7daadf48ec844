"""Functions of complex numbers, as pairs of Tensors (real part, imaginary part)."""
from __future__ import annotations

from collections.abc import Callable
from math import log as number_log
from math import pi

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
    """x x."""
    return multiply(x, x)


def sign(x: Pair) -> Pair:
    """Of length 1, in the same direction; 0 of 0."""
    length = x[0].hypot(x[1])
    some = length.where(condition=length != 0, other=length.ones_like())
    return x[0] / some, x[1] / some


def exp(x: Pair) -> Pair:
    """exp(x)."""
    size = x[0].exp()
    return size * x[1].cos(), (size * x[1].sin()).where(condition=x[1] != 0, other=x[1])


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


def sinh(x: Pair) -> Pair:
    """The hyperbolic sine."""
    a, b = x
    return a.sinh() * b.cos(), a.cosh() * b.sin()


def cosh(x: Pair) -> Pair:
    """The hyperbolic cosine."""
    a, b = x
    return a.cosh() * b.cos(), a.sinh() * b.sin()


def tanh(x: Pair) -> Pair:
    """By doubled angles, which are cut to where the result is 1 already."""
    a, b = x[0].clamp(-20, 20) * 2, x[1] * 2
    whole = a.cosh() + b.cos()
    return a.sinh() / whole, b.sin() / whole


def asinh(x: Pair) -> Pair:
    """log(x + sqrt(x^2 + 1)) where the real part is 0 or more; elsewhere that of -x, negated: nothing cancels."""
    left = x[0] < 0
    a, b = ((-t).where(condition=left, other=t) for t in x)
    re, im = square((a, b))
    root = sqrt((re + 1, im))
    re, im = log((a + root[0], b + root[1]))
    return (-re).where(condition=left, other=re), (-im).where(condition=left, other=im)


def acosh(x: Pair) -> Pair:
    """log(x + sqrt(x + 1) sqrt(x - 1))."""
    above, below = sqrt((x[0] + 1, x[1])), sqrt((x[0] - 1, x[1]))
    re, im = multiply(above, below)
    return log((x[0] + re, x[1] + im))


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


sin, tan, asin, atan = by_turned(sinh), by_turned(tanh), by_turned(asinh), by_turned(atanh)


def cos(x: Pair) -> Pair:
    """cosh(ix)."""
    return cosh((-x[1], x[0]))


def acos(x: Pair) -> Pair:
    """pi / 2 - asin(x)."""
    re, im = asin(x)
    return pi / 2 - re, -im
