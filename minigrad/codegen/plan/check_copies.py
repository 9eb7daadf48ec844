"""Makes sure that memory laid out by coordinates holds what is read of it: copies of operands, and results.

A copy is written by loops of its own and read by those of the sum, and what connects them is the place of an element,
which both compute. Here the statements that write are run for a few blocks of the loops outside them, with numbers for
what is loaded that differ from place to place. Then a sample of what the sum reads is looked up: each element must have
been written, and be the one that the sum means. It is part of `config.verify`.
"""
from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial, reduce
from typing import Any
from zlib import crc32

import numpy as np

from minigrad.codegen.ir.nodes import If, Loop, Stmt, Store
from minigrad.codegen.kernel.nodes import Kernel, Nest
from minigrad.codegen.kernel.value_eval import index_value, operate
from minigrad.codegen.plan.box import Box
from minigrad.codegen.plan.build import with_microkernels
from minigrad.codegen.plan.context import Context
from minigrad.codegen.plan.coordinates import Laid
from minigrad.codegen.plan.copies import copied_value, fill
from minigrad.codegen.plan.groups import ItemsCopy
from minigrad.codegen.plan.position import Position
from minigrad.codegen.plan.results import over_results
from minigrad.codegen.plan.stage import Staged
from minigrad.codegen.plan.steps import Plan, resolve
from minigrad.dtype import float64
from minigrad.errors import InternalError
from minigrad.expr import Atom, Index, Var, bounds, emin, subs
from minigrad.value import Value, ValueIndex, expressions, load, substitute, walk

POINTS = 4096
"""Reads that are looked up in each block: enough to meet a column among hundreds many times."""

Array = np.ndarray[Any, Any]


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
        _Check(ctx, s.step, s.box, s.filled, s.once).run(partial(_fill, ctx, s), partial(_meant, ctx, s))
    if ctx.gathered is not None:
        g = ctx.gathered

        def element(here: Position) -> Value:
            return load("", tuple([here.at[v] for v in ctx.nest.domain]), float64)

        _Check(ctx, g.step, g.box, g.step.at, ()).run(lambda here: over_results(
            ctx, g, here, lambda at, _, there: [Store("", g.box.at(at), element(at), there)]), element)


def _fill(ctx: Context, s: Staged, here: Position) -> list[Stmt]:
    """The statements that make a copy."""
    if ctx.items is None or not s.step.items:
        return fill(ctx, s, here)
    copy = ItemsCopy(ctx, ctx.items, replace(s, step=replace(s.step, double=False)))
    return [Loop(ctx.items.var, 0, ctx.items.count, "serial", (copy.deposit(here),))]


def _meant(ctx: Context, s: Staged, here: Position) -> Value:
    """The value that a sum means by an element of a copy."""
    return copied_value(ctx, s, here) if s.called is not None else substitute(s.factor, here.at)


