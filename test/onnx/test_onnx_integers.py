"""Operators that weigh, scale or quantise integers, beside the reference of the onnx package."""
from __future__ import annotations

from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402
from onnx.reference import ReferenceEvaluator  # noqa: E402

from minigrad.onnx import Invalid, Narrow, OnnxModel  # noqa: E402


def one_node(op: str, feeds: dict[str, np.ndarray], element: int, weights: dict[str, np.ndarray] | None = None,
             inputs: list[str] | None = None, opset: int = 21, **attributes: Any) -> Any:
    """A model of one operator from fed arrays to y."""
    weights = weights or {}
    fed = [helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
           for name, a in feeds.items()]
    node = helper.make_node(op, inputs or [*feeds, *weights], ["y"], **attributes)
    graph = helper.make_graph([node], "g", fed, [helper.make_tensor_value_info("y", element, None)],
                              [numpy_helper.from_array(a, name) for name, a in weights.items()])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def numbers(dtype: str, *shape: int, seed: int = 0) -> np.ndarray:
    """Random integers of the type's range, up to what the reference's cubic weights, of float32, have digits for."""
    info, rng = np.iinfo(dtype), np.random.default_rng(seed)
    return rng.integers(max(info.min, -2**16), min(info.max, 2**16), shape, dtype, endpoint=True)


RESIZES: list[dict[str, Any]] = [{"mode": mode, "coordinate_transformation_mode": places}
                                 for mode in ("linear", "cubic", "nearest")
                                 for places in ("half_pixel", "align_corners", "asymmetric")]
RESIZES += [{"mode": mode, "antialias": 1} for mode in ("linear", "cubic")]


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int16", "int32", "int64"])
def test_resized_integers_are_the_nearest(dtype: str) -> None:
    for seed, attributes in enumerate(RESIZES):
        rng = np.random.default_rng(seed)
        x = numbers(dtype, 2, 1, *rng.integers(2, 9, 2), seed=seed)
        sizes = np.array([2, 1, *rng.integers(1, 14, 2)])
        element = helper.np_dtype_to_tensor_dtype(x.dtype)
        model = one_node("Resize", {"x": x}, element, {"sizes": sizes}, ["x", "", "", "sizes"], 19, **attributes)
        want, got = ReferenceEvaluator(model).run(None, {"x": x})[0], OnnxModel(model)({"x": x})["y"].numpy()
        assert got.dtype == want.dtype and got.shape == want.shape
        off = np.abs(got.astype(np.float64) - want.astype(np.float64))  # by one where float32 rounds halves elsewhere
        assert off.max() <= 1 and (off > 0).mean() < 0.05, (attributes, got, want)


def test_a_ramp_is_upsampled_to_a_ramp() -> None:
    x = np.array([[0, 8, 16, 24]], np.uint8)
    model = one_node("Resize", {"x": x}, TensorProto.UINT8, {"sizes": np.array([1, 7])}, ["x", "", "", "sizes"],
                     mode="linear", coordinate_transformation_mode="align_corners")
    np.testing.assert_array_equal(OnnxModel(model)({"x": x})["y"].numpy(), [[0, 4, 8, 12, 16, 20, 24]])


def test_upsample_of_old_opsets() -> None:
    x = np.array([[[[10, 20], [30, 41]]]], np.uint8)
    model = one_node("Upsample", {"x": x}, TensorProto.UINT8, {"scales": np.array([1, 1, 1, 2], np.float32)}, opset=9,
                     mode="linear")
    np.testing.assert_array_equal(OnnxModel(model)({"x": x})["y"].numpy()[0, 0], [[10, 15, 20, 20], [30, 36, 41, 41]])


def test_weights_have_the_digits_of_the_image() -> None:
    rng, element = np.random.default_rng(0), helper.np_dtype_to_tensor_dtype
    for x in (rng.standard_normal((5, 7)), rng.integers(-2**45, 2**45, (5, 7)), rng.integers(0, 2**32, 9, np.uint32)):
        sizes = np.array([11, 9][:x.ndim])
        model = one_node("Resize", {"x": x}, element(x.dtype), {"sizes": sizes}, ["x", "", "", "sizes"], mode="linear")
        want = ReferenceEvaluator(model).run(None, {"x": x})[0]
        np.testing.assert_allclose(OnnxModel(model)({"x": x})["y"].numpy(), want, 1e-13, 1e-13)


