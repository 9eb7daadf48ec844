"""One table of operations, usable for every device: what to run, on which inputs, and its numpy twin.

    check_forward(case, device)      result on the device against the NUMPY device, and against the twin
    check_gradient(case)             against finite differences in float64 along random directions, second order too
    check_device_gradient(case, d)   gradients on a device against those on NUMPY
"""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from minigrad import Tensor, dtypes
from minigrad.ops import toposort

TOLERANCE = {"float64": 1e-10, "float32": 2e-5, "float16": 4e-3, "bfloat16": 2e-2}
"""Relative to the largest magnitude of the result; rounding of different orders of summation."""


@dataclass(frozen=True)
class In:
    """One input: `kind` is normal, positive, unit (in -1..1), special (NaN, inf, -0.0), apart (no ties, none near 0),
    int (in lo..hi), bool."""

    shape: tuple[int, ...]
    kind: str = "normal"
    dtype: str = "float32"
    lo: int = -9
    hi: int = 9

    def make(self, rng: np.random.Generator, wide: bool = False) -> np.ndarray:
        kind = np.dtype("float64" if wide and "float" in self.dtype else
                        "float32" if self.dtype == "bfloat16" else self.dtype)
        if self.kind == "bool":
            return rng.random(self.shape) < 0.5
        if self.kind == "int":
            return rng.integers(self.lo, self.hi, self.shape, endpoint=True).astype(kind)
        if self.kind == "apart":
            count = int(np.prod(self.shape))
            values = (rng.permutation(count) + 0.25) / max(count, 1) * 4 - 2
            return values.reshape(self.shape).astype(kind)
        if self.kind == "special" and not wide:
            odd = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 1e-3, 2.5, -2.5, 0.5, 1e6])
            return rng.choice(odd, self.shape).astype(kind)
        values = rng.standard_normal(self.shape)
        if self.kind == "positive":
            values = np.abs(values) + 0.3
        if self.kind == "unit":
            values = np.tanh(values) * 0.9
        return np.asarray(values).astype(kind)


@dataclass(frozen=True)
class Case:
    """`run` maps Tensors to a Tensor; `twin` maps their arrays to the expected array. `grad`: differentiable here."""

    name: str
    run: Callable[..., Any]
    inputs: tuple[In, ...]
    twin: Callable[..., Any] | None = None
    grad: bool = True
    second: bool = False
    tolerance: float = 1.0

    def __str__(self) -> str:
        return self.name


def F(*shape: int) -> In:
    return In(shape)


def P(*shape: int) -> In:
    return In(shape, "positive")


def A(*shape: int) -> In:
    return In(shape, "apart")


def S(*shape: int) -> In:
    return In(shape, "special")


def N(lo: int, hi: int, *shape: int, dtype: str = "int32") -> In:
    return In(shape, "int", dtype, lo, hi)


def M(*shape: int) -> In:
    return In(shape, "bool", "bool")


def _pair(name: str, run: Any, twin: Any, a: In, b: In, **options: Any) -> Case:
    return Case(name, run, (a, b), twin, **options)


