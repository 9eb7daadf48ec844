"""Contractions with fewer columns than a vector has lanes: lanes go along the sum, for which B is transposed first.

    before:  t[m, n] = sum(k: a[m, k] * b[k, n])
    after:   w[n, k] = b[k, n], a stage of its own;  t[m, n] = sum(k: a[m, k] * w[n, k])

B is small beside A, which is read once, front to back; what `contraction` does with the second stage needs no more.
"""
from __future__ import annotations

from dataclasses import replace

from minigrad.codegen.kernel.access import extent, value_accesses
from minigrad.codegen.kernel.nodes import Define, Nest, Param, Store
from minigrad.codegen.patterns.recognise import Contraction, recognise
from minigrad.codegen.policy.packed import is_plain, size
from minigrad.dtype import bfloat16, float16
from minigrad.expr import Index, Var
from minigrad.target import Target
from minigrad.value import Value, binary, free_variables, load, reduce

MIN_ROWS = 32
"""Rows of A from which transposing B is little beside them."""

MIN_VECTORS = 4
"""Vectors along the sum from which adding up their lanes is little beside them."""


def transpose_thin(nest: Nest, scratch: list[Param], target: Target) -> list[Nest]:
    """The two nests, if that is faster; else the nest itself. `scratch` grows by the buffer w."""
    c = recognise(nest)
    if isinstance(c, str) or not is_thin(c, target):
        return [nest]
    rows = tuple(v for v in (*c.batch, *c.n) if v in free_variables(c.b))
    return transpose(nest, c, rows, scratch)


def transpose(nest: Nest, c: Contraction, rows: tuple[Var, ...], scratch: list[Param]) -> list[Nest]:
    """The two nests of a contraction: `rows` are the variables of B besides the sum's."""
    place: Index = 0
    for v in (*rows, *c.k):
        place = place * extent(v) + v
    w = Param(f"w{len(scratch)}", c.b.dtype, (size((*rows, *c.k)),), "out")
    scratch.append(w)
    transposed = reduce("sum", c.k, binary("mul", c.a, load(w.name, (place,), w.dtype)))
    return [Nest((*rows, *c.k), (Store(w.name, (place,), c.b),)),
            Nest(nest.domain, tuple([replace(s, value=transposed) if isinstance(s, Define) and s.name == c.name else s
                                     for s in nest.body]))]


def as_stored(value: Value) -> Value:
    """The value that one is widened from where that is a half one, as wide vectors read at no cost; else itself."""
    return value.args[0] if value.op == "cast" and value.args[0].dtype in (float16, bfloat16) else value


def is_long(m: int, k: int, width: int) -> bool:
    """True where transposing B and adding up lanes is little beside m rows and k steps of the sum."""
    return k >= MIN_VECTORS * width and m >= MIN_ROWS


def is_thin(c: Contraction, target: Target) -> bool:
    """True where A is in memory along the sum and B is not, and B has few columns for many rows of A."""
    if target.language != "llvm" or not c.a.dtype.is_float or not c.m or len(c.n) != 1 or len(c.k) != 1:
        return False
    if any(not isinstance(v.hi, int) for v in (*c.batch, *c.m, *c.n, *c.k)) or not is_plain(as_stored(c.a)):
        return False
    width, k = target.lanes(c.a.dtype.bits), c.k[-1]
    if not extent(c.n[0]) < width or not is_long(size(c.m), extent(k), width):
        return False
    return value_accesses(c.a, ())[0].step(k) == 1 and any(a.step(k) != 1 for a in value_accesses(c.b, ()))
