"""A vector times quantised blocks of weights, by a microkernel that has instructions for them (`block_product.py`).

    for units of panels parallel:
      x as it is in memory, or computed into a worker's memory
      call the microkernel: sums of all panels of the unit, over all of K
      the epilogue, panel by panel

What the microkernel multiplies is recognised from the sum alone: a factor that takes the values of its numbers, column
by column of a block, one scale and perhaps one minimum per block, and the rest, which depends on the column only.
"""
from __future__ import annotations

from dataclasses import dataclass
from itertools import product as combinations

from minigrad.codegen import value_eval
from minigrad.codegen.factors import factors_of, product_of
from minigrad.codegen.kernel import Define, Nest, Store
from minigrad.codegen.lowering.collapse import coefficient
from minigrad.codegen.lowering.scales import scaled_terms
from minigrad.codegen.microkernels import block_product
from minigrad.codegen.microkernels.block_product import BLOCK, FEWEST_BLOCKS, FEWEST_PANELS, PANEL, BlockProduct
from minigrad.codegen.strategies.access import extent, reductions
from minigrad.codegen.strategies.plan import QuantizedPlan
from minigrad.codegen.strategies.stream import recognise_stream, scaled_prefix
from minigrad.dtype import float16, float32
from minigrad.expr import Index, Var, subs, variables
from minigrad.target import Target
from minigrad.value import Value, const, expressions, free_variables, rebuild, substitute, walk

_LANES = Target("16 lanes", "llvm", "", 4 * PANEL, 32, 1)

UNITS, UNIT_PANELS, UNIT_PANELS_APART = 4, 32, 128
"""Units of work worth having of a small matrix, and panels of one otherwise: each splits x anew, which takes as long as
two or three panels, and starts its streams. On AMX their number is a power of two where there are more, which two, four
or eight threads share evenly, and twice that of threads at least. On VNNI it is that of threads, or so many times that
a unit has 128 panels or more: on Zen 4 two units of 176 panels are 3% faster from memory than four of 88.
"""


@dataclass(frozen=True, slots=True)
class Part:
    """Where words, scales or minimums are: `offset` with all variables of the nest and of the sum at 0, and how far the
    panels are apart."""

    buffer: str
    offset: Index
    pitch: int


@dataclass(frozen=True, slots=True)
class Blocks:
    """One sum of a nest as a `BlockProduct`. `x` is a function of the variable `k` of all columns."""

    name: str
    product: BlockProduct
    parts: tuple[Part, ...]
    x: Value
    k: Var


@dataclass(frozen=True, slots=True)
class Quantized:
    """What a nest multiplies: its panel and lane variables, and the sums."""

    panel: Var
    lane: Var
    sums: tuple[Blocks, ...]