class _Check:
    """The memory of a step, which is written in each iteration of `filled`, of the loops `once` in the first one."""

    def __init__(self, ctx: Context, step: Laid, box: Box, filled: str, once: Sequence[str]):
        self.ctx, self.step, self.box, self.once = ctx, step, box, once
        loops = ctx.loops
        wave = () if ctx.wave is None else (ctx.wave.lane, ctx.wave.each)
        names = [x for x in loops.order if x not in wave]
        outer = loops.order[:loops.order.index(filled) + 1]
        self.outer = [x for x in names if x in outer and loops.kind[x] != "item"]
        self.inner = [x for x in names if x not in self.outer or x in once]
        self.random = np.random.default_rng(0)

    def run(self, fill: Callable[[Position], list[Stmt]], meant: Callable[[Position], Value]) -> None:
        """Checks a few blocks by the statements that fill the memory and the value that is meant at a place."""
        for choose in (lambda n: 0, lambda n: n - 1, lambda n: int(self.random.integers(n))):
            places = self.block(choose)
            if places is not None:
                self.look_up(places, self.written(fill, places), meant)

    def block(self, choose: Callable[[int], int]) -> dict[str, int] | None:
        """Iterations of the loops outside; None where one has none."""
        places: dict[str, int] = {}
        for x in self.outer:
            n = self.ctx.loops.count(x, self.ctx.located(Position(places)))
            if not isinstance(n, int) or n < 1:
                return None
            places[x] = choose(n)
        return places

    def written(self, fill: Callable[[Position], list[Stmt]], places: Mapping[str, int]) -> tuple[Array, Array]:
        """The elements of the memory, and which of them there are. Places are variables where statements are made, as
        borders might be others of numbers; open lanes write all together."""
        loops, found, known = self.ctx.loops, np.zeros(self.box.size), np.zeros(self.box.size, bool)
        outside = {x: Var(x, 0, loops.most(x) - 1) for x in places}
        lanes = [(v, loops.most(x)) for x, v in outside.items() if loops.kind[x] == "vector"]
        fixed = {v: np.asarray(places[x]) for x, v in outside.items() if loops.kind[x] != "vector"}
        here = self.ctx.located(Position({**self.ones(), **outside, **dict.fromkeys(self.once, 0)}))
        for store, around, conditions in _stores(fill(here), lanes, []):
            shape = [n for _, n in around]
            at = fixed | {v: np.arange(n).reshape([-1 if v is x else 1 for x, _ in around]) for v, n in around}
            holds = np.broadcast_to(_hold((*conditions, *store.conditions), at), shape)
            offset = np.broadcast_to(_number(store.offset, at), shape)[holds]
            self.inside(offset, "written")
            found[offset] = np.broadcast_to(_evaluated(store.value, at), shape)[holds]
            known[offset] = True
        return found, known

    def ones(self) -> dict[str, int]:
        """Loops that run once."""
        tile = self.ctx.tile
        return self.ctx.loops.ones | ({tile.word: 0} if tile is not None and tile.word else {})

    def look_up(self, places: Mapping[str, int], written: tuple[Array, Array],
                meant: Callable[[Position], Value]) -> None:
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
        expected = np.broadcast_to(_evaluated(meant(here), at), POINTS)[holds]
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


def _differ(found: Array, expected: Array) -> Array:
    """True where numbers differ; NaN is like NaN."""
    return (found != expected) & ~((found != found) & (expected != expected))


def _stores(body: Iterable[Stmt], around: list[tuple[Var, int]], conditions: list[Index]) -> Iterator[
        tuple[Store, list[tuple[Var, int]], list[Index]]]:
    """The stores, each with the variables of the loops around it and their iterations, and the conditions, one of which
    may be that another one does not hold. What has several conditions is all or nothing."""
    for s in body:
        if isinstance(s, Store):
            yield s, around, conditions
        elif isinstance(s, Loop):
            yield from _stores(s.body, [*around, (s.var, bounds(s.stop)[1])], [*conditions, s.stop - 1 - s.var])
        elif isinstance(s, If):
            yield from _stores(s.then, around, [*conditions, *s.conditions])
            yield from _stores(s.otherwise, around, [*conditions, -1 - reduce(emin, s.conditions)])


def _evaluated(root: Value, at: Mapping[Var, Array]) -> Array:
    """A value at places, with numbers for what is loaded that differ from place to place."""
    known: dict[Value, Any] = {}
    with np.errstate(all="ignore"):
        for v in walk(root):
            if v.op in ("load", "local"):
                name, indices = (v.buffer, v.indices) if v.op == "load" else (v.name, ())
                number = _mixed([crc32(name.encode()), *indices], at) >> np.int64(40)
                kind = v.dtype.compute.np
                known[v] = (number % 2 if kind.kind == "b" else number % 100 if kind.kind in "iu" else
                            1 + number % 999 / 1000).astype(kind)
            elif v.op == "index":
                known[v] = np.asarray(_number(v.index, at)).astype(v.dtype.np)
            elif v.op == "guard":
                known[v] = np.where(_hold(v.conditions, at), known[v.args[0]], known[v.args[1]])
            else:
                known[v] = operate(v, [(known[a], None) for a in v.args])[0]
    return np.asarray(known[root], np.float64)


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
