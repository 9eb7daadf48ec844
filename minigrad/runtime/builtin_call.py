"""Native functions as builtins of Python, whose calls cost a third of what those by ctypes do.

Their LLVM IR is `native/builtin_call.ll`. `PyMethodDef` and all functions that are used belong to Python's stable ABI.
Their addresses differ from process to process, so that code from a cache is told them by `bind`, once. Other Pythons
than CPython call by ctypes.
"""
from __future__ import annotations

import ctypes
import sys
from array import array
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

_TAKES_ONE, _TAKES_MANY = 8, 128  # METH_O, METH_FASTCALL
_NAMES = "PyLong_AsVoidPtr", "PyEval_SaveThread", "PyEval_RestoreThread", "Py_IncRef", "PyErr_BadArgument"
ENTRIES = "bind", "call", "call_with"


class _Method(ctypes.Structure):
    """PyMethodDef."""

    _fields_ = (("name", ctypes.c_char_p), ("function", ctypes.c_void_p), ("flags", ctypes.c_int),
                ("doc", ctypes.c_char_p))


_methods: dict[tuple[str, int], _Method] = {}
"""By name and function, kept for good: builtins point to theirs."""
_bound: set[int] = set()
"""The addresses of `bind` in what was loaded and told."""
_native = sys.implementation.name == "cpython"


class Entries(NamedTuple):
    """The addresses of what `native/builtin_call.ll` defines, by ENTRIES."""

    bind: int
    call: int
    call_with: int


def builtin(name: str, function: int, entries: Entries) -> Callable[[int], None]:
    """`void function(void *)`, which lies at the address `function`, as a function of an address other than 0.

    Other threads of Python run meanwhile.
    """
    if not _native:
        return ctypes.CFUNCTYPE(None, ctypes.c_void_p)(function)
    return _made(name, entries.call, _TAKES_ONE, function, entries)


def writing_builtin(name: str, function: int, address: int, places: Sequence[tuple[int, int]], count: int,
                    entries: Entries) -> Callable[..., None]:
    """The same function of this `address`, as one of `count` integers other than 0 that are written to memory before:
    for each of the `places`, (where, which of the integers). What it is told about must outlive it."""
    if not _native:
        run = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(function)

        def write_and_run(*values: int) -> None:
            for where, k in places:
                ctypes.c_uint64.from_address(where).value = values[k]
            run(address)

        return write_and_run
    recipe = array("Q", (function, address, count, len(places), *[w for where, k in places for w in (k, where)]))
    return _made(name, entries.call_with, _TAKES_MANY, _Recipe(recipe.buffer_info()[0], recipe), entries)


class _Recipe(int):
    """The address of an array, which it keeps alive."""

    memory: array

    def __new__(cls, address: int, memory: array) -> _Recipe:
        self = int.__new__(cls, address)
        self.memory = memory
        return self


def _made(name: str, entry: int, flags: int, of: int, entries: Entries) -> Any:
    """A builtin whose `self` is the integer `of`."""
    if entries.bind not in _bound:
        _bound.add(entries.bind)
        words = [_address(getattr(ctypes.pythonapi, f)) for f in _NAMES]
        ctypes.CFUNCTYPE(None, ctypes.c_void_p)(entries.bind)((ctypes.c_void_p * 6)(*words, id(None)))
    method = _methods.get((name, entry))
    if method is None:
        method = _methods[name, entry] = _Method(name.encode(), entry, flags, None)
    make = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p)(
        ("PyCFunction_NewEx", ctypes.pythonapi))
    return make(ctypes.addressof(method), of, None)


def _address(function: Any) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0
