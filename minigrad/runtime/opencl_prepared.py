"""Launches whose arguments stay set: each has a kernel object of its own, and a run sets only what has changed."""
from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from minigrad.errors import InternalError

if TYPE_CHECKING:
    from minigrad.runtime.opencl import Executable, OpenCL

Place = tuple[int, int]
"""A launch and the number of an argument of its program."""


class PreparedLaunches:
    """A list of launches for many runs. Every argument has to be set before the first one."""

    def __init__(self, device: OpenCL, executables: list[Executable]):
        import pyopencl as cl
        self.device, self.executables = device, executables
        self.kernels = [cl.Kernel(e.kernel.program, e.kernel.function_name) for e in executables]
        self.sizes: list[tuple[tuple[int], tuple[int]] | None] = [None] * len(executables)
        self._at = [e.positions() for e in executables]

    def set_buffer(self, places: Iterable[Place], handle: Any, offset: int) -> None:
        """Memory `offset` bytes into a handle, as an argument at these places."""
        for k, argument in places:
            executable, at = self.executables[k], self._at[k][argument]
            itemsize = executable.itemsizes[argument]
            if handle is None or offset % itemsize:
                raise InternalError(f"[launch] expected live memory at a multiple of {itemsize} bytes, got {offset}")
            self.kernels[k].set_arg(at, handle)
            self.kernels[k].set_arg(at + 1, executable.types[at + 1](offset // itemsize))

    def set_number(self, places: Iterable[Place], value: int | float) -> None:
        """A scalar or a dim, in the type that each program takes."""
        for k, argument in places:
            at = self._at[k][argument]
            self.kernels[k].set_arg(at, self.executables[k].types[at](value))

    def set_extent(self, k: int, extent: int) -> None:
        """The iterations of a launch; with none it is left out."""
        executable = self.executables[k]
        self.kernels[k].set_arg(len(executable.types) - 1, executable.types[-1](extent))
        self.sizes[k] = self.device.ranges(executable, extent) if extent > 0 else None
