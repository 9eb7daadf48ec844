"""Names to devices. 'CPU', 'NUMPY', 'CL' (the best OpenCL device), 'CL:<index>', 'CL:<words of its name>'.

'AMD:gfx1031' and 'NV:sm_86' are GPUs that are only compiled for, 'SIM:rtx3060' is a card whose times are predicted.
"""
from __future__ import annotations

import threading
from collections.abc import Callable

from minigrad.config import DEVICE_NAME, added_devices
from minigrad.errors import DeviceError
from minigrad.locks import free_in_children
from minigrad.runtime.device import Device
from minigrad.runtime.host import NumpyDevice

_lock = free_in_children(threading.RLock())
_opened: dict[str, Device] = {}
_queueing: list[Device] = []
"""The devices whose launches return before their work is done."""
_canonical: dict[str, str] = {"CPU": "CPU", "NUMPY": "NUMPY"}
_added: dict[str, Callable[[], Device]] = {}
"""The functions that open the devices that users add (minigrad.devices), by name."""


def add(name: str, open_device: Callable[[], Device]) -> None:
    """Adds a device, opened on first use. Raises DeviceError for a name that is none, or is taken."""
    if not isinstance(name, str) or not name.isidentifier() or not name.isupper():
        raise DeviceError(f"[register] expected a device's name as an identifier in capitals, got {name!r}")
    if DEVICE_NAME.fullmatch(name) or name in _added:
        raise DeviceError(f"[register] expected a device's name of its own, got {name!r}, which there is already")
    with _lock:
        _added[name] = open_device
        _canonical[name] = name
        added_devices.add(name)


def remove(name: str) -> None:
    """Takes an added device out again, after what it has queued. Raises DeviceError where there is none of the name."""
    if name not in _added:
        raise DeviceError(f"[unregister] expected a device that was added, got {name!r}")
    with _lock:
        del _added[name], _canonical[name]
        added_devices.discard(name)
        opened = _opened.pop(name, None)
        if opened is not None and opened.queues:
            opened.synchronize()
            _queueing.remove(opened)


def canonical(name: str) -> str:
    """The one name of a device: 'CPU', 'NUMPY' or 'CL:<index>'. Raises DeviceError that says what there is."""
    found = _canonical.get(name) if isinstance(name, str) else None
    if found is None:
        found = _resolve(name)
        _canonical[name] = found
    return found


def get_device(name: str) -> Device:
    """The device of that name, opened on first use; the same object each time. Raises DeviceError."""
    device = _opened.get(name)
    if device is not None:
        return device
    known = canonical(name)
    with _lock:
        if known not in _opened:
            _opened[known] = opened = _open(known)
            if opened.queues:
                _queueing.append(opened)
        _opened[name] = _opened[known]
        return _opened[known]


def synchronize(device: str | None = None) -> None:
    """Waits until everything queued on the device is done; on every opened device if none is named."""
    for opened in _queueing if device is None else [get_device(device)]:
        opened.synchronize()


def _resolve(name: str) -> str:
    if not isinstance(name, str):
        raise DeviceError(f"[device] expected a device's name such as 'CPU', got {name!r}")
    kind, _, selector = name.strip().partition(":")
    upper = kind.upper()
    if upper in ("CPU", "NUMPY") and not selector:
        return upper
    if upper in ("AMD", "NV", "SIM") and selector:
        return f"{upper}:{selector.lower()}"
    if upper != "CL":
        known = "".join([f"{added}, " for added in _added])
        raise DeviceError(f"[device] expected {known}CPU, NUMPY, CL or CL:<index or part of a name>, got {name!r}; "
                          "`python -m minigrad devices` lists what there is")
    from minigrad.runtime.opencl_devices import find_device

    return f"CL:{find_device(selector).index}"


def _checked(opened: Device, name: str) -> Device:
    """A user's device, which must be one, and know its name: buffers tell by it where they lie."""
    if not isinstance(opened, Device):
        raise DeviceError(f"[device] expected what {name} was added with to make a Device, got {opened!r}")
    if opened.name != name or opened.target.name != name:
        raise DeviceError(f"[device] expected a device and a target named {name!r}, got {opened.name!r} and "
                          f"{opened.target.name!r}")
    return opened


def _open(name: str) -> Device:
    if name in _added:
        return _checked(_added[name](), name)
    if name == "CPU":
        from minigrad.runtime.cpu import CPU

        return CPU()
    if name == "NUMPY":
        return NumpyDevice()
    family, _, processor = name.partition(":")
    if family == "SIM":
        from minigrad.runtime.simulated import SimulatedGpu

        return SimulatedGpu(processor)
    if family != "CL":
        from minigrad.runtime.inspected import InspectedGpu

        return InspectedGpu(family, processor)
    from minigrad.runtime.opencl import open_device

    return open_device(name.partition(":")[2])