def plan(nest: Nest, target: Target) -> QuantizedPlan | None:
    """None for everything but products of one row with blocks, and where no microkernel knows them."""
    suffix = block_product.suffix_for(target.features)
    if target.language != "llvm" or target.has_groups or suffix is None:
        return None
    found = recognise_quantized(nest)
    if found is None:
        return None
    panels = extent(found.panel)
    if suffix:
        units = target.units << max(0, (panels // UNIT_PANELS_APART // target.units).bit_length() - 1)
    else:
        parts = panels // UNIT_PANELS
        units = max(UNITS, 1 << (2 * target.units - 1).bit_length(), 1 << parts.bit_length() >> 1)
    return QuantizedPlan("quantized", found.panel.name, found.lane.name, min(units, panels // FEWEST_PANELS),
                         tuple(s.product.name + suffix for s in found.sums))


def recognise_quantized(nest: Nest) -> Quantized | None:
    """The sums of a flat nest that are all products of one row with quantised blocks; or None."""
    stream = recognise_stream(nest, _LANES)
    if stream is None or stream.rows or extent(stream.lane) != PANEL or len(stream.panels) != 1:
        return None
    panel, = stream.panels
    outer = scaled_prefix(stream.bodies, stream.over)
    if len(outer) != 1 or not all(isinstance(v.hi, int) for v in (panel, *stream.over)):
        return None
    if extent(panel) < FEWEST_PANELS or extent(outer[0]) < FEWEST_BLOCKS:
        return None
    own = {s.name for s in nest.body if isinstance(s, Define)}
    if any(isinstance(s, Define | Store) and s.value.reduces and s.value.op != "reduce" for s in nest.body):
        return None
    sums = []
    for r, body in zip(reductions(nest), stream.bodies, strict=True):
        if any(v.op == "local" and v.attr in own for v in walk(body)):
            return None
        found = _Reader(panel, stream.lane, outer[0], stream.over[1:]).blocks(r.name, body)
        if found is None:
            return None
        sums.append(found)
    return Quantized(panel, stream.lane, tuple(sums))


class _Reader:
    """Reads the body of one sum over blocks and, inside them, over columns."""

    def __init__(self, panel: Var, lane: Var, block: Var, inner: tuple[Var, ...]):
        self.panel, self.lane, self.block, self.inner = panel, lane, block, inner

    def blocks(self, name: str, body: Value) -> Blocks | None:
        scales: list[Part] = []
        words: tuple[BlockProduct, Part, dict[Var, int]] | None = None
        rows = []
        terms = scaled_terms(body, self.inner)
        least = len(terms) == 2
        for term, (scale, rest) in enumerate(terms):
            factors = [*([] if scale is None else factors_of(scale)), *factors_of(rest)]
            streamed = [f for f in factors if not free_variables(f).isdisjoint((self.panel, self.lane))]
            left = [f for f in factors if f not in streamed]
            numbers = [f for f in streamed if not free_variables(f).isdisjoint(self.inner)]
            streamed = [f for f in streamed if f not in numbers]
            part = self.scale(streamed[0]) if len(streamed) == 1 else None
            if part is None or not left or len(numbers) != (term == 0):
                return None
            scales.append(part)
            rows.append(product_of(left))
            if numbers:
                words = self.words(numbers[0], least)
        if words is None or len(terms) > 2 or rows[0] is not rows[-1]:
            return None
        found, found_words, columns = words
        k = Var("k", 0, BLOCK * extent(self.block) - 1)
        x = self.row(rows[0], columns, k)
        return None if x is None else Blocks(name, found, (found_words, *scales), x, k)

    def part(self, v: Value, steps: dict[Var, int]) -> Part | None:
        """A load with these steps, any of the panel, and none of other variables."""
        if v.op != "load":
            return None
        name, (offset,) = v.attr
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

    def words(self, number: Value, least: bool) -> tuple[BlockProduct, Part, dict[Var, int]] | None:
        """The product whose numbers these are, its words, and the steps of the column in a block with each variable."""
        kinds = [p for p in block_product.KINDS.values() if (len(p.parts) == 3) == least]
        columns: dict[tuple[int, ...], int] = {}
        found: tuple[BlockProduct, Part] | None = None
        for at in combinations(*(range(extent(v)) for v in self.inner)):
            here = folded(substitute(number, dict(zip(self.inner, at, strict=True))))
            word = next((v for v in walk(here) if v.op == "load"), None)
            match = next(((p, c) for p in kinds for c in range(BLOCK // p.words)
                          if word is not None and p.dtype is word.dtype and p.value(c, word) is here), None)
            if match is None or word is None or found is not None and match[0] is not found[0]:
                return None
            product, column = match
            part = self.part(word, {self.lane: 1, self.block: PANEL * product.words})
            if part is None or found is None and any(at):
                return None
            found = found or (product, part)
            group, left = divmod(part.offset - found[1].offset, PANEL)  # type: ignore[operator]
            if left or (part.buffer, part.pitch) != (found[1].buffer, found[1].pitch):
                return None
            columns[at] = BLOCK // product.words * group + column
        if found is None or sorted(columns.values()) != list(range(BLOCK)) or columns[(0,) * len(self.inner)]:
            return None
        steps = {v: columns.get(tuple(int(u is v) for u in self.inner), 0) for v in self.inner}
        if any(c != sum(s * i for s, i in zip(steps.values(), at, strict=True)) for at, c in columns.items()):
            return None
        return (*found, steps)

    def row(self, x: Value, columns: dict[Var, int], k: Var) -> Value | None:
        """x as a function of k, if all its indices step with the column."""
        steps = {**columns, self.block: BLOCK}
        for e in expressions(x):
            if not variables(e).isdisjoint(steps):
                found = [coefficient(e, v) for v in steps]
                one = coefficient(e, next(v for v, s in steps.items() if s == 1))
                if one is None or any(c is None or c != one * s for c, s in zip(found, steps.values(), strict=True)):
                    return None
        return substitute(x, {v: k if s == 1 else 0 for v, s in steps.items()})


def folded(root: Value) -> Value:
    """A value with operations on constants computed, and no shifts by 0."""
    done: dict[Value, Value] = {}
    for v in walk(root):
        args = tuple([done[a] for a in v.args])
        done[v] = rebuild(v, args, v.attr)
        if v.op == "where" and args[0].op == "const":
            done[v] = args[1] if args[0].attr else args[2]
        elif v.op in ("shl", "shr") and args[1].op == "const" and args[1].attr == 0:
            done[v] = args[0]
        elif args and v.op not in ("load", "guard", "reduce", "where") and all(a.op == "const" for a in args):
            numbers = [value_eval.constant(a.attr, a.dtype) for a in args]
            value = (value_eval.cast(numbers[0], args[0].dtype, v.dtype) if v.op == "cast" else
                     value_eval.apply(v.op, args[0].dtype, *numbers) if v.op != "bitcast" else None)
            done[v] = done[v] if value is None else const(value.item(), v.dtype)
    return done[root]
