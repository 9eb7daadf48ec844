"""Warnings of `minigrad.explain`: for each a small program that has it, and a neighbour that has not."""
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from time import sleep
from typing import Any

import numpy as np
import pytest
from support.paths import DOCS

import minigrad
from minigrad import Tensor, config, jit
from minigrad.report.explained.machine_code import stack_moves
from minigrad.report.explained.report import Report, report_of
from minigrad.report.explained.rows import rows_of
from minigrad.report.explained.rules import RULES, named
from minigrad.report.explained.step import watched_call
from minigrad.report.explained.warnings import CURES, warnings_of
from minigrad.runtime.gpu_objects import Resources
from minigrad.runtime.simulated import Simulated

RNG = np.random.default_rng(0)


def tensor(*shape: int, dtype: str = "float32") -> Tensor:
    return Tensor(RNG.standard_normal(shape, np.float32), device="CPU").cast(dtype).realize()


def report(function: Callable[..., Any], *args: Any) -> Report:
    return report_of(watched_call(function, args, {}))


def of_kernels(function: Callable[..., Any], *args: Any) -> set[str]:
    """The warnings about its kernels, however little of the time they take."""
    return {name for row in report(function, *args).rows for name in named(row.facts)}


def of_step(function: Callable[..., Any], *args: Any) -> set[str]:
    return {w.name for w in report(function, *args).warnings}


@contextmanager
def card(name: str = "a100") -> Iterator[None]:
    with config(device=f"SIM:{name}"):
        yield


# ---- kernels on a processor ----


def test_values_that_lie_anywhere_are_a_gather() -> None:
    x = tensor(1 << 18)
    at = Tensor(RNG.integers(0, 1 << 18, 1 << 16).astype(np.int32), device="CPU").realize()
    assert "gather" in of_kernels(lambda: x[at].exp())
    assert "gather" not in of_kernels(lambda: x[:1 << 16].exp())


def test_columns_that_are_read_along_rows_are_a_gather() -> None:
    x = tensor(512, 512)
    assert "gather" in of_kernels(lambda: x.transpose().contiguous() * 2)
    assert "gather" not in of_kernels(lambda: x.contiguous() * 2)


def test_short_rows_are_narrow_vectors() -> None:
    def pairs(x: Tensor) -> Tensor:
        return (x.sin()[:, :, None] * x.cos()[:, None, :]).sum(1)

    few, many = tensor(1 << 14, 3), tensor(1 << 8, 64)
    assert "narrow-vectors" in of_kernels(lambda: pairs(few))
    assert "narrow-vectors" not in of_kernels(lambda: pairs(many))


def test_functions_of_what_a_product_reads_are_computed_again() -> None:
    x, w = tensor(128, 128), tensor(128, 128)
    assert "recompute" in of_kernels(lambda: (x.exp()[:, None, :] * w).sum(-1))
    assert "recompute" not in of_kernels(lambda: (x.exp().contiguous()[:, None, :] * w).sum(-1))


def test_functions_of_what_windows_share_are_computed_again() -> None:
    x, w = tensor(4, 64, 12, 12), tensor(64, 1, 5, 5)
    assert "recompute" in of_kernels(lambda: (x * x.sigmoid()).conv2d(w, stride=2, groups=64))
    assert "recompute" not in of_kernels(lambda: (x * x.sigmoid()).contiguous().conv2d(w, stride=2, groups=64))


def test_rows_that_workers_cannot_share_evenly_are_a_tail() -> None:
    three, four = tensor(3, 1 << 14), tensor(4, 1 << 14)
    with config(threads=2):
        assert "tail" in of_kernels(lambda: three.softmax(-1))
        assert "tail" not in of_kernels(lambda: four.softmax(-1))


def test_a_loop_over_few_rows_has_few_units() -> None:
    def states(steps: int, rows: int) -> set[str]:
        xs, h = tensor(steps, rows), tensor(rows)
        return of_kernels(lambda: minigrad.scan(lambda h, x: ((h + x).tanh(), h), h, xs)[0])

    with config(threads=2):
        assert "few-units" in states(1 << 13, 16)
        assert "few-units" not in states(64, 1 << 13)


def test_results_that_are_wider_than_what_is_given_are_an_upcast() -> None:
    x, y = tensor(256, 256, dtype="float16"), tensor(256, 256)
    assert "upcast" in of_kernels(lambda: (x + 1).cast("float32"))
    assert "upcast" not in of_kernels(lambda: x + 1)
    assert "upcast" in of_kernels(lambda: (y.cast("float64") * 2).cast("float32"))
    assert "upcast" not in of_kernels(lambda: y * 2)


def test_a_small_result_in_a_wider_type_is_no_upcast() -> None:
    x = tensor(256, 256, dtype="float16")
    assert "upcast" not in of_kernels(lambda: x.cast("float32").sum(-1))