@pytest.mark.parametrize("mode", ["linear", "nearest", "cubic"])
def test_sampled_integers_stay_integers(mode: str) -> None:
    """The nearest to what is sampled from floats."""
    x, grid = numbers("int16", 1, 2, 4, 5), np.random.default_rng(1).uniform(-1.2, 1.2, (1, 3, 4, 2)).astype(np.float32)
    got, want = (OnnxModel(one_node("GridSample", {"x": image, "grid": grid}, element, opset=20, mode=mode))(
        {"x": image, "grid": grid})["y"].numpy() for image, element in
        ((x, TensorProto.INT16), (x.astype(np.float32), TensorProto.FLOAT)))
    np.testing.assert_array_equal(got, want.round().clip(-2**15, 2**15 - 1).astype(np.int16))


def test_gemm_of_integers_is_cut_once() -> None:
    rng = np.random.default_rng(2)
    feeds = {name: rng.integers(-9, 9, shape, np.int32) for name, shape in (("a", (3, 4)), ("b", (4, 5)), ("c", (5,)))}
    model = one_node("Gemm", feeds, TensorProto.INT32, alpha=0.5, beta=0.25)
    want = np.trunc(0.5 * (feeds["a"] @ feeds["b"]) + 0.25 * feeds["c"])
    np.testing.assert_array_equal(OnnxModel(model)(feeds)["y"].numpy(), want)


@pytest.mark.parametrize("element", ["int8", "uint8", "int16", "uint16"])
def test_quantised_numbers_saturate_whatever_the_zero_point(element: str) -> None:
    x = np.array([-1e3, 1e3, 0, 2.5e-7, -3.5e-7, 1e38, -1e38, np.inf, -np.inf, 1e-5, -3e-3], np.float32)
    scale, info = np.array(1e-7, np.float32), np.iinfo(element)
    with np.errstate(over="ignore"):
        steps = np.rint(x / scale).astype(np.float64)
    for zero in {info.min, -1 if info.min else 1, 0, info.max}:
        model = one_node("QuantizeLinear", {"x": x, "scale": scale, "zero": np.array(zero, element)},
                         helper.np_dtype_to_tensor_dtype(np.dtype(element)))
        got = OnnxModel(model)({"x": x, "scale": scale, "zero": np.array(zero, element)})["y"].numpy()
        np.testing.assert_array_equal(got, (steps + zero).clip(info.min, info.max).astype(element), f"{zero}")


@pytest.mark.parametrize("element", ["INT4", "UINT4", "FLOAT8E4M3FN", "FLOAT8E5M2", "FLOAT8E4M3FNUZ", "FLOAT4E2M1"])
def test_numbers_of_few_bits_come_out_and_go_in(element: str) -> None:
    """As arrays of the type that the onnx package has for them, captured and not, and from one model to the next."""
    to, x = getattr(TensorProto, element), np.array([[-3, 0.5, 2], [1, 7, -0.0]], np.float32)
    x = abs(x) if element == "UINT4" else x
    there = OnnxModel(one_node("Cast", {"x": x}, to, opset=23, to=to))
    graph = helper.make_graph([helper.make_node("Cast", ["y"], ["z"], to=TensorProto.FLOAT)], "g",
                              [helper.make_tensor_value_info("y", to, [2, 3])],
                              [helper.make_tensor_value_info("z", TensorProto.FLOAT, None)])
    back = OnnxModel(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)]))
    want = x.astype(helper.tensor_dtype_to_np_dtype(to))
    for _ in range(3):
        y = there({"x": x})["y"]
        assert isinstance(y, Narrow) and y.shape == (2, 3) and y.dtype == element.lower()
        assert y.numpy().dtype == want.dtype and (y.numpy() == want).all()
        for fed in (y, y.numpy()):
            np.testing.assert_array_equal(back({"y": fed})["z"].numpy(), want.astype(np.float32))
    assert there.replays == 2
    with pytest.raises(Invalid, match=f"input 'y': expected {element.lower()}, got float"):
        back({"y": x})
