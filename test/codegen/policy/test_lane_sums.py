"""Rows times a matrix whose rows lie along the sum: lanes go along it, and rows of a narrow type are fetched a tile
ahead."""
# Tests know their dims are ints.
# mypy: disable-error-code="arg-type"
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest
from support.packed import AVX2 as ZEN3
from support.packed import AVX512, NEON, arguments, equal_the_kernel, flat_kernel, rng, tensor
from support.plan_reading import copies, lanes

from minigrad import Tensor
from minigrad.codegen.ir.interpret import interpret_function
from minigrad.codegen.ir.nodes import Function, Loop, Prefetch, Store
from minigrad.codegen.ir.walk import statements
from minigrad.codegen.kernel.nodes import Kernel
from minigrad.codegen.plan.build import build
from minigrad.codegen.plan.sizes import with_sizes
from minigrad.codegen.plan.steps import Ahead, Order, Parts, Plan, Split
from minigrad.codegen.plan.text import parse_plan
from minigrad.codegen.policy.contraction import way
from minigrad.codegen.render.llvm import render_llvm
from minigrad.errors import present
from minigrad.expr import evaluate, variables
from minigrad.target import Target

AVX2 = replace(ZEN3, cpu="x86-64-v3")


def halves(*shape: int) -> Tensor:
    return tensor(*shape).cast("float16").contiguous().realize()


def product(m: int, n: int, k: int, dtype: str) -> Kernel:
    """[m, k] times the rows of a matrix [n, k] of another type, m = 0: one vector."""
    w = Tensor(rng.integers(-9, 10, (n, k)).astype(np.float32), device="CPU").cast(dtype).contiguous().realize()
    x = tensor(m, k) if m else tensor(k)
    return flat_kernel(x @ w.transpose(0, 1), AVX512)


def planned(kernel: Kernel, target: Target) -> Plan:
    """The plan of the most promising tile of several sums."""
    in_place = present(way(kernel.nests[0], target), "no operand is used several times")
    tile = next(tile for _, (tile, _) in in_place.choices if tile)
    nest, plan = in_place.made((tile, True), target)
    assert "r0l" in plan.bound("vector")
    return with_sizes(nest, plan)


def without(plan: Plan, kind: type) -> Plan:
    """The plan without steps of a kind."""
    return replace(plan, steps=tuple([s for s in plan.steps if not isinstance(s, kind)]))


def line(plan: Plan) -> int:
    """Vectors of the sum for which one line is prefetched; 0 where nothing is."""
    vectors = plan.split("r0b")
    return 0 if not plan.ahead else 1 if vectors is None else vectors.size


def apart(plan: Plan) -> str:
    """The variable whose copies each go through a part of it; or ''."""
    return next((s.loop for s in plan.steps if isinstance(s, Split) and s.into), "")


def fetches(function: Function) -> list[Prefetch]:
    return [s for s in statements(function) if isinstance(s, Prefetch)]


def equal_unrolled(functions: Sequence[Function], given: Mapping[str, np.ndarray]) -> None:
    """Two functions give the same bits, and not zeros alone, as they run."""
    found = []
    for function in functions:
        arrays = {name: a.copy() for name, a in given.items()}
        interpret_function(function, arrays, {})
        found.append(arrays["o0"])
    assert found[0].any() and found[0].tobytes() == found[1].tobytes()


@pytest.mark.parametrize("target", [AVX512, AVX2, NEON], ids=lambda t: t.name)
@pytest.mark.parametrize("m, n, k, dtype", [
    (0, 30, 64, "float16"), (1, 26, 70, "bfloat16"), (3, 13, 80, "float16"), (5, 9, 64, "bfloat16"),
    (0, 19, 211, "int8"),
])
def test_fetching_the_next_tile_changes_no_bit(m: int, n: int, k: int, dtype: str, target: Target) -> None:
    """Sums are added up in the same order, whether whole lines are taken or single vectors are left."""
    kernel = product(m, n, k, dtype)
    plan = planned(kernel, target)
    width = lanes(plan)
    arrays_of = arguments(kernel)
    assert line(plan) == 64 // (width * (1 if dtype == "int8" else 2)) and parse_plan(str(plan)) == plan
    assert not any(isinstance(s, Parts) for s in plan.steps)
    functions = [build(kernel, kernel.nests[0], p, "rows") for p in (plan, without(plan, Ahead))]
    equal_the_kernel(kernel, functions[:1])
    equal_unrolled(functions, arrays_of)


def test_rows_of_the_next_tile_are_fetched_line_by_line() -> None:
    kernel = product(0, 60, 128, "float16")
    plan = planned(kernel, AVX512)
    function = build(kernel, kernel.nests[0], plan, "rows")
    fetch, = fetches(function)
    rows, k = copies(plan)["i0"], 128
    assert fetch.buffer == "p1" and not fetch.far
    assert not fetches(build(kernel, kernel.nests[0], without(plan, Ahead), "rows"))
    assert {v.name for v in variables(fetch.offset)} == {"i0b", "u", "r0k"}
    for tile, row, step in (0, 0, 0), (2, 1, 3):
        at = {"i0b": tile, "u": row, "r0k": step}
        assert evaluate(fetch.offset, at) == ((tile + 1) * rows + row) * k + 32 * step
    assert "i32 0, i32 3, i32 1" in render_llvm(function, AVX512).source


