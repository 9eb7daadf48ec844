"""Operators of com.microsoft beside onnxruntime, which defines them."""
from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")

from onnx import ValueInfoProto, helper, numpy_helper

from minigrad.onnx import OnnxModel

random = np.random.default_rng(11)


def floats(*shape: int) -> Any:
    """Random float32."""
    return random.standard_normal(shape).astype(np.float32)


def bytes_of(*shape: int) -> Any:
    """Random uint8."""
    return random.integers(0, 256, shape).astype(np.uint8)


SCALE, ZERO, ONE = np.float32(0.02), np.uint8(120), np.int32
ANGLES = [np.cos(np.outer(np.arange(16), [1, 0.1])).astype(np.float32),
          np.sin(np.outer(np.arange(16), [1, 0.1])).astype(np.float32)]
TURNS = np.outer(np.arange(16), 0.6 ** np.arange(8))
WIDE = [np.cos(TURNS).astype(np.float32), np.sin(TURNS).astype(np.float32)]
CACHE = {"num_heads": 4, "kv_num_heads": 2}
Q = (SCALE, ZERO)
CASES: list[tuple[str, str, dict[str, Any], list[Any], int]] = [
    ("plain", "Attention", {"num_heads": 2}, [floats(2, 5, 8), floats(8, 24), floats(24)], 1),
    ("causal past", "Attention", {"num_heads": 2, "unidirectional": 1},
     [floats(2, 3, 8), floats(8, 24), floats(24), None, floats(2, 2, 2, 4, 4)], 2),
    ("mask of keys", "Attention", {"num_heads": 2},
     [floats(2, 4, 8), floats(8, 24), floats(24), np.array([[1, 1, 1, 0], [1, 1, 0, 0]], ONE)], 1),
    ("mask of lengths", "Attention", {"num_heads": 2},
     [floats(2, 4, 8), floats(8, 24), floats(24), np.array([3, 2], ONE)], 1),
    ("cross", "MultiHeadAttention", {"num_heads": 2}, [floats(2, 3, 8), floats(2, 6, 8), floats(2, 6, 8)], 1),
    ("bias and mask", "MultiHeadAttention", {"num_heads": 2, "scale": 0.7},
     [floats(2, 3, 8), floats(2, 4, 8), floats(2, 4, 8), floats(24), np.array([[1, 1, 1, 0], [1, 1, 0, 0]], ONE),
      floats(1, 2, 3, 4)], 1),
    ("past", "MultiHeadAttention", {"num_heads": 2, "unidirectional": 1},
     [floats(1, 2, 8), floats(1, 2, 8), floats(1, 2, 8), None, None, None, floats(1, 2, 3, 4), floats(1, 2, 3, 4)], 3),
    ("prompt", "GroupQueryAttention", CACHE,
     [floats(2, 5, 32), floats(2, 5, 16), floats(2, 5, 16), None, None, np.array([4, 4], ONE), np.array(5, ONE)], 3),
    ("step", "GroupQueryAttention", {**CACHE, "do_rotary": 1, "local_window_size": 3},
     [floats(2, 1, 64), floats(2, 1, 32), floats(2, 1, 32), floats(2, 2, 6, 16), floats(2, 2, 6, 16),
      np.array([6, 6], ONE), np.array(7, ONE), *WIDE], 3),
    ("packed", "GroupQueryAttention", {**CACHE, "do_rotary": 1, "rotary_interleaved": 1},
     [floats(1, 4, 128), None, None, None, None, np.array([3], ONE), np.array(4, ONE), *WIDE], 3),
    ("places", "RotaryEmbedding", {}, [floats(2, 3, 8), np.array([[0, 1, 2], [4, 5, 6]]), *ANGLES], 1),
    ("first place", "RotaryEmbedding", {"interleaved": 1}, [floats(2, 2, 3, 4), np.array([5]), *ANGLES], 1),
    ("", "SkipLayerNormalization", {"epsilon": 1e-5}, [floats(2, 3, 8), floats(2, 3, 8), floats(8), floats(8)], 1),
    ("", "BiasGelu", {}, [floats(3, 8), floats(8)], 1), ("", "FastGelu", {}, [floats(3, 8), floats(8)], 1),
    ("", "QuickGelu", {}, [floats(3, 8)], 1),
    ("", "FusedMatMul", {"transA": 1, "alpha": 0.3}, [floats(5, 3), floats(5, 4)], 1),
    ("quantised", "QGemm", {"transB": 1, "alpha": 0.5},
     [bytes_of(3, 8), *Q, bytes_of(4, 8), SCALE, np.uint8(99), np.arange(4, dtype=ONE), np.float32(0.2),
      np.uint8(7)], 1),
    ("float", "QGemm", {}, [bytes_of(3, 8), *Q, bytes_of(8, 4), SCALE, np.uint8(99)], 1),
    ("", "QLinearAdd", {}, [bytes_of(3, 8), *Q, bytes_of(8), *Q, np.float32(0.03), ZERO], 1),
    ("", "QLinearMul", {}, [bytes_of(3, 8), *Q, bytes_of(8), *Q, np.float32(0.05), ZERO], 1),
    ("", "QLinearSigmoid", {}, [bytes_of(3, 8), *Q, np.float32(0.004), np.uint8(0)], 1),
    ("", "QLinearLeakyRelu", {"alpha": 0.1}, [bytes_of(3, 8), *Q, *Q], 1),
    ("", "QLinearConcat", {"axis": 1}, [np.float32(0.03), ZERO, bytes_of(3, 8), *Q, bytes_of(3, 2), *Q], 1),
    ("", "QLinearGlobalAveragePool", {"channels_last": 0}, [bytes_of(1, 4, 5, 5), *Q, *Q], 1),
    ("", "NhwcMaxPool", {"kernel_shape": [2, 2], "strides": [2, 2]}, [bytes_of(1, 6, 6, 16)], 1),
    ("4 bits", "MatMulNBits", {"bits": 4, "block_size": 16, "N": 5, "K": 40},
     [floats(3, 40), bytes_of(5, 3, 8), floats(15)], 1),
    ("4 bits, zeros", "MatMulNBits", {"bits": 4, "block_size": 16, "N": 5, "K": 48},
     [floats(2, 48), bytes_of(5, 3, 8), floats(15), bytes_of(10)], 1),
    ("8 bits", "MatMulNBits", {"bits": 8, "block_size": 16, "N": 5, "K": 32},
     [floats(2, 32), bytes_of(5, 2, 16), floats(10)], 1),
]


