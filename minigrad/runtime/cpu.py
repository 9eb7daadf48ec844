"""The CPU device: Programs in LLVM IR, compiled by llvmlite, run by the native executor on the thread pool.

A list of launches becomes one table of commands and one native call. It is synchronous: `launch` returns when the work
is done. `keep` keeps the table for further runs, with arguments and extents that can be changed in place.
"""
from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from operator import length_hint
from threading import Lock
from time import perf_counter

from minigrad import config
from minigrad.errors import DeviceError
from minigrad.runtime.amx import allow_matrix_registers
from minigrad.runtime.arm_features import ARM
from minigrad.runtime.caches import cache_sizes
from minigrad.runtime.commands import Executable, Prepared
from minigrad.runtime.device import Kept, Launch, Program
from minigrad.runtime.host import HostMemory
from minigrad.runtime.host_calls import raise_failure
from minigrad.runtime.llvm_jit import Jit, Unit
from minigrad.runtime.llvm_thread import uninterrupted
from minigrad.runtime.pool import Pool
from minigrad.stores import Store, at_once
from minigrad.target import Target


class CPU(HostMemory):
    """The host processor. Launches use as many threads as the configuration says at that moment."""

    name = "CPU"
    keeps_early = calls_host = True

    def __init__(self, threads: int | None = None) -> None:
        """`threads` fixes their number, whatever the configuration says."""
        HostMemory.__init__(self)
        self._threads = threads
        self._jit = shared_jit()
        self.driver = self._jit.version
        self.pool = Pool(self._jit, threads or config.current().threads)
        self.target = host_target(self._jit, self.pool.threads)
        self._elapsed = 0.0
        self.timed = False
        """True from the first call of `elapsed` on: launches are timed."""

    def load(self, programs: Iterable[Program]) -> list[Executable]:
        """Compiles programs that no cache knows, in batches, while further programs are still being made.

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

    def launch_and(self, launches: list[Launch], stores: Sequence[Store]) -> None:
        """`launch`, and the stores at once with it."""
        self.run(Prepared(launches), stores)

    def prepare(self, launches: list[Launch]) -> Prepared:
        """Builds the command table of the launches once, for `run`."""
        return Prepared(launches)

    def run(self, prepared: Prepared, stores: Sequence[Store] = ()) -> None:
        """Runs a prepared list in one native call, and makes the stores at once with it; returns when all is done."""
        with self.pool.lock:
            self.run_locked(prepared, 0, stores)

    def run_locked(self, prepared: Prepared, threads: int = 0, stores: Sequence[Store] = ()) -> None:
        """`run`, for a caller that holds the pool's lock, under which prepared lists may also be changed.

        `threads` is the configuration's number, 0 where it is to be looked up. What calls of Python among the launches
        raise comes after the stores: the memory holds something else by then.
        """
        pool = self.pool
        if prepared.parallel:
            threads = self._threads or threads or config.current().threads
            if threads != pool.threads:
                pool.resize(threads)
        if prepared.admitted is not pool.state:
            pool.admit(prepared)
        start = perf_counter() if self.timed else 0.0
        if stores:
            at_once([partial(pool.run, prepared.pointer), *stores])
        else:
            pool.run(prepared.pointer)
        if self.timed:
            self._elapsed += perf_counter() - start
        raise_failure()

    def keep(self, launches: list[Launch], memories: list[tuple[int, ...]]) -> KeptTable:
        """A command table that stays, for launches that run again and again."""
        return KeptTable(self, launches)

    def synchronize(self) -> None:
        """Does nothing: nothing is ever queued, launches return when they are done."""

    def elapsed(self) -> float:
        """Seconds spent in launches since the last call; 0 at the first one: launches are timed from then on."""
        seconds, self._elapsed, self.timed = self._elapsed, 0.0, True
        return seconds


class KeptTable(Kept):
    """A command table whose words are rewritten; a place is the position of a word."""

    def __init__(self, device: CPU, launches: list[Launch]) -> None:
        self.device, self.table = device, device.prepare(launches)
        rows = [(launch, start) for launch, starts in enumerate(self.table.rows) for start in starts]
        self._starts = [start for _, start in rows]
        self._launches = [(launch, launches[launch].work) for launch, _ in rows]
        self._encoders = {start + at: encode for launch, start in rows
                          for at, encode in enumerate(launches[launch].executable.encoders) if encode is not None}
        self.table.release()

    @property
    def lock(self) -> Lock:
        return self.device.pool.lock

    def place(self, row: int, argument: int) -> int:
        return self._starts[row] + argument

    def set_addresses(self, places: Sequence[Sequence[int]], addresses: Sequence[int]) -> None:
        words = self.table.words
        for positions, address in zip(places, addresses, strict=True):
            for at in positions:
                words[at] = address

    def set_number(self, places: Sequence[int], value: int | float) -> None:
        for at in places:
            self.table.words[at] = self._encoders[at](value)

    def set_extent(self, row: int, extent: int) -> None:
        launch, work = self._launches[row]
        self.table.resize(launch, extent, work)

    def address(self, place: int) -> int:
        return self.table.words[place]

    def run(self, threads: int = 0, stores: Sequence[Store] = ()) -> None:
        self.device.run_locked(self.table, threads, stores)


@lru_cache(maxsize=1)
def shared_jit() -> Jit:
    """The process's one compiler and loader."""
    return uninterrupted(Jit)


def host_target(jit: Jit, threads: int) -> Target:
    """The facts of this processor that code generation may use."""
    features = dict(jit.features)
    if features.get("amx-tile") and not allow_matrix_registers():
        features = {name: on and not name.startswith("amx") for name, on in features.items()}
    return facts_of(jit.triple, jit.cpu, features, jit.host, threads)


def facts_of(triple: str, cpu: str, features: Mapping[str, bool], host: str, threads: int) -> Target:
    """The facts of a processor with these features, in LLVM's words, and with the caches of this one."""
    known = frozenset(name for name, on in features.items() if on) | {"fp64"}
    if "avx512f" in known:
        vector_bytes, registers = 64, 32
    elif "avx" in known:
        vector_bytes, registers = 32, 16
    else:
        vector_bytes, registers = 16, 32 if triple.startswith(ARM) else 16
    l1, l2 = cache_sizes()
    return Target("CPU", "llvm", cpu, vector_bytes, registers, threads, l1, l2, features=known, host=host)
