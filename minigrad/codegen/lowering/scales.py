"""Factors that depend on the outer variables of a sum only leave the sum over the others: scales of quantised blocks.

    before:  t = sum(b, c: d[b] * q[b, c] * x[b, c])              x * (d * q + m) is d * (x * q) + m * x
    after:   t = sum(b: d[b] * sum(c: q[b, c] * x[b, c]))

Integers that were made floats are added up as integers, where their sum is so small that floats would be exact too.
"""
from __future__ import annotations

from dataclasses import replace

from minigrad.codegen.kernel.factors import factors_of, product_of
from minigrad.codegen.kernel.nodes import Nest, is_sum
from minigrad.codegen.kernel.value_interval import interval
from minigrad.dtype import float32, int32
from minigrad.errors import present
from minigrad.expr import Index, Var, product
from minigrad.value import Value, binary, cast, const, free_variables, reduce, substitute, unary


def take_scales(nest: Nest, outer: int) -> Nest:
    """The nest with the factors of all its sums, which have equal extents, outside the sums over all but the first
    `outer` variables. They are named as the first sum's."""
    own = [s.value.over for s in nest.body if is_sum(s)]
    over = own[0]
    body = []
    for s in nest.body:
        if is_sum(s):
            monoid, here = s.value.monoid, s.value.over
            value = substitute(s.value.args[0], dict(zip(here, over, strict=True)))
            s = replace(s, value=reduce(monoid, over[:outer], scaled_sums(value, over[outer:])))
        body.append(s)
    return replace(nest, body=tuple(body))


def scaled_sums(body: Value, inner: tuple[Var, ...]) -> Value:
    """The sum of a body over the variables `inner`, scales outside."""
    total: Value | None = None
    steps = product(v.hi + 1 for v in inner)
    for scale, rest in scaled_terms(body, inner):
        scale = present(scale, "[scales] expected a factor in each term of a scaled sum")
        if rest.op == "const" and isinstance(steps, int):  # first: computed once for all rows of x
            term = product_of([const(rest.number * steps, rest.dtype), *factors_of(scale)])
        elif is_exact_in_integers(rest, steps):
            term = binary("mul", scale, cast(reduce("sum", inner, rest.args[0]), rest.dtype))
        else:
            term = binary("mul", scale, reduce("sum", inner, rest))
        total = term if total is None else binary("add", total, term)
    return present(total, "[scales] expected a term")


def scaled_terms(body: Value, inner: tuple[Var, ...], several: bool = False) -> list[tuple[Value | None, Value]]:
    """The body as a sum of `scale * rest`, where scales do not depend on the variables `inner` (None: no scale). The
    rest may be 1 for one of several terms."""
    factors = factors_of(body)
    for k, f in enumerate(factors):
        if f.op in ("add", "sub") and all(has_scale(a, inner) for a in f.args):
            left, right = f.args
            others = factors[:k] + factors[k + 1:]
            parts = (left, unary("neg", right) if f.op == "sub" else right)
            return [t for part in parts for t in scaled_terms(product_of([*others, part]), inner, True)]
    scales = [f for f in factors if not free_variables(f) & frozenset(inner)]
    rest = [f for f in factors if free_variables(f) & frozenset(inner)]
    if several and scales and not rest and body.dtype.is_float and all(isinstance(v.hi, int) for v in inner):
        return [(body, const(1.0, body.dtype))]
    if not scales or not rest:
        return [(None, body)]
    return [(product_of(scales), product_of(rest))]


def has_scale(v: Value, inner: tuple[Var, ...]) -> bool:
    """True where a term has a factor, not a number, that does not depend on the variables `inner`."""
    return any(f.op != "const" and free_variables(f) and not free_variables(f) & frozenset(inner)
               for f in factors_of(v))


def is_exact_in_integers(value: Value, count: Index) -> bool:
    """True where a sum of so many of a value, an int32 cast to float32, has no rounding in either type."""
    if value.op != "cast" or value.dtype is not float32 or value.args[0].dtype is not int32:
        return False
    return isinstance(count, int) and count * max(map(abs, interval(value.args[0]))) <= 1 << 24
