"""The mode that a thread computes in: whether layers behave as in training, whether gradients are recorded, and the
type that products compute in (precision.py).

`modes.now` is the thread's; a context changes it for this thread only, so that one may train while another infers.
Assigning `Tensor.training` outside of any context is for all threads that are in none.
"""
from __future__ import annotations

from contextlib import ContextDecorator
from threading import get_ident, local
from typing import Any, NamedTuple
from weakref import ref

from minigrad.dtype import DType


class Mode(NamedTuple):
    """Equal ones are one object, which `is` compares. `autocast` is a half type inside of `autocast`."""

    training: bool
    grad_enabled: bool
    autocast: DType | None = None


_MODES: dict[Mode, Mode] = {}


def _the(mode: Mode) -> Mode:
    """The object that stands for all equal modes."""
    return _MODES.setdefault(mode, mode)


class _Modes(local):
    """The modes of a thread: a mode that the thread has not set is the class's, which all threads share."""

    now: Mode = _the(Mode(False, True))


modes = _Modes()


class OfModules:
    """The facts that captures know of the modes of Modules: `mark` is another object after each change of one, `asked`
    has by the thread that captures a function the Modules that it called, and `switched` those that changed meanwhile,
    with the mode before."""

    def __init__(self) -> None:
        self.mark = object()
        self.asked: dict[int, list[Any]] = {}
        self.switched: list[tuple[ref, Any]] = []

    def switch(self, module: Any, before: Any = ...) -> None:
        """Notes that a Module has another mode now, and its `captured_mode` before if that may come back."""
        self.mark = object()
        if self.asked:
            self.switched.append((ref(module), before))


    def ask(self, module: Any) -> None:
        """Notes that a Module computes in its mode."""
        if self.asked:
            called = self.asked.get(get_ident())
            if called is not None:
                called.append(module)


of_modules = OfModules()


def other_modes(switched: list[tuple[ref, Any]]) -> bool:
    """True where a Module that still lives has another mode than before its first switch."""
    first: dict[int, tuple[Any, Any]] = {}
    for r, before in switched:
        module = r()
        if module is not None:
            first.setdefault(id(module), (module, before))
    return any(before is ... or module.captured_mode != before for module, before in first.values())


class Within(ContextDecorator):
    """A context that sets a field of the mode and restores it; also a decorator: `@Tensor.no_grad()`."""

    def __init__(self, field: str, value: Any):
        self.field, self.value = field, value
        self.before: list[Mode | None] = []

    def _recreate_cm(self) -> Within:
        return Within(self.field, self.value)  # of its own for each call: they may overlap, in several threads

    def __enter__(self) -> None:
        self.before.append(modes.__dict__.get("now"))
        modes.now = _changed(self.field, self.value)

    def __exit__(self, *_: object) -> None:
        before = self.before.pop()
        if before is None:
            del modes.now
        else:
            modes.now = before


class GradSwitch(Within):
    """Sets whether gradients are recorded at once; as a context or a decorator until it ends, as PyTorch's
    `set_grad_enabled`."""

    def __init__(self, value: bool):
        super().__init__("grad_enabled", value)
        self.found = modes.now.grad_enabled
        _assign("grad_enabled", value)

    def __enter__(self) -> None:
        _assign("grad_enabled", self.found)
        super().__enter__()

    def __call__(self, function: Any) -> Any:
        _assign("grad_enabled", self.found)
        return super().__call__(function)


class WithModes(type):
    """The fields of the mode as attributes of a class."""

    @property
    def training(cls) -> bool:
        """True where batch norm and dropout behave as in training."""
        return modes.now.training

    @training.setter
    def training(cls, value: bool) -> None:
        _assign("training", value)

    @property
    def grad_enabled(cls) -> bool:
        """True where results of what requires gradients require them."""
        return modes.now.grad_enabled

    @grad_enabled.setter
    def grad_enabled(cls, value: bool) -> None:
        _assign("grad_enabled", value)


def _changed(field: str, value: Any) -> Mode:
    change: dict[str, Any] = {field: value if field == "autocast" else bool(value)}
    return _the(modes.now._replace(**change))


def _assign(field: str, value: bool) -> None:
    """Inside a context for this thread until it ends, else for everybody."""
    if "now" in modes.__dict__:
        modes.now = _changed(field, value)
    else:
        _Modes.now = _changed(field, value)
