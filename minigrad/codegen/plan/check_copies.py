"""Makes sure that memory laid out by coordinates holds what is read of it: copies of operands, and results.

A copy is written by loops of its own and read by those of the sum, and what connects them is the place of an element,
which both compute. Here the loops that write are run as numbers, for a few blocks of the loops outside them, with what
the operand is read at in place of its values. Then a sample of what the sum reads is looked up: each element must have
been written, and be the one that the sum means. It is part of `config.verify`.
"""
from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from typing import Any
from zlib import crc32

import numpy as np

from minigrad.codegen.ir.nodes import If, Loop, Stmt, Store
from minigrad.codegen.kernel.nodes import Kernel, Nest
from minigrad.codegen.kernel.value_eval import index_value, operate
from minigrad.codegen.plan.border import bordered
from minigrad.codegen.plan.box import Box
from minigrad.codegen.plan.build import with_microkernels
from minigrad.codegen.plan.context import Context
from minigrad.codegen.plan.coordinates import Laid
from minigrad.codegen.plan.copy_loops import copy_loops
from minigrad.codegen.plan.groups import ItemsCopy
from minigrad.codegen.plan.position import Position
from minigrad.codegen.plan.results import over_results
from minigrad.codegen.plan.stage import Staged
from minigrad.codegen.plan.steps import Plan, resolve
from minigrad.dtype import int64
from minigrad.errors import InternalError
from minigrad.expr import Atom, Index, Var, bounds, emin, subs
from minigrad.value import Value, ValueIndex, expressions, index, substitute, walk

POINTS = 4096
"""Reads that are looked up in each block: enough to meet a column among hundreds many times."""

Array = np.ndarray[Any, Any]
Meaning = Callable[[Position], list[Index]]
"""Gives what the element of a place is, as numbers."""


def check_copies(kernel: Kernel, nest: Nest, plan: object) -> None:
    """Raises InternalError naming the step whose memory does not hold what is read of it. Loops whose iterations depend
    on a dim of the kernel are not looked at, nor are plans that are no steps."""
    if not isinstance(plan, Plan):
        return
    ctx = Context(kernel, *with_microkernels(resolve(nest, plan)))
    if not all([isinstance(v.hi, int) for v in ctx.loops.root.values()]) or not all(
            [isinstance(ctx.loops.extent(x), int) for x in ctx.loops.order]):
        return
    for s in ctx.staged:
        check = _Check(ctx, s.step, s.box, s.filled, s.once, _copied(ctx, s))
        if s.apart:
            check.run_rows(s)
        else:
            check.run(lambda here, make, s=s: _fills(ctx, s, here, make))
    if ctx.gathered is not None:
        step = ctx.gathered.step
        _Check(ctx, step, ctx.gathered.box, step.at, (), _element(ctx)).run(
            lambda here, make, g=ctx.gathered: over_results(ctx, g, here, make))


def _copied(ctx: Context, s: Staged) -> Meaning:
    """Gives where the operand of a copy is read at a place, and under which conditions."""
    found = expressions(s.factor)
    word = s.called.word if s.called is not None else ""
    group = range(s.called.tile.group if s.called is not None else 1)

    def meaning(here: Position) -> list[Index]:
        parts = [ctx.located(replace(here, places={**here.places, word: t})) if word else here for t in group]
        return [subs(e, part.at) for part in parts for e in found]
    return meaning


def _element(ctx: Context) -> Meaning:
    """Gives the element of the domain that a sum is of."""
    return lambda here: [here.at[v] for v in ctx.nest.domain]


def _fills(ctx: Context, s: Staged, here: Position, make: Callable[..., list[Stmt]]) -> list[Stmt]:
    """The loops that make a copy."""
    if ctx.items is not None and s.step.items:
        copy = ItemsCopy(ctx, ctx.items, s)
        inner = Loop(ctx.items.var, 0, ctx.items.count, "serial", tuple(make(copy.at(here), (), copy.inside)))
        return [Loop(copy.turn, 0, copy.turns, "serial", (inner,))]
    return copy_loops(ctx, s.box, (s.factor,), here, make, s.step.transposed, s.step.transposed_by)


