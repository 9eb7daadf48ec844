"""What `tiles` and `matrix` share: how many tiles of m x n a contraction has, what they cost, how operands lie."""
from __future__ import annotations

from math import ceil

from minigrad.codegen.cost.machine import machine
from minigrad.codegen.strategies.access import value_accesses
from minigrad.codegen.strategies.packed import size
from minigrad.codegen.strategies.recognise import Contraction
from minigrad.expr import Var
from minigrad.target import Target
from minigrad.value import Value


def groups(m: int, n: int, c: Contraction) -> int:
    return ceil(size(c.m) / m) * ceil(size(c.n) / n) * size(c.batch)


def cost(m: int, n: int, c: Contraction, target: Target) -> float:
    """Multiply-adds and copies of all tiles, edges included, and compute units that wait for the last group."""
    count = groups(m, n, c)
    waiting = ceil(count / target.units) * target.units / count
    return count * m * n * (1 + machine(target).costs.local_copy * (1 / m + 1 / n)) * waiting


def along(value: Value, side: tuple[Var, ...], k: tuple[Var, ...], name: str) -> str:
    """'k' where the operand is contiguous along the sum, else the name of its own side."""
    for a in value_accesses(value, ()):
        if a.step(side[-1]) == 1:
            return name
        if a.step(k[-1]) == 1:
            return "k"
    return name
