"""`minigrad.profile`: what it counts, the lines that it names, and the trace that it saves."""
import json
import re
from pathlib import Path

import numpy as np
import pytest
from conftest import devices

import minigrad
from minigrad import Tensor, jit
from minigrad.engine.observe import observers
from minigrad.ops import node
from minigrad.optim import SGD

HERE = Path(__file__).name


def tensor(*shape: int, device: str = "CPU") -> Tensor:
    return Tensor(np.random.default_rng(1).standard_normal(shape, np.float32), device=device).realize()


def this_line() -> int:
    import sys

    return sys._getframe(1).f_lineno


@pytest.mark.parametrize("device", [d for d in devices() if d != "NUMPY"])
def test_every_launch_is_there_with_its_line_and_amounts(device: str) -> None:
    a, b = tensor(32, 48, device=device), tensor(48, 24, device=device)
    with minigrad.profile() as p:
        product, line = a @ b, this_line()
        product.realize()
    assert [r.line for r in p.runs] == [f"{HERE}:{line}"]
    (run,) = p.runs
    assert run.flops == 2 * 32 * 48 * 24 and run.bytes == 4 * (32 * 48 + 48 * 24 + 32 * 24)
    assert run.device == product.device and run.seconds > 0
    assert re.match(r"plan \w+\n  (fuse|sizes|split) ", run.how)
    assert p.calls == 1 and p.wall >= p.seconds == run.seconds
    assert set(p.phases) == {"build", "schedule", "lower", "render", "compile", "launch"}


def test_a_captured_training_step_is_one_call() -> None:
    w = tensor(8, 8)
    w.requires_grad = True
    optimizer = SGD([w], lr=0.1)

    @jit
    def step(x: Tensor) -> Tensor:
        loss = (x @ w).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.realize()

    x = tensor(4, 8)
    for _ in range(3):
        step(x)
    with minigrad.profile() as p:
        first = step(x).item()
        second = step(x).item()
    assert step.replays >= 3 and second < first
    assert p.calls == 2 and len(p.runs) >= 4
    half = len(p.runs) // 2
    assert [r.name for r in p.runs[:half]] == [r.name for r in p.runs[half:]]


def test_a_function_that_was_captured_and_replayed_in_a_profile_goes_on_after_it() -> None:
    """Timed launches do not go by way of the plan's prepared form, which then knows no addresses."""
    x = tensor(1, 1 << 14)
    total = jit(lambda: x.cumsum(-1))
    with minigrad.profile():
        for _ in range(2):
            total()
    for _ in range(3):
        np.testing.assert_allclose(total().numpy(), np.cumsum(x.numpy(), -1), rtol=1e-4, atol=1e-3)
    assert total.captures == 1


def test_a_profile_changes_no_result_and_leaves_nothing_behind() -> None:
    a, b = tensor(33, 65), tensor(65, 31)
    plain = (a @ b).softmax().numpy()
    with minigrad.profile() as p:
        watched = (a @ b).softmax().numpy()
    assert p.runs and watched.tobytes() == plain.tobytes()
    assert not observers and node.created is None


def test_equal_launches_are_one_row_and_the_table_names_them() -> None:
    a = tensor(1000)
    with minigrad.profile() as p:
        for _ in range(3):
            (a.exp() + 1).realize()
    rows = p.rows()
    assert [r.count for r in rows] == [3] and rows[0].bytes == 3 * 8000
    assert rows[0].seconds == pytest.approx(sum(r.seconds for r in p.runs))
    assert rows[0].limit is not None and rows[0].limit > 0
    text = p.table()
    assert repr(p) == text
    assert rows[0].name in text and f"{HERE}:" in text and "3 launches in 3 calls" in text


def test_the_trace_is_in_the_chrome_format(tmp_path: Path) -> None:
    a = tensor(64, 64)
    with minigrad.profile() as p:
        (a @ a).sum().realize()
    p.save(tmp_path / "trace.json")
    trace = json.loads((tmp_path / "trace.json").read_text())
    events = [e for e in trace["traceEvents"] if e["ph"] == "X"]
    assert len(events) == len(p.runs) and {"name", "ts", "dur", "pid", "tid", "args"} <= set(events[0])
    begins = [e["ts"] for e in events]
    assert begins == sorted(begins) and events[0]["args"]["flops"] == p.runs[0].flops
    names = [e["args"]["name"] for e in trace["traceEvents"] if e["ph"] == "M"]
    assert names == ["CPU"]


def test_nested_profiles_both_see_the_launch() -> None:
    a = tensor(10)
    with minigrad.profile() as outer:
        with minigrad.profile() as inner:
            (a + 1).realize()
        (a + 2).realize()
    assert len(inner.runs) == 1 and len(outer.runs) == 2