class _Check:
    """The memory of a step, which is written in each iteration of `filled`, of the loops `once` in the first one."""

    def __init__(self, ctx: Context, step: Laid, box: Box, filled: str, once: Sequence[str], meaning: Meaning):
        self.ctx, self.step, self.box, self.once, self.meaning = ctx, step, box, once, meaning
        loops = ctx.loops
        wave = () if ctx.wave is None else (ctx.wave.lane, ctx.wave.each)
        names = [x for x in loops.order if x not in wave]
        outer = loops.order[:loops.order.index(filled) + 1]
        self.outer = [x for x in names if x in outer and loops.kind[x] != "item"]
        self.inner = [x for x in names if x not in self.outer or x in once]
        self.random = np.random.default_rng(0)

    def run(self, loops: Callable[..., list[Stmt]]) -> None:
        for choose in (lambda n: 0, lambda n: n - 1, lambda n: int(self.random.integers(n))):
            places = self.block(choose)
            if places is not None:
                self.look_up(places, self.written(loops, places))

    def run_rows(self, s: Staged) -> None:
        """Likewise by the statements themselves and the values that they store: what is beside the image is the same
        everywhere."""
        for choose in (lambda n: 0, lambda n: n - 1, lambda n: int(self.random.integers(n))):
            places = self.block(choose)
            if places is not None:
                found, known = np.zeros(self.box.size), np.zeros(self.box.size, bool)
                outside = {x: Var(x, 0, self.ctx.loops.most(x) - 1) for x in places}  # known, borders might be others
                lanes = {x: v for x, v in outside.items() if self.ctx.loops.kind[x] == "vector"}
                here = self.ctx.located(Position({**self.ones(), **outside, **dict.fromkeys(self.once, 0)}))
                opened = [(v, self.ctx.loops.most(x)) for x, v in lanes.items()]
                fixed = {v: np.asarray(places[x]) for x, v in outside.items() if x not in lanes}
                for store, around, conditions in _stores(bordered(self.ctx, s, here) or [], opened, [], fixed):
                    shape = [n for _, n in around]
                    at = fixed | {v: np.arange(n).reshape([-1 if v is x else 1 for x, _ in around]) for v, n in around}
                    holds = np.broadcast_to(_hold((*conditions, *store.conditions), at), shape)
                    offset = np.broadcast_to(_number(store.offset, at), shape)[holds]
                    self.inside(offset, "written")
                    found[offset] = np.broadcast_to(_evaluated(store.value, at), shape)[holds]
                    known[offset] = True
                self.look_up(places, (found, known), s.factor)

    def block(self, choose: Callable[[int], int]) -> dict[str, int] | None:
        """Iterations of the loops outside; None where one has none."""
        places: dict[str, int] = {}
        for x in self.outer:
            n = self.ctx.loops.count(x, self.ctx.located(Position(places)))
            if not isinstance(n, int) or n < 1:
                return None
            places[x] = choose(n)
        return places

    def written(self, loops: Callable[..., list[Stmt]], places: Mapping[str, int]) -> tuple[Array, Array]:
        """A number for what each element of the memory is, and whether it is anything."""
        found, known = np.zeros(self.box.size, np.int64), np.zeros(self.box.size, bool)
        here = self.ctx.located(Position({**self.ones(), **places, **dict.fromkeys(self.once, 0)}))
        for stores, around in _in_loops(loops(here, self.stores), []):
            shape = [n for _, n in around]
            at = {v: np.arange(n).reshape([-1 if v is x else 1 for x, _ in around]) for v, n in around}
            holds = np.broadcast_to(_hold(stores[0].conditions, at), shape)
            offset = np.broadcast_to(_number(stores[0].offset, at), shape)[holds]
            self.inside(offset, "written")
            found[offset] = np.broadcast_to(_mixed([_index_of(s.value) for s in stores], at), shape)[holds]
            known[offset] = True
        return found, known

    def stores(self, here: Position, _: tuple[Index, ...], there: tuple[Index, ...]) -> list[Stmt]:
        """Stores for the numbers that say what an element is."""
        offset = self.box.at(here)
        return [Store("", offset, index(e, int64), there) for e in (0, *self.meaning(here))]

    def ones(self) -> dict[str, int]:
        """Loops that run once."""
        tile = self.ctx.tile
        return self.ctx.loops.ones | ({tile.word: 0} if tile is not None and tile.word else {})

    def look_up(self, places: Mapping[str, int], written: tuple[Array, Array], value: Value | None = None) -> None:
        loops, ctx = self.ctx.loops, self.ctx
        if not all([loops.most(x) for x in self.inner]):
            return  # nothing is read
        inner = {x: Var(x, 0, loops.most(x) - 1) for x in self.inner}
        here = ctx.located(Position({**places, **inner}))
        at = {v: self.sample(loops.most(x)) for x, v in inner.items()}
        conditions = [v.hi - here.at[v] for v in loops.variables if v in here.at]
        conditions += [loops.count(x, here) - 1 - here.places[x] for x in inner]
        conditions += [loops.count(s.loop, here) - 1 - loops.inside_block(s.loop, here)
                       for s in loops.split.values() if s.edge in ("guard", "rest")]
        conditions += [subs(e, here.at) for e in loops.valid]
        holds = np.broadcast_to(_hold(conditions, at), POINTS)
        offset = np.broadcast_to(_number(self.box.at(here), at), POINTS)[holds]
        self.inside(offset, "read")
        meant = _mixed([0, *self.meaning(here)], at) if value is None else _evaluated(substitute(value, here.at), at)
        expected = np.broadcast_to(meant, POINTS)[holds]
        found, known = written
        others = _differ(found[offset], expected)
        for wrong, what in ((~known[offset], "never written"), (others, "written as another one")):
            if wrong.any():
                raise InternalError(f"[verify] {self.step}: of {offset.size} that are read {wrong.sum()} are "
                                    f"{what}, among them that at {offset[wrong][0]} of {self.box.size}")

    def sample(self, n: int) -> Array:
        """Iterations of a loop: any, and the first and the last one more often."""
        ends = self.random.integers(2, size=POINTS) * (n - 1)
        found: Array = np.where(self.random.random(POINTS) < 0.2, ends, self.random.integers(n, size=POINTS))
        return found

    def inside(self, offset: Array, done: str) -> None:
        if offset.size and (offset.min() < 0 or offset.max() >= self.box.size):
            raise InternalError(f"[verify] {self.step}: {offset.min()}..{offset.max()} are "
                                f"{done}, expected less than {self.box.size}")


