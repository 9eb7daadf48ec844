"""Compiles many translation units while more of them are still being made: in batches, by a second process and this
one.

LLVM takes one caller at a time, and rendering needs Python's lock; on two cores a process of its own takes half of the
time. It is started only where there is much to do. Which process compiles a batch changes nothing in the code.
"""
from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import IO

from minigrad import config
from minigrad.errors import present
from minigrad.platforms import usable_cores
from minigrad.runtime import llvm_emit
from minigrad.runtime.llvm_emit import Source

GROUP_UNITS, GROUP_CHARS = 16, 150_000
"""The translation units, and the characters of them, with which a batch is full: LLVM's fixed cost per module is as
large as that of a small kernel."""
HELP_CHARS = 300_000
"""Characters that wait before the helper is started: about 0.2 seconds of work, as many as the helper needs to
start."""
HELP_UNITS = 200
"""Translation units to come for which the helper is started at once."""
FIRST_CHARS = 40_000
"""Characters of the smallest batch that a helper with nothing to do is given."""

IN_LINE = 2
"""Batches that the helper has: one at work, and the next. Python's lock goes from thread to thread in steps of 5 ms: it
would wait for several of those between two batches."""
PIPE_BYTES = 1 << 20
_PIPES = "[llvm] expected a pipe to the helper"
"""The error for a missing pipe."""

Group = dict[str, Source]


class Batch:
    """Translation units that are to be compiled. `add` them, then go through `finish()`, which gives batches and their
    objects."""

    def __init__(self, emit: Callable[[Group], bytes], processor: tuple[str, str], about: int = 0):
        """`processor` is what `emit` compiles for, an Emitter's arguments.

        `about` is the number of translation units that will come, where it is known: for many, the helper is started at
        once.
        """
        self._emit, self._processor = emit, processor
        self._filling: dict[bool, Group] = {}  # those that are quick in batches of their own
        self._chars = dict.fromkeys((False, True), 0)
        self._waiting: deque[Group] = deque()
        self._waiting_chars = 0
        self._sent: deque[Group] = deque()
        self._done: list[tuple[Group, bytes]] = []
        self._helper: subprocess.Popen | None = None
        self._reader: threading.Thread | None = None
        self._more = threading.Condition()
        self._ended = self._failed = False
        if about >= HELP_UNITS:
            self._call_help()

    def add(self, key: str, source: Source) -> None:
        """Adds a translation unit to the batch that is being filled."""
        quick = llvm_emit.is_quick(source[1])
        group = self._filling.setdefault(quick, {})
        group[key] = source
        self._chars[quick] += len(source[1])
        idle = self._helper is not None and not self._sent
        if len(group) >= GROUP_UNITS or self._chars[quick] >= (FIRST_CHARS if idle else GROUP_CHARS):
            self._close_group(quick)

    def finish(self) -> Iterator[tuple[Group, bytes]]:
        """Compiles what the helper has not begun with; gives (batch, object). Raises Refused."""
        for quick in list(self._filling):
            self._close_group(quick)
        with self._more:
            self._ended = True
        while (group := self._take()) is not None:
            yield group, self._emit(group)
        self._end()
        if self._reader is not None:
            self._reader.join()
        yield from self._done
        while (group := self._take()) is not None:  # what the helper failed at
            yield group, self._emit(group)

    def close(self) -> None:
        """Ends the helper, whatever it does."""
        with self._more:
            self._waiting.clear()
            self._sent.clear()
        self._end()
        if self._helper is not None:
            self._helper.kill()
            self._helper.wait()
        if self._reader is not None:
            self._reader.join()
        if self._helper is not None:
            for stream in (self._helper.stdin, self._helper.stdout):
                with suppress(OSError):
                    present(stream, _PIPES).close()

    def _end(self) -> None:
        with self._more:
            self._ended = True
            self._more.notify()

    def _take(self) -> Group | None:
        """A batch for this process: the newest, or the last of those that were sent to the helper."""
        with self._more:
            if self._waiting:
                return self._waiting.pop()
            return self._sent.pop() if len(self._sent) > 1 else None

    def _close_group(self, quick: bool) -> None:
        with self._more:
            self._waiting.append(self._filling.pop(quick))
            self._waiting_chars += self._chars[quick]
            self._chars[quick] = 0
            if self._reader is None and self._waiting_chars >= HELP_CHARS:
                self._call_help()
            self._send()

    def _call_help(self) -> None:
        if config.current().threads < 2 or not sys.executable or usable_cores() < 2:
            self._waiting_chars = 0
            return
        environment = os.environ | {"PYTHONPATH": os.pathsep.join([p for p in sys.path if p])}
        try:
            self._helper = subprocess.Popen([sys.executable, "-P", llvm_emit.__file__, *self._processor],
                                            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                                            env=environment)
        except OSError:
            self._waiting_chars = 0
            return
        _enlarge(self._helper.stdin)
        _enlarge(self._helper.stdout)
        self._reader = threading.Thread(target=self._read, name="minigrad-llvm", daemon=True)
        self._reader.start()

    def _send(self) -> None:
        """Sends batches to the helper, the oldest first, until it has `IN_LINE`. `_more` is held."""
        helper = self._helper
        while helper is not None and not self._failed and self._waiting and len(self._sent) < IN_LINE:
            try:
                llvm_emit.write_request(present(helper.stdin, _PIPES), self._waiting[0])
            except OSError:
                self._failed = True
            else:
                self._sent.append(self._waiting.popleft())
        self._more.notify()

    def _read(self) -> None:
        """Takes the helper's answers, and gives it more, until there is no more or it fails."""
        answers = present(present(self._helper, "[llvm] expected a helper").stdout, _PIPES)
        while True:
            with self._more:
                self._more.wait_for(lambda: self._sent or self._ended)
                if not self._sent:
                    return
            try:
                code = llvm_emit.read_answer(answers)
            except OSError:
                code = None
            with self._more:
                if code is None:
                    self._failed = True
                    self._waiting.extend(self._sent)  # this side says what is wrong with them
                    self._sent.clear()
                if code is None or not self._sent:
                    return
                self._done.append((self._sent.popleft(), code))
                self._send()


def _enlarge(stream: IO[bytes] | None) -> None:
    """Enlarges a pipe to `PIPE_BYTES`, where the system can: it then holds whole requests and answers, so that neither
    side waits for the other one to read."""
    try:
        import fcntl

        fcntl.fcntl(present(stream, _PIPES).fileno(), fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    except (ImportError, AttributeError, OSError):
        pass
