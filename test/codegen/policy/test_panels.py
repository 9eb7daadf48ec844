"""Contractions in panels: plans of steps whose loops compute what the kernel says, on every kind of processor."""
# Tests know their dims are ints.
# mypy: disable-error-code="arg-type,type-var"
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from conftest import needs_device, one_in
from support.golden_plans import TARGETS
from support.machine_code import assembly
from support.matmul_sweep import SIZES, check
from support.packed import flat_kernel, rng, tensor
from support.panels import AVX2, AVX512, each_choice, planned, product

from minigrad import Tensor, config
from minigrad.codegen.ir.interpret import interpret_function
from minigrad.codegen.ir.nodes import Function
from minigrad.codegen.ir.text import parse_function, print_function
from minigrad.codegen.ir.verify import verify_function
from minigrad.codegen.kernel.interpret import interpret_kernel
from minigrad.codegen.kernel.nodes import Kernel, Nest
from minigrad.codegen.kernel.text import parse_kernel
from minigrad.codegen.panels import in_order
from minigrad.codegen.patterns.recognise import matrix_or_vector_product
from minigrad.codegen.plan.build import build
from minigrad.codegen.plan.steps import Plan, Split
from minigrad.codegen.policy import panels as module
from minigrad.codegen.policy.panels import part, refusal, ways
from minigrad.codegen.render.llvm import render_llvm
from minigrad.target import Target

CPUS = {name: replace(TARGETS[name], l2=1 << 14) for name in ("avx2", "avx512", "half", "neon", "pocl")}


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Small products are done in panels too."""
    monkeypatch.setattr(module, "MIN_WORK", 1)
    monkeypatch.setattr(module, "MIN_WORK_ELSEWHERE", 1)
    monkeypatch.setattr(module, "UNIT_WORK", 1)
    return monkeypatch


def loops(kernel: Kernel, nest: Nest, plan: Plan) -> Function:
    """The loops of the plan: verified, and their text parses back."""
    function = build(kernel, nest, plan, "panels")
    verify_function(function)
    assert parse_function(print_function(function)) == function
    return function


def equals(kernel: Kernel, nest: Nest, plan: Plan) -> None:
    """The loops give the kernel's values, of small integers: exact in any order of summing."""
    arrays = {p.name: rng.integers(-3, 4, p.shape).astype(p.dtype.np) for p in kernel.params}
    expected = {name: a.copy() for name, a in arrays.items()}
    scalars = {s.name: 2.0 for s in kernel.scalars}
    interpret_kernel(kernel, expected, scalars)
    interpret_function(loops(kernel, nest, plan), arrays, scalars)
    for name, array in expected.items():
        np.testing.assert_array_equal(arrays[name], array)


def transposed(*shape: int) -> Tensor:
    return tensor(*shape[:-2], shape[-1], shape[-2]).transpose(-2, -1)


