"""Threads that assign to one tensor, and processes that are forked while others begin to compute."""
from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from conftest import devices

from minigrad import Tensor, jit

TURNS = 24


@contextmanager
def eager_switches() -> Iterator[None]:
    """Threads take turns after a few instructions."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def together(*works: Callable[[], object]) -> list[BaseException]:
    """What the works raise, each done many times by a thread of its own."""
    raised: list[BaseException] = []

    def repeat(work: Callable[[], object]) -> None:
        try:
            for _ in range(TURNS):
                work()
        except BaseException as error:
            raised.append(error)

    threads = [threading.Thread(target=repeat, args=(work,)) for work in works]
    with eager_switches():
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return raised


@pytest.mark.parametrize("device", [d for d in devices() if not d.startswith("CL")])
def test_several_assign_to_one_tensor(device: str) -> None:
    """Each reads whole values that somebody has written, and the last one stays."""
    x = Tensor(np.zeros(64, np.float32), device=device).realize()

    def read() -> None:
        found = x.numpy()
        assert found[40:].min() == found[40:].max() and found[40] == int(found[40])

    @jit
    def step(one: Tensor) -> Tensor:
        x.assign(x + one)
        return x.sum()

    def replay() -> None:
        step(Tensor([1.0], device=device))

    def region() -> None:
        x[2:5] = x[2:5] + 1

    works: list[Callable[[], object]] = [
        lambda: x.assign(x + 1).realize(), lambda: x.add_(1).tolist(), region, read, lambda: np.asarray(x).sum(),
        lambda: (x * 2).sum().item(), replay, lambda: x.detach().clone().realize()]
    assert together(*works) == []
    x.assign(x * 0 + 7)
    assert x.tolist() == [7] * 64


def test_reading_loses_no_assignment() -> None:
    x = Tensor(np.zeros(8, np.float32)).realize()
    count = 0

    def write() -> None:
        nonlocal count
        count += 1
        x.assign(x + 1)
        if count % 3 == 0:
            x.realize()

    assert together(write, lambda: x.numpy(), lambda: x.sum().item(), lambda: x.realize()) == []
    assert x.tolist() == [TURNS] * 8


FORK = """
import os, sys, threading, time
import numpy as np
from minigrad import Tensor

def compute():
    x = Tensor(np.ones((40, 40), np.float32))
    (x @ x).softmax(-1).sum().item()

threads = [threading.Thread(target=compute) for _ in range(3)]
for thread in threads:
    thread.start()
children = []
for _ in range(3):
    child = os.fork()
    if not child:
        os._exit(0 if (Tensor(np.ones((4, 4), np.float32)) + 1).sum().item() == 32 else 1)
    children.append(child)
    time.sleep(0.05)
print([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children])
for thread in threads:
    thread.join()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_children_that_are_forked_while_threads_begin_to_compute(tmp_path: Path) -> None:
    """Modules are imported, the device is opened, LLVM compiles for the first time."""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", FORK], capture_output=True, text=True, timeout=120,
                          env={**os.environ, "MINIGRAD_CACHE": str(tmp_path)})
    assert done.stdout.strip() == "[0, 0, 0]", done.stderr
