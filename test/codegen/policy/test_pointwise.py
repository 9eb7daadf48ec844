"""Elementwise kernels whose accesses follow different variables: their loops, and their numbers beside numpy."""
import numpy as np
import pytest
from support.packed import AVX2, AVX512, flat_kernel, tensor
from support.plan_reading import lanes

from minigrad import Tensor
from minigrad.codegen.cost.counts import counts
from minigrad.codegen.passes import stages_of
from minigrad.codegen.plan.steps import Order, Plan, resolve
from minigrad.codegen.plan.text import parse_plan
from minigrad.target import Target


def plan_of(x: Tensor, target: Target) -> Plan:
    stage, = stages_of(flat_kernel(x, target), target).stages
    assert isinstance(stage.plan, Plan) and stage.plan.pattern == "pointwise"
    return stage.plan


@pytest.mark.parametrize("target", [AVX2, AVX512], ids=["avx2", "avx512"])
@pytest.mark.parametrize("rows, columns", [(512, 512), (1024, 1000), (2048, 300)])
def test_a_transpose_goes_by_whole_lines(rows: int, columns: int, target: Target) -> None:
    """Of the two variables along which an access follows its neighbours, one is across lanes and the other one the loop
    around these: lines are used up before they leave the cache."""
    plan = plan_of(tensor(rows, columns).transpose(0, 1) + 1.0, target)
    order = next(s for s in plan.steps if isinstance(s, Order)).loops
    across, inner = ("i0", "i1") if order[-2] == "i1" else ("i1", "i0")
    assert lanes(plan) >= 4 and order == (f"{across}b", inner, "l")


@pytest.mark.parametrize("width, expected", [(16, 16), (31, 8), (64, 16), (67, 16)])
def test_what_one_variable_goes_along_is_across_lanes(width: int, expected: int) -> None:
    """By vectors that leave the fewest elements: 31 = 3 * 8 + 7."""
    plan = plan_of(tensor(40, width) * tensor(width), AVX512)
    assert lanes(plan) == expected and next(s for s in plan.steps if isinstance(s, Order)).loops[0] == "i0"


def test_runs_that_lie_far_apart_are_waited_for() -> None:
    """Rows that are read element by element: as many runs as elements, where lines are gone before their rest is read;
    with the other variable outside as many as lines."""
    kernel = flat_kernel(tensor(2048, 1024).transpose(0, 1) + 1.0, AVX512)
    nest, = kernel.nests
    text = "plan pointwise\n  split {0} -> {0}b l by 8, exact\n  bind vector l\n  order {1} l"
    by_rows, by_lines = (counts(resolve(nest, parse_plan(text.format("i1", order))), AVX512).far_runs
                         for order in ("i0 i1b", "i1b i0"))
    assert by_rows > 2048 * 1024 and by_lines < by_rows / 7


@pytest.mark.parametrize("shape, axes", [
    ((37, 41), (1, 0)), ((5, 64, 48), (0, 2, 1)), ((3, 17, 19, 5), (0, 3, 1, 2)), ((2, 16, 9, 33), (0, 2, 3, 1)),
    ((9, 7, 31, 3), (2, 1, 0, 3)), ((256, 128), (1, 0)), ((1, 33, 1, 65), (3, 2, 1, 0))])
@pytest.mark.parametrize("dtype", ["float32", "float16", "int8", "float64"])
def test_numbers_of_permuted_values(shape: tuple[int, ...], axes: tuple[int, ...], dtype: str) -> None:
    x = np.random.default_rng(1).integers(-50, 50, shape).astype(dtype)
    y = np.random.default_rng(2).integers(-5, 5, [shape[a] for a in axes]).astype(dtype)
    assert np.array_equal((Tensor(x).permute(*axes) + Tensor(y)).numpy(), x.transpose(axes) + y)
    assert np.array_equal((Tensor(x).permute(*axes).flip(0) * 2).numpy(), x.transpose(axes)[::-1] * 2)
