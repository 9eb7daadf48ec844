"""The layout of a window's positions in memory, and by which buffer a plan names them."""
from __future__ import annotations

from minigrad.codegen.patterns.recognise_window import Axis, Window
from minigrad.value import free_variables, walk


def coordinate(axis: Axis, base: str, columns: bool) -> list[str]:
    """The layout of positions along an axis; of columns, those of one residue of the stride are side by side."""
    if axis.tap is None:
        return [base]
    tap, s, d = axis.tap.name, axis.stride, axis.dilation
    if s == 1:
        return [f"{base}{'+' if d > 0 else '-'}{f'{abs(d)}*' if abs(d) > 1 else ''}{tap}"]
    return [f"{tap}%{s}", f"{base}+{tap}//{s}"] if columns else [f"{s}*{base}+{tap}"]


def operand(window: Window) -> str:
    """A buffer that is read at the positions; '' where they are computed from none."""
    return min({v.buffer for v in walk(window.value) if v.op == "load" and window.column in free_variables(v)},
               default="")
