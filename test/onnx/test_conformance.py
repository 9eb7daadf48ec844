"""The onnx package's backend tests: every case on the interpreter, some on the devices; and what is no model."""
from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import devices

onnx = pytest.importorskip("onnx")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402
from support.onnx_conformance import cases, outcome  # noqa: E402

from minigrad import Tensor, dtypes, jit  # noqa: E402
from minigrad.engine.stats import stats  # noqa: E402
from minigrad.onnx import Invalid, OnnxModel, Unsupported  # noqa: E402

# Rounded after each step in the type by the package, once by us, or zero but for rounding.
ROUNDED = re.compile(r"test_attention_.*(bf16|fp16)(_expanded)?$|test_celu_bfloat16|test_dft_inverse")
REFUSED = {"ImageDecoder", "Gradient", "RegexFullMatch"}


@pytest.mark.parametrize("capture", [False, True])
def test_every_case_is_right_or_refused(capture: bool, request: pytest.FixtureRequest) -> None:
    """As models run unless somebody asks for more, captured; without a capture every third, with --all every one."""
    found: dict[str, Any] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the package's own arithmetic
        for case in list(cases())[::1 if capture or request.config.getoption("--all") else 3]:
            found[case.name] = outcome(case, "NUMPY", capture)
    bad = {name: text for name, (kind, text) in found.items() if kind not in ("right", "refused")
           and not (kind == "rounding" and ROUNDED.match(name))}
    refused = {re.search(r"\((\w+)\):|a node of (\w+)", text) for kind, text in found.values() if kind == "refused"}
    assert not bad
    assert {m.group(1) or m.group(2) for m in refused if m} <= REFUSED
    assert sum(kind == "right" for kind, _ in found.values()) >= 0.97 * len(found)