def _elementwise() -> list[Case]:
    rows: list[Case] = []
    unary: list[tuple[str, Any, Any, In]] = [
        ("neg", lambda x: -x, lambda x: -x, F(3, 5)), ("abs", lambda x: x.abs(), np.abs, A(3, 5)),
        ("sqrt", lambda x: x.sqrt(), np.sqrt, P(17)), ("exp", lambda x: x.exp(), np.exp, F(2, 3, 5)),
        ("log", lambda x: x.log(), np.log, P(7, 3)), ("sin", lambda x: x.sin(), np.sin, F(33)),
        ("cos", lambda x: x.cos(), np.cos, F(33)), ("tanh", lambda x: x.tanh(), np.tanh, F(4, 4)),
        ("erf", lambda x: x.erf(), None, F(19)), ("sigmoid", lambda x: x.sigmoid(), lambda x: 1 / (1 + np.exp(-x)), F(9)),
        ("silu", lambda x: x.silu(), lambda x: x / (1 + np.exp(-x)), F(2, 9)),
        ("relu", lambda x: x.relu(), lambda x: np.maximum(x, 0), A(4, 5)),
        ("relu6", lambda x: (x * 5).relu6(), lambda x: np.clip(x * 5, 0, 6), A(4, 5)),
        ("gelu", lambda x: x.gelu(), None, F(9)), ("gelu_erf", lambda x: x.gelu("none"), None, F(9)),
        ("softplus", lambda x: x.softplus(), lambda x: np.log1p(np.exp(x)), F(9)),
        ("hardswish", lambda x: x.hardswish(), lambda x: x * np.clip(x + 3, 0, 6) / 6, A(9)),
        ("leaky_relu", lambda x: x.leaky_relu(), lambda x: np.where(x < 0, 0.01 * x, x), A(9)),
        ("log1p", lambda x: x.log1p(), np.log1p, P(9)), ("rsqrt", lambda x: x.rsqrt(), lambda x: x ** -0.5, P(9)),
        ("square", lambda x: x ** 2, np.square, F(9)), ("cube", lambda x: x ** 3, lambda x: x ** 3, F(9)),
        ("reciprocal", lambda x: 1 / x, lambda x: 1 / x, P(9)),
        ("clip", lambda x: x.clip(-0.5, 0.7), lambda x: np.clip(x, -0.5, 0.7), A(11)),
        ("pow_scalar", lambda x: x ** 1.7, lambda x: x ** 1.7, P(9)),
        ("elu", lambda x: x.elu(), lambda x: np.where(x > 0, x, np.exp(x) - 1), A(9)),
    ]
    rows += [Case(n, run, (i,), twin, second=True) for n, run, twin, i in unary]
    steps = [("floor", np.floor), ("ceil", np.ceil), ("trunc", np.trunc), ("round", np.round), ("sign", np.sign)]
    rows += [Case(n, lambda x, n=n: getattr(x * 3, n)(), (In((4, 5), "apart"),),
                  lambda x, t=t: t(x * np.float32(3)), grad=False) for n, t in steps]
    rows += [Case(f"{n}_special", lambda x, n=n: getattr(x, n)(), (S(40),), t, grad=False) for n, t in [
        *steps[:4], ("neg", np.negative), ("abs", np.abs), ("sqrt", np.sqrt), ("exp", np.exp), ("log", np.log),
        ("tanh", np.tanh), ("isnan", np.isnan), ("isinf", np.isinf)]]
    binary: list[tuple[str, Any, Any, In, In]] = [
        ("add", lambda x, y: x + y, np.add, F(3, 5), F(3, 5)), ("sub", lambda x, y: x - y, np.subtract, F(3, 5), F(5)),
        ("mul", lambda x, y: x * y, np.multiply, F(2, 1, 5), F(3, 1)),
        ("div", lambda x, y: x / y, np.divide, F(3, 5), P(3, 5)), ("pow", lambda x, y: x ** y, np.power, P(7), F(7)),
        ("maximum", lambda x, y: x.maximum(y), np.maximum, A(3, 5), F(3, 5)),
        ("minimum", lambda x, y: x.minimum(y), np.minimum, A(3, 5), F(5)),
        ("mod", lambda x, y: x % y, np.mod, A(4, 5), P(4, 5)),
    ]
    rows += [_pair(n, run, twin, a, b, second=n != "mod") for n, run, twin, a, b in binary]
    rows += [_pair(f"{n}_special", run, twin, S(50), S(50), grad=False) for n, run, twin, _, _ in binary if n != "mod"]
    rows.append(_pair("floordiv", lambda x, y: x // y, lambda x, y: np.floor(x / y), F(31), P(31), grad=False))
    return rows + _comparisons() + _integers()


def _comparisons() -> list[Case]:
    rows = []
    for n, run, twin in [("lt", lambda x, y: x < y, np.less), ("le", lambda x, y: x <= y, np.less_equal),
                         ("gt", lambda x, y: x > y, np.greater), ("ge", lambda x, y: x >= y, np.greater_equal),
                         ("eq", lambda x, y: x == y, np.equal), ("ne", lambda x, y: x != y, np.not_equal)]:
        rows.append(_pair(n, run, twin, S(60), S(60), grad=False))
        rows.append(_pair(f"{n}_int", run, twin, N(-2, 2, 30), N(-2, 2, 30), grad=False))
        rows.append(_pair(f"{n}_bool", run, twin, M(10), M(10), grad=False))
    rows.append(Case("where", lambda c, x, y: c.where(x, y), (M(3, 5), F(3, 5), F(5)), np.where, second=True))
    rows.append(Case("where_special", lambda c, x, y: c.where(x, y), (M(40), S(40), S(40)), np.where, grad=False))
    rows.append(Case("masked_fill", lambda m, x: x.masked_fill(m, 7.0), (M(4), F(3, 4)),
                     lambda m, x: np.where(m, np.float32(7), x)))
    for n, run in [("and", lambda x, y: x & y), ("or", lambda x, y: x | y), ("xor", lambda x, y: x ^ y)]:
        rows.append(_pair(f"{n}_bool", run, run, M(12), M(12), grad=False))
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


def _integers() -> list[Case]:
    rows = []
    ranges = {"int8": (-128, 127), "uint8": (0, 255), "int16": (-(1 << 15), (1 << 15) - 1), "uint16": (0, (1 << 16) - 1),
              "int32": (-(1 << 31), (1 << 31) - 1), "uint32": (0, (1 << 32) - 1), "int64": (-(1 << 62), 1 << 62),
              "uint64": (0, 1 << 62)}
    for kind, (lo, hi) in ranges.items():
        wide, low = N(lo, hi, 40, dtype=kind), 0 if kind[0] == "u" else -3
        small = N(low, 3, 40, dtype=kind)
        counts = N(0 if low == 0 else -2, 70, 40, dtype=kind)
        for n, run, twin, y in [
                ("add", lambda x, y: x + y, np.add, wide), ("mul", lambda x, y: x * y, np.multiply, wide),
                ("floordiv", lambda x, y: x // y, _floor_or_zero, small), ("mod", lambda x, y: x % y, _rest_or_zero, small),
                ("floordiv_wide", lambda x, y: x // y, _floor_or_zero, wide), ("mod_wide", lambda x, y: x % y, _rest_or_zero, wide),
                ("shl", lambda x, y: x << y, _shift_left, counts), ("shr", lambda x, y: x >> y, _shift_right, counts),
                ("and", lambda x, y: x & y, np.bitwise_and, wide), ("xor", lambda x, y: x ^ y, np.bitwise_xor, wide),
                ("or", lambda x, y: x | y, np.bitwise_or, wide), ("maximum", lambda x, y: x.maximum(y), np.maximum, wide),
                ("minimum", lambda x, y: x.minimum(y), np.minimum, small)]:
            rows.append(_pair(f"{n}_{kind}", run, twin, wide, y, grad=False))
        rows.append(Case(f"invert_{kind}", lambda x: ~x, (wide,), np.invert, grad=False))
        rows.append(Case(f"float_from_{kind}", lambda x: x.float(), (wide,), lambda x: x.astype(np.float32), grad=False))
    least = np.iinfo(np.int32).min
    rows.append(Case("int_min_over_minus_one", lambda x: (x * 0 + least) // (x * 0 - 1), (N(0, 1, 5),),
                     lambda x: np.full(5, least, np.int32), grad=False))
    rows.append(Case("int_min_mod_minus_one", lambda x: (x * 0 + least) % (x * 0 - 1), (N(0, 1, 5),),
                     lambda x: np.zeros(5, np.int32), grad=False))
    return rows


def _casts() -> list[Case]:
    rows = []
    for to in ("int8", "uint8", "int32", "uint32", "int64", "bool"):
        rows.append(Case(f"cast_special_to_{to}", lambda x, to=to: x.cast(to), (S(40),), None, grad=False))
        rows.append(Case(f"cast_int_to_{to}", lambda x, to=to: x.cast(to), (N(-70000, 70000, 40),),
                         lambda x, to=to: x.astype(to), grad=False))
    for to in ("float16", "bfloat16", "float64"):
        rows.append(Case(f"cast_to_{to}", lambda x, to=to: x.cast(to), (F(40),), None, grad=to == "float64"))
        rows.append(Case(f"cast_special_to_{to}", lambda x, to=to: x.cast(to), (S(40),), None, grad=False))
        rows.append(Case(f"cast_from_{to}", lambda x: x.float() * 2 + 1, (In((21,), dtype=to),), None, grad=False))
    rows.append(Case("bitcast_u32", lambda x: x.bitcast(dtypes.uint32), (S(20),), lambda x: x.view(np.uint32), grad=False))
    rows.append(Case("bitcast_half", lambda x: x.bitcast(dtypes.uint16), (In((20,), dtype="float16"),),
                     lambda x: x.view(np.uint16), grad=False))
    rows.append(Case("bitcast_to_bfloat16", lambda x: x.bitcast(dtypes.bfloat16), (N(0, 0x7F00, 20, dtype="uint16"),),
                     None, grad=False))
    for kind in ("float16", "bfloat16"):
        rows.append(Case(f"arithmetic_{kind}", lambda x, y: x * y + x, (In((33,), dtype=kind), In((33,), dtype=kind)),
                         None, grad=False, tolerance=1.5))
        rows.append(Case(f"sum_{kind}", lambda x: x.sum(1), (In((3, 200), dtype=kind),), None, grad=False))
        rows.append(Case(f"matmul_{kind}", lambda x, y: x @ y, (In((5, 33), dtype=kind), In((33, 7), dtype=kind)),
                         None, grad=False, tolerance=2))
    return rows


def _reduces() -> list[Case]:
    rows = []
    shapes: list[tuple[tuple[int, ...], Any]] = [((3, 5, 7), None), ((3, 5, 7), 0), ((3, 5, 7), 1), ((3, 5, 7), (0, 2)),
                                                 ((129,), 0), ((1,), 0), ((2, 1, 3), 1), ((67, 33), 1), ((67, 33), 0)]
    for shape, axis in shapes:
        tag = f"{'x'.join(map(str, shape))}_{axis}"
        rows.append(Case(f"sum_{tag}", lambda x, a=axis: x.sum(a), (F(*shape),), lambda x, a=axis: x.sum(a)))
        rows.append(Case(f"max_{tag}", lambda x, a=axis: x.max(a), (A(*shape),), lambda x, a=axis: x.max(a)))
    rows += [
        Case("min", lambda x: x.min(1, keepdim=True), (A(4, 9),), lambda x: x.min(1, keepdims=True)),
        Case("prod", lambda x: x.prod(1), (P(4, 5),), lambda x: x.prod(1), second=True),
        Case("prod_zeros", lambda x: (x * Tensor([[0.0], [1.0], [2.0]], device=x.device)).prod(0), (P(3, 4),),
             lambda x: (x * np.array([[0], [1], [2]], np.float32)).prod(0)),
        Case("max_ties", lambda x: (x * 0).max(1), (F(3, 4),), lambda x: (x * 0).max(1), grad=False),
        Case("max_special", lambda x: x.max(1), (S(4, 12),), lambda x: x.max(1), grad=False),
        Case("min_special", lambda x: x.min(1), (S(9, 3),), lambda x: x.min(1), grad=False),
        Case("sum_special", lambda x: x.sum(1), (S(9, 3),), lambda x: x.sum(1), grad=False),
        Case("sum_bool", lambda x: x.sum(0), (M(30, 2),), lambda x: x.sum(0).astype(np.int32), grad=False),
        Case("sum_int8", lambda x: x.sum(), (N(-128, 127, 99, dtype="int8"),), lambda x: x.sum(dtype=np.int32), grad=False),
        Case("sum_int32_wraps", lambda x: x.sum(), (N(1 << 30, 1 << 30, 9),), lambda x: x.sum(dtype=np.int32), grad=False),
        Case("prod_int", lambda x: x.prod(0), (N(-3, 3, 5, 4),), lambda x: x.prod(0).astype(np.int32), grad=False),
        Case("max_int", lambda x: x.max(0), (N(-99, 99, 5, 4),), lambda x: x.max(0), grad=False),
        Case("any", lambda x: x.any(0), (M(2, 9),), lambda x: x.any(0), grad=False),
        Case("all", lambda x: x.all(0), (M(2, 9),), lambda x: x.all(0), grad=False),
        Case("mean", lambda x: x.mean(-1), (F(5, 6),), lambda x: x.mean(-1), second=True),
        Case("var", lambda x: x.var(1), (F(5, 6),), lambda x: x.var(1, ddof=1), second=True),
        Case("std", lambda x: x.std(0), (F(5, 6),), lambda x: x.std(0, ddof=1), second=True),
        Case("argmax", lambda x: x.argmax(1), (N(0, 4, 6, 9),), lambda x: x.argmax(1).astype(np.int32), grad=False),
        Case("argmax_special", lambda x: x.argmax(1), (S(6, 9),), lambda x: x.argmax(1).astype(np.int32), grad=False),
        Case("argmin", lambda x: x.argmin(0), (F(6, 9),), lambda x: x.argmin(0).astype(np.int32), grad=False),
        Case("argmin_flat", lambda x: x.argmin(), (F(6, 9),), lambda x: x.argmin().astype(np.int32), grad=False),
        Case("logsumexp", lambda x: x.logsumexp(1), (F(5, 6),), lambda x: np.log(np.exp(x).sum(1)), second=True),
        Case("softmax", lambda x: x.softmax(-1), (F(5, 6),), _softmax, second=True),
        Case("softmax_axis0", lambda x: (x * 50).softmax(0), (F(5, 6),), None),
        Case("log_softmax", lambda x: x.log_softmax(-1), (F(5, 6),), lambda x: np.log(_softmax(x)), second=True),
        Case("cumsum", lambda x: x.cumsum(1), (F(3, 11),), lambda x: x.cumsum(1)),
        Case("cumsum_long", lambda x: x.cumsum(0), (F(700, 2),), lambda x: x.cumsum(0), tolerance=4),
        Case("layernorm", lambda x: x.layernorm(), (F(4, 10),), None, second=True, tolerance=3),
        Case("rms_norm", lambda x: x.rms_norm(), (F(4, 10),), lambda x: x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6),
             second=True),
    ]
    return rows


def _softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def _movement() -> list[Case]:
    return [
        Case("reshape", lambda x: x.reshape(4, -1) * 2, (F(2, 6, 3),), lambda x: x.reshape(4, 9) * 2),
        Case("reshape_permuted", lambda x: x.permute(1, 0).reshape(3, 4) + 1, (F(4, 3),), lambda x: x.T.reshape(3, 4) + 1),
        Case("reshape_4_3_to_6_2", lambda x: x.permute(1, 0).reshape(6, 2).permute(1, 0).reshape(12) + 0.5, (F(4, 3),),
             lambda x: x.T.reshape(6, 2).T.reshape(12) + np.float32(0.5)),
        Case("permute", lambda x: x.permute(2, 0, 1) * 1.5, (F(2, 3, 4),), lambda x: x.transpose(2, 0, 1) * np.float32(1.5)),
        Case("expand", lambda x: x.expand(4, 3, 5) * 2, (F(3, 1),), lambda x: np.broadcast_to(x, (4, 3, 5)) * 2),
        Case("pad", lambda x: x.pad(((1, 2), (0, 3)), value=0.5), (F(3, 4),),
             lambda x: np.pad(x, ((1, 2), (0, 3)), constant_values=0.5)),
        Case("pad_negative", lambda x: x.pad((-1, 2)), (F(3, 4),), lambda x: np.pad(x[:, 1:], ((0, 0), (0, 2)))),
        Case("pad_reflect", lambda x: x.pad((1, 2), mode="reflect"), (F(3, 4),),
             lambda x: np.pad(x, ((0, 0), (1, 2)), mode="reflect")),
        Case("shrink", lambda x: x.shrink(((1, 3), None)) * 2, (F(4, 5),), lambda x: x[1:3] * 2),
        Case("slice_steps", lambda x: x[1::2, ::-1] * 2, (F(7, 5),), lambda x: x[1::2, ::-1] * 2),
        Case("slice_negative_step", lambda x: x[::-3, 4:0:-2] + 1, (F(8, 6),), lambda x: x[::-3, 4:0:-2] + 1),
        Case("getitem_mixed", lambda x: x[1, ..., None, -2] * 2, (F(3, 4, 5),), lambda x: x[1, ..., None, -2] * 2),
        Case("flip", lambda x: x.flip(0, 2) * 2, (F(2, 3, 4),), lambda x: x[::-1, :, ::-1] * 2),
        Case("cat", lambda x, y: x.cat(y, dim=1), (F(3, 2), F(3, 4)), lambda x, y: np.concatenate([x, y], 1)),
        Case("cat_special", lambda x, y: x.cat(y, dim=0), (S(9, 2), S(5, 2)), lambda x, y: np.concatenate([x, y]), grad=False),
        Case("cat_int", lambda x, y: x.cat(y), (N(0, 9, 3), N(0, 9, 4)), lambda x, y: np.concatenate([x, y]), grad=False),
        Case("stack", lambda x, y: x.stack(y, dim=1), (F(3, 2), F(3, 2)), lambda x, y: np.stack([x, y], 1)),
        Case("split_second", lambda x: x.split(2, dim=1)[1] * 2, (F(3, 5),), lambda x: x[:, 2:4] * 2),
        Case("repeat", lambda x: x.repeat(2, 1, 3), (F(2, 3),), lambda x: np.tile(x, (2, 1, 3))),
        Case("roll", lambda x: x.roll(2, 1), (F(2, 5),), lambda x: np.roll(x, 2, 1)),
        Case("tril", lambda x: x.tril(), (F(4, 5),), np.tril), Case("triu", lambda x: x.triu(1), (F(4, 5),), lambda x: np.triu(x, 1)),
        Case("unfold", lambda x: x.unfold(1, 3, 2).sum(-1), (F(2, 9),), None),
        Case("window_overlap", lambda x: (x.unfold(0, 3, 1) * Tensor([1.0, -2.0, 3.0], device=x.device)).sum(-1), (F(11),),
             lambda x: x[:-2] - 2 * x[1:-1] + 3 * x[2:]),
        Case("unwindow", lambda x: (x.unfold(0, 3, 2) * x.unfold(0, 3, 2)).sum().gradient(x)[0], (F(11),), None),
        Case("flatten_then_window", lambda x: x.flatten().unfold(0, 4, 3).sum(1), (F(3, 5),), None),
        Case("contiguous", lambda x: (x + 1).contiguous() * 2, (F(3, 4),), lambda x: (x + 1) * 2),
        Case("detach", lambda x: x.detach() + 1, (F(3, 4),), lambda x: x + 1, grad=False),
    ]


def _put(x: np.ndarray, index: Any, value: Any) -> np.ndarray:
    y = x.copy()
    y[index] = value
    return y


def _assigned(x: Tensor, index: Any, value: Any) -> Tensor:
    y = x * 1.0 if x.dtype.is_float else x + 0
    y[index] = value
    return y


def _scattered(x: np.ndarray, index: np.ndarray, value: np.ndarray, how: Any) -> np.ndarray:
    y = x.copy()
    how.at(y, (index, np.arange(x.shape[1])[None, :]), value)
    return y


def _indexed() -> list[Case]:
    i = N(-4, 3, 2, 5)
    return [
        Case("gather", lambda x, i: x.gather(1, i), (F(3, 5), N(0, 4, 3, 7)), lambda x, i: np.take_along_axis(x, i, 1)),
        Case("gather_axis0", lambda x, i: x.gather(0, i) * 2, (F(6, 5), N(0, 5, 4, 5)),
             lambda x, i: np.take_along_axis(x, i, 0) * 2),
        Case("embedding", lambda w, i: w.embedding(i), (F(10, 6), N(0, 9, 2, 4)), lambda w, i: w[i]),
        Case("index_tensor", lambda x, i: x[i], (F(4, 3), i), lambda x, i: x[i]),
        Case("index_two_tensors", lambda x, i, j: x[:, i, j] * 2, (F(2, 4, 5), N(-4, 3, 6), N(0, 4, 3, 6)),
             lambda x, i, j: x[:, i, j] * 2),
        Case("index_apart", lambda x, i: x[1, :, i], (F(2, 4, 5), N(0, 4, 3)), lambda x, i: x[1, :, i]),
        Case("index_none", lambda x, i: x[:, None, i, 1:], (F(2, 4, 5), N(0, 3, 2, 3)), lambda x, i: x[:, None, i, 1:]),
        Case("scatter_add", lambda x, i, v: x.scatter_add(0, i, v), (F(4, 5), N(0, 3, 7, 5), F(7, 5)),
             lambda x, i, v: _scattered(x, i, v, np.add)),
        Case("scatter_max", lambda x, i, v: x.scatter_reduce(0, i, v, "amax"), (A(4, 5), N(0, 3, 7, 5), F(7, 5)),
             lambda x, i, v: _scattered(x, i, v, np.maximum)),
        Case("scatter_min", lambda x, i, v: x.scatter_reduce(0, i, v, "amin"), (A(4, 5), N(0, 3, 7, 5), F(7, 5)),
             lambda x, i, v: _scattered(x, i, v, np.minimum)),
        Case("scatter_set", lambda x, i, v: x.scatter(0, i, v), (F(4, 5), N(0, 3, 3, 5), F(3, 5)),
             lambda x, i, v: _put(x, (i, np.arange(5)[None, :]), v)),
        Case("one_hot", lambda i: i.one_hot(5), (N(0, 4, 7),), lambda i: np.eye(5, dtype=np.int32)[i], grad=False),
        Case("setitem_row", lambda x, v: _assigned(x, 1, v), (F(3, 4), F(4)), lambda x, v: _put(x, 1, v)),
        Case("setitem_steps", lambda x, v: _assigned(x, (slice(None), slice(3, None, -2)), v), (F(3, 5), F(3, 2)),
             lambda x, v: _put(x, (slice(None), slice(3, None, -2)), v)),
        Case("setitem_scalar", lambda x: _assigned(x, 0, 9), (F(3, 4),), lambda x: _put(x, 0, 9)),
        Case("setitem_int", lambda x: _assigned(x, slice(1, 3), 9), (N(0, 5, 6),), lambda x: _put(x, slice(1, 3), 9), grad=False),
    ]


def _linear() -> list[Case]:
    rows = []
    for a, b in [((5, 7), (7, 3)), ((1, 33), (33, 9)), ((33, 1), (1, 9)), ((3, 4, 5), (3, 5, 2)), ((2, 1, 4, 5), (3, 5, 2)),
                 ((5,), (5,)), ((4, 5), (5,)), ((5,), (5, 4)), ((64, 65), (65, 66))]:
        tag = f"{'x'.join(map(str, a))}_{'x'.join(map(str, b))}"
        rows.append(Case(f"matmul_{tag}", lambda x, y: x @ y, (F(*a), F(*b)), np.matmul, second=a == (5, 7)))
    rows += [
        Case("matmul_transposed", lambda x, y: x.T @ y, (F(9, 5), F(9, 3)), lambda x, y: x.T @ y),
        Case("matmul_int8", lambda x, y: x @ y, (N(-128, 127, 3, 20, dtype="int8"), N(-128, 127, 20, 4, dtype="int8")),
             lambda x, y: x.astype(np.int32) @ y.astype(np.int32), grad=False),
        Case("linear", lambda x, w, b: x.linear(w, b).relu(), (A(4, 6), F(6, 5), F(5)),
             lambda x, w, b: np.maximum(x @ w + b, 0)),
        Case("einsum", lambda x, y: Tensor.einsum("bij,bkj->kbi", x, y), (F(2, 3, 4), F(2, 5, 4)),
             lambda x, y: np.einsum("bij,bkj->kbi", x, y)),
        Case("outer", lambda x, y: x.outer(y), (F(3), F(4)), np.outer),
    ]
    return rows


def _convolutions() -> list[Case]:
    rows = []
    options: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
        ((2, 3, 7, 8), (4, 3, 3, 3), {}), ((1, 3, 7, 8), (4, 3, 3, 3), {"padding": 1, "stride": 2}),
        ((2, 4, 9, 9), (4, 1, 3, 3), {"groups": 4, "padding": 1}), ((1, 4, 9, 8), (6, 2, 3, 2), {"groups": 2, "stride": (2, 3)}),
        ((1, 2, 11, 11), (3, 2, 3, 3), {"dilation": 2, "padding": 2, "stride": 2}), ((2, 3, 5, 5), (4, 3, 1, 1), {}),
        ((1, 4, 8, 8), (4, 1, 5, 5), {"groups": 4, "stride": 2, "padding": (1, 2, 1, 2)}), ((1, 2, 9), (3, 2, 4), {"stride": 3})]
    for x, w, o in options:
        tag = f"{'x'.join(map(str, x))}_{'x'.join(map(str, w))}_" + "_".join(f"{k}{v}" for k, v in o.items())
        rows.append(Case(f"conv2d_{tag}", lambda x, w, o=o: x.conv2d(w, **o), (F(*x), F(*w)),
                         lambda x, w, o=o: conv_twin(x, w, **o), second=w == (4, 3, 1, 1)))
    rows += [
        Case("conv_transpose2d", lambda x, w: x.conv_transpose2d(w, stride=2, padding=1, output_padding=1),
             (F(1, 3, 4, 5), F(3, 2, 3, 3)), None),
        Case("conv_transpose2d_groups", lambda x, w: x.conv_transpose2d(w, groups=2, stride=3), (F(1, 4, 3, 3), F(4, 1, 2, 2)), None),
        Case("max_pool2d", lambda x: x.max_pool2d(3, 2, padding=1), (A(1, 2, 7, 7),), None),
        Case("max_pool2d_default", lambda x: x.max_pool2d(), (A(1, 2, 6, 7),),
             lambda x: x[..., :6].reshape(1, 2, 3, 2, 3, 2).max((3, 5))),
        Case("avg_pool2d", lambda x: x.avg_pool2d(3, 2, padding=1, count_include_pad=False), (F(1, 2, 7, 7),), None),
        Case("avg_pool2d_default", lambda x: x.avg_pool2d(2), (F(1, 2, 6, 6),),
             lambda x: x.reshape(1, 2, 3, 2, 3, 2).mean((3, 5))),
        Case("interpolate", lambda x: x.interpolate((6, 3)), (F(1, 2, 4, 5),), None),
    ]
    return rows


def conv_twin(x: np.ndarray, w: np.ndarray, groups: int = 1, stride: Any = 1, padding: Any = 0, dilation: int = 1) -> np.ndarray:
    """Convolution by its definition, tap by tap."""
    n = w.ndim - 2
    strides = (stride,) * n if isinstance(stride, int) else stride
    if isinstance(padding, int):
        pads = [(padding, padding)] * n
    else:
        pads = [(padding[i], padding[i + 1]) for i in range(2 * n - 2, -1, -2)]
    x = np.pad(x, [(0, 0), (0, 0), *pads])
    out = [(x.shape[2 + i] - dilation * (w.shape[2 + i] - 1) - 1) // strides[i] + 1 for i in range(n)]
    depth, per_group = w.shape[1], w.shape[0] // groups
    y = np.zeros((x.shape[0], w.shape[0], *out), np.float64)
    for tap in np.ndindex(*w.shape[2:]):
        at = tuple(slice(t * dilation, t * dilation + (o - 1) * s + 1, s) for t, o, s in zip(tap, out, strides, strict=True))
        part = x[(slice(None), slice(None), *at)]
        for g in range(groups):
            rows = slice(g * per_group, (g + 1) * per_group)
            y[:, rows] += np.einsum("oc,nc...->no...", w[(rows, slice(None), *tap)], part[:, g * depth:(g + 1) * depth])
    return y.astype(x.dtype)


def _networks() -> list[Case]:
    labels = N(0, 4, 6)
    return [
        Case("cross_entropy", lambda x, y: x.cross_entropy(y), (F(6, 5), labels), None, second=True),
        Case("cross_entropy_smooth", lambda x, y: x.cross_entropy(y, label_smoothing=0.1), (F(6, 5), labels), None, second=True),
        Case("cross_entropy_images", lambda x, y: x.cross_entropy(y, reduction="sum"), (F(2, 5, 3), N(0, 4, 2, 3)), None),
        Case("sparse_crossentropy_ignore", lambda x, y: x.sparse_categorical_crossentropy(y), (F(6, 5), N(-1, 4, 6)), None),
        Case("bce", lambda x, y: x.sigmoid().binary_crossentropy(y), (F(6), In((6,), "unit")), None),
        Case("bce_logits", lambda x, y: x.binary_crossentropy_logits(y), (A(6), F(6)), None),
        Case("batchnorm_train", lambda x, w, b: x.batchnorm_train(w, b)[0], (F(3, 4, 5), F(4), F(4)), None, second=True,
             tolerance=3),
        Case("batchnorm", lambda x, m, v: x.batchnorm(None, None, m, v), (F(3, 4, 5), F(4), P(4)), None),
        Case("attention", lambda q, k, v: q.scaled_dot_product_attention(k, v), (F(2, 3, 4, 8), F(2, 3, 5, 8), F(2, 3, 5, 6)),
             None, second=True),
        Case("attention_causal_gqa", lambda q, k, v: q.scaled_dot_product_attention(k, v, is_causal=True, enable_gqa=True),
             (F(1, 4, 5, 8), F(1, 2, 5, 8), F(1, 2, 5, 8)), None),
        Case("attention_mask", lambda q, k, v, m: q.scaled_dot_product_attention(k, v, m),
             (F(1, 2, 3, 4), F(1, 2, 5, 4), F(1, 2, 5, 4), F(3, 5)), None),
    ]


def _empty() -> list[Case]:
    return [
        Case("empty_add", lambda x: x + 1, (F(0, 3),), lambda x: x + 1), Case("empty_sum", lambda x: x.sum(0), (F(0, 3),), lambda x: x.sum(0)),
        Case("empty_sum_all", lambda x: x.sum(), (F(2, 0),), lambda x: x.sum()),
        Case("empty_prod", lambda x: x.prod(1), (F(2, 0),), lambda x: x.prod(1), grad=False),
        Case("empty_matmul", lambda x, y: x @ y, (F(3, 0), F(0, 4)), np.matmul),
        Case("empty_rows", lambda x, y: x @ y, (F(0, 3), F(3, 4)), np.matmul),
        Case("empty_slice", lambda x: x[2:2] * 2, (F(5, 3),), lambda x: x[2:2] * 2),
        Case("empty_reshape", lambda x: x.reshape(0, 7), (F(3, 0),), lambda x: x.reshape(0, 7)),
        Case("empty_gather", lambda x, i: x[i], (F(3, 2), N(0, 2, 0)), lambda x, i: x[i]),
        Case("empty_cat", lambda x, y: x.cat(y), (F(0, 3), F(2, 3)), lambda x, y: np.concatenate([x, y])),
        Case("scalar_add", lambda x, y: x + y, (F(), F()), np.add), Case("scalar_sum", lambda x: x.sum(), (F(),), np.sum),
        Case("one_element", lambda x: x.exp().sum(0), (F(1),), lambda x: np.exp(x).sum(0)),
    ]


CASES: list[Case] = [*_elementwise(), *_casts(), *_reduces(), *_movement(), *_indexed(), *_linear(), *_convolutions(),
                     *_networks(), *_empty()]


def inputs_of(case: Case, seed: int = 0, wide: bool = False) -> list[np.ndarray]:
    rng = np.random.default_rng([seed, *case.name.encode()])
    return [i.make(rng, wide) for i in case.inputs]


def tensors_of(case: Case, arrays: list[np.ndarray], device: str, wide: bool = False) -> list[Tensor]:
    kinds = [None if wide and "float" in i.dtype else i.dtype for i in case.inputs]
    return [Tensor(a, dtype=k, device=device) for a, k in zip(arrays, kinds, strict=True)]


def ops_of(case: Case) -> set[str]:
    """Names of the primitives in the case's graph."""
    result = case.run(*tensors_of(case, inputs_of(case), "NUMPY"))
    return {n.op.name for n in toposort(result._node, through_storage=True)}


def close(got: np.ndarray, want: np.ndarray, kind: str, factor: float = 1.0, what: str = "") -> None:
    """Equal for integers; for floats equal NaNs and infinities, and near relative to each element and to the largest."""
    assert got.shape == want.shape, f"{what}: expected shape {want.shape}, got {got.shape}"
    if "float" not in kind:
        np.testing.assert_array_equal(got, want, err_msg=what)
        return
    x, y = got.astype(np.float64), want.astype(np.float64)
    np.testing.assert_array_equal(np.isnan(x), np.isnan(y), err_msg=what)
    finite = np.isfinite(y)
    np.testing.assert_array_equal(x[~finite & ~np.isnan(y)], y[~finite & ~np.isnan(y)], err_msg=what)
    tolerance = TOLERANCE[kind] * factor
    scale = max(1.0, float(np.abs(y[finite]).max(initial=0.0))) if finite.all() else 1.0
    np.testing.assert_allclose(x[finite], y[finite], rtol=tolerance, atol=tolerance * min(scale, 1e4), err_msg=what)


def check_forward(case: Case, device: str) -> None:
    """The result on `device` against NUMPY's, and NUMPY's against the twin."""
    arrays = inputs_of(case)
    expected = case.run(*tensors_of(case, arrays, "NUMPY"))
    want, kind = expected.numpy(), expected.dtype.name
    if case.twin is not None:
        with np.errstate(all="ignore"):
            twin = np.asarray(case.twin(*arrays))
        close(want, twin.astype(want.dtype), kind, case.tolerance, f"{case.name} against its twin")
    if device != "NUMPY":
        result = case.run(*tensors_of(case, arrays, device))
        assert result.dtype.name == kind
        close(result.numpy(), want, kind, case.tolerance, f"{case.name} on {device}")


def _gradients(case: Case, tensors: list[Tensor], weight: np.ndarray, targets: list[Tensor]) -> list[Tensor]:
    y = case.run(*tensors)
    return (y * Tensor(weight, dtype=y.dtype, device=y.device)).sum().gradient(*targets, materialize_grads=True)


def check_gradient(case: Case, second: bool = False) -> None:
    """Central differences of sum(weight * f) along a random direction, in float64 on NUMPY; of its gradient if `second`."""
    rng = np.random.default_rng(7)
    arrays = inputs_of(case, wide=True)
    floats = [k for k, i in enumerate(case.inputs) if "float" in i.dtype]
    directions = {k: np.asarray(rng.standard_normal(arrays[k].shape)) for k in floats}
    weight = np.asarray(rng.standard_normal(case.run(*tensors_of(case, arrays, "NUMPY", wide=True)).shape))
    step = 1e-5

    def value(shift: float) -> tuple[float, list[np.ndarray]]:
        moved = [a + shift * directions[k] if k in directions else a for k, a in enumerate(arrays)]
        tensors = tensors_of(case, moved, "NUMPY", wide=True)
        if not second:
            y = float((case.run(*tensors).numpy().astype(np.float64) * weight).sum())
            return y, [g.numpy() for g in _gradients(case, tensors, weight, [tensors[k] for k in floats])]
        targets = [tensors[k] for k in floats]
        total = None
        for k, g in zip(floats, _gradients(case, tensors, weight, targets), strict=True):
            term = (g * Tensor(np.cos(np.arange(arrays[k].size)).reshape(arrays[k].shape), device="NUMPY")).sum()
            total = term if total is None else total + term
        assert total is not None
        grads = [g.numpy() for g in total.gradient(*targets, materialize_grads=True)]
        return float(total.item()), grads

    slope = (value(step)[0] - value(-step)[0]) / (2 * step)
    along = sum(float((g * directions[k]).sum()) for k, g in zip(floats, value(0.0)[1], strict=True))
    assert abs(slope - along) <= 1e-5 * max(1.0, abs(slope), abs(along)), f"{case.name}: slope {slope}, gradient {along}"


def check_device_gradient(case: Case, device: str) -> None:
    """Gradients on a device against those on NUMPY."""
    arrays = inputs_of(case)
    floats = [k for k, i in enumerate(case.inputs) if "float" in i.dtype]
    shape = case.run(*tensors_of(case, arrays, "NUMPY")).shape
    weight = np.asarray(np.random.default_rng(7).standard_normal(shape))
    results = []
    for name in ("NUMPY", device):
        tensors = tensors_of(case, arrays, name)
        results.append([g.numpy() for g in _gradients(case, tensors, weight, [tensors[k] for k in floats])])
    for want, got in zip(*results, strict=True):
        close(got, want, "float32", 4 * case.tolerance, f"gradient of {case.name} on {device}")
