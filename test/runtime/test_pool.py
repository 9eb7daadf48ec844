"""The native executor and its threads: every iteration once, launches in order, forks, exits, small launches."""
import ctypes
import multiprocessing
import os
import random
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from support.cpu_programs import increment, reverse, through_scratch
from support.paths import ROOT, TESTS

from minigrad.config import config
from minigrad.errors import InternalError
from minigrad.runtime import executor_ir, pool
from minigrad.runtime.commands import CHUNKS
from minigrad.runtime.cpu import CPU
from minigrad.runtime.device import Buffer, Launch
from minigrad.runtime.host import address_of


def buffer_of(device: CPU, array: np.ndarray) -> Buffer:
    buffer = device.alloc(array.nbytes)
    device.copy_in(buffer, array)
    return buffer


def contents(device: CPU, buffer: Buffer) -> np.ndarray:
    out = np.empty(buffer.nbytes // 8, np.int64)
    device.copy_out(buffer, out)
    return out


@pytest.mark.parametrize("threads", [1, 2, 3, 4])
def test_every_iteration_runs_once(threads):
    device = CPU(threads)
    [program] = device.load([increment()])
    rng = random.Random(threads)
    for extent in [0, 1, 2, CHUNKS - 1, CHUNKS, CHUNKS + 1, *(rng.randrange(1, 5000) for _ in range(40))]:
        counts = buffer_of(device, np.zeros(extent + 8, np.int64))
        repeats = rng.randrange(1, 20)
        device.launch([Launch(program, (counts,), extent)] * repeats)
        expected = np.zeros(extent + 8, np.int64)
        expected[:extent] = repeats
        assert np.array_equal(contents(device, counts), expected), extent


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_a_launch_sees_all_of_the_one_before(threads):
    device = CPU(threads)
    [program] = device.load([reverse()])
    n = 777
    a, b = buffer_of(device, np.arange(n)), buffer_of(device, np.zeros(n, np.int64))
    steps = 1001
    device.launch([Launch(program, (b, a, n) if k % 2 == 0 else (a, b, n), n) for k in range(steps)])
    assert np.array_equal(contents(device, b), np.arange(n)[::-1] + steps)


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_table_runs_every_row(threads):
    device = CPU(threads)
    [program] = device.load([increment()])
    rng = random.Random(threads)
    extents = [0, 1, 100_000, 3, 0, *(rng.randrange(0, 300) for _ in range(500))]
    rows = [buffer_of(device, np.zeros(max(e, 1), np.int64)) for e in extents]
    table = tuple(((row,), e) for row, e in zip(rows, extents, strict=True))
    launch = Launch(program, (), 0, table)
    device.launch([launch] * 3)
    device.launch([Launch(program, (), 0, table, work=1.0)])
    for row, extent in zip(rows, extents, strict=True):
        assert np.array_equal(contents(device, row), np.full(max(extent, 1), 4 if extent else 0))
    device.launch([Launch(program, (), 0, (((rows[1],), 0),))])
    assert contents(device, rows[1])[0] == 4


@pytest.mark.parametrize("threads", [1, 2, 4])
@pytest.mark.parametrize("work", [0.0, 1.0, 1e6])
def test_a_group_runs_every_launch_between_its_neighbours(threads, work):
    """Different programs of different extents; what stands before is done, what stands after sees all of it."""
    device = CPU(threads)
    up, turn, scratch = device.load([increment(), reverse(), through_scratch()])
    n, m = 777, 5
    a, b, c, d, e = (buffer_of(device, np.zeros(k, np.int64)) for k in (n, n, m, n, m))
    group = [Launch(turn, (b, a, n), n, work=work, group=3), Launch(up, (c,), m, work=work, group=3),
             Launch(scratch, (d,), 1, work=work, group=3)]
    kept = device.keep([Launch(up, (a,), n), *group, Launch(turn, (a, b, n), n, group=4)],
                       [(0,), (1, 0), (2,), (3,), (0, 1)])
    assert kept.table.count == 3 and len(kept.table.rows) == 5
    for _ in range(50):
        kept.run()
    assert (contents(device, a) == 150).all() and (contents(device, b) == 149).all()
    assert (contents(device, c) == 50).all() and not contents(device, d).any()
    kept.set_addresses([[kept.place(2, 0)]], [address_of(e)])
    kept.run()
    assert (contents(device, c) == 50).all() and (contents(device, e) == 1).all()
    with pytest.raises(InternalError, match="alone and has no table, got launch 2"):
        kept.set_extent(2, 1)
    with pytest.raises(InternalError, match=r"\[prepare\] expected launches without tables in a group, got increment"):
        device.prepare([Launch(up, (a,), n, group=0), Launch(up, (), 0, (((c,), 1),), group=0)])


def test_workers_sleep_and_wake_by_the_functions_of_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of stand-ins for them, which wait for as long as they are told: only who is woken goes on."""
    changed, slept, woken = threading.Condition(), [], []

    def wait(address: int, compared: int, size: int, milliseconds: int) -> int:
        with changed:
            if ctypes.c_uint32.from_address(address).value == ctypes.c_uint32.from_address(compared).value:
                slept.append((size, milliseconds))
                changed.wait()
        return 1

    def wake(address: int) -> None:
        with changed:
            woken.append(address)
            changed.notify_all()

    waits = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint32)
    functions = waits(wait), ctypes.CFUNCTYPE(None, ctypes.c_void_p)(wake)
    table = (ctypes.c_void_p * 2)(*[ctypes.cast(f, ctypes.c_void_p).value for f in functions])
    theirs = executor_ir.parts("x86_64-pc-windows-msvc")[-1]
    monkeypatch.setattr(executor_ir, "parts", lambda triple: ["executor", "builtin_call", "pause_none", theirs])
    monkeypatch.setattr(pool, "_system_function", lambda futex: ctypes.addressof(table))
    device = CPU(3)
    [program] = device.load([increment()])
    counts = buffer_of(device, np.zeros(5000, np.int64))
    for k in range(1, 6):
        device.launch([Launch(program, (counts,), 5000, work=1e6)])
        assert (contents(device, counts) == k).all()
        time.sleep(0.02)  # until they sleep
    device.pool.close()
    assert theirs == "sleep_windows" and set(slept) == {(4, 0xFFFFFFFF)} and len(woken) >= 5


def test_scratch_is_private_and_large_enough():
    device = CPU(4)
    [program] = device.load([through_scratch()])
    n = 64 * CHUNKS
    a = buffer_of(device, np.zeros(n, np.int64))
    device.launch([Launch(program, (a,), n)])
    assert np.array_equal(contents(device, a), np.arange(n) // 64 * 64)


def test_ten_thousand_tiny_launches():
    device = CPU(2)
    [program] = device.load([increment()])
    a = buffer_of(device, np.zeros(8, np.int64))
    for _ in range(5000):
        device.launch([Launch(program, (a,), 8, work=5.0)])
        device.launch([Launch(program, (a,), 8)])
    assert np.array_equal(contents(device, a), np.full(8, 10_000))


def test_small_work_starts_no_thread():
    device = CPU(3)
    [program] = device.load([increment()])
    a = buffer_of(device, np.zeros(1000, np.int64))
    before = threading.active_count()
    device.launch([Launch(program, (a,), 1000, work=1000.0), Launch(program, (a,), 1)])
    assert threading.active_count() == before
    device.launch([Launch(program, (a,), 1000, work=1e6)])
    assert threading.active_count() == before + 2


def test_threads_follow_the_configuration_and_end_with_the_device():
    device = CPU()
    [program] = device.load([increment()])
    a = buffer_of(device, np.zeros(1000, np.int64))
    before = threading.active_count()
    for threads in (3, 1, 4):
        with config(threads=threads):
            device.launch([Launch(program, (a,), 1000)])
        assert threading.active_count() == before + threads - 1
    assert np.array_equal(contents(device, a), np.full(1000, 3))
    del device, a
    assert threading.active_count() == before


def test_launches_from_several_threads():
    device = CPU(2)
    [program] = device.load([increment()])
    rows = [buffer_of(device, np.zeros(300, np.int64)) for _ in range(4)]

    def work(row: Buffer) -> None:
        for _ in range(200):
            device.launch([Launch(program, (row,), 300)])

    users = [threading.Thread(target=work, args=(row,)) for row in rows]
    for user in users:
        user.start()
    for user in users:
        user.join()
    for row in rows:
        assert np.array_equal(contents(device, row), np.full(300, 200))


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity") or len(os.sched_getaffinity(0)) < 2,
                    reason="this system has one processor, or does not say")
def test_woken_workers_keep_off_the_callers_processor():
    """Else Linux may wake them beside the caller again and again. They never lose their last processor."""
    device, allowed = CPU(3), os.sched_getaffinity(0)
    [program] = device.load([increment()])
    a = buffer_of(device, np.zeros(1000, np.int64))
    found, launches = set(), 0
    while not found and launches < 500:
        time.sleep(0.002)
        device.launch([Launch(program, (a,), 1000)])
        launches += 1
        masks = [frozenset(os.sched_getaffinity(w.native_id)) for w in device.pool._workers]
        found = set(masks) if all(len(m) == len(allowed) - 1 for m in masks) else set()
    assert len(found) == 1 and found.pop() < allowed

    def work() -> None:
        os.sched_setaffinity(0, {min(allowed)})  # of this thread
        for _ in range(20):
            time.sleep(0.002)
            device.launch([Launch(program, (a,), 1000)])

    user = threading.Thread(target=work)
    user.start()
    user.join()
    assert all([os.sched_getaffinity(w.native_id) for w in device.pool._workers])
    assert (contents(device, a) == launches + 20).all()


def _in_child(device, program, a, results) -> None:
    device.launch([Launch(program, (a,), 5000)] * 50)
    results.put(int(contents(device, a).sum()))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_fork_after_use():
    device = CPU(2)
    [program] = device.load([increment()])
    a = buffer_of(device, np.zeros(5000, np.int64))
    device.launch([Launch(program, (a,), 5000)])
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    child = context.Process(target=_in_child, args=(device, program, a, results))
    child.start()
    assert results.get(timeout=60) == 51 * 5000
    child.join(60)
    assert child.exitcode == 0
    device.launch([Launch(program, (a,), 5000)])
    assert np.array_equal(contents(device, a), np.full(5000, 2))


SCRIPT = """
import sys
sys.path.insert(0, {test!r})
import numpy as np
from support.cpu_programs import increment
from minigrad.runtime.cpu import CPU
from minigrad.runtime.device import Launch
device = CPU(3)
[program] = device.load([increment()])
a = device.alloc(8000)
device.copy_in(a, np.zeros(1000, np.int64))
device.launch([Launch(program, (a,), 1000)])
{end}
"""


@pytest.mark.parametrize("end, code", [("", 0), ("sys.exit(3)", 3), ("raise SystemExit(4)", 4)])
def test_interpreter_ends_cleanly_with_running_workers(end, code):
    script = SCRIPT.format(test=str(TESTS), end=end)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120,
                          cwd=ROOT)
    assert (done.returncode, done.stderr) == (code, "")
