"""Questions to the operating system, whose answers others lack."""
from __future__ import annotations

import os
from collections.abc import Callable


def usable_cores() -> int:
    """The cores that this process may use; all of them where the system does not tell."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def at_fork(**calls: Callable[[], None]) -> None:
    """`os.register_at_fork` where processes fork; elsewhere there is nothing to be called at."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(**calls)
