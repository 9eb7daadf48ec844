"""Reductions are monoids: a start value and an associative combination (ALGORITHMS 3)."""
from __future__ import annotations

from dataclasses import dataclass

from minigrad.dtype import DType
from minigrad.value import Value, binary, const


@dataclass(frozen=True, slots=True)
class Monoid:
    """`combine` names the binary Value op; `init(dtype)` is its identity."""

    name: str
    combine: str

    def init(self, dtype: DType) -> Value:
        if self.name == "max":
            return const(dtype.min, dtype)
        if self.name == "min":
            return const(dtype.max, dtype)
        return const(1 if self.name == "prod" else 0, dtype)

    def apply(self, x: Value, y: Value) -> Value:
        return binary(self.combine, x, y)


MONOIDS = {m.name: m for m in (Monoid("sum", "add"), Monoid("prod", "mul"), Monoid("max", "max"), Monoid("min", "min"))}
