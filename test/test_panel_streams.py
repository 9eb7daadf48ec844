"""Products of few rows in panels: a large matrix in place is streamed."""
from dataclasses import replace

import pytest
from test_packed import AVX2, AVX512, TINY, equal_the_kernel, flat_kernel, tensor
from test_panels import planned, shared_equals_the_kernel

from minigrad.codegen.ir.nodes import Prefetch
from minigrad.codegen.ir.text import parse_function, print_function
from minigrad.codegen.ir.walk import statements
from minigrad.codegen.render.llvm import render_llvm
from minigrad.codegen.stages import stages_of
from minigrad.codegen.strategies.build_panels import build_panels
from minigrad.codegen.strategies.panel_form import LEAST_NEAR
from minigrad.codegen.strategies.panels import plan
from minigrad.codegen.strategies.plan import PanelPlan


def test_streamed_rows_are_fetched_a_block_ahead() -> None:
    stage = stages_of(flat_kernel(tensor(8, 2048) @ tensor(2048, 1024), AVX512), AVX512).stages[0]
    assert isinstance(stage.plan, PanelPlan)
    fetches = [s for s in statements(stage.function) if isinstance(s, Prefetch) and s.far]
    assert len(fetches) == stage.plan.vectors and {s.buffer for s in fetches} == {"p1"}
    assert "prefetch_far p1[" in print_function(stage.function)
    assert parse_function(print_function(stage.function)) == stage.function
    assert "i32 0, i32 2, i32 1" in render_llvm(stage.function, AVX512).source


@pytest.mark.parametrize("product", [
    lambda: tensor(1, 40) @ tensor(40, 70), lambda: (tensor(40) @ tensor(40, 64) + tensor(64)).relu(),
], ids=["a row", "a vector"])
def test_a_row_times_a_large_matrix_streams_it(product, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: ANN001
    """A matrix that stays near is for `contraction`."""
    kernel = flat_kernel(product(), TINY)
    made = planned(kernel, TINY, monkeypatch)
    assert made.block_k < 40 and (made.rows, made.vectors) == (1, 4)
    equal_the_kernel(kernel, [build_panels(kernel, kernel.nests[0], made, "panels")])
    shared_equals_the_kernel(kernel, made)
    assert "stays near" in str(plan(kernel.nests[0], AVX2))


@pytest.mark.parametrize("rows", [9, 12, 16, 17, 20])
def test_squares_of_a_end_within_its_memory(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of 24 steps are turned in squares of 16: the last one stores 8 steps that the next block has."""
    near = replace(AVX512, l1=1 << 11, l2=6 << 10)
    kernel = flat_kernel(tensor(rows, 77) @ tensor(77, 64), near)
    made = planned(kernel, near, monkeypatch)
    assert made.a == "turned" and made.block_k % made.width
    equal_the_kernel(kernel, [build_panels(kernel, kernel.nests[0], made, "panels")])
    shared_equals_the_kernel(kernel, made)


@pytest.mark.parametrize("n, k", [(112, 480), (112, 112)])
def test_wide_tiles_meet_blocks_of_k_that_stay_near(n: int, k: int) -> None:
    """Where they would wait for rows of B from the second-level cache; each of those comes once for many rows."""
    stage = stages_of(flat_kernel(tensor(130, k) @ tensor(k, n), AVX512), AVX512).stages[0]
    made = stage.plan
    assert isinstance(made, PanelPlan) and made.b == "place" and made.vectors == 7 and made.unit_m >= 6 * made.rows
    assert LEAST_NEAR <= made.block_k < k and made.block_k * made.columns * 4 <= AVX512.l1
    fetches = [s for s in statements(stage.function) if isinstance(s, Prefetch) and s.far]
    assert len(fetches) == 1  # a vector of each row, as many rows of tiles share a block


def test_near_blocks_equal_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = flat_kernel((tensor(19, 70) @ tensor(70, 32) + tensor(32)).relu(), AVX2)
    made = replace(planned(kernel, AVX2, monkeypatch), a="place", b="place", block_k=36)
    equal_the_kernel(kernel, [build_panels(kernel, kernel.nests[0], made, "panels")])
    shared_equals_the_kernel(kernel, made)


def test_a_sum_in_near_blocks_is_cut_into_parts_where_tiles_are_few() -> None:
    assert len(stages_of(flat_kernel(tensor(40, 2048) @ tensor(2048, 112), AVX512), AVX512).stages) == 2


@pytest.mark.parametrize("columns, wide", [(2048, 1024), (700, 384), (500, 512)])
def test_a_streamed_matrix_is_shared_out_by_columns(columns: int, wide: int) -> None:
    made = plan(flat_kernel(tensor(1, 4096) @ tensor(4096, columns), AVX512).nests[0], AVX512)
    assert isinstance(made, PanelPlan) and made.unit_n == wide
