"""Typed errors. User mistakes derive from `MinigradError`; `InternalError` marks our own bugs.

Messages read `[op] expected ..., got ...`, name the shapes and are raised where the user wrote the operation.
"""


class MinigradError(Exception):
    """Base of every error that a user of minigrad can cause."""


class ShapeError(MinigradError, ValueError):
    """Shapes that an operation cannot take."""


class DTypeError(MinigradError, TypeError):
    """Element types that an operation cannot take."""


class DeviceError(MinigradError, RuntimeError):
    """An unknown or unusable device, or tensors of different devices in one operation."""


class ConfigError(MinigradError, ValueError):
    """A setting with a value that is not allowed; the message lists what is."""


class FormatError(MinigradError, ValueError):
    """A model, tokenizer or IR text that is truncated, corrupt or of an unknown kind."""


class CompileError(MinigradError, RuntimeError):
    """A driver or LLVM refused generated source; carries the source."""

    def __init__(self, message: str, source: str = ""):
        super().__init__(message)
        self.source = source


class MicrokernelError(MinigradError, ValueError):
    """A microkernel that cannot be added, or not be checked on this processor."""


class CaptureError(MinigradError, RuntimeError):
    """Something that a captured (`jit`) function may not do."""


class InternalError(Exception):
    """A bug of ours: a broken invariant, a failed verification. Please report it with its message."""
