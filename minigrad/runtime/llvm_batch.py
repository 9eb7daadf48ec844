"""Many units compiled while more of them are still being made: groups of them, by a second process and by this one.

LLVM takes one caller at a time, and rendering needs Python's lock; on two cores a process of its own takes half of the
time. It is started only where there is much to do. Which process compiles a group changes nothing in the code.
"""
from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator

from minigrad import config
from minigrad.runtime import llvm_emit
from minigrad.runtime.llvm_emit import Source

GROUP_UNITS, GROUP_CHARS = 16, 150_000
"""A group is full with so many units, or so much text: LLVM's fixed cost per module is as large as a small kernel's."""
HELP_CHARS = 300_000
"""So much text waits before help is called: about 0.2 seconds of work, as many as the helper needs to start."""

Group = dict[str, Source]


class Batch:
    """Units that are to be compiled. `add` them, then go through `finish()`, which gives groups and their objects."""

    def __init__(self, emit: Callable[[Group], bytes]):
        self._emit = emit
        self._filling: Group = {}
        self._chars = 0
        self._waiting: deque[Group] = deque()
        self._waiting_chars = 0
        self._done: list[tuple[Group, bytes]] = []
        self._helper: subprocess.Popen | None = None
        self._feeder: threading.Thread | None = None
        self._more = threading.Condition()
        self._ended = False

    def add(self, key: str, source: Source) -> None:
        """Puts a unit into the group that is being filled."""
        self._filling[key] = source
        self._chars += len(source[1])
        if len(self._filling) >= GROUP_UNITS or self._chars >= GROUP_CHARS:
            self._close_group()
            if self._feeder is None and self._waiting_chars >= HELP_CHARS:
                self._call_help()

    def finish(self) -> Iterator[tuple[Group, bytes]]:
        """Compiles what the helper has not taken yet. Raises Refused."""
        if self._filling:
            self._close_group()
        self._end()
        while True:
            try:
                group = self._waiting.pop()
            except IndexError:
                break
            yield group, self._emit(group)
        if self._feeder is not None:
            self._feeder.join()
        yield from self._done
        while self._waiting:  # what the helper gave back
            group = self._waiting.pop()
            yield group, self._emit(group)

    def close(self) -> None:
        """Ends the helper, whatever it does."""
        self._waiting.clear()
        self._end()
        if self._helper is not None:
            self._helper.kill()
            self._helper.wait()
        if self._feeder is not None:
            self._feeder.join()
        if self._helper is not None:
            for stream in (self._helper.stdin, self._helper.stdout):
                assert stream is not None
                try:
                    stream.close()
                except OSError:
                    pass

    def _end(self) -> None:
        with self._more:
            self._ended = True
            self._more.notify()

    def _close_group(self) -> None:
        with self._more:
            self._waiting.append(self._filling)
            self._more.notify()
        self._waiting_chars += self._chars
        self._filling, self._chars = {}, 0

    def _call_help(self) -> None:
        if config.current().threads < 2 or not sys.executable or _cores() < 2:
            self._waiting_chars = 0
            return
        environment = os.environ | {"PYTHONPATH": os.pathsep.join([p for p in sys.path if p])}
        try:
            self._helper = subprocess.Popen([sys.executable, "-P", llvm_emit.__file__], stdin=subprocess.PIPE,
                                            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment)
        except OSError:
            self._waiting_chars = 0
            return
        self._feeder = threading.Thread(target=self._feed, name="minigrad-llvm", daemon=True)
        self._feeder.start()

    def _feed(self) -> None:
        """Hands groups to the helper, the oldest first, until there will be no more or it fails."""
        helper = self._helper
        assert helper is not None and helper.stdin is not None and helper.stdout is not None
        while True:
            with self._more:
                self._more.wait_for(lambda: self._waiting or self._ended)
            try:
                group = self._waiting.popleft()
            except IndexError:
                return
            try:
                llvm_emit.write_request(helper.stdin, group)
                code = llvm_emit.read_answer(helper.stdout)
            except OSError:
                code = None
            if code is None:
                self._waiting.append(group)  # the other side says what is wrong with it
                return
            self._done.append((group, code))


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
