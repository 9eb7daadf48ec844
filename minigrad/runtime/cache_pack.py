r"""Cached programs and plans as one file, for machines of one kind.

    minigrad pack 1 \n <identity of the target> \n
    per entry: kind, name and bytes as a line of JSON, then the data
    sha256 of all of this, 32 bytes

Nothing of a file that is damaged, or made for another target, is used.
"""
from __future__ import annotations

import json
import os
import re
from hashlib import sha256
from pathlib import Path

from minigrad.errors import FormatError
from minigrad.runtime import disk_cache

MAGIC = b"minigrad pack 1\n"
_KIND, _NAME = re.compile("[a-z]+(-[a-z]+)*"), re.compile("[0-9a-f]{64}")


def pack(path: Path, identity: str) -> tuple[int, int]:
    """Writes all sound entries to a file, whole or not at all; returns (entries, bytes). Raises OSError."""
    parts = [MAGIC, identity.encode().replace(b"\n", b" ") + b"\n"]
    count = 0
    for entry in disk_cache.entries():
        data = disk_cache.read(entry)
        if data is not None:
            parts += [json.dumps([entry.kind, entry.name, len(data)]).encode() + b"\n", data]
            count += 1
    whole = b"".join(parts)
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_bytes(whole + sha256(whole).digest())
        os.replace(temporary, path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    return count, len(whole) + 32


def unpack(path: Path, identity: str) -> tuple[int, int]:
    """Adds the entries of a packed file to the cache; returns (entries there, entries stored).

    Raises FormatError for a file that is none, is damaged, or was made for another target; OSError where it cannot be
    read.
    """
    blob = path.read_bytes()
    whole = blob[:-32]
    if not whole.startswith(MAGIC) or sha256(whole).digest() != blob[-32:]:
        raise FormatError(f"[cache] expected a packed cache of minigrad in {path}, got a file that is damaged or none")
    at = whole.index(b"\n", len(MAGIC)) + 1
    made_for = whole[len(MAGIC):at - 1].decode(errors="replace")
    if made_for != identity.replace("\n", " "):
        raise FormatError(f"[cache] expected a pack for this target, {identity}; got one for {made_for}")
    count = stored = 0
    while at < len(whole):
        end = whole.index(b"\n", at)
        kind, name, size = json.loads(whole[at:end])
        if not _KIND.fullmatch(kind) or not _NAME.fullmatch(name):
            raise FormatError(f"[cache] expected a kind and a hash as the name of an entry, got {kind!r}, {name!r}")
        stored += disk_cache.put_named(kind, name, whole[end + 1:end + 1 + size])
        at, count = end + 1 + size, count + 1
    return count, stored