def test_products_of_one_row_with_several_matrices_fetch_all_of_them() -> None:
    """As a gated layer's: one kernel with two sums."""
    x, gate, up = tensor(70), halves(14, 70), halves(14, 70)
    kernel = flat_kernel((x @ gate.transpose(0, 1)).silu() * (x @ up.transpose(0, 1)), AVX512)
    plan = planned(kernel, AVX512)
    function = build(kernel, kernel.nests[0], plan, "gated")
    assert line(plan) == 2 and {s.buffer for s in fetches(function)} == {"p1", "p2"}
    equal_the_kernel(kernel, [function])


@pytest.mark.parametrize("result, ahead", [
    (lambda: tensor(1, 1500) @ tensor(900, 1500).transpose(0, 1), 0),
    (lambda: tensor(1, 600) @ tensor(300, 600).transpose(0, 1), 0),
    (lambda: tensor(1, 600) @ tensor(900, 600).transpose(0, 1), 1),
    (lambda: tensor(1, 600) @ halves(4, 600).transpose(0, 1), 0),
    (lambda: tensor(9, 600) @ halves(300, 600).transpose(0, 1), 2),
    (lambda: tensor(3, 1, 600) @ halves(3, 300, 600).transpose(1, 2), 0),
], ids=["long rows of float32", "in a cache", "short rows", "one tile", "float16", "a batch"])
def test_matrices_that_stream_past_are_fetched(result: Callable[[], Tensor], ahead: int) -> None:
    assert line(planned(flat_kernel(result(), AVX512), AVX512)) == ahead


@pytest.mark.parametrize("target", [AVX512, AVX2, NEON], ids=lambda t: t.name)
@pytest.mark.parametrize("m, n, k, dtype", [
    (0, 30, 64, "float16"), (1, 26, 70, "bfloat16"), (2, 22, 40, "int8"),
    (5, 9, 64, "float16"), (0, 4, 33, "float32"), (0, 5, 80, "float16"),
])
def test_rows_apart_change_no_bit(m: int, n: int, k: int, dtype: str, target: Target) -> None:
    """Each copy of a tile goes through a part of the rows; where the last part reaches back, all are stored once."""
    kernel = product(m, n, k, dtype)
    plan = planned(kernel, replace(target, host="znver4"))
    split = next(s for s in plan.steps if isinstance(s, Split) and s.into)
    side = replace(split, outer=split.inner, inner=split.outer, into=False)
    beside, arrays_of = replace(plan, steps=tuple([side if s is split else s for s in plan.steps])), arguments(kernel)
    outermost = next(s.loops[0] for s in plan.steps if isinstance(s, Order))
    assert outermost in (split.outer, split.inner) and split.size > 1 and not plan.ahead
    assert parse_plan(str(plan)) == plan
    functions = [build(kernel, kernel.nests[0], p, "rows") for p in (plan, beside)]
    equal_the_kernel(kernel, functions[:1])
    equal_unrolled(functions, arrays_of)


def test_rows_apart_are_parts_of_all() -> None:
    """11 rows in 4 tiles of 3: the last part is that of rows 7 to 10, of which row 7 is also of the part before."""
    kernel = product(0, 11, 64, "float16")
    plan = planned(kernel, replace(AVX512, host="znver4"))
    function = build(kernel, kernel.nests[0], plan, "rows")
    loop, = (s for s in statements(function) if isinstance(s, Loop) and s.kind == "parallel")
    assert copies(plan) == {"i0": 3} and loop.stop == 4
    stored, = (s for s in statements(function) if isinstance(s, Store) and s.buffer == "o0")
    rows = [[evaluate(stored.offset, {v: tile if v.name == "i0b" else u for v in variables(stored.offset)})
             for tile in range(4)] for u in range(3)]
    assert not stored.conditions and rows == [[0, 1, 2, 3], [4, 5, 6, 7], [7, 8, 9, 10]]


def test_tiles_of_rows_apart_are_a_few_streams() -> None:
    """Of all matrices together, unless there are so many rows of x that their products cost more."""
    target = replace(AVX512, host="znver4")
    x = tensor(70)
    gated = flat_kernel((x @ halves(14, 70).transpose(0, 1)).silu() * (x @ halves(14, 70).transpose(0, 1)), AVX512)
    kernels = product(0, 60, 64, "float32"), gated, product(4, 60, 64, "float16")
    plans = [planned(kernel, target) for kernel in kernels]
    assert [copies(plan)[apart(plan)] for plan in plans] == [3, 2, 4]
    joined = Tensor.cat(*[tensor(50, 64) for _ in range(3)], dim=1)
    beside = flat_kernel(joined @ tensor(2, 192).transpose(0, 1), target)
    assert apart(planned(beside, target)) == ""  # one row of each is three streams
    equal_the_kernel(beside, [build(beside, beside.nests[0], planned(beside, target), "beside")])
    batch = flat_kernel(tensor(3, 1, 600) @ halves(3, 300, 600).transpose(1, 2), AVX512)
    assert not apart(planned(batch, target))
