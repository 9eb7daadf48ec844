"""Contractions by work-groups: a tile of the output per group, operands through local memory, registers per work-item.

    plan tiles
      split i0 -> gm mm by 64, guard
      split mm -> tm u by 4, exact                a work-item's rows: neighbours
      split i1 -> gn nn by 64, guard
      split nn -> tn v by 4, exact
      split r0 -> kb k by 16, guard
      bind group gm gn
      bind item tm tn
      bind unroll u v
      order gm gn tm tn kb k u v
      stage p0 at kb as [k][mm], transposed k, by items, double
      stage p1 at kb as [k][nn], by items, double

In a matrix unit waves take the place of work-items: `split mm -> tm mm1 by 32 ; split mm1 -> u i by 16`, likewise j and
kk, and `call mma_f16_opencl at v`. Both operands must be half values as they are: what is computed in float32 on the
way would have to be rounded. Units that round float32 themselves take any; a target has those where the user allows it.

Where the target multiplies words of four bytes, tiles of narrow integers are of such words: the sum is over groups of
four along K, `t0 = sum(r0<16: dot(p0[...4*r0], p1[...4*r0]))`, copies are of words, and all else is the same.

Which tile, and whether K is split, depends on shapes and the target only.
"""
from __future__ import annotations

from collections.abc import Sequence
from math import ceil

from minigrad.codegen.kernel.access import value_accesses
from minigrad.codegen.kernel.nodes import Define, Nest, Param
from minigrad.codegen.machines.machine import machine
from minigrad.codegen.microkernels.matrix import WAVE, MatrixUnit, unit_of
from minigrad.codegen.patterns.recognise import Contraction, recognise
from minigrad.codegen.plan.box import PADDING
from minigrad.codegen.plan.matrix_units import half_type
from minigrad.codegen.plan.steps import Bind, Call, Order, Plan, Split, Stage, Step
from minigrad.codegen.plan.words import narrowed
from minigrad.codegen.policy.group_reduction import as_one
from minigrad.codegen.policy.narrow import in_words
from minigrad.codegen.policy.packed import size
from minigrad.codegen.policy.parts import best_part, in_parts
from minigrad.dtype import float32, int8, int32, uint8, uint32
from minigrad.expr import Var
from minigrad.ops.scalars import dot_bytes
from minigrad.target import BYTE_PRODUCTS, Target
from minigrad.value import Value, binary, cast, reduce

Tile = tuple[int, int, int, int]
"""Rows and columns of a group's tile, work-items or waves down and across."""

TILES: tuple[Tile, ...] = ((128, 128, 16, 16), (128, 64, 16, 16), (64, 64, 16, 16), (32, 64, 8, 16), (32, 32, 8, 8))
IN_UNITS: tuple[Tile, ...] = ((128, 128, 2, 4), (128, 64, 2, 2), (64, 128, 2, 2), (64, 64, 2, 2), (32, 32, 2, 1))
DEPTH, DEPTH_BYTES = 16, 64
"""Steps of K at a time; of a row of local memory for a matrix unit."""

QUAD = 4
"""Neighbouring rows or columns of one work-item: read as a vector from local memory, written as one."""

MIN_SIDE, MIN_DEPTH, MIN_WORK = 16, 8, 1 << 16
"""M and N, K, and multiply-adds, from which copies to local memory pay."""

ITEMS_PER_UNIT, MIN_PART = 256, 256
"""K is split into as many parts as still leave no more than so many work-items per compute unit, of so many steps at
least. That is eight waves, whose sums are independent: more of them hide little that these do not, and adding up parts
is a launch."""

Chosen = tuple[Tile, int, MatrixUnit | None]
"""A tile, steps of K at a time, and the unit for it."""


