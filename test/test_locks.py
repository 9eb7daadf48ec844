"""Locks of modules in forked children."""
import os
import threading
from typing import Any

import pytest

from minigrad import locks as module
from minigrad import random
from minigrad.engine import observe, realize
from minigrad.expr import core
from minigrad.locks import free_in_children
from minigrad.runtime import opencl_devices, registry

MODULES = {"expr": core._interning, "realize": realize.working, "lines": observe._lock, "random": random._state.lock,
           "registry": registry._lock, "opencl": opencl_devices._lock}


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_child_finds_them_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread holds them all, for longer than a fork waits; it does not exist in the child."""
    monkeypatch.setattr(module, "PATIENCE", 0.05)
    plain = threading.Lock()
    locks: list[Any] = [*MODULES.values(), free_in_children(threading.RLock()), plain]
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        for lock in locks:
            lock.acquire()
        held.set()
        done.wait(60)
        for lock in reversed(locks):
            lock.release()

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(60)
    child = os.fork()
    if not child:
        free = [lock.acquire(timeout=1) for lock in locks]
        os._exit(0 if free == [True] * (len(locks) - 1) + [False] else 1)
    done.set()
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert all(lock.acquire(timeout=1) for lock in locks), "the parent's are as they were"
    for lock in locks:
        lock.release()
