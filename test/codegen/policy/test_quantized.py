"""Quantised matrices against the reading of GGUF blocks by numpy."""
import re

import numpy as np
import pytest
from conftest import CPU_DRIVERS, devices, one_in
from support.blocks import random_blocks

from minigrad import Tensor, show
from minigrad.errors import ShapeError
from minigrad.microkernels import features
from minigrad.ops.block_formats import FORMATS as BLOCK_FORMATS
from minigrad.state import QuantizedTensor
from minigrad.state.gguf_quants import KINDS as FORMATS
from minigrad.state.quantized import NEAREST as KINDS
from minigrad.state.quantized import PANEL, quantize_blocks, quantize_rows

rng = np.random.default_rng(8)
FORMAT = {f.name: f for f in FORMATS.values()}
LARGEST_ERROR = {"Q8_0": 0.5, "Q4_0": 1.0, "Q4_1": 0.5}  # in steps of the scale


def values_of(blocks: np.ndarray, kind: str) -> np.ndarray:
    """float32 [N, K] of uint8 blocks [N, K/32, bytes]."""
    return FORMAT[kind].dequantize(blocks.reshape(-1, blocks.shape[-1])).reshape(blocks.shape[0], -1)


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("rows, columns", [(32, 64), (37, 96), (1, 32), (18, 2048)])
@pytest.mark.parametrize("kind", KINDS)
@one_in(5, CPU_DRIVERS)
def test_values_are_those_of_the_blocks(kind: str, rows: int, columns: int, device: str) -> None:
    blocks = quantize_blocks(rng.standard_normal((rows, columns)).astype(np.float32), kind)
    expected = values_of(blocks, kind)
    w = QuantizedTensor.from_blocks(kind, (rows, columns), blocks, device)
    assert w.nbytes() == blocks.nbytes
    np.testing.assert_array_equal(w.dequantize().numpy(), expected)
    picked = rng.integers(-rows, rows, (2, 3)).astype(np.int32)
    np.testing.assert_array_equal(w.rows(Tensor(picked, device=device)).numpy(), expected[picked])
    order = rng.permutation(rows)
    np.testing.assert_array_equal(w.take_rows(order).dequantize().numpy(), expected[order])
    x = rng.standard_normal((2, columns)).astype(np.float32)
    np.testing.assert_allclose(w.linear(Tensor(x, device=device)).numpy(), x @ expected.T, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("kind", KINDS)
@one_in(2, CPU_DRIVERS)
def test_integer_products_are_those_of_rounded_activations(kind: str, device: str) -> None:
    w = QuantizedTensor.quantize(rng.standard_normal((37, 64)).astype(np.float32), kind, device)
    exact = w.dequantize().numpy().astype(np.float64)
    for rows in (1, 3, 20):
        x = rng.standard_normal((rows, 64)).astype(np.float32)
        x[0, :32] = 0.0
        numbers, scales = [t.numpy() for t in quantize_rows(Tensor(x, device=device))]
        assert np.abs(numbers).max() == 127 and np.abs(numbers * scales - x.reshape(rows, 2, 32)).max() < 0.02
        rounded = (numbers * scales).reshape(rows, 64).astype(np.float64)
        found = w.linear(Tensor(x, device=device), Tensor.ones(37, device=device), quantize_activations=True).numpy()
        np.testing.assert_allclose(found, rounded @ exact.T + 1, rtol=1e-5, atol=3e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_dequantising_is_part_of_the_product(kind: str) -> None:
    if "sse" in features() and "f16c" not in features():
        pytest.skip("this processor has no instruction that converts halves: they are converted first, once")
    w = QuantizedTensor.quantize(rng.standard_normal((512, 576)).astype(np.float32), kind, "CPU")
    for rows in (1, 4, 16, 64, 256):
        kernels = show(w.linear(Tensor(np.ones((rows, 576), np.float32), device="CPU")), stage="kernels")
        assert kernels.count("kernel ") == 1, kernels
    several = QuantizedTensor.quantize(rng.standard_normal((3, 64, 576)).astype(np.float32), kind, "CPU")
    picked = several.pick(Tensor(np.array([2, 0, 1, 2], np.int32), device="CPU"))
    for rows in (1, 4):
        kernels = show(picked.linear(Tensor(np.ones((4, rows, 576), np.float32), device="CPU")), stage="kernels")
        assert kernels.count("kernel ") == 1, kernels


def test_matrices_are_looked_up_in_place_for_a_batch_alone() -> None:
    """Rows of one product that are looked up are copied, as a tile of it takes several."""
    w = Tensor(rng.standard_normal((5, 192, 256)).astype(np.float32), device="CPU")
    numbers = Tensor(np.array([4, 0, 2, 4], np.int32), device="CPU")
    x = Tensor(rng.standard_normal((4, 3, 256)).astype(np.float32), device="CPU")
    batched = x.matmul(w[numbers].transpose(1, 2))
    assert show(batched, stage="kernels").count("kernel ") == 1
    np.testing.assert_allclose(batched.numpy(), x.numpy() @ w.numpy()[numbers.numpy()].swapaxes(1, 2), atol=1e-3)
    chosen = Tensor(np.arange(0, 960, 2, dtype=np.int32), device="CPU")
    alone = w.reshape(-1, 256)[chosen].matmul(x.reshape(-1, 256).expand(6, 12, 256).reshape(-1, 256).transpose())
    assert show(alone, stage="kernels").count("kernel ") == 2


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("kind", BLOCK_FORMATS)
@one_in(4, CPU_DRIVERS)
def test_of_several_matrices_only_the_picked_ones_are_read(kind: str, device: str) -> None:
    """Of experts, of which few are chosen on the device: nothing of the size of all of them is written."""
    count, rows, columns = 96, 18, 256
    blocks = random_blocks(rng, kind, count * rows, columns)
    every = values_of(blocks, kind).reshape(count, rows, columns)
    w = QuantizedTensor.from_blocks(kind, (count, rows, columns), blocks, device)
    np.testing.assert_array_equal(w.dequantize().numpy(), every)
    chosen = np.array([[3, 95], [11, 3]], np.int32)
    x = rng.standard_normal((2, 2, 1, columns)).astype(np.float32)
    on_device, given = Tensor(chosen, device=device), Tensor(x, device=device)
    expected = (every[chosen].astype(np.float64) * x).sum(-1)
    products = (w.dequantize()[on_device] * given).sum(-1)
    picked = w.pick(on_device.reshape(-1))
    assert picked.shape == (4, rows, columns)
    linear = picked.linear(given.reshape(4, 1, columns)).reshape(2, 2, rows)
    written = re.findall(r"out o\d+: \w+\[([\d, ]+)\]", show(linear, stage="kernels"))
    assert bool(written) is (device != "NUMPY")
    assert all(np.prod([*map(int, w.split(","))]) <= 4 * 2 * PANEL * columns for w in written), written
    for found in (products, linear):
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())


@pytest.mark.parametrize("kind", KINDS)
def test_quantising_is_near(kind: str) -> None:
    values = rng.standard_normal((6, 128)).astype(np.float32)
    values[2, :32] = 0.0
    w = QuantizedTensor.quantize(values, kind)
    steps = np.repeat(np.abs(w.scales.numpy().transpose(0, 2, 1).reshape(-1, 4)[:6].astype(np.float32)), 32, axis=1)
    error = np.abs(w.dequantize().numpy() - values)
    assert (error <= LARGEST_ERROR[kind] * steps * 1.01 + 2e-3).all()
    assert (w.dequantize().numpy()[2, :32] == 0).all()
    again = QuantizedTensor.quantize(Tensor(values).cast("bfloat16"), kind)
    assert again.shape == (6, 128)


@pytest.mark.parametrize("columns, apart", [(2048, True), (576, False)])
@pytest.mark.parametrize("kind", KINDS)
def test_panels_do_not_meet_in_few_sets_of_a_cache(kind: str, columns: int, apart: bool) -> None:
    w = QuantizedTensor.quantize(rng.standard_normal((32, columns)).astype(np.float32), kind, "CPU")
    for part in w.parts:
        stored = part.node.inputs[0] if part.node.storage is None else part.node
        step = stored.storage.nbytes // 2
        assert step % 2048 and (step > part.shape[1] * PANEL * part.dtype.itemsize) is apart


def test_what_cannot_be_quantised() -> None:
    with pytest.raises(ShapeError, match=r"multiple of 32 numbers and one of Q8_0, Q4_0, Q4_1, got \[3, 33\] and Q8_0"):
        quantize_blocks(np.zeros((3, 33), np.float32), "Q8_0")
