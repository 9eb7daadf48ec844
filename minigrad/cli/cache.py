"""Show or clear the compiled programs kept on disk."""
from __future__ import annotations

import argparse
import os

from minigrad.cli.devices import size_text, table
from minigrad.config import current
from minigrad.runtime.disk_cache import FOLDER


def describe(parser: argparse.ArgumentParser) -> None:
    """`minigrad cache` lists, `minigrad cache clear` removes."""
    parser.add_argument("action", nargs="?", choices=("list", "clear"), default="list",
                        help="list: entries and bytes by kind; clear: remove them (default: list)")


def run(options: argparse.Namespace) -> int:
    """Lists or removes the entries; models in the same folder are left alone."""
    folder = os.path.join(current().cache_dir, FOLDER)
    kinds = {kind: _files(os.path.join(folder, kind)) for kind in _folders(folder)}
    total = sum(size for files in kinds.values() for _, size in files)
    if options.action == "clear":
        removed = sum(_remove(path) for files in kinds.values() for path, _ in files)
        print(f"removed {removed} entries, {size_text(total)}, from {folder}")
        return 0
    print(f"{folder}: {size_text(total)} of at most {current().cache_limit_mb} MiB")
    rows = [(kind, f"{len(files)} entries", size_text(sum(size for _, size in files)))
            for kind, files in kinds.items()]
    print("\n".join(table(rows)) if rows else "empty")
    return 0


def _folders(folder: str) -> list[str]:
    try:
        return sorted(entry.name for entry in os.scandir(folder) if entry.is_dir())
    except FileNotFoundError:
        return []


def _files(folder: str) -> list[tuple[str, int]]:
    found = []
    for directory, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(directory, name)
            try:
                found.append((path, os.stat(path).st_size))
            except FileNotFoundError:
                continue
    return found


def _remove(path: str) -> bool:
    try:
        os.unlink(path)
    except FileNotFoundError:
        return False
    return True
