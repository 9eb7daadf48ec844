"""The shared cache folder: hits, corruption, eviction, folders that cannot be written, many processes."""
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.paths import ROOT

from minigrad.config import config
from minigrad.runtime import disk_cache


@pytest.fixture
def folder(tmp_path):
    with config(cache_dir=tmp_path, disk_cache=True):
        yield tmp_path


def entries(folder: Path) -> list[Path]:
    return [p for p in folder.rglob("*") if p.is_file()]


def test_put_then_get(folder):
    assert disk_cache.get("object", "k") is None
    disk_cache.put("object", "k", b"\0data\xff")
    assert disk_cache.get("object", "k") == b"\0data\xff"
    assert disk_cache.get("plan", "k") is None
    assert disk_cache.get("object", "k2") is None
    disk_cache.put("object", "k", b"")
    assert disk_cache.get("object", "k") == b""
    assert len(entries(folder)) == 1


def test_kinds_and_keys_are_not_confused(folder):
    disk_cache.put("a", "../b\0é", b"1")
    assert disk_cache.get("a", "../b\0é") == b"1"
    assert all(folder / "programs" / "a" in p.parents for p in entries(folder))


@pytest.mark.parametrize("damage", [
    lambda blob: b"",
    lambda blob: blob[:10],
    lambda blob: blob[:-1],
    lambda blob: blob + b"x",
    lambda blob: blob[:-1] + bytes([blob[-1] ^ 1]),
    lambda blob: bytes([blob[0] ^ 1]) + blob[1:],
    lambda blob: b"\x7fELF" * 100,
])
def test_damaged_entry_is_a_miss(folder, damage):
    disk_cache.put("object", "k", b"some data")
    [path] = entries(folder)
    path.write_bytes(damage(path.read_bytes()))
    assert disk_cache.get("object", "k") is None
    disk_cache.put("object", "k", b"new")
    assert disk_cache.get("object", "k") == b"new"


def test_entry_of_another_key_is_a_miss(folder):
    disk_cache.put("object", "a", b"data of a")
    [path] = entries(folder)
    disk_cache.put("object", "b", b"data of b")
    other = next(p for p in entries(folder) if p != path)
    os.replace(path, other)
    assert disk_cache.get("object", "b") is None


def test_folder_that_cannot_be_written_is_silent(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    with config(cache_dir=blocked / "cache", disk_cache=True):
        disk_cache.put("object", "k", b"data")
        assert disk_cache.get("object", "k") is None
        disk_cache.evict()
    assert blocked.read_text() == "not a folder"


def test_switched_off(tmp_path):
    with config(cache_dir=tmp_path, disk_cache=False):
        disk_cache.put("object", "k", b"data")
        assert disk_cache.get("object", "k") is None
    assert not entries(tmp_path)


def test_least_recently_used_entries_go_first(folder):
    models = folder / "models"
    models.mkdir()
    (models / "weights").write_bytes(bytes(3 << 20))
    now = time.time()
    for i in range(10):
        disk_cache.put("object", str(i), bytes(200_000))
        path = max(entries(folder / "programs"), key=lambda p: p.stat().st_mtime_ns)
        os.utime(path, (now - 1000 * (10 - i) - 30_000,) * 2)
    assert disk_cache.get("object", "0") is not None  # used again: now the newest
    assert disk_cache.evict() == 0
    with config(cache_limit_mb=1):
        assert disk_cache.evict() >= 1_000_000
    left = [i for i in range(10) if disk_cache.get("object", str(i)) is not None]
    assert left == [0, 8, 9]
    assert (models / "weights").exists()


def test_stale_temporary_files_are_removed(folder):
    disk_cache.put("object", "k", b"data")
    [path] = entries(folder)
    old, new = path.with_name("old.tmp"), path.with_name("new.tmp")
    for p in (old, new):
        p.write_bytes(b"partial")
    os.utime(old, (time.time() - 10_000,) * 2)
    disk_cache.evict()
    assert sorted(entries(folder)) == sorted([path, new])


WRITER = """
import sys
from pathlib import Path
from minigrad.config import config
from minigrad.runtime import disk_cache
with config(cache_dir=Path(sys.argv[1]), disk_cache=True):
    for i in range(300):
        data = str(i % 10).encode() * 5000
        disk_cache.put("object", str(i % 10), data)
        assert disk_cache.get("object", str(i % 10)) == data
"""


def test_many_processes_write_the_same_keys(tmp_path):
    root = ROOT
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], cwd=root) for _ in range(3)]
    assert [w.wait(120) for w in writers] == [0, 0, 0]
    assert len(entries(tmp_path)) == 10
