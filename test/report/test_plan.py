"""`minigrad.plan`: kernels, operations, bytes and peak memory, and that nothing runs and nothing changes."""
import gc
import re

import numpy as np
import pytest

import minigrad
from minigrad import Tensor, jit
from minigrad.engine.observe import dry_runs
from minigrad.engine.stats import stats
from minigrad.errors import MinigradError
from minigrad.optim import SGD


def tensor(*shape: int) -> Tensor:
    return Tensor(np.random.default_rng(1).standard_normal(shape, np.float32), device="CPU").realize()


def test_a_lazy_tensor() -> None:
    a, b = tensor(64, 128), tensor(128, 32)
    y = a @ b
    gc.collect()  # what earlier tests left gives its memory back now or later
    before = stats.snapshot()
    found = minigrad.plan(y)
    spent = stats - before
    assert spent.launches == spent.programs == spent.mem_used == 0
    (kernel,) = found.kernels
    assert kernel.flops == found.flops == 2 * 64 * 128 * 32
    assert kernel.bytes == found.bytes == found.peak_bytes == 4 * (64 * 128 + 128 * 32 + 64 * 32)
    assert re.match(r"plan \w+\n  (fuse|sizes|split) ", kernel.how) and kernel.rows == 1
    assert found.holders[0].nbytes == 4 * 64 * 128
    np.testing.assert_allclose(y.numpy(), a.numpy() @ b.numpy(), rtol=1e-5, atol=1e-5)


def test_temporaries_count_where_they_live_together() -> None:
    x, n = tensor(1 << 16), 4 << 16
    s = x.exp().contiguous()
    t = (s + 1).contiguous()
    u = (t + s).contiguous()
    found = minigrad.plan((u * u).sum())
    # x, s and t and u live together at the third launch; what a plan of memory may share, it shares.
    assert 4 * n <= found.peak_bytes <= 4 * n + 4096
    assert len(found.kernels) >= 4


def training_step() -> tuple[Tensor, SGD]:
    w = tensor(16, 16)
    w.requires_grad = True
    return w, SGD([w], lr=0.1, momentum=0.9)


def test_a_training_step_is_planned_and_changes_nothing() -> None:
    w, optimizer = training_step()
    x = tensor(8, 16)

    def step(x: Tensor) -> Tensor:
        loss = (x @ w).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    values, momentum = w.numpy(), [b.numpy() for b in optimizer.buffers]
    before = stats.snapshot()
    found = minigrad.plan(step, x)
    assert (stats - before).launches == 0 and not dry_runs
    assert w.grad is None and w.numpy().tobytes() == values.tobytes()
    assert [b.numpy().tobytes() for b in optimizer.buffers] == [m.tobytes() for m in momentum]
    assert any(k.line.startswith("test_plan.py:") for k in found.kernels)
    start = stats.snapshot()
    loss = step(x)
    Tensor.realize(loss, w, *optimizer.buffers)
    ran = stats - start
    assert len(found.kernels) == ran.launches
    assert found.flops == ran.flops and found.bytes == ran.bytes
    assert "launches" in str(found) and "that was there before" in str(found)


def test_a_planned_leaf_gets_its_gradient_once() -> None:
    x = Tensor([1.0, 2.0], device="CPU") * 3
    x.requires_grad_()
    minigrad.plan(x)
    (x * x).sum().backward()
    assert x.grad is not None and x.grad.tolist() == [6.0, 12.0]


def test_random_numbers_are_not_used_up() -> None:
    minigrad.manual_seed(3)
    minigrad.plan(lambda: Tensor.rand(10, device="CPU"))
    drawn = Tensor.rand(10, device="CPU").numpy()
    minigrad.manual_seed(3)
    assert Tensor.rand(10, device="CPU").numpy().tobytes() == drawn.tobytes()


def test_a_captured_function_is_planned_too() -> None:
    calls = []

    @jit
    def double(x: Tensor) -> Tensor:
        calls.append(1)
        return (x * 2).realize()

    x = tensor(100)
    double(x)
    found = minigrad.plan(double, x)
    assert len(found.kernels) == 1 and found.peak_bytes == 800
    assert len(calls) == 2 and double.captures == 1


def test_views_share_their_memory() -> None:
    x = tensor(64, 64)
    found = minigrad.plan(lambda: x.reshape(4096)[:100].sum() + x.sum())
    assert found.peak_bytes < 1.2 * 4 * 4096


def test_errors() -> None:
    x = tensor(4)
    with pytest.raises(MinigradError, match="expected no value on the host"):
        minigrad.plan(lambda: (x + 1).sum().item())
    kept: list[Tensor] = []
    with pytest.raises(MinigradError, match="keeps no tensor"):
        minigrad.plan(lambda: kept.append((x * 3).realize()))
    kept.clear()
    with pytest.raises(MinigradError, match="expected a function or a Tensor, got int"):
        minigrad.plan(3)  # type: ignore[arg-type]
    with pytest.raises(MinigradError, match="evaluates ops one by one"):
        minigrad.plan(lambda: Tensor([1.0], device="NUMPY") + 1)
    assert not dry_runs and x.numpy().shape == (4,)
