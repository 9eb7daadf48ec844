"""Contractions with few columns, or few beside whole vectors: the transposed operand against the kernel, and numpy."""
from collections.abc import Callable

import numpy as np
import pytest
from support.golden_plans import TARGETS
from support.packed import AVX2, AVX512, flat_kernel, parts_equal_the_kernel, tensor
from support.plan_reading import lanes

from minigrad import Tensor
from minigrad.codegen.kernel.access import extent
from minigrad.codegen.kernel.nodes import Kernel, Param
from minigrad.codegen.passes import stages_of
from minigrad.codegen.plan.steps import Order, Plan
from minigrad.codegen.policy import cut as cut_module
from minigrad.codegen.policy.cut import cut_columns
from minigrad.codegen.policy.thin import transpose_thin
from minigrad.expr import Index
from minigrad.target import Target


def half(*shape: int, dtype: str = "float16") -> Tensor:
    """Numbers of a half type, widened where they are read."""
    return tensor(*shape).cast(dtype).realize().float()


CASES = {
    "a @ b": lambda: tensor(37, 64) @ tensor(64, 3),
    "batched": lambda: tensor(2, 33, 40) @ tensor(2, 40, 5),
    "one b for all": lambda: tensor(2, 17, 40) @ tensor(40, 5),
    "epilogue": lambda: (tensor(33, 70) @ tensor(70, 7) + tensor(7)).relu() * tensor(33, 1),
    "computed b": lambda: tensor(33, 70) @ (tensor(70, 2) * tensor(70, 1)).exp(),
    "float16": lambda: half(37, 64) @ half(64, 3),
    "bfloat16": lambda: half(2, 33, 70, dtype="bfloat16") @ half(2, 70, 5, dtype="bfloat16"),
    "of length 1": lambda: tensor(1, 33, 40, 1).reshape(33, 40) @ tensor(40, 5).reshape(1, 40, 5),
}


@pytest.mark.parametrize("case", CASES)
def test_two_stages_equal_the_kernel(case: str) -> None:
    kernel = flat_kernel(CASES[case](), AVX2)
    scratch: list[Param] = []
    nests = [n for nest in kernel.nests for n in transpose_thin(nest, scratch, AVX2)]
    assert len(nests) == 2 and len(scratch) == 1
    parts_equal_the_kernel(kernel, nests, scratch)


@pytest.mark.parametrize("make", [
    lambda: tensor(37, 64) @ tensor(64, 16),
    lambda: tensor(37, 64) @ tensor(3, 64).transpose(0, 1),
    lambda: tensor(64, 37).transpose(0, 1) @ tensor(64, 3),
    lambda: tensor(37, 64).exp() @ tensor(64, 3),
    lambda: tensor(37, 31) @ tensor(31, 3),
    lambda: tensor(8, 64) @ tensor(64, 3),
], ids=["wide", "transposed already", "transposed a", "computed a", "short sum", "few rows"])
def test_what_stays_one_stage(make) -> None:
    kernel = flat_kernel(make(), AVX512)
    scratch: list[Param] = []
    assert transpose_thin(kernel.nests[0], scratch, AVX512) == [kernel.nests[0]] and not scratch


def test_lanes_go_along_the_sum_and_the_long_operand_is_read_once() -> None:
    transposed, product = stages_of(flat_kernel(tensor(512, 256) @ tensor(256, 10), AVX512), AVX512).stages
    assert isinstance(transposed.plan, Plan) and isinstance(product.plan, Plan)
    assert lanes(product.plan) == 16 and [s.loops[:2] for s in product.plan.steps if isinstance(s, Order)] == [
        ("i0b", "i1b")]


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("m, n, k", [(512, 4, 512), (50, 15, 130), (33, 2, 64), (40, 7, 100)])
def test_on_the_cpu(m: int, n: int, k: int, dtype: str) -> None:
    random = np.random.default_rng(0)
    x, y = (Tensor(random.standard_normal(shape, np.float32), device="CPU").cast(dtype) for shape in ((m, k), (k, n)))
    a, b = x.float().numpy(), y.float().numpy()
    result = x.realize().matmul(y.realize(), dtype="float32").numpy()
    exact = a.astype(np.float64) @ b
    assert (np.abs(result - exact) <= 4e-7 * (np.abs(a) @ np.abs(b)) + 1e-7).all()


