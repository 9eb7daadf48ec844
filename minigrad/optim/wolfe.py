"""Line search: how far to go in a direction, by values and slopes at some places."""
from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from minigrad.tensor import Tensor

_DESCENT = 1e-4  # share of the slope's promise that a step has to keep
_FLATNESS = 0.9  # largest slope at the end as a share of that at the start


class Point(NamedTuple):
    """A place on the line, with the value, the gradient and the slope there."""

    at: float
    value: float
    gradient: Tensor
    slope: float


def strong_wolfe(evaluate: Callable[[float], Point], start: Point, first: float, most: int, length: float,
                 tolerance: float) -> tuple[Point, int]:
    """A place whose value is lower by what its distance promises and whose slope is flatter, and how often `evaluate`
    was called: at `first`, then at places that bracket such a one, then inside the bracket, 1 + `most` times at the
    most, until the bracket times `length`, the direction's largest element, is below `tolerance`; if none was found,
    the lowest place of the bracket.

    Source: Nocedal & Wright 2006, Numerical Optimization, algorithms 3.5 and 3.6, with the safeguards of PyTorch's.
    """
    bracket, count = _bracketed(evaluate, start, first, most)
    stuck = False
    low, high = (0, -1) if bracket[0].value <= bracket[-1].value else (-1, 0)
    while len(bracket) == 2 and count < most:
        if abs(bracket[1].at - bracket[0].at) * length < tolerance:
            break
        left, right = sorted(p.at for p in bracket)
        at, stuck = _away_from_ends(_cubic(bracket[0], bracket[1], left, right), left, right, stuck)
        now = evaluate(at)
        count += 1
        if now.value > start.value + _DESCENT * at * start.slope or now.value >= bracket[low].value:
            bracket[high] = now
            low, high = (0, -1) if bracket[0].value <= bracket[1].value else (-1, 0)
            continue
        found = abs(now.slope) <= -_FLATNESS * start.slope
        if not found and now.slope * (bracket[high].at - bracket[low].at) >= 0:
            bracket[high] = bracket[low]
        bracket[low] = now
        if found:
            break
    return bracket[low], count + 1


def _bracketed(evaluate: Callable[[float], Point], start: Point, first: float, most: int) -> tuple[list[Point], int]:
    """Two points around one that is good enough, or that one alone; and the number of places after the first."""
    before, now = start, evaluate(first)
    for count in range(most):
        if now.value > start.value + _DESCENT * now.at * start.slope or (count > 1 and now.value >= before.value):
            return [before, now], count
        if abs(now.slope) <= -_FLATNESS * start.slope:
            return [now], count
        if now.slope >= 0:
            return [before, now], count
        at = _cubic(before, now, now.at + 0.01 * (now.at - before.at), now.at * 10)
        before, now = now, evaluate(at)
    return [start, now], most


def _cubic(a: Point, b: Point, least: float, most: float) -> float:
    """The minimum between `least` and `most` of the cubic with the values and slopes of both points; the middle where
    there is none."""
    if b.at < a.at:
        a, b = b, a
    middle = (least + most) / 2
    if a.at == b.at:
        return middle
    d1 = a.slope + b.slope - 3 * (a.value - b.value) / (a.at - b.at)
    square = d1 * d1 - a.slope * b.slope
    if not square >= 0:
        return middle
    d2 = math.sqrt(square)
    bottom = b.slope - a.slope + 2 * d2
    place = b.at - (b.at - a.at) * ((b.slope + d2 - d1) / bottom) if bottom else math.nan
    return min(max(place, least), most) if math.isfinite(place) else middle


def _away_from_ends(at: float, left: float, right: float, stuck: bool) -> tuple[float, bool]:
    """`at`, moved a tenth into the bracket if it is at an end, or was near one the time before too; and whether it is
    near one."""
    margin = 0.1 * (right - left)
    if not min(right - at, at - left) < margin:
        return at, False
    if stuck or at >= right or at <= left:
        return (right - margin if abs(at - right) < abs(at - left) else left + margin), False
    return at, True
