"""Poisoned memory (MINIGRAD_POISON): NaN where nobody has written, and margins of NaN around every buffer, temporary
and scratch array. What a kernel reads that is not its own shows in its numbers; what it writes there is an error.

All bytes are 0xFF, a NaN in every type of floats and -1 in integers. Nothing here is called unless the setting is on:
temporaries then share no memory, launches run one by one, and no plan is kept by its device.
"""
from __future__ import annotations

import weakref
from itertools import chain

import numpy as np

from minigrad.errors import InternalError
from minigrad.runtime.device import Buffer, Device, Launch
from minigrad.scheduler.memory import ALIGNMENT, Arena
from minigrad.target import MARGIN

BYTE = 0xFF
_surrounded: weakref.WeakSet[Buffer] = weakref.WeakSet()


def surrounded(device: Device, nbytes: int) -> Buffer:
    """New memory for `nbytes`, poisoned, between margins. The caller says `watch` of what it makes of it."""
    whole = device.alloc(nbytes + 2 * MARGIN)
    device.copy_in(whole, np.full(whole.nbytes, BYTE, np.uint8))
    return Buffer(device, nbytes, whole.handle, whole.offset + MARGIN)


def watch(buffer: Buffer) -> None:
    """Says that a buffer has margins."""
    _surrounded.add(buffer)


def apart(sizes: dict[int, int]) -> Arena:
    """A place of its own for each temporary, with a margin behind it."""
    offsets, at = {}, 0
    for slot, nbytes in sizes.items():
        offsets[slot] = at
        at += -(-nbytes // ALIGNMENT) * ALIGNMENT + MARGIN
    return Arena(at, offsets)


def launch_watched(device: Device, launches: list[Launch]) -> None:
    """Runs the launches one by one. Raises InternalError after one that wrote into a margin of its arguments."""
    for launch in launches:
        device.launch([launch])
        device.synchronize()
        for at, argument in enumerate(chain(launch.arguments, *[row for row, _ in launch.table])):
            if isinstance(argument, Buffer):
                _check(launch, at, argument)


def _check(launch: Launch, at: int, buffer: Buffer) -> None:
    if buffer not in _surrounded and buffer.base not in _surrounded:
        return
    for side, start in (("before", buffer.offset - MARGIN), ("behind", buffer.offset + buffer.nbytes)):
        found = np.empty(MARGIN, np.uint8)
        buffer.device.copy_out(Buffer(buffer.device, MARGIN, buffer.handle, start), found)
        wrong = np.flatnonzero(found != BYTE)
        if len(wrong):
            name = getattr(getattr(launch.executable, "program", None), "name", "a call")
            first = start - buffer.offset + int(wrong[0])
            raise InternalError(f"[poison] expected {name} to write into its own buffers, got {len(wrong)} bytes "
                                f"{side} argument {at} of {buffer.nbytes} bytes, the first at {first}")
