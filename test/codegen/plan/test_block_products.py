"""Products with quantised blocks by a microkernel: what is recognised, its loops, and the numbers, whatever x is."""
# Tests know their dims are ints.
# mypy: disable-error-code="arg-type,type-var"
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from support.machine_code import assembly
from support.stream import computes

from minigrad import Tensor, config, microkernels, show
from minigrad.codegen.ir.nodes import Call
from minigrad.codegen.ir.text import meaning_of, parse_function, print_function
from minigrad.codegen.ir.verify import verify_meaning
from minigrad.codegen.kernel.nodes import Kernel
from minigrad.codegen.kernel.text import parse_kernel
from minigrad.codegen.microkernels import limbs, limbs_vnni
from minigrad.codegen.microkernels.block_product import KINDS, REQUIRES, REQUIRES_VNNI, VNNI, suffix_for
from minigrad.codegen.microkernels.registry import find
from minigrad.codegen.passes import Stage, flat_form, stages_of
from minigrad.codegen.plan.block_products import folded
from minigrad.codegen.plan.build import build
from minigrad.codegen.plan.several import parse_plan
from minigrad.codegen.plan.steps import Plan, Split
from minigrad.dtype import float32, int32, uint32
from minigrad.errors import PlanError
from minigrad.runtime.registry import get_device
from minigrad.scheduler.graph import build_graph
from minigrad.scheduler.schedule import schedule
from minigrad.state import QuantizedTensor
from minigrad.target import Target
from minigrad.value import binary, cast, const, local, where

AMX = Target("amx", "llvm", "sapphirerapids", 64, 32, 2, features=REQUIRES | {"sse", "fma", "avx2"})
ZEN = Target("zen", "llvm", "znver4", 64, 32, 2, features=REQUIRES_VNNI | {"sse", "fma", "avx2"})
FEATURES = get_device("CPU").target.features
here = pytest.mark.skipif(suffix_for(FEATURES) is None, reason="this processor has neither AMX nor VNNI with AVX-512")
FORMATS = {"Q8_0": "q8", "Q4_0": "q4", "Q4_1": "q4m"}

rng = np.random.default_rng(12)


def tensor(*shape: int) -> Tensor:
    return Tensor(rng.standard_normal(shape).astype(np.float32), device="CPU")


def quantized(kind: str, rows: int, columns: int) -> QuantizedTensor:
    return QuantizedTensor.quantize(rng.standard_normal((rows, columns)).astype(np.float32), kind, device="CPU")


def two(gate: QuantizedTensor, up: QuantizedTensor, x: Tensor, y: Tensor | None = None) -> Tensor:
    return gate.linear(x).silu() * up.linear(x if y is None else y)


def added(rows: int) -> Tensor:
    """An update in place, of what the last unit computes for the second time, too."""
    y = tensor(rows).realize()
    return y.assign(y * 0.5 + quantized("Q4_0", rows, 64).linear(tensor(64)))


def staged(result: Tensor, target: Target = AMX) -> tuple[Kernel, Stage]:
    kernel = schedule(build_graph([result.node]), frozenset(), target).steps[-1].kernel
    stage, = stages_of(kernel, target).stages
    return kernel, stage


CASES: dict[str, tuple[int, Callable[[], Tensor]]] = {
    "bytes": (1, lambda: quantized("Q8_0", 96, 64).linear(tensor(64))),
    "nibbles": (1, lambda: quantized("Q4_0", 64, 128).linear(tensor(1, 1, 128))),
    "minimums, an odd number of blocks": (1, lambda: quantized("Q4_1", 80, 96).linear(tensor(96))),
    "panels that are left": (1, lambda: quantized("Q4_0", 144, 64).linear(tensor(64))),
    "prologue": (1, lambda: quantized("Q4_1", 64, 64).linear(tensor(64).tanh() * tensor(64))),
    "every other element": (1, lambda: quantized("Q8_0", 64, 64).linear(tensor(128)[::2])),
    "epilogue": (1, lambda: (quantized("Q8_0", 64, 64).linear(tensor(64), tensor(64)) * 0.5).relu()),
    "two products, one kernel": (2, lambda: two(quantized("Q4_0", 64, 64), quantized("Q4_0", 64, 64), tensor(64))),
    "two kinds of blocks": (2, lambda: two(quantized("Q4_1", 64, 64), quantized("Q4_0", 64, 64), tensor(64))),
    "two vectors": (2, lambda: two(quantized("Q4_0", 64, 64), quantized("Q4_0", 64, 64), tensor(64).exp(), tensor(64))),
    "in place": (1, lambda: added(16 * 11)),
    "apart": (1, lambda: quantized("Q4_0", 64, 256).linear(tensor(256))),  # a line between panels
}


