"""Functions of four bits as tables: AVX-512 looks sixteen float32 up with one permutation of a register.

`f32(i32((w >> 8) & 15) - 8)` is a mask, a subtraction and a conversion per vector, or one permutation that reads the
low four bits of each lane by itself. Dequantising four-bit weights would else be bound by arithmetic.
"""
from __future__ import annotations

from functools import lru_cache

import numpy as np

from minigrad.codegen.kernel import value_eval
from minigrad.dtype import bool_
from minigrad.value import Value

_OPERATIONS = frozenset("add sub mul and or xor neg not shl shr lt le eq ne where cast".split())
FEWEST_STEPS, MOST_STEPS = 2, 64
"""Operations that a table replaces, at least: one is as cheap as the table. And at most, that are looked at."""


def may_be_table(v: Value) -> bool:
    """True where `table_of` may find a table: one operand of the last step varies."""
    return len(v.args) == 1 or (len(v.args) == 2 and (v.args[0].op == "const") != (v.args[1].op == "const"))


@lru_cache(maxsize=1 << 12)
def table_of(v: Value) -> tuple[Value, tuple[float, ...]] | None:
    """(x, entries) if the 32-bit value `v` is entries[x & 15] for a 32-bit integer x, else None."""
    steps: dict[Value, None] = {}
    stack, base = [v], None
    while stack:
        x = stack.pop()
        if x.op == "const" or x in steps or x is base:
            continue
        if x.op == "and" and x.args[1].op == "const" and x.args[1].number == 15 and x.dtype.bits == 32 and x is not v:
            if base is not None:
                return None
            base = x
            continue
        if x.op not in _OPERATIONS or len(steps) == MOST_STEPS or not (x.dtype.bits == 32 or x.dtype is bool_):
            return None
        steps[x] = None
        stack += x.args
    if base is None or len(steps) + 1 < FEWEST_STEPS or v.dtype.bits != 32:
        return None
    known = {base: np.arange(16).astype(base.dtype.np)}
    return base.args[0], tuple([e.item() for e in _evaluated(v, known)])


def _evaluated(v: Value, known: dict[Value, np.ndarray]) -> np.ndarray:
    """A value for each of the numbers that one below it can be."""
    if v not in known:
        if v.op == "const":
            return np.broadcast_to(value_eval.constant(v.number, v.dtype), 16)
        args = [_evaluated(a, known) for a in v.args]
        if v.op == "cast":
            known[v] = value_eval.cast(args[0], v.args[0].dtype, v.dtype)
        elif v.op == "where":
            known[v] = np.where(*args)
        else:
            known[v] = value_eval.apply(v.op, v.args[0].dtype, *args)
    return known[v]
