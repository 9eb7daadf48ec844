"""Contractions with few outputs and a long sum as two nests: products over parts of K, then their sum."""
from __future__ import annotations

from dataclasses import replace
from math import ceil

from minigrad.codegen.kernel.nodes import Nest, Param
from minigrad.codegen.patterns.recognise import recognise
from minigrad.codegen.policy.choose import choose_plan
from minigrad.codegen.policy.packed import MIN_WORK, size
from minigrad.codegen.policy.parts import best_part, in_parts
from minigrad.expr import product
from minigrad.target import Target

BLOCKS = 8
"""Blocks of work worth having: enough for several workers, whatever their number."""

SIDE = 64
"""Rows and columns of the output in one of them."""

ENOUGH = 24 * 8 * 48
"""Outputs of panels that are enough without it: register tiles of 8 x 48 are small units of work."""

MIN_PART = 512
"""Steps of K in a part, so that adding up the parts is little beside them."""


def split_k(nest: Nest, scratch: list[Param], target: Target) -> list[Nest]:
    """A packed contraction in parts along K, if it has too few blocks otherwise; else the nest itself.

    Before: `t = sum(k<K: a * b)`. After: `for p<P: w[p] = sum(k1<K/P: a * b at k := p*K/P + k1)`, then
    `t = sum(p<P: w[p])`. P depends on shapes only. `scratch` grows by the buffer w.
    """
    outputs = product(v.hi + 1 for v in nest.domain)
    found = recognise(nest)
    if not isinstance(outputs, int) or isinstance(found, str):
        return [nest]
    m, n, k = size(found.m), size(found.n), size(found.k)
    pattern = choose_plan(nest, replace(target, units=1))[1].pattern
    if pattern not in ("packed", "panels") or (pattern == "panels" and m * n >= ENOUGH):
        return [nest]
    blocks = ceil(m / SIDE) * ceil(n / SIDE) * size(found.batch)
    count, v = best_part(found.k, min(BLOCKS // blocks, k // MIN_PART, m * n * k // MIN_WORK))
    return [nest] if v is None else in_parts(nest, scratch, found.name, count, v)
