"""`python -m minigrad launch` without an MPI: its own work, and what is wrong with what it is told."""
import os
from pathlib import Path

import pytest

from minigrad.cli import launch
from minigrad.cli.command_line import main
from minigrad.cli.one_rank import number_in, share_of

FUTURE = "from __future__ import annotations\n"


def test_cores_are_shared() -> None:
    assert [share_of([0, 1, 2, 3, 8], r, 2) for r in range(2)] == [[0, 1], [2, 3]]
    assert [share_of([4, 5], r, 3) for r in range(3)] == [[4], [5], [4]]
    assert number_in({"A": "x", "B": "7"}, ("A", "B"), 1) == 7 and number_in({}, ("A",), 5) == 5


@pytest.mark.parametrize("words, message", [
    (["-n", "0", "{script}"], "expected one process or more"),
    (["-n", "2", "missing.py"], "expected a Python file, got missing.py"),
    (["-n", "2", "--mpirun", "/nowhere/mpirun", "{script}"], "expected a program that runs, got /nowhere/mpirun"),
    (["-n", "2"], "script")])
def test_mistakes(words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "script.py"
    script.write_text("")
    assert main(["launch", *[word.format(script=script) for word in words]]) in (1, 2)
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("forks", [True, False])
def test_one_process_needs_no_mpi(forks: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not forks:
        unforking = tmp_path / "one_rank.py"
        unforking.write_text(f"import os\ndel os.fork\n{launch._ONE_RANK.read_text().replace(FUTURE, '')}")
        monkeypatch.setattr(launch, "_ONE_RANK", unforking)
    script, out = tmp_path / "script.py", tmp_path / "out"
    script.write_text("import os, sys, pathlib\n"
                      "pathlib.Path(sys.argv[1]).write_text(os.environ['MINIGRAD_THREADS'] + ' ' + sys.argv[2])\n"
                      "sys.exit(5)\n")
    assert main(["launch", "-n", "1", "--threads", "3", str(script), str(out), "--flag"]) == 5
    assert out.read_text() == "3 --flag" and "PMI_RANK" not in os.environ
