"""Quantised matrices as layers use them, one or several in a kernel, against numpy: every kind, 1 to 64 rows, odd
shapes, both modes, one thread and two.
"""
from collections.abc import Callable

import numpy as np
import pytest

from minigrad import Tensor, config
from minigrad.state import QuantizedTensor
from minigrad.state.quantized import NEAREST as KINDS

ROWS = (1, 2, 3, 4, 5, 7, 8, 11, 16, 17, 33, 64)
SHAPES = ((5632, 256), (37, 96), (300, 224), (1, 32), (577, 64))  # the first is long enough to be read panel by panel

# What is made of three products and a bias of each column: two gated as in LLaMA's feed-forward, or others.
FORMS: dict[str, Callable] = {
    "gated": lambda a, b, c, bias: a / (a * a + 1) * b,
    "one": lambda a, b, c, bias: a,
    "bias": lambda a, b, c, bias: a + bias,
    "three": lambda a, b, c, bias: a * b - c,
}


def rounded(x: np.ndarray) -> np.ndarray:
    """x [M, K] in whole steps of a 127th of the largest magnitude of its blocks of 32."""
    blocks = x.reshape(len(x), -1, 32)
    steps = np.abs(blocks).max(-1, keepdims=True) * np.float32(1 / 127)
    inverse = np.divide(np.float32(1), steps, out=np.zeros_like(steps), where=steps != 0)
    return (np.rint(blocks * inverse).astype(np.float64) * steps).reshape(x.shape)


@pytest.mark.parametrize("integers", [False, True], ids=["exact", "quantize_activations"])
@pytest.mark.parametrize("kind", KINDS)
def test_products_are_those_of_numpy(kind: str, integers: bool) -> None:
    rng = np.random.default_rng(KINDS.index(kind))
    for case, rows in enumerate(ROWS):
        columns, length = SHAPES[0 if case < 2 else case % len(SHAPES)]
        form = list(FORMS)[case // 2 % len(FORMS)]
        x, bias = rng.standard_normal((rows, length)).astype(np.float32), rng.standard_normal(columns)
        x[0, :32] = 0.0
        weights = [QuantizedTensor.quantize((rng.standard_normal((columns, length)) / length**0.5).astype(np.float32),
                                            kind, "CPU") for _ in range(3)]
        with config(threads=1 + case % 2, device="CPU"):
            products = [w.linear(Tensor(x), quantize_activations=integers) for w in weights]
            found = FORMS[form](*products, Tensor(bias.astype(np.float32))).numpy()
            matrices = [w.dequantize().numpy().astype(np.float64) for w in weights]
        exact = [(rounded(x) if integers else x) @ w.T for w in matrices]
        np.testing.assert_allclose(found, FORMS[form](*exact, bias), rtol=2e-4, atol=2e-4,
                                   err_msg=f"{rows} rows, {columns} x {length}, {form}")
