"""Facts of machines: which file a target gets, that all files are complete, and what each fact says of itself."""
import re
import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
from golden_plans import TARGETS

from minigrad.codegen.cost import machine as module
from minigrad.codegen.cost.machine import FOLDER, facts, file_of, machine
from minigrad.errors import InternalError
from minigrad.target import Target

FILES = sorted(path.stem for path in FOLDER.glob("*.toml"))
KNOWN, UNKNOWN = TARGETS["half"], replace(TARGETS["half"], cpu="a processor of next year")


def runs_on(name: str) -> Target:
    """A target whose facts are in the file."""
    if name == "generic-gpu":
        return TARGETS["gpu"]
    if name == "generic-opencl-cpu":
        return TARGETS["pocl"]
    return replace(KNOWN, cpu=name, vector_bytes=64 if "avx512" in str(facts(name)) else 32)


def test_each_target_has_the_file_of_its_kind() -> None:
    found = {name: file_of(t.cpu, t) for name, t in TARGETS.items()}
    assert found == {
        "avx2": "znver3", "avx512": "znver5", "half": "znver4", "alone": "znver4", "intel": "generic-avx512",
        "vnni": "znver5", "amx": "generic-avx512", "neon": "generic-neon", "pocl": "generic-opencl-cpu",
        "gpu": "generic-gpu", "units": "generic-gpu", "raster": "generic-gpu", "scalar": "generic-gpu"}
    kinds = [file_of("unknown", replace(UNKNOWN, vector_bytes=width)) for width in (16, 32, 64)]
    assert kinds == ["generic-neon", "generic-avx2", "generic-avx512"]
    assert file_of("znver4", TARGETS["pocl"]) == "generic-opencl-cpu"  # a driver's code is its own


@pytest.mark.parametrize("name", FILES)
def test_files_are_complete(name: str) -> None:
    made = machine(runs_on(name))
    assert all(getattr(made, section) is not None for section in ("declared", "costs", "speed"))


@pytest.mark.parametrize("name", FILES)
def test_each_fact_says_where_it_is_from(name: str) -> None:
    """Every line with a fact, or the comment right above it."""
    lines = (FOLDER / f"{name}.toml").read_text().splitlines()
    for before, line in zip(["", *lines], lines, strict=False):
        if re.match(r"\w+ = ", line) and not line.startswith("like"):
            said = line.partition("#")[2] or before.partition("#")[2]
            assert re.search(r"manual|measured \d{4}-\d{2}|chosen|as on|assumed", said), f"{name}: {line}"
        assert len(line) <= 120, f"{name}: {line}"


def test_files_differ_from_what_they_are_like() -> None:
    """A fact that is repeated would be two to keep equal."""
    for name in FILES:
        own = tomllib.loads((FOLDER / f"{name}.toml").read_text())
        below = facts(own.pop("like")) if "like" in own else {}
        assert name == "generic" or below
        repeated = [f for section, found in own.items() for f, x in found.items() if below.get(section, {}).get(f) == x]
        assert not repeated, f"{name}: {repeated}"


def test_programs_round_as_the_processor_they_are_for() -> None:
    """And are as fast as the one that they run on."""
    older = replace(KNOWN, cpu="x86-64-v4", host="znver4")
    assert machine(older).declared.fma_per_cycle == 2 and machine(KNOWN).declared.fma_per_cycle == 1
    assert machine(older).speed.long_streams and not machine(replace(older, host="")).speed.long_streams


@pytest.mark.parametrize("text, message", [
    ("like = 'generic'\n[speed]\nlong_steams = true", "expected facts [] and not ['long_steams'] in [speed]"),
    ("[declared]\n[costs]\n[speed]\nlong_streams = true", "fma_per_cycle"),
    ("like = 'generic'\n[speeds]\nlong_streams = true", "expected sections declared, costs, speed in wrong.toml"),
])
def test_a_wrong_file_is_refused(text: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "generic.toml").write_text((FOLDER / "generic.toml").read_text())
    (tmp_path / "wrong.toml").write_text(text)
    monkeypatch.setattr(module, "FOLDER", tmp_path)
    for kept in (module.facts, module.machine, module._files):
        monkeypatch.setattr(module, kept.__name__, getattr(kept, "__wrapped__", kept))
    with pytest.raises((InternalError, KeyError), match=re.escape(message)):
        module.machine(replace(UNKNOWN, cpu="wrong"))


def test_importing_reads_no_facts() -> None:
    """They are read when something is planned for the first time."""
    code = "import sys, minigrad; print('tomllib' in sys.modules, 'minigrad.codegen.cost.machine' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, cwd=FOLDER.parents[2])
    assert found.stdout.startswith(b"False")


def test_the_wheel_has_them() -> None:
    project = tomllib.loads((FOLDER.parents[2] / "pyproject.toml").read_text())
    kept = project["tool"]["setuptools"]["package-data"]["minigrad"]
    assert all(any((FOLDER / f"{name}.toml") in FOLDER.parents[1].glob(pattern) for pattern in kept) for name in FILES)
