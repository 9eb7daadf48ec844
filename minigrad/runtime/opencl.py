"""The OpenCL device: one context and one in-order queue per device, so that memory freed may be used again at once."""
from __future__ import annotations

import atexit
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np

from minigrad.errors import DeviceError, InternalError
from minigrad.platforms import at_fork
from minigrad.program import GROUP
from minigrad.runtime import opencl_devices
from minigrad.runtime.device import Buffer, Device, Launch, Program
from minigrad.runtime.host import bucket_size
from minigrad.runtime.opencl_ahead import compile_ahead
from minigrad.runtime.opencl_build import Builder, scalar_type
from minigrad.runtime.opencl_devices import DeviceInfo, devices, find_device
from minigrad.runtime.opencl_prepared import KeptLaunches
from minigrad.runtime.opencl_quirks import FINISH_SKIPS_FLUSHED, GROUPS_GO_ON, WALL_TIME
from minigrad.stores import Store, at_once

__all__ = ["DeviceInfo", "Executable", "OpenCL", "devices", "open_device"]

CPU_GROUP = 32
CPU_SINGLE_LIMIT = 4096
POOL_SHARE = 8
EVENTS_KEPT = 4096
LAUNCHES_PER_FLUSH = 256

_lock = threading.RLock()
_opened: dict[int, OpenCL] = {}
_forked = False


def open_device(selector: str = "") -> OpenCL:
    """The device for what follows 'CL:': '' is the best, else an index or part of a platform or device name.

    The same device is the same object each time. Raises DeviceError.
    """
    with _lock:
        _check_process("CL")
        info = find_device(selector)
        if info.index not in _opened:
            _opened[info.index] = OpenCL(info)
        return _opened[info.index]


