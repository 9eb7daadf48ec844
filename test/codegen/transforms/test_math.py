"""exp, log, sin, cos, tanh, sigmoid, erf and pow against exact results, through the LLVM renderer: errors in ulp."""
from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from functools import lru_cache

import mpmath
import numpy as np
import pytest

from minigrad import Tensor
from minigrad.codegen.ir.text import parse_function
from minigrad.codegen.render.llvm import render_llvm
from minigrad.codegen.transforms.math import FUNCTIONS, expanded
from minigrad.runtime.cpu import host_target, shared_jit
from minigrad.runtime.llvm_jit import Unit
from minigrad.runtime.object_symbols import foreign_symbols
from minigrad.value import walk

TARGET = host_target(shared_jit(), 1)
ENTRY = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)
INF, NAN = float("inf"), float("nan")
SPECIAL = [0.0, -0.0, 1.0, -1.0, 2.0, -2.0, 0.5, -0.5, 3.0, -3.0, INF, -INF, NAN, 1e-40, -1e-40, 1e38, -1e38, 2.5, -2.5,
           16777216.0, 16777215.0, 1.5, -1.5, 1e-45, 3e38, 0.99999994, 1.0000001, 7.0, -7.0, 64.0, 1e10, 88.72284]


def text(op: str, kind: str, arguments: int = 1) -> str:
    operands = ", ".join(f"{name}[8*i + l]" for name in "xz"[:arguments])
    inputs = ", ".join(f"in {name}: {kind}[n]" for name in "xz"[:arguments])
    return (f"func apply_{op}({inputs}, out y: {kind}[n], n: index in 8..100000000)\n  for i in 0..n // 8 parallel:\n"
            f"    for l in 0..8 vector:\n      y[8*i + l] = {op}({operands})\n")


@lru_cache
def compiled(op: str, kind: str, arguments: int) -> Callable:
    program = render_llvm(parse_function(text(op, kind, arguments)), TARGET)
    ((address,),) = shared_jit().addresses([Unit((program.name,), program.source)])
    return ENTRY(address)


