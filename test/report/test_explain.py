"""`minigrad.explain`: what is in a report, how it is written, and that it stays small."""
import errno
import json
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import minigrad
from minigrad import Tensor, config, jit
from minigrad.errors import MinigradError
from minigrad.optim import SGD
from minigrad.report.explained import explain as explaining
from minigrad.report.explained.explain import write_whole
from minigrad.report.explained.page import page_of
from minigrad.report.explained.report import MOST_ROWS, report_of
from minigrad.report.explained.step import watched_call, watched_script

HERE = Path(__file__).name


def tensor(*shape: int) -> Tensor:
    return Tensor(np.random.default_rng(1).standard_normal(shape, np.float32), device="CPU").realize()


def this_line() -> int:
    import sys

    return sys._getframe(1).f_lineno


def layer(x: Tensor, w: Tensor) -> Tensor:
    h = (x @ w).relu()
    return h.softmax() + h.mean()


def test_a_report_has_each_launch_with_amounts_lines_and_forms(tmp_path: Path) -> None:
    x, w = tensor(64, 128), tensor(128, 96)
    report = minigrad.explain(layer, x, w, path=tmp_path / "report.html")
    found = json.loads(json.dumps(report.as_dict()))
    product = next(row for row in found["rows"] if row["flops"] == 2 * 64 * 128 * 96 + 2 * 64 * 96)
    assert product["line"].startswith(f"{HERE}:") and product["count"] == 1
    assert product["seconds"] >= 0 and product["least"] > 0 and product["predicted"] > 0
    assert list(product["texts"]) == ["index notation", "plan", "loops", "source", "machine code"]
    assert product["texts"]["plan"] in minigrad.show(layer(x, w), stage="plan")
    assert product["texts"]["loops"] in minigrad.show(layer(x, w), stage="loops")
    assert found["launches"] == sum(row["count"] for row in found["rows"]) == len(minigrad.plan(layer, x, w).kernels)
    assert found["nodes"] > 3 and found["devices"] == ["CPU"] and not found["captured"]
    page = (tmp_path / "report.html").read_text()
    assert page.startswith("<!DOCTYPE html>") and product["name"] in page


def test_reasons_say_what_is_kept_apart_and_who_reads() -> None:
    x, w = tensor(64, 128), tensor(128, 96)
    rows = report_of(watched_call(layer, (x, w), {})).rows
    shown = minigrad.show(layer(x, w))
    last, = (row for row in rows if row.begins and row.launch.writes & set(row.plan.schedule.outputs))
    assert all(f"# kept apart: {reason}" in shown for reason in last.begins)
    assert any("2 kernels" in text for row in rows for text in row.ends)


def test_a_captured_training_step_has_the_lines_of_its_function(tmp_path: Path) -> None:
    w = tensor(32, 8)
    w.requires_grad = True
    optimizer = SGD([w], lr=0.1)

    @jit
    def step(x: Tensor) -> Tensor:
        loss = (x @ w).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    x = tensor(16, 32)
    before = step(x).item()
    report = minigrad.explain(step, x, path=None)
    assert report.step.captured and all(row.line.startswith(HERE) for row in report.rows)
    assert step(x).item() < before  # it learned meanwhile
    assert len({id(t.plan) for t in report.step.launches}) == 1


def test_memory_says_what_holds_the_peak() -> None:
    x = tensor(1 << 14)
    nbytes = 4 << 14

    def chain() -> Tensor:
        a = x.exp().contiguous()
        b = (a + x).contiguous()
        return (b * a).sum()

    memory = report_of(watched_call(chain, (), {})).memory
    assert memory is not None and memory.peak >= 2 * nbytes
    kinds = {h.kind: h for h in memory.held}
    assert kinds["given"].nbytes == nbytes and kinds["given"].label == f"f32[{1 << 14}]"
    assert kinds["result"].nbytes == 4 and kinds["temporary"].nbytes == nbytes
    assert memory.peak == max(h.offset + h.nbytes for h in memory.held)


