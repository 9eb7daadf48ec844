"""The CPU device: Programs in LLVM IR, compiled by llvmlite, run by the native executor on the thread pool.

A list of launches becomes one table of commands and one native call. It is synchronous: `launch` returns when the work
is done. `prepare` keeps the table for replay, with arguments and extents that can be changed in place.
"""
from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from operator import length_hint
from time import perf_counter

from minigrad import config
from minigrad.errors import DeviceError
from minigrad.runtime.amx import allow_matrix_registers
from minigrad.runtime.caches import cache_sizes
from minigrad.runtime.commands import Executable, Prepared
from minigrad.runtime.device import Device, Launch, Program
from minigrad.runtime.host import HostMemory
from minigrad.runtime.llvm_jit import Jit, Unit
from minigrad.runtime.pool import Pool
from minigrad.target import Target


class CPU(HostMemory, Device):
    """The host processor. Launches use as many threads as the configuration says at that moment."""

    name = "CPU"

    def __init__(self, threads: int | None = None) -> None:
        """`threads` fixes their number, whatever the configuration says."""
        HostMemory.__init__(self)
        self._threads = threads
        self._jit = shared_jit()
        self.pool = Pool(self._jit, threads or config.current().threads)
        self.target = host_target(self._jit, self.pool.threads)
        self._elapsed = 0.0
        self.timed = False
        """Whether launches are timed: from the first question on."""

    def load(self, programs: Iterable[Program]) -> list[Executable]:
        """Compiles what no cache knows, in groups, while further programs are still being made.

        Raises CompileError with LLVM's words and the source, NotStored for a program without source that no cache has.
        """
        kept: list[Program] = []

        def units() -> Iterator[Unit]:
            for p in programs:
                if p.language != "llvm":
                    raise DeviceError(f"[load] expected a program in llvm for the CPU, got {p.language}")
                kept.append(p)
                yield Unit((p.name,), p.source, p.links, p.digest)

        found = self._jit.addresses(units(), length_hint(programs))
        return [Executable(p, a[0]) for a, p in zip(found, kept, strict=True)]

    def launch(self, launches: list[Launch]) -> None:
        """Runs the launches in order; returns when all are done."""
        self.run(Prepared(launches))

    def prepare(self, launches: list[Launch]) -> Prepared:
        """Builds the command table of the launches once, for `run`."""
        return Prepared(launches)

    def run(self, prepared: Prepared) -> None:
        """Runs a prepared list in one native call; returns when all is done."""
        with self.pool.lock:
            self.run_locked(prepared)

    def run_locked(self, prepared: Prepared, threads: int = 0) -> None:
        """`run`, for a caller that holds the pool's lock. Who holds it may also change prepared lists.

        `threads` are those of the configuration, where the caller has looked.
        """
        pool = self.pool
        if prepared.parallel:
            threads = self._threads or threads or config.current().threads
            if threads != pool.threads:
                pool.resize(threads)
        if prepared.admitted is not pool.state:
            pool.admit(prepared)
        if not self.timed:
            pool.run(prepared.pointer)
            return
        start = perf_counter()
        pool.run(prepared.pointer)
        self._elapsed += perf_counter() - start

    def synchronize(self) -> None:
        """Nothing is ever queued: launches return when they are done."""

    def elapsed(self) -> float:
        """0 when it is first asked: launches are timed from then on."""
        seconds, self._elapsed, self.timed = self._elapsed, 0.0, True
        return seconds


@lru_cache(maxsize=1)
def shared_jit() -> Jit:
    """The process's one compiler and loader."""
    return Jit()


def host_target(jit: Jit, threads: int) -> Target:
    """What code generation may know about this processor."""
    features = frozenset(name for name, on in jit.features.items() if on) | {"fp64"}
    if "amx-tile" in features and not allow_matrix_registers():
        features = frozenset(name for name in features if not name.startswith("amx"))
    arm = jit.triple.startswith(("aarch64", "arm64"))
    if "avx512f" in features:
        vector_bytes, registers = 64, 32
    elif "avx" in features:
        vector_bytes, registers = 32, 16
    else:
        vector_bytes, registers = 16, 32 if arm else 16
    l1, l2 = cache_sizes()
    return Target("CPU", "llvm", jit.cpu, vector_bytes, registers, threads, l1, l2, features=features,
                  host=jit.host)
