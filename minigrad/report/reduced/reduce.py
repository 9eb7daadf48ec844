"""`reduced`: from a function or a script to the least program that is wrong."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

from minigrad.report.reduced.judge import difference, gradient_difference
from minigrad.report.reduced.program import Program
from minigrad.report.reduced.shrink import shrink
from minigrad.report.reduced.watch import Comparing, Found, find_difference


def reduced(run: Callable[[], Any], gradients: bool = True) -> tuple[Found | None, Comparing]:
    """The least program found that is wrong as the first result of `run` is that differs from NUMPY's, or the first
    gradient that is not a slope; None where all is right. What was compared is counted besides."""
    found, comparing = find_difference(run, gradients)
    if found is None:
        return None, comparing
    kind = kind_of(told(found.program, found.device))
    if kind == "":
        return found, comparing  # not wrong by itself: in place, or by what was there before
    least = shrink(found.program, lambda p: kind_of(told(p, found.device)) == kind)
    return Found(least, found.device, told(least, found.device)), comparing


def told(program: Program, device: str) -> str:
    """In words, how a program is wrong on a device, or its gradient; '' where it is not."""
    return difference(program, device) if device else gradient_difference(program)


def kind_of(text: str) -> str:
    """The name of what smaller programs are to have in common: the type of an error, or that numbers are off."""
    head = text.partition(":")[0]
    return head if head.endswith("Error") else "off" if text else ""
