"""Quantised weights in the order of our panels, kept on disk for the next process.

Repacking takes seconds for each gigabyte. Of each model file one safetensors file is kept,
`<cache_dir>/weights/<hash>.safetensors`, which a later process maps. The hash is that of the model file's path, size,
time of change and first bytes, and of VERSION. A file that is damaged or cut short is removed, and made again.
"""
from __future__ import annotations

import hashlib
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from minigrad.config import current
from minigrad.errors import MinigradError
from minigrad.ops.block_formats import FORMATS
from minigrad.runtime.own_files import is_own, make_own, open_own
from minigrad.state.quantized import QuantizedTensor
from minigrad.state.safe import safe_load, safe_save
from minigrad.tensor import Tensor

VERSION = 1
"""To be raised with each change of the order or of the formats."""

FOLDER = "weights"
LEAST = 16 << 20
"""Bytes from which on weights are kept: fewer are repacked in no time."""

HEAD = 1 << 16
"""First bytes of a model file that are part of its hash."""


def load(source: Path) -> dict[str, QuantizedTensor]:
    """The weights that were kept of a model file, by name; none where there are none, or damaged ones."""
    target = _target(source)
    if target is None or not target.is_file() or not is_own(target.parent):
        return {}
    try:
        open_own(target).close()
    except OSError:
        return {}
    found: dict[tuple[str, str, tuple[int, ...]], dict[int, Tensor]] = {}
    try:
        for name, tensor in safe_load(target).items():
            own, kind, shape, part = name.rsplit(" ", 3)
            found.setdefault((own, kind, tuple(map(int, shape.split("x")))), {})[int(part)] = tensor
        made = {own: QuantizedTensor(kind, shape, tuple([parts[k] for k in range(len(FORMATS[kind].parts))]))
                for (own, kind, shape), parts in found.items()}
        target.touch()  # for the eviction
    except (MinigradError, OSError, ValueError, KeyError):
        target.unlink(missing_ok=True)
        return {}
    return made


def keep(source: Path, weights: Mapping[str, Tensor | QuantizedTensor]) -> None:
    """Keeps the quantised ones of a model file's weights, and removes those of files that were used longest ago, where
    together they would be more than the setting `weights_mb`. Does nothing where the disk has not twice the room."""
    parts = {f"{name} {weight.kind} {'x'.join(map(str, weight.shape))} {k}": part
             for name, weight in weights.items() if isinstance(weight, QuantizedTensor)
             for k, part in enumerate(weight.stored)}
    size = sum([int(part.numel()) * part.dtype.itemsize for part in parts.values()])
    target, limit = _target(source), current().weights_mb << 20
    if target is None or not LEAST <= size <= limit:
        return
    with suppress(OSError):
        make_own(target.parent)
        if shutil.disk_usage(target.parent).free < 2 * size:
            return
        evict(limit - size)
        safe_save(parts, target)
        target.chmod(0o600)


def files() -> list[Path]:
    """The files that are kept, those used longest ago first."""
    folder = Path(current().cache_dir) / FOLDER
    found = []
    with suppress(OSError):
        found = [(path.stat().st_mtime, path) for path in folder.iterdir()]
    return [path for _, path in sorted(found)]


def evict(limit: int) -> int:
    """Removes files, those used longest ago first, until they are `limit` bytes; returns the bytes removed."""
    removed, sizes = 0, {}
    for path in files():
        with suppress(OSError):
            sizes[path] = path.stat().st_size
    for path, size in sizes.items():
        if sum(sizes.values()) - removed <= limit:
            break
        with suppress(OSError):
            path.unlink()
            removed += size
    return removed


def _target(source: Path) -> Path | None:
    """The place of what is kept of a model file; None where nothing is to be."""
    settings = current()
    if not settings.disk_cache or not settings.weights_mb:
        return None
    try:
        status = source.stat()
        with open(source, "rb") as file:
            head = hashlib.sha256(file.read(HEAD)).hexdigest()
    except OSError:
        return None
    key = f"{VERSION} {source.resolve()} {status.st_size} {status.st_mtime_ns} {head}"
    return Path(settings.cache_dir) / FOLDER / f"{hashlib.sha256(key.encode()).hexdigest()}.safetensors"
