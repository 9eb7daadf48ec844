"""Processors that begin one multiply-add of whole vectors per cycle: their tiles, panels and streams."""
from dataclasses import replace

import pytest
from plan_reading import copies
from test_packed import AVX2, AVX512, equal_the_kernel, flat_kernel, tensor
from test_panels import planned, shared_equals_the_kernel, wide
from test_stream import computes, last_kernel, panels, streamed

from minigrad import Tensor
from minigrad.codegen.cost.machine import machine
from minigrad.codegen.ir.nodes import Prefetch
from minigrad.codegen.ir.walk import statements
from minigrad.codegen.panels import panelled
from minigrad.codegen.render.llvm import render_llvm
from minigrad.codegen.strategies.build_panels import build_panels
from minigrad.codegen.strategies.panels import plan
from minigrad.codegen.strategies.plan import PanelPlan, Plan
from minigrad.target import Target

HALF = replace(AVX512, name="half", cpu="znver4")
CODE = replace(HALF, features=HALF.features | {"sse"})


def test_which_processors_those_are() -> None:
    """Units of a Zen 4 have 32 bytes each."""
    targets = HALF, AVX512, AVX2, replace(HALF, vector_bytes=32, registers=16)
    assert [machine(t).declared.fma_per_cycle for t in targets] == [1, 2, 2, 2]


def made(m: int, n: int, k: int, target: Target) -> PanelPlan:
    found = plan(flat_kernel(tensor(m, k) @ tensor(k, n), target).nests[0], target)
    assert isinstance(found, PanelPlan), found
    return found


@pytest.mark.parametrize("m", [49, 96, 196])
def test_rows_of_b_in_place_come_in_time(m: int) -> None:
    """B is larger than the second-level cache, and used less often than packing it takes."""
    sizes = m, 1280, 640
    assert made(*sizes, HALF).b == "place" and made(*sizes, AVX512).b == "panels"


def test_large_products_pack_b() -> None:
    assert made(1024, 1024, 1024, HALF).b == "panels"


def test_a_tile_of_one_vector_needs_no_pairs() -> None:
    """Eight sums are enough in flight."""
    whole, pairs = (made(12544, 16, 32, target) for target in (HALF, AVX512))
    assert (whole.rows, whole.vectors, whole.group) == (8, 1, 1) and pairs.group == 2


@pytest.mark.parametrize("n, width, group", [(24, 8, 1), (40, 8, 1), (32, 16, 1), (72, 16, 2)])
def test_columns_that_are_odd_halves_of_vectors(n: int, width: int, group: int) -> None:
    """They have tiles of such halves, two of which begin in a cycle."""
    found = made(784, n, 144, HALF)
    assert (found.width, found.group) == (width, group) and made(784, n, 144, AVX512).width == 16


def test_short_sums_write_long_runs() -> None:
    wide_tile, usual = made(512, 512, 4, HALF), made(512, 512, 12, HALF)
    assert (wide_tile.rows, wide_tile.vectors) == (2, 8) and usual.vectors < 8
    assert made(512, 512, 4, AVX512).vectors < 8 and made(512, 500, 4, HALF).vectors < 8
    alone = made(512, 512, 4, replace(HALF, units=1))
    assert (alone.rows, alone.vectors) == (8, 2) and made(4, 4096, 4, replace(HALF, units=1)).rows == 2


@pytest.mark.parametrize("columns, vectors", [(2048, 8), (1280, 8), (1040, 8), (1152, 8)])
def test_one_row_streams_long_runs(columns: int, vectors: int) -> None:
    found = made(1, columns, 2048, HALF)
    assert (found.rows, found.vectors, found.block_k) == (1, vectors, 8)


@pytest.mark.parametrize("product", [
    lambda: tensor(19, 23) @ tensor(23, 16), lambda: (tensor(50, 12) @ tensor(12, 24) + tensor(24)).relu(),
    lambda: (tensor(51, 9) @ tensor(9, 40)).relu(), lambda: wide(50, 7) @ wide(7, 12),
    lambda: tensor(19, 6) @ tensor(6, 128) + tensor(128),
    lambda: tensor(3, 49, 10) @ tensor(3, 10, 24), lambda: tensor(33, 13).transpose(0, 1) @ tensor(33, 21),
    lambda: tensor(13, 33) @ tensor(21, 33).transpose(0, 1),
])
def test_products_equal_the_kernel(product, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: ANN001
    kernel = flat_kernel(product(), HALF)
    chosen = planned(kernel, HALF, monkeypatch)
    equal_the_kernel(kernel, [build_panels(kernel, kernel.nests[0], chosen, "panels")])
    if chosen.group == 1:
        shared_equals_the_kernel(kernel, chosen)


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
def test_streams_equal_the_kernel(result) -> None:  # noqa: ANN001
    kernel = last_kernel(result(), HALF)
    computes(streamed(kernel, HALF), kernel, -8.0)


def test_one_row_reads_a_constant_in_panels() -> None:
    for target, packs in ((HALF, True), (AVX512, False)):
        kernel = last_kernel(Tensor.zeros(1, 512).contiguous() @ tensor(512, 512), target)
        assert (panelled(kernel, frozenset({"p0", "p1"}), target) is not None) is packs


def test_sums_begin_with_their_first_products() -> None:
    """Not of few rows, which a stream may replace that begins with zeros, nor where blocks of K add to what is kept."""
    assert made(50, 48, 24, HALF).begun and made(50, 24, 24, HALF).begun
    assert not made(16, 48, 24, HALF).begun and not made(50, 48, 24, AVX512).begun
    assert not made(1024, 1024, 4096, HALF).begun


def test_a_tile_loads_its_first_row_itself() -> None:
    """What panels of B share is not kept in registers, or on the stack, from one of them to the next."""
    kernel = flat_kernel(tensor(512, 24) @ tensor(24, 144), HALF)
    text = render_llvm(build_panels(kernel, kernel.nests[0], made(512, 144, 24, HALF), "panels"), CODE).source
    before, _, tile = text.partition("asm sideeffect")
    assert "load float" not in before and "load <" not in before  # but arguments
    assert tile.count("load float") == 2 * made(512, 144, 24, HALF).rows


@pytest.mark.parametrize("n, few", [(24, True), (40, True), (48, False)])
def test_factors_of_half_vectors_are_in_the_first_registers(n: int, few: bool) -> None:
    """Instructions that name no others are shorter; those of whole vectors never are."""
    kernel, chosen = flat_kernel(tensor(512, 96) @ tensor(96, n), HALF), made(512, n, 96, HALF)
    text = render_llvm(build_panels(kernel, kernel.nests[0], chosen, "panels"), CODE).source
    assert text.count('asm "", "=x,0"') == (chosen.rows + chosen.vectors if few else 0)
