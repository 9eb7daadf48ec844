"""Names to devices. 'CPU', 'NUMPY', 'CL' (the best OpenCL device), 'CL:<index>', 'CL:<words of its name>'.

'AMD:gfx1031' and 'NV:sm_86' are GPUs that are only compiled for.
"""
from __future__ import annotations

import threading

from minigrad.errors import DeviceError
from minigrad.locks import free_in_children
from minigrad.runtime.device import Device

_lock = free_in_children(threading.RLock())
_opened: dict[str, Device] = {}
_queueing: list[Device] = []
"""Those whose launches return before their work is done."""
_canonical: dict[str, str] = {"CPU": "CPU", "NUMPY": "NUMPY"}


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
    if upper in ("AMD", "NV") and selector:
        return f"{upper}:{selector.lower()}"
    if upper != "CL":
        raise DeviceError(f"[device] expected CPU, NUMPY, CL or CL:<index or part of a name>, got {name!r}; "
                          "`python -m minigrad devices` lists what there is")
    from minigrad.runtime.opencl_devices import find_device

    return f"CL:{find_device(selector).index}"


def _open(name: str) -> Device:
    if name == "CPU":
        from minigrad.runtime.cpu import CPU

        return CPU()
    if name == "NUMPY":
        from minigrad.runtime.host import NumpyDevice

        return NumpyDevice()
    family, _, processor = name.partition(":")
    if family != "CL":
        from minigrad.runtime.inspected import InspectedGpu

        return InspectedGpu(family, processor)
    from minigrad.runtime.opencl import open_device

    return open_device(name.partition(":")[2])
