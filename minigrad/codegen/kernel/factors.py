"""Products as their factors, and back."""
from __future__ import annotations

from collections.abc import Sequence

from minigrad.expr import Index
from minigrad.value import Value, binary, unary


def factors_of(body: Value, conditions: list[Index] | None = None) -> list[Value]:
    """The factors of a product, signs of floats included. `conditions`, where given, takes those outside which all of
    it is 0; else a guard is a factor."""
    found: list[Value] = []
    stack, negative = [body], False
    while stack:
        v = stack.pop()
        if v.op == "mul":
            stack.extend(reversed(v.args))
        elif v.op == "neg" and v.dtype.is_float:
            stack.append(v.args[0])
            negative = not negative
        elif conditions is not None and v.op == "guard" and v.args[0].op == "mul" and v.args[1].op == "const" and \
                v.args[1].number == 0:
            stack.append(v.args[0])
            conditions.extend(v.conditions)
        else:
            found.append(v)
    if negative:
        found[0] = unary("neg", found[0])
    return found


def product_of(values: Sequence[Value]) -> Value:
    """The product of some values, one at least."""
    total = values[0]
    for v in values[1:]:
        total = binary("mul", total, v)
    return total
