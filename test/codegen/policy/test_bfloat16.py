"""Products of bfloat16 in matrix registers or vectors: as exact as those of float32, for every number there is."""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from support.packed import AMX, AVX512, all_blocks, arguments, built, equal_the_kernel, flat_kernel, tensor

from minigrad import Tensor, config, show
from minigrad.codegen.ir.interpret import interpret_function
from minigrad.codegen.ir.nodes import BufferParam, Function, Loop, Store
from minigrad.codegen.ir.text import parse_function, print_function
from minigrad.codegen.ir.verify import verify_function
from minigrad.codegen.kernel.interpret import interpret_kernel
from minigrad.codegen.kernel.nodes import Kernel
from minigrad.codegen.machines.machine import machine
from minigrad.codegen.patterns.recognise import Contraction, recognise
from minigrad.codegen.plan.microkernel_choice import in_matrix_registers
from minigrad.codegen.plan.words import PAIRS, SCALE, word_of
from minigrad.codegen.policy.blocking import Blocks
from minigrad.codegen.policy.narrow import narrow_kind
from minigrad.dtype import bfloat16, uint32
from minigrad.expr import Var
from minigrad.runtime.cpu import host_target, shared_jit
from minigrad.target import Target
from minigrad.value import load

BYTE_PRODUCTS = replace(AVX512, name="dots", features=AVX512.features | {"avx512bw", "avx512bf16"})
TARGETS = pytest.mark.parametrize("target", [AMX, BYTE_PRODUCTS], ids=lambda t: t.name)
PRODUCTS = pytest.mark.skipif(not host_target(shared_jit(), 1).features & {"amx-bf16", "avx512bf16"},
                              reason="this processor has no instruction that multiplies bfloat16")
rng = np.random.default_rng(17)


def of(*shape: int) -> Tensor:
    """Numbers of bfloat16, widened where they are read."""
    return tensor(*shape).cast("bfloat16").realize().float()


# ---- words ----

def every_kind_of_number() -> np.ndarray:
    edges = [0, 1, 2, 0x7fffff, 0x800000, 0x800001, 0x73800000, 0x74ffffff, 0x7f7f8000, 0x7f7fffff,
             0x7f800000, 0x7f800001, 0x7fc00000, 0x7fff8000, 0x7fffffff, 0x3f800000]
    anything, subnormal = rng.integers(0, 1 << 32, 1000, np.uint32), rng.integers(0, 1 << 23, 200, np.uint32)
    bits = np.concatenate([anything, subnormal, np.array(edges, np.uint32)])
    return np.concatenate([bits, bits ^ 0x80000000])


def test_words_hold_every_number() -> None:
    """Times the scale, exactly and not subnormal; or as no finite number."""
    bits = (every_kind_of_number() >> 16).astype(np.uint16)
    count = len(bits) // 2
    i = Var("i", 0, count - 1)
    word = word_of([load("x", (i * 2 + t,), bfloat16) for t in range(2)], PAIRS)
    params = BufferParam("x", bfloat16, 2 * count, "in"), BufferParam("w", uint32, count, "out")
    encode = Function("encode", params, (), (), (Loop(i, 0, count, "serial", (Store("w", i + 0, word),)),))
    words = np.zeros(count, np.uint32)
    interpret_function(parse_function(print_function(encode)), {"x": bits.view(bfloat16.np), "w": words}, {})
    found = np.stack([words << 16, words & 0xffff0000], -1).view(np.float32).ravel()
    numbers = (bits.astype(np.uint32) << 16).view(np.float32)
    finite, small = np.isfinite(found), np.abs(numbers) < 3e38 / SCALE
    assert np.array_equal(finite & small, small) and not finite[~np.isfinite(numbers)].any()
    np.testing.assert_array_equal(found[finite], numbers[finite].astype(np.float64) * SCALE)
    size = np.abs(found)
    assert not ((size > 0) & (size < np.finfo(np.float32).tiny)).any()


# ---- plans ----

