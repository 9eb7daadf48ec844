"""Products with every format of quantised weights, against the gguf package in float64."""
# Tests know their dims are ints.
# mypy: disable-error-code="arg-type,operator"
import numpy as np
import pytest
from conftest import CPU_DRIVERS, devices, one_in
from support.blocks import random_blocks

from minigrad import Tensor, Variable, config, show
from minigrad.errors import DTypeError, ShapeError
from minigrad.ops.block_formats import BLOCK, FORMATS, SUPER
from minigrad.state import QuantizedTensor
from minigrad.state.gguf_quants import KINDS
from minigrad.state.quantized import pack_codes

gguf = pytest.importorskip("gguf", reason="the gguf package is the reference")
FORM = {kind.name: form for form, kind in KINDS.items()}
rng = np.random.default_rng(20)


@pytest.fixture(autouse=True)
def draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same draws whatever ran before: `near` is what float32 leaves of most, not of all."""
    monkeypatch.setitem(globals(), "rng", np.random.default_rng(1))


def reference(blocks: np.ndarray, kind: str) -> np.ndarray:
    """float32 [N, K] by the gguf package."""
    with np.errstate(all="ignore"):
        values = gguf.quants.dequantize(blocks.reshape(len(blocks), -1), gguf.GGMLQuantizationType(FORM[kind]))
    return values.reshape(len(blocks), -1)


def rounded(x: np.ndarray) -> np.ndarray:
    """x [M, K], float64, in whole steps of a 127th of the largest magnitude of its blocks of 32."""
    blocks = x.reshape(len(x), -1, BLOCK)
    steps = np.abs(blocks).max(-1, keepdims=True) * np.float32(1 / 127)
    inverse = np.divide(np.float32(1), steps, out=np.zeros_like(steps), where=steps != 0)
    return (np.rint(blocks * inverse).astype(np.float64) * steps).reshape(x.shape)


def near(found: np.ndarray, weights: np.ndarray, x: np.ndarray) -> None:
    """Float32's rounding of sums of products, by what their terms are together."""
    exact, size = x.astype(np.float64) @ weights.T.astype(np.float64), np.abs(x) @ np.abs(weights.T)
    assert found.shape == exact.shape and (np.abs(found - exact) <= 3e-7 * size + 1e-30).all()


@pytest.mark.parametrize("kind", [k.name for k in KINDS.values()])
def test_values_are_those_of_the_gguf_package(kind: str) -> None:
    """Of any bits: scales that are infinite, NaN or subnormal, too."""
    form = {k.name: k for k in KINDS.values()}[kind]
    blocks = rng.integers(0, 256, (200, form.block_bytes), dtype=np.uint8)
    with np.errstate(all="ignore"):
        found = form.dequantize(blocks)
    np.testing.assert_array_equal(found.reshape(200, -1), reference(blocks, kind))


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("kind", FORMATS)
@one_in(4, CPU_DRIVERS)
def test_products_are_those_of_the_values(kind: str, device: str) -> None:
    """Rows that fill no panel, one row and many of x, zeros among them; values to the bit."""
    for rows, columns in ((37, 512), (80, 768)):
        blocks = random_blocks(rng, kind, rows, columns)
        weights = reference(blocks, kind)
        w = QuantizedTensor.from_blocks(kind, (rows, columns), blocks, device)
        assert w.nbytes() == blocks.nbytes
        np.testing.assert_array_equal(w.dequantize().numpy(), weights)
        picked = rng.integers(-rows, rows, (2, 3)).astype(np.int32)
        np.testing.assert_array_equal(w.rows(Tensor(picked, device=device)).numpy(), weights[picked])
        for many in (1, 3, 20) if rows == 37 else (1,):
            x = rng.standard_normal((many, columns)).astype(np.float32)
            x[0, 32:64] = 0
            for integers in (False, True):
                found = w.linear(Tensor(x, device=device), quantize_activations=integers).numpy()
                near(found, weights, rounded(x) if integers else x)
    for integers in (False, True):
        assert w.linear(Tensor.zeros(0, columns, device=device), quantize_activations=integers).shape == (0, rows)


@pytest.mark.parametrize("kind", ["Q8_0", "Q3_K", "MXFP4"])
def test_integer_products_of_many_rows(kind: str) -> None:
    """By one plan, however many there are: tiles of eight, or what divides them, and what is left."""
    blocks = random_blocks(rng, kind, 80, 512)
    weights, w = reference(blocks, kind), QuantizedTensor.from_blocks(kind, (80, 512), blocks, "CPU")
    x = rng.standard_normal((70, 512)).astype(np.float32)
    for many in (13, 37, 48):
        result = w.linear(Tensor(x[:many], device="CPU"), quantize_activations=True)
        assert "plan stream" in show(result, stage="plan")
        near(result.numpy(), weights, rounded(x[:many]))
    length, whole = Variable("length", 2, 70), Tensor(x, device="CPU")
    for many in (2, 9, 70):
        result = w.linear(whole[:length.bind(many)], quantize_activations=True)
        near(result.numpy(), weights, rounded(x[:many]))


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("kind", ["Q4_K", "MXFP4"])
def test_several_matrices(kind: str, device: str) -> None:
    """The weights of experts: all of them, and some by their numbers."""
    blocks = random_blocks(rng, kind, 3 * 21, 256)
    weights = reference(blocks, kind).reshape(3, 21, 256)
    w = QuantizedTensor.from_blocks(kind, (3, 21, 256), blocks, device)
    np.testing.assert_array_equal(w.dequantize().numpy(), weights)
    x = rng.standard_normal((3, 2, 256)).astype(np.float32)
    for each, own, found in zip(x, weights, w.linear(Tensor(x, device=device)).numpy(), strict=True):
        near(found, own, each)
    chosen = w.pick(Tensor(np.array([2, 0], np.int32), device=device))
    assert chosen.shape == (2, 21, 256)
    np.testing.assert_array_equal(chosen.dequantize().numpy(), weights[[2, 0]])
    ours = chosen.linear(Tensor(x[:2], device=device), Tensor.ones(21, device=device)).numpy()
    for each, own, found in zip(x, weights[[2, 0]], ours, strict=False):
        near(found - 1, own, each)


