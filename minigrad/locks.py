"""Locks that a forked child finds free: the thread that held one in the parent does not exist there.

A fork waits until no other thread holds one, and imports nothing: what a lock protects is whole in the child, memory
that a launch overwrites among it, and Python's own locks of modules are free, which a child could not free. It waits
for so long and no longer, as who holds a lock may wait for a process that is yet to be forked.
"""
from __future__ import annotations

import importlib
from threading import get_ident
from time import monotonic, sleep
from typing import Any, TypeVar

from minigrad.platforms import at_fork

L = TypeVar("L")

PATIENCE = 30.0
"""Seconds that a fork waits."""
_TRY, _PAUSE = 0.01, 0.001

_locks: list[Any] = []
_held: list[Any] = []


def free_in_children(lock: L) -> L:
    """The `Lock` or `RLock` of a module, for good."""
    _locks.append(lock)
    return lock


def _before_fork() -> None:
    """Takes all locks, and gives back what it has where one is not free: nobody waits for us who has another one."""
    end = monotonic() + PATIENCE
    while True:
        for lock in _locks:
            if not lock.acquire(timeout=_TRY):
                break
            _held.append(lock)
        if len(_held) == len(_locks) and not _others_import():
            return
        _release()
        if monotonic() > end:
            return
        sleep(_PAUSE)


def _others_import() -> bool:
    """True while another thread imports a module."""
    known = getattr(getattr(importlib, "_bootstrap", None), "_module_locks", {})
    owners = [getattr(lock(), "owner", None) for lock in list(known.values())]
    return any([owner not in (None, get_ident()) for owner in owners])


def _release() -> None:
    while _held:
        _held.pop().release()


def _in_child() -> None:
    _held.clear()
    for lock in _locks:
        renew: Any = getattr(lock, "_at_fork_reinit", None)  # as Python's own modules do
        if renew is not None:
            renew()


at_fork(before=_before_fork, after_in_parent=_release, after_in_child=_in_child)