def test_a_card_that_is_not_here_has_waves_registers_and_predictions_alone() -> None:
    with config(device="SIM:rtx3060"):
        x = Tensor.randn(1024, 1024).realize()
        report = minigrad.explain(lambda: x @ x, path=None)
    row, = report.rows
    assert report.step.wall is None and row.predicted == pytest.approx(row.seconds, rel=0.01)
    assert row.facts.groups and row.facts.waves and row.facts.registers
    assert "predicted" in page_of(report)


# ---- scripts ----

SCRIPT = """
import sys
from minigrad import Tensor, jit
x = Tensor.randn(64, 64).realize()
step = jit(lambda x: (x @ x).tanh())
for _ in range(int(sys.argv[1])):
    x = step(x)
print(x.sum().item() > -1e9, sys.argv[1:])
"""


def test_the_step_of_a_script_is_what_comes_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    step = watched_script(path, ["9", "more"])
    assert capsys.readouterr().out == "True ['9', 'more']\n"
    assert step.what == "a step of train.py" and len(step.launches) == 1 and step.captured
    assert step.wall is not None and step.wall >= sum(t.seconds for t in step.launches)
    whole = watched_script(path, ["1"])
    assert whole.what == "train.py" and len(whole.launches) > 1


# ---- bad input ----


@pytest.mark.parametrize("function, words", [
    (3, "expected a function and its arguments, got int"), (lambda: None, "expected a function that runs kernels")])
def test_what_cannot_be_explained_is_said_in_one_line(function: Any, words: str) -> None:
    with pytest.raises(MinigradError, match=words) as caught:
        minigrad.explain(function, path=None)
    assert "\n" not in str(caught.value)


def test_a_full_disk_leaves_the_old_file_and_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "report.html"
    path.write_text("old")

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(explaining.os, "fsync", full)
    with pytest.raises(MinigradError, match=r"expected to write 3 bytes to '.*report\.html', got: No space left"):
        write_whole(path, "new")
    assert path.read_text() == "old" and os.listdir(tmp_path) == ["report.html"]


def test_a_folder_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(MinigradError, match="No such file or directory"):
        write_whole(tmp_path / "nowhere" / "report.html", "x")


def test_a_page_asks_nobody_and_escapes_what_it_shows() -> None:
    x = tensor(64)
    report = minigrad.explain(lambda: (x < 3).where(x, 0), path=None)
    report.rows[0].plan.lines[report.rows[0].item] = "<script>.py:3"
    page = page_of(report_of(report.step))
    assert not re.search(r'(?:src|href)="(?!#)', page) and "url(" not in page and "@import" not in page
    assert page.count("<script") == 2 and "&lt;script&gt;.py:3" in page


def test_a_step_of_many_programs_stays_small() -> None:
    """The longest are listed, the others counted, and what was left out is said."""
    x = tensor(1 << 10)
    report = report_of(watched_call(lambda: [x[k:k + 3].sum() * k for k in range(400)], (), {}))
    many = report.step.launches * 30
    step = report_of(type(report.step)(**{f: getattr(report.step, f) for f in report.step.__dataclass_fields__}
                                       | {"launches": many}))
    page = page_of(step)
    assert len(step.boxes) <= 120 and len(page) < 6_000_000
    assert len(step.rows) <= MOST_ROWS or any("row" in text for text in step.left_out)
    assert sum(row.seconds for row in step.rows) == pytest.approx(30 * sum(t.seconds for t in report.step.launches))


def test_a_method_under_jit_is_explained_for_its_object() -> None:
    class Layer:
        def __init__(self) -> None:
            self.w = tensor(8, 4)

        @jit
        def forward(self, x: Tensor) -> Tensor:
            return x @ self.w

    layer, x = Layer(), tensor(2, 8)
    before = layer.forward(x).numpy()
    report = minigrad.explain(layer.forward, x, path=None)
    assert report.step.captured and [row.flops for row in report.rows] == [2 * 2 * 8 * 4]
    assert layer.forward.captures == 1 and np.array_equal(layer.forward(x).numpy(), before)
