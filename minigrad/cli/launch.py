"""run a training script in several processes, each with its share of the cores

    python -m minigrad launch -n 2 train.py --data photos

It needs the extra mpi: `pip install minigrad[mpi]`. Each process has as many threads as its share of the cores; one
that dies ends the others, and is named.
"""
from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

from minigrad.errors import ConfigError

_ONE_RANK = Path(__file__).with_name("one_rank.py")


def describe(parser: argparse.ArgumentParser) -> None:
    """Adds the options."""
    parser.add_argument("-n", "--processes", type=int, required=True, help="how many processes")
    parser.add_argument("--threads", type=int, default=0, help="threads of each (default: its share of the cores)")
    parser.add_argument("--hosts", help="names of machines, with commas (default: this one)")
    parser.add_argument("--mpirun", help="mpirun to use (default: that of this Python's environment, or on the PATH)")
    parser.add_argument("script", help="a Python file")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="of the script")


def run(options: argparse.Namespace) -> int:
    """Runs the script; returns mpirun's status, that of the script for one process."""
    if options.processes < 1 or options.threads < 0:
        raise ConfigError(f"[launch] expected one process or more, and 0 threads or more, got {options.processes} and "
                          f"{options.threads}")
    if not Path(options.script).is_file():
        raise ConfigError(f"[launch] expected a Python file, got {options.script}")
    one = [sys.executable, "-I", str(_ONE_RANK), str(options.threads), options.script, *options.arguments]
    if options.processes == 1:
        return _status(one, dict(os.environ))
    mpirun = options.mpirun or _mpirun()
    try:
        version = subprocess.run([mpirun, "--version"], capture_output=True, text=True, check=False).stdout
    except OSError as error:
        raise ConfigError(f"[launch] expected a program that runs, got {mpirun}: {error.strerror}") from None
    return _status([mpirun, "-n", str(options.processes), *_options(version, options.hosts), *one],
                   {**os.environ, **_variables(version)})


def _mpirun() -> str:
    own = Path(sys.executable).parent / "mpirun"  # where wheels of an MPI have theirs
    found = str(own) if own.is_file() else shutil.which("mpirun") or shutil.which("mpiexec")
    if found is None:
        raise ConfigError("[launch] expected mpirun, which `pip install minigrad[mpi]` brings, got none")
    return found


def _options(version: str, hosts: str | None) -> list[str]:
    """The options for an mpirun of this version, among others that it binds no process: each does so itself."""
    if "Open MPI" in version:
        return ["--bind-to", "none", "--oversubscribe", *(["--host", hosts] if hosts else [])]
    return ["-hosts", hosts] if hosts else []


def _variables(version: str) -> dict[str, str]:
    """Open MPI refuses root, who is the only user of a container, unless it is told so twice."""
    if "Open MPI" in version and os.geteuid() == 0:
        return {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return {}


def _status(command: list[str], env: dict[str, str]) -> int:
    """Runs a command, which gets Ctrl-C itself, to its end; a signal counts as 128 and its number."""
    process = subprocess.Popen(command, env=env)
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        status = process.wait()
    finally:
        signal.signal(signal.SIGINT, before)
        process.kill()
    return status if status >= 0 else 128 - status
