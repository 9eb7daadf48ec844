"""Content-addressed files shared by many processes: objects of the CPU, binaries of OpenCL, plans.

An entry is one file, `<cache_dir>/programs/<kind>/<first two hex digits>/<sha256 of the key>`, written under another
name and renamed, with a header that holds a checksum over kind, key and data. Anything else found under that name (cut
short, changed, of another version) is a miss. Nothing is unpickled. A directory that cannot be written makes every call
a miss or a no-op: the callers keep what they use in memory anyway.
"""
from __future__ import annotations

import itertools
import os
import time
from hashlib import sha256

from minigrad import config

MAGIC = b"minigrad cache 1\n"
FOLDER = "programs"  # below the cache folder, which also holds fetched models: those are not ours to evict
KEEP_FRACTION = 0.75
PUTS_BETWEEN_SWEEPS = 256
TOUCH_AFTER_SECONDS = 6 * 3600.0
STALE_TEMPORARY_SECONDS = 3600.0

_counter = itertools.count()


def get(kind: str, key: str) -> bytes | None:
    """The data stored under (kind, key), or None. Marks the entry as used, for the eviction."""
    path = _path(kind, key)
    if path is None:
        return None
    try:
        with open(path, "rb") as f:
            blob = f.read()
            age = time.time() - os.fstat(f.fileno()).st_mtime
    except OSError:
        return None
    start = len(MAGIC) + 32
    data = blob[start:]
    if blob[:start] != MAGIC + _checksum(kind, key, data):
        _remove(path)
        return None
    if age > TOUCH_AFTER_SECONDS:
        try:
            os.utime(path)
        except OSError:
            pass
    return data


def put(kind: str, key: str, data: bytes) -> None:
    """Stores `data` under (kind, key); does nothing where the directory cannot be written."""
    path = _path(kind, key)
    if path is None:
        return
    number = next(_counter)
    temporary = f"{path}.{os.getpid()}.{number}.tmp"
    try:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        with open(temporary, "wb") as f:
            f.write(MAGIC + _checksum(kind, key, data) + data)
        os.replace(temporary, path)
    except OSError:
        _remove(temporary)
        return
    if number % PUTS_BETWEEN_SWEEPS == 0:
        evict()


def evict() -> int:
    """Removes the least recently used entries until `KEEP_FRACTION` of the limit is left; returns the bytes removed.

    Does nothing under the limit. Files that another process removes meanwhile are not an error.
    """
    settings = config.current()
    limit = settings.cache_limit_mb << 20
    entries, total, removed = [], 0, 0
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
            entries.append((status.st_mtime, status.st_size, path))
            total += status.st_size
    if total <= limit:
        return 0
    entries.sort()
    for _, size, path in entries:
        if total - removed <= KEEP_FRACTION * limit:
            break
        _remove(path)
        removed += size
    return removed


def _path(kind: str, key: str) -> str | None:
    settings = config.current()
    if not settings.disk_cache:
        return None
    name = sha256(key.encode()).hexdigest()
    return os.path.join(settings.cache_dir, FOLDER, kind, name[:2], name)


def _checksum(kind: str, key: str, data: bytes) -> bytes:
    h = sha256(f"{kind}\0{key}\0".encode())
    h.update(data)
    return h.digest()


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        pass