TEXTS = {
    "extents of one": """kernel k(out o0: f32[703], p0: f32[437], p1: f32[851])
  for i0<1, i1<19, i2<1, i3<37:
    t0 = sum(r0<1, r1<23: p0[437*i0+23*i1+r1] * p1[851*r0+37*r1+i3+i2])
    o0[37*i1+i3] = t0
""",
    "outputs": """kernel k(out o0: f32[703], out o1: f32[703], p0: f32[437], p1: f32[851], p2: f32[19])
  for i0<19, i1<37:
    t0 = sum(r0<23: p0[23*i0+r0] * p1[37*r0+i1])
    o0[37*i0+i1] = t0 + p2[i0]
    o1[37*i0+i1] = max(t0, 0.0)
""",
    "updated in place": """kernel k(inout o0: f32[703], p0: f32[437], p1: f32[851])
  for i0<19, i1<37:
    t0 = sum(r0<23: p0[23*i0+r0] * p1[37*r0+i1])
    o0[37*i0+i1] = o0[37*i0+i1] + t0
""",
}
CASES: dict[str, Callable[[], Tensor]] = {
    "a @ b": lambda: tensor(19, 23) @ tensor(23, 37),
    "a @ b.T": lambda: tensor(13, 33) @ transposed(33, 21),
    "a.T @ b": lambda: transposed(13, 33) @ tensor(33, 21),
    "a.T @ b.T": lambda: transposed(13, 33) @ transposed(33, 21),
    "(a @ b).T": lambda: (tensor(35, 12) @ tensor(12, 9)).transpose(0, 1).contiguous(),
    "batch": lambda: tensor(3, 5, 9) @ tensor(3, 9, 17),
    "one a for all": lambda: tensor(12, 9) @ tensor(3, 9, 61),
    "heads": lambda: tensor(2, 6, 3, 8).permute(0, 2, 1, 3) @ tensor(2, 17, 3, 8).permute(0, 2, 3, 1),
    "one matrix twice": lambda: (x := tensor(21, 33)) @ x.transpose(0, 1),
    "a square": lambda: (x := tensor(33, 33)) @ x,
    "whole tiles": lambda: tensor(12, 16) @ tensor(16, 32),
    "one tile": lambda: tensor(2, 8) @ tensor(8, 16),
    "a row": lambda: tensor(1, 150) @ tensor(150, 70),
    "tall": lambda: tensor(70, 5) @ tensor(5, 16),
    "wide": lambda: tensor(3, 7) @ tensor(7, 131),
    "epilogue": lambda: (tensor(3, 5, 9) @ tensor(9, 17) + tensor(17)).relu() + tensor(3, 5, 17),
    "prologue": lambda: (tensor(9, 11) * tensor(11) + tensor(9, 1)).abs() @ tensor(11, 20).relu(),
    "transposed prologue": lambda: (tensor(21, 33) + 1.0).relu() @ transposed(33, 35).relu(),
    "guards": lambda: tensor(11, 13).pad((1, 2, 2, 0)) @ tensor(13, 18).pad((0, 3, 1, 2)),
    "1x1 conv": lambda: tensor(2, 12, 8, 9).conv2d(tensor(6, 12, 1, 1)),
    "float64": lambda: Tensor(rng.standard_normal((6, 11)), device="CPU") @ Tensor(rng.standard_normal((11, 20)),
                                                                                  device="CPU"),
}


def kernel_of(case: str, target: Target) -> Kernel:
    return parse_kernel(TEXTS[case]) if case in TEXTS else flat_kernel(CASES[case](), target)


@pytest.mark.parametrize("target", CPUS)
@pytest.mark.parametrize("case", [*CASES, *TEXTS])
@one_in(2)
def test_panels_equal_the_kernel(case: str, target: str, small: pytest.MonkeyPatch) -> None:
    """Each time by another choice: B in place or copied, and a tile."""
    kernel = kernel_of(case, CPUS[target])
    found = each_choice(kernel, CPUS[target])
    equals(kernel, *found[(3 * [*CASES, *TEXTS].index(case) + list(CPUS).index(target)) % len(found)])


@pytest.mark.parametrize("target", CPUS)
@pytest.mark.parametrize("make", [
    lambda: tensor(13, 70) @ tensor(70, 37).relu(), lambda: (tensor(13, 75) @ transposed(75, 35) + tensor(35)).relu(),
    lambda: tensor(13, 67).abs() @ tensor(67, 17), lambda: transposed(33, 66) @ transposed(66, 19) + tensor(33, 19),
], ids=["b computed", "b transposed", "a computed", "both transposed"])
def test_blocks_of_the_sum_equal_the_kernel(make: Callable[[], Tensor], target: str, small: pytest.MonkeyPatch) -> None:
    """The last of which is shorter: sums are kept in memory between them, and what follows them happens once."""
    small.setattr(module, "MAX_K", 48)
    tiny = replace(CPUS[target], l1=1 << 11, l2=1 << 13)
    kernel = flat_kernel(make(), tiny)
    found = [(nest, plan) for nest, plan in each_choice(kernel, tiny) if copies_of(plan).get("kb")]
    assert found
    equals(kernel, *found[list(CPUS).index(target) % len(found)])


def test_random_sizes_equal_the_kernel(small: pytest.MonkeyPatch) -> None:
    """With workers and caches of any size."""
    random = np.random.default_rng(3)
    for _ in range(16):
        m, n, k = random.choice((2, 3, 5, 7, 8, 13, 16, 20, 33, 49, 70), 3)
        name = str(random.choice(list(CPUS)))
        target = replace(CPUS[name], units=int(random.integers(1, 5)), l1=int(random.choice((1 << 10, 1 << 15))))
        kernel = flat_kernel(tensor(m, k + 4) @ tensor(k + 4, n + 16) + tensor(n + 16), target)
        found = each_choice(kernel, target)
        equals(kernel, *found[int(random.integers(len(found)))])