def test_a_tile_that_has_more_sums_than_there_are_registers_spills() -> None:
    x, w = tensor(256, 512), tensor(512, 512)
    planned = minigrad.plans.of(x @ w)
    (name, text), = planned.items()
    rows = next(line for line in text.splitlines() if line.startswith("  split i0"))
    for count, spills in ((2, False), (32, True)):
        with minigrad.plans({name: text.replace(rows, f"{rows.rpartition('by ')[0]}by {count}, back")}):
            assert ("spill" in of_kernels(lambda: x @ w)) == spills


LOOP = """f:
\tmovq\t%rsp, {frame}
\tvmovups\t%zmm1, 64(%rsp)
.LBB0_1:
\tvmovups\t(%rdi), %zmm2
.LBB0_2:
\tvfmadd231ps\t{inner}, %zmm0, %zmm3
\tjne\t.LBB0_2
\tjmp\t.LBB0_1
"""


@pytest.mark.parametrize("inner, frame, moves", [
    ("64(%rsp)", "%rax", 1), ("64(%rbp)", "%rax", 0), ("64(%rbp)", "%rbp", 1), ("%zmm1", "%rbp", 0)])
def test_moves_to_the_stack_count_in_innermost_loops(inner: str, frame: str, moves: int) -> None:
    """%rbp may point anywhere, unless it was made from the stack's."""
    assert stack_moves(LOOP.format(inner=inner, frame=frame)) == (moves, 1)


# ---- kernels on a GPU ----


def test_what_a_card_reads_apart_is_a_gather() -> None:
    with card():
        x = Tensor.randn(2048, 2048).realize()
        assert "gather" in of_kernels(lambda: x.transpose().contiguous())
        assert "gather" not in of_kernels(lambda: x + 1)


def test_fewer_groups_than_units_are_few_units() -> None:
    with card():
        x, w = Tensor.randn(1024, 1024).realize(), Tensor.randn(8192, 1024).realize()
        assert "few-units" in of_kernels(lambda: x @ x)
        assert "few-units" not in of_kernels(lambda: w @ x)


def test_a_round_that_few_groups_are_left_for_is_a_tail() -> None:
    with card("rtx3060"):
        x, w = Tensor.randn(1024, 1024).realize(), Tensor.randn(7168, 1024).realize()
        assert "tail" in of_kernels(lambda: x @ x)
        assert "tail" not in of_kernels(lambda: w @ x)


@pytest.mark.parametrize("registers, spills, name", [(255, 0, "low-occupancy"), (64, 12, "spill")])
def test_what_a_compiler_says_of_registers(monkeypatch: pytest.MonkeyPatch, registers: int, spills: int, name: str
                                           ) -> None:
    with card():
        x = Tensor.randn(4096, 2048).realize()
        assert name not in of_kernels(lambda: x + 1)
        monkeypatch.setattr(Simulated, "resources", Resources(registers, 0, spills, 0, 0, 64, 32), raising=False)
        monkeypatch.setattr(Simulated, "compiled", property(lambda _: (registers, spills)))
        assert name in of_kernels(lambda: x + 1)


# ---- steps ----


def test_launches_that_take_as_long_as_their_kernels_are_launch_bound() -> None:
    with card():
        x, small = Tensor.randn(4096, 4096).realize(), Tensor.randn(16, 16).realize()
        assert "launch-bound" in of_step(lambda: [(small + k).contiguous() for k in range(8)])
        assert "launch-bound" not in of_step(lambda: x @ x)


def test_a_step_that_waits_for_python_is_host_bound() -> None:
    x = tensor(64)

    def slow() -> Tensor:
        sleep(0.02)
        return (x + 1).realize()

    found = report(slow)
    assert "host-bound" in {w.name for w in found.warnings}
    quick = replace(found.step, wall=1.1 * found.kernels)
    assert "host-bound" not in {w.name for w in warnings_of(quick, rows_of(quick), 1.1 * found.kernels)}


def test_copies_between_devices_are_counted_with_their_bytes() -> None:
    x, there = tensor(1000), tensor(1000).to("NUMPY").realize()
    moved, = [w for w in report(lambda: x + there.to("CPU")).warnings if w.name == "copy-between-devices"]
    assert "1 copy" in moved.text and "NUMPY to CPU" in moved.text
    assert "copy-between-devices" not in of_step(lambda: x + 1)


def test_a_number_that_changes_from_call_to_call_is_captured_again() -> None:
    x, calls = tensor(1000), iter(range(10_000))
    scaled = jit(lambda factor: x * factor, limit=100)
    assert "captured-again" in of_step(lambda: scaled(next(calls) + 0.5))
    assert "captured-again" not in of_step(lambda: scaled(2.0))


# ---- all of them ----


def test_each_warning_has_a_cure_and_a_section_of_the_page() -> None:
    page = (DOCS / "warnings.md").read_text(encoding="utf-8")
    sections = {line.removeprefix("## ") for line in page.splitlines() if line.startswith("## ")}
    assert set(RULES) <= set(CURES) == sections