@pytest.mark.parametrize("device", [d for d in devices() if d != "NUMPY"])
def test_some_are_right_on_a_device(device: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        every = [case for case in cases("^(?!.*expanded)") if not re.search("float8|FLOAT8|double|float64", case.name)]
        found = {case.name: outcome(case, device, False) for case in every[::16 if device == "CPU" else 40]}
    assert not {name: text for name, (kind, text) in found.items() if kind not in ("right", "refused")
                and not (kind == "rounding" and ROUNDED.match(name)) and "has no float64" not in text}


def layer(nodes: list[Any], weights: dict[str, np.ndarray] | None = None, shape: Any = ("n", 3)) -> Any:
    """A model of nodes from x to y."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, list(shape))
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    return helper.make_model(helper.make_graph(nodes, "g", [x], [y], [
        numpy_helper.from_array(w, name) for name, w in (weights or {}).items()]))


def test_weights_train() -> None:
    weight = np.ones((3, 2), np.float32)
    model = OnnxModel(layer([helper.make_node("MatMul", ["x", "w"], ["y"])], {"w": weight}), capture=False)
    weights = model.weights["w"].requires_grad_()
    model({"x": np.full((4, 3), 2, np.float32)})["y"].sum().backward()
    assert weights.grad is not None
    np.testing.assert_array_equal(weights.grad.numpy(), np.full((3, 2), 8, np.float32))


def test_a_call_is_captured_unless_values_are_read() -> None:
    plain = OnnxModel(layer([helper.make_node("Relu", ["x"], ["y"])]))
    reads = OnnxModel(layer([helper.make_node("NonZero", ["x"], ["i"]), helper.make_node("Shape", ["i"], ["s"]),
                             helper.make_node("Cast", ["s"], ["y"], to=TensorProto.FLOAT)]))
    x = np.array([[1, 0, -1]], np.float32)
    for _ in range(3):
        np.testing.assert_array_equal(plain({"x": x})["y"].numpy(), [[1, 0, 0]])
        np.testing.assert_array_equal(reads({"x": Tensor(x)})["y"].numpy(), [2, 2])
    assert plain.why_eager is None and plain.replays >= 1
    assert reads.why_eager is not None and "NonZero" in reads.why_eager


def test_a_branch_that_a_fed_number_takes_is_captured_for_each() -> None:
    y = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    graphs = [helper.make_graph([helper.make_node(op, ["x"], ["y"])], op, [], y) for op in ("Neg", "Relu")]
    proto = layer([helper.make_node("If", ["which"], ["y"], then_branch=graphs[0], else_branch=graphs[1])])
    proto.graph.input.append(helper.make_tensor_value_info("which", TensorProto.BOOL, []))
    model, x = OnnxModel(proto), np.array([[1, -2, 3]], np.float32)
    for which in (True, False, True, False):
        expected = -x if which else np.maximum(x, 0)
        np.testing.assert_array_equal(model({"x": x, "which": np.array(which)})["y"].numpy(), expected)
    assert model.why_eager is None and model.captures == 2


def test_models_in_captured_functions() -> None:
    """One that reads nothing is a part of the capture, one that reads values says so, and stays as it was."""
    x = np.array([[1, 0, -1]], np.float32)
    for op in ("NonZero", "Unique", "Compress"):
        inputs = ["x", "b"] if op == "Compress" else ["x"]
        cast = helper.make_node("Cast", ["x"], ["b"], to=TensorProto.BOOL)
        reads = OnnxModel(layer([cast, helper.make_node(op, inputs, ["y"])], shape=(3,)))
        for _ in range(2):
            with pytest.raises(Invalid, match=rf"node of {op}: \[jit\] expected no value on the host"):
                jit(lambda t, model=reads: model({"x": t})["y"])(Tensor(x[0]))
            assert reads({"x": x[0]})["y"].shape[-1] == (3 if op == "Unique" else 2)
    plain = OnnxModel(layer([helper.make_node("Neg", ["x"], ["y"])]))
    step = jit(lambda t: plain({"x": t})["y"] * 2)
    for k in range(4):
        np.testing.assert_array_equal(step(Tensor(x + k)).numpy(), -2 * (x + k))
    assert step.replays == 3 and plain.captures == 0


def test_a_fed_number_is_not_computed_and_a_known_exponent_multiplies() -> None:
    value = helper.make_tensor_value_info("by", TensorProto.FLOAT, [])
    proto = layer([helper.make_node("Constant", [], ["two"], value_float=2.0),
                   helper.make_node("Mul", ["x", "by"], ["z"]), helper.make_node("Pow", ["z", "two"], ["y"])])
    proto.graph.input.append(value)
    model, x = OnnxModel(proto), np.array([[1.1, -0.3, 3e20]], np.float32)
    for by in (3.0, -0.7, 0.1, 5.0):
        before = stats.launches
        got = model({"x": x, "by": np.float32(by)})["y"].numpy()
        with np.errstate(over="ignore"):
            np.testing.assert_array_equal(got, (x * np.float32(by)) * (x * np.float32(by)))
    assert stats.launches - before == 1 and model.captures == 1


def _whole(x: Any) -> tuple[Any, Any]:
    """x quantised to 256 steps over its range and 0, less the zero point, and the step."""
    low, high = min(x.min(), 0), max(x.max(), 0)
    step = np.float32(high - low) / np.float32(255) or np.float32(1)
    zero = np.round(-low / step)
    return np.clip(np.round(x / step) + zero, 0, 255) - zero, step


@pytest.mark.parametrize("per_row", [False, True])
def test_quantised_lstm_quantises_inputs_and_states(per_row: bool) -> None:
    random, T, N, D, H = np.random.default_rng(3), 5, 2, 3, 4
    W, R = (random.integers(-128, 128, (1, k, 4 * H)).astype(np.int8) for k in (D, H))
    B, x = random.standard_normal((1, 8 * H)).astype(np.float32), random.standard_normal((T, N, D)).astype(np.float32)
    of_row = (np.arange(4 * H, dtype=np.float32)[None] + 5) / 2000
    scales: dict[str, Any] = {"sw": of_row if per_row else np.array([0.005], np.float32), "zw": np.array([1], np.int8),
                              "sr": of_row if per_row else np.array([0.004], np.float32), "zr": np.array([-2], np.int8)}
    quantised = layer([helper.make_node("DynamicQuantizeLSTM", ["x", "W", "R", "B", "", "", "", "", *scales], ["y"],
                                        domain="com.microsoft", hidden_size=H)], {"W": W, "R": R, "B": B, **scales},
                      (T, N, D))
    (whole, step), h, c, expected = _whole(x), np.zeros((N, H), np.float32), np.zeros((N, H)), []
    gates = whole @ (W[0].astype(np.float64) - 1) * step * scales["sw"][0] + B[0, :4 * H] + B[0, 4 * H:]
    for t in range(T):
        state, step = _whole(h)
        i, o, f, g = np.split(gates[t] + state @ (R[0] + 2.0) * step * scales["sr"][0], 4, axis=1)
        c = c / (1 + np.exp(-f)) + np.tanh(g) / (1 + np.exp(-i))
        h = (np.tanh(c) / (1 + np.exp(-o))).astype(np.float32)
        expected.append(h)
    model = OnnxModel(quantised)
    for _ in range(2):
        np.testing.assert_allclose(model({"x": x})["y"].numpy()[:, 0], np.stack(expected), rtol=1e-5, atol=1e-6)


MICROSOFT: list[tuple[str, dict[str, Any], Any]] = [
    ("FusedMatMul", {"transB": 1, "alpha": 0.5}, lambda x, w: 0.5 * x @ w.T),
    ("BiasGelu", {}, lambda x, w: Tensor(x + w[0]).gelu("none").numpy()),
    ("SkipSimplifiedLayerNormalization", {"epsilon": 1e-6},
     lambda x, w: (s := x + w[:1]) / np.sqrt((s * s).mean(-1, keepdims=True) + 1e-6)),
]


@pytest.mark.parametrize("op, attributes, expected", MICROSOFT, ids=[op for op, _, _ in MICROSOFT])
def test_operators_of_onnxruntime(op: str, attributes: dict[str, Any], expected: Any) -> None:
    random = np.random.default_rng(5)
    x, w = random.standard_normal((1, 3)).astype(np.float32), random.standard_normal((2, 3)).astype(np.float32)
    given = {"FusedMatMul": w, "BiasGelu": w[0]}.get(op, w[:1])
    inputs = ["x", "w", "one"] if op.startswith("Skip") else ["x", "w"]
    model = layer([helper.make_node(op, inputs, ["y"], domain="com.microsoft", **attributes)],
                  {"w": given, "one": np.ones(3, np.float32)})
    np.testing.assert_allclose(OnnxModel(model)({"x": x})["y"].numpy(), expected(x, w), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("feeds, message", [
    ({}, "expected inputs x, got none"), ({"z": np.zeros(1)}, "expected inputs x, got z"),
    ({"x": np.zeros((1, 3))}, "expected float, got double"),
    ({"x": np.zeros((1, 4), np.float32)}, r"expected shape \['n', 3\], got \[1, 4\]"),
])
def test_wrong_inputs_are_named(feeds: dict[str, Any], message: str) -> None:
    with pytest.raises(Invalid, match=message):
        OnnxModel(layer([helper.make_node("Relu", ["x"], ["y"])]))(feeds)


def test_what_is_no_model_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="no such file"):
        OnnxModel(tmp_path / "none.onnx")
    (tmp_path / "bad.onnx").write_bytes(b"\x08\xff\xff not a model")
    with pytest.raises(Invalid, match=r"bad\.onnx"):
        OnnxModel(tmp_path / "bad.onnx")
    cycle = layer([helper.make_node("Add", ["x", "y"], ["z"]), helper.make_node("Relu", ["z"], ["y"])])
    with pytest.raises(Invalid, match="reads 'y', which nothing before it gives"):
        OnnxModel(cycle)({"x": np.zeros((1, 3), np.float32)})
    wrong = layer([helper.make_node("Reshape", ["x", "s"], ["y"], name="r")], {"s": np.array([5, 7])})
    with pytest.raises(Invalid, match=r"node 'r' \(Reshape\)"):
        OnnxModel(wrong)({"x": np.zeros((1, 3), np.float32)})
    with pytest.raises(Unsupported, match="operator Nothing of ai"):
        OnnxModel(layer([helper.make_node("Nothing", ["x"], ["y"])]))({"x": np.zeros((1, 3), np.float32)})


def test_trees_in_a_circle_are_refused() -> None:
    def ensemble(true_id: int) -> Any:
        tree = helper.make_node("TreeEnsemble", ["x"], ["y"], domain="ai.onnx.ml", tree_roots=[0], n_targets=1,
                                nodes_featureids=[0, 1], nodes_trueleafs=[0, 1], nodes_falseleafs=[1, 0],
                                nodes_truenodeids=[1, 0], nodes_falsenodeids=[1, true_id], leaf_targetids=[0, 0],
                                nodes_modes=numpy_helper.from_array(np.zeros(2, np.uint8)),
                                nodes_splits=numpy_helper.from_array(np.zeros(2, np.float32)),
                                leaf_weights=numpy_helper.from_array(np.array([1, 2], np.float32)))
        return OnnxModel(layer([tree]))({"x": np.array([[-1, -1, 0], [1, 0, 0]], np.float32)})["y"].numpy()
    with pytest.raises(Invalid, match="got nodes in a circle"):
        ensemble(0)


def test_labels_of_numbers_are_looked_up_by_kernels() -> None:
    node = helper.make_node("LabelEncoder", ["x"], ["y"], domain="ai.onnx.ml", keys_floats=[1.0, 2.0, np.nan, 1.0],
                            values_floats=[5.0, 6.0, 7.0, 8.0], default_float=-3.0)
    model = OnnxModel(layer([node]))
    for _ in range(2):
        got = model({"x": np.array([[1, np.nan, 3]], np.float32)})["y"].numpy()
        np.testing.assert_array_equal(got, [[8, 7, -3]])
    assert model.why_eager is None


@pytest.mark.parametrize("dtype, error", [(dtypes.float16, 1e-3), (dtypes.bfloat16, 1e-2)])
def test_a_model_runs_in_a_half_type(dtype: Any, error: float) -> None:
    random = np.random.default_rng(2)
    weight, x = (random.standard_normal(shape).astype(np.float32) for shape in ((3, 8), (5, 3)))
    proto = layer([helper.make_node("MatMul", ["x", "w"], ["h"]),
                   helper.make_node("Constant", [], ["c"], value_float=0.5), helper.make_node("Mul", ["h", "c"], ["i"]),
                   helper.make_node("Softmax", ["i"], ["y"])], {"w": weight})
    model, expected = OnnxModel(proto, dtype=dtype), OnnxModel(proto)({"x": x})["y"].numpy()
    for _ in range(2):
        got = model({"x": x})["y"]
        assert got.dtype is dtypes.float32 and 0 < np.abs(got.numpy() - expected).max() < error
    assert model.weights["w"].dtype is dtype and model.why_eager is None
    with pytest.raises(Unsupported, match="float16 and bfloat16 are"):
        OnnxModel(proto, dtype=dtypes.int8)