@pytest.mark.parametrize("target", [AMX, ZEN], ids=lambda t: t.name)
@pytest.mark.parametrize("case", CASES)
def test_the_loops_equal_their_kernel(case: str, target: Target) -> None:
    sums, make = CASES[case]
    kernel, stage = staged(make(), target)
    assert stage.plan.pattern == "quantized" and parse_plan(str(stage.plan)) == stage.plan
    calls = [s for loop in stage.function.body for s in getattr(loop, "body", ()) if isinstance(s, Call)]
    assert len(calls) == sums and all(c.kernel.name.endswith(VNNI) == (target is ZEN) for c in calls)
    computes(stage, kernel, 0.75)


@pytest.mark.parametrize("make", [
    lambda: quantized("Q4_0", 64, 64).linear(tensor(2, 64)),                             # two rows
    lambda: quantized("Q4_0", 48, 64).linear(tensor(64)),                                # three panels
    lambda: quantized("Q8_0", 192, 32).linear(tensor(32)),                               # one block
    lambda: quantized("Q4_0", 64, 64).linear(tensor(64), quantize_activations=True),     # integers already
    lambda: quantized("Q4_0", 64, 64).linear(Tensor.arange(64, device="CPU").float()),   # x is in no memory
    lambda: (lambda w, x: two(w, w, x, x.exp()))(quantized("Q4_0", 64, 64), tensor(64)),  # two parts read x
], ids=["rows", "panels", "blocks", "integers", "computed", "shared"])
def test_what_streams_as_before(make: Callable[[], Tensor]) -> None:
    assert staged(make())[1].plan.pattern != "quantized"


def test_without_byte_products_it_streams_as_before() -> None:
    target = Target("avx512", "llvm", "skylake-avx512", 64, 32, 2, features=ZEN.features - {"avx512vnni"})
    assert staged(quantized("Q4_0", 64, 64).linear(tensor(64)), target)[1].plan.pattern != "quantized"


def test_other_numbers_are_not_taken_for_nibbles() -> None:
    w = quantized("Q4_0", 64, 64)
    flipped = QuantizedTensor("Q4_0", w.shape, (w.words ^ 3, w.scales))  # not what lies in memory
    assert staged(flipped.linear(tensor(64)))[1].plan.pattern != "quantized"


PLAN = """plan
  split i0 -> u q by 4, back
  bind parallel u
  bind vector i1
  stage p0 at u as [r0][r1][r2][r3]
  results at u as [q][i1]
  call block_product_q4_vnni at u
"""


def given(plan: str, kind: str = "Q4_0") -> None:
    """Builds a product of 6 panels and 2 blocks by a plan, and checks what its loops compute."""
    kernel, stage = staged(quantized(kind, 96, 64).linear(tensor(64)), ZEN)
    flat = flat_form(kernel)
    computes(replace(stage, function=build(flat, flat.nests[0], parse_plan(plan), "f")), kernel, 0.75)


@pytest.mark.parametrize("old, new", [
    ("q4_vnni", "q4"), ("by 4", "by 5"), ("by 4, back", "by 3"), ("q by 4", "q into 2"), ("  bind parallel u\n", ""),
    ("  bind vector i1\n", ""),
])
def test_a_plan_calls_microkernels(old: str, new: str) -> None:
    given(PLAN.replace(old, new))


def test_a_call_is_in_a_loop_of_a_worker() -> None:
    given(PLAN.replace("i0 -> u", "i0 -> v").replace("  bind parallel u", "  split v -> w u by 1\n  bind parallel w"))


