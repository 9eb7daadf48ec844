"""`python -m minigrad onnx check|run|bench`."""
from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402

from minigrad.cli import main  # noqa: E402


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A model of one layer, with a branch that nothing supports on request."""
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", size]) for name, size in (("x", 3), ("y", 2)))
    weight = numpy_helper.from_array(np.arange(6, dtype=np.float32).reshape(3, 2), "w")
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Relu", ["h"], ["y"])]
    onnx.save(helper.make_model(helper.make_graph(nodes, "g", [x], [y], [weight]),
                                opset_imports=[helper.make_opsetid("", 17)]), tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


def test_check_counts_operators_parameters_launches_and_memory(path, capsys):
    assert main(["onnx", "check", str(path), "--size", "n=5", "--device", "CPU"]) == 0
    out = capsys.readouterr().out
    assert "input  x  float  [n, 3]" in out and "1 initializer, 6 parameters, 24 B" in out
    assert "1 launch, " in out and " at the peak" in out and "not supported" not in out


def test_check_names_what_is_not_supported(path, capsys):
    proto = onnx.load(path)
    proto.graph.node[1].op_type = "Frobnicate"
    onnx.save(proto, path)
    assert main(["onnx", "check", str(path)]) == 1
    assert "not supported: Frobnicate" in capsys.readouterr().out


def test_run_takes_inputs_from_files_and_saves_outputs(path, tmp_path, capsys):
    np.save(tmp_path / "x.npy", np.array([[1, 2, 3]], np.float32))
    assert main(["onnx", "run", str(path), "--input", f"x={tmp_path / 'x.npy'}", "--save", str(tmp_path / "out")]) == 0
    assert "y  float32 [1, 2]  from 16 to 22, mean 19" in capsys.readouterr().out
    np.testing.assert_array_equal(np.load(tmp_path / "out" / "y.npy"), [[16, 22]])
    assert main(["onnx", "run", str(path), "--size", "n=4"]) == 0
    assert "y  float32 [4, 2]" in capsys.readouterr().out


def test_bench_times_calls(path, capsys):
    assert main(["onnx", "bench", str(path), "--count", "2"]) == 0
    out = capsys.readouterr().out
    assert "first call" in out and "1 launch" in out and "onnxruntime" in out


@pytest.mark.parametrize("arguments, message", [
    (["--input", "x"], "expected --input NAME=VALUE, got 'x'"), (["--input", "z=a.npy"], "expected inputs x, got z"),
    (["--size", "n=-3"], "expected --size n=N with N of 1 or more, got '-3'"), (["--input", "x=no.npy"], "no.npy"),
])
def test_wrong_options_are_one_line(path, capsys, arguments, message):
    assert main(["onnx", "run", str(path), *arguments]) == 1
    err = capsys.readouterr().err.splitlines()
    assert message in err[-1]


def test_a_file_that_is_no_model_is_one_line(tmp_path, capsys):
    (tmp_path / "m.onnx").write_bytes(b"not a model")
    assert main(["onnx", "check", str(tmp_path / "m.onnx")]) == 1
    assert len(capsys.readouterr().err.splitlines()) == 1
