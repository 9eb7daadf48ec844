"""Contractions over three plain axes, matmul and its kind: a register tile, with operands in place or in panels.

    plan panels                                       512 x 512 x 512, B packed
      split i1 -> n nn by 256, short                  a worker's columns
      split i0 -> i u by 6, back
      split nn -> j jj by 64, back
      split jj -> v l by 16
      split r0 -> k t by 2
      bind parallel n
      bind vector l
      bind unroll t u v
      order n i j l k t u v
      stage p1 at n as [j][r0][v][l]
      ahead p0 at k by 1 of i

The last block reaches back over the one before it. B is read in place where it stays in the second-level cache, or
where few rows use it; panels of it pass by once, each meeting all rows of a worker. Otherwise it is packed, and each
tile of rows meets all of a worker's panels, which stay in the second-level cache; not where rows of A lie across the
sum, as their lines hold elements of other tiles. A is read in place wherever it is in memory as it is, as a tile needs
few rows. Where few rows of A use a far B, it is read in blocks of whole rows, between which sums wait in memory.
"""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from math import ceil, prod

from minigrad.codegen.cost.plans import tile_cycles
from minigrad.codegen.kernel.access import extent, reductions, value_accesses
from minigrad.codegen.kernel.nodes import Nest
from minigrad.codegen.machines.caches import LINE, PAGE, SHARED, fits, room
from minigrad.codegen.machines.machine import machine
from minigrad.codegen.patterns.recognise import Contraction, matrix_or_vector_product
from minigrad.codegen.plan.sizes import shares_copies
from minigrad.codegen.plan.steps import Ahead, Bind, Order, Plan, Sizes, Split, Stage, Step
from minigrad.codegen.policy.blocking import SPARE_REGISTERS, is_plain, row_bytes, steps_closely
from minigrad.codegen.policy.narrow import narrow_kind
from minigrad.codegen.policy.packed_steps import as_product
from minigrad.codegen.policy.product import CHOICES, GAIN, Way
from minigrad.expr import Var, coefficient
from minigrad.target import Target
from minigrad.value import walk

MIN_WORK = 1 << 12
"""Multiply-adds below which products of all sizes share the programs of general contractions."""

MIN_WORK_ELSEWHERE = 1 << 27
"""Likewise where compilers other than ours take tenths of a second for each program: its text is twice as long as that
of a packed contraction, for 20-40% of the time."""

MAX_K, ROW_K, FEW_ROWS = 2048, 16, 16
"""Steps of the sum per block: panels and tiles of so many stay in the caches; and where few rows use a B that does not
stay near, or one tile has all of them: so many whole rows of B side by side, 1.2-1.5 times as fast as by columns."""

SHORT_K = 128
"""Steps of the sum up to which a product waits for its output, whose lines are prefetched: 13% at K = 16."""

UNIT_WORK, UNITS = 1 << 19, 4
"""Multiply-adds of a unit of parallel work worth having; units per worker, so that none waits long for the last."""

SHORT_SUM, LARGE_OUTPUT = 64, 1 << 16
"""Steps of a sum up to which, in outputs of so many elements, sizes stay constants: arguments would cost 5-20%."""

LOW, LARGE_PRODUCT = 8, 1 << 22
"""Likewise with more rows in products of fewer multiply-adds: 3-5%. In larger ones a test per tile costs nothing."""

COPIED_A_ROWS = 4, 8, 16
"""Rows of a tile whose operand A is copied: as many as a vector has."""

USUAL_ROWS = 6
"""Rows of the tile that products of most sizes have."""

CONSTANT = 0.8
"""Part of their cycles that panels of a matrix count for which lies along the sum, as weights of linear layers do:
where it is a constant they are made once (codegen/panels.py), if the sum runs in order, which lanes along it do not."""

FEW_REGISTERS, TRANSPOSED_STEPS = 16, 4
"""Registers of which one is enough to spare; steps of the sum that are transposed at a time."""


@dataclass(frozen=True, slots=True)
class Product:
    """A contraction and how its operands are read: `a` and `b` are '' in place, else how they are copied: 'lanes' as
    they lie, 'transposed' along the sum."""

    c: Contraction
    m: int
    n: int
    k: int
    a: str
    b: str

    @property
    def a_is_strided(self) -> bool:
        """True where A is read in place across its rows."""
        return not self.a and row_bytes(self.c.a, self.c.k) > self.c.a.dtype.itemsize

    @property
    def itemsize(self) -> int:
        return max(self.c.a.dtype.itemsize, 4)


