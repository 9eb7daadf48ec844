"""Exceptions from outside, as Ctrl-C or a timer raises them: at any one of the moments at which Python lets them in."""
from __future__ import annotations

import dis
import sys
from collections.abc import Callable
from functools import cache
from types import CodeType, FrameType
from typing import Any

from support.paths import PACKAGE

CALLBACKS = "__del__", "_forget", "gone", "_gone"
"""Functions that Python calls when something dies: what is raised there goes nowhere."""


class Interruption(BaseException):
    """What is raised; no code of the package knows it."""


def _looks_around(name: str) -> bool:
    return name.startswith("CALL") or name in ("RESUME", "JUMP_BACKWARD")


@cache
def moments_of(code: CodeType) -> frozenset[int]:
    """The offsets of instructions before which Python looks for exceptions from outside: after calls, at the start of a
    function, and when a loop goes round. What ends a `with` or `try` is left out, as the exception belongs to the
    instruction before it."""
    entries = dis.Bytecode(code).exception_entries  # type: ignore[attr-defined]

    def handlers(offset: int) -> list[int]:
        return [e.target for e in entries if e.start <= offset < e.end]

    found, before = set(), None
    for i in dis.get_instructions(code):
        if before is not None and _looks_around(before.opname) and handlers(before.offset) == handlers(i.offset):
            found.add(i.offset)
        if before is None or i.opname != "CACHE":
            before = i
    loops = [i.argval for i in dis.get_instructions(code) if i.opname.startswith("JUMP_BACKWARD")]
    return frozenset(found) | frozenset(loops)


def is_called_back(frame: FrameType | None) -> bool:
    """True within one of CALLBACKS."""
    while frame is not None:
        if frame.f_code.co_name in CALLBACKS:
            return True
        frame = frame.f_back
    return False


def interrupted(work: Callable[[], object], at: int, folder: str = str(PACKAGE)) -> int:
    """Does the work and raises Interruption at the moment with this number (none for a negative one), of those in code
    of a folder; returns how many there were until then."""
    count = 0

    def enter(frame: FrameType, event: str, arg: Any) -> Any:
        if not frame.f_code.co_filename.startswith(folder) or is_called_back(frame):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        where = moments_of(frame.f_code)

        def step(frame: FrameType, event: str, arg: Any) -> Any:
            nonlocal count
            if event == "opcode" and frame.f_lasti in where:
                count += 1
                if count == at + 1:
                    raise Interruption
            return step

        return step

    before = sys.gettrace()
    sys.settrace(enter)
    try:
        work()
    except Interruption:
        pass
    finally:
        sys.settrace(before)
    return count
