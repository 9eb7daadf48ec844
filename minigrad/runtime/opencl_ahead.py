"""Kernels compiled by further processes, for drivers that compile each when it is first launched, one at a time.

PoCL takes tenths of a second for a kernel, holds a lock meanwhile, and keeps the result on disk for every process. So
where many kernels are new, processes of ours launch them over nothing, the last ones first, while this process launches
them in order as ever; from where they meet on, the driver finds them done. Nothing waits for the helpers, and they
change no result.
"""
from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
import tempfile
from typing import TYPE_CHECKING

import numpy as np

from minigrad.config import current
from minigrad.platforms import usable_cores
from minigrad.runtime import opencl_first

if TYPE_CHECKING:
    from minigrad.runtime.device import Launch
    from minigrad.runtime.opencl import Executable, OpenCL
    from minigrad.runtime.opencl_build import Builder
    from minigrad.runtime.opencl_devices import DeviceInfo

HELP_CHARS = 300_000
"""Characters of new kernels from which on a helper is worth starting: 6 seconds of the driver's compiler. It takes 2 to
start."""

MAX_HELPERS = 15

First = tuple["Executable", int, int]
"""A kernel with the global size and the work-group size of its first launch."""

_helpers: list[subprocess.Popen] = []
_owner = 0
"""The process whose helpers they are, not a fork of it."""


def compile_ahead(device: OpenCL, builder: Builder, launches: list[Launch]) -> None:
    """Calls help for those of the launches that are the first of their kernels: they are `fresh` no longer."""
    found: dict[First, str] = {}
    fresh = builder.fresh
    for launch in launches:
        extent = launch.table[0][1] if launch.table else launch.extent
        if extent > 0 and launch.executable.program in fresh:
            (size,), (group,) = device.ranges(launch.executable, extent)
            found[launch.executable, size, group] = fresh.pop(launch.executable.program)
    text = sum([len(executable.program.source) for executable, _, _ in found])
    count = min(usable_cores() - 1, MAX_HELPERS, text // HELP_CHARS)
    if count < 1 or current().threads < 2 or not sys.executable:
        return
    _helpers[:] = [helper for helper in _helpers if helper.poll() is None]
    order = list(found)[::-1]
    for k in range(count):
        _start(device.info, builder, {first: found[first] for first in order[k::count]})


def _start(info: DeviceInfo, builder: Builder, kernels: dict[First, str]) -> None:
    """A process for these kernels. Its request is a file: nobody waits until it has been read."""
    global _owner
    builds: list[tuple[str, list[str], list]] = []
    for (executable, size, group), source in kernels.items():
        if not builds or builds[-1][0] != source:
            builds.append((source, builder.options, []))
        arguments = ["" if kind is None else np.dtype(kind).name for kind in executable.types]
        builds[-1][2].append((executable.program.name, arguments, size, group))
    request = {"device": (info.platform, info.name, info.version), "builds": builds}
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([p for p in sys.path if p])}
    with tempfile.TemporaryFile("w+") as file:
        json.dump(request, file)
        file.seek(0)
        try:
            helper = subprocess.Popen([sys.executable, "-P", opencl_first.__file__], stdin=file, env=environment,
                                      stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        except OSError:
            return
    _helpers.append(helper)
    _owner = os.getpid()


@atexit.register
def _end_helpers() -> None:
    for helper in _helpers if _owner == os.getpid() else ():
        helper.kill()
        helper.wait()
