"""The number of iterations as an argument: texts, equal results, and windows over other numbers of planes."""
# Tests know their dims are ints.
# mypy: disable-error-code="arg-type"
import numpy as np
import pytest

from minigrad import Tensor, config
from minigrad.codegen.ir.interpret import interpret_function
from minigrad.codegen.ir.text import parse_function, print_function
from minigrad.codegen.ir.verify import verify_function
from minigrad.codegen.transforms.lift_counts import lift_counts
from minigrad.engine.stats import stats

BEFORE = """\
func f(in a: f32[96], in w: f32[6], inout y: f32[48])
  for p in 0..12 parallel:
    for r in 0..2 serial:
      for l in 0..4 vector:
        y[l+4*p] if l-1 >= 0 = a[l+4*p+48*r] * w[p%6] + y[l+4*p] + a[4*(p//6)+24*r]
"""
AFTER = """\
func f(in a: f32[d1], in w: f32[d2], inout y: f32[d3], d0: index in 1..2147483647, d1: index in 1..2147483647, \
d2: index in 1..2147483647, d3: index in 1..2147483647, d4: index in 1..2147483647)
  for p in 0..d0 parallel:
    for r in 0..2 serial:
      for l in 0..4 vector:
        y[l+4*p] if l-1 >= 0 = a[4*d0*r+l+4*p] * w[p%d4] + y[l+4*p] + a[24*r+4*(p//d4)]
"""


def test_counts_become_dims():
    function = parse_function(BEFORE)
    lifted, sizes = lift_counts(function)
    verify_function(lifted)
    assert print_function(lifted) == AFTER
    assert sizes == (12, 96, 6, 48, 6)
    results = []
    for f, dims in ((function, {}), (lifted, {d.name: n for d, n in zip(lifted.dims, sizes, strict=True)})):
        y = np.ones(48, np.float32)
        interpret_function(f, {"a": np.arange(96, dtype=np.float32), "w": np.arange(6, dtype=np.float32), "y": y},
                           dims=dims)
        results.append(y)
    np.testing.assert_array_equal(*results)


@pytest.mark.parametrize("text", [
    "func f(inout y: f32[n], n: index in 1..9)\n  for p in 0..n parallel:\n    y[p] = 0.0\n",
    "func f(inout y: f32[8])\n  for i in 0..8 serial:\n    y[i] = 0.0\n",
    "func f(in k: i64[8], inout y: f32[8])\n  for p in 0..8 parallel:\n    y[{k[p] in 0..7}] = 0.0\n",
], ids=["symbolic", "serial", "computed"])
def test_others_stay(text: str):
    assert lift_counts(parse_function(text)) is None


def test_windows_over_other_numbers_of_planes_are_one_program():
    random = np.random.default_rng(0)

    def result(n: int, channels: int) -> np.ndarray:
        x, w = random.standard_normal((n, channels, 18, 20)), random.standard_normal((channels, 1, 3, 3))
        a, b = (Tensor(v.astype(np.float32)) for v in (x, w))
        y = a.conv2d(b, groups=channels, padding=1)
        with config(device="NUMPY"):
            expected = Tensor(x.astype(np.float32)).conv2d(Tensor(w.astype(np.float32)), groups=channels, padding=1)
            np.testing.assert_allclose(y.numpy(), expected.numpy(), rtol=1e-4, atol=1e-5)
        return y.numpy()

    with config(device="CPU"):
        result(2, 6)
        before = stats.snapshot()
        result(3, 10)
        assert (stats.snapshot() - before).programs == 0
