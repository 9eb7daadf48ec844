"""Records that a user measured: files of `<cache folder>/machines`, of GPUs in `gpus` below it.

`python -m minigrad machine measure` writes them. Of a file whose name a record of the package has, and of every
processor's, [speed] alone is used, which decides nothing that rounds. Facts that this version does not know are passed
over: the file may be an older one's.
"""
from __future__ import annotations

import math
import re
from functools import cache
from pathlib import Path
from typing import Any

from minigrad.config import current
from minigrad.errors import ConfigError

NAME = "machines"
"""Of the folder in the cache folder. Tests of plans look elsewhere: what a machine was measured to do is not theirs."""


def folder(of_gpus: bool = False) -> Path:
    """The folder of a user's records, which need not be there."""
    return Path(current().cache_dir) / NAME / ("gpus" if of_gpus else "")


def file_name(device: str) -> str:
    """A name for the record of a device that has none: 'NVIDIA GeForce GTX 960' is nvidia-geforce-gtx-960."""
    return re.sub(r"[^a-z0-9]+", "-", device.lower()).strip("-") or "unnamed"


@cache
def speed(name: str, of_gpus: bool = False) -> dict[str, float | bool]:
    """The facts of [speed] that were measured of a machine; none where it was not. Raises ConfigError for a file that
    is no record."""
    found = table(folder(of_gpus) / f"{name}.toml").get("speed", {})
    for fact, value in found.items():
        if not isinstance(value, bool) and not (isinstance(value, int | float) and 0 < value < math.inf):
            raise ConfigError(f"[machine] expected {fact} in {folder(of_gpus) / name}.toml to be a number above 0, "
                              f"got {value!r}")
    return dict(found)


def table(path: Path) -> dict[str, Any]:
    """A file's tables and keys, empty where it is not there. Raises ConfigError for one that is no record."""
    try:
        text = path.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return {}
    except UnicodeDecodeError as e:
        raise ConfigError(f"[machine] expected TOML in {path}, got: {e}") from None
    import tomllib  # not before something is planned

    try:
        found = tomllib.loads(text)
    except ValueError as e:
        raise ConfigError(f"[machine] expected TOML in {path}, got: {e}") from None
    wrong = [key for key in ("declared", "costs", "speed") if not isinstance(found.get(key, {}), dict)]
    if wrong:
        raise ConfigError(f"[machine] expected [{wrong[0]}] to be a table of facts in {path}, got {found[wrong[0]]!r}")
    return found
