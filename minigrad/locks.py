"""Locks that a forked child finds free: the thread that held one in the parent does not exist there."""
from __future__ import annotations

import os
from typing import Any, TypeVar

L = TypeVar("L")


def free_in_children(lock: L) -> L:
    """The `Lock` or `RLock` of a module, for good. What it protects has to be whole at every moment."""
    renew: Any = getattr(lock, "_at_fork_reinit", None)  # as Python's own modules do
    if renew is not None and hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=renew)
    return lock
