"""`Unsupported`: an ONNX model asks for what minigrad does not do."""
from __future__ import annotations

from minigrad.errors import MinigradError


class Unsupported(MinigradError):
    """An operator, an attribute or a type of an ONNX model that minigrad does not have."""


class Invalid(MinigradError):
    """An ONNX model, or what it was fed, that is not what the standard allows."""


def refuse(what: str, supported: str) -> Unsupported:
    """The error that says what is not supported, and what is."""
    return Unsupported(f"{what} is not supported; {supported} are" if supported else f"{what} is not supported")
