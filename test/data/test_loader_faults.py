"""Loaders whose workers are killed, that are interrupted or that meet broken files: one clear line, nothing left."""
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from support.paths import ROOT

from minigrad.data import DataLoader, Dataset
from minigrad.errors import DeviceError

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")

LOOP = """
import os, signal, sys, time
import numpy as np
from minigrad.data import DataLoader, Dataset
signal.signal(signal.SIGINT, signal.default_int_handler)  # which a suite in the background ignores
class Slow(Dataset):
    def __len__(self): return 1_000_000  # whoever ends it may be late
    def __getitem__(self, index):
        time.sleep(0.01)
        return np.zeros(50_000, np.float32)
loader = DataLoader(Slow(), 4, num_workers=2, persistent_workers={persistent})
for k, _ in enumerate(loader):
    if k == 2:
        print(os.getpid(), *[w.process.pid for w in loader_workers(loader)], flush=True)
"""
HELPER = """
import gc
from minigrad.data.workers import Workers
def loader_workers(loader):
    return next(w for w in gc.get_objects() if isinstance(w, Workers)).workers
"""


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def gone(pids: list[int], seconds: float = 60) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if not any(map(alive, pids)):
            return True
        time.sleep(0.02)
    return False


def started(persistent: bool = False) -> tuple[subprocess.Popen[str], list[int]]:
    """A program in the middle of a loop, and its processes."""
    program = subprocess.Popen([sys.executable, "-c", HELPER + LOOP.format(persistent=persistent)], cwd=ROOT,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
    assert program.stdout is not None
    return program, [int(pid) for pid in program.stdout.readline().split()]


@pytest.mark.parametrize("how", [
    lambda pid: os.killpg(pid, signal.SIGINT), lambda pid: os.kill(pid, signal.SIGINT),
    lambda pid: os.kill(pid, signal.SIGKILL), lambda pid: os.kill(pid, signal.SIGTERM),
], ids=["Ctrl-C", "an interrupt", "kill -9", "kill"])
def test_no_process_is_left(how: Callable[[int], None]) -> None:
    program, pids = started()
    assert len(pids) == 3 and all(map(alive, pids))
    how(pids[0])
    _, words = program.communicate(timeout=120)
    assert gone(pids)
    assert not [name for name in os.listdir("/dev/shm") if "minigrad" in name]
    assert words.count("Traceback") <= 1, words  # of the main process, for an interrupt


def test_a_killed_worker_ends_the_program_with_its_name() -> None:
    program, pids = started(persistent=True)
    os.kill(pids[2], signal.SIGKILL)
    _, words = program.communicate(timeout=120)
    assert program.returncode == 1 and gone(pids)
    last = words.strip().splitlines()[-1]
    assert f"[DataLoader] worker 1 (process {pids[2]}) was killed by SIGKILL while it read samples " in last


class Dying(Dataset):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        if index == 5:
            os._exit(3)
        return index


def test_a_worker_that_ends_by_itself() -> None:
    with pytest.raises(DeviceError, match=r"worker 0 \(process \d+\) ended with status 3 while it read samples 4, 5$"):
        list(DataLoader(Dying(), 2, num_workers=2))


def test_no_descriptor_and_no_process_is_left() -> None:
    def run() -> None:
        data = [np.zeros(1000)] * 12
        list(DataLoader(data, 2, num_workers=2))
        for _ in DataLoader(data, 2, num_workers=2, persistent_workers=True):
            break

    run()
    children = Path(f"/proc/self/task/{os.getpid()}/children")

    def held() -> tuple[int, set[str]]:
        return len(os.listdir("/proc/self/fd")), set(children.read_text().split()) if children.exists() else set()

    before = held()
    run()
    after = held()
    assert after[0] <= before[0] and after[1] <= before[1]  # what others had may have ended meanwhile
