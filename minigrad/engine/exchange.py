"""Exchanges with other processes as items of a plan: calls that begin one when its last value has been written, and
wait for it before the first launch that reads a result. Launches in between go on meanwhile. What the host computes
itself (`HOSTED` of ops/exchange.py) is done when it is begun."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from minigrad.dtype import to_dtype
from minigrad.errors import DeviceError
from minigrad.ops.exchange import HOSTED
from minigrad.runtime.device import Device
from minigrad.runtime.host_calls import HostCall, exchangers, memory_at
from minigrad.scheduler.exchanges import Exchange


def calls_of(exchange: Exchange, device: Device) -> tuple[HostCall, HostCall]:
    """(begin, wait) of an exchange: executables over the buffers of its slots. Raises DeviceError for a device other
    than the CPU, whose memory others do not reach."""
    if not device.calls_host:
        raise DeviceError(f"[exchange] expected values on the device CPU, got {device.name}")
    dtype = to_dtype(exchange.dtype).np
    known: dict[tuple[int, int], np.ndarray] = {}
    waits: list[Callable[[], None]] = []

    def array(part: int, address: int) -> np.ndarray:
        found = known.get((part, address))
        if found is None:
            if len(known) > 4 * len(exchange.slots):
                known.clear()
            found = known[part, address] = memory_at(address, exchange.shapes[part], dtype)
        return found

    def begin(addresses: list[int]) -> None:
        waits.clear()
        if exchange.how in HOSTED:
            return HOSTED[exchange.how](array(0, addresses[0]))
        for exchanger in exchangers:
            arrays = [array(k, address) for k, address in enumerate(addresses)]
            waits.append(exchanger.begin(arrays, exchange.dtype, exchange.how, exchange.channel))

    def wait(_: list[int]) -> None:
        if waits:
            waits.pop()()

    count = len(exchange.slots)
    return HostCall("begin_exchange", count, begin), HostCall("end_exchange", count, wait)


def with_exchanges(items: list[Any], exchanges: tuple[Exchange, ...], device: Device,
                   item: Callable[[HostCall, tuple[int, ...]], Any]) -> list[Any]:
    """The items of a plan with the calls of its exchanges among them. `item` makes one of a call over slots."""
    for exchange in exchanges:
        slots = frozenset(exchange.slots)
        begin, wait = calls_of(exchange, device)
        last = max([k for k, i in enumerate(items) if i.writes & slots], default=-1)
        first = next((k for k in range(last + 1, len(items)) if items[k].reads & slots), len(items))
        items = [*items[:last + 1], item(begin, exchange.slots), *items[last + 1:first], item(wait, exchange.slots),
                 *items[first:]]
    return items
