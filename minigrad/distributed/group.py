"""The processes that work together: who this one is, and what becomes of all when one of them fails."""
from __future__ import annotations

import atexit
import sys
import threading
from types import TracebackType
from typing import Any

from minigrad.config import processes
from minigrad.distributed.messages import Messages
from minigrad.errors import ConfigError
from minigrad.locks import free_in_children
from minigrad.runtime.host_calls import exchangers

_lock = free_in_children(threading.Lock())
_messages: list[Messages] = []


def rank() -> int:
    """The number of this process, from 0 on; 0 where mpirun has not started it."""
    return processes().rank


def size() -> int:
    """The number of processes; 1 where mpirun has not started this one."""
    return processes().size


def local_rank() -> int:
    """The number of this process among those on its machine."""
    return processes().local_rank


def is_initialized() -> bool:
    """True from `init` on, where there are other processes."""
    return bool(_messages)


def init() -> None:
    """Joins the other processes that mpirun started: from then on, one that fails ends all of them. Of one process
    alone it does nothing, and imports no MPI. Other functions call it when they need it; all processes must.

    Raises ConfigError where mpi4py or an MPI is not installed, or is another one than mpirun's.
    """
    if size() > 1:
        messages()


def messages() -> Messages:
    """The messages to and from the other processes, which the first call joins."""
    with _lock:
        if not _messages:
            _messages.append(_joined())
        return _messages[0]


def _joined() -> Messages:
    try:
        from mpi4py import MPI
    except ImportError as error:
        raise ConfigError("[distributed] expected mpi4py and an MPI, as `pip install minigrad[mpi]` brings them, got: "
                          f"{error}") from None
    world = MPI.COMM_WORLD
    if world.Get_size() != size():
        raise ConfigError(f"[distributed] expected {size()} processes, as mpirun says, got {world.Get_size()} from "
                          f"{MPI.get_vendor()[0]}, which is not that mpirun's; `python -m minigrad launch` finds the "
                          "right one")
    made = Messages(world.Dup(), MPI)
    exchangers.append(made)
    before = sys.excepthook

    def fail(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        before(kind, error, trace)
        end_all(f"{kind.__name__}: {error}")

    sys.excepthook = fail
    atexit.register(made.close)
    return made


def end_all(reason: Any) -> None:
    """Ends all processes, with a message that names this one."""
    sys.stdout.flush()
    text = " ".join(str(reason).split())
    print(f"minigrad: rank {rank()} of {size()} failed, and the others end with it: {text}", file=sys.stderr,
          flush=True)
    messages().abort()
