"""Calls of Python between launches of the CPU device: commands of its executor like any other (runtime/commands.py).

What a call raises comes out of the run that it was part of, when that is over; later calls of the run are left out.
"""
from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from minigrad.program import Program
from minigrad.runtime.commands import Executable

_ENTRY = ctypes.CFUNCTYPE(None, ctypes.POINTER(ctypes.c_uint64), ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)

failures: list[BaseException] = []
"""The errors that calls of the run that goes on have raised."""


class HostCall(Executable):
    """`function(addresses)` as an executable, which takes the addresses of `count` buffers."""

    __slots__ = ("_entry",)

    def __init__(self, name: str, count: int, function: Callable[[list[int]], None]):
        def call(arguments: Any, begin: int, end: int, scratch: int) -> None:
            if failures:
                return
            try:
                function(arguments[:count])
            except BaseException as error:
                failures.append(error)

        self._entry = _ENTRY(call)
        program = Program(name, "python", "", ("buffer:1",) * count)
        super().__init__(program, ctypes.cast(self._entry, ctypes.c_void_p).value or 0)


def raise_failure() -> None:
    """Raises what a call of the last run has raised."""
    if failures:
        error = failures[0]
        failures.clear()
        raise error


def memory_at(address: int, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """The memory at an address as an array that may be written."""
    nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    if not nbytes:
        return np.empty(shape, dtype)
    return np.frombuffer(memoryview((ctypes.c_uint8 * nbytes).from_address(address)), dtype).reshape(shape)


class Exchanger(Protocol):
    """Who exchanges values with other processes (minigrad.distributed)."""

    def begin(self, arrays: Sequence[np.ndarray], dtype: str, how: str, channel: int) -> Callable[[], None]:
        """Begins to combine the arrays with those of the other processes, in place; returns what waits for the end.

        `dtype` is the name of the element type, `how` how elements are combined; `channel` tells exchanges apart that
        may come in another order in other processes.
        """


exchangers: list[Exchanger] = []
"""The one there is, if there are other processes."""
