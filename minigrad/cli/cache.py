"""Show, check, clear or move the compiled programs and plans kept on disk; show and clear repacked weights."""
from __future__ import annotations

import argparse
import os
from pathlib import Path

from minigrad.cli.devices import table
from minigrad.config import current
from minigrad.errors import MinigradError, quantity
from minigrad.report.words import size_text
from minigrad.runtime import cache_pack, disk_cache
from minigrad.runtime.cpu import shared_jit
from minigrad.state import repacked


def describe(parser: argparse.ArgumentParser) -> None:
    """`minigrad cache [list | verify | clear | pack FILE | load FILE]`."""
    parser.add_argument("action", nargs="?", choices=("list", "verify", "clear", "pack", "load"), default="list",
                        help="list: entries and bytes by kind; verify: check them and remove the damaged; clear: "
                             "remove all; pack: write them to FILE; load: take them from FILE (default: list)")
    parser.add_argument("file", nargs="?", type=Path, metavar="FILE", help="for pack and load")


def run(options: argparse.Namespace) -> int:
    """Does one action; models in the same folder are left alone."""
    if (options.file is not None) is not (options.action in ("pack", "load")):
        raise MinigradError(f"[cache] expected {'no FILE' if options.file else 'a FILE'} for {options.action}")
    if options.file is not None:
        return {"pack": _pack, "load": _load}[options.action](options.file)
    return {"list": _list, "verify": _verify, "clear": _clear}[options.action]()


def _list() -> int:
    kinds: dict[str, list[int]] = {}
    for entry in disk_cache.entries():
        kinds.setdefault(entry.kind, []).append(_size(entry))
    folder, limit = os.path.join(current().cache_dir, disk_cache.FOLDER), current().cache_limit_mb
    print(f"{folder}: {size_text(sum(map(sum, kinds.values())))} of at most {limit} MiB")
    rows = [(kind, quantity(len(sizes), "entry"), size_text(sum(sizes))) for kind, sizes in kinds.items()]
    print("\n".join(table(rows)) if rows else "empty")
    if kept := repacked.files():
        print(f"{kept[0].parent}: {quantity(len(kept), 'file')} of repacked weights, "
              f"{size_text(sum(map(_bytes_of, kept)))} of at most {current().weights_mb} MiB")
    return 0


def _verify() -> int:
    """Status 1 where an entry was damaged."""
    damaged = count = 0
    for entry in list(disk_cache.entries()):
        count += 1
        if disk_cache.read(entry) is None:
            damaged += disk_cache.remove(entry)
            print(f"damaged, removed: {entry.path}")
    print(f"{quantity(count, 'entry')}, {damaged} damaged")
    return 1 if damaged else 0


def _clear() -> int:
    removed = [size for entry in list(disk_cache.entries()) if (size := _size(entry)) and disk_cache.remove(entry)]
    folder = os.path.join(current().cache_dir, disk_cache.FOLDER)
    print(f"removed {quantity(len(removed), 'entry')}, {size_text(sum(removed))}, from {folder}")
    if weights := repacked.evict(0):
        print(f"removed {size_text(weights)} of repacked weights")
    return 0


def _pack(path: Path) -> int:
    count, nbytes = cache_pack.pack(path, _identity())
    print(f"packed {quantity(count, 'entry')}, {size_text(nbytes)}, into {path}")
    return 0


def _load(path: Path) -> int:
    """Status 1 where some entry could not be stored."""
    count, stored = cache_pack.unpack(path, _identity())
    print(f"loaded {stored} of {quantity(count, 'entry')} from {path}")
    return 0 if stored == count else 1


def _identity() -> str:
    """The processor and the compiler that cached code is for."""
    return shared_jit().identity


def _size(entry: disk_cache.Entry) -> int:
    return _bytes_of(entry.path)


def _bytes_of(path: str | Path) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0
