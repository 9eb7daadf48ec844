"""Launches whose arguments stay set, alone or in chains: a run sets only what has changed."""
from __future__ import annotations

from collections.abc import Iterator, Sequence
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np

from minigrad.errors import CompileError, InternalError
from minigrad.platforms import usable_cores
from minigrad.runtime.device import Buffer, Kept, Launch
from minigrad.runtime.opencl_chain import LINE, Planned, Table, chain_program, chains_of, word_of
from minigrad.stores import Store

if TYPE_CHECKING:
    from minigrad.runtime.opencl import OpenCL

Place = tuple[int, int]
"""A launch and the number of an argument of its program."""

Work = tuple[Any, tuple[int], tuple[int]]
"""A kernel with its arguments set, its global size and its work-group size."""

OTHER_ARGUMENTS = 4
"""The number of arguments of a chain's kernel before its memories."""


class KeptLaunches(Kept):
    """Launches for many runs, one for each row. Every buffer has to be set before the first one.

    A launch alone has a kernel object of its own. Those of a chain are rows of a table; a kernel object of the chain
    has the memories.
    """

    def __init__(self, device: OpenCL, launches: list[Launch], memories: list[tuple[int, ...]]):
        import pyopencl as cl
        self.device = device
        rows = list(_rows(launches))
        self.launches = [Planned(launch.executable, held, launch.work / len(launch.table or (0,)), beside)
                         for (launch, _, _, beside), held in zip(rows, memories, strict=True)]
        self._lock = Lock()
        self._addresses: dict[Place, int] = {}
        self._at = [p.executable.positions() for p in self.launches]
        self.chains = self._make_chains()
        chained = {k for chain in self.chains for k in chain}
        self._kernels = {k: cl.Kernel(p.executable.kernel.program, p.executable.kernel.function_name)
                         for k, p in enumerate(self.launches) if k not in chained}
        self._sizes: dict[int, tuple[tuple[int], tuple[int]]] = {}
        self._work: list[Work] | None = None
        for k, (_, arguments, extent, _) in enumerate(rows):
            for at, value in enumerate(arguments):
                if not isinstance(value, Buffer):
                    self.set_number([(k, at)], value)
            self.set_extent(k, extent)

    @property
    def lock(self) -> Lock:
        return self._lock

    def place(self, row: int, argument: int) -> Place:
        return row, argument

    def address(self, place: Place) -> int:
        return self._addresses.get(place, 0)

    def run(self, threads: int = 0, stores: Sequence[Store] = ()) -> None:
        self.device.run(self, stores)

    def _make_chains(self) -> list[range]:
        device, launches = self.device, self.launches
        if not device.groups_at_once:
            return []
        most = device.info.handle.max_parameter_size // 8 - OTHER_ARGUMENTS
        chains = chains_of(launches, most)
        if not chains:
            return []
        table = Table(launches, chains, min(device.groups_at_once, usable_cores()))
        memories = [list(dict.fromkeys(m for k in chain for m in launches[k].memories)) for chain in chains]
        wide = max(map(len, memories))
        try:
            kernels = device.chain_kernels(chain_program([e.program for e in table.programs], wide, table.stride),
                                           len(chains))
        except CompileError:
            return []  # each of them compiles alone
        self._table = table
        self._start_chains(chains, memories, kernels, wide)
        return chains

    def _start_chains(self, chains: list[range], memories: list[list[int]], kernels: list[Any], wide: int) -> None:
        """Sets what stays: counters and table, rows, stand-ins for memories that a chain does not have."""
        device, table = self.device, self._table
        self._counters = device.alloc(4 * 3 * LINE)
        device.copy_in(self._counters, np.zeros(3 * LINE, np.uint32))
        self._words = device.alloc(table.words.nbytes)
        self._uploaded: Any = None
        self._chain_work: dict[int, Work] = {}
        self._holders: dict[int, list[tuple[Any, int]]] = {}
        """By memory: the kernels that have it, and as which argument."""
        for chain, held, kernel in zip(chains, memories, kernels, strict=True):
            fixed = (self._counters.handle, self._words.handle, np.int64(table.row_of[chain.start]),
                     np.int64(len(chain)), *[self._counters.handle] * wide)
            for at, value in enumerate(fixed):
                kernel.set_arg(at, value)
            for at, memory in enumerate(held, OTHER_ARGUMENTS):
                self._holders.setdefault(memory, []).append((kernel, at))
            for k in chain:
                numbers = [held.index(m) for m in self.launches[k].memories]
                for position, itemsize in zip(self._at[k], self.launches[k].executable.itemsizes, strict=True):
                    if itemsize:
                        table.set_word(k, position, numbers.pop(0))
            self._chain_work[chain.start] = (kernel, (table.groups,), (1,))
        self._handles: dict[int, Any] = {}

    def set_addresses(self, places: Sequence[Sequence[Place]], addresses: Sequence[int]) -> None:
        known = self._addresses
        for at, address in zip(places, addresses, strict=True):
            if at and known.get(at[0]) != address:
                known.pop(at[0], None)  # until all are set
                handle, offset = self.device.locate(address)
                for k, argument in at:
                    self._set_buffer(k, argument, handle, offset)
                known.update(dict.fromkeys(at, address))

    def _set_buffer(self, k: int, argument: int, handle: Any, offset: int) -> None:
        """Sets memory `offset` bytes into a handle as an argument of the launch k."""
        planned, at = self.launches[k], self._at[k][argument]
        executable = planned.executable
        itemsize = executable.itemsizes[argument]
        if handle is None or offset % itemsize:
            raise InternalError(f"[launch] expected live memory at a multiple of {itemsize} bytes, got {offset}")
        kernel = self._kernels.get(k)
        if kernel is None:
            self._table.set_word(k, at + 1, offset // itemsize)
            memory = planned.memories[argument]
            if self._handles.get(memory) is not handle:
                self._handles.pop(memory, None)
                for holder, position in self._holders[memory]:
                    holder.set_arg(position, handle)
                self._handles[memory] = handle
        else:
            kernel.set_arg(at, handle)
            kernel.set_arg(at + 1, executable.types[at + 1](offset // itemsize))

    def set_number(self, places: Sequence[Place], value: int | float) -> None:
        for k, argument in places:
            at = self._at[k][argument]
            kind = self.launches[k].executable.types[at]
            if k in self._kernels:
                self._kernels[k].set_arg(at, kind(value))
            else:
                self._table.set_word(k, at, word_of(value, kind))

    def set_extent(self, row: int, extent: int) -> None:
        kernel = self._kernels.get(row)
        if kernel is None:
            self._table.set_extent(row, extent)
            return
        executable = self.launches[row].executable
        kernel.set_arg(len(executable.types) - 1, executable.types[-1](extent))
        self._sizes[row] = self.device.ranges(executable, extent)
        self._work = None

    def work(self) -> list[Work]:
        """The kernels to queue for a run, in order."""
        if self._work is None:
            starts = self._chain_work if self.chains else {}
            self._work = [starts[k] if k in starts else (self._kernels[k], *self._sizes[k])
                          for k in range(len(self.launches)) if k in starts or k in self._kernels]
        return self._work

    def upload(self, queue: Any) -> None:
        """Queues the copy of the table to the device, if it has changed."""
        if self.chains and self._table.changed:
            import pyopencl as cl
            self._table.count_chunks()
            # The event keeps the copied words until they are there.
            self._uploaded = cl.enqueue_copy(queue, self._words.handle, self._table.words.copy(), is_blocking=False)
            self._table.changed = False


def _rows(launches: list[Launch]) -> Iterator[tuple[Launch, tuple[Any, ...], int, bool]]:
    """(launch, arguments, extent, True where it depends on nothing that the one before it does) of each row."""
    before = -1
    for launch in launches:
        for n, (arguments, extent) in enumerate(launch.table or ((launch.arguments, launch.extent),)):
            yield launch, arguments, extent, n > 0 or before == launch.group >= 0
        before = launch.group
