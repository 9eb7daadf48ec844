"""Several processes over MPI, as `minigrad launch` runs them: what they compute together, and how they end."""
import os
import subprocess
import sys
import time
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest
from support.distributed_checks import CHECKS
from support.paths import ROOT, TESTS

MPIRUN = Path(sys.executable).parent / "mpirun"

needs_mpi = pytest.mark.skipif(find_spec("mpi4py") is None or not MPIRUN.is_file(),
                               reason="mpi4py and an MPI are not installed here (the extra mpi)")


def launch(count: int, script: str, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    """The outcome of a script in `count` processes."""
    command = [sys.executable, "-m", "minigrad", "launch", "-n", str(count), "--threads", "1"]
    return subprocess.run([*command, str(TESTS / "support" / script), *arguments], cwd=ROOT, capture_output=True,
                          text=True, timeout=300, check=False,
                          env={**os.environ, "PYTHONPATH": str(ROOT), **env})


@cache
def passed() -> tuple[set[str], str]:
    """The checks that three processes passed, and what they said."""
    done = launch(3, "distributed_checks.py")
    return {line.removeprefix("passed ") for line in done.stdout.splitlines()}, done.stdout + done.stderr


@needs_mpi
@pytest.mark.parametrize("name", [check.__name__ for check in CHECKS])
def test_three_processes(name: str) -> None:
    found, said = passed()
    assert name in found, said


@needs_mpi
def test_messages_in_place_of_shared_memory() -> None:
    names = ("all_reduce_of_every_shape", "training_equals_one_process", "two_optimizers_in_one_step")
    done = launch(2, "distributed_checks.py", *names, MINIGRAD_SHARED_MEMORY="0")
    assert done.stdout.split("\n") == [*[f"passed {name}" for name in names], ""], done.stdout + done.stderr


@needs_mpi
@pytest.mark.parametrize("how, message", [
    ("raise", "minigrad: rank 1 of 2 failed, and the others end with it: ValueError: a bad batch"),
    ("exit", "[all_reduce] expected rank 1 to take part, but it has ended"),
    ("kill", "minigrad launch: rank 1 of 2 (process "),
    ("shape", "[all_reduce] expected the same in all processes, got sum of float32 [")])
def test_a_rank_that_fails_ends_the_others_and_is_named(how: str, message: str) -> None:
    start = time.monotonic()
    done = launch(2, "distributed_failing.py", how, MINIGRAD_VERIFY="0")
    assert done.returncode != 0 and message in done.stderr, done.stderr
    assert time.monotonic() - start < 200  # and not for ever: the loop alone would go on