class Executable:
    """A loaded program: its cl.Kernel and, for each argument, the bytes per element of a buffer (0 for a scalar).

    `types` are those of the kernel's own arguments, None for memory: two for a buffer, the extent last.
    """

    __slots__ = ("program", "kernel", "itemsizes", "types")

    def __init__(self, program: Program, kernel: Any):
        self.program, self.kernel = program, kernel
        self.itemsizes = tuple(int(a.partition(":")[2]) if a.startswith("buffer:") else 0 for a in program.arguments)
        types: list[Any] = []
        for argument, itemsize in zip(program.arguments, self.itemsizes, strict=True):
            types.extend((None, np.int64) if itemsize else (scalar_type(argument),))
        self.types = [*types, np.int64]
        kernel.set_scalar_arg_dtypes(self.types)

    def positions(self) -> list[int]:
        """The position among the kernel's arguments at which each argument of the program begins."""
        found, at = [], 0
        for itemsize in self.itemsizes:
            found.append(at)
            at += 2 if itemsize else 1
        return found

    def typed(self, arguments: tuple[Buffer | int | float, ...], extent: int) -> list[tuple[int, Any]]:
        """(position, value) of the kernel's arguments, as `set_arg` takes them."""
        flat = self.flatten(arguments, extent)
        return [(at, value if kind is None else kind(value))
                for at, (value, kind) in enumerate(zip(flat, self.types, strict=True))]

    def flatten(self, arguments: tuple[Buffer | int | float, ...], extent: int) -> list[Any]:
        """The kernel's arguments: (memory, offset in elements) for each buffer, the scalars, the extent."""
        if len(arguments) != len(self.itemsizes):
            raise InternalError(f"[launch] expected {len(self.itemsizes)} arguments for {self.program.name}, "
                                f"got {len(arguments)}")
        flat: list[Any] = []
        for value, itemsize in zip(arguments, self.itemsizes, strict=True):
            if isinstance(value, Buffer):
                if value.handle is None or value.offset % itemsize:
                    raise InternalError(f"[launch] expected live memory at a multiple of {itemsize} bytes, got {value}")
                flat += (value.handle, value.offset // itemsize)
            else:
                flat.append(value)
        flat.append(extent)
        return flat


class OpenCL(Device):
    """One OpenCL device. `info` is its row of `devices()`."""

    def __init__(self, info: DeviceInfo):
        import pyopencl as cl
        self.info, self.target = info, info.target
        self.name, self.driver = self.target.name, f"{info.platform} {info.driver}"
        self._cl = cl
        self._lock = threading.RLock()  # reentrant: the garbage collector may free buffers inside any call
        self._wall = WALL_TIME in info.quirks
        self.groups_at_once = info.units if GROUPS_GO_ON in info.quirks else 0
        """The number of work-groups of a chain that run beside each other; 0 where one must not wait for another."""
        profiling = 0 if self._wall else cl.command_queue_properties.PROFILING_ENABLE
        try:
            self._context = cl.Context([info.handle])
            self._queue = cl.CommandQueue(self._context, info.handle, properties=profiling)
        except cl.Error as e:
            raise DeviceError(f"[{self.name}] {info.platform} ({info.name}) cannot be opened: {_words(e)}") from None
        self._enqueue: Callable[..., Any] = partial(cl.enqueue_nd_range_kernel, self._queue)
        self._builder = Builder(info, self._context)
        self._executables: dict[Program, Executable] = {}
        self._addresses: dict[Any, int] = {}
        self._handles: dict[int, Any] = {}
        self._next_address = bucket_size(1)
        self._pool: dict[int, list[Any]] = {}
        self._pool_bytes = 0
        self._pool_limit = info.global_memory // POOL_SHARE
        self._events: list[tuple[Any, Any]] = []
        self._unfolded = 0
        self._seconds = 0.0
        self._busy_since: float | None = None
        atexit.register(self._at_exit)

    def alloc(self, nbytes: int) -> Buffer:
        """At least `nbytes` bytes, aligned to 64; contents undefined. Raises DeviceError when out of memory."""
        _check_process(self.name)
        size = bucket_size(nbytes)
        with self._lock:
            free = self._pool.get(size)
            if free:
                self._pool_bytes -= size
                handle = free.pop()
                return Buffer(self, nbytes, handle, 0, None, self._addresses[handle])
            try:
                return self._placed(nbytes, size)
            except self._cl.Error:
                self.trim()
            try:
                return self._placed(nbytes, size)
            except self._cl.Error as e:
                limit = f"at most {self.info.max_allocation} bytes in one buffer and {self.info.global_memory} in all"
                raise DeviceError(f"[alloc] expected {limit} on {self.name}, got {nbytes}: {_words(e)}") from None

    def _create(self, size: int) -> Any:
        return self._cl.Buffer(self._context, self._cl.mem_flags.READ_WRITE, size)

    def _placed(self, nbytes: int, size: int) -> Buffer:
        """New memory, with an address."""
        handle = self._create(size)
        address, self._next_address = self._next_address, self._next_address + size
        self._addresses[handle], self._handles[address] = address, handle
        return Buffer(self, nbytes, handle, 0, None, address)

    def _release(self, handle: Any) -> None:
        del self._handles[self._addresses.pop(handle)]
        handle.release()

    def address_of(self, handle: Any) -> int:
        """The number of its first byte, if bytes are counted as they are allocated: none is ever given twice."""
        return self._addresses[handle]

    def locate(self, address: int) -> tuple[Any, int]:
        """(handle, offset in bytes) of an address in memory that lives."""
        handle = self._handles.get(address)
        if handle is not None:
            return handle, 0
        with self._lock:
            base = max([a for a in self._handles if a <= address])
            return self._handles[base], address - base

    def free(self, buffer: Buffer) -> None:
        """Keeps whole allocations for reuse; parts (with a `base` or an offset) and freed buffers are left alone."""
        handle, buffer.handle, buffer.address = buffer.handle, None, 0
        if handle is None or buffer.base is not None or buffer.offset or _forked:
            return
        with self._lock:
            size = handle.size
            if size > self._pool_limit // 2:
                self._release(handle)
                return
            if self._pool_bytes + size > self._pool_limit:
                self.trim()
            self._pool.setdefault(size, []).append(handle)
            self._pool_bytes += size

    def trim(self) -> None:
        """Gives all memory kept for reuse back to the driver, which waits for the commands that use it."""
        with self._lock:
            for handles in self._pool.values():
                for handle in handles:
                    self._release(handle)
            self._pool.clear()
            self._pool_bytes = 0

    def copy_in(self, buffer: Buffer, data: np.ndarray) -> None:
        """Copies a host array into the first `data.nbytes` bytes of the buffer; the array may change afterwards."""
        _check_fits("copy_in", buffer, data)
        if data.nbytes:
            self._copy(buffer.handle, np.ascontiguousarray(data), dst_offset=buffer.offset)

    def copy_out(self, buffer: Buffer, out: np.ndarray) -> None:
        """Fills a C-contiguous host array from the first `out.nbytes` bytes of the buffer; waits for queued work."""
        _check_fits("copy_out", buffer, out)
        if not out.flags.c_contiguous:
            raise DeviceError(f"[copy_out] expected a C-contiguous array, got strides {out.strides}")
        if out.nbytes:
            self._copy(out, buffer.handle, src_offset=buffer.offset)

    def _copy(self, target: Any, source: Any, **offsets: int) -> None:
        """A blocking copy: as the queue is in order, everything before it is done afterwards."""
        _check_process(self.name)
        with self._lock:
            if self._wall:
                self.synchronize()
            try:
                self._cl.enqueue_copy(self._queue, target, source, is_blocking=True, **offsets)
            except self._cl.Error as e:
                raise DeviceError(f"[{self.name}] the driver refused a copy: {_words(e)}") from None

    def load(self, programs: Iterable[Program]) -> list[Executable]:
        """Compiles (or fetches from the caches) each program; raises CompileError with the driver's words."""
        _check_process(self.name)
        wanted: list[Program] = []
        def new() -> Iterator[Program]:
            for p in programs:
                if p.language != "opencl":
                    raise DeviceError(f"[load] expected a program in opencl for {self.name}, got {p.language}")
                wanted.append(p)
                if p not in self._executables:
                    yield p

        with self._lock:
            self._executables.update({p: Executable(p, k) for p, k in self._builder.kernels(new()).items()})
            return [self._executables[p] for p in wanted]

    def launch(self, launches: list[Launch]) -> None:
        """Queues the launches in order, a table row by row; returns without waiting."""
        self.launch_and(launches, ())

    def launch_and(self, launches: list[Launch], stores: Sequence[Store]) -> None:
        """`launch`, and the stores at once with it."""
        _check_process(self.name)
        with self._lock:
            if self._builder.fresh:
                compile_ahead(self, self._builder, launches)
            rows = [(launch.executable, *row) for launch in launches
                    for row in launch.table or ((launch.arguments, launch.extent),)]
            calls: list[Store] = []
            for count, (executable, arguments, extent) in enumerate([row for row in rows if row[2] > 0], 1):
                kernel = executable.kernel
                calls += [partial(kernel.set_arg, *argument) for argument in executable.typed(arguments, extent)]
                calls.append(partial(self._enqueue, kernel, *self.ranges(executable, extent)))
                if count % LAUNCHES_PER_FLUSH == 0:
                    calls.append(self._queue.flush)
            for event in self._queued([*calls, self._queue.flush, *stores]):
                self._keep(event, event, 1)

    def keep(self, launches: list[Launch], memories: list[tuple[int, ...]]) -> KeptLaunches:
        """Kernel objects that keep their arguments; tables are taken apart."""
        with self._lock:
            return KeptLaunches(self, launches, memories)

    def chain_kernels(self, program: Program, count: int) -> list[Any]:
        """`count` kernel objects of a chain's program. Raises CompileError."""
        kernel = self._builder.kernels([program])[program]
        return [kernel, *[self._cl.Kernel(kernel.program, program.name) for _ in range(count - 1)]]

    def run(self, kept: KeptLaunches, stores: Sequence[Store] = ()) -> None:
        """Queues launches that are kept, and makes the stores at once with it; returns without waiting. Their time is
        that from the start of the first to the end of the last: asking for each one's costs as much as queuing it."""
        _check_process(self.name)
        with self._lock:
            work = kept.work()
            calls: list[Store] = []
            for at in range(0, len(work), LAUNCHES_PER_FLUSH):
                calls += [partial(self._enqueue, *one) for one in work[at:at + LAUNCHES_PER_FLUSH]]
                calls.append(self._queue.flush)
            events = self._queued([*calls, *stores], kept.upload)
            for at in range(0, len(events), LAUNCHES_PER_FLUSH):
                part = events[at:at + LAUNCHES_PER_FLUSH]
                self._keep(part[0], part[-1], len(part))

    def _queued(self, calls: list[Store], before: Callable[[Any], None] | None = None) -> list[Any]:
        """Makes the calls at once, `before` with the queue ahead of them; returns the events of what was queued."""
        if self._busy_since is None:
            self._busy_since = time.perf_counter()
        try:
            if before is not None:
                before(self._queue)
            return [made for made in at_once(calls) if made is not None]
        except self._cl.Error as e:
            raise DeviceError(f"[{self.name}] the driver refused a launch: {_words(e)}") from None

    def ranges(self, executable: Executable, extent: int) -> tuple[tuple[int], tuple[int]]:
        """(global size, work-group size) of a launch with so many iterations."""
        group = executable.program.group
        if group:
            return (extent * group,), (group,)
        group = self.group_size(extent)
        return (-(-extent // group) * group,), (group,)

    def _keep(self, first: Any, last: Any, launches: int) -> None:
        """Keeps the events of the first and the last of so many launches in a row."""
        self._events.append((first, last))
        self._unfolded += launches
        if self._unfolded >= EVENTS_KEPT:
            self._fold_events((len(self._events) + 1) // 2)
            self._unfolded //= 2

    def group_size(self, extent: int) -> int:
        """The work-group size for `extent` iterations; drivers compile a kernel again for each, so only a few sizes are
        used.

        One lane per work-item wants a full work-group. On a CPU one work-item is a whole chunk: alone in its
        work-group, except where there are so many that handing them out (4 ns each) would cost more than they do.
        """
        if self.target.is_gpu:
            return min(GROUP, self.target.max_group)
        return 1 if extent <= CPU_SINGLE_LIMIT else min(CPU_GROUP, self.target.max_group)

    def _fold_events(self, count: int) -> None:
        """Waits for the oldest `count` spans and adds up their times; this also bounds the length of the queue."""
        if count:
            self._events[count - 1][1].wait()
            if not self._wall:
                start, end = self._cl.profiling_info.START, self._cl.profiling_info.END
                self._seconds += 1e-9 * sum(last.get_profiling_info(end) - first.get_profiling_info(start)
                                            for first, last in self._events[:count])
            del self._events[:count]

    def synchronize(self) -> None:
        """Waits until everything queued is done."""
        _check_process(self.name)
        with self._lock:
            try:
                self._finish()
            except self._cl.Error as e:
                raise DeviceError(f"[{self.name}] the driver failed while running kernels: {_words(e)}") from None
            if self._busy_since is not None:
                if self._wall:
                    self._seconds += time.perf_counter() - self._busy_since
                self._busy_since = None
            if self._wall:
                self._events.clear()

    def _finish(self) -> None:
        if FINISH_SKIPS_FLUSHED in self.info.quirks and self._events:
            self._events[-1][1].wait()
        self._queue.finish()

    def elapsed(self) -> float:
        """Seconds spent in kernels since the last call: event times, or on drivers without them the time from the
        first launch after a wait to the end of the next wait. Waits for queued work."""
        with self._lock:
            self.synchronize()
            self._fold_events(len(self._events))
            seconds, self._seconds = self._seconds, 0.0
            return seconds

    def _at_exit(self) -> None:
        """Waits for queued work: work that is queued while the interpreter takes its objects apart brings some drivers
        down."""
        if not _forked:
            with suppress(self._cl.Error):
                self._finish()


def _check_fits(op: str, buffer: Buffer, array: np.ndarray) -> None:
    if array.nbytes > buffer.nbytes:
        raise DeviceError(f"[{op}] expected at most {buffer.nbytes} bytes, got {array.nbytes} "
                          f"(shape {array.shape}, {array.dtype})")


def _check_process(name: str) -> None:
    if _forked:
        raise DeviceError(f"[{name}] OpenCL was used before this process was forked, and no driver survives that; "
                          "start the process with the 'spawn' method, or use OpenCL only after the fork")


def _words(error: Exception) -> str:
    """The first line of a driver's error."""
    return str(error).split("\n", 1)[0].strip() or type(error).__name__


def _after_fork() -> None:
    global _forked
    _forked = opencl_devices.were_listed()


at_fork(after_in_child=_after_fork)
