"""The steps of a packed contraction: blocks for workers, copies of operands, a register tile, results through memory.

    split i1 -> i1b i1p by 28                         a block of rows of the image
    split r0 -> r0b r0p by 16, short                  a block of the sum
    fuse i1p i2 -> c by 58                            columns, those between rows for nobody
    split i0 -> i u by 13, guard
    split c -> j jj by 32, guard
    split jj -> v l by 16
    order i1b r0b j i l r0p r1 r2 u v
    stage p0 at r0b as [r0p][i1p+r1][i2+r2]
    results at i1b as [i0][c]
"""
from __future__ import annotations

from collections.abc import Sequence

from minigrad.codegen.kernel.access import extent
from minigrad.codegen.kernel.nodes import Define, Nest
from minigrad.codegen.microkernels.tile import KINDS
from minigrad.codegen.patterns.recognise import Contraction
from minigrad.codegen.plan.steps import Bind, Call, Fuse, Order, Plan, Results, Split, Stage, Step
from minigrad.codegen.policy.blocking import Blocks, Box, transposes_in_registers
from minigrad.codegen.policy.narrow import filled_up, in_words
from minigrad.codegen.policy.packed_swapped import along_rows
from minigrad.codegen.policy.window_axes import Axis, axes_of, axes_of_a, swapped
from minigrad.expr import Var
from minigrad.value import Value, binary, reduce

PATTERN = "packed"


def as_product(nest: Nest, c: Contraction) -> Nest:
    """A contraction with its sum as the product of two operands, each of which a plan may copy as a whole."""
    total = next(s for s in nest.body if isinstance(s, Define) and s.name == c.name)
    known = {v.name: v for v in c.k}
    over = tuple([known.get(v.name, v) for v in total.value.over])
    whole = reduce("sum", over, binary("mul", c.a, c.b))
    return nest if total.value is whole else Nest(nest.domain, (Define(c.name, whole), *c.outputs))


def packed_steps(nest: Nest, c: Contraction, p: Blocks) -> tuple[Nest, Plan]:
    """The nest as the product of two operands, and the plan of a choice."""
    nest = as_product(nest, filled_up(c, p.words) if p.words else c)
    return nest, _Steps(nest, swapped(c) if p.swapped else in_words(c, p.words) if p.words else c, p).plan()


MAX_UNROLLED = 256
"""Multiply-adds written out per step of the loops over a sum."""


