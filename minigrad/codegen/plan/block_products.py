"""Sums of a nest as products of one row with quantised blocks (`block_product.py`): what a `call` of them computes.

They are recognised from a sum alone: a factor that takes the values of its numbers, column by column of a block, one
scale and perhaps one minimum per block, and the rest, x, which depends on the column only.
"""
from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product as combinations

from minigrad.codegen.kernel import value_eval
from minigrad.codegen.kernel.access import extent
from minigrad.codegen.kernel.factors import factors_of
from minigrad.codegen.kernel.nodes import Nest
from minigrad.codegen.kernel.value_walk import rebuilt
from minigrad.codegen.lowering.scales import scaled_terms
from minigrad.codegen.microkernels.block_product import BLOCK, FEWEST_BLOCKS, FEWEST_PANELS, KINDS, PANEL, BlockProduct
from minigrad.codegen.plan.spaces import spaces, terms_of_sums, units
from minigrad.dtype import float16, float32
from minigrad.expr import Var, coefficient, subs
from minigrad.value import Value, const, free_variables, substitute, walk


@dataclass(frozen=True, slots=True)
class Part:
    """The place of words, scales or minimums: `offset` of the first column of a block of a panel, and how far panels
    are apart."""

    buffer: str
    offset: int
    pitch: int


@dataclass(frozen=True, slots=True)
class Blocks:
    """One sum as a `BlockProduct`. `x` is the part of its terms that is multiplied, a function of the column."""

    name: str
    product: BlockProduct
    parts: tuple[Part, ...]
    x: Value


@dataclass(frozen=True, slots=True)
class Products:
    """The operands of a nest: its variables over panels and over their lanes, those of its sums, over blocks and inside
    them over columns in order, and the sums."""

    panel: Var
    lane: Var
    over: tuple[Var, ...]
    sums: tuple[Blocks, ...]


@lru_cache(maxsize=1024)
def products_of(nest: Nest) -> Products | None:
    """The sums of a flat nest that are all products of one row with quantised blocks; or None."""
    if len(nest.domain) != 2 or nest.domain[1].hi != PANEL - 1:
        return None
    group, (panel, lane) = units(nest.body)[0], nest.domain
    if not isinstance(group, tuple) or len(spaces(nest)) != 2:
        return None
    over = group[0].value.over
    if any(not isinstance(v.hi, int) for v in (panel, *over)) or len(over) < 2:
        return None
    if extent(panel) < FEWEST_PANELS or extent(over[0]) < FEWEST_BLOCKS:
        return None
    sums = []
    for s, body in zip(group, terms_of_sums(group), strict=True):
        found = _Reader(panel, lane, over).blocks(s.name, body)
        if found is None or s.value.monoid != "sum":
            return None
        sums.append(found)
    return Products(panel, lane, over, tuple(sums))


class _Reader:
    """Reads the body of one sum over blocks and, inside them, over columns."""

    def __init__(self, panel: Var, lane: Var, over: tuple[Var, ...]):
        self.panel, self.lane, self.block, self.inner = panel, lane, over[0], over[1:]

    def blocks(self, name: str, body: Value) -> Blocks | None:
        scales: list[Part] = []
        words: tuple[BlockProduct, Part] | None = None
        rows = []
        terms = scaled_terms(body, self.inner)
        least = len(terms) == 2
        for term, (scale, rest) in enumerate(terms):
            factors = [*([] if scale is None else factors_of(scale)), *factors_of(rest)]
            streamed = [f for f in factors if not free_variables(f).isdisjoint((self.panel, self.lane))]
            rows.append([f for f in factors if f not in streamed])
            numbers = [f for f in streamed if not free_variables(f).isdisjoint(self.inner)]
            streamed = [f for f in streamed if f not in numbers]
            part = self.scale(streamed[0]) if len(streamed) == 1 else None
            if part is None or len(numbers) != (term == 0):
                return None
            scales.append(part)
            if numbers:
                words = self.words(numbers[0], least)
        x = next((v for v in walk(body) if factors_of(v) == rows[0]), None)
        if words is None or len(terms) > 2 or x is None or rows[0] != rows[-1]:
            return None
        return Blocks(name, words[0], (words[1], *scales), x)

    def part(self, v: Value, steps: dict[Var, int]) -> Part | None:
        """A load with these steps, any of the panel, and none of other variables."""
        if v.op != "load":
            return None
        name, (offset,) = v.buffer, v.indices
        pitch = coefficient(offset, self.panel)
        if not isinstance(pitch, int) or pitch < 0:
            return None
        start = subs(offset, {v: 0 for v in (self.panel, *steps)})
        if not isinstance(start, int) or start < 0 or any(coefficient(offset, v) != s for v, s in steps.items()):
            return None
        return Part(name, start, pitch)

    def scale(self, v: Value) -> Part | None:
        """A float16 per block."""
        if v.op != "cast" or v.dtype is not float32 or v.args[0].dtype is not float16:
            return None
        return self.part(v.args[0], {self.lane: 1, self.block: PANEL, **dict.fromkeys(self.inner, 0)})

    def words(self, number: Value, least: bool) -> tuple[BlockProduct, Part] | None:
        """The product whose numbers these are, column by column, and its words."""
        kinds = [p for p in KINDS.values() if (len(p.parts) == 3) == least]
        found: set[tuple[BlockProduct, Part]] = set()
        for k, at in enumerate(combinations(*(range(extent(v)) for v in self.inner))):
            here = folded(substitute(number, dict(zip(self.inner, at, strict=True))))
            word = next((v for v in walk(here) if v.op == "load"), here)
            product = next((p for p in kinds if p.dtype is word.dtype and p.value(k % p.columns, word) is here), None)
            part = self.part(word, {self.lane: 1, self.block: PANEL * product.words}) if product is not None else None
            if product is None or part is None or k >= BLOCK:
                return None
            found.add((product, replace(part, offset=part.offset - k // product.columns * PANEL)))
        return found.pop() if len(found) == 1 and k == BLOCK - 1 else None


def folded(root: Value) -> Value:
    """A value with operations on constants computed, and no shifts by 0."""
    def one(v: Value, args: tuple[Value, ...]) -> Value | None:
        if v.op == "where" and args[0].op == "const":
            return args[1] if args[0].number else args[2]
        if v.op in ("shl", "shr") and args[1].op == "const" and args[1].number == 0:
            return args[0]
        if not args or v.op in ("guard", "reduce", "where", "bitcast") or any(a.op != "const" for a in args):
            return None
        number, _ = value_eval.operate(v, [(value_eval.constant(a.number, a.dtype), None) for a in args])
        return const(number.item(), v.dtype)

    return rebuilt(root, one)
