"""Counts of references: the one place that asks whether anybody else holds an object.

Memory is overwritten, handed out again or given back where nobody else can see it. Code that needs to know puts the
objects into a list and says how many references to each it knows of besides:

    object                             is held by                                        references known
    a Tensor's Node                    the Tensor                                        1
    that Node's Buffer                 the Node, and variables of the caller             1 + variables
    a Tensor's gradient                the Tensor, as `kept_grad`                        1
    a spare Node, its Buffer           the Spares (the Node), and a variable             2
    a freed Buffer's array             a variable                                        1
    the array below that               the array, as `base`, and a variable              2
    a Node of a Graph                  `position`, and each Node of it that reads it     1 + readers
    an alias of a Graph                each Node of it that reads it                     readers

Variables are those that were assigned to, not parameters, which an interpreter may lend. Lists are read by functions in
C, which count alike in all versions of CPython; `_calibrate` makes sure of that at import. Where it does not hold
(another interpreter, or threads without a global lock), everything counts as held by others: values are copied and
memory is allocated anew, which is slower and right.
"""
from __future__ import annotations

import sys
import warnings
from typing import Any

UNKNOWN = 1 << 30
"""The number that stands for references that cannot be counted."""


def holders(objects: list[Any]) -> list[int]:
    """The number of references to each object besides that of the list."""
    if _own is None:
        return [UNKNOWN] * len(objects)
    return [count - _own for count in map(_count, objects)]


def held_by_at_most(known: int, objects: list[Any]) -> bool:
    """True where there are at most `known` references to each of the objects (one or more) besides that of the list."""
    return _own is not None and max(map(_count, objects)) <= known + _own


_count: Any = getattr(sys, "getrefcount", None)


def _calibrate() -> int | None:
    """The count of an object that only a list holds; None, with a warning, where counts mean something else."""
    if _count is None or not getattr(sys, "_is_gil_enabled", lambda: True)():
        return None
    alone = [object()]
    own = list(map(_count, alone))[0]  # noqa: RUF015  (counted as by a caller)
    holder = type("Holder", (), {})()
    holder.attribute = variable = object()
    others = [variable]
    by_three = list(map(_count, [variable]))
    del variable
    by_two = list(map(_count, [holder.attribute]))
    del others
    by_one = list(map(_count, [holder.attribute]))
    if [by_one, by_two, by_three] != [[own + k] for k in (1, 2, 3)]:
        warnings.warn(f"[ownership] expected references to be counted one by one, got {own}, {by_one}, {by_two} and "
                      f"{by_three}; values will be copied rather than overwritten", RuntimeWarning, stacklevel=2)
        return None
    return own


_own = _calibrate()