def _in_loops(body: Iterable[Stmt], around: list[tuple[Var, int]]) -> Iterator[
        tuple[list[Store], list[tuple[Var, int]]]]:
    """The stores of an element, and the variables of the loops around them with their iterations."""
    stores = [s for s in body if isinstance(s, Store)]
    if stores:
        yield stores, around
    for s in body:
        if isinstance(s, Loop) and isinstance(s.stop, int):
            yield from _in_loops(s.body, [*around, (s.var, s.stop)])


def _differ(found: Array, expected: Array) -> Array:
    """True where numbers differ; NaN is like NaN."""
    return (found != expected) & ~((found != found) & (expected != expected))


def _stores(body: Iterable[Stmt], around: list[tuple[Var, int]], conditions: list[Index], fixed: Mapping[Var, Array],
            ) -> Iterator[tuple[Store, list[tuple[Var, int]], list[Index]]]:
    """The stores where what is outside them is fixed, each with the variables of the loops around it and their
    iterations, and the conditions, one of which may be that another one does not hold. What has several conditions is
    all or nothing."""
    for s in body:
        if isinstance(s, Store):
            yield s, around, conditions
        elif isinstance(s, Loop):
            yield from _stores(s.body, [*around, (s.var, int(_number(s.stop, fixed)))], conditions, fixed)
        elif isinstance(s, If):
            yield from _stores(s.then, around, [*conditions, *s.conditions], fixed)
            yield from _stores(s.otherwise, around, [*conditions, -1 - reduce(emin, s.conditions)], fixed)


def _evaluated(root: Value, at: Mapping[Var, Array]) -> Array:
    """A value at places, with numbers for what is loaded that differ from place to place."""
    known: dict[Value, Any] = {}
    with np.errstate(all="ignore"):
        for v in walk(root):
            if v.op in ("load", "local"):
                name, indices = (v.buffer, v.indices) if v.op == "load" else (v.name, ())
                number = _mixed([crc32(name.encode()), *indices], at) >> np.int64(40)
                kind = v.dtype.compute.np
                known[v] = (number % 2 if kind.kind == "b" else number % 8 if kind.kind in "iu" else
                            1 + number % 999 / 1000).astype(kind)
            elif v.op == "index":
                known[v] = np.asarray(_number(v.index, at)).astype(v.dtype.np)
            elif v.op == "guard":
                known[v] = np.where(_hold(v.conditions, at), known[v.args[0]], known[v.args[1]])
            else:
                known[v] = operate(v, [(known[a], None) for a in v.args])[0]
    return np.asarray(known[root], np.float64)


def _index_of(value: Value) -> Index:
    """The index that a value is."""
    return int(value.number) if value.op == "const" else value.index


def _number(e: Index, at: Mapping[Var, Array]) -> Any:
    """An index at places; a dim of the kernel, on which no loop depends, is at its least."""
    def leaf(a: Atom) -> Any:
        if isinstance(a, ValueIndex):
            return _mixed(expressions(a.value), at) % 1009
        return at[a] if isinstance(a, Var) and a in at else bounds(a)[0]
    return index_value(e, leaf)


def _hold(conditions: Iterable[Index], at: Mapping[Var, Array]) -> Any:
    """True where all conditions hold."""
    holds: Any = np.True_
    for e in conditions:
        holds = holds & (_number(e, at) >= 0)
    return holds


def _mixed(numbers: Sequence[Index], at: Mapping[Var, Array]) -> Any:
    """One number for several, another one where any of them differs, but by an unlikely chance."""
    total: Any = np.zeros((), np.int64)
    with np.errstate(over="ignore"):
        for e in numbers:
            total = total * np.int64(0x5851F42D4C957F2D) + _number(e, at)
    return total
