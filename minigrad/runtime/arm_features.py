"""The features of ARM processors by LLVM's names, of which LLVM itself asks a system for a few only.

Linux has words for them in /proc/cpuinfo, macOS names of its own.
"""
from __future__ import annotations

import ctypes
import sys
from pathlib import Path

ARM = "aarch64", "arm64"
"""The beginnings of such processors' triples."""

WORDS = {
    "neon": ("asimd", "AdvSIMD"), "dotprod": ("asimddp", "arm.FEAT_DotProd"), "i8mm": ("i8mm", "arm.FEAT_I8MM"),
    "bf16": ("bf16", "arm.FEAT_BF16"), "fullfp16": ("asimdhp", "arm.FEAT_FP16"),
}
"""By LLVM's names: the word of Linux, and the name of macOS below hw.optional."""


def arm_features(cpuinfo: Path = Path("/proc/cpuinfo")) -> dict[str, bool]:
    """For each of these features, whether the processor has it; none where the system has no words for them."""
    if sys.platform == "darwin":
        return {name: _macos_has(f"hw.optional.{word}") for name, (_, word) in WORDS.items()}
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        return {}
    # Cores may differ, and a thread may be moved to any of them.
    cores = [set(line.partition(":")[2].split()) for line in lines if line.startswith("Features")]
    return {name: all([word in core for core in cores]) for name, (word, _) in WORDS.items()} if cores else {}


def _macos_has(name: str) -> bool:
    value, size = ctypes.c_int(0), ctypes.c_size_t(ctypes.sizeof(ctypes.c_int))
    failed = ctypes.CDLL(None).sysctlbyname(name.encode(), ctypes.byref(value), ctypes.byref(size), None, 0)
    return not failed and value.value == 1
