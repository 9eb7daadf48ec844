"""Runs a script as one process of several: `one_rank.py <threads> <script> <arguments>`, by `minigrad launch`.

It gives the process its share of the cores, and says which rank it was when a signal ends it. It is a program of its
own that imports little: every rank has one beside it.
"""
from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Mapping, Sequence

if not hasattr(os, "fork"):
    import subprocess

PR_SET_PDEATHSIG = 1


def number_in(env: Mapping[str, str], names: Sequence[str], default: int) -> int:
    """The number in the first of these variables that is set."""
    return next((int(env[name]) for name in names if env.get(name, "").isdigit()), default)


def share_of(cores: Sequence[int], rank: int, size: int) -> list[int]:
    """The cores of one of `size` processes: equally many for each, and one at least."""
    count = max(1, len(cores) // size)
    start = rank * count % len(cores)
    return list(cores[start:start + count])


def become(script: str, arguments: Sequence[str], threads: int, env: Mapping[str, str], parent: int) -> None:
    """Becomes the script, on its share of the cores; dies with the process `parent`."""
    local_rank = number_in(env, ("MPI_LOCALRANKID", "OMPI_COMM_WORLD_LOCAL_RANK"), 0)
    local_size = number_in(env, ("MPI_LOCALNRANKS", "OMPI_COMM_WORLD_LOCAL_SIZE"), 1)
    if hasattr(os, "sched_setaffinity"):
        own = share_of(sorted(os.sched_getaffinity(0)), local_rank, local_size)
        os.sched_setaffinity(0, own)
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it was gone before it was asked for
            os._exit(1)
        threads = threads or len(own)
    os.execve(sys.executable, [sys.executable, script, *arguments], with_threads(env, threads))


def with_threads(env: Mapping[str, str], threads: int) -> dict[str, str]:
    """The environment of a process with so many threads; 0: as many as it takes."""
    return {**env, **({"MINIGRAD_THREADS": str(threads), "OMP_NUM_THREADS": str(threads)} if threads else {})}


def main() -> int:
    """Runs and watches it; returns its status."""
    threads, script, *arguments = sys.argv[1:]
    if not hasattr(os, "fork"):  # a system where a process's threads go to all cores, and end with it
        return subprocess.run([sys.executable, script, *arguments], check=False,
                              env=with_threads(os.environ, int(threads))).returncode
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        become(script, arguments, int(threads), os.environ, parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the script has it too
    signal.signal(signal.SIGTERM, lambda number, frame: os.kill(child, number))
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        rank = number_in(os.environ, ("PMI_RANK", "OMPI_COMM_WORLD_RANK"), 0)
        size = number_in(os.environ, ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE"), 1)
        if number != signal.SIGTERM:
            print(f"minigrad launch: rank {rank} of {size} (process {child}) was ended by "
                  f"{signal.Signals(number).name}; the others end with it", file=sys.stderr, flush=True)
        signal.signal(number, signal.SIG_DFL) if number != signal.SIGKILL else None
        os.kill(parent, number)
    return os.waitstatus_to_exitcode(status)


if __name__ == "__main__":
    sys.exit(main())
