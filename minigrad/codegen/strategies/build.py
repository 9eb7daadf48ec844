"""Nest + Plan -> loop IR. One builder for all strategies: a strategy only decides the Plan.

    for p in 0..tiles parallel:                     tiles of plan.order[:plan.parallel], flattened
      for t in 0..tiles serial:                     tiles of the rest of the order
        if the tile is whole:                       else scalar loops over what is left
          for l in 0..W vector:                     lanes of plan.lanes
            alloc acc[tile * chains] register
            for r ...: for u ... unroll: acc[u] = combine(acc[u], body)
            for u ... unroll: store

A contraction's last tile reaches back over the one before it, where there is a whole one, and stores what is its own.
"""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from minigrad.codegen.ir.nodes import Alloc, Function, If, Let, Loop, Stmt
from minigrad.codegen.ir.nodes import Store as IRStore
from minigrad.codegen.kernel import Define, Kernel, Nest, Store
from minigrad.codegen.monoid import MONOIDS, Monoid
from minigrad.codegen.strategies.build_lanes import lane_sums
from minigrad.codegen.strategies.build_scaled import scaled_sums, stream_ahead
from minigrad.codegen.strategies.launch import function_of
from minigrad.codegen.strategies.plan import Plan
from minigrad.codegen.value_walk import Rewriter
from minigrad.dtype import DType
from minigrad.expr import Index, Var, bounds, emin, product, subs
from minigrad.value import Value, binary, load, local, make, rebuild, substitute, walk


@dataclass(frozen=True, slots=True)
class Point:
    """Where a body is emitted: what each index variable is, the unrolled tile around it, and the lane if any.

    `own`: what holds for the copies and lanes of a tile that are its own, `whole`: what does where all of them are.
    """

    at: dict[Var, Index]
    unrolled: tuple[tuple[Var, int], ...] = ()
    lane: Var | None = None
    own: tuple[Index, ...] = ()
    whole: tuple[Index, ...] = ()

    @property
    def copies(self) -> int:
        return product(f for _, f in self.unrolled)  # type: ignore[return-value]

    @property
    def slot(self) -> Index:
        """The position of this copy in a register buffer of `copies` elements."""
        position: Index = 0
        for v, f in self.unrolled:
            position = position * f + v
        return position


def build(kernel: Kernel, nest: Nest, plan: Plan, name: str) -> Function:
    """The loop nest that `plan` describes for one nest of a flat kernel."""
    return Builder(kernel, nest, plan).function(name)


