"""Memory of realized values: buffers that give themselves back when the last Node lets go."""
from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass

from minigrad.engine.stats import stats
from minigrad.runtime.device import Buffer, Device


@dataclass(slots=True)
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