def apply(op: str, *operands: np.ndarray) -> np.ndarray:
    """The op on arrays of float32, float64 or int32, of any length."""
    n, kind = len(operands[0]), {"<f4": "f32", "<f8": "f64", "<i4": "i32"}[operands[0].dtype.str]
    padded = [np.concatenate([x, np.ones(-n % 8, x.dtype)]) for x in operands]
    result = np.empty_like(padded[0])
    words = [x.ctypes.data for x in padded] + [result.ctypes.data, len(result)]
    table = (ctypes.c_uint64 * len(words))(*words)
    compiled(op, kind, len(operands))(ctypes.addressof(table), 0, len(result) // 8, None)
    return result[:n]


def float32_error(got: np.ndarray, exact: np.ndarray) -> np.ndarray:
    """Units of last place between float32 results and float64 ones; infinite where only one is NaN."""
    with np.errstate(all="ignore"):
        nearest = exact.astype(np.float32)
        unit = np.where(np.isinf(nearest), 2.0**104, np.spacing(np.abs(nearest)).astype(np.float64))
        a = np.clip(got.astype(np.float64), -2.0**128, 2.0**128)
        error = np.abs(a - np.clip(exact, -2.0**128, 2.0**128)) / unit
    nan = np.isnan(exact)
    return np.where(nan | np.isnan(got), np.where(nan == np.isnan(got), 0.0, np.inf), error)


def every_exponent(step: int) -> np.ndarray:
    """float32 numbers whose bits are `step` apart: all exponents, both signs, subnormals, infinities, NaN."""
    bits = np.arange(0, 1 << 32, step, dtype=np.uint64).astype(np.uint32)
    return np.concatenate([bits.view(np.float32), np.array(SPECIAL, np.float32)])


EXACT = {"exp": np.exp, "log": np.log, "sin": np.sin, "cos": np.cos, "tanh": np.tanh,
         "sigmoid": lambda x: 1 / (1 + np.exp(-x)), "erf": np.vectorize(math.erf)}


@pytest.mark.parametrize("op", EXACT)
def test_float32(op):
    x = every_exponent(12289)
    with np.errstate(all="ignore"):
        exact = EXACT[op](x.astype(np.float64))
    error = float32_error(apply(op, x), exact)
    worst = int(np.argmax(error))
    assert error[worst] <= 2.0, f"{op}({x[worst]!r}) is off by {error[worst]:.3f} ulp"


@pytest.mark.parametrize("op", ["sin", "tanh", "erf"])
def test_odd_functions_keep_the_sign_of_zero(op):
    for dtype in (np.float32, np.float64):
        y = apply(op, np.array([0.0, -0.0, 1e-40, -1e-40], dtype))
        assert list(np.signbit(y)) == [False, True, False, True]


def test_erf_ends_at_one():
    x = np.concatenate([np.linspace(3, 6, 100_001), [1e10, INF]]).astype(np.float32)
    y = apply("erf", x)
    assert y.max() == 1.0 and (y[x >= 3.9] == 1.0).all()
    np.testing.assert_array_equal(apply("erf", -x), -y)


def test_sin_near_multiples_of_half_pi():
    k = np.concatenate([np.arange(1, 4000), np.logspace(4, 37, 20000)])
    x = (k * (math.pi / 2)).astype(np.float32)
    for op in ("sin", "cos"):
        assert float32_error(apply(op, x), EXACT[op](x.astype(np.float64))).max() <= 2.0


def test_float32_pow():
    rng = np.random.default_rng(3)
    anything = [rng.integers(0, 1 << 32, 100000, dtype=np.uint64).astype(np.uint32).view(np.float32) for _ in range(2)]
    base = np.concatenate([np.exp(rng.uniform(-87, 88, 50000)), 1 + rng.uniform(1e-6, 0.5, 50000)]).astype(np.float32)
    power = (rng.uniform(-150, 128, 100000) / np.log2(base.astype(np.float64))).astype(np.float32)
    special = np.meshgrid(*[np.array(SPECIAL, np.float32)] * 2)
    for x, y in (anything, (base, power), [g.ravel() for g in special]):
        got = apply("pow", x, y)
        with np.errstate(all="ignore"):
            exact = np.power(x.astype(np.float64), y.astype(np.float64))
        error = float32_error(got, exact)
        worst = int(np.argmax(error))
        assert error[worst] <= 2.0, f"pow({x[worst]!r}, {y[worst]!r}) is off by {error[worst]:.3f} ulp"
        known = ~np.isnan(exact)
        assert np.array_equal(np.signbit(got)[known], np.signbit(exact)[known])


def float64_error(got: float, exact: mpmath.mpf) -> float:
    nearest = float(exact)
    if math.isinf(nearest) or math.isinf(got):
        return 0.0 if nearest == got else math.inf
    return float(abs(mpmath.mpf(got) - exact) / mpmath.mpf(max(float(np.spacing(abs(nearest))), 5e-324)))


RANGES = {"exp": 745.0, "log": 1e300, "sin": 1e9, "cos": 1e9, "tanh": 25.0, "sigmoid": 700.0, "erf": 7.0}


@pytest.mark.parametrize("op", EXACT)
def test_float64(op):
    rng, top = np.random.default_rng(5), RANGES[op]
    x = np.concatenate([rng.uniform(-1, 1, 300) * s for s in (1e-8, 0.1, 1.0, min(top, 20.0), top)])
    if op in ("sin", "cos"):
        x = np.concatenate([x, 10.0**rng.uniform(5, 308, 200), [6381956970095103 * 2.0**797]])
    if op == "log":
        x = np.concatenate([np.abs(x), 10.0**rng.uniform(-320, 308, 200)])
        x = x[x > 0]
    y = apply(op, x)
    with mpmath.workprec(1300 if op in ("sin", "cos") else 200):
        errors = [float64_error(float(b), getattr(mpmath, op)(mpmath.mpf(float(a)))) for a, b in zip(x, y, strict=True)]
    worst = int(np.argmax(errors))
    assert errors[worst] <= 4.0, f"{op}({x[worst]!r}) is off by {errors[worst]:.3f} ulp"


@pytest.mark.parametrize("op", EXACT)
def test_float64_special_values(op):
    x = np.array([0.0, -0.0, INF, -INF, NAN, -1.0, 1e300, -1e300, 5e-324])
    exact = EXACT[op](x) if op == "erf" else None
    with np.errstate(all="ignore"):
        exact = EXACT[op](x) if exact is None else exact
    np.testing.assert_allclose(apply(op, x), exact, rtol=1e-15)


def test_float64_pow():
    rng = np.random.default_rng(6)
    near_one = 1 + rng.uniform(-1, 1, 500) * 10.0**rng.uniform(-12, -1, 500)
    x = np.concatenate([np.exp(rng.uniform(-700, 700, 500)), near_one])
    y = rng.uniform(-1070, 1023, 1000) / np.log2(x)
    got = apply("pow", x, y)
    with mpmath.workprec(200):
        errors = [float64_error(float(c), mpmath.power(float(a), float(b))) for a, b, c in zip(x, y, got, strict=True)]
    assert max(errors) <= 2.0
    a, b = (g.ravel() for g in np.meshgrid(np.array(SPECIAL), np.array(SPECIAL)))
    with np.errstate(all="ignore"):
        np.testing.assert_allclose(apply("pow", a, b), np.power(a, b), rtol=1e-15)


def test_integer_pow():
    x = np.array([2, -3, 0, 0, 1, -1, -1, 7, 5, 2, 10, 3], np.int32)
    y = np.array([10, 3, 0, 5, -4, -3, -2, 11, -1, 31, 20, 1000001], np.int32)
    exact = [1024, -27, 1, 0, 1, -1, 1, 7**11, 0, 2**31, 10**20, pow(3, 1000001, 2**32)]
    assert [int(v) & 0xFFFFFFFF for v in apply("pow", x, y)] == [v & 0xFFFFFFFF for v in exact]


@pytest.mark.parametrize("op", FUNCTIONS)
@pytest.mark.parametrize("kind", ["f32", "f64", "f16", "bf16"])
def test_everything_is_expanded_and_calls_nothing(op, kind):
    function = parse_function(text(op, kind, 2 if op == "pow" else 1))
    value = function.body[0].body[0].body[0].value
    called = [v for v in walk(value) if v.op in FUNCTIONS]
    assert [v.op for v in called] == [op]
    assert all(v.op not in FUNCTIONS for v in walk(expanded(op, called[0].args)))
    program = render_llvm(function, TARGET)
    assert not foreign_symbols(shared_jit().object_code([Unit((program.name,), program.source)]))


def test_wide_vectors_scale_by_one_instruction_with_equal_results():
    """The two-step product of `scale` and the instruction agree bit for bit, also for subnormal results."""
    assert "scalef" not in render_llvm(parse_function(text("exp", "f32")), TARGET).source
    wide = text("exp", "f32").replace("8", "16")
    if "avx512f" not in TARGET.features:
        pytest.skip("needs AVX-512")
    program = render_llvm(parse_function(wide), TARGET)
    assert program.source.count("scalef.ps.512(<16 x float> %") == 1 and "shl" not in program.source
    x = np.concatenate([np.linspace(-106, 90, 4096), SPECIAL]).astype(np.float32)
    x = np.concatenate([x, np.ones(-len(x) % 16, np.float32)])
    y = np.empty_like(x)
    words = (ctypes.c_uint64 * 3)(x.ctypes.data, y.ctypes.data, len(x))
    ((address,),) = shared_jit().addresses([Unit((program.name,), program.source)])
    ENTRY(address)(ctypes.addressof(words), 0, len(x) // 16, None)
    assert np.array_equal(y.view(np.uint32), apply("exp", x).view(np.uint32))


@pytest.mark.parametrize("factor", [
    lambda t, c: c.exp(), lambda t, c: t.sigmoid(), lambda t, c: ((c.cast("int32") & 15) - 8).cast("float32")],
    ids=["power", "sigmoid", "table"])
@pytest.mark.parametrize("columns", [1, 4, 7])
def test_one_instruction_for_lanes_gives_one_value_where_lanes_agree(factor, columns):
    """One row times few columns: lanes go along the sum, and what is made of it is the same in all."""
    rng = np.random.default_rng(columns)
    a, b, c = (rng.standard_normal(shape, np.float32) * 2 for shape in ((1, 96), (96, columns), (1, columns)))
    found, expected = [(lambda t: (t * factor(t, Tensor(c, device=device))).numpy())(
        Tensor(a, device=device) @ Tensor(b, device=device)) for device in ("CPU", "NUMPY")]
    assert np.allclose(found, expected, rtol=1e-5, atol=1e-5)