class Builder:
    def __init__(self, kernel: Kernel, nest: Nest, plan: Plan):
        self.kernel, self.nest, self.plan = kernel, nest, plan
        self.count = 0
        by_name = {v.name: v for v in nest.domain}
        self.order = [by_name[n] for n in plan.order]
        self.names: dict[str, Value] = {}

    def function(self, name: str) -> Function:
        plan = self.plan
        tiles = [ceil_div(v.hi + 1, plan.block(v.name)) for v in self.order]
        total = product(tiles[:plan.parallel])
        p = Var("p", 0, total - 1)
        at: dict[Var, Index] = {}
        after: Index = 1
        decoded: list[Index] = []
        for k in reversed(range(plan.parallel)):
            count = 1 if tiles[k] == 0 else tiles[k]  # an empty domain never runs
            t = p // after
            decoded.insert(0, t % count if k else t)
            after = after * count
        body = self.tiles(plan.parallel, tiles, decoded, at)
        return function_of(self.kernel, name, Loop(p, 0, total, "parallel", tuple(body)))

    def fresh(self, stem: str, hi: Index) -> Var:
        self.count += 1
        return Var(f"{stem}_{self.count}", 0, hi)

    def name(self, stem: str) -> str:
        self.count += 1
        return f"{stem}_{self.count}"

    # ---- tiles of the domain ----

    def tiles(self, k: int, counts: list[Index], chosen: list[Index], at: dict[Var, Index]) -> list[Stmt]:
        """The serial tile loops from the k-th variable of the order on, then the tile itself."""
        if k == len(self.order):
            return self.tile(0, chosen, Point(at))
        t = self.fresh(self.order[k].name, counts[k] - 1)
        inner = self.tiles(k + 1, counts, [*chosen, t], at)
        return [Loop(t, 0, counts[k], "serial", tuple(inner))]

    def tile(self, k: int, chosen: list[Index], point: Point) -> list[Stmt]:
        """Resolves the k-th variable within its tile: whole tiles unrolled and across lanes, the rest one by one."""
        if k == len(self.order):
            return self.body(point)
        v, plan = self.order[k], self.plan
        block, base = plan.block(v.name), chosen[k] * plan.block(v.name)
        if block == 1:
            return self.tile(k + 1, chosen, replace(point, at={**point.at, v: chosen[k]}))
        factor, length = plan.factor(v.name), v.hi + 1
        if v.name == plan.apart and bounds(length)[0] >= block:
            return self.tile(k + 1, chosen, self.apart(v, factor, chosen[k], point))
        whole = isinstance(length, int) and length % block == 0
        reaches_back = not whole and plan.strategy == "contraction" and bounds(length)[0] >= block
        position, unrolled, lane = emin(base, length - block) if reaches_back else base, point.unrolled, point.lane
        if factor > 1:
            u = self.fresh("u", factor - 1)
            unrolled = (*unrolled, (u, factor))
            position = position + u * (block // factor)
        if v.name == plan.lanes:
            lane = self.fresh("l", plan.width - 1)
            position = position + lane
        here = replace(point, at={**point.at, v: position}, unrolled=unrolled, lane=lane)
        if reaches_back:
            here = replace(here, own=(*point.own, position - base), whole=(*point.whole, length - base - block))
        tile = self.tile(k + 1, chosen, here)
        if whole or reaches_back:
            return tile
        x = self.fresh(v.name, v.hi)
        rest = self.tile(k + 1, chosen, replace(point, at={**point.at, v: x}))
        start = length // block * block if isinstance(length, int) else base  # only the last tile is not whole
        tail = Loop(x, start, length, "serial", tuple(rest))
        if bounds(length)[1] < block:
            return [tail]
        return [If((length - base - block,), tuple(tile), (tail,))]

    def apart(self, v: Var, factor: int, chosen: Index, point: Point) -> Point:
        """A tile whose copies each go through a part of `v`, one step per tile. The last part may reach back over the
        one before it, whose elements it does not store."""
        length = v.hi + 1
        tiles = ceil_div(length, factor)
        u = self.fresh("u", factor - 1)
        first = emin(u * tiles, length - tiles)
        here = replace(point, at={**point.at, v: first + chosen}, unrolled=(*point.unrolled, (u, factor)))
        if isinstance(length, int) and length % factor == 0:
            return replace(here, at={**point.at, v: u * tiles + chosen})
        return replace(here, own=(*point.own, first + chosen - u * tiles),
                       whole=(*point.whole, length - factor * tiles + chosen))

    # ---- one tile ----

    def body(self, point: Point) -> list[Stmt]:
        """All statements of the nest at one point (tile, lanes)."""
        statements = self.statements(self.nest.body, point, {})
        if point.lane is None:
            return statements
        return [Loop(point.lane, 0, self.plan.width, "vector", tuple(statements))]

    def statements(self, body: tuple[Define | Store | Nest, ...], point: Point, names: dict[str, Value]) -> list[Stmt]:
        out: list[Stmt] = []
        pending = list(body)
        together = point.copies > 1 or bool(point.whole)
        if together:  # a tile's reductions run for all copies at once, before what follows runs per copy
            pending.sort(key=lambda s: not is_reduction(s))
        while pending and is_reduction(pending[0]) and together:
            names, emitted = self.reduce_together(pending, point, names)
            out += emitted
        if point.whole:
            plain, own = (tuple(self.statements(tuple(pending), replace(point, own=conditions, whole=()), names))
                          for conditions in ((), point.own))
            return [*out, If(point.whole, plain, own)]
        copy: list[Stmt] = []
        while pending:
            s = pending[0]
            if is_reduction(s):
                names, emitted = self.reduce_together(pending, point, names)
                copy += emitted
                continue
            pending.pop(0)
            if isinstance(s, Define):
                value, before = self.value(s.value, point, names)
                let = self.name(s.name)
                copy += [*before, Let(let, value)]
                names = {**names, s.name: local(let, value.dtype)}
            elif isinstance(s, Store):
                copy += self.store(s, point, names)
            else:
                copy += self.row(s, point, names)
        return out + unroll_over(point, copy)

    def value(self, value: Value, point: Point, names: dict[str, Value]) -> tuple[Value, list[Stmt]]:
        """The value at a point; reductions left inside it are computed before, serially."""
        value = Rewriter(point.at, locals_=names).value(value)
        before: list[Stmt] = []
        if value.reduces:
            value = self.inline_reductions(value, before)
        return value, before

    def inline_reductions(self, root: Value, before: list[Stmt]) -> Value:
        """Replaces each innermost reduction by a register that a serial loop in `before` fills."""
        done: dict[Value, Value] = {}
        for v in walk(root):
            if v.op != "reduce":
                done[v] = rebuild(v, tuple(done[a] for a in v.args), v.attr)
                continue
            monoid, over = MONOIDS[v.attr[0]], v.attr[1]  # type: ignore[index]
            inner: list[Stmt] = []
            body = self.inline_reductions(v.args[0], inner)
            acc = self.name("s")
            old = load(acc, (0,), body.dtype)
            nest: list[Stmt] = [*inner, IRStore(acc, 0, monoid.apply(old, body))]
            for r in reversed(over):
                nest = [Loop(r, 0, r.hi + 1, "serial", tuple(nest))]
            before += [Alloc(acc, body.dtype, 1, "register"), IRStore(acc, 0, monoid.init(body.dtype)), *nest]
            result = self.name("t")
            before.append(Let(result, load(acc, (0,), body.dtype)))
            done[v] = local(result, body.dtype)
        return done[root]

    def store(self, s: Store, point: Point, names: dict[str, Value]) -> list[Stmt]:
        value, before = self.value(s.value, point, names)
        offset = Rewriter(point.at, locals_=names).index(s.indices[0])
        if s.combine and s.combine != "set":
            value = MONOIDS[s.combine].apply(load(s.param, (offset,), value.dtype), value)
        return [*before, IRStore(s.param, offset, value, point.own)]

    def row(self, nest: Nest, point: Point, names: dict[str, Value]) -> list[Stmt]:
        """An inner nest: serial loops, the chosen variable across lanes."""
        across_lanes = next((v for v in nest.domain if self.plan.inner_of(v.name)[0] > 1), None)
        if point.lane is not None:
            across_lanes = None
        at = dict(point.at)
        loops: list[tuple[Var, Index]] = []
        for v in nest.domain:
            if v is not across_lanes:
                x = self.fresh(v.name, subs(v.hi, at))
                at[v] = x
                loops.append((x, x.hi + 1))
        if across_lanes is None:
            inner = self.statements(nest.body, Point(at, (), point.lane, point.own), names)
        else:
            v, width = across_lanes, self.plan.inner_of(across_lanes.name)[0]
            length = subs(v.hi, at) + 1
            block = self.fresh(v.name, length // width - 1)
            lane = self.fresh("l", width - 1)
            vector = self.statements(nest.body, Point({**at, v: block * width + lane}, (), lane, point.own),
                                     names)
            inner = [Loop(block, 0, length // width, "serial", (Loop(lane, 0, width, "vector", tuple(vector)),))]
            if not isinstance(length, int) or length % width:
                x = self.fresh(v.name, length - 1)
                rest = self.statements(nest.body, Point({**at, v: x}, (), None, point.own), names)
                inner.append(Loop(x, length // width * width, length, "serial", tuple(rest)))
        for x, stop in reversed(loops):
            inner = [Loop(x, 0, stop, "serial", tuple(inner))]
        return inner

    # ---- reductions ----

    def reduce_together(self, pending: list, point: Point, names: dict[str, Value]
                        ) -> tuple[dict[str, Value], list[Stmt]]:
        """Takes the leading reductions that share extents and need not wait for each other into one loop nest."""
        first = pending.pop(0)
        taken = [first]
        extents = [v.hi for v in first.value.attr[1]]
        while (pending and is_reduction(pending[0]) and [v.hi for v in pending[0].value.attr[1]] == extents
               and not any(v.op == "local" and v.attr in {t.name for t in taken} for v in walk(pending[0].value))):
            taken.append(pending.pop(0))
        over = first.value.attr[1]
        bodies = []
        for d in taken:
            mapping: dict[Var, Index] = dict(zip(d.value.attr[1], over, strict=True))
            bodies.append((MONOIDS[d.value.attr[0]], Rewriter(mapping, locals_=names).value(d.value.args[0])))
        across_lanes = point.lane is None and self.lane_variable(over) is not None
        emitted, results = (lane_sums(self, over, bodies, point) if across_lanes
                            else self.serially(over, bodies, point))
        fresh_names = dict(names)
        for d, (acc, dtype, slot) in zip(taken, results, strict=True):
            value = load(acc, (slot,), dtype)
            if point.copies == 1:
                let = self.name(d.name)
                emitted.append(Let(let, value))
                value = local(let, dtype)
            fresh_names[d.name] = value
        return fresh_names, emitted

    def lane_variable(self, over: tuple[Var, ...]) -> Var | None:
        return next((v for v in over if self.plan.inner_of(v.name)[0] > 1), None)

    def serially(self, over: tuple[Var, ...], bodies: list[tuple[Monoid, Value]], point: Point
                 ) -> tuple[list[Stmt], list[tuple[str, DType, Index]]]:
        """One accumulator per copy and chain; the last variable is split into chains."""
        if self.plan.outer:
            return scaled_sums(self, over, bodies, point)
        last = over[-1]
        chains = self.plan.inner_of(last.name)[1]
        accs = [self.name("acc") for _ in bodies]
        out: list[Stmt] = []
        for acc, (monoid, body) in zip(accs, bodies, strict=True):
            out += self.start(acc, body.dtype, point.copies * chains, monoid)

        def update(mapping: dict[Var, Index], chain: Index) -> list[Stmt]:
            return self.update(accs, bodies, point, mapping, point.slot * chains + chain)

        out += self.loops(over, last, 1, chains, update, stream_ahead(bodies, point, self.plan.ahead))
        for acc, (monoid, body) in zip(accs, bodies, strict=True):
            out += self.join_chains(acc, body.dtype, monoid, point, chains)
        return out, [(a, b.dtype, point.slot * chains) for a, (_, b) in zip(accs, bodies, strict=True)]

    def start(self, acc: str, dtype: DType, size: int, monoid: Monoid) -> list[Stmt]:
        k = self.fresh("k", size - 1)
        return [Alloc(acc, dtype, size, "register"),
                Loop(k, 0, size, "unroll", (IRStore(acc, k, monoid.init(dtype)),))]

    def update(self, accs: list[str], bodies: list[tuple[Monoid, Value]], point: Point, mapping: dict[Var, Index],
               slot: Index) -> list[Stmt]:
        """acc[slot] = combine(acc[slot], body) for every copy of the tile."""
        out: list[Stmt] = []
        for acc, (monoid, body) in zip(accs, bodies, strict=True):
            before: list[Stmt] = []
            value = substitute(body, {**point.at, **mapping})
            if value.reduces:
                value = self.inline_reductions(value, before)
            old = load(acc, (slot,), body.dtype)
            out += [*before, IRStore(acc, slot, accumulate(monoid, old, value))]
        return unroll_over(point, out)

    def join_chains(self, acc: str, dtype: DType, monoid: Monoid, point: Point, chains: int) -> list[Stmt]:
        """Chain 0 of every copy becomes the whole, by a fixed tree."""
        out: list[Stmt] = []
        step = 1
        while step < chains:
            for c in range(0, chains - step, 2 * step):
                at = point.slot * chains + c
                joined = monoid.apply(load(acc, (at,), dtype), load(acc, (at + step,), dtype))
                out.append(IRStore(acc, at, joined))
            step *= 2
        return unroll_over(point, out) if out else []

    def loops(self, over: tuple[Var, ...], last: Var, width: int, chains: int,
              update: Callable[[dict[Var, Index], Index], list[Stmt]],
              before: Callable[[dict[Var, Index]], list[Stmt]] | None = None) -> list[Stmt]:
        """Serial loops over `over`; `last` in whole blocks of `width`, `chains` of them at a time, with what stands
        `before` those."""
        outer = [v for v in over if v is not last]
        at: dict[Var, Index] = {v: self.fresh(v.name, v.hi) for v in outer}
        blocks = (last.hi + 1) // width
        whole = blocks // chains
        inner: list[Stmt] = []
        kind = "unroll" if last.name in self.plan.unroll else "serial"
        if whole != 0:
            c = self.fresh("c", chains - 1)
            x = self.fresh(last.name, whole - 1)
            if chains > 1:
                body: list[Stmt] = [Loop(c, 0, chains, "unroll", tuple(update({**at, last: x * chains + c}, c)))]
            else:
                body = update({**at, last: x}, 0)
            if before is not None:
                body = [*before({**at, last: x * chains}), *body]
            inner.append(Loop(x, 0, whole, kind, tuple(body)))
        if chains > 1 and (not isinstance(blocks, int) or blocks % chains):
            x = self.fresh(last.name, blocks - 1)
            inner.append(Loop(x, whole * chains, blocks, "serial", tuple(update({**at, last: x}, 0))))
        for v in reversed(outer):
            x = at[v]  # type: ignore[assignment]
            inner = [Loop(x, 0, v.hi + 1, "unroll" if v.name in self.plan.unroll else "serial", tuple(inner))]
        return inner


def is_reduction(s: Define | Store | Nest) -> bool:
    return isinstance(s, Define) and s.value.op == "reduce"


def accumulate(monoid: Monoid, old: Value, value: Value) -> Value:
    """combine(old, value); a float product added to a sum is one fused multiply-add."""
    if monoid.name == "sum" and value.op == "mul" and value.dtype.is_float:
        return make("fma", value.dtype, (value.args[0], value.args[1], old))
    return monoid.apply(old, value)


def accumulate_product(monoid: Monoid, old: Value, x: Value, y: Value) -> Value:
    """`accumulate` of x * y."""
    if monoid.name == "sum" and x.dtype.is_float:
        return make("fma", x.dtype, (x, y, old))
    return monoid.apply(old, binary("mul", x, y))


def unroll_over(point: Point, body: list[Stmt]) -> list[Stmt]:
    """The statements once per copy of the tile."""
    for u, factor in reversed(point.unrolled):
        body = [Loop(u, 0, factor, "unroll", tuple(body))]
    return body


def ceil_div(a: Index, b: int) -> Index:
    return a if b == 1 else (a + (b - 1)) // b
