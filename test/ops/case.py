"""A row of the table of operations, as a class, and short names for its inputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class In:
    """One input: `kind` is normal, positive, unit (in -1..1), special (NaN, inf, -0.0), apart (no ties, none near 0),
    int (in lo..hi), bool."""

    shape: tuple[int, ...]
    kind: str = "normal"
    dtype: str = "float32"
    lo: int = -9
    hi: int = 9

    def make(self, rng: np.random.Generator, wide: bool = False) -> np.ndarray:
        kind = np.dtype(
            "float64" if wide and "float" in self.dtype else "float32" if self.dtype == "bfloat16" else self.dtype
        )
        if self.kind == "bool":
            return rng.random(self.shape) < 0.5
        if self.kind == "int":
            return rng.integers(self.lo, self.hi, self.shape, endpoint=True).astype(kind)
        if self.kind == "apart":
            count = int(np.prod(self.shape))
            values = (rng.permutation(count) + 0.25) / max(count, 1) * 4 - 2
            return values.reshape(self.shape).astype(kind)
        if self.kind == "special" and not wide:
            odd = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 1e-3, 2.5, -2.5, 0.5, 1e6])
            return rng.choice(odd, self.shape).astype(kind)
        values = rng.standard_normal(self.shape)
        if self.kind == "positive":
            values = np.abs(values) + 0.3
        if self.kind == "unit":
            values = np.tanh(values) * 0.9
        return np.asarray(values).astype(kind)


@dataclass(frozen=True)
class Case:
    """`run` maps Tensors to a Tensor; `twin` maps their arrays to the expected array. `grad`: differentiable here."""

    name: str
    run: Callable[..., Any]
    inputs: tuple[In, ...]
    twin: Callable[..., Any] | None = None
    grad: bool = True
    second: bool = False
    tolerance: float = 1.0

    def __str__(self) -> str:
        return self.name


def F(*shape: int) -> In:
    return In(shape)


def P(*shape: int) -> In:
    return In(shape, "positive")


def A(*shape: int) -> In:
    return In(shape, "apart")


def S(*shape: int) -> In:
    return In(shape, "special")


def N(lo: int, hi: int, *shape: int, dtype: str = "int32") -> In:
    return In(shape, "int", dtype, lo, hi)


def M(*shape: int) -> In:
    return In(shape, "bool", "bool")


def pair(name: str, run: Any, twin: Any, a: In, b: In, **options: Any) -> Case:
    return Case(name, run, (a, b), twin, **options)
