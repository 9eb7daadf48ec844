"""Tables in which equal objects are one object, for as long as something else refers to it; and tables of bounded size
that keep the latest results."""
from __future__ import annotations

from collections.abc import Hashable
from typing import Any
from weakref import ref


class Interned(ref):
    """A weak reference that knows its key in a table, so that a dead object's entry can be dropped."""

    __slots__ = ("table", "key")
    table: Table
    key: Hashable


Table = dict[Hashable, Interned]


def keep(table: Table, key: Hashable, value: Any) -> None:
    """Enters an object. `table.get(key)` is None, or a reference that gives None, where there is no such object."""
    entry = table[key] = Interned(value, drop)
    entry.table, entry.key = table, key


def drop(dead: Interned) -> None:
    """Takes out the entry of an object that is gone, unless another has taken its place."""
    if dead.table.get(dead.key) is dead:
        del dead.table[dead.key]


def remember(table: dict[Any, Any], key: Any, value: Any, most: int) -> None:
    """Enters `value` for a key. Where there are `most` other entries, the oldest is dropped."""
    if len(table) >= most and key not in table:
        table.pop(next(iter(table)), None)
    table[key] = value
