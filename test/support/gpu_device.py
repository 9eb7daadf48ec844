"""An OpenCL driver, whatever it drives, as a GPU: plans are made for one, and its programs are kept to look at."""
from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from minigrad import devices
from minigrad.program import Program
from minigrad.runtime.opencl import Executable, OpenCL
from minigrad.runtime.opencl_devices import find_device

UNITS, LOCAL_MEMORY, GROUP = 16, 48 << 10, 256
"""Compute units, local memory and work-items of a group of a middling GPU, as far as the driver has them."""

NAME = "GPU"


class AsGpu(OpenCL):
    """The driver that `driver` names, as 'CL:intel', with plans as for a GPU. `written` changes the text of each
    program before it is compiled, `facts` are further ones of the target. `programs`: what was compiled, as it was
    planned."""

    def __init__(self, driver: str, written: Callable[[str], str] = str, name: str = NAME, **facts: Any):
        info = find_device(driver.partition(":")[2])
        super().__init__(replace(info, vector_bytes=4))
        self.name, self.written = name, written
        self.programs: dict[Program, None] = {}
        self.target = replace(self.info.target, **{
            "name": name, "units": UNITS, "local_memory": min(LOCAL_MEMORY, info.local_memory),
            "max_group": min(GROUP, info.max_group), **facts})

    def load(self, programs: Iterable[Program]) -> list[Executable]:
        programs = list(programs)
        self.programs |= dict.fromkeys(programs)
        return super().load([replace(p, source=self.written(p.source)) for p in programs])

    def with_groups(self) -> list[Program]:
        """The programs whose plans have groups and items."""
        return [p for p in self.programs if p.group]


@contextmanager
def as_gpu(driver: str, written: Callable[[str], str] = str, **facts: Any) -> Iterator[AsGpu]:
    """Such a device for a while, under the name NAME."""
    device = AsGpu(driver, written, **facts)
    devices.register(NAME, lambda: device)
    try:
        yield device
    finally:
        devices.unregister(NAME)
