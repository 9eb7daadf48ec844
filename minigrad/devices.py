"""Devices of one's own beside CPU, NUMPY and OpenCL: where programs run and, for a further language, what writes them.

    from minigrad import devices

    devices.register("TOY", ToyDevice, render_toy)
    y = Tensor(data, device="TOY").exp().numpy()

docs/howto/add-a-device.md says what a device has to do, docs/tutorial/6-a-device.md writes one.
"""
from __future__ import annotations

from collections.abc import Callable

from minigrad.codegen.ir.nodes import Function
from minigrad.codegen.passes import renderers
from minigrad.engine.compile import forget_executables
from minigrad.engine.compiled import forget_plans
from minigrad.engine.storage import arenas
from minigrad.errors import DeviceError
from minigrad.program import Program
from minigrad.runtime import registry
from minigrad.runtime.device import Buffer, Device, Launch
from minigrad.target import Target

__all__ = ["Buffer", "Device", "Function", "Launch", "Program", "Target", "register", "registered", "unregister"]

Render = Callable[[Function, Target], Program]

_languages: dict[str, str] = {}
"""The language of programs that each added device brought, '' where it is one that minigrad writes already."""


def register(name: str, open_device: Callable[[], Device], render: Render | None = None, language: str = "") -> None:
    """Adds a device: `open_device()` makes it when `name`, an identifier in capitals, is first asked for.

    `render(function, target)` writes the Program of one loop IR function in `language`, the one of the device's target.
    Both are left out where that is "llvm" or "opencl". Raises DeviceError for a name or a language that is taken, for a
    name that is none, and where one of `render` and `language` is missing.
    """
    if (render is None) == bool(language):
        given = "no function" if render is None else "no language"
        raise DeviceError(f"[register] expected a language and the function that writes it, or neither, got {given}")
    if language in (*BUILT_IN, *renderers):
        raise DeviceError(f"[register] expected a language of its own, got {language!r}, which has a renderer")
    registry.add(name, open_device)
    _languages[name] = language
    if render is not None:
        renderers[language] = render


def unregister(name: str) -> None:
    """Takes a device out again, and its renderer. Tensors that live there can still be read. Raises DeviceError where
    none of that name was added."""
    registry.remove(name)
    renderers.pop(_languages.pop(name), None)
    forget_executables(name)
    forget_plans()
    arenas.pop(name, None)


def registered() -> tuple[str, ...]:
    """The names of devices that were added, in order."""
    return tuple(_languages)


BUILT_IN = "llvm", "opencl", "amdgpu", "nvptx", "none"
"""Languages of `Target` that minigrad's own renderers write; 'none' is for devices that load no programs."""
