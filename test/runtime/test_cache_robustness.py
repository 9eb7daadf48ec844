"""Many processes over one cache folder, and what happens to it: right results, no crash, nothing half-written."""
import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.paths import ROOT, TESTS

from minigrad.cli.command_line import main
from minigrad.config import config
from minigrad.runtime import disk_cache

SCRIPT = TESTS / "support" / "cached_step.py"


def start(folder: Path, fault: str = "", **variables: str) -> subprocess.Popen:
    environment = os.environ | {"MINIGRAD_CACHE": str(folder), "MINIGRAD_DISK_CACHE": "1", "MINIGRAD_VERIFY": "0",
                                "MINIGRAD_THREADS": "2", "MINIGRAD_DEBUG": "0", "PYTHONPATH": str(ROOT)} | variables
    return subprocess.Popen([sys.executable, "-W", "error", str(SCRIPT), fault], cwd=ROOT, env=environment, text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def end(process: subprocess.Popen) -> dict:
    out, errors = process.communicate(timeout=120)
    assert process.returncode == 0 and not errors, errors
    return json.loads(out)


def step(folder: Path, fault: str = "", **variables: str) -> dict:
    return end(start(folder, fault, **variables))


def files(folder: Path) -> list[Path]:
    return sorted(p for p in folder.rglob("*") if p.is_file())


def is_sound(folder: Path) -> bool:
    with config(cache_dir=folder, disk_cache=True):
        return all(disk_cache.read(entry) is not None for entry in disk_cache.entries())


@pytest.fixture(scope="module")
def filled(tmp_path_factory) -> tuple[Path, dict]:
    """A folder that one process has filled, and what that printed."""
    folder = tmp_path_factory.mktemp("filled")
    return folder, step(folder)


@pytest.fixture
def copied(filled, tmp_path) -> Path:
    """The same folder, to be damaged."""
    for path in files(filled[0]):
        target = tmp_path / path.relative_to(filled[0])
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(path.read_bytes())
    return tmp_path


def test_a_second_process_schedules_renders_and_compiles_nothing(filled):
    folder, first = filled
    assert first["schedules"] > 0 and first["programs"] > 0 and first["compiled"] > 0 and first["plan_loads"] == 0
    second = step(folder)
    assert second["digest"] == first["digest"]
    assert (second["schedules"], second["programs"], second["compiled"]) == (0, 0, 0)
    assert second["plan_loads"] == first["schedules"]


def test_eight_processes_at_once_from_empty(filled, tmp_path):
    results = [end(process) for process in [start(tmp_path) for _ in range(8)]]
    assert {r["digest"] for r in results} == {filled[1]["digest"]}
    assert is_sound(tmp_path) and not list(tmp_path.rglob("*.tmp"))
    assert step(tmp_path)["schedules"] == 0


@pytest.mark.parametrize("at", [0, 4])
def test_killed_while_it_writes(filled, tmp_path, at):
    process = start(tmp_path, f"kill:{at}")
    process.communicate(timeout=120)
    assert process.returncode == -signal.SIGKILL
    assert len(list(tmp_path.rglob("*.tmp"))) == 1 and is_sound(tmp_path)
    assert step(tmp_path)["digest"] == filled[1]["digest"]
    assert step(tmp_path)["schedules"] == 0


def test_a_byte_flipped_in_every_file(filled, copied):
    draw = random.Random(0)
    for path in files(copied):
        blob = bytearray(path.read_bytes())
        blob[draw.randrange(len(blob))] ^= 1 << draw.randrange(8)
        path.write_bytes(blob)
    again = step(copied)
    assert again["digest"] == filled[1]["digest"] and again["plan_loads"] == 0 and again["compiled"] > 0
    assert is_sound(copied) and step(copied)["schedules"] == 0


@pytest.mark.parametrize("kind", ["llvm-object", "llvm-index", "plan"])
def test_one_kind_of_entries_is_gone(filled, copied, kind):
    for path in files(copied / "programs" / kind):
        path.unlink()
    assert step(copied)["digest"] == filled[1]["digest"]
    assert step(copied)["schedules"] == 0


@pytest.mark.parametrize("nbytes", [0, 700])
def test_no_room_for_files(filled, tmp_path, nbytes):
    assert step(tmp_path, f"limit:{nbytes}")["digest"] == filled[1]["digest"]
    assert is_sound(tmp_path) and not list(tmp_path.rglob("*.tmp"))
    assert all(0 < p.stat().st_size <= nbytes for p in files(tmp_path))


def test_a_full_disk(filled, tmp_path):
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16k", "minigrad-test", str(tmp_path)],
                             capture_output=True)
    if mounted.returncode:
        pytest.skip("mounting a small tmpfs needs more rights")
    try:
        assert step(tmp_path)["digest"] == filled[1]["digest"]
        assert is_sound(tmp_path) and not list(tmp_path.rglob("*.tmp"))
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


def test_a_home_that_cannot_be_written(filled, tmp_path):
    """/proc refuses new folders to everybody, root included."""
    result = step(Path("/proc/self/no-such-folder"), HOME="/proc/self", XDG_CACHE_HOME="")
    assert result["digest"] == filled[1]["digest"] and result["schedules"] == filled[1]["schedules"]


@pytest.mark.parametrize("fault", ["cpu", "version"])
def test_a_cache_of_another_processor_or_version(filled, tmp_path, fault):
    """Nothing of it is used: a plan of another version may have other tiles, and other bits."""
    step(tmp_path, fault, **({"MINIGRAD_CPU": "native"} if fault == "cpu" else {}))
    result = step(tmp_path)
    assert result["digest"] == filled[1]["digest"]
    assert result["plan_loads"] == 0 and result["schedules"] == filled[1]["schedules"]


def test_a_packed_cache_serves_another_machine(filled, tmp_path, capsys):
    folder, first = filled
    pack, elsewhere = tmp_path / "pack", tmp_path / "elsewhere"
    with config(cache_dir=folder, disk_cache=True):
        assert main(["cache", "pack", str(pack)]) == 0
    with config(cache_dir=elsewhere, disk_cache=True):
        assert main(["cache", "load", str(pack)]) == 0
        assert main(["cache", "verify"]) == 0
    assert f"{len(files(folder))} entries, 0 damaged" in capsys.readouterr().out
    result = step(elsewhere)
    assert (result["digest"], result["schedules"], result["compiled"]) == (first["digest"], 0, 0)
    blob = pack.read_bytes()
    for damaged in (blob[:-1], blob[:2000] + bytes([blob[2000] ^ 1]) + blob[2001:], b"", b"something else"):
        pack.write_bytes(damaged)
        with config(cache_dir=tmp_path / "empty", disk_cache=True):
            assert main(["cache", "load", str(pack)]) == 1
            assert "damaged or none" in capsys.readouterr().err
    assert not files(tmp_path / "empty")


def test_verify_removes_what_is_damaged(copied, capsys):
    path = files(copied)[0]
    path.write_bytes(path.read_bytes()[:-1])
    with config(cache_dir=copied, disk_cache=True):
        assert main(["cache", "verify"]) == 1
        out = capsys.readouterr().out
        assert str(path) in out and "1 damaged" in out
        assert main(["cache", "verify"]) == 0
        assert main(["cache", "pack"]) == 1
        assert "expected a FILE" in capsys.readouterr().err
