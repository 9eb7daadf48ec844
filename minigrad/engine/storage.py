"""Memory of realized values: buffers that give themselves back when the last Node lets go."""
from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from sys import getrefcount
from typing import Any

from minigrad.dtype import DType
from minigrad.engine.stats import stats
from minigrad.ops.node import Node, leaf
from minigrad.ops.op import Shape
from minigrad.ops.storage import BUFFER
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
    """A Buffer whose leaf Node is kept among Spares, to be handed out again when nobody else holds either."""

    home: list[Node] | None = None


SPARES = 2
SPARE_BYTES = 1 << 20


class Spares:
    """A realized leaf for one output of a step that runs again and again: one that died is handed out next time.

    The latest `SPARES` are kept where they take at most `SPARE_BYTES` each. With `donated`, what was handed out before
    is handed out again whoever holds it.
    """

    __slots__ = ("_device", "_nbytes", "_shape", "_dtype", "_nodes", "donated")

    def __init__(self, device: Device, nbytes: int, shape: Shape, dtype: DType, donated: bool = False):
        self._device, self._nbytes, self._shape, self._dtype = device, nbytes, shape, dtype
        self.donated = donated
        self._nodes: list[Node] = []

    def take(self) -> Node:
        """A leaf over memory that nobody else holds."""
        for node in self._nodes:
            # Who else looks at this Node meanwhile is counted, and counts us: no two threads take one.
            buffer = node.storage
            if getrefcount(node) == _IN_A_LIST and getrefcount(buffer) == _IN_A_LIST:
                buffer.version += 1
                return node
        return self._new()

    def take_again(self, read: Sequence[Any]) -> Node:
        """A leaf over memory that is not among the buffers `read`; donated memory first."""
        for node in self._nodes if self.donated else ():
            if all([node.storage is not b for b in read]):
                node.storage.version += 1
                return node
        return self.take()

    def _new(self) -> Node:
        owned = allocate(self._device, self._nbytes)
        address_of(owned)
        if self._nbytes > SPARE_BYTES and not self.donated:
            return realized_leaf(owned, self._shape, self._dtype)
        home = self._nodes
        lent = Lent(owned.device, owned.nbytes, owned.handle, owned.offset, owned.base, owned.address, home=home)
        owned.handle, owned.nbytes = None, 0
        node = realized_leaf(lent, self._shape, self._dtype)
        if len(home) >= SPARES:
            del home[0]
        home.append(node)
        return node


def realized_leaf(buffer: Buffer, shape: Shape, dtype: DType) -> Node:
    """A Node that stands for the value in a buffer."""
    return leaf(BUFFER, shape, dtype, buffer.device.name, buffer, {"id": 0, "extents": shape, "of": dtype})


def settle_down(node: Node) -> None:
    """Says that a Node, perhaps a spare one, stands for a value that lasts: its Spares let go of it."""
    buffer = node.storage
    if type(buffer) is Lent and buffer.home is not None:
        buffer.home[:] = [n for n in buffer.home if n is not node]
        buffer.home = None


def _calibrate() -> int:
    """What `getrefcount` says of an object that a list and a variable hold."""
    for held in [object()]:
        count = getrefcount(held)
    return count


_IN_A_LIST = _calibrate()

arenas: dict[str, Owned] = {}
"""The memory for temporaries by the name of its device: ask `arena`."""


def arena(device: Device, nbytes: int) -> Owned:
    """The device's memory for temporaries, at least `nbytes`: one for all plans, as a device runs its work in order.

    It is kept from run to run: fresh pages cost as much as the kernels that write them.
    """
    found = arenas.get(device.name)
    if found is None or found.nbytes < nbytes:
        arenas.pop(device.name, None)
        found = arenas[device.name] = allocate(device, nbytes)
    return found
