"""Native functions as builtins of Python, whose calls cost a third of what those by ctypes do.

`PyMethodDef` and all functions that are used belong to Python's stable ABI. Their addresses differ from process to
process, so that code from a cache is told them by `bind`, once. Other Pythons than CPython call by ctypes.
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

# call: what Python calls, with the function to run as `self` and its argument; the GIL is released meanwhile.
# call_with: the same with a recipe as `self`: function, its argument, how many arguments Python gives, how many words
# are written before the function runs, and for each of those which argument it is and where it goes.
IR = """
@python = internal global [6 x ptr] zeroinitializer

define void @bind(ptr %from) {
  %all = load [6 x ptr], ptr %from
  store [6 x ptr] %all, ptr @python
  ret void
}

define internal ptr @run_released(ptr %function, ptr %address) {
  %release_p = getelementptr ptr, ptr @python, i64 1
  %release = load ptr, ptr %release_p
  %take_p = getelementptr ptr, ptr @python, i64 2
  %take = load ptr, ptr %take_p
  %thread = call ptr %release()
  call void %function(ptr %address)
  call void %take(ptr %thread)
  %hold_p = getelementptr ptr, ptr @python, i64 3
  %hold = load ptr, ptr %hold_p
  %none_p = getelementptr ptr, ptr @python, i64 5
  %none = load ptr, ptr %none_p
  call void %hold(ptr %none)
  ret ptr %none
}

define ptr @call(ptr %self, ptr %argument) {
  %address_of = load ptr, ptr @python
  %function = call ptr %address_of(ptr %self)
  %address = call ptr %address_of(ptr %argument)
  %wrong = icmp eq ptr %address, null
  br i1 %wrong, label %out, label %go
go:
  %none = call ptr @run_released(ptr %function, ptr %address)
  ret ptr %none
out:
  ret ptr null
}

define ptr @call_with(ptr %self, ptr %arguments, i64 %given) {
  %address_of = load ptr, ptr @python
  %recipe = call ptr %address_of(ptr %self)
  %count_p = getelementptr i64, ptr %recipe, i64 2
  %count = load i64, ptr %count_p
  %words_p = getelementptr i64, ptr %recipe, i64 3
  %words = load i64, ptr %words_p
  %fits = icmp eq i64 %count, %given
  br i1 %fits, label %next, label %wrong
next:
  %k = phi i64 [ 0, %0 ], [ %after, %write ]
  %last = icmp eq i64 %k, %words
  br i1 %last, label %go, label %one
one:
  %twice = shl i64 %k, 1
  %which_at = add i64 %twice, 4
  %which_p = getelementptr i64, ptr %recipe, i64 %which_at
  %which = load i64, ptr %which_p
  %object_p = getelementptr ptr, ptr %arguments, i64 %which
  %object = load ptr, ptr %object_p
  %value = call ptr %address_of(ptr %object)
  %bad = icmp eq ptr %value, null
  br i1 %bad, label %out, label %write
write:
  %where_at = add i64 %twice, 5
  %where_p = getelementptr ptr, ptr %recipe, i64 %where_at
  %where = load ptr, ptr %where_p
  store ptr %value, ptr %where
  %after = add i64 %k, 1
  br label %next
go:
  %function = load ptr, ptr %recipe
  %address_p = getelementptr ptr, ptr %recipe, i64 1
  %address = load ptr, ptr %address_p
  %none = call ptr @run_released(ptr %function, ptr %address)
  ret ptr %none
wrong:
  %complain_p = getelementptr ptr, ptr @python, i64 4
  %complain = load ptr, ptr %complain_p
  %ignored = call i32 %complain()
  br label %out
out:
  ret ptr null
}
"""


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
    """The addresses of what `IR` defines, by ENTRIES."""

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
