"""Processes that read samples and put batches into shared memory.

Batch k is made by worker k modulo their number, and each makes its own in order: the next batch is always the next
message of a known worker. A worker has `prefetch` pieces of memory, which it uses in turn: it is asked for a further
batch only after the batch in the oldest piece was taken out.
"""
from __future__ import annotations

import multiprocessing
import os
import secrets
import signal
import sys
import traceback
import warnings
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import reduction
from multiprocessing.connection import wait
from typing import Any

from minigrad.config import config
from minigrad.data.collate import pack, unpack
from minigrad.data.fetching import Fetcher, Request
from minigrad.data.shared import SharedMemory
from minigrad.errors import DeviceError, MinigradError
from minigrad.random import manual_seed

_PATIENCE = 5.0


@dataclass(frozen=True)
class WorkerInfo:
    """A worker as its data set sees it: its number, how many there are, its seed, and its copy of the data set."""

    id: int
    num_workers: int
    seed: int
    dataset: Any


_info: WorkerInfo | None = None


def get_worker_info() -> WorkerInfo | None:
    """The worker that calls it; None in the main process."""
    return _info


@dataclass
class _Worker:
    process: Any
    channel: Any
    name: str
    memories: dict[int, SharedMemory]
    asked: deque[Request]


class Workers:
    """`count` processes with a `fetcher`, as an iterator gives them requests and takes batches out. `device`: where
    Tensors go; `timeout`: seconds to wait for a batch, 0 for ever."""

    def __init__(self, count: int, prefetch: int, fetcher: Fetcher, seed: int,
                 init: Callable[[int], object] | None, context: Any, timeout: float, device: str | None):
        self.timeout, self.device, self.fetcher = timeout, device, fetcher
        self.workers: list[_Worker] = []
        self.close = weakref.finalize(self, _end, self.workers, os.getpid())
        try:
            for number in range(count):
                self.workers.append(_started(context, (number, count, prefetch, fetcher, seed, init)))
        except BaseException:
            self.close()
            raise

    def ask(self, number: int, request: Request) -> None:
        """Gives a worker something to do."""
        worker = self.workers[number]
        worker.asked.append(request)
        try:
            worker.channel.send(request)
        except OSError:
            raise _lost(number, worker) from None

    def ready(self, number: int) -> bool:
        """True where `take` would not wait."""
        return bool(self.workers[number].channel.poll())

    def take(self, number: int) -> Any:
        """The batch for the oldest request to a worker, waiting for it. Raises what the worker's data set raised, and
        DeviceError for a worker that is gone or late."""
        worker = self.workers[number]
        if not wait([worker.channel, worker.process.sentinel], self.timeout or None):
            raise DeviceError(f"[DataLoader] expected a batch from worker {number} (process {worker.process.pid}) "
                              f"within {self.timeout:g} seconds, got none")
        try:
            kind, content, slot, size, is_new = worker.channel.recv()
            if is_new:
                worker.memories[slot] = SharedMemory.received(worker.channel, f"{worker.name}-{slot}")
        except (EOFError, OSError, RuntimeError):  # the last one for a message without its memory
            raise _lost(number, worker) from None
        worker.asked.popleft()
        if kind == "error":
            raise content
        return unpack(content, worker.memories[slot].at_least(size) if size else b"", self.device)

    def drain(self) -> None:
        """Takes out what was asked for and nobody wants any more."""
        for number, worker in enumerate(self.workers):
            while worker.asked:
                try:
                    self.take(number)
                except DeviceError:
                    raise
                except Exception:
                    continue


def _started(context: Any, arguments: tuple[Any, ...]) -> _Worker:
    ours, theirs = context.Pipe(duplex=True)
    name = f"minigrad-{secrets.token_hex(8)}"
    process = context.Process(target=_work, args=(theirs, name, *arguments), daemon=True, name=f"loader-{arguments[0]}")
    with warnings.catch_warnings():  # Python's, about threads: minigrad's own are made anew in a child
        warnings.filterwarnings("ignore", ".*fork", DeprecationWarning)
        process.start()
    theirs.close()  # only the worker has that end now, so that its death closes the channel
    return _Worker(process, ours, name, {}, deque())