@pytest.mark.parametrize("k", [*range(2049, 2070), 4097, 2048 * 200 + 1, 2048 * 300 + 2])
@pytest.mark.parametrize("width", [4, 8, 16])
def test_the_last_block_of_the_sum_can_be_transposed(k: int, width: int) -> None:
    block = part(k, 2048, width)
    assert block % width == 0 and 1024 <= block <= 2048 and (k - 1) % block + 1 >= module.TRANSPOSED_STEPS


@pytest.mark.parametrize("size", [(7, 16, 40), (33, 70, 12), (50, 33, 5), (1, 200, 64)], ids=str)
@pytest.mark.parametrize("target", CPUS)
def test_workers_share_out_tiles_and_change_no_number(size: tuple[int, int, int], target: str,
                                                      small: pytest.MonkeyPatch) -> None:
    kernel = product(*size)
    arrays = {p.name: rng.standard_normal(p.shape).astype(np.float32) for p in kernel.params}
    found, plans = [], []
    for workers in (1, 2, 3):
        here = {name: a.copy() for name, a in arrays.items()}
        shared = replace(CPUS[target], units=workers)
        choices = each_choice(kernel, shared)
        nest, plan = choices[list(CPUS).index(target) % len(choices)]
        plans.append(plan)
        interpret_function(loops(kernel, nest, plan), here, {})
        found.append(here["o0"].tobytes())
    assert found[0] == found[1] == found[2]
    assert copies_of(plans[0]) == copies_of(plans[1]) == copies_of(plans[2])


def copies_of(plan: Plan) -> dict[str, int]:
    """The register tile: sizes of the splits that make it."""
    return {s.outer: s.size for s in plan.steps if isinstance(s, Split) and s.outer in ("i", "j", "v", "k", "kb")}


@pytest.mark.parametrize("m, n, k, workers", [(196, 80, 240, 2), (784, 240, 40, 2), (49, 1280, 320, 2),
                                              (512, 512, 512, 4), (1024, 1024, 1024, 2), (1, 4096, 4096, 2)], ids=str)
def test_units_are_shared_out_evenly(m: int, n: int, k: int, workers: int) -> None:
    """No worker has much more than its part of the output."""
    for _, made in each_choice(product(m, n, k), replace(AVX512, units=workers)):
        sizes = {s.outer: s.size for s in made.steps if isinstance(s, Split)}
        tall, wide = sizes.get("um", m), sizes.get("un", n)
        units = [min(tall, m - i) * min(wide, n - j) for i in range(0, m, tall) for j in range(0, n, wide)]
        done = [0] * workers
        for work in units:
            done[done.index(min(done))] += work
        assert max(done) <= 1.2 * m * n / workers


