"""Typed errors. User mistakes derive from `MinigradError`; `InternalError` marks our own bugs.

Messages read `[op] expected ..., got ...`, name the shapes and are raised where the user wrote the operation.
"""
from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

_T = TypeVar("_T")


class MinigradError(Exception):
    """Base of every error that a user of minigrad can cause."""


class ShapeError(MinigradError, ValueError):
    """Shapes that an operation cannot take."""


class OutOfRangeError(ShapeError, IndexError):
    """An index or an axis that a tensor does not have."""


class DTypeError(MinigradError, TypeError):
    """Element types that an operation cannot take."""


class DeviceError(MinigradError, RuntimeError):
    """An unknown or unusable device, or tensors of different devices in one operation."""


class SharingError(MinigradError, BufferError):
    """Memory that cannot be shared with another library as it was asked for."""


class ConfigError(MinigradError, ValueError):
    """A setting with a value that is not allowed; the message lists what is."""


class FormatError(MinigradError, ValueError):
    """A model, tokenizer or IR text that is truncated, corrupt or of an unknown kind."""


class CompileError(MinigradError, RuntimeError):
    """A driver or LLVM refused generated source; carries the source."""

    def __init__(self, message: str, source: str = ""):
        super().__init__(message)
        self.source = source


class PlanError(MinigradError, ValueError):
    """A plan that is no text of one, or not one for its kernel; the message names the step and what was expected."""


class MicrokernelError(MinigradError, ValueError):
    """A microkernel that cannot be added, or not be checked on this processor."""


class BudgetError(MinigradError, MemoryError):
    """A function that cannot do with the memory that it may take; the message says by how much, and what holds it."""


class CaptureError(MinigradError, RuntimeError):
    """Something that a captured (`jit`) function may not do."""


class InternalError(Exception):
    """A bug of ours: a broken invariant, a failed verification. `str` of it says so, and how to report it.

    `kernel`: the text of the kernel at which it was found, "" where there is none or `reporting` will fill it in.
    """

    def __init__(self, message: str, kernel: str = ""):
        super().__init__(message, kernel)
        self.message, self.kernel = message, kernel

    def __str__(self) -> str:
        lines = [self.message, "This is an error of minigrad itself, not of the program that met it. Please report it "
                               "with this text, what `python -m minigrad devices` prints, and the program, if you can."]
        return "\n".join([*lines, f"The kernel:\n{self.kernel}"] if self.kernel else lines)


def present(value: _T | None, what: str) -> _T:
    """`value`, which other parts of minigrad have seen to. Raises InternalError where it is None, which says `what` was
    expected."""
    if value is None:
        raise InternalError(f"{what}, got None")
    return value


@contextmanager
def reporting(kernel: Callable[[], str]) -> Iterator[None]:
    """Turns an error inside that is no mistake of the user's into an InternalError with the text that `kernel`
    gives."""
    try:
        yield
    except InternalError as e:
        e.kernel = e.kernel or kernel()
        raise
    except (MinigradError, MemoryError):
        raise
    except Exception as e:
        raise InternalError(f"[internal] {type(e).__name__}: {e}", kernel()) from e


def quantity(count: object, noun: str) -> str:
    """A number of things in words: '1 launch', '2 launches', '3 entries'."""
    if count == 1:
        return f"1 {noun}"
    if noun.endswith(("s", "x", "ch", "sh")):
        return f"{count} {noun}es"
    return f"{count} {noun[:-1]}ies" if noun[-1] == "y" and noun[-2] not in "aeiou" else f"{count} {noun}s"
