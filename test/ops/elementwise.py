"""Rows for elementwise operations, integers and casts."""

from __future__ import annotations

from typing import Any

import numpy as np

from minigrad import dtypes
from ops.case import A, Case, F, In, M, N, P, S, pair


def elementwise_cases() -> list[Case]:
    rows: list[Case] = []
    unary: list[tuple[str, Any, Any, In]] = [
        ("neg", lambda x: -x, lambda x: -x, F(3, 5)),
        ("abs", lambda x: x.abs(), np.abs, A(3, 5)),
        ("sqrt", lambda x: x.sqrt(), np.sqrt, P(17)),
        ("exp", lambda x: x.exp(), np.exp, F(2, 3, 5)),
        ("log", lambda x: x.log(), np.log, P(7, 3)),
        ("sin", lambda x: x.sin(), np.sin, F(33)),
        ("cos", lambda x: x.cos(), np.cos, F(33)),
        ("tanh", lambda x: x.tanh(), np.tanh, F(4, 4)),
        ("erf", lambda x: x.erf(), None, F(19)),
        ("sigmoid", lambda x: x.sigmoid(), lambda x: 1 / (1 + np.exp(-x)), F(9)),
        ("silu", lambda x: x.silu(), lambda x: x / (1 + np.exp(-x)), F(2, 9)),
        ("relu", lambda x: x.relu(), lambda x: np.maximum(x, 0), A(4, 5)),
        ("relu6", lambda x: (x * 5).relu6(), lambda x: np.clip(x * 5, 0, 6), A(4, 5)),
        ("gelu", lambda x: x.gelu(), None, F(9)),
        ("gelu_erf", lambda x: x.gelu("none"), None, F(9)),
        ("softplus", lambda x: x.softplus(), lambda x: np.log1p(np.exp(x)), F(9)),
        ("hardswish", lambda x: x.hardswish(), lambda x: x * np.clip(x + 3, 0, 6) / 6, A(9)),
        ("leaky_relu", lambda x: x.leaky_relu(), lambda x: np.where(x < 0, 0.01 * x, x), A(9)),
        ("log1p", lambda x: x.log1p(), np.log1p, P(9)),
        ("rsqrt", lambda x: x.rsqrt(), lambda x: x**-0.5, P(9)),
        ("square", lambda x: x**2, np.square, F(9)),
        ("cube", lambda x: x**3, lambda x: x**3, F(9)),
        ("reciprocal", lambda x: 1 / x, lambda x: 1 / x, P(9)),
        ("clip", lambda x: x.clip(-0.5, 0.7), lambda x: np.clip(x, -0.5, 0.7), A(11)),
        ("pow_scalar", lambda x: x**1.7, lambda x: x**1.7, P(9)),
        ("atan", lambda x: (x * 3).atan(), lambda x: np.arctan(x * 3), F(33)),
        ("asin", lambda x: x.asin(), np.arcsin, In((17,), "unit")),
        ("acos", lambda x: x.acos(), np.arccos, In((17,), "unit")),
        ("asinh", lambda x: (x * 9).asinh(), lambda x: np.arcsinh(x * 9), F(17)),
        ("acosh", lambda x: (x + 1).acosh(), lambda x: np.arccosh(x + 1), P(17)),
        ("atanh", lambda x: x.atanh(), np.arctanh, In((17,), "unit")),
        ("expm1", lambda x: x.expm1(), np.expm1, F(17)),
        ("erfinv", lambda x: x.erfinv(), None, In((17,), "unit")),
        ("erfc", lambda x: x.erfc(), None, F(17)),
        ("lgamma", lambda x: (x * 4).lgamma(), None, P(17)),
        ("lgamma_left", lambda x: x.lgamma(), None, F(17)),
        ("digamma", lambda x: (x * 4).digamma(), None, P(17)),
        ("polygamma", lambda x: x.polygamma(2), None, P(17)),
        ("sinh", lambda x: (x * 2).sinh(), lambda x: np.sinh(x * 2), F(17)),
        ("cosh", lambda x: (x * 2).cosh(), lambda x: np.cosh(x * 2), F(17)),
        ("celu", lambda x: x.celu(0.7), None, A(9)),
        ("elu", lambda x: x.elu(), lambda x: np.where(x > 0, x, np.exp(x) - 1), A(9)),
    ]
    rows += [Case(n, run, (i,), twin, second=True) for n, run, twin, i in unary]
    steps: list[tuple[str, Any]] = [
        ("floor", np.floor),
        ("ceil", np.ceil),
        ("trunc", np.trunc),
        ("round", np.round),
        ("sign", np.sign),
    ]
    rows += [
        Case(
            n,
            lambda x, n=n: getattr(x * 3, n)(),
            (In((4, 5), "apart"),),
            lambda x, t=t: t(x * np.float32(3)),
            grad=False,
        )
        for n, t in steps
    ]
    rows += [
        Case(f"{n}_special", lambda x, n=n: getattr(x, n)(), (S(40),), t, grad=False)
        for n, t in [
            *steps[:4],
            ("neg", np.negative),
            ("abs", np.abs),
            ("sqrt", np.sqrt),
            ("exp", np.exp),
            ("log", np.log),
            ("tanh", np.tanh),
            ("atan", np.arctan),
            ("asin", np.arcsin),
            ("acos", np.arccos),
            ("asinh", np.arcsinh),
            ("acosh", np.arccosh),
            ("atanh", np.arctanh),
            ("sinh", np.sinh),
            ("cosh", np.cosh),
            ("expm1", np.expm1),
            ("erfc", None),
            ("lgamma", None),
            ("signbit", np.signbit),
            ("isnan", np.isnan),
            ("isinf", np.isinf),
        ]
    ]
    binary: list[tuple[str, Any, Any, In, In]] = [
        ("add", lambda x, y: x + y, np.add, F(3, 5), F(3, 5)),
        ("sub", lambda x, y: x - y, np.subtract, F(3, 5), F(5)),
        ("mul", lambda x, y: x * y, np.multiply, F(2, 1, 5), F(3, 1)),
        ("div", lambda x, y: x / y, np.divide, F(3, 5), P(3, 5)),
        ("pow", lambda x, y: x**y, np.power, P(7), F(7)),
        ("maximum", lambda x, y: x.maximum(y), np.maximum, A(3, 5), F(3, 5)),
        ("minimum", lambda x, y: x.minimum(y), np.minimum, A(3, 5), F(5)),
        ("atan2", lambda x, y: x.atan2(y), np.arctan2, F(3, 5), F(5)),
        ("copysign", lambda x, y: x.copysign(y), np.copysign, A(3, 5), A(3, 5)),
        ("logaddexp", lambda x, y: x.logaddexp(y), np.logaddexp, F(3, 5), F(5)),
        ("mod", lambda x, y: x % y, np.mod, A(4, 5), P(4, 5)),
    ]
    rows += [pair(n, run, twin, a, b, second=n != "mod") for n, run, twin, a, b in binary]
    rows += [pair(f"{n}_special", run, twin, S(50), S(50), grad=False) for n, run, twin, _, _ in binary if n != "mod"]
    rows.append(pair("gcd", lambda x, y: x.gcd(y), np.gcd, N(-60, 60, 40), N(-60, 60, 40), grad=False))
    rows.append(pair("integer_power", lambda x, y: x ** y, np.power, N(-9, 10, 40), N(0, 12, 40), grad=False))
    rows.append(pair("hypot", lambda x, y: x.hypot(y), np.hypot, F(3, 5), F(5)))
    rows.append(pair("fmod", lambda x, y: x.fmod(y), np.fmod, A(31), A(31), grad=False))
    rows.append(pair("floordiv", lambda x, y: x // y, lambda x, y: np.floor(x / y), F(31), P(31), grad=False))
    return rows + _comparisons() + _integers()


def _comparisons() -> list[Case]:
    rows = []
    for n, run, twin in [
        ("lt", lambda x, y: x < y, np.less),
        ("le", lambda x, y: x <= y, np.less_equal),
        ("gt", lambda x, y: x > y, np.greater),
        ("ge", lambda x, y: x >= y, np.greater_equal),
        ("eq", lambda x, y: x == y, np.equal),
        ("ne", lambda x, y: x != y, np.not_equal),
    ]:
        rows.append(pair(n, run, twin, S(60), S(60), grad=False))
        rows.append(pair(f"{n}_int", run, twin, N(-2, 2, 30), N(-2, 2, 30), grad=False))
        rows.append(pair(f"{n}_bool", run, twin, M(10), M(10), grad=False))
    rows.append(Case("where", lambda c, x, y: c.where(x, y), (M(3, 5), F(3, 5), F(5)), np.where, second=True))
    rows.append(Case("where_special", lambda c, x, y: c.where(x, y), (M(40), S(40), S(40)), np.where, grad=False))
    rows.append(
        Case(
            "masked_fill",
            lambda m, x: x.masked_fill(m, 7.0),
            (M(4), F(3, 4)),
            lambda m, x: np.where(m, np.float32(7), x),
        )
    )
    for n, run in [("and", lambda x, y: x & y), ("or", lambda x, y: x | y), ("xor", lambda x, y: x ^ y)]:
        rows.append(pair(f"{n}_bool", run, run, M(12), M(12), grad=False))
    rows.append(Case("not_bool", lambda x: ~x, (M(12),), np.invert, grad=False))
    return rows


def _floor_or_zero(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
        return np.where(y == 0, np.zeros_like(x), x // np.where(y == 0, np.ones_like(y), y))


def _rest_or_zero(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.where(y == 0, np.zeros_like(x), x % np.where(y == 0, np.ones_like(y), y))


def _shift_left(x: np.ndarray, n: np.ndarray) -> np.ndarray:
    bits = x.dtype.itemsize * 8
    return np.where((n >= 0) & (n < bits), x << np.clip(n, 0, bits - 1), 0).astype(x.dtype)


def _shift_right(x: np.ndarray, n: np.ndarray) -> np.ndarray:
    bits = x.dtype.itemsize * 8
    outside = np.where(x < 0, -1, 0) if x.dtype.kind == "i" else 0
    return np.where((n >= 0) & (n < bits), x >> np.clip(n, 0, bits - 1), outside).astype(x.dtype)


def _dot_bytes(w: np.ndarray, x: np.ndarray) -> np.ndarray:
    total = np.zeros_like(w)
    for shift in (0, 8, 16, 24):
        total += (w >> shift & 255) * ((x >> shift & 255) ^ 128) - 128 * (w >> shift & 255)
    return total


def _integers() -> list[Case]:
    rows = []
    ranges = {
        "int8": (-128, 127),
        "uint8": (0, 255),
        "int16": (-(1 << 15), (1 << 15) - 1),
        "uint16": (0, (1 << 16) - 1),
        "int32": (-(1 << 31), (1 << 31) - 1),
        "uint32": (0, (1 << 32) - 1),
        "int64": (-(1 << 62), 1 << 62),
        "uint64": (0, 1 << 62),
    }
    for kind, (lo, hi) in ranges.items():
        wide, low = N(lo, hi, 40, dtype=kind), 0 if kind[0] == "u" else -3
        small = N(low, 3, 40, dtype=kind)
        counts = N(0 if low == 0 else -2, 70, 40, dtype=kind)
        for n, run, twin, y in [
            ("add", lambda x, y: x + y, np.add, wide),
            ("mul", lambda x, y: x * y, np.multiply, wide),
            ("floordiv", lambda x, y: x // y, _floor_or_zero, small),
            ("mod", lambda x, y: x % y, _rest_or_zero, small),
            ("floordiv_wide", lambda x, y: x // y, _floor_or_zero, wide),
            ("mod_wide", lambda x, y: x % y, _rest_or_zero, wide),
            ("shl", lambda x, y: x << y, _shift_left, counts),
            ("shr", lambda x, y: x >> y, _shift_right, counts),
            ("and", lambda x, y: x & y, np.bitwise_and, wide),
            ("xor", lambda x, y: x ^ y, np.bitwise_xor, wide),
            ("or", lambda x, y: x | y, np.bitwise_or, wide),
            ("maximum", lambda x, y: x.maximum(y), np.maximum, wide),
            ("minimum", lambda x, y: x.minimum(y), np.minimum, small),
        ]:
            rows.append(pair(f"{n}_{kind}", run, twin, wide, y, grad=False))
        rows.append(Case(f"invert_{kind}", lambda x: ~x, (wide,), np.invert, grad=False))
        rows.append(
            Case(f"float_from_{kind}", lambda x: x.float(), (wide,), lambda x: x.astype(np.float32), grad=False)
        )
    words = N(-(1 << 31), (1 << 31) - 1, 40), N(-(1 << 31), (1 << 31) - 1, 40)
    rows.append(pair("dot_bytes", lambda x, y: x.dot_bytes(y), _dot_bytes, *words, grad=False))
    extremes = N(-1, -1, 3), N(-(1 << 31), -(1 << 31), 3)
    rows.append(pair("dot_bytes_of_extremes", lambda x, y: x.dot_bytes(y), _dot_bytes, *extremes, grad=False))
    least = np.iinfo(np.int32).min
    rows.append(
        Case(
            "int_min_over_minus_one",
            lambda x: (x * 0 + least) // (x * 0 - 1),
            (N(0, 1, 5),),
            lambda x: np.full(5, least, np.int32),
            grad=False,
        )
    )
    rows.append(
        Case(
            "int_min_mod_minus_one",
            lambda x: (x * 0 + least) % (x * 0 - 1),
            (N(0, 1, 5),),
            lambda x: np.zeros(5, np.int32),
            grad=False,
        )
    )
    return rows


def cast_cases() -> list[Case]:
    rows = []
    for to in ("int8", "uint8", "int32", "uint32", "int64", "bool"):
        rows.append(Case(f"cast_special_to_{to}", lambda x, to=to: x.cast(to), (S(40),), None, grad=False))
        rows.append(
            Case(
                f"cast_int_to_{to}",
                lambda x, to=to: x.cast(to),
                (N(-70000, 70000, 40),),
                lambda x, to=to: x.astype(to),
                grad=False,
            )
        )
    for to in ("float16", "bfloat16", "float64"):
        rows.append(Case(f"cast_to_{to}", lambda x, to=to: x.cast(to), (F(40),), None, grad=to == "float64"))
        rows.append(Case(f"cast_special_to_{to}", lambda x, to=to: x.cast(to), (S(40),), None, grad=False))
        rows.append(Case(f"cast_from_{to}", lambda x: x.float() * 2 + 1, (In((21,), dtype=to),), None, grad=False))
    rows.append(
        Case("bitcast_u32", lambda x: x.bitcast(dtypes.uint32), (S(20),), lambda x: x.view(np.uint32), grad=False)
    )
    rows.append(
        Case(
            "bitcast_half",
            lambda x: x.bitcast(dtypes.uint16),
            (In((20,), dtype="float16"),),
            lambda x: x.view(np.uint16),
            grad=False,
        )
    )
    rows.append(
        Case(
            "bitcast_to_bfloat16",
            lambda x: x.bitcast(dtypes.bfloat16),
            (N(0, 0x7F00, 20, dtype="uint16"),),
            None,
            grad=False,
        )
    )
    for kind in ("float16", "bfloat16"):
        rows.append(
            Case(
                f"arithmetic_{kind}",
                lambda x, y: x * y + x,
                (In((33,), dtype=kind), In((33,), dtype=kind)),
                None,
                grad=False,
                tolerance=1.5,
            )
        )
        rows.append(Case(f"sum_{kind}", lambda x: x.sum(1), (In((3, 200), dtype=kind),), None, grad=False))
        rows.append(
            Case(
                f"matmul_{kind}",
                lambda x, y: x @ y,
                (In((5, 33), dtype=kind), In((33, 7), dtype=kind)),
                None,
                grad=False,
                tolerance=2,
            )
        )
    return rows
