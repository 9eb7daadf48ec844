"""`show` prints every text on the way from a Tensor to machine code, and runs nothing."""
from collections.abc import Callable

import numpy as np
import pytest

from minigrad import Tensor, config, show
from minigrad.engine.stats import stats
from minigrad.errors import MinigradError


def example() -> Tensor:
    x = Tensor(np.ones((33, 100), np.float32), device="CPU")
    return x.softmax()


def leaf(*shape: int) -> Tensor:
    return Tensor(np.ones(shape, np.float32), device="CPU")


def test_graph() -> None:
    text = show(example(), "graph")
    assert "%0 = buffer -> f32[33, 100]" in text and text.endswith("-> f32[33, 100] *")


def test_kernels_read_as_mathematics() -> None:
    text = show(example(), "kernels")
    assert "t0 = max(r0<100: p0[i0, r0])" in text
    assert "t1 = sum(r1<100: exp(p0[i0, r1] - t0))" in text
    assert "o0[i0, i1] = exp(p0[i0, i1] - t0) * (1.0 / t1)" in text


def test_reasons_of_a_boundary() -> None:
    x = Tensor(np.ones((64, 64), np.float32), device="CPU")
    y = x @ x
    assert "# kept apart: sum" in show([y + 1, y * y.sum()], "kernels")


def test_plan_loops_and_source() -> None:
    assert "plan rows" in show(example(), "plan")
    assert "in 0..e0 parallel" in show(example(), "loops"), "sizes are arguments"
    assert "define" in show(example(), "source")


def test_nothing_runs() -> None:
    x = example()
    before = stats.launches
    for stage in ("graph", "kernels", "plan", "loops", "source"):
        show(x, stage)
    assert stats.launches == before and x.node.storage is None


def test_realized_and_bad_input() -> None:
    assert show(example().realize()) == "(realized: nothing to compute)"
    with pytest.raises(MinigradError, match="expected a stage among graph, kernels, plan, loops, source, got 'asm'"):
        show(example(), "asm")
    with pytest.raises(MinigradError, match="expected a Tensor"):
        show(3)


def test_debug_prints_while_it_runs(capsys: pytest.CaptureFixture[str]) -> None:
    def run(level: int, width: int) -> str:
        with config(device="CPU", debug=level):
            Tensor(np.ones((5, width), np.float32)).exp().sum(1).realize()
        return capsys.readouterr().err

    assert run(0, 3) == ""
    assert run(1, 3).startswith("realize on CPU: sum f32[5]; ") and "1 launch, known plan" in run(1, 3)
    assert "kernel " in run(2, 7) and "kernel " not in run(2, 7)  # a known plan is not shown again
    assert "func " in run(3, 9) and "define " in run(4, 11)


@pytest.mark.parametrize("made", [
    lambda: leaf(100, 200) @ leaf(200, 300), lambda: leaf(512, 512).transpose(0, 1) + 1.0
], ids=["product", "transpose"])
def test_the_next_best_plans(made: Callable[[], Tensor]) -> None:
    """The cheapest is the one that is chosen; others follow by what they are predicted to take."""
    lines = [line.strip() for line in show(made(), stage="plan").splitlines()]
    predicted = [line for line in lines if line.startswith(("# predicted:", "# or "))]
    cycles = [float(line.split(" cycles")[0].split()[-1]) for line in predicted]
    assert len(cycles) == 3 and cycles[1] <= cycles[2] and cycles[0] <= cycles[1] * 1.05
    assert all(", order " in line and "most of them" in line for line in predicted[1:])


def test_what_nothing_was_compared_with_has_no_other_plan() -> None:
    assert "# or " not in show(leaf(64, 64) + 1.0, stage="plan")
