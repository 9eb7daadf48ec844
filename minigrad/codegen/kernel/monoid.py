"""Reductions are monoids: a start value and an associative combination."""
from __future__ import annotations

from dataclasses import dataclass

from minigrad.dtype import DType
from minigrad.value import Value, binary, const, make


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


def accumulate(monoid: Monoid, old: Value, value: Value) -> Value:
    """combine(old, value); a float product added to a sum is one fused multiply-add."""
    if monoid.name == "sum" and value.op == "mul" and value.dtype.is_float:
        return make("fma", value.dtype, (value.args[0], value.args[1], old))
    return monoid.apply(old, value)
