"""Drivers of the Python environment: which files the loader is given, and that what was set before is kept."""
import os
from pathlib import Path

import pytest

from minigrad.runtime import opencl_vendors
from minigrad.runtime.opencl_vendors import VARIABLES, environments_drivers


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """The folders of the system's files and of the environment's, with one driver each."""
    system, environment = tmp_path / "system", tmp_path / "environment"
    monkeypatch.setattr(opencl_vendors, "SYSTEM", system)
    monkeypatch.setattr(opencl_vendors, "_prefixes", lambda: [str(environment)])
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    vendors = environment / "etc/OpenCL/vendors"
    for folder in (system, vendors, environment / "lib"):
        folder.mkdir(parents=True)
    (system / "one.icd").write_text("libone.so.1\n")
    (vendors / "two.icd").write_text("/where/it/was/built/lib/libtwo.so\n")
    (environment / "lib/libtwo.so").touch()
    return system, vendors


def told() -> list[str] | None:
    """The libraries in the files that a loader sees now; None where it is told nothing."""
    folder = os.environ.get(VARIABLES[0])
    return None if folder is None else sorted(path.read_text().strip() for path in Path(folder).iterdir())


def test_a_library_of_the_environment_is_told_beside_the_systems(places: tuple[Path, Path]) -> None:
    own = str(places[1].parents[2] / "lib/libtwo.so")
    with environments_drivers():
        assert told() == sorted([own, "libone.so.1"])
        folder = Path(os.environ[VARIABLES[0]])
    assert told() is None and not folder.exists()
    (places[1] / "two.icd").write_text(own)  # as an installer that knows the place writes it
    with environments_drivers():
        assert told() == sorted([own, "libone.so.1"])


def test_nothing_is_told_where_there_is_nothing_to_tell(places: tuple[Path, Path]) -> None:
    system, vendors = places
    library = vendors.parents[2] / "lib/libtwo.so"
    (system / "two.icd").write_text(str(library))  # root has told the loader
    with environments_drivers():
        assert told() is None
    (system / "two.icd").unlink()
    library.unlink()
    with environments_drivers():
        assert told() is None


@pytest.mark.parametrize("variable", VARIABLES)
def test_what_the_user_has_set_is_kept(places: tuple[Path, Path], variable: str,
                                       monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, "/mine")
    with environments_drivers():
        assert [os.environ.get(name) for name in VARIABLES] == ["/mine" if name == variable else None
                                                                for name in VARIABLES]
    monkeypatch.setenv(variable, "")
    with environments_drivers():
        assert told() is not None
    assert os.environ[variable] == ""
