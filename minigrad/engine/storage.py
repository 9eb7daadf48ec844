"""Memory of realized values: buffers that give themselves back when the last Node lets go."""
from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from minigrad.engine.stats import stats
from minigrad.runtime.device import Buffer, Device
from minigrad.runtime.host import address_of


@dataclass(slots=True, eq=False)
class Owned(Buffer):
    """A Buffer whose memory returns to its device with the last reference."""

    def __del__(self, finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if finalizing():  # modules are being taken apart, and the memory goes with the process
            return
        stats.mem_used -= self.nbytes
        if self.handle is not None:
            self.device.free(self)


def allocate(device: Device, nbytes: int) -> Owned:
    """`nbytes` of device memory, owned by the returned object."""
    raw = device.alloc(nbytes)
    stats.mem_used += nbytes
    owned = Owned(raw.device, nbytes, raw.handle, raw.offset, raw.base, raw.address)
    raw.handle = None
    return owned


@dataclass(slots=True, eq=False)
class Lent(Owned):
    """A Buffer of host memory that returns to the Spares it came from, for as long as these want it."""

    home: list[tuple[Any, int]] | None = None

    def __del__(self, finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if finalizing():
            return
        stats.mem_used -= self.nbytes
        handle, home = self.handle, self.home
        # Here the attribute, the variable and the call's argument hold the memory: whoever else does looks at it.
        if handle is not None and home is not None and len(home) < SPARES and sys.getrefcount(handle) <= 3:
            home.append((handle, self.address))
        else:
            del handle
            self.device.free(self)


SPARES = 2
SPARE_BYTES = 1 << 20


class Spares:
    """Memory for one output of a step that runs again and again: what dies is handed out next time, where it lies.

    Outputs above `SPARE_BYTES` come from the device's pool, so that little memory waits unused.
    """

    __slots__ = ("_device", "_nbytes", "_free")

    def __init__(self, device: Device, nbytes: int):
        self._device, self._nbytes = device, nbytes
        self._free: list[tuple[Any, int]] = []

    def take(self) -> Owned:
        """A buffer that nobody else holds."""
        if self._nbytes > SPARE_BYTES:
            return allocate(self._device, self._nbytes)
        if self._free:
            handle, address = self._free.pop()
        else:
            raw = self._device.alloc(self._nbytes)
            handle, address = raw.handle, address_of(raw)
            raw.handle = None
        stats.mem_used += self._nbytes
        return Lent(self._device, self._nbytes, handle, 0, None, address, home=self._free)


_arenas: dict[str, Owned] = {}


def arena(device: Device, nbytes: int) -> Owned:
    """The device's memory for temporaries, at least `nbytes`: one for all plans, as a device runs its work in order.

    It is kept from run to run: fresh pages cost as much as the kernels that write them.
    """
    found = _arenas.get(device.name)
    if found is None or found.nbytes < nbytes:
        _arenas.pop(device.name, None)
        found = _arenas[device.name] = allocate(device, nbytes)
    return found
