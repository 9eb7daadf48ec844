"""`reduce`: planted faults become programs of a few operations, which print as tests; what is right is left alone."""
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from minigrad import Tensor, config, jit, nn
from minigrad.codegen.ir.nodes import Function
from minigrad.codegen.ir.text import parse_function, print_function
from minigrad.codegen.render.llvm import render_llvm
from minigrad.dtype import float16, float32
from minigrad.engine import compile as compiling
from minigrad.engine.compiled import forget_plans
from minigrad.engine.observe import dry_runs
from minigrad.errors import present
from minigrad.graph import autodiff
from minigrad.ops import build as B
from minigrad.ops.elementwise import ADD, EXP, MAXIMUM, MUL, SUB, TANH
from minigrad.optim import SGD
from minigrad.program import Program as Source
from minigrad.report.reduced.judge import difference, gradient_difference
from minigrad.report.reduced.program import Program, Row
from minigrad.report.reduced.reduce import reduced
from minigrad.report.reduced.shrink import shrink
from minigrad.report.reduced.write import written
from minigrad.target import Target

FEW = 10


@pytest.fixture(autouse=True)
def _on_the_processor() -> Iterator[None]:
    Tensor.manual_seed(0)
    with config(device="CPU"):
        yield
    assert not dry_runs and not autodiff.asked


def training() -> None:
    """Two captured steps of a small network, and what they leave."""
    model = nn.Sequential(nn.Linear(20, 32), nn.Tanh(), nn.LayerNorm(32), nn.Linear(32, 5))
    optimizer = SGD(model.parameters(), lr=0.1)
    x, y = Tensor.randn(16, 20).realize(), Tensor.randint(16, high=5).realize()

    @jit
    def step(x: Tensor, y: Tensor) -> Tensor:
        loss = model(x).cross_entropy(y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    for _ in range(2):
        assert np.isfinite(step(x, y).item())


def images() -> None:
    """A convolution with a border between other layers."""
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.SiLU(), nn.Conv2d(8, 4, 3, stride=2), nn.Flatten(),
                          nn.Linear(4 * 7 * 7, 10))
    model(Tensor.randn(2, 3, 16, 16)).softmax(-1).numpy()


# ---- faults ----


@contextmanager
def rendered_as(change: Callable[[Function, Target], Source]) -> Iterator[None]:
    """All that is compiled meanwhile is rendered so."""
    def forget() -> None:
        forget_plans()
        compiling.forget_executables("CPU")

    with pytest.MonkeyPatch.context() as patch, config(disk_cache=False):
        forget()
        patch.setattr(compiling, "render", change)
        yield
    forget()


def a_product_in_place_of_a_quotient(function: Function, target: Target) -> Source:
    program = render_llvm(function, target)
    return replace(program, source=re.sub(r"\bfdiv\b", "fmul", program.source))


def a_border_of_ones(function: Function, target: Target) -> Source:
    return render_llvm(parse_function(re.sub(r"else 0\.0 if", "else 1.0 if", print_function(function))), target)


def runs_as_a_test(text: str) -> None:
    names: dict[str, Any] = {}
    exec(compile(text, "test_reduced.py", "exec"), names)
    names["test_reduced"]()


@pytest.mark.parametrize("fault, program", [
    (a_product_in_place_of_a_quotient, training), (a_border_of_ones, images)])
def test_a_fault_of_code_generation_is_reduced_to_a_few_operations(
        fault: Callable[[Function, Target], Source], program: Callable[[], None]) -> None:
    with rendered_as(fault):
        found, _ = reduced(program)
        assert found is not None and found.device == "CPU" and 1 <= found.program.size <= FEW
        text = written(found)
        with pytest.raises(AssertionError, match="numbers off"):
            runs_as_a_test(text)
    runs_as_a_test(text)  # nothing is wrong without the fault


def test_a_wrong_gradient_is_reduced_to_a_few_operations() -> None:
    right = TANH.vjp
    assert right is not None
    object.__setattr__(TANH, "vjp", lambda node, g: (B.mul(present(right(node, g)[0], ""), B.full_like(g, 1.25)),))
    try:
        found, _ = reduced(training)
        assert found is not None and found.device == "" and 1 <= found.program.size <= FEW
        text = written(found)
        with pytest.raises(AssertionError, match="slope"):
            runs_as_a_test(text)
    finally:
        object.__setattr__(TANH, "vjp", right)
    runs_as_a_test(text)


# ---- what is right ----


@pytest.mark.parametrize("program", [training, images])
def test_nothing_differs_where_nothing_is_wrong(program: Callable[[], None]) -> None:
    found, compared = reduced(program)
    assert found is None and compared.compared >= 1 and compared.left_out == 0
    assert (compared.gradients >= 1) == (program is training)


def test_a_script_goes_on_as_it_would_alone() -> None:
    def counted() -> None:
        x = Tensor([1.0, 2.0]).realize()
        x += 1
        seen.append((x * x).tolist())

    seen: list[Any] = []
    counted()
    assert reduced(counted)[0] is None and seen[0] == seen[1] == [4.0, 9.0]


def leaf(*numbers: float, dtype: Any = float32) -> Row:
    return Row(None, (), {}, dtype, np.array(numbers, np.float16 if dtype is float16 else np.float32))


@pytest.mark.parametrize("rows", [
    (leaf(1.0, 1.0), leaf(1e-8, 3e-8), Row(ADD, (0, 1), {}, float32), Row(SUB, (2, 0), {}, float32)),
    (leaf(11.0, 10.5, dtype=float16), Row(EXP, (0,), {}, float16))])
def test_rounding_is_no_difference(rows: tuple[Row, ...]) -> None:
    assert difference(Program(rows, len(rows) - 1), "CPU") == ""


def test_kinks_have_no_slope() -> None:
    """The larger of two equal numbers: moving one of them has a slope to one side alone."""
    assert gradient_difference(Program((leaf(0.0), leaf(0.0), Row(MAXIMUM, (0, 1), {}, float32)), 2)) == ""
    assert gradient_difference(Program((leaf(1.0), leaf(0.0), Row(MAXIMUM, (0, 1), {}, float32)), 2)) == ""


# ---- making smaller ----


def test_what_does_not_matter_goes() -> None:
    """The fault is in the product: what is before it and after it goes, and sizes become 1."""
    ones = np.ones((6, 4), np.float32)
    rows = (Row(None, (), {}, float32, ones), Row(EXP, (0,), {}, float32), Row(MUL, (1, 0), {}, float32),
            Row(ADD, (2, 1), {}, float32), Row(TANH, (3,), {}, float32))
    least = shrink(Program(rows, 4), lambda p: any(row.op is MUL for row in p.rows) and p.values() is not None)
    assert least.size == 1 and least.values()[least.target].shape == (1, 1)