def _lost(number: int, worker: _Worker) -> DeviceError:
    """The error of a worker that is gone, with what it was doing."""
    worker.process.join(_PATIENCE)
    code = worker.process.exitcode
    how = "stopped answering" if code is None else f"ended with status {code}"
    if code is not None and code < 0:
        how = f"was killed by {signal.Signals(-code).name}"
    doing = f" while it read {worker.asked[0].text()}" if worker.asked else ""
    memory = "; the system may have run out of memory: try fewer workers or smaller batches" if code == -9 else ""
    return DeviceError(f"[DataLoader] worker {number} (process {worker.process.pid}) {how}{doing}{memory}")


def _end(workers: list[_Worker], owner: int) -> None:
    """Ends the processes: those without anything to do by telling them, others at once."""
    if os.getpid() != owner:  # a forked child has this object, too, but not the processes
        return
    for worker in workers:
        try:
            if worker.asked:
                worker.process.terminate()
            else:
                worker.channel.send(None)
        except OSError:
            pass
    for worker in workers:
        worker.process.join(_PATIENCE)
        if worker.process.exitcode is None:
            worker.process.kill()
            worker.process.join()
        worker.process.close()
        worker.channel.close()
        for memory in worker.memories.values():
            memory.close()
    workers.clear()


# In the worker


def _work(channel: Any, name: str, number: int, count: int, prefetch: int, fetcher: Fetcher, seed: int,
          init: Callable[[int], object] | None) -> None:
    """Answers requests until it is told to end, or the main process is gone."""
    global _info
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the main process, which ends this one
    _info = WorkerInfo(number, count, seed + number, fetcher.dataset)
    manual_seed((seed + number) % (1 << 64))
    parent = multiprocessing.parent_process()
    doors = [channel] if parent is None else [channel, parent.sentinel]
    memories = [SharedMemory(f"{name}-{slot}") for slot in range(prefetch)]
    sent: set[int] = set()
    failed: BaseException | None = None
    with config(device="CPU", threads=1):
        try:
            if init is not None:
                init(number)
        except Exception as error:
            failed = _portable(error, number)
        turn = 0
        while channel in wait(doors):
            try:
                request = channel.recv()
                if request is None:
                    return
                slot = turn % prefetch
                _answer(channel, fetcher, request, memories[slot], slot, slot not in sent, failed, number)
            except (EOFError, OSError):
                return
            sent.add(slot)
            turn += 1


def _answer(channel: Any, fetcher: Fetcher, request: Request, memory: SharedMemory, slot: int, is_new: bool,
            failed: BaseException | None, number: int) -> None:
    """Sends the batch that a request is for, or the error on the way to it."""
    kind, content, size = "error", failed, 0
    if failed is None:
        try:
            content, arrays, size = pack(fetcher(request), fetcher.as_tensors)
            memory.write(arrays, size)
            kind = "batch"
        except Exception as error:
            content, size = _portable(error, number), 0
    try:
        message = reduction.ForkingPickler.dumps((kind, content, slot, size, is_new))
    except Exception as error:
        lost = MinigradError(f"[DataLoader] expected batches that can be sent from worker {number}, got {error}")
        message = reduction.ForkingPickler.dumps(("error", lost, slot, 0, is_new))
    channel.send_bytes(message)
    if is_new:
        memory.send(channel, os.getppid())


def _portable(error: BaseException, number: int) -> BaseException:
    """The error as the main process will raise it: of its own type where that can travel, with the worker's traceback
    as a note."""
    note = f"in worker {number} of the loader:\n" + "".join(traceback.format_exception(error))
    try:
        copy = reduction.ForkingPickler.loads(reduction.ForkingPickler.dumps(error))
        if type(copy) is type(error) and str(copy) == str(error):
            error = error.with_traceback(None)
            error.__cause__ = error.__context__ = None
            if not isinstance(error, MinigradError):  # ours say what is wrong in their one line
                error.add_note(note)
            return error
    except Exception:  # it cannot travel
        pass
    made = MinigradError(f"[DataLoader] worker {number}: {type(error).__name__}: {error}")
    made.add_note(note)
    return made


def start_method(chosen: Any) -> Any:
    """The context of processes that an argument stands for: a name, a context, or None for fork on Linux and else
    Python's own choice."""
    if chosen is None:
        return multiprocessing.get_context("fork" if sys.platform == "linux" else None)
    return multiprocessing.get_context(chosen) if isinstance(chosen, str) else chosen
