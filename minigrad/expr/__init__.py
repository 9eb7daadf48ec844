"""Integer expressions: the one language of shapes, index maps, conditions and loop bounds.

    Index  := int | Expr
    Expr   := sum of  coefficient * atom * atom ...  + constant          canonical: sorted, like terms merged
    Atom   := Var | FloorDiv(num, div) | Mod(num, div) | Min(a, b) | Max(a, b) | Opaque(sum) | a subclass elsewhere

Every Atom is itself an Expr (one times itself), and every operation returns the simplest form: a plain int when the
result is constant, the Atom itself when it is one. Atoms are interned, so `is` compares Variables; sums compare by
structure. Everything is immutable. Division and remainder floor, like Python's; divisors are positive wherever they are
defined. A condition is an Index e that means e >= 0; divisibility by s is -(e % s) >= 0.

A divisor is a monomial, `c * atom * ...`: a sum such as `pos + n` becomes the atom Opaque(pos + n), which divides only
its own multiples. What `//` and `%` simplify is listed at `floordiv`.
"""
import minigrad.expr.methods  # noqa: F401  (gives the classes their operators)
from minigrad.expr.core import (
    Atom,
    Binary,
    Expr,
    FloorDiv,
    Index,
    Max,
    Min,
    Mod,
    Opaque,
    Var,
    Variable,
    variables,
)
from minigrad.expr.divide import divides, exact_quotient, floordiv, mod
from minigrad.expr.interval import bounds, emax, emin, prove_nonneg
from minigrad.expr.linear import coefficient
from minigrad.expr.subs import subs
from minigrad.expr.sums import dim, expand, product, split, varying
from minigrad.expr.text import parse, to_text
from minigrad.expr.use import evaluate, same, unbind

__all__ = [
    "Atom", "Binary", "Expr", "FloorDiv", "Index", "Max", "Min", "Mod", "Opaque", "Var", "Variable",
    "bounds", "coefficient", "dim", "divides", "emax", "emin", "evaluate", "exact_quotient", "expand", "floordiv",
    "mod", "parse", "product", "prove_nonneg", "same", "split", "subs", "to_text", "unbind", "variables",
    "varying",
]
