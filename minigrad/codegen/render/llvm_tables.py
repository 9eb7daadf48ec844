"""Functions of four bits as tables: AVX-512 looks sixteen float32 up with one permutation of a register.

`f32(i32((w >> 8) & 15) - 8)` is a mask, a subtraction and a conversion per vector, or one permutation that reads the
low four bits of each lane by itself. Dequantising four-bit weights would else be bound by arithmetic.
"""
from __future__ import annotations

from functools import lru_cache

import numpy as np

from minigrad.codegen import value_eval
from minigrad.dtype import float32
from minigrad.value import Value

_OPERATIONS = frozenset("add sub mul and or xor neg not".split())
FEWEST_STEPS = 2
"""Operations that a table replaces, at least: one is as cheap as the table."""


def may_be_table(v: Value) -> bool:
    """True where `table_of` may find a table: one operand of the last step varies."""
    return len(v.args) == 1 or (len(v.args) == 2 and (v.args[0].op == "const") != (v.args[1].op == "const"))


@lru_cache(maxsize=1 << 12)
def table_of(v: Value) -> tuple[Value, tuple[float, ...]] | None:
    """(x, entries) if the float32 value `v` is entries[x & 15] for a 32-bit integer x, else None."""
    chain: list[Value] = []
    x = v
    while not (x.op == "and" and x.args[1].op == "const" and x.args[1].number == 15 and x.dtype.bits == 32):
        variable = [a for a in x.args if a.op != "const"]
        if len(variable) != 1 or (x.op != "cast" and x.op not in _OPERATIONS):
            return None
        if x.dtype is not float32 and not (x.dtype.is_int and x.dtype.bits == 32):
            return None
        chain.append(x)
        x = variable[0]
    if v.dtype is not float32 or len(chain) + 1 < FEWEST_STEPS:
        return None
    entries = np.arange(16).astype(x.dtype.np)
    source = x
    for step in reversed(chain):
        if step.op == "cast":
            entries = value_eval.cast(entries, source.dtype, step.dtype)
        else:
            args = [entries if a is source else value_eval.constant(a.number, a.dtype) for a in step.args]
            entries = value_eval.apply(step.op, step.dtype, *args)
        source = step
    return x.args[0], tuple([float(e) for e in entries])
