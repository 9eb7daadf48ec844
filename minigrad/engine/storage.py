"""Memory of realized values: buffers that give themselves back when the last Node lets go."""
from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any
from weakref import ref

from minigrad.config import current
from minigrad.dtype import DType
from minigrad.engine import poison
from minigrad.engine.stats import stats
from minigrad.errors import DeviceError
from minigrad.ops.kinds import Type, type_of
from minigrad.ops.node import Node, leaf
from minigrad.ops.op import Shape
from minigrad.ops.storage import BUFFER
from minigrad.ownership import held_by_at_most
from minigrad.runtime.device import Buffer, Device
from minigrad.runtime.host import address_of


@dataclass(slots=True, eq=False)
class Owned(Buffer):
    """A Buffer whose memory returns to its device with the last reference. `home`: Spares that keep its leaf Node, to
    hand it out again when nobody else holds either."""

    home: Spares | None = None

    def __del__(self, finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if finalizing():  # modules are being taken apart, and the memory goes with the process
            return
        stats.mem_used -= self.nbytes
        if self.handle is not None:
            self.device.free(self)


def allocate(device: Device, nbytes: int) -> Owned:
    """`nbytes` of device memory, owned by the returned object. Raises DeviceError when there are none left."""
    poisoned = current().poison
    try:
        raw = device.alloc(nbytes) if not poisoned else poison.surrounded(device, nbytes)
    except DeviceError:
        if not sum([spares.clear() for spares in [r() for r in _large] if spares is not None]):
            raise
        raw = device.alloc(nbytes) if not poisoned else poison.surrounded(device, nbytes)
    stats.mem_used += nbytes
    found = Owned(device, nbytes, raw.handle, raw.offset, raw.base, raw.address)
    if poisoned:
        poison.watch(found)
    return found


SPARES = 2
SPARE_BYTES = 1 << 20
LARGE_BYTES = 1 << 28


class Spares:
    """A realized leaf for one output of a step that runs again and again: one that died is handed out next time.

    The latest `SPARES` are kept. Those of more than `SPARE_BYTES` take at most `LARGE_BYTES` together, over all steps.
    With `donated`, what was handed out before is handed out again whoever holds it.
    """

    __slots__ = ("_device", "_nbytes", "_type", "nodes", "donated", "__weakref__")

    def __init__(self, device: Device, nbytes: int, what: Type, donated: bool = False):
        self._device, self._nbytes, self._type, self.donated = device, nbytes, what, donated
        self.nodes: list[Node] = []
        """The Nodes that are kept. Code that finds one here that nobody else holds, as `take` does, may hand it out."""

    def take(self) -> Node:
        """A leaf over memory that nobody else holds."""
        for node in self.nodes:
            # Who else looks at this Node meanwhile is counted, and counts us: no two threads take one.
            buffer = node.storage
            if held_by_at_most(2, [node, buffer]):
                buffer.version += 1
                return node
        return self._new()

    def take_again(self, read: Sequence[Any]) -> Node:
        """A leaf over memory that is not among the buffers `read`; donated memory first."""
        for node in self.nodes if self.donated else ():
            if all([node.storage is not b for b in read]):
                node.storage.version += 1
                return node
        return self.take()

    def let_go(self, node: Node) -> None:
        """Keeps a Node no longer."""
        self.nodes[:] = [n for n in self.nodes if n is not node]

    def clear(self) -> int:
        """Keeps none of the leaves any longer; returns how many bytes they have."""
        freed = len(self.nodes) * self._nbytes
        self.nodes.clear()
        return freed

    def _new(self) -> Node:
        if len(self.nodes) >= SPARES:
            del self.nodes[0]
        node = self._lend()
        if self.small or self.donated or self._find_room():
            self.nodes.append(node)
        return node

    def _find_room(self) -> bool:
        """Makes room for one more large leaf, if it is not too large; steps that made none for long lose theirs."""
        others = [r() for r in _large]
        _large[:] = [ref(s) for s in others if s is not None and s is not self] + [ref(self)]
        room = LARGE_BYTES - sum([len(s.nodes) * s._nbytes for s in others if s is not None]) - self._nbytes
        for s in others:
            if room < 0 and s is not None and s is not self:
                room += s.clear()
        return room >= 0

    @property
    def small(self) -> bool:
        """True where a leaf may be kept whatever others there are."""
        return self._nbytes <= SPARE_BYTES

    def _lend(self) -> Node:
        """A new leaf."""
        owned = allocate(self._device, self._nbytes)
        address_of(owned)
        owned.home = self
        return leaf_of_type(self._type, owned)


_large: list[ref[Spares]] = []
"""Those that have kept large leaves; the one that made one last comes last."""


def buffer_node(buffer: Buffer, shape: Shape, dtype: DType, device: str) -> Node:
    """A leaf whose value is what `buffer` holds."""
    return leaf_of_type(type_of(tuple(shape), dtype, device), buffer)


def leaf_of_type(what: Type, buffer: Buffer) -> Node:
    """A leaf of this type whose value is what `buffer` holds."""
    return leaf(BUFFER, what, buffer, {"id": next(_ids), "extents": what.shape, "of": what.dtype})


_ids = count(1)


def next_id() -> int:
    """A number that keeps a Node of storage apart from all others."""
    return next(_ids)


def settle_down(node: Node) -> None:
    """Says that a Node, perhaps a spare one, stands for a value that lasts: its Spares let go of it."""
    buffer = node.storage
    if type(buffer) is Owned and buffer.home is not None:
        buffer.home.let_go(node)
        buffer.home = None


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
