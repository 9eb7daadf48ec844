"""Stores that are made at once: no exception from outside comes between them.

Ctrl-C, a handler of a timer and a debugger raise between two instructions of Python, wherever that is. A function of C
that calls other functions of C has no such instructions: what `at_once` begins, it ends. Memory that a launch
overwrites in place, and what says so, is changed in this way: at every moment there is the old value or the new one.
"""
from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from operator import call
from typing import Any

Store = Callable[[], Any]
"""A function of C with its arguments, as `store` makes one."""


def store(of: Any, name: str, value: Any) -> Store:
    """`of.name = value`, to be done later. The attribute is a plain one: a property would be code of Python."""
    return partial(setattr, of, name, value)


def at_once(stores: Iterable[Store]) -> list[Any]:
    """The results of calling all of these, in order."""
    return list(map(call, stores))