def cut(kernel: Kernel, target: Target) -> tuple[list[Index], list[Param]]:
    """Extents of the innermost variable of each nest, which compute what the one did; and the scratch memory."""
    scratch: list[Param] = []
    nests = cut_columns(kernel.nests[0], scratch, target)
    if len(nests) > 1:
        parts_equal_the_kernel(kernel, nests, scratch)
    return [extent(n.domain[-1]) for n in nests], scratch


@pytest.mark.parametrize("make, target, parts", [
    (lambda: tensor(64, 96) @ tensor(96, 49), AVX512, [48, 96, 1]),
    (lambda: tensor(64, 96) @ tensor(96, 49), AVX2, [48, 96, 1]),
    (lambda: tensor(40, 96) @ tensor(96, 35), TARGETS["half"], [32, 96, 3]),
    (lambda: tensor(784, 144) @ tensor(144, 40), AVX512, [32, 144, 8]),
    (lambda: tensor(784, 144) @ tensor(144, 40), TARGETS["half"], [40]),
    (lambda: tensor(64, 64) @ tensor(64, 48), AVX512, [48]),
    (lambda: tensor(64, 64) @ tensor(64, 13), AVX512, [13]),
    (lambda: tensor(64, 64) @ tensor(64, 13), TARGETS["neon"], [12, 64, 1]),
    (lambda: tensor(64, 20) @ tensor(20, 49), AVX512, [49]),
    (lambda: tensor(8, 96) @ tensor(96, 49), AVX512, [49]),
    (lambda: tensor(64, 96) @ tensor(96, 49), TARGETS["pocl"], [49]),
    (lambda: tensor(64, 96).relu() @ tensor(96, 49), AVX512, [48, 96, 1]),
    (lambda: tensor(96, 64).relu().transpose(0, 1) @ tensor(96, 49), AVX512, [48, 1]),
    (lambda: tensor(96, 64).transpose(0, 1) @ tensor(96, 49), AVX512, [48, 1]),
    (lambda: (tensor(64, 96) @ tensor(96, 49) + tensor(49)).relu() * tensor(64, 49), AVX512, [48, 96, 1]),
    (lambda: ((tensor(64, 96) @ tensor(96, 49) - tensor(64, 1)) * tensor(49)).exp().sin().cos() + tensor(49), AVX512,
     [48, 96, 1, 1]),
    (lambda: ((tensor(2, 64, 96) @ tensor(2, 96, 49)).exp() * tensor(49)).sin().cos().exp() + tensor(64, 1), AVX2,
     [48, 96, 1, 1]),
    (lambda: tensor(64, 96) @ (tensor(96, 49) + tensor(96, 1)).relu(), AVX512, [48, 96, 1]),
    (lambda: tensor(2, 40, 96) @ tensor(2, 96, 33), AVX512, [32, 96, 1]),
    (lambda: tensor(2, 96, 7, 7).conv2d(tensor(64, 96, 1, 1)), AVX512, [48, 96, 1]),
    (lambda: tensor(64, 96) @ tensor(96, 46).pad((1, 2)), AVX512, [48, 96, 1]),
])
def test_few_columns_that_are_left_are_dot_products(make: Callable[[], Tensor], target: Target, parts: list[int],
                                                    monkeypatch: pytest.MonkeyPatch) -> None:
    """As of planes of 7 x 7: whole vectors, the transposed operand, products of its rows, and what is made of these."""
    monkeypatch.setattr(cut_module, "UNIT_WORK", 1)
    extents, scratch = cut(flat_kernel(make(), target), target)
    assert extents == parts and len(scratch) == max(len(parts) - 2, 0)


@pytest.mark.parametrize("m, k, n, across, cut_off", [
    (110, 1407, 27, False, False), (110, 1407, 27, True, False), (90, 1438, 59, True, False),
    (512, 512, 49, False, True), (192, 672, 49, True, True), (80, 240, 196, False, True),
])
def test_columns_are_cut_off_where_that_takes_fewer_cycles(m: int, k: int, n: int, across: bool, cut_off: bool) -> None:
    """Of long sums dot products wait for memory; all the more where A lies across them."""
    a = tensor(k, m).transpose(0, 1) if across else tensor(m, k)
    nest, = flat_kernel(a @ tensor(k, n), AVX512).nests
    assert (len(cut_columns(nest, [], AVX512)) > 1) == cut_off
