"""List every usable device: the name for MINIGRAD_DEVICE, driver, units, memory, fp16/fp64, vector width.

Of the OpenCL devices, CL alone means the first. A part of a platform's or device's name (CL:pocl, CL:rusticl,
CL:nvidia) may stand in place of the index; of several devices of one platform that match, the newest driver's is meant.
The default device is marked with *.
"""
from __future__ import annotations

import argparse
import os
from collections.abc import Sequence

import llvmlite
import numpy
from llvmlite.binding import llvm_version_info

from minigrad.cli.device_check import failures, measure
from minigrad.config import current
from minigrad.errors import DeviceError, MinigradError
from minigrad.report.words import size_text
from minigrad.runtime.cpu import host_target, shared_jit
from minigrad.runtime.figures import store
from minigrad.runtime.opencl_devices import DRIVERS_OF_PACKAGES, devices, platforms_without_devices
from minigrad.runtime.opencl_quirks import short_name
from minigrad.runtime.registry import canonical, get_device
from minigrad.target import Target

CHECK_HEADER = ("name", "kernels", "float32 GFLOP/s", "float16 product GFLOP/s", "copy GB/s", "launch us")
HEADER = ("name", "device", "driver", "kind", "units", "memory", "local", "fp16", "fp64", "vector")
CPU_FEATURES = ("fma", "f16c", "avx", "avx2", "avx512f", "avx512bw", "avx512vnni", "avx512bf16", "avx512fp16", "neon",
                "dotprod", "i8mm", "bf16", "fullfp16", "sve")


def describe(parser: argparse.ArgumentParser) -> None:
    """`minigrad devices [--check [DEVICE...]]`."""
    parser.add_argument("--check", nargs="*", metavar="DEVICE",
                        help="test and measure these devices (default: all but NUMPY); plans for OpenCL devices "
                             "then use what was measured, which is kept in the cache folder")


def run(options: argparse.Namespace) -> int:
    """Prints the table, then a line for each device that could be made usable. With --check, status 1 where a kernel
    computed something wrong."""
    rows, notes, default = [_cpu_row(), _numpy_row()], [], ""
    try:
        # First, because asking for rusticl enables it, once per process.
        names = [canonical(name) for name in options.check or ()]
        default = canonical(current().device)
    except DeviceError as e:
        if options.check:
            raise
        notes.append(str(e))
    try:
        rows += _opencl_rows()
        notes += _opencl_notes()
    except DeviceError as e:
        notes.append(str(e))
    if options.check is not None:
        return _check(names or [row[0] for row in rows if row[0] != "NUMPY"])
    marked = [(row[0] + "*" * (row[0] == default), *row[1:]) for row in rows]
    print("\n".join(table([HEADER, *marked])))
    print("\nCPU features: " + ", ".join(_cpu_features()))
    for note in dict.fromkeys([*_meanings(), *notes]):
        print(note)
    return 0


def _check(names: Sequence[str]) -> int:
    """A row of figures per device, and a line for each kernel that is wrong."""
    rows: list[tuple[str, ...]] = [CHECK_HEADER]
    wrong: list[str] = []
    for name in names:
        try:
            here = failures(name)
            figures = measure(name).rounded()
        except MinigradError as e:
            wrong.append(f"{name}: {e}")
            continue
        wrong += [f"{name}: {line}" for line in here]
        rows.append((name, f"{len(here)} wrong" if here else "right", *(f"{value:g}" for value in (
            figures.gflops, figures.half_gflops, figures.gb_s, figures.launch_us))))
        info = getattr(get_device(name), "info", None)
        if info is not None:
            store(info.identity, figures)
    print("\n".join(table(rows)))
    for line in wrong:
        print(line)
    return 1 if wrong else 0


def table(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Lines with the columns of `rows` aligned to the left, two spaces apart."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows]


def _cpu_target() -> Target:
    return host_target(shared_jit(), current().threads)


def _cpu_features() -> list[str]:
    features = _cpu_target().features
    return [name for name in CPU_FEATURES if name in features] or ["none of interest"]


def _cpu_row() -> tuple[str, ...]:
    target = _cpu_target()
    driver = f"LLVM {'.'.join(map(str, llvm_version_info))} (llvmlite {llvmlite.__version__})"
    return ("CPU", target.cpu, driver, "CPU", str(target.units), _host_memory(), "-",
            _yes("avx512fp16" in target.features or "fullfp16" in target.features), "yes", _bits(target.vector_bytes))


def _numpy_row() -> tuple[str, ...]:
    return ("NUMPY", "one op at a time", f"numpy {numpy.__version__}", "CPU", "1", _host_memory(), "-", "yes", "yes",
            "-")


def _opencl_rows() -> list[tuple[str, ...]]:
    return [(f"CL:{d.index}", d.name, f"{d.platform} {d.driver}", d.kind, str(d.units), size_text(d.global_memory),
             size_text(d.local_memory), _yes("fp16" in d.features), _yes("fp64" in d.features),
             "lanes" if d.target.is_gpu else _bits(d.vector_bytes)) for d in devices()]


def _meanings() -> list[str]:
    """Lines that say which device a word means that several devices match."""
    found: dict[str, list[int]] = {}
    try:
        for d in devices():
            found.setdefault(short_name(d.platform), []).append(d.index)
    except DeviceError:
        return []
    return [f"CL:{word} means CL:{indices[0]}, of {', '.join(f'CL:{i}' for i in indices)}"
            for word, indices in found.items() if len(indices) > 1]


def _opencl_notes() -> list[str]:
    notes = [f"not usable: {line}" for line in platforms_without_devices()]
    notes += [f"CL:{d.index} is {d.record}, which has {', '.join(d.differences)} as the driver says"
              for d in devices() if d.differences]
    return notes if devices() or notes else [f"no OpenCL platform found; {DRIVERS_OF_PACKAGES}"]


def _host_memory() -> str:
    try:
        return size_text(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (AttributeError, ValueError, OSError):
        return "?"


def _yes(there: bool) -> str:
    return "yes" if there else "no"


def _bits(nbytes: int) -> str:
    return f"{8 * nbytes} bit"
