"""Inverses of trigonometric and hyperbolic functions and of erf, cosh, sinh, and exp(x) - 1, as composites whose
gradients are written by hand.

`atan` is a polynomial after its argument was reduced to +-(sqrt(2) - 1) (W. Cody and W. Waite, "Software manual for the
elementary functions", 1980); the others are made of it and of `log1p`, in forms that cancel nothing. Half types compute
in float32.
"""
from __future__ import annotations

import math
from collections.abc import Callable

from minigrad.dtype import float64
from minigrad.ops import build as B
from minigrad.ops.composite import composite
from minigrad.ops.functions import log1p
from minigrad.ops.node import Node, apply
from minigrad.ops.op import Op

_SHORT = (-0.0645192820812174876, 0.10743731490791083, -0.142639555979846392, 0.199995404836489634,
          -0.333333317611685199)
_LONG = (-0.019176887119062259, 0.0392316582955871913, -0.0508544973794025986, 0.0585814891280220988,
         -0.06664511447381948, 0.0769218319082608656, -0.0909090457812390189, 0.111111110152563617,
         -0.142857142846665429, 0.199999999999955207, -0.333333333333333302)
"""(atan(t) / t - 1) / t**2 as polynomials in t**2 for |t| <= sqrt(2) - 1, the highest power first: within 2e-8 and
4e-17, for float32 and float64 (Chebyshev interpolation)."""

_LARGE = {False: 1e8, True: 1e16}  # beyond which x * x + 1 is x * x; the key says whether x is float64


def _number(x: Node, value: float) -> Node:
    return B.full_like(x, value)


def _like_its_argument(x: Node, size: Node) -> Node:
    """`size` with the sign of x, and x itself where it is 0: -0.0 stays."""
    zero = _number(x, 0)
    return B.where(B.eq(x, zero), x, B.where(B.lt(x, zero), B.neg(size), size))


def _atan(x: Node) -> Node:
    a, one = B.abs_(x), _number(x, 1)
    large, middle = B.lt(_number(x, math.sqrt(2) + 1), a), B.lt(_number(x, math.sqrt(2) - 1), a)
    t = B.where(large, B.div(_number(x, -1), a), B.where(middle, B.div(B.sub(a, one), B.add(a, one)), a))
    z = B.mul(t, t)
    powers = _LONG if x.dtype is float64 else _SHORT
    p = _number(x, powers[0])
    for c in powers[1:]:
        p = B.add(B.mul(p, z), _number(x, c))
    small = B.add(t, B.mul(B.mul(t, z), p))
    start = B.where(large, _number(x, math.pi / 2), B.where(middle, _number(x, math.pi / 4), _number(x, 0)))
    return _like_its_argument(x, B.add(start, small))


def _signed(x: Node) -> Node:
    """True where the sign bit is set; of NaN it counts as not set."""
    zero = _number(x, 0)
    return B.or_(B.lt(x, zero), B.lt(B.div(_number(x, 1), x), zero))


def _atan2(y: Node, x: Node) -> Node:
    above, beside, zero, infinity = B.abs_(y), B.abs_(x), _number(x, 0), _number(x, math.inf)
    nowhere, far = B.eq(B.maximum(above, beside), zero), B.eq(B.minimum(above, beside), infinity)
    slope = B.where(nowhere, zero, B.where(far, _number(x, 1), B.div(above, beside)))
    angle = _atan(slope)
    angle = B.where(_signed(x), B.sub(_number(x, math.pi), angle), angle)
    return B.where(_signed(y), B.neg(angle), angle)


def _asin(x: Node) -> Node:
    one = _number(x, 1)
    return _atan(B.div(x, B.sqrt(B.mul(B.sub(one, x), B.add(one, x)))))


def _acos(x: Node) -> Node:
    one = _number(x, 1)
    half = _atan(B.sqrt(B.div(B.sub(one, x), B.add(one, x))))
    return B.add(half, half)