@dataclass(frozen=True, slots=True)
class Tile:
    """Rows, vectors and lanes of a register tile."""

    rows: int
    vectors: int
    width: int

    @property
    def columns(self) -> int:
        return self.vectors * self.width


def ways(nest: Nest, target: Target) -> Iterator[Way]:
    """B in place and in panels, as far as there are names for the copies; none where the nest is not done in panels."""
    c = matrix_or_vector_product(nest)
    if isinstance(c, str) or refusal(c, target):
        return
    for p in products(c, target):
        yield _way(nest, p, target)


def _way(nest: Nest, p: Product, target: Target) -> Way:
    def made(tile: Tile, target: Target) -> tuple[Nest, Plan]:
        return as_product(nest, p.c), with_tile(nest, p, tile, target)

    return Way(f"panels {p.a} {p.b}", best_tiles(p, target), made, CONSTANT if p.b == "transposed" else 1.0,
               usual_tile(p, target))


def refusal(c: Contraction, target: Target) -> str:
    """The reason why a contraction is not done in panels; '' where it may be."""
    if target.is_gpu:
        return "no panels: a work-item of a GPU has too little memory of its own"
    variables = (*c.batch, *c.m, *c.n, *c.k)
    work = prod([extent(v) for v in variables if isinstance(v.hi, int)])
    if target.language != "llvm" and work < MIN_WORK_ELSEWHERE:
        return f"no panels: a driver would compile twice the text of a packed one for {work} multiply-adds"
    if len(c.k) != 1 or not (c.m and c.n):
        return "no panels: the sum goes over several variables"
    if any(not isinstance(v.hi, int) for v in variables):
        return "no panels: an extent is known at run time only"
    if not all(a.step(vs[-1]) is not None for x in (c.a, c.b) for a in value_accesses(x, ()) for vs in (c.m, c.n, c.k)):
        return "no panels: an operand does not step evenly"
    bits = c.a.dtype.bits
    if not c.a.dtype.is_float or any(a.bits != bits for x in (c.a, c.b) for a in value_accesses(x, ())):
        return "no panels: an operand is narrow or an integer"
    if narrow_kind(c, target):
        return "no panels: matrix registers multiply packed words"
    m, n, k = (extent(vs[-1]) for vs in (c.m, c.n, c.k))
    if m * n * k < MIN_WORK:
        return f"no panels: M={m} N={n} K={k} is too small"
    if not all(coefficient(s.indices[0], c.n[-1]) == 1 for s in c.outputs):
        return f"no panels: the output is not contiguous along {c.n[-1]}"
    return ""


def products(c: Contraction, target: Target) -> Iterator[Product]:
    """The product with the ways in which its operands can be read. A is copied where it is not in memory as it is."""
    m, n, k = (extent(vs[-1]) for vs in (c.m, c.n, c.k))
    a = "" if is_plain(c.a) else _copied(c, 0, c.m[-1:])
    b = _copied(c, 1, c.n[-1:])
    if a == "transposed" and k < TRANSPOSED_STEPS or not a and not is_plain(c.a):
        return
    if is_plain(c.b) and value_accesses(c.b, ())[0].step(c.n[-1]) == 1:
        yield Product(c, m, n, k, a, "")
    if b and m > 1 and (b != "transposed" or k >= TRANSPOSED_STEPS):
        yield Product(c, m, n, k, a, b)


def _copied(c: Contraction, side: int, along: tuple[Var, ...]) -> str:
    """The way in which a or b is copied, whose lanes go along a variable; '' where there is no name for its copy."""
    return "" if not c.buffers[side] else "lanes" if steps_closely((c.a, c.b)[side], along) else "transposed"