class _Steps:
    """Steps so far. `piece`: what is inside a block of each variable; `words`: the variable whose neighbours they are
    of, `within`: the loop over those of one."""

    def __init__(self, nest: Nest, c: Contraction, p: Blocks):
        self.c, self.p = c, p
        self.steps: list[Step] = []
        self.piece: dict[str, str] = {}
        self.unrolled: list[str] = []
        self.count: dict[str, int] = {}
        grouped = {v.name for v in (*c.batch, *c.m, *c.n, *c.k)}
        over = next(s.value.over for s in nest.body
                    if isinstance(s, Define) and s.value.op == "reduce")
        self.parallel = [v.name for v in nest.domain if v.name not in grouped]
        self.blocks = [v.name for v in over if v.name not in grouped]
        self.words = next((v.name for v in c.k if v not in over), "")
        self.within = [f"{self.words}t"] if p.words else []
        if p.words:
            self.steps.append(Split(self.words, f"{self.words}w", f"{self.words}t", KINDS[p.words][2]))

    def plan(self) -> Plan:
        c, p = self.c, self.p
        self.parallel += [v.name for v in c.batch]
        n = self.cut(c.n, p.n, self.parallel, len(p.n) > 1)
        m = self.cut(c.m, p.m, self.parallel, len(p.m) > 1)
        k = self.cut(c.k, p.k, self.blocks)
        if not self.parallel:
            m[0] = self.piece[c.m[0].name] = self.split(m[0], extent(c.m[0]))
            self.parallel.append(f"{c.m[0].name}b")
        at = [*self.parallel, *self.blocks][-1]
        around, steps, copies = self.swapped_tile(m, n, k, at) if p.swapped else self.tile(m, n, k, at)
        loops = Order((*self.parallel, *self.blocks, *around, "l", *steps, *self.unrolled))
        binds = [("parallel", self.parallel), ("vector", ["l"]), ("unroll", self.unrolled)]
        return Plan(PATTERN, (*self.steps, *(Bind(kind, tuple(xs)) for kind, xs in binds if xs), loops, *copies))

    def cut(self, vs: tuple[Var, ...], parts: Box, outer: list[str], exact: bool = False) -> list[str]:
        """The loops inside blocks of some variables; those over blocks are added to `outer`."""
        inside = []
        for v, (name, part) in zip(vs, parts, strict=True):
            name = f"{name}w" if name == self.words else name
            if part == 1:
                outer.append(name)
                continue
            if not isinstance(v.hi, int) or part < extent(v):
                edge = "short"
                if exact and isinstance(v.hi, int):
                    part, edge = -(-extent(v) // -(-extent(v) // part)), "back"
                outer.append(f"{name}b")
                name = self.split(name, part, "exact" if isinstance(v.hi, int) and extent(v) % part == 0 else edge)
            inside.append(name)
            self.piece[v.name], self.count[name] = name, part
        return inside

    def split(self, name: str, part: int, edge: str = "exact") -> str:
        self.steps.append(Split(name, f"{name}b", f"{name}p", part, edge))
        self.count[f"{name}p"] = part
        return f"{name}p"

    def fuse(self, names: list[str], stem: str, pitches: dict[str, int] | None = None) -> str:
        """One loop over some, which are rows of these lengths."""
        *others, name = names
        for k, outer in enumerate(reversed(others)):
            whole = stem if k == len(others) - 1 else f"{stem}{k}"
            pitch = (pitches or {}).get(name, 0)
            self.steps.append(Fuse(outer, name, whole, pitch))
            self.count[whole] = (pitch or self.count[name]) * (self.count[outer] - 1) + self.count[name]
            if pitches and name in pitches:
                pitches[whole] = pitches[name] * pitches[outer]
            name = whole
        return name

    @property
    def short(self) -> list[str]:
        """Loops whose last run is shorter."""
        return [s.inner for s in self.steps if isinstance(s, Split) and s.edge == "short"]

    def beside(self, names: list[str], stem: str) -> list[str]:
        """One loop over some, after those that can be a part of no other."""
        short, whole = ([x for x in names if (x in self.short) == some] for some in (True, False))
        return [*short, *([self.fuse(whole, stem)] if whole else [])]

    def lanes(self, name: str) -> None:
        """Tiles of vectors."""
        p = self.p
        if p.vectors == 1:
            self.steps.append(Split(name, "j", "l", p.width, "guard"))
            return
        self.steps += [Split(name, "j", "jj", p.vectors * p.width, "guard"), Split("jj", "v", "l", p.width)]
        self.unrolled.append("v")

    def tile(self, m: list[str], n: list[str], k: list[str], at: str
             ) -> tuple[list[str], list[str], list[Step]]:
        """Rows of M, lanes along N."""
        c, p = self.c, self.p
        axes = axes_of(c) if p.windows else ()
        (*groups, row), steps = self.beside(m, "m"), [*k]
        inside = [self.piece[a.x.name] for a in axes if a.x.name in self.piece]
        images, coordinates = [x for x in n if x not in inside], [*n]
        if axes:
            column, boxes = self.windows(axes, inside)
            taps = [a.tap.name for a in axes if a.tap is not None and a.x.name in self.piece]
            coordinates = [*images, *[x for x in k if x not in taps], *boxes]
            left = MAX_UNROLLED // (p.rows * p.vectors)
            for x in reversed(k):
                left = 0 if x in self.short else left // self.count[x]
                if left:
                    self.unrolled.insert(0, x)
            k = [x for x in k if x not in self.unrolled]
        else:
            (*images, column), k = self.beside(n, "c"), self.beside(k, "k")
            coordinates = [*images, *k, column]
        self.steps.append(Split(row, "i", "u", p.rows, "guard"))
        self.unrolled.append("u")
        self.lanes(column)
        copies: list[Step] = [Stage(c.buffers[1], at, (*coordinates, *self.within),
                                    *self.transposed(c.b, c.k, coordinates, p.b_lanes))]
        if p.a_along:
            whole = steps if axes else k
            layout = (*groups, row, *whole) if p.a_along == "k" else (*groups, *whole, row)
            across = self.transposed(c.a, c.m, layout, p.a_lanes) if p.a_along == "k" else ("", 1)
            copies.insert(0, Stage(c.buffers[0], at, (*layout, *self.within), *across))
        copies.append(Results(self.parallel[-1], (*groups, *images, row, column)))
        if p.microkernel:
            copies.append(Call(p.microkernel, "i"))
        return [*groups, *images, "j", "i"], [*k, *self.within], copies

    def windows(self, axes: tuple[Axis, ...], inside: list[str]) -> tuple[str, list[str]]:
        """The columns of boxes, and the coordinates of a box."""
        planes, rows, pitches = list[str](), list[str](), dict[str, int]()
        for a in axes:
            x = self.piece.get(a.x.name)
            if x is None:
                continue
            tap = "" if a.tap is None else a.tap.name
            if tap and a.stride > 1:
                planes.append(f"{tap}%{a.stride}")
                tap = f"{tap}//{a.stride}"
            pitches[x] = self.count[x] + a.reach
            rows.append(term(x, a.dilation, tap) if tap else x)
        return self.fuse(inside, "c", pitches), [*planes, *rows]

    def swapped_tile(self, m: list[str], n: list[str], k: list[str], at: str
                    ) -> tuple[list[str], list[str], list[Step]]:
        """Rows are taps, lanes along what was M."""
        c, p = self.c, self.p
        column = self.fuse(n, "c") if len(n) > 1 else n[0]
        down: list[str] = []
        rows: list[str] = []
        left = p.rows
        for x in reversed(m):
            here = min(self.count[x], left)
            if here == self.count[x]:
                rows.insert(0, x)
            elif here > 1:
                self.steps.append(Split(x, f"{x}i", f"{x}u", here))
                down.insert(0, f"{x}i")
                rows.insert(0, f"{x}u")
            else:
                down.insert(0, x)
            left //= here
        self.unrolled += rows
        self.lanes(column)
        axes = axes_of_a(c)
        inner = [self.piece[a.x.name] for a in axes if a.x.name in self.piece]
        boxes, taps = list[str](), set[str]()
        for a in axes:
            if a.x.name in self.piece:
                x, tap = self.piece[a.x.name], "" if a.tap is None else self.piece.get(a.tap.name, "")
                stride = f"{a.stride}*" if a.stride > 1 else ""
                boxes.append(stride + term(x, a.dilation, tap) if tap else x)
                taps.add(tap)
        image = [x for x in k if x not in inner] + [x for x in m if x not in taps]
        copies: list[Step] = [Stage(c.buffers[0], at, (*image, *boxes)),
                              Stage(c.buffers[1], at, (*k, column), *self.transposed(c.b, c.k, k, p.b_lanes))]
        transposed = (m[-1], p.width) if m and along_rows(c, c.m[-1]) else ("", 1)
        copies.append(Results(self.parallel[-1], (*m, column), *transposed))
        return ["j", *down], k, copies

    def transposed(self, value: Value, rows: tuple[Var, ...], coordinates: Sequence[str], lanes: int
                   ) -> tuple[str, int]:
        """The loop along which a copy is transposed in registers, and by how many steps: where its operand is
        contiguous along the sum, in a coordinate of its own."""
        last = next((self.piece[v.name] for v in reversed(rows) if v.name in self.piece), "")
        for s in self.steps:
            if isinstance(s, Fuse) and last in (s.outer, s.inner):
                last = s.loop
        across = last in coordinates and lanes < self.p.width
        return (last, self.p.width) if across and (self.p.words or transposes_in_registers(value, rows)) else ("", 1)


def term(x: str, factor: int, tap: str) -> str:
    """The coordinate x + factor * tap."""
    sign, size = "-" if factor < 0 else "+", abs(factor)
    return f"{x}{sign}{f'{size}*' if size > 1 else ''}{tap}"
