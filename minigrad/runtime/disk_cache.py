"""Content-addressed files shared by many processes: objects of the CPU, binaries of OpenCL, plans.

An entry is one file, `<cache_dir>/programs/<kind>/<first two hex digits>/<sha256 of the key>`, written under another
name and renamed, with a header that holds a checksum over kind, name and data. Anything else found under that name (cut
short, changed, of another version) is a miss. Nothing is unpickled. A folder that cannot be written, and one that
others may write (own_files.py), makes every call a miss or a no-op: the callers keep what they use in memory anyway.
"""
from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from hashlib import sha256
from typing import NamedTuple

from minigrad import config
from minigrad.runtime.own_files import is_own, make_own, open_own

MAGIC = b"minigrad cache 2\n"
HEADER_BYTES = len(MAGIC) + 32
FOLDER = "programs"  # below the cache folder, which also holds fetched models: those are not ours to evict
KEEP_FRACTION = 0.75
PUTS_BETWEEN_SWEEPS = 256
TOUCH_AFTER_SECONDS = 6 * 3600.0
STALE_TEMPORARY_SECONDS = 3600.0

_counter = itertools.count()


class Entry(NamedTuple):
    """One file of the cache; `name` is the hash of its key."""

    kind: str
    name: str
    path: str


def get(kind: str, key: str) -> bytes | None:
    """The data stored under (kind, key), or None. Marks the entry as used, for the eviction."""
    path = _path(kind, name_of(key))
    if path is None:
        return None
    try:
        with open_own(path) as f:
            blob = f.read()
            age = time.time() - os.fstat(f.fileno()).st_mtime
    except OSError:
        return None
    data = _checked(kind, name_of(key), blob)
    if data is None:
        _remove(path)
        return None
    if age > TOUCH_AFTER_SECONDS:
        with suppress(OSError):
            os.utime(path)
    return data


def put(kind: str, key: str, data: bytes) -> None:
    """Stores `data` under (kind, key); does nothing where the directory cannot be written."""
    put_named(kind, name_of(key), data)


def put_named(kind: str, name: str, data: bytes) -> bool:
    """Stores `data` under the hash of its key; False where the directory cannot be written."""
    path = _path(kind, name)
    if path is None:
        return False
    number = next(_counter)
    temporary = f"{path}.{os.getpid()}.{number}.tmp"
    try:
        make_own(os.path.dirname(path))
        with open(temporary, "wb", opener=partial(os.open, mode=0o600)) as f:
            f.write(MAGIC + _checksum(kind, name, data) + data)
        os.replace(temporary, path)
    except OSError:
        _remove(temporary)
        return False
    if number % PUTS_BETWEEN_SWEEPS == 0:
        evict()
    return True


def entries() -> Iterator[Entry]:
    """All entries, by kind and name; what a writer left unfinished is none."""
    folder = os.path.join(config.current().cache_dir, FOLDER)
    for directory, folders, names in os.walk(folder):
        folders.sort()
        if not is_own(directory):
            continue
        kind = os.path.relpath(directory, folder).split(os.sep)[0]
        for name in sorted(names):
            if not name.endswith(".tmp"):
                yield Entry(kind, name, os.path.join(directory, name))


def read(entry: Entry) -> bytes | None:
    """The data of an entry; None if it is damaged or gone. Removes nothing."""
    try:
        with open_own(entry.path) as f:
            return _checked(entry.kind, entry.name, f.read())
    except OSError:
        return None


def remove(entry: Entry) -> bool:
    """Removes the file of an entry; True where it was there."""
    return _remove(entry.path)


def evict() -> int:
    """Removes the least recently used entries until `KEEP_FRACTION` of the limit is left; returns the bytes removed.

    Does nothing under the limit. Files that another process removes meanwhile are not an error.
    """
    settings = config.current()
    limit = settings.cache_limit_mb << 20
    found, total, removed = [], 0, 0
    for directory, _, names in os.walk(os.path.join(settings.cache_dir, FOLDER)):
        for name in names:
            path = os.path.join(directory, name)
            try:
                status = os.stat(path)
            except OSError:
                continue
            if name.endswith(".tmp"):
                if time.time() - status.st_mtime > STALE_TEMPORARY_SECONDS:
                    _remove(path)
                continue
            found.append((status.st_mtime, status.st_size, path))
            total += status.st_size
    if total <= limit:
        return 0
    found.sort()
    for _, size, path in found:
        if total - removed <= KEEP_FRACTION * limit:
            break
        _remove(path)
        removed += size
    return removed


def name_of(key: str) -> str:
    """The name of the file that holds what is stored under `key`."""
    return sha256(key.encode()).hexdigest()


def _path(kind: str, name: str) -> str | None:
    """The place of an entry; None where nothing is kept, or where others may write."""
    settings = config.current()
    if not settings.disk_cache:
        return None
    folder = os.path.join(settings.cache_dir, FOLDER, kind, name[:2])
    return os.path.join(folder, name) if is_own(folder) else None


def _checked(kind: str, name: str, blob: bytes) -> bytes | None:
    data = blob[HEADER_BYTES:]
    return data if blob[:HEADER_BYTES] == MAGIC + _checksum(kind, name, data) else None


def _checksum(kind: str, name: str, data: bytes) -> bytes:
    h = sha256(f"{kind}\0{name}\0".encode())
    h.update(data)
    return h.digest()


def _remove(path: str) -> bool:
    try:
        os.unlink(path)
    except OSError:
        return False
    return True
