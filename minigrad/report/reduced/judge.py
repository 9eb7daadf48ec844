"""Is a result wrong? Differences that errors of rounding do not explain are, and gradients that differ from slopes."""
from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from minigrad.dtype import DType, float64
from minigrad.engine.realize import realize
from minigrad.engine.transfer import download
from minigrad.errors import InternalError, MinigradError
from minigrad.graph.autodiff import History, gradient
from minigrad.report.reduced.program import Program, Row, leaf
from minigrad.report.reduced.rounding import UNIT, WIDER, distance, numpy_errors

NEAR, RUNS = 64, 32
"""Units of rounding of the largest element up to which a difference needs no explanation, and evaluations with errors
that may explain it."""

SURE, SURE_RUNS = 64, 3
"""The factor by which a number is further off than errors explain that ends the search for an explanation, after so
many evaluations."""

DIRECTIONS, STEP, OFF, LEAST = 3, 1e-6, 1e-3, 1e-7
"""Directions along which a slope is taken, the part of the numbers that a step along it is, the part of a slope by
which a gradient may be off, and the least slope that is told from 0."""


def difference(program: Program, device: str) -> str:
    """In words, how the result on a device is wrong; '' where it is not. An error counts that NUMPY does not raise."""
    with np.errstate(all="ignore"):
        want = program.result("NUMPY")
    try:
        got = program.result(device)
    except (MinigradError, InternalError) as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0]}"
    return wrong(got, want, program)


def wrong(got: np.ndarray, want: np.ndarray, program: Program) -> str:
    """In words, which numbers of a result on a device are off; '' where none is."""
    dtype = program.rows[program.target].dtype
    if got.shape != want.shape:
        return f"shape {got.shape}, expected {want.shape}"
    off = _off(got, want, dtype)
    if dtype.is_float and off.any():
        spread = np.zeros(want.shape)
        far = distance(got, want)
        for seed, other in enumerate(_with_errors(program)):
            spread = np.maximum(spread, distance(other, want))
            off &= far > WIDER * spread
            if not off.any():
                return ""
            if seed >= SURE_RUNS and (far[off] > SURE * WIDER * spread[off]).any():
                break
    if not off.any():
        return ""
    at = tuple(int(i) for i in np.unravel_index(int(np.argmax(np.where(off, distance(got, want), -1))), want.shape))
    return f"{int(off.sum())} of {off.size} numbers off, at {at} {got[at]} for {want[at]}"


def _off(got: np.ndarray, want: np.ndarray, dtype: DType) -> np.ndarray:
    if not dtype.is_float:
        return np.asarray(got != want)
    finite = np.abs(np.where(np.isfinite(want), want, 0)).astype(np.float64)
    return distance(got, want) > NEAR * UNIT[dtype] * finite.max(initial=0.0) + 1e-30


def _with_errors(program: Program) -> Iterator[np.ndarray]:
    for seed in range(RUNS):
        with numpy_errors(seed), np.errstate(all="ignore"):
            yield program.result("NUMPY")


# ---- gradients ----


def gradient_difference(program: Program) -> str:
    """In words, how the gradient of a program is wrong, which is compared with slopes on NUMPY in float64; '' where it
    is not, or where there is no slope: at a kink, or where numbers do not move the result."""
    wide = in_float64(program)
    moved = [k for k, row in enumerate(wide.rows) if row.op is None and row.dtype.is_float]
    if not moved or not wide.rows[wide.target].dtype.is_float:
        return ""
    rng = np.random.default_rng(0)
    with np.errstate(all="ignore"):
        seed = rng.standard_normal(wide.result("NUMPY").shape)
        grads = _gradients(wide, moved, seed)
        for k, grad in zip(moved, grads, strict=True):
            found = [_along(wide, k, grad, seed, rng) for _ in range(DIRECTIONS)]
            off = [f for f in found if f]
            if 2 * len(off) > DIRECTIONS:
                return off[0]
    return ""


def _gradients(program: Program, moved: Sequence[int], seed: np.ndarray) -> list[np.ndarray]:
    nodes = program.nodes("NUMPY")
    target = nodes[program.target]
    found = gradient(History(target), [nodes[k] for k in moved], leaf(seed, target.dtype, "NUMPY"))
    realize(found)
    return [download(g) for g in found]


def _along(program: Program, k: int, grad: np.ndarray, seed: np.ndarray, rng: np.random.Generator) -> str:
    """In words, how the slope along a direction of one leaf differs from what its gradient says; '' for no, and at a
    kink, where the slopes of the two sides differ."""
    row = program.rows[k]
    value = np.asarray(row.value)
    direction = rng.standard_normal(value.shape)
    step = STEP * (float(np.abs(value).max(initial=0.0)) or 1.0)

    def at(steps: int) -> float:
        there = replace(row, value=value + steps * step * direction)
        moved = Program((*program.rows[:k], there, *program.rows[k + 1:]), program.target)
        return float((moved.result("NUMPY") * seed).sum())

    below, here, above = at(-1), at(0), at(1)
    said, left, right = float((grad * direction).sum()), (here - below) / step, (above - here) / step
    slope = (left + right) / 2
    scale = max(abs(said), abs(slope))
    if not np.isfinite([said, slope]).all() or scale < LEAST or abs(left - right) > OFF * scale:
        return ""
    if abs(slope - said) <= OFF * scale:
        return ""
    return f"a slope of {slope:.6g} where the gradient says {said:.6g}"


def in_float64(program: Program) -> Program:
    """The same with all floats in float64."""
    rows = []
    for row in program.rows:
        dtype = float64 if row.dtype.is_float else row.dtype
        params = {name: float64 if isinstance(p, DType) and p.is_float else p for name, p in row.params.items()}
        value = None if row.value is None else row.value.astype(np.float64) if dtype is float64 else row.value
        rows.append(Row(row.op, row.inputs, params, dtype, value))
    return Program(tuple(rows), program.target)


def assert_alike(program: Program, device: str) -> None:
    """Raises AssertionError where a result on a device differs from that on NUMPY by more than rounding explains."""
    if found := difference(program, device):
        raise AssertionError(found)


def assert_gradient(program: Program) -> None:
    """Raises AssertionError where a gradient differs from the slope."""
    found = gradient_difference(program)
    if found:
        raise AssertionError(found)


