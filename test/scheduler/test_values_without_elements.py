"""What has no elements is computed by no kernel, whatever stands before it: a row's sum that only it reads, and that is
asked for besides."""
from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from support.golden_plans import TARGETS
from support.stages import kernels

from minigrad import Tensor, config, jit
from minigrad.nn import functional as F

Form = Callable[[Tensor, Tensor], Tensor]

FORMS: dict[str, Form] = {
    "pad of a slice": lambda x, y: F.pad(y[:0], (3, 3)) + x,
    "pad with ones": lambda x, y: F.pad(y[6:], (0, 6), value=1) * x,
    "cat": lambda x, y: Tensor.cat(y[:0], x),
    "sum": lambda x, y: y[:0].sum() + x,
    "product": lambda x, y: y[:0].prod() * x,
    "sum of no rows": lambda x, y: y.reshape(1, 6)[:0].sum(0) + x,
    "cumulative sum": lambda x, y: y.reshape(6, 1)[:, :0].cumsum(1).sum(1) + x,
    "index_add": lambda x, y: x.index_add(0, Tensor(np.zeros(0, np.int32)), y[:0]),
    "matmul over nothing": lambda x, y: y.reshape(6, 1)[:, :0] @ x.reshape(1, 6)[:0] + x,
    "convolution of no channels": lambda x, y: F.conv1d(
        x.reshape(1, 1, 6), y.reshape(1, 1, 6)[:, :0].sum(1, keepdim=True)).reshape(-1) + x,
    "softmax": lambda x, y: F.pad(y[:0].softmax(0), (0, 6)) + x,
}


@pytest.mark.parametrize("name", FORMS)
def test_a_row_that_only_a_value_without_elements_reads(name: str) -> None:
    array = np.arange(1, 7, dtype=np.float32)

    def step(x: Tensor) -> tuple[Tensor, Tensor]:
        total = x.sum()
        return total, FORMS[name](x, x * total)

    with config(device="NUMPY"):
        wanted = [t.numpy() for t in step(Tensor(array))]
    captured = jit(step)
    for run in (step, captured, captured, captured):
        for found, want in zip(run(Tensor(array)), wanted, strict=True):
            np.testing.assert_allclose(found.numpy(), want, rtol=1e-6)


def test_gradients() -> None:
    x = Tensor(np.arange(1, 7, dtype=np.float32), requires_grad=True)
    total = x.sum()
    loss = (F.pad((x * total)[:0], (3, 3)) * x).sum() + total * 2
    np.testing.assert_array_equal(loss.gradient(x)[0].numpy(), np.full(6, 2, np.float32))


def test_nothing_runs_for_it() -> None:
    x = Tensor(np.ones((64, 64), np.float32)).realize()
    assert len(kernels(x + F.pad((x @ x).exp()[:0], (0, 0, 64, 0)), TARGETS["avx2"])) == 1


def test_a_change_in_place_before_it_is_made() -> None:
    x = Tensor(np.zeros(4, np.float32))
    x.add_(1)
    assert F.pad(x[:0], (2, 0)).numpy().tolist() == [0, 0]
    assert x.numpy().tolist() == [1, 1, 1, 1]