CASES: dict[str, Callable[[], Tensor]] = {
    "a @ b": lambda: of(19, 24) @ of(24, 37),
    "odd": lambda: of(17, 23) @ of(23, 33),
    "a @ b.T": lambda: of(13, 33) @ of(21, 33).transpose(0, 1),
    "a.T @ b": lambda: of(33, 13).transpose(0, 1) @ of(33, 21),
    "a.T @ b.T": lambda: of(21, 13).transpose(0, 1) @ of(18, 21).transpose(0, 1),
    "batched": lambda: of(2, 5, 7) @ of(2, 7, 17),
    "epilogue": lambda: (of(2, 5, 7) @ of(7, 17) + of(17)).relu(),
    "conv": lambda: of(1, 3, 7, 7).conv2d(of(5, 3, 3, 3), padding=1).relu(),
    "strided conv": lambda: of(1, 2, 9, 9).conv2d(of(4, 2, 3, 3), stride=2, padding=1),
    "1x1 conv": lambda: of(2, 5, 5, 5).conv2d(of(6, 5, 1, 1)),
}


def plan_of(kernel: Kernel, target: Target, turn: int = 0) -> Blocks:
    """One of the choices, all of which are of pairs."""
    found = recognise(kernel.nests[0])
    assert isinstance(found, Contraction), found
    assert narrow_kind(found, target) == PAIRS and not narrow_kind(found, AVX512)
    choices = all_blocks(kernel.nests[0], target, 6)
    assert all(made.words == PAIRS and f"tile_{PAIRS}_" in made.microkernel for made in choices)
    return choices[turn % len(choices)]


@TARGETS
@pytest.mark.parametrize("case", CASES)
def test_pairs_equal_the_kernel(case: str, target: Target) -> None:
    kernel = flat_kernel(CASES[case](), target)
    turn = list(CASES).index(case)
    equal_the_kernel(kernel, [built(kernel, kernel.nests[0], plan_of(kernel, target, turn))])


@TARGETS
def test_blocks_end_within_a_register(target: Target) -> None:
    """Blocks of 20 words, of which the last one has 11, over rows and columns that fill no tile."""
    kernel = flat_kernel(of(18, 61) @ of(61, 40), target)
    plan = replace(plan_of(kernel, target), k=(("r0", 20),))
    equal_the_kernel(kernel, [built(kernel, kernel.nests[0], plan)])


@TARGETS
@pytest.mark.parametrize("case", ["a @ b", "a.T @ b.T", "conv", "epilogue"])
def test_sums_that_are_no_finite_numbers(case: str, target: Target) -> None:
    """They are computed from the operands: infinite, NaN, or so large that the scale made them infinite."""
    kernel = flat_kernel(CASES[case](), target)
    function = built(kernel, kernel.nests[0], plan_of(kernel, target))
    verify_function(function)
    arrays = arguments(kernel)
    first, second, *_ = (arrays[p.name] for p in kernel.params if p.mode == "in")
    for array, place, value in ((first, 7, 3e37), (first, 30, np.inf), (second, 11, np.nan)):
        array[np.unravel_index(place, array.shape)] = np.float32(value).view(np.uint32) >> 16
    expected = {name: array.copy() for name, array in arrays.items()}
    with np.errstate(all="ignore"):
        interpret_kernel(kernel, expected, {})
        interpret_function(function, arrays, {})
    for p in kernel.params:
        if p.mode != "in":
            assert not np.isfinite(expected[p.name]).all() and np.isfinite(expected[p.name]).any()
            assert np.abs(expected[p.name][np.isfinite(expected[p.name])]).max() > 1e35
            np.testing.assert_allclose(arrays[p.name], expected[p.name], rtol=3e-5, atol=3e-5)


# ---- on processors that have the instructions ----