def plan(nest: Nest, target: Target) -> tuple[Nest, Plan] | str:
    """A nest of a product of two operands with its plan, or why there is none."""
    found = recognise(nest)
    if isinstance(found, str):
        return found
    chosen, staged = choose(found, target), found.buffers
    if isinstance(chosen, str) or not all(staged):
        return chosen if isinstance(chosen, str) else "not in tiles: an operand is read for both sides, or nowhere"
    fast = [lies_along(value, vs, found.k) for value, vs in ((found.a, found.m), (found.b, found.n))]
    signed = None if chosen[2] else signs(found, target)
    product = binary("mul", found.a, found.b)
    if signed is not None:
        found = in_words(found, "i8x4")
        product = cast(dot_bytes(cast(found.a, int32), cast(found.b, int32), dtype=int32, signed=signed), found.total)
    return as_sum(nest, found, product), steps_of(found, *chosen, staged, fast, target)


def choose(c: Contraction, target: Target) -> Chosen | str:
    """The best tile, or why there is none."""
    if not target.has_groups:
        return f"not in tiles: no work-groups with local memory on {target.name}"
    m, n, k = (size(vs) for vs in (c.m, c.n, c.k))
    if min(m, n) < MIN_SIDE or k < MIN_DEPTH or m * n * k < MIN_WORK:
        return f"not in tiles: M={m} N={n} K={k} is too small"
    if any(not isinstance(v.hi, int) for vs in (c.m, c.n, c.k) for v in vs[1:]):
        return "not in tiles: an inner extent is known at run time only"
    if target.max_iterations and ceil(k / DEPTH) * (DEPTH + 1) > target.max_iterations:
        return f"not in tiles: K={k} takes more iterations than a work-item has"
    unit = unit_for(c, target)
    if unit is not None:
        depth = DEPTH_BYTES // unit.stored.itemsize
        tiles = [t for t in IN_UNITS if t[0] % (t[2] * unit.rows) == t[1] % (t[3] * unit.columns) == 0
                 and fits(t, depth, unit, c, target)]
        if tiles:
            return min(tiles, key=lambda t: cost(t, c, target)), depth, unit
    tiles = [t for t in TILES if fits(t, DEPTH, None, c, target)]
    return min(tiles, key=lambda t: cost(t, c, target)), DEPTH, None


def unit_for(c: Contraction, target: Target) -> MatrixUnit | None:
    """The target's unit for the operands of a contraction."""
    dtype, other = half_type(c.a), half_type(c.b)
    unit = unit_of(dtype, target) if dtype is not None and dtype is other else None
    unit = unit or (unit_of(float32, target) if c.a.dtype is c.b.dtype is float32 else None)
    return unit if unit is not None and c.total is float32 and size(c.k) >= unit.depth else None


def signs(c: Contraction, target: Target) -> tuple[bool, bool] | None:
    """For each operand True where its bytes are signed, if the target multiplies words of them; else None."""
    operands = narrowed(c.a), narrowed(c.b)
    dtypes = [v.dtype for v in operands if v is not None and v.dtype in (int8, uint8)]
    if c.total not in (int32, uint32) or len(dtypes) < 2 or not any(isinstance(v.hi, int) for v in c.k):
        return None
    a, b = [dtype is int8 for dtype in dtypes]
    return (a, b) if BYTE_PRODUCTS[a, b] in target.features else None


