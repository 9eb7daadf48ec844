"""A native function of one address as a builtin of Python, which costs a third of what a call by ctypes does.

`PyMethodDef` and all functions that are used belong to Python's stable ABI. Their addresses differ from process to
process, so that code from a cache is told them by `bind`, once. Other Pythons than CPython call by ctypes.
"""
from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from typing import Any

_TAKES_ONE = 8  # METH_O
_NAMES = "PyLong_AsVoidPtr", "PyEval_SaveThread", "PyEval_RestoreThread", "Py_IncRef"

# call: what Python calls, with the function to run as `self` and its argument; the GIL is released meanwhile.
IR = """
@python = internal global [5 x ptr] zeroinitializer

define void @bind(ptr %from) {
  %all = load [5 x ptr], ptr %from
  store [5 x ptr] %all, ptr @python
  ret void
}

define ptr @call(ptr %self, ptr %argument) {
  %address_of = load ptr, ptr @python
  %function = call ptr %address_of(ptr %self)
  %address = call ptr %address_of(ptr %argument)
  %wrong = icmp eq ptr %address, null
  br i1 %wrong, label %out, label %go
go:
  %release_p = getelementptr ptr, ptr @python, i64 1
  %release = load ptr, ptr %release_p
  %take_p = getelementptr ptr, ptr @python, i64 2
  %take = load ptr, ptr %take_p
  %thread = call ptr %release()
  call void %function(ptr %address)
  call void %take(ptr %thread)
  %hold_p = getelementptr ptr, ptr @python, i64 3
  %hold = load ptr, ptr %hold_p
  %none_p = getelementptr ptr, ptr @python, i64 4
  %none = load ptr, ptr %none_p
  call void %hold(ptr %none)
  ret ptr %none
out:
  ret ptr null
}
"""


class _Method(ctypes.Structure):
    """PyMethodDef."""

    _fields_ = (("name", ctypes.c_char_p), ("function", ctypes.c_void_p), ("flags", ctypes.c_int),
                ("doc", ctypes.c_char_p))


_methods: list[_Method] = []
"""Kept for good: builtins point to theirs."""
_bound: set[int] = set()
"""The addresses of `bind` in what was loaded and told."""


def builtin(name: str, function: int, bind: int, call: int) -> Callable[[int], None]:
    """`void function(void *)`, which lies at the address `function`, as a function of an address other than 0.

    Other threads of Python run meanwhile. `bind` and `call` are the addresses of what `IR` defines.
    """
    if sys.implementation.name != "cpython":
        return ctypes.CFUNCTYPE(None, ctypes.c_void_p)(function)
    if bind not in _bound:
        _bound.add(bind)
        words = [_address(getattr(ctypes.pythonapi, f)) for f in _NAMES]
        ctypes.CFUNCTYPE(None, ctypes.c_void_p)(bind)((ctypes.c_void_p * 5)(*words, id(None)))
    _methods.append(_Method(name.encode(), call, _TAKES_ONE, None))
    make = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p)(
        ("PyCFunction_NewEx", ctypes.pythonapi))
    made: Any = make(ctypes.addressof(_methods[-1]), function, None)
    return made


def _address(function: Any) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0