def product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Of what the operands are as bfloat16."""
    x, y = (Tensor(v, device="CPU").cast("bfloat16").realize() for v in (a, b))
    made = x.matmul(y, dtype="float32")
    assert PAIRS in show(made, stage="plan")
    return made.numpy()


def as_bfloat16(x: np.ndarray) -> np.ndarray:
    return Tensor(x, device="CPU").cast("bfloat16").float().numpy()


SPECIAL: dict[str, list[tuple[float, float]]] = {
    "infinite": [(np.inf, 1.0)], "negative": [(-np.inf, 2.0)], "NaN": [(np.nan, 1.0)], "inf * 0": [(np.inf, 0.0)],
    "inf - inf": [(np.inf, 1.0), (-np.inf, 1.0)], "0 * NaN": [(0.0, np.nan)], "inf * -inf": [(np.inf, -np.inf)],
    "huge": [(3e38, 0.5)], "huge * 0": [(3e38, 0.0)], "overflow": [(3e38, 10.0)],
    "cancels": [(3e37, 1.0), (-3e37, 1.0)], "huge * subnormal": [(3e38, 1e-40)], "subnormal": [(1e-40, 3.0)],
    "subnormals": [(1e-40, 1e-42)],
}


@PRODUCTS
@pytest.mark.parametrize("case", SPECIAL)
def test_every_number_multiplies(case: str) -> None:
    """Some rows have pairs of special numbers, first alone, then among others."""
    for others in (0.0, 1.0):
        a, b = (np.float32(others) * rng.standard_normal(s).astype(np.float32) for s in ((150, 170), (170, 190)))
        for step, (x, y) in enumerate(SPECIAL[case]):
            a[5, 3 + 40 * step], b[3 + 40 * step, 9] = x, y
            a[70, 149 - step], b[149 - step, 90] = x, y
        a, b = as_bfloat16(a), as_bfloat16(b)
        with np.errstate(all="ignore"):
            expected = a.astype(np.float64) @ b.astype(np.float64)
            size = np.abs(a.astype(np.float64)) @ np.abs(b.astype(np.float64))
            expected, near = expected.astype(np.float32), 4e-7 * size + 2e-45
        got = product(a, b)
        np.testing.assert_array_equal(np.isnan(got), np.isnan(expected))
        exact = np.isinf(expected) | ~np.isfinite(near)
        np.testing.assert_array_equal(got[exact], expected[exact])
        assert np.all(np.abs(got[~exact].astype(np.float64) - expected[~exact]) <= near[~exact])


@PRODUCTS
@pytest.mark.parametrize("scale", [1e-38, 1e-30, 1.0, 1e18])
def test_as_near_as_float32(scale: float) -> None:
    """To what float64 gives, of numbers of any size; the blocks of K end where no register does. Errors are compared
    with those of terms that are added in order; the mean square of `vdpbf16ps` with that of our float32, too, which
    begins a new sum after 256 terms, as a matrix register does not."""
    own = np.random.default_rng(17)  # whatever ran before
    a, b = (own.standard_normal(s).astype(np.float32) for s in ((150, 1100), (1100, 130)))
    a *= np.float32(scale)
    a, b = as_bfloat16(a), as_bfloat16(b)
    expected = a.astype(np.float64) @ b.astype(np.float64)
    plain = (Tensor(a, device="CPU") @ Tensor(b, device="CPU")).numpy().astype(np.float64)
    made, in_order = product(a, b).astype(np.float64), np.zeros((150, 130), np.float32)
    for column, row in zip(a.T, b, strict=True):
        in_order += np.outer(column, row)
    assert np.abs(made - expected).max() <= np.abs(in_order - expected).max()
    known = in_order if in_matrix_registers(PAIRS, host_target(shared_jit(), 1)) else plain
    assert np.square(made - expected).mean() <= np.square(known - expected).mean()


@PRODUCTS
@pytest.mark.parametrize("m, n, k", [(300, 200, 130), (65, 700, 1030)])
def test_threads_change_nothing(m: int, n: int, k: int) -> None:
    a, b = (rng.standard_normal(s).astype(np.float32) for s in ((m, k), (k, n)))
    a[m - 1, 7] = np.inf
    found = []
    for threads in (1, 2):
        with config(threads=threads):
            x, y = (Tensor(v, device="CPU").cast("bfloat16").realize() for v in (a, b))
            made = x.matmul(y, dtype="float32")
            assert PAIRS in show(made, stage="plan")
            found.append(made.numpy())
    assert found[0].tobytes() == found[1].tobytes()


@PRODUCTS
def test_convolutions_of_bfloat16() -> None:
    x, w = (rng.standard_normal(s).astype(np.float32) for s in ((2, 40, 30, 30), (64, 40, 3, 3)))
    low = [Tensor(v, device="CPU").cast("bfloat16").realize() for v in (x, w)]
    made, target = low[0].conv2d(low[1], padding=1), host_target(shared_jit(), 1)
    # Where `vdpbf16ps` takes two cycles, which is the rate of float32, words under windows gain nothing.
    slow = "amx-bf16" not in target.features and machine(target).costs.dot_step >= 2
    assert slow or PAIRS in show(made, stage="plan")
    expected = low[0].float().realize().conv2d(low[1].float().realize(), padding=1).numpy()
    np.testing.assert_allclose(made.float().numpy(), expected, rtol=2 ** -8, atol=1e-4)
