"""Numbers in words, as reports print them."""
from __future__ import annotations


def time_text(seconds: float) -> str:
    """Seconds with three digits, in the unit that fits."""
    for factor, unit in ((1.0, "s"), (1e3, "ms")):
        if seconds * factor >= 0.9995:  # 999.6 us have three digits as 1 ms only
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds * 1e6:.3g} us"


def size_text(nbytes: int) -> str:
    """Bytes in the largest binary unit that leaves at least 1: '512 KiB', '4.9 GiB'."""
    value, units = float(nbytes), ["B", "KiB", "MiB", "GiB", "TiB"]
    while value >= 1024 and len(units) > 1:
        value /= 1024
        units.pop(0)
    return f"{value:.1f}".removesuffix(".0") + f" {units[0]}"
