"""The processor that programs are compiled for: the one we run on, or an older one whose instructions it has too.

Levels are those that the x86-64 psABI names; LLVM knows them as processors.
"""
from __future__ import annotations

from collections.abc import Iterable, Mapping

from minigrad.errors import ConfigError

_V2 = "cmov cx8 cx16 fxsr mmx popcnt sahf sse sse2 sse3 sse4.1 sse4.2 ssse3 64bit crc32"
_V3 = f"{_V2} avx avx2 bmi bmi2 f16c fma lzcnt movbe xsave"
_V4 = f"{_V3} avx512f avx512bw avx512cd avx512dq avx512vl"
_FEATURES = {f"x86-64-v{i}": frozenset(names.split()) for i, names in enumerate((_V2, _V3, _V4), 2)}


def processor(level: str, host: str, features: Mapping[str, bool]) -> tuple[str, dict[str, bool]]:
    """LLVM's name of the processor to compile for, and its features, some of those of `host`.

    Raises ConfigError where the host lacks what `level` has.
    """
    if level == "native":
        return host, dict(sorted(features.items()))
    missing = sorted(name for name in _FEATURES[level] if not features.get(name))
    if missing:
        raise ConfigError(f"[config] expected a processor with {', '.join(missing)} for {level}, got {host} without")
    return level, level_features(level, features)


def level_features(level: str, names: Iterable[str]) -> dict[str, bool]:
    """For each of these names of features, and for those of a level, whether the level has it."""
    wanted = _FEATURES[level]
    return {name: name in wanted for name in sorted({*names, *wanted})}