@pytest.mark.parametrize("kind", FORMATS)
def test_no_part_of_the_weights_is_kept_as_floats(kind: str) -> None:
    w = QuantizedTensor.from_blocks(kind, (256, 512), random_blocks(rng, kind, 256, 512), "CPU")
    for rows in (1, 5, 64):
        text = show(w.linear(Tensor(np.ones((rows, 512), np.float32), device="CPU")), stage="kernels")
        assert text.count("kernel ") == 1, text


@pytest.mark.parametrize("kind", FORMATS)
def test_memory_is_near_that_of_the_file(kind: str) -> None:
    w = QuantizedTensor.from_blocks(kind, (64, 2048), random_blocks(rng, kind, 64, 2048), "CPU")
    ours = sum([p.numel() * p.dtype.itemsize for p in w.parts])
    assert ours <= w.nbytes() * 1.04
    assert ours == 64 * sum([count * dtype.itemsize for _, dtype, count in FORMATS[kind].parts]) * 2048 // 256


@pytest.mark.parametrize("kind", FORMATS)
def test_the_order_of_codes(kind: str) -> None:
    """Code by code, as `ops/block_formats.py` says."""
    f = FORMATS[kind]
    codes = rng.integers(0, 1 << f.bits, (2, 64), dtype=np.uint8)
    words = pack_codes(codes, f.planes).view(np.uint32).reshape(2, 2, f.bits)
    for row, column in ((0, 0), (0, 63), (1, 37), (1, 22), (0, 9)):
        group, byte, found, first, below = column % BLOCK // 4, column % 4, 0, 0, 0
        for width in f.planes:
            word, place = divmod(group, 8 // width)
            bits = int(words[row, column // BLOCK, first + word]) >> (8 * byte + width * place) & ((1 << width) - 1)
            found, first, below = found | bits << below, first + width, below + width
        assert found == codes[row, column]


def test_threads_do_not_change_numbers() -> None:
    w = QuantizedTensor.from_blocks("Q6_K", (300, 512), random_blocks(rng, "Q6_K", 300, 512), "CPU")
    for rows in (1, 20):
        x = Tensor(rng.standard_normal((rows, 512)).astype(np.float32), device="CPU")
        for integers in (False, True):
            found = []
            for threads in (1, 2):
                with config(threads=threads):
                    found.append(w.linear(x, quantize_activations=integers).numpy())
            np.testing.assert_array_equal(*found)


def test_what_is_refused() -> None:
    with pytest.raises(ShapeError, match=r"rows of a multiple of 256 weights in one of .*, got \[2, 32\] in Q6_K"):
        QuantizedTensor.from_blocks("Q6_K", (2, 32), np.zeros(68, np.uint8))
    with pytest.raises(ShapeError, match=r"a multiple of 32 weights in one of .*, got \[2, 32\] in Q9"):
        QuantizedTensor.from_blocks("Q9", (2, 32), np.zeros(68, np.uint8))
    with pytest.raises(ShapeError, match=r"expected 420 bytes for \[2, 256\] in Q6_K, got 421"):
        QuantizedTensor.from_blocks("Q6_K", (2, 256), np.zeros(421, np.uint8))
    f = FORMATS["Q4_K"]
    parts = [Tensor.zeros(2, count * 2, dtype=dtype) for _, dtype, count in f.parts]
    assert parts[0].dequantized("Q4_K", *parts[1:]).shape == (2, 2 * SUPER * BLOCK)
    with pytest.raises(ShapeError, match=r"\[dequantized\] expected words, scales, minimums, super_scales, "
                                         r"super_minimums, got Q4_K and 2 parts"):
        parts[0].dequantized("Q4_K", parts[1])
    with pytest.raises(DTypeError, match=r"expected words of uint32, scales of int8, .* for Q4_K, got uint32, float32"):
        parts[0].dequantized("Q4_K", parts[1].float(), *parts[2:])
    with pytest.raises(ShapeError, match=r"last ones as 32:8:8:1:1 for Q4_K, got \[2, 64\], \[2, 15\]"):
        parts[0].dequantized("Q4_K", parts[1][:, :15], *parts[2:])
    x, scales = Tensor.zeros(3, 16, 8, dtype="int32"), Tensor.zeros(3, 16, 1)
    assert x.byte_products(scales, scales, "Q4_K", *parts).shape == (3, 2)
    with pytest.raises(ShapeError, match=r"\[byte_products\] expected int32 \[3, 16, 8\], float32 \[3, 16, 1\], "
                                         r"float32 \[3, 16, 1\], got int32 \[3, 16, 8\], float32 \[3, 16, 2\]"):
        x.byte_products(scales.expand(3, 16, 2), scales, "Q4_K", *parts)
