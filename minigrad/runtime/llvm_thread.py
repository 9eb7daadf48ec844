"""The thread that LLVM works in: nothing from outside comes between its steps.

LLVM takes an object over in one line, and llvmlite says so in the next; an exception between the two frees it twice,
which ends the process. Ctrl-C and the handlers of timers raise in the main thread alone, which waits here; what this
thread has begun it ends. It starts with the first work, and again in a forked child.
"""
from __future__ import annotations

import atexit
import threading
from collections.abc import Callable
from contextvars import copy_context
from queue import SimpleQueue
from typing import Any, TypeVar

from minigrad.locks import free_in_children
from minigrad.platforms import at_fork

T = TypeVar("T")

lock = free_in_children(threading.RLock())
"""Held while LLVM works: a child finds LLVM as it was between two pieces of work."""


class _Work:
    """A call that the thread makes for another one, in the context of that: settings are the caller's."""

    __slots__ = ("_call", "_context", "_done", "_result", "_error")

    def __init__(self, call: Callable[[], Any]):
        self._call, self._context, self._done = call, copy_context(), threading.Lock()
        self._result: Any = None
        self._error: BaseException | None = None
        self._done.acquire()

    def run(self) -> None:
        try:
            self._result = self._context.run(self._call)
        except BaseException as error:
            self._error = error
        finally:
            self._done.release()

    def result(self) -> Any:
        """The result of the call, once it is over. Raises what that raises."""
        self._done.acquire()
        if self._error is not None:
            try:
                raise self._error
            finally:
                self._error = None  # its traceback refers to us
        return self._result


_queue: SimpleQueue[_Work | None] = SimpleQueue()
_threads: list[threading.Thread] = []
"""The one there is. Where starting it was interrupted there may be another: `lock` has them take turns."""
_here = threading.local()


def uninterrupted(function: Callable[..., T], *args: Any) -> T:
    """The result of `function(*args)`, or what it raises, from the thread for LLVM."""
    if getattr(_here, "works", False):
        return function(*args)
    if not _threads:
        thread = threading.Thread(target=_stay, args=(_queue,), daemon=True, name="minigrad-llvm-work")
        _threads.append(thread)
        try:
            thread.start()
        except BaseException:
            _threads.remove(thread)
            raise
    work = _Work(lambda: function(*args))
    _queue.put(work)
    result: T = work.result()
    return result


def _stay(queue: SimpleQueue[_Work | None]) -> None:
    _here.works = True
    while (work := queue.get()) is not None:
        with lock:
            work.run()
        del work  # what it was about goes now, not with the next one
    queue.put(None)  # for another one


def _end() -> None:
    """Lets the thread end what it is at, before the interpreter is taken down."""
    _queue.put(None)
    for thread in _threads:
        if thread.is_alive():
            thread.join()


def _in_child() -> None:
    global _queue
    _queue = SimpleQueue()  # what others wait for is theirs
    _threads.clear()


atexit.register(_end)
at_fork(after_in_child=_in_child)
