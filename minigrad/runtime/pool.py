"""The native thread pool: Python threads that enter the executor's worker loop and stay there, the GIL released.

Threads start at the first command that wants them. After a fork the child has none of them and makes its own. At exit
they are stopped before the interpreter, and with it the code they run, is taken down.
"""
from __future__ import annotations

import atexit
import ctypes
import sys
import threading
import time
import weakref
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from minigrad.config import current
from minigrad.platforms import at_fork, usable_cores
from minigrad.runtime import builtin_call, executor_ir
from minigrad.runtime.commands import Prepared
from minigrad.runtime.host import allocate_aligned
from minigrad.runtime.llvm_jit import Jit, Unit

# Waking a sleeping thread takes about 25 us, so an idle worker watches for about that long before it sleeps.
SPIN_SECONDS = 40e-6
CALIBRATION_PAUSES = 1000

_WORK = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_uint64)
_SPIN = ctypes.CFUNCTYPE(None, ctypes.c_uint64)
_STOP = ctypes.CFUNCTYPE(None, ctypes.c_void_p)

_pools: weakref.WeakSet[Pool] = weakref.WeakSet()


class Pool:
    """Runs command tables on `threads` threads, the caller being one of them. Callers hold `lock`."""

    def __init__(self, jit: Jit, threads: int) -> None:
        """`threads` >= 1."""
        entries = "run", "work", "spin", "stop", *builtin_call.ENTRIES
        found = jit.addresses([Unit(entries, executor_ir.emit_executor(jit.triple))])[0]
        run, work, spin, stop = found[:4]
        self.run = builtin_call.builtin("run", run, builtin_call.Entries(*found[4:]))
        """Executes the commands of a table that `admit` has seen; returns when all are done."""
        self._work, self._spin, self._stop = _WORK(work), _SPIN(spin), _STOP(stop)
        self.lock = threading.Lock()
        self._system = _system_function(executor_ir.has_futex(jit.triple))
        self.threads = threads
        self._workers: list[threading.Thread] = []
        self._scratch: list[np.ndarray] = []
        self._fresh_state()
        _pools.add(self)

    def admit(self, table: Prepared) -> None:
        """Gets ready for a table: threads if a command has several chunks, scratch memory. No command may be running.

        The table may run for as long as `admitted` is the pool's `state`.
        """
        if table.parallel and not self._workers and self.threads > 1:
            self._start()
        if table.scratch > self._scratch_bytes:
            fresh = self._new_scratch(table.scratch)
            self._scratch = [*self._scratch, *fresh]  # what the state points to is held all the time
            self._point_to(self.state, fresh)
            self._scratch = fresh
        if table.scratch and current().poison:
            for memory in self._scratch:
                memory[:] = 0xFF
        table.admit(self.state, self.state.ctypes.data)

    @property
    def _scratch_bytes(self) -> int:
        """Memory of each worker's own, of those that have the least."""
        return min([memory.nbytes for memory in self._scratch], default=0)

    def _new_scratch(self, nbytes: int) -> list[np.ndarray]:
        return [allocate_aligned((nbytes + 4095) & -4096) for _ in range(self.threads)]

    @staticmethod
    def _point_to(state: np.ndarray, scratch: list[np.ndarray]) -> None:
        for i, memory in enumerate(scratch):
            _word(state, executor_ir.scratch_at(i))[0] = memory.ctypes.data

    def close(self) -> None:
        """Stops the threads and waits for them. A later run starts new ones."""
        workers = self._workers
        if not workers:
            return
        self._stop(self.state.ctypes.data)
        self._fresh_state()
        self._workers = []
        for worker in workers:
            if worker.is_alive():
                worker.join()

    def resize(self, threads: int) -> None:
        """Changes the number of threads, the caller included. No command may be running."""
        self.close()
        self.threads = threads
        self._fresh_state()

    def __del__(self, finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        # Nobody can be in `run` any more. At exit the threads are already stopped, and names of modules may be gone.
        if not finalizing():
            self.close()

    def abandon(self) -> None:
        """Forgets threads and lock holders that do not exist in this process, after a fork."""
        self.lock = threading.Lock()
        self._workers = []
        self._fresh_state()

    def _fresh_state(self) -> None:
        """Takes another state, when all of it is there."""
        state = allocate_aligned(executor_ir.state_bytes(self.threads))
        state[:] = 0
        _word(state, executor_ir.THREADS)[0] = self.threads
        _word(state, executor_ir.SYSTEM)[0] = self._system
        scratch = self._new_scratch(self._scratch_bytes)
        self._point_to(state, scratch)
        self.state, self._scratch = state, scratch

    def _start(self) -> None:
        _word(self.state, executor_ir.SPIN)[0] = self._calibrate()
        for i in range(1, self.threads):
            worker = threading.Thread(target=_stay, args=(self._work, self.state, i), daemon=True,
                                      name=f"minigrad-{i}")
            self._workers.append(worker)
            try:
                worker.start()
            except RuntimeError:
                self._workers.pop()
                break  # the system gives no more threads: those that exist take the chunks of the missing ones

    def _calibrate(self) -> int:
        # How long one pause lasts differs tenfold between processors. With more threads than cores, watching keeps
        # the core from whoever has the work.
        seconds = min(self._time_pauses() for _ in range(3))
        crowded = self.threads > usable_cores()
        return max(1, int((SPIN_SECONDS / 20 if crowded else SPIN_SECONDS) / seconds * CALIBRATION_PAUSES))

    def _time_pauses(self) -> float:
        start = time.perf_counter()
        self._spin(CALIBRATION_PAUSES)
        return max(time.perf_counter() - start, 1e-7)


def _word(state: np.ndarray, offset: int) -> np.ndarray:
    return state[offset:offset + 8].view(np.uint64)


def _stay(work: Callable[[int, int], None], state: np.ndarray, me: int) -> None:
    """A worker's whole life; as an argument of the thread, `state` outlives it."""
    work(state.ctypes.data, me)


def _system_function(futex: bool) -> int:
    """The address of the system's function by which idle workers sleep; on Windows, of a table of those by which they
    sleep and wake."""
    if sys.platform == "win32":
        return ctypes.addressof(_windows_functions())
    library = ctypes.CDLL(None)
    return _address(library.syscall if futex else library.nanosleep)


@cache
def _windows_functions() -> ctypes.Array[ctypes.c_void_p]:
    library = ctypes.CDLL("api-ms-win-core-synch-l1-2-0")
    return (ctypes.c_void_p * 2)(_address(library.WaitOnAddress), _address(library.WakeByAddressAll))


def _address(function: Any) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def _abandon_all() -> None:
    for pool in list(_pools):
        pool.abandon()


def _close_all() -> None:
    for pool in list(_pools):
        # A thread of the user's that still computes at exit keeps its workers: the process ends under both.
        if pool.lock.acquire(timeout=1.0):
            pool.close()
            pool.lock.release()


atexit.register(_close_all)
at_fork(after_in_child=_abandon_all)