def model_of(op: str, attributes: dict[str, Any], values: list[Any], outputs: int) -> tuple[Any, dict[str, Any]]:
    """A model of one node, and what to feed: the first input; the others are its constants."""
    arrays = {f"i{k}": np.asarray(v) for k, v in enumerate(values) if v is not None}
    names = [f"i{k}" if v is not None else "" for k, v in enumerate(values)]
    fed = {"i0": arrays.pop("i0")}
    info = helper.make_tensor_value_info("i0", helper.np_dtype_to_tensor_dtype(fed["i0"].dtype), fed["i0"].shape)
    wanted = [ValueInfoProto(name=f"o{k}") for k in range(outputs)]
    graph = helper.make_graph([helper.make_node(op, names, [v.name for v in wanted], domain="com.microsoft",
                                                **attributes)], "g", [info], wanted,
                              [numpy_helper.from_array(a, name) for name, a in arrays.items()])
    return helper.make_model(graph, ir_version=9, opset_imports=[helper.make_opsetid("", 17),
                                                                helper.make_opsetid("com.microsoft", 1)]), fed


@pytest.mark.parametrize("name, op, attributes, values, outputs", CASES, ids=[f"{c[1]} {c[0]}".strip() for c in CASES])
def test_as_onnxruntime(name: str, op: str, attributes: dict[str, Any], values: list[Any], outputs: int) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    model, fed = model_of(op, attributes, values, outputs)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    expected, ours = session.run(None, fed), OnnxModel(model)
    for _ in range(2):
        for got, wanted in zip(ours(fed).values(), expected, strict=True):
            step = 1 if wanted.dtype.kind in "iu" else 2e-5  # an integer may be rounded the other way
            assert got.numpy().dtype == wanted.dtype
            np.testing.assert_allclose(got.numpy().astype(np.float64), wanted.astype(np.float64), rtol=1e-4, atol=step)


def test_integers_of_four_bits_lie_lowest_first() -> None:
    packed, scales = bytes_of(3, 2, 8), floats(6)
    attributes = {"bits": 4, "block_size": 16, "N": 3, "K": 32}
    model, fed = model_of("MatMulNBits", attributes, [floats(2, 32), packed, scales], 1)
    numbers = np.stack([packed & 15, packed >> 4], -1).reshape(3, 2, 16).astype(np.float32) - 8
    weight = (numbers * scales.reshape(3, 2, 1)).reshape(3, 32)
    np.testing.assert_allclose(OnnxModel(model)(fed)["o0"].numpy(), fed["i0"] @ weight.T, rtol=1e-4, atol=1e-4)
