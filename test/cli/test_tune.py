"""`python -m minigrad tune`: what it takes for a step, and what it says."""
from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from minigrad import Tensor, config
from minigrad.cli import main
from minigrad.cli.machine import measured_file
from minigrad.engine import compiled
from minigrad.runtime.registry import get_device

MODEL = """from minigrad import Tensor
w = Tensor.ones(48, 32).realize()
def makes():
    return (Tensor.ones(64, 48).contiguous() @ w).relu().realize()
def gives():
    x = Tensor.ones(64, 48).realize()
    def step():
        return (x @ w).softmax().realize()
    return step
def reads():
    return (Tensor.ones(64, 48).contiguous() @ w).sum().item()
number = 3
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "model.py").write_text(MODEL)
    with config(device="CPU", cache_dir=tmp_path, tuned=True):
        yield tmp_path
    get_device("CPU").tuned = None
    compiled.forget_plans()


@pytest.mark.parametrize("name", ["makes", "gives"])
def test_a_function_is_a_step_or_gives_one(folder: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    assert main(["tune", f"{folder}/model.py:{name}", "--seconds", "0.2"]) == 0
    out = capsys.readouterr().out
    assert "kernel" in out and "ms before" in out and "measured" in out
    rows = folder / "tuned" / "CPU.plans"
    if rows.exists():  # what is faster here nobody knows
        assert f"kept in {rows}" in out
        assert main(["tune", f"{folder}/model.py:{name}", "--seconds", "0.2", "--replay", str(rows)]) == 0


def test_a_machine_whose_speed_was_not_measured_is_told(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def first_line() -> str:
        assert main(["tune", f"{folder}/model.py:makes", "--seconds", "0.01"]) == 0
        return capsys.readouterr().out.splitlines()[0]
    assert "CPU was not measured: run `python -m minigrad machine measure` first" in first_line()
    path = measured_file(get_device("CPU").target)
    path.parent.mkdir()
    path.write_text("[speed]\n")
    assert "machine measure" not in first_line()


@pytest.mark.skipif(find_spec("onnx") is None, reason="needs onnx")
def test_a_model_in_onnx(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from minigrad import onnx

    w = Tensor(np.ones((16, 8), np.float32)).realize()
    onnx.export(lambda x: (x @ w).relu(), Tensor.ones(4, 16).realize(), path=folder / "model.onnx")
    assert main(["tune", str(folder / "model.onnx"), "--seconds", "0.1", "--rounding", "any"]) == 0
    assert "measured" in capsys.readouterr().out


@pytest.mark.parametrize("arguments, word", [
    (["{}/none.py:step"], "expected a file of Python"), (["{}/model.py:none"], "expected the name of a function"),
    (["{}/model.py:number"], "expected the name of a function"), (["{}/model.py:makes", "--seconds", "0"], "--seconds"),
    (["{}/model.py:makes", "--replay", "{}/none"], "expected rows of plans"),
    (["{}/model.py:reads"], "expected no value on the host"),
    (["{}/model.py:makes", "--device", "NUMPY"], "expected a step that runs kernels of NUMPY")])
def test_mistakes_are_one_line(folder: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], word: str
                               ) -> None:
    assert main(["tune", *[argument.replace("{}", str(folder)) for argument in arguments]]) == 1
    err = capsys.readouterr().err
    assert word in err and len(err.splitlines()) == 1
