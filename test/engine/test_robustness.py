"""First hours of use: very long graphs, running totals, fork, threads."""
import multiprocessing
import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from conftest import devices

from minigrad import Tensor, config, jit, nn
from minigrad.engine.observe import Observer, observing
from minigrad.engine.pressure import MAX_UNREALIZED, pressure
from minigrad.engine.stats import stats
from minigrad.ops import toposort

pytestmark = pytest.mark.usefixtures("on_numpy")


def test_chain_of_100000_additions() -> None:
    x = Tensor([1.0])
    for _ in range(100_000):
        x = x + 1
    assert x.item() == 100_001


def test_gradient_through_a_long_chain() -> None:
    x = Tensor([1.0], requires_grad=True)
    y = x
    for _ in range(20_000):
        y = y + x
    y.sum().backward()
    assert x.grad is not None and x.grad.item() == 20_001


def test_running_total_of_100000_losses() -> None:
    total = Tensor(0.0)
    for k in range(100_000):
        total += Tensor(float(k % 3))
    assert total.item() == sum(k % 3 for k in range(100_000))


def test_unrealized_graphs_stay_bounded() -> None:
    x = Tensor([1.0, 2.0])
    total = x.sum()
    for k in range(3000):
        total = total + (x * (k / 3000)).exp().sin().sum()
        assert len(toposort(total.node)) <= MAX_UNREALIZED + 256 * 8
    assert np.isfinite(total.item())


def test_long_chain_of_assignments_forgets_old_versions() -> None:
    x = Tensor([0.0]).realize()
    for _ in range(3000):
        x.assign(x + 1)
        x.realize()
    assert x.item() == 3000 and len(toposort(x.node, through_storage=True)) <= 4


def test_stack_of_many() -> None:
    parts = [Tensor([float(k)]) for k in range(300)]
    assert parts[0].stack(*parts[1:]).reshape(-1).tolist() == list(range(300))


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.parametrize("device", [d for d in devices() if not d.startswith("CL")])
def test_fork_after_use(device: str) -> None:
    x = Tensor(np.arange(70000, dtype=np.float32) % 5, device=device)
    want = (x * 2).sum().item()
    child = os.fork()
    if child == 0:
        same = False
        try:
            same = (x * 2).sum().item() == want and (x + 1).sum().item() == want / 2 + 70000
        finally:
            os._exit(0 if same else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert (x * 2).sum().item() == want


@pytest.mark.parametrize("device", devices())
def test_threads_share_a_device(device: str) -> None:
    def work(k: int) -> float:
        x = Tensor(np.full((50, 50), k, np.float32), device=device)
        return (x @ x).sum().item()

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(work, range(12))) == [k * k * 50.0 * 2500 for k in range(12)]


def test_lazy_sums_keep_a_bounded_part_of_their_data(monkeypatch: pytest.MonkeyPatch) -> None:
    """What nobody reads is computed when it keeps too much in memory; values of their own size stay lazy."""
    monkeypatch.setattr(pressure, "mark", 0)
    batch = np.ones((64, 1024), np.float32)  # a quarter of a MiB
    with config(device="CPU", lazy_mb=4):
        total, rows = Tensor(0.0), []
        before = most = stats.mem_used
        plain = [Tensor(batch) + 1 for _ in range(4)]
        for k in range(64):
            x = Tensor(batch) * (k % 2)
            total = total + x.sum()
            rows.append(x.sum(1)[0])
            most = max(most, stats.mem_used)
        assert most - before < 8 << 20
        assert all(p.node.storage is None for p in plain) and rows[0].node.storage is not None
        assert total.item() == 32 * 65536 and sum(r.item() for r in rows) == 32 * 1024


@pytest.mark.parametrize("keeps", ["gradient", "capture", "no limit"])
def test_what_has_a_gradient_or_is_captured_stays_lazy(keeps: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pressure, "mark", 0)
    with config(device="CPU", lazy_mb=0 if keeps == "no limit" else 1):
        total = Tensor(0.0, requires_grad=keeps == "gradient") * 1

        def add() -> Tensor:
            nonlocal total
            for _ in range(8):
                total = total + Tensor(np.ones((64, 1024), np.float32)).sum()
            return total

        if keeps == "capture":
            with observing(Observer()):
                add()
        else:
            add()
        assert total.node.storage is None and total.item() == 8 * 65536


def _load(batches: Any, count: int) -> None:
    """A worker of a loader of data, in a process of its own."""
    for k in range(count):
        batches.put((Tensor(np.ones((64, 64), np.float32), device="CPU") * k).sum(0).numpy())


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="no fork on this system")
def test_loaders_of_data_that_are_forked_while_threads_compute() -> None:
    """A lock that another thread holds when a process is forked is never given back there."""
    context, stop = multiprocessing.get_context("fork"), threading.Event()

    def compute() -> None:
        x, k = Tensor(np.ones((128, 128), np.float32), device="CPU"), 0
        while not stop.is_set():
            k += 1
            (x @ x + float(k)).softmax(-1).sum().item()

    Tensor([1.0], device="CPU").exp().item()  # Python's own locks of modules stay held in a child: all are imported now
    threads = [threading.Thread(target=compute) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(4):
            batches = context.Queue()
            worker = context.Process(target=_load, args=(batches, 3))
            worker.start()
            assert [batches.get(timeout=60)[0] for _ in range(3)] == [0, 64, 128]
            worker.join(60)
            assert worker.exitcode == 0
    finally:
        stop.set()
        for thread in threads:
            thread.join()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # Python has no way out of a callback
@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no interval timers on this system")
def test_interrupted_work_is_done_again() -> None:
    """Ctrl-C at any moment of planning, compiling, running or replaying leaves nothing half done."""
    values = np.random.default_rng(0).standard_normal((48, 48)).astype(np.float32)
    weight = Tensor(values, device="CPU", requires_grad=True)
    optimizer = nn.optim.SGD([weight], lr=0.0)

    @jit
    def step(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = (x @ weight).square().mean().backward()
        optimizer.step()
        return loss

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        for k in range(7):
            with suppress(KeyboardInterrupt):
                signal.setitimer(signal.ITIMER_REAL, 0.001 * 3**k / 2, 2)
                while True:
                    x = Tensor(values[:8 + k], device="CPU")
                    step(x).item()
                    (x.sin() * weight.detach()[:8 + k]).softmax(-1).sum(0).realize()
            signal.setitimer(signal.ITIMER_REAL, 0)
            x = Tensor(values[:8 + k], device="CPU")
            np.testing.assert_allclose(step(x).item(), np.square(values[:8 + k] @ values).mean(), rtol=1e-4)
            assert weight.grad is not None
            np.testing.assert_allclose(weight.numpy(), values)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