def usual_tile(p: Product, target: Target) -> Tile:
    """The tile that most products have: its vectors are an eighth of the registers."""
    return Tile(USUAL_ROWS, target.registers // 8, min(16, target.lanes(p.c.a.dtype.bits)))


@lru_cache(maxsize=1 << 10)
def best_tiles(p: Product, target: Target) -> tuple[tuple[float, Tile], ...]:
    """The most promising register tiles, with the cycles that they take at least: where A is copied, of as many rows as
    lanes copy; where two half vectors begin in a cycle, of these as well."""
    width, facts = min(16, target.lanes(p.c.a.dtype.bits)), machine(target)
    widths = [(width, facts.declared.fma_per_cycle)]
    if facts.declared.fma_per_cycle == 1:
        widths.append((width // 2, 2))
    spare = 1 if target.registers <= FEW_REGISTERS else SPARE_REGISTERS
    found: list[tuple[float, Tile]] = []
    for width, rate in widths:
        for vectors in range(1, min(target.registers // 4, p.n // width) + 1):
            for rows in range(1, min((target.registers - vectors - spare) // vectors, p.m) + 1):
                if rows in COPIED_A_ROWS if p.a else not facts.declared.side_by_side < rows < p.m:
                    nbytes = (rows + vectors * width) * p.itemsize
                    tile = tile_cycles(rows * vectors, rows + vectors, p.k, nbytes, target, rate)
                    found.append((ceil(p.m / rows) * ceil(p.n / (vectors * width)) * tile, Tile(rows, vectors, width)))
    usual, made = usual_tile(p, target), copy_cycles(p, target)
    found.sort(key=lambda x: (round(x[0] * (GAIN if x[1] == usual else 1.0)), -x[1].rows * x[1].vectors))
    return tuple([(cycles + made, tile) for cycles, tile in found[:CHOICES]])


def copy_cycles(p: Product, target: Target) -> float:
    """Cycles that the copy of B takes at least."""
    one, width = machine(target).plans, min(16, target.lanes(p.c.a.dtype.bits))
    return p.k * p.n * {"": 0.0, "lanes": one.copied / width, "transposed": one.transposed}[p.b]


def with_tile(nest: Nest, p: Product, t: Tile, target: Target) -> Plan:
    """The plan with a register tile."""
    c = p.c
    m, n, k = (vs[-1].name for vs in (c.m, c.n, c.k))
    streamed = not p.b and not fits(p.k * t.columns * p.itemsize, 1, target) and (
        p.m <= t.rows or (p.m <= FEW_ROWS and not fits(2 * p.k * p.n * p.itemsize, 2, target)))
    block_k = ROW_K if streamed else part(p.k, MAX_K, t.width) if p.a or p.b else p.k
    unit_m, unit_n = units(p, t, block_k, target)
    near = fits(2 * block_k * unit_n * p.itemsize, 1, target)
    rows_outside = near or (bool(p.a or p.b) and not p.a_is_strided)
    steps: list[Step] = []
    single = [v.name for v in nest.domain if v.hi == 0]
    order = [*single, *(v.name for v in (*c.batch, *c.m[:-1], *c.n[:-1]))]

    def split(loop: str, outer: str, inner: str, size: int, edge: str, whole: int) -> str:
        """A block of a loop; the loop that is left inside it."""
        if size >= whole:
            return loop
        steps.append(Split(loop, outer, inner, size, edge))
        order.append(outer)
        return inner

    mm = split(m, "um", "mm", unit_m, "short", p.m)
    nn = split(n, "un", "nn", unit_n, "short", p.n)
    if not order:
        steps.append(Split(n, "un", "nn", unit_n, "short"))
        order, nn = ["un"], "nn"
    parallel = tuple(order)
    blocks = tuple([s.inner for s in steps if isinstance(s, Split)])
    if blocks and block_k == p.k and shares_copies(target) and not gains_from_sizes(p):
        steps.insert(0, Sizes(blocks))
    kk = split(k, "kb", "kk", block_k, "short", p.k)
    at, kept = order[-1], kk != k
    tiled = [Split(nn, "j", "jj", t.columns, "back"), Split("jj", "v", "l", t.width)]
    copies, inner = ["v"], ["j"]
    if p.m > 1:
        tiled.insert(0, Split(mm, "i", "u", t.rows, "back"))
        copies.insert(0, "u")
        inner.insert(0 if rows_outside else 1, "i")
    tiled.append(Split(kk, "k", "t", 2, "rest" if p.k % 2 else "exact"))
    steps += [*tiled, Bind("parallel", parallel), Bind("vector", ("l",)), Bind("unroll", ("t", *copies)),
              Order((*order, *inner, "l", *(v.name for r in reductions(nest) for v in r.over if v.hi == 0), "k", "t",
                     *copies))]
    if p.b:
        where, panel = (at, ("j",)) if rows_outside else ("j", ())
        steps.append(Stage(c.buffers[1], where, (*panel, kk, "v", "l"), *_transposed(p.b, kk)))
    if p.a:
        steps.append(Stage(c.buffers[0], "i", (kk, "u"), *_transposed(p.a, kk)))
    return Plan("panels", (*steps, *ahead(p, t, kept, inner, target)))


def gains_from_sizes(p: Product) -> bool:
    """True where addresses that are known count: in short sums, small products, and where rows of B are pages apart."""
    outer = len(p.c.batch) + len(p.c.m) + len(p.c.n) > 2
    small = not outer and p.m > LOW and p.m * p.n * p.k < LARGE_PRODUCT
    return small or (p.k <= SHORT_SUM and p.m * p.n >= LARGE_OUTPUT) or (not p.b and row_bytes(p.c.b, p.c.k) >= PAGE)


def _transposed(how: str, along: str) -> tuple[str, int] | tuple[()]:
    """The options of a copy's step that transpose it, if it is transposed."""
    return (along, TRANSPOSED_STEPS) if how == "transposed" else ()


def ahead(p: Product, t: Tile, kept: bool, inner: list[str], target: Target) -> Iterator[Step]:
    """Prefetches of operands in place and of outputs."""
    c = p.c
    b_bytes, panel = p.k * p.n * p.itemsize, p.k * t.columns * p.itemsize
    if p.m == 1:  # one row is done before what is ahead could arrive
        return
    if is_plain(c.b) and not p.b and (kept or row_bytes(c.b, c.k) >= PAGE or not fits(2 * b_bytes, 2, target)):
        yield Ahead(c.b.buffer, "t", 1, "kb" if kept else "j", not fits(panel, 1, target))
    if p.a_is_strided and is_plain(c.a):
        yield Ahead(c.a.buffer, "t", LINE // c.a.dtype.itemsize, "u")
    elif is_plain(c.a) and not kept and coefficient(c.a.indices[0], c.m[-1]) == p.k:
        yield Ahead(c.a.buffer, "k", 1, "i")
    if not kept and p.k <= SHORT_K:
        beside = [v.buffer for s in c.outputs for v in walk(s.value) if v.op == "load" and v.indices == s.indices]
        for name in dict.fromkeys((*(s.param for s in c.outputs), *beside)):
            yield Ahead(name, inner[-1], 0, inner[-1])


def units(p: Product, t: Tile, block_k: int, target: Target) -> tuple[int, int]:
    """Rows and columns of a unit of work, whole tiles. Their number changes no result."""
    c, itemsize = p.c, p.itemsize
    down, across = ceil(p.m / t.rows), ceil(p.n / t.columns)
    others = prod([extent(v) for v in (*c.batch, *c.m[:-1], *c.n[:-1])])
    wanted = max(1, min(UNITS * target.units, p.m * p.n * p.k * others // UNIT_WORK) // others)
    tall, wide = down, max(1, across // wanted)
    if p.a or p.b:  # panels of B stay in the second-level cache while rows pass by
        wide = max(1, min(wide, room(2, target) // SHARED // (block_k * t.columns * itemsize)))
    if block_k < p.k:  # as do their sums
        tall = max(1, min(tall, room(2, target) // (t.rows * wide * t.columns * itemsize)))
    if target.units > 1:
        tall = min(tall, max(1, down * ceil(across / wide) // wanted))
    strips, parts = ceil(across / wide), ceil(down / tall)
    if strips * parts * others > 1:  # none of the workers waits for the last
        strips = min(across, next(s for s in range(strips, strips + target.units)
                                  if s * parts * others % target.units == 0))
    return ceil(down / parts) * t.rows, ceil(across / strips) * t.columns


def part(k: int, most: int, multiple: int) -> int:
    """Steps of the sum per block: all of them, or equal parts of a multiple; the last one can be transposed."""
    size = ceil(ceil(k / ceil(k / most)) / multiple) * multiple
    return k if k <= most else next(s for s in range(size, 0, -multiple) if not 0 < k % s < TRANSPOSED_STEPS)
