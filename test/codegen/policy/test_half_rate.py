"""Processors that begin one multiply-add of whole vectors per cycle: their tiles, panels and streams."""
from dataclasses import replace

import pytest
from support.packed import AVX2, AVX512, tensor
from support.panels import planned, product
from support.plan_reading import copies
from support.stream import computes, last_kernel, panels, streamed

from minigrad import Tensor
from minigrad.codegen.ir.nodes import Prefetch
from minigrad.codegen.ir.walk import statements
from minigrad.codegen.machines.machine import machine
from minigrad.codegen.panels import panelled
from minigrad.codegen.plan.steps import Plan, Split
from minigrad.target import Target

HALF = replace(AVX512, name="half", cpu="znver4")


def test_which_processors_those_are() -> None:
    """Units of a Zen 4 have 32 bytes each."""
    targets = HALF, AVX512, AVX2, replace(HALF, vector_bytes=32, registers=16)
    assert [machine(t).declared.fma_per_cycle for t in targets] == [1, 2, 2, 2]


def tile(m: int, n: int, k: int, target: Target) -> dict[str, int]:
    """Sizes of the splits of a product's plan, by the loop that blocks run in."""
    _, found = planned(product(m, n, k, target), target)
    return {s.outer: s.size for s in found.steps if isinstance(s, Split)}


@pytest.mark.parametrize("n, width", [(24, 8), (40, 8), (64, 16)])
def test_columns_that_are_odd_halves_of_vectors(n: int, width: int) -> None:
    """They have tiles of such halves, two of which begin in a cycle."""
    assert tile(784, n, 144, HALF)["v"] == width and tile(784, n, 144, AVX512)["v"] == 16


def test_eight_sums_in_flight_are_enough() -> None:
    found = tile(12544, 16, 32, HALF)
    assert found["i"] * found["j"] // found["v"] >= 4


@pytest.mark.parametrize("rows, columns, at_once, ahead", [
    (8, 128 * 16, 2, 4096), (4, 128 * 16, 4, 0), (16, 128 * 16, 2, 4096), (8, 97 * 16, 3, 4096), (2, 96 * 16, 4, 0),
])
def test_tiles_of_a_stream_leave_no_panels(rows: int, columns: int, at_once: int, ahead: int) -> None:
    """As many panels at a time as divide all of them, if sums are enough; prefetched where rows are many."""
    stage = streamed(last_kernel(tensor(rows, 512) @ panels(columns, 512).transpose(), HALF), HALF)
    assert isinstance(stage.plan, Plan) and copies(stage.plan)["i1"] == at_once
    assert [a.by for a in stage.plan.ahead] == ([ahead] if ahead else [])
    fetches = [s for s in statements(stage.function) if isinstance(s, Prefetch)]
    assert {s.buffer for s in fetches} == ({"p1"} if ahead else set())


@pytest.mark.parametrize("rows, long, short", [(1, 4, 8), (2, 4, 8), (3, 6, 6)])
def test_few_rows_read_few_long_streams(rows: int, long: int, short: int) -> None:
    kernel = last_kernel(tensor(rows, 512) @ panels(96 * 16, 512).transpose(), HALF)
    found = [streamed(kernel, replace(HALF, host=host)).plan for host in ("znver4", "tigerlake")]
    assert [copies(plan)["i1" if rows > 1 else "i0"] for plan in found] == [long, short]


@pytest.mark.parametrize("result", [
    lambda: (tensor(2, 70) @ panels(98 * 16, 70).transpose()).relu(),
    lambda: tensor(8, 18) @ panels(97 * 16, 18).transpose(), lambda: tensor(9, 26) @ panels(160, 26).transpose(),
    lambda: (tensor(1, 80) @ panels(96, 80).transpose() + tensor(96)).relu(),
    lambda: tensor(8, 33) @ panels(128, 33, 32).transpose(),
])
def test_streams_equal_the_kernel(result) -> None:
    kernel = last_kernel(result(), HALF)
    computes(streamed(kernel, HALF), kernel, -8.0)


def test_one_row_reads_a_constant_in_panels() -> None:
    for target, packs in ((HALF, True), (AVX512, False)):
        kernel = last_kernel(Tensor.zeros(1, 512).contiguous() @ tensor(512, 512), target)
        assert (panelled(kernel, frozenset({"p0", "p1"}), target) is not None) is packs
