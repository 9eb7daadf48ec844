"""Measured figures of a device, kept in the cache folder by the identity of device and driver.

`python -m minigrad devices --check` measures and stores; `Target` then has the figures. They are rounded to two digits,
so that a second measurement seldom makes other plans.
"""
from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from functools import lru_cache

from minigrad.runtime import disk_cache

KIND = "device-figures"


@dataclass(frozen=True, slots=True)
class Figures:
    """Float32 multiply-adds in registers (two operations each) and float16 products in GFLOP/s, bytes moved by a copy
    in GB/s, microseconds per launch in a row of them. 0.0: not measured."""

    gflops: float = 0.0
    half_gflops: float = 0.0
    gb_s: float = 0.0
    launch_us: float = 0.0

    def rounded(self) -> Figures:
        """The figures to two digits: what is kept does not tell more than was measured."""
        return Figures(**{name: float(f"{value:.2g}") for name, value in asdict(self).items()})


def store(identity: str, figures: Figures) -> None:
    """Keeps the figures for every process; does nothing where the cache folder cannot be written."""
    disk_cache.put(KIND, identity, json.dumps(asdict(figures.rounded())).encode())
    stored.cache_clear()


@lru_cache(maxsize=64)
def stored(identity: str) -> Figures:
    """The figures of a device, all 0.0 where it was not measured or the entry makes no sense."""
    data = disk_cache.get(KIND, identity)
    try:
        found = json.loads(data or b"{}")
        values = {f.name: float(found.get(f.name, 0.0)) for f in fields(Figures)}
    except (ValueError, AttributeError, TypeError):
        return Figures()
    return Figures(**values) if all(0.0 <= v < 1e9 for v in values.values()) else Figures()
