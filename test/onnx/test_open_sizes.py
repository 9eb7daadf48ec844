"""A size that a model leaves open is a Variable: no capture and no program for each."""
from __future__ import annotations

from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402

from minigrad.engine.stats import stats  # noqa: E402
from minigrad.onnx import OnnxModel  # noqa: E402

SIZES = [3, 5, 17, 64, 2, 9, 33, 8, 12, 4, 7, 100, 21, 6, 50, 11, 40, 13, 31, 10]
node = helper.make_node


def model(nodes: list[Any], weights: dict[str, Any], shape: list[Any]) -> OnnxModel:
    """Nodes from x of a shape to y."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    constants = [numpy_helper.from_array(np.asarray(w), name) for name, w in weights.items()]
    return OnnxModel(helper.make_model(helper.make_graph(nodes, "g", [x], [y], constants),
                                       opset_imports=[helper.make_opsetid("", 17)]))


def convolutions() -> tuple[OnnxModel, Any]:
    """A net of two convolutions over an open batch."""
    random = np.random.default_rng(0)
    weights = {"a": random.standard_normal((4, 3, 3, 3)), "b": random.standard_normal((8, 4, 3, 3)),
               "c": random.standard_normal((8 * 4 * 4, 5))}
    nodes = [node("Conv", ["x", "a"], ["h"], pads=[1, 1, 1, 1]), node("Relu", ["h"], ["i"]),
             node("MaxPool", ["i"], ["j"], kernel_shape=[2, 2], strides=[2, 2]),
             node("Conv", ["j", "b"], ["k"], pads=[1, 1, 1, 1]), node("Flatten", ["k"], ["l"]),
             node("MatMul", ["l", "c"], ["m"]), node("Softmax", ["m"], ["y"])]
    return model(nodes, {k: w.astype(np.float32) for k, w in weights.items()}, ["batch", 3, 8, 8]), (
        lambda size: (size, 3, 8, 8))


def transformer() -> tuple[OnnxModel, Any]:
    """A layer of attention over an open length, whose shapes are computed as exporters write it."""
    random, D = np.random.default_rng(1), 16
    weights = {name: (random.standard_normal((D, D)) / 4).astype(np.float32) for name in "qkvo"}
    constants = {"g": np.ones(D, np.float32), "i0": np.array(0), "i1": np.array(1), "ax": np.array([0]),
                 "heads": np.array([4, 4]), "all": np.array([D]), "scale": np.float32(0.5)}
    nodes = [node("LayerNormalization", ["x", "g"], ["n"]), node("Shape", ["x"], ["s"]),
             node("Gather", ["s", "i0"], ["b0"]), node("Gather", ["s", "i1"], ["l0"]),
             node("Unsqueeze", ["b0", "ax"], ["b"]), node("Unsqueeze", ["l0", "ax"], ["l"]),
             node("Concat", ["b", "l", "heads"], ["split"], axis=0),
             node("Concat", ["b", "l", "all"], ["whole"], axis=0)]
    for name, perm in (("q", [0, 2, 1, 3]), ("k", [0, 2, 3, 1]), ("v", [0, 2, 1, 3])):
        nodes += [node("MatMul", ["n", name], [name + "1"]), node("Reshape", [name + "1", "split"], [name + "2"]),
                  node("Transpose", [name + "2"], [name + "3"], perm=perm)]
    nodes += [node("MatMul", ["q3", "k3"], ["t"]), node("Mul", ["t", "scale"], ["u"]),
              node("Softmax", ["u"], ["p"], axis=-1), node("MatMul", ["p", "v3"], ["w"]),
              node("Transpose", ["w"], ["z"], perm=[0, 2, 1, 3]), node("Reshape", ["z", "whole"], ["r"]),
              node("MatMul", ["r", "o"], ["e"]), node("Add", ["x", "e"], ["y"])]
    return model(nodes, {**weights, **constants}, ["batch", "length", D]), lambda size: (2, size, D)


@pytest.mark.parametrize("make", [convolutions, transformer])
def test_twenty_sizes_compile_nothing_after_the_second(make: Any) -> None:
    ours, shape = make()
    random, plain, results = np.random.default_rng(7), make()[0], []
    for count, size in enumerate(SIZES):
        x = random.standard_normal(shape(size)).astype(np.float32)
        before = stats.programs, stats.schedules
        y = ours({"x": x})["y"]
        assert count < 2 or (stats.programs, stats.schedules) == before
        assert all(isinstance(s, int) for s in y.shape)
        results.append((x, y.numpy()))
    assert ours.why_sized is None and ours.captures == 2
    for x, got in results[:4]:
        plain.why_eager = "as a reference"
        np.testing.assert_allclose(got, plain({"x": x})["y"].numpy(), rtol=1e-4, atol=1e-5)


def test_a_model_that_must_know_a_size_has_a_capture_for_each() -> None:
    ours = model([node("TopK", ["x", "k"], ["y", "i"], axis=0)], {"k": np.array([2])}, ["n", 3])
    for size in (4, 6, 5):
        x = np.random.default_rng(size).standard_normal((size, 3)).astype(np.float32)
        np.testing.assert_array_equal(ours({"x": x})["y"].numpy(), np.sort(x, axis=0)[::-1][:2])
    assert ours.why_sized is not None and "TopK" in ours.why_sized and ours.captures == 3


def test_a_size_is_a_number_where_kernels_read_it() -> None:
    """The mean by its definition: the sum over the size, which is cast to float."""
    ours = model([node("Shape", ["x"], ["s"], end=1), node("Cast", ["s"], ["f"], to=TensorProto.FLOAT),
                  node("ReduceSum", ["x"], ["t"], keepdims=0), node("Div", ["t", "f"], ["y"])], {}, ["n", 3])
    for size in (4, 6, 5):
        x = np.ones((size, 3), np.float32)
        np.testing.assert_allclose(ours({"x": x})["y"].numpy(), [3])