def fits(tile: Tile, depth: int, unit: MatrixUnit | None, c: Contraction, target: Target) -> bool:
    """True where a group has so many work-items, and room for a block of both operands."""
    m, n, down, across = tile
    if unit is not None:
        local, wave = (m + n) * (depth * unit.stored.itemsize + PADDING), WAVE
    else:
        local, wave = depth * ((m + n) * max(c.a.dtype.bits, 32) // 8 + 2 * PADDING), 1
    return local <= target.local_memory and down * across * wave <= target.max_group


def groups(tile: Tile, c: Contraction) -> int:
    """The number of tiles of a contraction."""
    return ceil(size(c.m) / tile[0]) * ceil(size(c.n) / tile[1]) * size(c.batch)


def cost(tile: Tile, c: Contraction, target: Target) -> float:
    """Multiply-adds and copies of all tiles, edges included, and compute units that wait for the last group."""
    count, (m, n, *_) = groups(tile, c), tile
    waiting = ceil(count / target.units) * target.units / count
    return count * m * n * (1 + machine(target).costs.local_copy * (1 / m + 1 / n)) * waiting


def split_tiles(nest: Nest, scratch: list[Param], target: Target) -> list[Nest]:
    """A contraction with too few tiles for the device, in parts along K; else the nest itself. See `split_k`."""
    found = recognise(nest)
    chosen = found if isinstance(found, str) else choose(found, target)
    if isinstance(found, str) or isinstance(chosen, str) or any(not isinstance(v.hi, int) for v in nest.domain):
        return [nest]
    tile, _, unit = chosen
    there = groups(tile, found) * tile[2] * tile[3] * (1 if unit is None else WAVE)
    count, v = best_part(found.k, min(ITEMS_PER_UNIT * target.units // there, size(found.k) // MIN_PART))
    return [nest] if v is None else in_parts(nest, scratch, found.name, count, v)


# ---- steps ----


def steps_of(c: Contraction, tile: Tile, depth: int, unit: MatrixUnit | None, staged: tuple[str, str],
             fast: Sequence[bool], target: Target) -> Plan:
    """The steps of a tile. `fast`: whether each operand is contiguous along the sum."""
    (m, n, down, across), steps = tile, list[Step]()
    row, column, k = (as_one(vs, steps) for vs in (c.m, c.n, c.k))
    steps += [Split(row, "gm", "mm", m, "guard"), Split(column, "gn", "nn", n, "guard"),
              Split(k, "kb", "k", depth, "guard")]
    if unit is None:
        own = [*cut("mm", m, steps, ub=down * QUAD, tm=QUAD, u=1), *cut("nn", n, steps, vb=across * QUAD, tn=QUAD, v=1)]
        terms, inside = ["k"], []
    else:
        *own, i = cut("mm", m, steps, tm=m // down, u=unit.rows, i=1)
        *more, j = cut("nn", n, steps, tn=n // across, v=unit.columns, j=1)
        *terms, kk = cut("k", depth, steps, ks=unit.depth, kk=1)
        own, inside = [*own, *more], [i, j, kk]
    items, copies = ([x for x in own if (x in ("tm", "tn")) is some] for some in (True, False))
    outer = [*[v.name for v in c.batch], "gm", "gn"]
    order = [*outer, *items, "kb", *terms, *copies, *inside]
    kinds = {"group": outer, "item": items, "unroll": copies}
    steps += [*[Bind(kind, tuple(loops)) for kind, loops in kinds.items() if loops], Order(tuple(order))]
    for name, side, along in zip(staged, ("mm", "nn"), fast, strict=True):
        layout = ("k", side) if unit is None else (side, "k")
        first = "k" if along else side
        steps.append(Stage(name, "kb", layout, "" if first == layout[1] else first, items=True, double=True))
    if unit is not None:
        steps.append(Call(f"{unit.name}_{target.language}", order[-4]))
    return Plan("tiles" if unit is None else "matrix", tuple(steps))


def cut(loop: str, total: int, steps: list[Step], **apart: int) -> list[str]:
    """Splits a loop into some whose iterations are so far apart; those that would run once are left out."""
    kept = [x for x, around in zip(apart, (total, *apart.values()), strict=False) if around > apart[x]]
    names = [loop]
    for k, x in enumerate(kept[:-1]):
        rest = f"{loop}{k + 1}" if k + 2 < len(kept) else kept[-1]
        steps.append(Split(names.pop(), x, rest, apart[x]))
        names += [x, rest]
    return names


def lies_along(value: Value, side: tuple[Var, ...], k: tuple[Var, ...]) -> bool:
    """True where an operand is contiguous along the sum, and not along its own side."""
    steps = ((a.step(side[-1]), a.step(k[-1])) for a in value_accesses(value, ()))
    return next((own != 1 for own, along in steps if 1 in (own, along)), False)


def as_sum(nest: Nest, c: Contraction, term: Value) -> Nest:
    """The nest as a sum of `term`; itself where it is that already."""
    total = next(s for s in nest.body if isinstance(s, Define) and s.name == c.name)
    domain = tuple([v for v in nest.domain if v.hi != 0])
    if domain == nest.domain and total.value.op == "reduce" and set(total.value.over) == set(c.k) and \
            total.value.args[0] in (term, binary("mul", c.b, c.a)):
        return nest
    return Nest(domain, (Define(c.name, reduce("sum", c.k, term)), *c.outputs))