def _asinh(x: Node) -> Node:
    """log1p(a + a*a / (1 + sqrt(a*a + 1))) of a = |x|, log(a) + log(2) where that is large."""
    a, one = B.abs_(x), _number(x, 1)
    square = B.mul(a, a)
    near = log1p(B.add(a, B.div(square, B.add(one, B.sqrt(B.add(square, one))))))
    far = B.add(B.log(a), _number(x, math.log(2)))
    return _like_its_argument(x, B.where(B.lt(_number(x, _LARGE[x.dtype is float64]), a), far, near))


def _acosh(x: Node) -> Node:
    t = B.sub(x, _number(x, 1))
    near = log1p(B.add(t, B.sqrt(B.mul(t, B.add(t, _number(x, 2))))))
    far = B.add(B.log(x), _number(x, math.log(2)))
    found = B.where(B.lt(_number(x, _LARGE[x.dtype is float64]), x), far, near)
    return B.where(B.lt(x, _number(x, 1)), _number(x, math.nan), found)  # the root of t * (t + 2) is one below -1, too


def _atanh(x: Node) -> Node:
    a = B.abs_(x)
    return _like_its_argument(x, B.mul(_number(x, 0.5), log1p(B.div(B.add(a, a), B.sub(_number(x, 1), a)))))


def _expm1(x: Node) -> Node:
    """2 t / (1 - t) of t = tanh(x / 2) near 0, where exp(x) - 1 cancels."""
    t, one = B.tanh(B.mul(x, _number(x, 0.5))), _number(x, 1)
    near = B.lt(B.abs_(x), _number(x, 0.5))
    return B.where(near, B.div(B.add(t, t), B.sub(one, t)), B.sub(B.exp(x), one))


def _cosh(x: Node) -> Node:
    grown = _half_exp(B.abs_(x))
    return B.add(grown, B.div(_number(x, 0.25), grown))


def _sinh(x: Node) -> Node:
    """Of e = exp(x) - 1 near 0."""
    a, one = B.abs_(x), _number(x, 1)
    near, grown = B.lt(a, one), _half_exp(a)
    e = expm1(B.where(near, a, _number(x, 0)))
    found = B.where(near, B.mul(_number(x, 0.5), B.add(e, B.div(e, B.add(e, one)))),
                    B.sub(grown, B.div(_number(x, 0.25), grown)))
    return _like_its_argument(x, found)


def _half_exp(a: Node) -> Node:
    """exp(a) / 2, also where only the half is a finite number."""
    root = B.exp(B.mul(a, _number(a, 0.5)))
    far = B.mul(B.mul(root, _number(a, 0.5)), root)
    return B.where(B.lt(_number(a, 700 if a.dtype is float64 else 80), a), far, B.mul(B.exp(a), _number(a, 0.5)))


_CENTRAL = (2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087, -0.00125372503,
            -0.00417768164, 0.246640727, 1.50140941)
_TAIL = (-0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773, -0.0076224613, 0.00943887047,
         1.00167406, 2.83297682)


def _erfinv(x: Node) -> Node:
    """Polynomials in w = -log(1 - x*x) (M. Giles, "Approximating the erfinv function", 2010), and in float64 two of
    Newton's steps."""
    one = _number(x, 1)
    w = B.neg(B.log(B.mul(B.sub(one, x), B.add(one, x))))
    far = B.lt(_number(x, 5), w)
    z = B.where(far, B.sub(B.sqrt(w), _number(x, 3)), B.sub(w, _number(x, 2.5)))
    p = B.where(far, _number(x, _TAIL[0]), _number(x, _CENTRAL[0]))
    for tail, central in zip(_TAIL[1:], _CENTRAL[1:], strict=True):
        p = B.add(B.mul(p, z), B.where(far, _number(x, tail), _number(x, central)))
    y = B.mul(p, x)
    for _ in range(2 if x.dtype is float64 else 0):
        slope = B.mul(B.exp(B.neg(_squared(y))), _number(x, 2 / math.sqrt(math.pi)))
        y = B.sub(y, B.div(B.sub(B.erf(y), x), slope))
    return B.where(B.eq(B.abs_(x), one), B.mul(x, _number(x, math.inf)), y)


