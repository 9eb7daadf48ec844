"""Scalar values, apart from what kernels and loops make of them."""
from __future__ import annotations

import pytest

from minigrad.dtype import float32, int32
from minigrad.errors import InternalError
from minigrad.expr import Var
from minigrad.value import (
    Value,
    ValueIndex,
    across,
    binary,
    const,
    guard,
    index,
    load,
    local,
    make,
    reduce,
    reductions_in,
    substitute,
    unary,
)


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


def test_a_value_knows_what_is_in_it() -> None:
    i, r = Var("i", 0, 9), Var("r", 0, 3)
    place = load("p0", (i,), int32)
    gathered = load("p1", (ValueIndex(place, 0, 9) * 4 + r,), float32)
    total = reduce("sum", (r,), gathered)
    guarded = guard(local("t", float32), const(0, float32), (i - 3,))
    facts = [
        (local("t", float32), False, False, False, False),
        (load("acc", (2,), float32), True, False, False, False),
        (index(i, int32), False, True, False, False),
        (place, True, True, False, False),
        (guarded, False, True, False, False),
        (gathered, True, True, True, False),
        (total, True, True, True, True),
        (binary("mul", total, guarded), True, True, True, True),
        (reduce("sum", (r,), local("t", float32)), False, False, False, True),
    ]
    for v, loads, indexed, gathers, reduces in facts:
        assert (v.loads, v.indexed, v.gathers, v.reduces) == (loads, indexed, gathers, reduces), v
    assert gathered.inner == (place,) and gathered.operands == (place,) and guarded.operands == guarded.args
    assert reductions_in(binary("mul", total, guarded)) == [total] and reductions_in(guarded) == []
    moved = substitute(gathered, {i: i + 1})
    assert moved.inner == (load("p0", (i + 1,), int32),)


I0 = Var("i0", 0, 3)
X = load("x", (I0,), float32)
KINDS: dict[str, tuple[Value, dict[str, object]]] = {
    "const": (const(-0.0, float32), {"number": -0.0}),
    "index": (index(I0 + 1, int32), {"index": I0 + 1}),
    "local": (local("t", float32), {"name": "t"}),
    "load": (X, {"buffer": "x", "indices": (I0,)}),
    "guard": (guard(X, const(0, float32), (I0 - 1,)), {"conditions": (I0 - 1,)}),
    "reduce": (reduce("sum", (I0,), X), {"monoid": "sum", "over": (I0,)}),
    "across": (across("max", X), {"monoid": "max"}),
    "neg": (unary("neg", X), {}),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_has_its_own_attributes_alone(kind: str) -> None:
    value, own = KINDS[kind]
    every = {name for _, names in KINDS.values() for name in names}
    assert value.op == kind and {name: getattr(value, name) for name in every if hasattr(value, name)} == own
    assert value.attr == (tuple(own.values()) if len(own) > 1 else next(iter(own.values()), None))


def test_an_operation_has_no_attribute() -> None:
    with pytest.raises(InternalError, match=r"\[value\] expected nothing beside the operands of sqrt, got 3"):
        make("sqrt", float32, (X,), 3)
