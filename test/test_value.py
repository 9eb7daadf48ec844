"""Scalar values, apart from what kernels and loops make of them."""
from __future__ import annotations

from minigrad.dtype import int32
from minigrad.expr import Var
from minigrad.value import Value, ValueIndex, make


def test_summaries_are_short_and_tell_values_apart() -> None:
    """Operands are shared: written out, a chain of forty doublings would have 2**40 leaves."""
    def doubled(v: Value, times: int) -> Value:
        for _ in range(times):
            v = make("add", int32, (v, v))
        return v

    leaf = make("load", int32, (), ("p0", (Var("i", 0, 9),)))
    assert repr(make("add", int32, (leaf, leaf))) == f"add:{int32.short}({leaf!r}, {leaf!r})"
    deep = [doubled(leaf, 40), doubled(leaf, 41), doubled(make("load", int32, (), ("p1", (Var("i", 0, 9),))), 40)]
    assert len({repr(v) for v in deep}) == 3 and all(len(repr(v)) < 2000 for v in deep)
    nested = leaf
    for _ in range(40):
        nested = make("load", int32, (), ("p0", (ValueIndex(make("add", int32, (nested, nested)), 0, 9),)))
    assert len(str(ValueIndex(nested, 0, 9) + 1)) < 2000
