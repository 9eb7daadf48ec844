"""Numbers of a nest that a loop counts up become arguments, once its plan is made: steps of such loops share programs.

    o0[i0] = p0[i0 - 3] else 0.0 if i0 - 3 >= 0        ->        o0[i0] = p0[i0 + k1] else 0.0 if i0 + k0 >= 0
    o1[i0] = i0 == 7 and p1[i0] < 12                             o1[i0] = i0 == k2 and p1[i0] < k3

These are bounds of what is padded and offsets of what is read there, in kernels without sums, and what loaded integers
and index variables are compared with. Renderers mask what is behind conditions, so that nothing has to be proved.
"""
from __future__ import annotations

from dataclasses import dataclass, field, replace

from minigrad.codegen.kernel import Kernel
from minigrad.codegen.lowering.rename import map_nest
from minigrad.codegen.plan.steps import Plan
from minigrad.expr import Expr, Index, Var, varying
from minigrad.value import Value, index, rebuild, walk

MAX_NUMBER = (1 << 31) - 1

COMPARISONS = frozenset(("lt", "eq", "ne"))


def lift_numbers(kernel: Kernel, plan: Plan) -> tuple[Kernel, tuple[int, ...]]:
    """The kernel, of one nest, with further dims, and what they are; itself where there are none."""
    lifter = _Lifter(plan.pattern == "pointwise")
    nests = tuple([map_nest(nest, lifter.value, lambda _, e: e) for nest in kernel.nests])
    if not lifter.found:
        return kernel, ()
    dims = (*kernel.dims, *lifter.found.values())
    return replace(kernel, dims=dims, nests=nests), tuple([number for _, number in lifter.found])


@dataclass(slots=True)
class _Lifter:
    """`found`: dims by what a number stands beside and the number. `indices`: whether those in conditions are lifted,
    and offsets behind them."""

    indices: bool
    found: dict[tuple[object, int], Var] = field(default_factory=dict)

    def value(self, root: Value) -> Value:
        order = walk(root)
        behind = _behind_guards(order) if self.indices else set()
        done: dict[Value, Value] = {}
        for v in order:
            attr, args = v.attr, tuple([done[a] for a in v.args])
            if v.op in COMPARISONS and len(args) == 2:
                args = self.compared(v, args[0], 0), self.compared(v, args[1], 1)
            elif v.op == "guard" and self.indices:
                attr = tuple([self.moved("guard", e) for e in v.attr])  # type: ignore[union-attr]
            elif v.op == "load" and v in behind:
                attr = (v.attr[0], tuple([self.moved(v.attr[0], e) for e in v.attr[1]]))  # type: ignore[index]
            elif v.op == "index" and self.indices:
                attr = self.moved("index", v.attr)  # type: ignore[arg-type]
            done[v] = rebuild(v, args, attr)
        return done[root]

    def compared(self, v: Value, side: Value, k: int) -> Value:
        """An operand of a comparison: a number beside a loaded integer or an index becomes a dim."""
        number, other = v.args[k], v.args[1 - k]
        other = other.args[0] if other.op == "cast" else other
        if number.op != "const" or not number.dtype.is_int or other.op not in ("load", "index"):
            return side
        value: int = number.attr  # type: ignore[assignment]
        return index(self.dim(v.op, value), number.dtype) if 1 < abs(value) <= MAX_NUMBER else side

    def moved(self, beside: object, e: Index) -> Index:
        """An index with its constant lifted."""
        if not isinstance(e, Expr) or not 0 < abs(e.const) <= MAX_NUMBER:
            return e
        whole = varying(e)
        return whole + self.dim((beside, whole), e.const)

    def dim(self, beside: object, number: int) -> Var:
        known = self.found.get((beside, number))
        if known is None:
            known = self.found[beside, number] = Var(f"k{len(self.found)}", -MAX_NUMBER, MAX_NUMBER)
        return known


def _behind_guards(order: list[Value]) -> set[Value]:
    """What is computed where conditions hold, of a value's parts, operands first."""
    behind: set[Value] = set()
    for v in reversed(order):
        if v in behind:
            behind.update(v.args)
        elif v.op == "guard":
            behind.add(v.args[0])
    return behind