@pytest.mark.parametrize("change, message", [
    (("q4_vnni", "q8_vnni"), "call block_product_q8_vnni at u: expected one that computes some sum"),
    (("q4_vnni", "q5"), "call block_product_q5 at u: expected a microkernel of a matrix unit, "),
    (("by 4, back", "by 2"), "call .*: expected blocks of 3 neighbours of i0 at least, all equally long, inside u"),
    (("by 4, back", "by 4, short"), "expected blocks of 3 neighbours of i0 at least, all equally long"),
    (("u q by 4, back\n  bind parallel u", "q u by 3\n  order u q"), "expected blocks of 3 neighbours of i0 at least"),
    (("at u\n", "at q\n"), "call .* at q: expected loops of i0 and all of i1 r0 r1 r2 r3 inside q, got i1 r0"),
    (("  bind parallel u\n", "  split r0 -> a b by 2\n"), "expected loops of i0 and all of i1 r0 r1 r2 r3 inside u"),
    (("  stage p0", "  order u i1 q\n  stage p0"), "expected loops of i0 and all of .* got i1 q"),
    (("  results at u as [q][i1]\n", ""), "call .*: expected results at u as .q..i1."),
    (("[q][i1]", "[i1][q]"), "call .*: expected results at u as .q..i1."),
    (("  stage p0 at u as [r0][r1][r2][r3]\n", ""), "call .*: expected for t0 a copy of .* as .r0..r1..r2..r3., "),
    (("[r0][r1]", "[r1][r0]"), "call .*: expected for t0 a copy"),
    (("stage p0 at u as", "stage p0 at q as"), "call .*: expected for t0 a copy"),
    (("  call", "  ahead p1 at r0 by 64 bytes\n  call"), "call .*: expected no prefetches inside u, got some at r0"),
])
def test_what_a_call_cannot_do_is_an_error(change: tuple[str, str], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        given(PLAN.replace(*change))


def test_a_call_is_of_products_with_blocks_alone() -> None:
    kernel = parse_kernel("""kernel product(out o0: f32[64], p0: f32[64], p1: f32[4096])
  for i0<4, i1<16:
    t0 = sum(r0<2, r1<4, r2<2, r3<4: p0[32*r0+8*r1+4*r2+r3] * p1[1024*i0+i1+512*r0+128*r1+64*r2+16*r3])
    o0[16*i0+i1] = t0
""")
    with pytest.raises(PlanError, match="expected sums that are products of one row with quantised blocks, got others"):
        build(kernel, kernel.nests[0], parse_plan(PLAN), "f")


def test_constants_are_folded() -> None:
    w = local("w", uint32)
    shift = binary("add", cast(const(4, int32), uint32), const(8, uint32))
    inside = binary("lt", shift, const(32, uint32))
    assert folded(where(inside, binary("shr", w, shift), const(0, uint32))) is binary("shr", w, const(12, uint32))
    assert folded(binary("shl", w, binary("sub", shift, shift))) is w
    assert folded(cast(binary("mul", const(3, int32), const(-2, int32)), float32)) is const(-6.0, float32)


@pytest.mark.parametrize("suffix", ["", VNNI])
@pytest.mark.parametrize("kind", KINDS)
def test_the_microkernel_does_what_it_means(kind: str, suffix: str) -> None:
    kernel = find(KINDS[kind].name + suffix)
    assert kernel is not None
    verify_meaning(kernel)
    assert parse_function(print_function(meaning_of(kernel))) == meaning_of(kernel)
    text = assembly(str(kernel.implementation), ZEN.cpu if suffix else AMX.cpu)
    if suffix:
        per_block = limbs_vnni.PANELS * (8 * limbs_vnni.LIMBS if kind == "q8" else 4 * (2 * limbs_vnni.LIMBS - 1))
        assert per_block <= text.count("vpdpbusd") <= per_block + 4
    else:
        product = "tdpbsud" if kind == "q4m" else "tdpbssd"
        assert text.count(product) == limbs.PANELS and text.count("ldtilecfg") == text.count("tilerelease") == 1
    if kernel.requires <= FEATURES:
        assert microkernels.check(kernel, trials=1) == []


@pytest.mark.parametrize("threads, panels, units", [(2, 36, 2), (6, 352, 6), (64, 36, 9), (5, 64, 5)])
def test_units_are_as_many_as_threads_share(threads: int, panels: int, units: int) -> None:
    w = QuantizedTensor.from_blocks("Q4_0", (16 * panels, 64), np.zeros((32 * panels, 18), np.uint8), device="CPU")
    plan = staged(w.linear(tensor(64)), replace(ZEN, units=threads))[1].plan
    assert isinstance(plan, Plan) and plan.pattern == "quantized"
    unit, = [s for s in plan.steps if isinstance(s, Split)]
    assert -(-panels // unit.size) == units


def products(kind: str, rows: int, x: np.ndarray, zeros: slice = slice(0, 0)) -> tuple[np.ndarray, np.ndarray]:
    """What the CPU computes, and float64; in columns `zeros` the numbers are zeros."""
    values = rng.standard_normal((rows, len(x))).astype(np.float32)
    values[:, zeros] = 0
    w = QuantizedTensor.quantize(values, kind, device="CPU")
    result = w.linear(Tensor(x, device="CPU"))
    assert "plan quantized" in show(result, stage="plan")
    found = []
    for threads in (1, 2):
        with config(threads=threads):
            found.append(w.linear(Tensor(x, device="CPU")).numpy())
    assert found[0].tobytes() == found[1].tobytes()
    with np.errstate(all="ignore"):
        return found[0], w.dequantize().numpy().astype(np.float64) @ x.astype(np.float64)


@here
@pytest.mark.parametrize("rows, columns", [(64, 64), (208, 96), (1216, 2048), (80, 2080), (96, 4128), (64, 2112)])
@pytest.mark.parametrize("kind", FORMATS)
def test_products_are_exact_to_float32(kind: str, rows: int, columns: int) -> None:
    """Also of odd numbers of blocks, chunks of one block, and panels that no group has."""
    found, exact = products(kind, rows, rng.standard_normal(columns).astype(np.float32))
    np.testing.assert_allclose(found, exact, rtol=0, atol=1e-6 * np.abs(exact).max())


@here
@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("scale", [1e-44, 1e-40, 1e-38, 1e-20, 1e20, 3e36])
def test_tiny_and_huge_numbers(kind: str, scale: float) -> None:
    x = (rng.uniform(-1, 1, 96) * scale).astype(np.float32)
    found, exact = products(kind, 64, x)
    least = 3 * 2 * 2.0**-150  # each of three blocks adds two numbers at most, each up to half a step of float32 off
    np.testing.assert_allclose(found, exact, rtol=1e-4, atol=1e-5 * np.abs(exact).max() + least)


@here
@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0"])
@pytest.mark.parametrize("small", [1e20, 1e-10, 1e-30, 1e-38])
def test_numbers_far_apart_in_a_block(kind: str, small: float) -> None:
    """A huge number that is multiplied by zeros hides nothing of those beside it."""
    x = (rng.uniform(0.5, 1, 128) * small).astype(np.float32)
    x[40:44] = 1e30
    found, exact = products(kind, 64, x, slice(40, 44))
    assert np.abs(exact).max() < 100 * small
    np.testing.assert_allclose(found, exact, rtol=1e-4, atol=1e-5 * np.abs(exact).max())
    wide = (rng.standard_normal(2112) * np.exp2(rng.integers(-45, 1, 2112))).astype(np.float32)
    found, exact = products(kind, 64, wide)
    np.testing.assert_allclose(found, exact, rtol=1e-4, atol=1e-6 * np.abs(exact).max())


@here
@pytest.mark.parametrize("kind, small, large", [("Q8_0", 3, 7), ("Q4_0", 3, 7), ("Q4_0", 7, 3), ("Q4_0", 3, 8)])
def test_each_of_two_numbers_is_exact_beside_the_other(kind: str, small: int, large: int) -> None:
    """In block b the other one is 2**b as large, and multiplied by zeros: in 4 bits the two may share a limb."""
    blocks = 48
    numbers = (rng.uniform(1, 2, (2, blocks)) * rng.choice([-1, 1], (2, blocks))).astype(np.float32)
    x = np.zeros(32 * blocks, np.float32)
    x[small::32], x[large::32] = numbers[0], np.ldexp(numbers[1], np.arange(blocks))
    found, exact = products(kind, 64, x, slice(large, None, 32))
    np.testing.assert_allclose(found, exact, rtol=0, atol=2e-6 * np.abs(exact).max())


@here
@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("place", [5, 2100])
@pytest.mark.parametrize("number", [np.inf, -np.inf, np.nan])
def test_what_is_not_finite_stays_so(kind: str, place: int, number: float) -> None:
    x = rng.standard_normal(2112).astype(np.float32)
    x[place] = number
    found, exact = products(kind, 64, x)
    if kind == "Q4_1":  # scale * inf - minimum * inf: the sums of a block come before the minimum is taken off
        found, exact = np.isfinite(found), np.isfinite(exact)
    np.testing.assert_array_equal(found, exact.astype(found.dtype))
    zeros = np.zeros(64, np.float32)
    found, exact = products(kind, 64, zeros)
    np.testing.assert_array_equal(found, exact)


@here
@pytest.mark.parametrize("kind", FORMATS)
def test_scales_that_are_not_finite_reach_only_their_rows(kind: str) -> None:
    w = quantized(kind, 64, 96)
    scales = w.scales.numpy()
    scales[1, 1, 3], scales[2, 0, 5] = np.inf, np.nan
    spoilt = QuantizedTensor(kind, w.shape, (w.words, Tensor(scales, device="CPU"), *w.parts[2:]))
    x = np.abs(rng.standard_normal(96)).astype(np.float32)
    found, right = (t.linear(Tensor(x, device="CPU")).numpy() for t in (spoilt, w))
    assert not np.isfinite(found[19]) and np.isnan(found[37])
    others = [k for k in range(64) if k not in (19, 37)]
    np.testing.assert_array_equal(found[others], right[others])
