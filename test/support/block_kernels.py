"""Kernels that are blocks: causal attention by hand, and random ones."""
from __future__ import annotations

import random

from minigrad.codegen.kernel.nodes import Block, Define, Kernel, Nest, Param, Steps, Store
from minigrad.dtype import float32, int32
from minigrad.expr import Index, Var, emin
from minigrad.value import Value, binary, cast, const, guard, index, load, local, reduce, unary

HEADS, LENGTH, DEPTH, ROWS, KEYS = 2, 24, 5, 8, 16

ATTENTION = """\
kernel attention(p0: f32[240], p1: f32[240], p2: f32[240], out o0: f32[240])
  block i0<2, bi<3:
    local s: f32[128], mixed: f32[40], top: f32[8], total: f32[8], shrink: f32[8]
    for row<8:
      top[row] = -inf
      total[row] = 0.0
    for column<5, row<8:
      mixed[8*column+row] = 0.0
    steps bj in 0..bi//2+1:
      for key<min(16, 8*bi-16*bj+8), row<8:
        t = sum(depth<5: p1[80*bj+depth+120*i0+5*key] * p0[40*bi+depth+120*i0+5*row])
        s[8*key+row] = (t * 0.5 else -inf if 8*bi-16*bj-key+row >= 0)
      for row<8:
        t = max(key<min(16, 8*bi-16*bj+8): s[8*key+row])
        m = max(top[row], t)
        shrink[row] = exp(top[row] - m)
        top[row] = m
      for key<min(16, 8*bi-16*bj+8), row<8:
        s[8*key+row] = exp(s[8*key+row] - top[row])
      for row<8:
        t = sum(key<min(16, 8*bi-16*bj+8): s[8*key+row])
        total[row] = total[row] * shrink[row] + t
      for column<5, row<8:
        t = sum(key<min(16, 8*bi-16*bj+8): p2[80*bj+column+120*i0+5*key] * s[8*key+row])
        mixed[8*column+row] = mixed[8*column+row] * shrink[row] + t
    for column<5, row<8:
      o0[40*bi+column+120*i0+5*row] = mixed[8*column+row] / total[row]
"""
"""Rows of 8 meet keys of 16: heads 2, length 24, depth 5."""


def random_block(seed: int) -> Kernel:
    """A kernel that is a block of random nests and steps in steps, over flat buffers."""
    return _Random(random.Random(seed)).kernel()


class _Random:
    def __init__(self, r: random.Random):
        self.r = r
        self.domain = tuple([Var(f"i{k}", 0, r.randrange(3)) for k in range(r.randrange(3))])
        self.place: Index = 0
        self.places: Index = 1
        for v in self.domain:
            self.place, self.places = self.place * (v.hi + 1) + v, self.places * (v.hi + 1)
        self.shapes: dict[str, tuple[int, int]] = {}
        self.width = r.choice((1, 3, 16, 17, 37))

    def kernel(self) -> Kernel:
        body: list[Nest | Steps] = [self.filled(self.domain) for _ in range(self.r.randrange(1, 4))]
        body += self.parts(self.domain, 0)
        source = self.r.choice(list(self.shapes))
        h, w = self.shapes[source]
        y, x = Var("y", 0, h - 1), Var("x", 0, w - 1)
        body.append(Nest((y, x), (Store("o0", ((self.place * h + y) * w + x,), self.read(source, y, x)),)))
        local = tuple([Param(name, float32, (h * w,), "inout") for name, (h, w) in self.shapes.items()])
        params = (Param("o0", float32, (self.places * h * w,), "out"), Param("p0", float32, (4096,)))
        return Kernel("random", params, (), (), (), Block(self.domain, local, tuple(body)))

    def parts(self, around: tuple[Var, ...], depth: int) -> list[Nest | Steps]:
        made: list[Nest | Steps] = []
        for _ in range(self.r.randrange(1, 5)):
            if depth < 2 and self.r.random() < 0.4:
                stops: list[Index] = [0, 1, 2, *[v + 1 for v in around]]
                stop = self.r.choice(stops)
                starts: list[Index] = [0, *[v for v in around if v + 1 == stop]]
                start = self.r.choice(starts)
                t = Var(f"t{depth}", 0, stop - 1)
                made.append(Steps(t, start, tuple(self.parts((*around, t), depth + 1))))
            else:
                made.append(self.r.choice((self.changed, self.summed, self.rows))(around))
        return made

    def read(self, name: str, y: Index, x: Index) -> Value:
        h, w = self.shapes[name]
        return load(name, ((y % h if h > 1 else 0) * w + (x % w if w > 1 else 0),), float32)

    def filled(self, around: tuple[Var, ...]) -> Nest:
        """A new buffer, of what is read."""
        name, h, w = f"s{len(self.shapes)}", self.r.randrange(1, 9), self.r.choice((1, self.width))
        self.shapes[name] = h, w
        y, x = Var("y", 0, h - 1), Var("x", 0, w - 1)
        value = load("p0", (self.place * 7 + y * w + x,), float32)
        return Nest((y, x), (Store(name, (y * w + x,), value),))

    def changed(self, around: tuple[Var, ...]) -> Nest:
        """Some rows of a buffer, by what there is."""
        name, other = self.r.choice(list(self.shapes)), self.r.choice(list(self.shapes))
        h, w = self.shapes[name]
        rows: Index = emin(h, self.r.choice((h, *[v + 1 for v in around])))
        y, x = Var("y", 0, rows - 1), Var("x", 0, w - 1)
        value = binary("mul", self.read(name, y, x), const(0.5, float32))
        if other != name:
            value = binary("add", value, guard(self.read(other, y, x), const(0.25, float32), (y - 1, *around[:1])))
        if self.r.random() < 0.3:
            value = binary("max", unary("neg", value), cast(index(sum(around, x + y), int32), float32))
            value = binary("mul", value, const(0.125, float32))
        return Nest((y, x), (Store(name, (y * w + x,), value),))

    def summed(self, around: tuple[Var, ...]) -> Nest:
        """One row of a buffer, of sums over another one."""
        name, other = self.r.choice(list(self.shapes)), self.r.choice(list(self.shapes))
        (_, w), (h, _) = self.shapes[name], self.shapes[other]
        if other == name:
            return self.changed(around)
        k, x = Var("k", 0, emin(h, self.r.choice((h, *[v + 1 for v in around]))) - 1), Var("x", 0, w - 1)
        term = binary("mul", self.read(other, k, x), load("p0", (self.place + k,), float32))
        total = reduce(self.r.choice(("sum", "max")), (k,), term)
        stored = binary("mul", binary("add", local("t", float32), self.read(name, 0, x)), const(0.25, float32))
        return Nest((x,), (Define("t", total), Store(name, (x,), stored)))

    def rows(self, around: tuple[Var, ...]) -> Nest:
        """All rows of a buffer, less half of what is the greatest in each, as an inner nest."""
        name = self.r.choice(list(self.shapes))
        h, w = self.shapes[name]
        y, x, k = Var("y", 0, h - 1), Var("x", 0, w - 1), Var("k", 0, w - 1)
        place, most = y * w, Define("t", reduce("max", (k,), self.read(name, y, k)))
        less = binary("mul", local("t", float32), const(0.5, float32))
        inner = Nest((x,), (Store(name, (place + x,), binary("sub", load(name, (place + x,), float32), less)),))
        return Nest((y,), (most, inner))
