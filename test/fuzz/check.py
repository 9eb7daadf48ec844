"""Is a network right? Differences from PyTorch in float64 that errors of rounding do not explain are failures.

An element that is further off than a few units of the largest one is compared with what PyTorch gives when each
operation, forward and backward, takes and gives numbers with random errors of a few units of the dtype: how magnitudes
of terms, cancellation and kinks (maxima that nearly tie, relu near 0) carry errors to this element shows there. Wrong
elements are off by much more than any of these.
"""
from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fuzz.network import Network, Written, written
from fuzz.outcome import Outcome
from fuzz.run import UNIT, Largest, Result, Rounding, computed_inputs, found_on, truth

NEAR = {"float32": 64, "bfloat16": 2, "float16": 4}
"""Units of rounding of the largest element up to which a difference needs no explanation."""

MOST = 3e4
"""The largest result of a network that is compared and, of halves, of any operation in it."""

UNITS, RUNS, WIDER = 4, 24, 16
"""Errors of operations in units of rounding, evaluations with such errors at most, and by how much a difference may be
larger than what these show."""

def check(network: Network, device: str | None = None) -> Outcome:
    """Runs a network on its device, or on another one."""
    try:
        w = written(network)
        calls = max(network.calls, 1)
        given = computed_inputs(network, w, calls) if w.computed else [{}] * calls
        with Largest() if network.dtype == "float16" else nullcontext() as met:
            expected = [truth(network, w, given[call], call) for call in range(calls)]
    except (RuntimeError, ValueError, IndexError, TypeError, NotImplementedError, KeyError) as error:
        return Outcome("invalid", type(error).__name__, str(error))
    if (met is not None and met.found > MOST) or any([
            not np.isfinite(r).all() or np.abs(r).max(initial=0) > MOST for results in expected for _, r in results]):
        return Outcome("invalid", "numbers", "numbers that are not finite or too large")
    try:
        found = found_on(network, w, device or network.device)
    except Exception as error:
        where = _where(error)
        return Outcome("error", f"{type(error).__name__} {where}", f"{where}: {type(error).__name__}: {error}")
    for call, (got, want) in enumerate(zip(found, expected, strict=True)):
        for k in range(len(want)):
            wrong = difference(network, w, given[call], call, k, got[k], want[k])
            if wrong:
                text = f"{want[k][0]}{f' at call {call}' if network.calls else ''}: {wrong}"
                return Outcome("wrong", f"wrong {want[k][0].rstrip('0123456789')}", text)
    return Outcome("right")


def difference(network: Network, w: Written, given: dict[str, np.ndarray], call: int, k: int, got: Result,
               want: Result) -> str:
    """In words, how result k is wrong; '' if it is not."""
    (name, have), (other, exact) = got, want
    if name != other or have.shape != exact.shape:
        return f"{name} of shape {have.shape}, expected {other} of {exact.shape}"
    unit, size = UNIT[network.dtype], float(np.abs(exact).max(initial=0))
    off = ~(np.abs(have - exact) <= unit * NEAR[network.dtype] * size + 1e-30)
    if not off.any():
        return ""
    allowed = np.zeros(exact.shape)
    for other_result in with_errors(network, w, given, call, k):
        allowed = np.maximum(allowed, WIDER * np.nan_to_num(np.abs(other_result - exact), nan=np.inf))
        # An element may have met less in these runs than its neighbours: their usual error counts for all of them. The
        # largest does in half types, where each network with kinks meets some, and where all numbers are nothing but
        # errors: the gradient of a bias before a norm.
        largest = network.dtype != "float32" or allowed.max() > size
        for_all = 2 * float(allowed.max() if largest else np.median(allowed)) + 1e-30
        off &= ~(np.abs(have - exact) <= allowed + for_all)
        if not off.any():
            return ""
    distance = np.where(off, np.nan_to_num(np.abs(have - exact), nan=np.inf), 0)
    at = np.unravel_index(int(np.argmax(distance)), exact.shape)
    return (f"{int(off.sum())} of {off.size} numbers off, at {tuple(int(i) for i in at)} {have[at]:.6g} for "
            f"{exact[at]:.6g} where rounding explains {allowed[at]:.2g} and the largest is {size:.4g}")


def with_errors(network: Network, w: Written, given: dict[str, np.ndarray], call: int, k: int) -> Iterator[np.ndarray]:
    """Result k as other roundings might give it."""
    least = UNITS * 2.0 ** -25 if network.dtype == "float16" else 0.0
    for seed in range(RUNS):
        with Rounding(seed, UNITS * UNIT[network.dtype], least):
            results = truth(network, w, given, call)
        yield results[k][1]


def _where(error: BaseException) -> str:
    """The file and the function of minigrad in which an error was raised first."""
    while error.__cause__ is not None:
        error = error.__cause__
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if "/minigrad/" in frame.filename:
            return f"{frame.filename.rpartition('/minigrad/')[2]}:{frame.name}"
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{Path(frame.filename).name}:{frame.name}"


def blame(network: Network) -> str:
    """What the device NUMPY says of a network that is wrong on another one."""
    found = check(network, "NUMPY")
    return "NUMPY is right" if not found.failed else f"NUMPY is wrong, too: {found.text}"


def set_up() -> None:
    """One thread for PyTorch: what it computes is small."""
    torch.set_num_threads(1)
    _: Any = torch.set_default_dtype(torch.float64)