def _squared(x: Node) -> Node:
    return B.mul(x, x)


def _over_root(g: Node, x: Node) -> Node:
    return B.div(g, B.sqrt(x))


def _unary(name: str, write: Callable[[Node], Node], slope: Callable[[Node, Node, Node], Node]) -> Op:
    """A function of one float Node; `slope(g, x, y)` is the gradient."""
    def expand(x: Node) -> Node:
        return B.cast(write(B.cast(x, x.dtype.compute)), x.dtype)

    def vjp(node: Node, g: Node) -> tuple[Node]:
        return (slope(g, node.inputs[0], node),)

    return composite(name, lambda shapes, dtypes: (shapes[0], dtypes[0]), expand, vjp)


def _atan2_expand(y: Node, x: Node) -> Node:
    kind = x.dtype
    return B.cast(_atan2(B.cast(y, kind.compute), B.cast(x, kind.compute)), kind)


def _atan2_vjp(node: Node, g: Node) -> tuple[Node, Node]:
    y, x = node.inputs
    square, zero = B.add(_squared(x), _squared(y)), _number(x, 0)
    share = B.where(B.eq(square, zero), zero, B.div(g, square))  # at the origin, as in PyTorch
    return B.mul(share, x), B.neg(B.mul(share, y))


ATAN = _unary("atan", _atan, lambda g, x, y: B.div(g, B.add(_squared(x), _number(x, 1))))
ASIN = _unary("asin", _asin, lambda g, x, y: _over_root(g, B.sub(_number(x, 1), _squared(x))))
ACOS = _unary("acos", _acos, lambda g, x, y: B.neg(_over_root(g, B.sub(_number(x, 1), _squared(x)))))
ASINH = _unary("asinh", _asinh, lambda g, x, y: _over_root(g, B.add(_squared(x), _number(x, 1))))
ACOSH = _unary("acosh", _acosh, lambda g, x, y: _over_root(g, B.sub(_squared(x), _number(x, 1))))
ATANH = _unary("atanh", _atanh, lambda g, x, y: B.div(g, B.sub(_number(x, 1), _squared(x))))
EXPM1 = _unary("expm1", _expm1, lambda g, x, y: B.mul(g, B.add(y, _number(x, 1))))
COSH = _unary("cosh", _cosh, lambda g, x, y: B.mul(g, sinh(x)))
SINH = _unary("sinh", _sinh, lambda g, x, y: B.mul(g, cosh(x)))
ERFINV = _unary("erfinv", _erfinv, lambda g, x, y: B.mul(B.mul(g, _number(x, math.sqrt(math.pi) / 2)),
                                                           B.exp(_squared(y))))
ATAN2 = composite("atan2", lambda shapes, dtypes: (shapes[0], dtypes[0]), _atan2_expand, _atan2_vjp)


def atan(x: Node) -> Node:
    return apply(ATAN, x)


def asin(x: Node) -> Node:
    return apply(ASIN, x)


def acos(x: Node) -> Node:
    return apply(ACOS, x)


def asinh(x: Node) -> Node:
    return apply(ASINH, x)


def acosh(x: Node) -> Node:
    return apply(ACOSH, x)


def atanh(x: Node) -> Node:
    return apply(ATANH, x)


def cosh(x: Node) -> Node:
    return apply(COSH, x)


def sinh(x: Node) -> Node:
    return apply(SINH, x)


def expm1(x: Node) -> Node:
    return apply(EXPM1, x)


def erfinv(x: Node) -> Node:
    return apply(ERFINV, x)


def atan2(y: Node, x: Node) -> Node:
    """The angle of (x, y), in -pi..pi."""
    return apply(ATAN2, y, x)


INVERSES = (ATAN, ASIN, ACOS, ASINH, ACOSH, ATANH, COSH, SINH, EXPM1, ERFINV, ATAN2)