@pytest.mark.parametrize("m, n, k, copied, blocks", [
    (64, 64, 64, False, False), (256, 256, 256, False, False), (196, 672, 112, False, False),
    (24, 2048, 2048, False, False), (7, 2048, 2048, False, True), (1, 2048, 2048, False, True),
    (512, 512, 512, True, False), (1024, 1024, 1024, True, False), (128, 1024, 2048, True, False),
    (128, 512, 4096, True, True),
])
def test_what_is_packed(m: int, n: int, k: int, copied: bool, blocks: bool) -> None:
    """B where many rows use it, and it does not stay near; where one tile has all rows, blocks of K are rows of B."""
    kernel = product(m, n, k)
    for _, made in each_choice(kernel, AVX512):
        staged = {s.operand: s for s in made.stages}
        assert set(staged) <= {"p1"}
        assert all(s.layout[-2:] == ("v", "l") and not s.transposed for s in staged.values())
        tile = copies_of(made)
        assert (tile.get("i", 1) + 1) * (tile["j"] // tile["v"]) + 2 <= AVX512.registers
        if bool(staged) == copied:
            assert ("kb" in tile) is blocks
    assert bool(planned(kernel, AVX512)[1].stages) is copied


@pytest.mark.parametrize("make, staged", [
    (lambda: tensor(300, 512) @ transposed(512, 512), {"p1": True}),
    (lambda: transposed(300, 512) @ transposed(512, 512), {"p1": True}),
    (lambda: tensor(300, 512).relu() @ tensor(512, 512), {"p0": True}),
    (lambda: transposed(300, 512).relu() @ tensor(512, 512), {"p0": False}),
    (lambda: tensor(300, 512) @ tensor(512, 512).relu(), {"p1": False}),
], ids=["b transposed", "both transposed", "a computed", "a computed along rows", "b computed"])
def test_copies_along_the_sum_are_transposed_in_registers(make: Callable[[], Tensor], staged: dict[str, bool]) -> None:
    kernel = flat_kernel(make(), AVX512)
    nest, made = next((nest, plan) for nest, plan in each_choice(kernel, AVX512)
                      if {s.operand: bool(s.transposed) for s in plan.stages} == staged)
    assert {s.transposed_by for s in made.stages if s.transposed} <= {module.TRANSPOSED_STEPS}
    source = render_llvm(build(kernel, nest, made, "panels"), AVX512).source
    assert "insertelement <16 x float> %" not in source


# ---- what is not done in panels, and what comes of it on devices ----


@pytest.mark.parametrize("make, target, reason", [
    (lambda: tensor(8, 8) @ tensor(8, 8), AVX512, "M=8 N=8 K=8 is too small"),
    (lambda: tensor(1, 8, 9, 9).conv2d(tensor(8, 8, 3, 3)), AVX512, "several variables"),
    (lambda: tensor(40, 40).max(1), AVX512, "the reduction is max"),
    (lambda: tensor(40, 40).cast("int32") @ tensor(40, 40).cast("int32"), AVX512, "narrow or an integer"),
    (lambda: tensor(40, 40).cast("float16").realize().float() @ tensor(40, 40), AVX512, "narrow or an integer"),
    (lambda: tensor(64, 64) @ tensor(64, 64), TARGETS["gpu"], "GPU"),
    (lambda: tensor(64, 64) @ tensor(64, 64), TARGETS["pocl"], "twice the text of a packed one for 262144"),
])
def test_what_is_not_done_in_panels_says_why(make: Callable[[], Tensor], target: Target, reason: str) -> None:
    nest = flat_kernel(make(), target).nests[0]
    found = matrix_or_vector_product(nest)
    why = found if isinstance(found, str) else refusal(found, target)
    assert reason in why and not list(ways(nest, target)), why


@pytest.mark.parametrize("make, names", [
    (lambda: tensor(40, 300) @ tensor(300, 300), 2), (lambda: tensor(1, 300) @ tensor(300, 300), 1),
    (lambda: tensor(40, 300) @ transposed(300, 300), 1), (lambda: tensor(1, 300) @ transposed(300, 300), 0),
    (lambda: tensor(40, 3) @ transposed(9, 90)[:3], 0), (lambda: tensor(40, 40) @ tensor(40, 4), 0),
    (lambda: tensor(40, 32) @ (Tensor.arange(32).reshape(32, 1) - Tensor.arange(40)).cast("float32"), 0),
], ids=["in place or copied", "a row", "across", "a row across", "too short to be transposed", "no whole vector",
        "not in memory"])
def test_how_b_can_be_read(make: Callable[[], Tensor], names: int) -> None:
    found = list(ways(flat_kernel(make(), AVX512).nests[0], AVX512))
    assert len([way for way in found if way.choices]) == names


def test_each_sum_runs_in_its_order_in_one_accumulator() -> None:
    for size in ((64, 64, 64), (128, 512, 4096)):
        assert in_order(product(*size), AVX512)


@pytest.mark.parametrize("target, register", [(AVX512, "zmm"), (AVX2, "ymm")], ids=["avx512", "avx2"])
@pytest.mark.parametrize("make", [
    lambda: tensor(250, 256) @ tensor(256, 250), lambda: transposed(516, 1200) @ tensor(1200, 512),
    lambda: tensor(510, 1300) @ transposed(1300, 208),
    lambda: (tensor(8, 2048) @ tensor(2048, 1024) + tensor(1024)).relu(),
    lambda: tensor(300, 300).relu() @ tensor(300, 300), lambda: tensor(200, 480) @ tensor(480, 80),
    lambda: tensor(1, 2048) @ tensor(2048, 1024),
], ids=["a @ b", "a.T @ b", "a @ b.T", "few rows", "a computed", "5 vectors", "a row"])
def test_no_accumulator_lives_on_the_stack(make: Callable[[], Tensor], target: Target, register: str) -> None:
    """By the cheapest choice; and by any of more than one vector, for which LLVM loads nothing into the last registers
    ahead of its use."""
    kernel = flat_kernel(make(), target)
    best = planned(kernel, target)
    for nest, plan in each_choice(kernel, target):
        if copies_of(plan)["j"] > copies_of(plan)["v"] or plan == best[1]:
            check_no_spills(kernel, nest, plan, target, register)


@pytest.mark.parametrize("m, n, k", [(784, 40, 240), (784, 40, 144), (784, 24, 144)])
def test_no_accumulator_of_half_vectors_does(m: int, n: int, k: int) -> None:
    """Where a processor begins two halves of a vector in a cycle, tiles may have those in all 32 registers."""
    kernel, target = product(m, n, k, TARGETS["half"]), TARGETS["half"]
    found = [(nest, plan) for nest, plan in each_choice(kernel, target) if copies_of(plan)["v"] == 8]
    assert found
    for nest, plan in found:
        check_no_spills(kernel, nest, plan, target, "ymm")


def check_no_spills(kernel: Kernel, nest: Nest, plan: Plan, target: Target, register: str) -> None:
    """Asserts that a product's multiply-adds are in registers of a kind, and that its sum neither reads nor writes
    these on the stack."""
    function = build(kernel, nest, plan, "panels")
    lines = assembly(render_llvm(function, target).source, target.cpu).splitlines()
    sums = [k for k, line in enumerate(lines) if "vfmadd" in line and register in line]
    tile = copies_of(plan)
    assert len(sums) == tile.get("i", 1) * (tile["j"] // tile["v"]) * tile["k"]
    start = max(k for k in range(sums[0]) if lines[k].endswith(":"))
    inner = lines[start:next(k for k in range(sums[-1], len(lines)) if lines[k].startswith("\tj"))]
    assert not [line for line in inner if register in line and "%rsp" in line], "\n".join(inner)


@needs_device("CL:pocl")
def test_long_products_in_panels_on_opencl() -> None:
    a, b = rng.standard_normal((515, 521), np.float32), rng.standard_normal((521, 518), np.float32)
    x, y = Tensor(a, device="CL:pocl"), Tensor(np.ascontiguousarray(b.T), device="CL:pocl").transpose(0, 1)
    exact = a.astype(np.float64) @ b
    np.testing.assert_allclose((x @ y * 0.25 + 1.0).numpy(), exact * 0.25 + 1.0, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("shape", [(7, 16, 40), (33, 300, 600), (512, 100, 1030), (700, 24, 32)], ids=str)
def test_results_do_not_depend_on_the_number_of_threads(shape: tuple[int, int, int]) -> None:
    m, n, k = shape
    a, b = tensor(m, k).realize(), tensor(k, n).realize()
    found = []
    for threads in (1, 2, 4):
        with config(threads=threads):
            found.append((a @ b).numpy().tobytes())
    assert found[0] == found[1] == found[2]


def test_infinities_and_nans_stay_in_their_rows_and_columns() -> None:
    a, b = tensor(650, 40).numpy(), tensor(40, 49).numpy()
    a[3, 39], a[5, 0], a[649, 2], b[39, 48] = np.inf, np.nan, -np.inf, np.inf
    with np.errstate(invalid="ignore"):
        expected = a.astype(np.float64) @ b.astype(np.float64)
    np.testing.assert_allclose((Tensor(a, device="CPU") @ Tensor(b, device="CPU")).numpy(), expected, rtol=2e-5,
                               atol=2e-5)


def test_sizes_around_those_of_tiles() -> None:
    """A sample of the sweep in matmul_sweep.py, which does all sizes."""
    random = np.random.default_rng(5)
    for m, n, k in random.choice(SIZES, (24, 3)):
        check(int(m), int(n), int(k), random)
