"""Tensors as text, in PyTorch's format: `tensor([[1., 2.], [3., 4.]])`, shortened where there are many elements."""
from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from minigrad.errors import ShapeError


@dataclass(frozen=True, slots=True)
class PrintOptions:
    """Digits behind the point; from how many elements on a text is shortened, to how many at each end of an axis; the
    length of a line; and whether numbers have exponents, where None decides by their sizes."""

    precision: int = 4
    threshold: float = 1000
    edgeitems: int = 3
    linewidth: int = 80
    sci_mode: bool | None = None


_PROFILES = {"default": PrintOptions(), "short": PrintOptions(precision=2, edgeitems=2),
             "full": PrintOptions(threshold=math.inf)}
_options = PrintOptions()


def set_printoptions(precision: int | None = None, threshold: float | None = None, edgeitems: int | None = None,
                     linewidth: int | None = None, profile: str | None = None, sci_mode: bool | None = None) -> None:
    """Sets how Tensors are printed from now on, as PyTorch's `set_printoptions`: an option that is None stays, but
    `sci_mode`, and `profile` is 'default', 'short' or 'full'. Raises ShapeError."""
    global _options
    if profile is not None and profile not in _PROFILES:
        raise ShapeError(f"[set_printoptions] expected a profile of {', '.join(_PROFILES)}, got {profile!r}")
    given = {"precision": precision, "threshold": threshold, "edgeitems": edgeitems, "linewidth": linewidth}
    for name, value in given.items():
        if value is not None and not (isinstance(value, (int, float)) and value >= 0):
            raise ShapeError(f"[set_printoptions] expected {name} of 0 or more, got {value!r}")
    start = _options if profile is None else _PROFILES[profile]
    changes: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    _options = replace(start, **changes, sci_mode=sci_mode)


def text_of(values: np.ndarray | None, facts: Sequence[str]) -> str:
    """`tensor(values, fact, fact)`, with ... for None."""
    start = "tensor("
    if values is None:
        text = "..."
    elif values.size == 0:
        text = "[]"
    else:
        short = values.size > _options.threshold
        text = _rows(values, _Style(_ends(values) if short else values), len(start), short)
    text = start + text
    room = _options.linewidth - (len(text) - text.rfind("\n") + 1)
    for fact in facts:
        room -= len(fact) + 2
        if room < 0 and values is not None:
            text += ",\n" + " " * len(start) + fact
            room = _options.linewidth - len(start) - len(fact)
        else:
            text += ", " + fact
    return text + ")"


class _Style:
    """The form in which the elements of one tensor are written: all as wide as the widest of those shown."""

    def __init__(self, values: np.ndarray):
        self.whole, self.exponents, self.width = True, False, 1
        self.is_float = values.dtype.kind == "f"
        if not self.is_float:
            self.width = max(len(str(v)) for v in values.ravel().tolist())
            return
        shown = values.ravel().astype(np.float64)
        shown = shown[np.isfinite(shown) & (shown != 0)]
        if not shown.size:
            return
        sizes = np.abs(shown)
        self.whole = bool((shown == np.ceil(shown)).all())
        wanted = _options.sci_mode
        with np.errstate(over="ignore"):
            uneven = sizes.max() / sizes.min() > 1000 or sizes.max() > 1e8 or sizes.min() < 1e-4
        self.exponents = bool(uneven) if wanted is None else wanted
        self.width = max(self.width, *[len(self._number(v)) for v in shown.tolist()])

    def _number(self, value: float) -> str:
        if self.exponents:
            return f"{value:.{_options.precision}e}"
        if self.whole:
            return f"{value:.0f}" + ("." if math.isfinite(value) else "")
        return f"{value:.{_options.precision}f}"

    def __call__(self, value: Any) -> str:
        return (self._number(value) if self.is_float else str(value)).rjust(self.width)


def _ends(values: np.ndarray) -> np.ndarray:
    """The first and last elements of each axis, which are what is shown of it."""
    count = _options.edgeitems
    for axis, length in enumerate(values.shape):
        if length > 2 * count:
            values = np.take(values, [*range(count), *range(length - count, length)], axis)
    return values


def _rows(values: np.ndarray, style: _Style, indent: int, short: bool) -> str:
    """The elements in brackets; lines after the first are indented by one more than `indent`."""
    if values.ndim == 0:
        return style(values.item())
    count = _options.edgeitems
    cut = short and len(values) > 2 * count
    kept = [*values[:count], *values[len(values) - count:]] if cut else list(values)
    if values.ndim > 1:
        parts = [_rows(part, style, indent + 1, short) for part in kept]
        parts[count:count] = ["..."] if cut else []
        return "[" + ("," + "\n" * (values.ndim - 1) + " " * (indent + 1)).join(parts) + "]"
    words = [style(v.item()) for v in kept]
    words[count:count] = [" ..."] if cut else []
    each = max(1, (_options.linewidth - indent) // (style.width + 2))
    lines = [", ".join(words[i:i + each]) for i in range(0, len(words), each)]
    return "[" + (",\n" + " " * (indent + 1)).join(lines) + "]"
