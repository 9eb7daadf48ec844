"""Value -> Value: exp, log, sin, cos, tanh, sigmoid, erf and pow written out in arithmetic that every device has.

The formulas are in `math_float32.py`, `math_float64.py` and `math_pow.py`, free of branches, so that they run in every
lane of a vector, the same on every backend. Their errors are stated there and checked by `test/test_math.py`.
"""
from __future__ import annotations

from minigrad.codegen.ir.nodes import Function, Let, Stmt, Store
from minigrad.codegen.ir.walk import Body, indices, map_blocks, map_function, statements, values
from minigrad.codegen.transforms import math_float32, math_float64
from minigrad.codegen.transforms.math_number import Number
from minigrad.codegen.transforms.math_pow import pow as power
from minigrad.codegen.transforms.unroll import unroll
from minigrad.codegen.value_walk import Rewriter, below, inner_values, operands
from minigrad.dtype import float32
from minigrad.errors import InternalError
from minigrad.value import Value, cast

FUNCTIONS = ("exp", "log", "sin", "cos", "tanh", "sigmoid", "erf", "pow")


def expand_math(function: Function) -> Function:
    """The function with every such operation replaced by its formula; itself if it has none.

    Half types are computed in float32, whole powers of integers by repeated squaring.
    """
    if not uses_math(function):
        return function
    expander = Expander()
    return map_function(function, expander.body)


def written_out(function: Function) -> Function:
    """Unrolled, and with formulas for such operations: what a renderer starts from."""
    unrolled = unroll(function)
    return expand_math(unrolled) if uses_math(function) else unrolled  # one look before there are many copies


def uses_math(function: Function) -> bool:
    """Whether there is anything to expand."""
    seen: set[Value] = set()
    stack: list[Value] = []
    for s in statements(function):
        stack += values(s)
        stack += inner_values(indices(s))
        while stack:
            v = stack.pop()
            if v in seen:
                continue
            if v.op in FUNCTIONS:
                return True
            seen.add(v)
            stack += operands(v)
    return False


class Expander(Rewriter):
    """Rewrites Values bottom up, each distinct one once; also those inside indices."""

    def __init__(self) -> None:
        super().__init__({})

    def body(self, body: Body) -> Body:
        return tuple([self.statement(s) for s in body])

    def statement(self, s: Stmt) -> Stmt:
        """Values of lets and stores; values used as indices only where they occur in values and offsets."""
        if isinstance(s, Let):
            return Let(s.name, self.value(s.value))
        if isinstance(s, Store):
            conditions = tuple([self.index(e) for e in s.conditions])
            return Store(s.buffer, self.index(s.offset), self.value(s.value), conditions)
        return map_blocks(s, self.body)

    def value(self, root: Value) -> Value:
        for v in below(root, self.done):
            self.done[v] = self._one(v)
        return self.done[root]

    def _one(self, v: Value) -> Value:
        v = super()._one(v)
        return expanded(v.op, v.args) if v.op in FUNCTIONS else v


def expanded(op: str, args: tuple[Value, ...]) -> Value:
    """The formula of one operation on operands of equal type."""
    dtype = args[0].dtype
    if not dtype.is_float:
        if op == "pow":
            return integer_power(Number(args[0]), Number(args[1])).value
        raise InternalError(f"[math] expected a float operand of {op}, got {dtype}")
    if dtype.compute is not dtype:
        return cast(expanded(op, tuple([cast(a, float32) for a in args])), dtype)
    if op == "pow":
        return power(Number(args[0]), Number(args[1])).value
    module = math_float32 if dtype is float32 else math_float64
    return getattr(module, op)(Number(args[0])).value


def integer_power(x: Number, y: Number) -> Number:
    """x ** y, wrapping; negative exponents give 1 / x ** -y truncated, 0 for x = 0."""
    result, base, left = x.of(1), x, y
    for _ in range(x.dtype.bits - (x.dtype.kind == "i")):
        result = (left & 1).equals(1).where(result * base, result)
        base, left = base * base, left >> 1
    if x.dtype.kind == "u":
        return result
    unit = x.equals(1).where(x.of(1), x.equals(-1).where((y & 1).equals(1).where(x.of(-1), x.of(1)), x.of(0)))
    return (y < 0).where(unit, result)
