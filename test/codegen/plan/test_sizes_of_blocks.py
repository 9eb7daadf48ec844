"""Blocks whose sizes are arguments: the numbers of the kernel, by one function for whole blocks and others."""
# Tests know their dims are ints.
# mypy: disable-error-code="arg-type"
from collections.abc import Callable

import numpy as np
import pytest
from support.golden_plans import TARGETS
from support.packed import AVX512, flat_kernel, tensor
from support.plan_reading import built
from support.plan_stage import product

from minigrad import Tensor
from minigrad.codegen.ir.interpret import interpret_function
from minigrad.codegen.ir.nodes import Alloc, Function
from minigrad.codegen.ir.verify import verify_function
from minigrad.codegen.ir.walk import statements
from minigrad.codegen.kernel.interpret import interpret_kernel
from minigrad.codegen.passes import stages_of
from minigrad.codegen.plan.sizes import LEAST_ROOM
from minigrad.codegen.plan.text import parse_plan

Make = Callable[[int, int, int], Tensor]

PLAN = """plan
  sizes i0 i1 r0 nn mm
  split i1 -> un nn by {n}, short
  split i0 -> um mm by {m}, short
  split mm -> i u by 2, back
  split nn -> j jj by 8, back
  split jj -> v l by 4, exact
  split r0 -> k t by 2, {edge}
  bind parallel um un
  bind vector l
  bind unroll t u v
  order um un i j l k t u v
  stage p1 at un as [j][r0][v][l]
"""
"""A product in units of work, its columns copied."""


def function_of(sizes: tuple[int, int, int], rows: int, columns: int) -> Function:
    """The loops for such units, which give the kernel's numbers."""
    kernel = product(*sizes)
    text = PLAN.format(m=rows, n=columns, edge="rest" if sizes[2] % 2 else "exact")
    function, dims = built(kernel, parse_plan(text))
    verify_function(function)
    rng = np.random.default_rng(0)
    arrays = {p.name: rng.integers(-8, 9, p.shape).astype(p.dtype.np) for p in kernel.params}
    expected = {name: a.copy() for name, a in arrays.items()}
    interpret_kernel(kernel, expected)
    interpret_function(function, arrays, {}, dims)
    np.testing.assert_array_equal(arrays["o0"], expected["o0"])
    return function


@pytest.mark.parametrize("depth", [6, 7])
def test_one_function_has_units_of_any_size(depth: int) -> None:
    """Of rows and columns that are whole blocks, whole tiles, neither, or fewer than a block has."""
    made = {function_of(sizes, rows, columns) for sizes, rows, columns in [
        ((8, 32, depth), 4, 16), ((9, 37, depth + 2), 4, 16), ((3, 9, depth), 2, 8), ((2, 8, depth + 4), 6, 24)]}
    assert len(made) == 1


def test_copies_have_memory_for_the_largest_of_similar_sizes() -> None:
    small, large = (function_of((2, 8, depth), 2, 8) for depth in (2, LEAST_ROOM // 8 + 2))
    (here,), (there,) = ([s.size for s in statements(f) if isinstance(s, Alloc) and s.name == "p1_staged"]
                         for f in (small, large))
    assert here == LEAST_ROOM and LEAST_ROOM + 16 <= there <= LEAST_ROOM * 1.25


def transposed(m: int, k: int, n: int) -> Tensor:
    return tensor(m, k) @ tensor(n, k).transpose(0, 1)


@pytest.mark.parametrize("shapes, make", [
    ([(512, 512, 512), (400, 512, 1024), (96, 512, 2048)], lambda m, k, n: tensor(m, k) @ tensor(k, n)),
    ([(512, 512, 512), (384, 640, 768), (100, 700, 704)], transposed),
    ([(96, 512, 1000), (48, 384, 960), (96, 640, 1000)], lambda m, k, n: tensor(m, k) @ tensor(2, k, n)),
], ids=["plain", "B transposed", "batch"])
def test_large_products_of_other_sizes_share_a_function(shapes: list[tuple[int, int, int]], make: Make) -> None:
    found = []
    for shape in shapes:
        stage, = stages_of(flat_kernel(make(*shape), AVX512), AVX512).stages
        assert stage.plan.pattern == "panels" and len(stage.dims) == len(stage.function.dims)
        found.append(stage.function)
    assert len(set(found)) == 1


@pytest.mark.parametrize("shape", [(64, 64, 64), (96, 96, 96)])
def test_products_that_gain_from_known_sizes_have_constants(shape: tuple[int, int, int]) -> None:
    m, k, n = shape
    stage, = stages_of(flat_kernel(tensor(m, k) @ tensor(k, n), AVX512), AVX512).stages
    assert not stage.function.dims


@pytest.mark.parametrize("make", [
    lambda m, n: tensor(m, n).sum(1), lambda m, n: tensor(m, n).sum(0), lambda m, n: tensor(m, n).softmax(1),
    lambda m, n: tensor(m, n) - tensor(m, n).mean(1, keepdim=True),
], ids=["rows", "columns", "softmax", "norm"])
def test_kernels_of_other_sizes_share_a_function(make: Callable[[int, int], Tensor]) -> None:
    """On processors, whoever compiles for them."""
    for target in (AVX512, TARGETS["pocl"]):
        first, second = ([s.function for s in stages_of(flat_kernel(make(*sizes), target), target).stages]
                         for sizes in ((96, 320), (120, 480)))
        assert first == second and all(f.dims for f in first)
    for stage in stages_of(flat_kernel(make(96, 320), TARGETS["gpu"]), TARGETS["gpu"]).stages:
        assert not stage.function.dims


@pytest.mark.parametrize("shape", [(384, 640, 768), (512, 512, 512)])
def test_copies_in_local_memory_are_no_larger_than_blocks(shape: tuple[int, int, int]) -> None:
    target = TARGETS["pocl"]
    for stage in stages_of(flat_kernel(transposed(*shape), target), target).stages:
        copies = [s.size for s in statements(stage.function) if isinstance(s, Alloc) and s.scope == "scratch"]
        assert copies and 4 * sum(copies) <= target.local_memory
