"""Native functions as builtins of Python, whose calls cost a third of what those by ctypes do.

Their LLVM IR is `native/builtin_call.ll`. `PyMethodDef` and all functions that are used belong to Python's stable ABI.
Their addresses differ from process to process, so that code from a cache is told them by `bind`, once. Other Pythons
than CPython call by ctypes.
"""
from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

_TAKES_ONE = 8  # METH_O
_NAMES = "PyLong_AsVoidPtr", "PyEval_SaveThread", "PyEval_RestoreThread", "Py_IncRef"
ENTRIES = "bind", "call"


class _Method(ctypes.Structure):
    """PyMethodDef."""

    _fields_ = (("name", ctypes.c_char_p), ("function", ctypes.c_void_p), ("flags", ctypes.c_int),
                ("doc", ctypes.c_char_p))


_methods: dict[tuple[str, int], _Method] = {}
"""By name and function, kept for good: builtins point to theirs."""
_bound: set[int] = set()
"""The addresses of those loaded `bind` that were called already."""
_native = sys.implementation.name == "cpython"


class Entries(NamedTuple):
    """The addresses of what `native/builtin_call.ll` defines, by ENTRIES."""

    bind: int
    call: int


def builtin(name: str, function: int, entries: Entries) -> Callable[[int], None]:
    """`void function(void *)`, which lies at the address `function`, as a function of an address other than 0.

    Other threads of Python run meanwhile.
    """
    if not _native:
        return ctypes.CFUNCTYPE(None, ctypes.c_void_p)(function)
    if entries.bind not in _bound:
        _bound.add(entries.bind)
        words = [_address(getattr(ctypes.pythonapi, f)) for f in _NAMES]
        ctypes.CFUNCTYPE(None, ctypes.c_void_p)(entries.bind)((ctypes.c_void_p * 5)(*words, id(None)))
    method = _methods.get((name, entries.call))
    if method is None:
        method = _methods[name, entries.call] = _Method(name.encode(), entries.call, _TAKES_ONE, None)
    make = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p)(
        ("PyCFunction_NewEx", ctypes.pythonapi))
    return make(ctypes.addressof(method), function, None)


def _address(function: Any) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0
