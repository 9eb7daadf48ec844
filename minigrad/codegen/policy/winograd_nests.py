"""Convolutions of three taps with fewer multiplications, by Winograd's algorithm.

Of six neighbours d of an image, three taps g make four outputs y by 6 multiplications in place of 12:

    y = A ((G g) * (B d))          F(4, 3); with the smaller matrices four neighbours make two outputs, F(2, 3)

along one axis or, with the matrices on both sides, along two: 36 multiplications in place of 144. Sums over channels
are made of the products before A, which are products of matrices, one for each place t of a tile:

    before:  y[k, i, j] = sum(c, u<3, v<3: x[c, i+u, j+v] * w[k, c, u, v])
    after:   p[c, i, j] = x[c, i, j]                                     the image as far as tiles reach, 0 beyond
             d[t, c, tile] = (B p B')[t]                                 of the 6 x 6 neighbours of each tile
             g[t, k, c] = (G w G')[t]
             m[t, k, tile] = sum(c: g[t, k, c] * d[t, c, tile])
             y[k, 4*i+a, 4*j+b] = (A m A')[a, b]                         and what is computed of it

In the gradient by the image taps are turned round. The gradient by the taps, a sum over i and j, is

    G' (sum of (A' y) * (B d) over tiles)                                where y is the gradient of the results

After Lavin and Gray, arXiv 1509.09308.
"""
from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from itertools import product as combinations
from math import ceil, prod

from minigrad.codegen.kernel.access import extent
from minigrad.codegen.kernel.nodes import Define, Nest, Param, Store
from minigrad.codegen.kernel.value_walk import Rewriter
from minigrad.codegen.lowering.flatten import offset
from minigrad.codegen.patterns.recognise_convolution import TAPS, Convolution
from minigrad.dtype import DType
from minigrad.expr import Index, Var
from minigrad.value import Value, binary, const, guard, load, local, make, reduce, substitute, unary

LINE = 16
"""Elements of a cache line."""

POINTS = {2: ("1", "-1"), 4: ("2/3", "-2/3", "3/2", "-3/2")}
"""The points, 0 and infinity besides, at which polynomials are multiplied for so many outputs. Of all of small numbers
these have the smallest errors for four outputs: half of those of 1, -1, 2, -2."""

Matrix = tuple[tuple[float, ...], ...]


@dataclass(frozen=True, slots=True)
class Form:
    """Matrices for `outputs` outputs of three taps along one axis: of the image, of the taps, of the results."""

    outputs: int
    image: Matrix
    taps: Matrix
    results: Matrix

    @property
    def places(self) -> int:
        """Neighbours that a tile reads, and products that it makes."""
        return self.outputs + TAPS - 1


@cache
def form(outputs: int) -> Form:
    """The form with so many outputs: the transpose of Toom and Cook's multiplication of polynomials, whose values at
    points are multiplied."""
    points = (Fraction(0), *map(Fraction, POINTS[outputs]))
    image, taps = [], []
    for p in points:
        others = [q for q in points if q is not p]
        apart = prod([p - q for q in others], start=Fraction(1))
        image.append(polynomial(others, Fraction(-1 if apart < 0 else 1)))
        taps.append(tuple([float(p ** k / abs(apart)) for k in range(TAPS)]))
    image = [(*row, 0.0) for row in image] + [polynomial(points)]
    taps.append((0.0, 0.0, 1.0))
    last = [float(k == outputs - 1) for k in range(outputs)]
    results = tuple([(*[float(p ** k) for p in points], last[k]) for k in range(outputs)])
    return Form(outputs, tuple(image), tuple(taps), results)


def polynomial(roots: Sequence[Fraction], times: Fraction = Fraction(1)) -> tuple[float, ...]:
    """The coefficients of a number times the product of x - r for some roots r, that of the lowest power first."""
    found = [times]
    for r in roots:
        found = [above - r * c for above, c in zip([Fraction(0), *found], [*found, Fraction(0)], strict=True)]
    return tuple(map(float, found))


def winograd(pieces: Sequence[Convolution], how: Form, channels_last: bool, scratch: list[Param]) -> list[Nest]:
    """The nests of a convolution by a form, one piece after another. Between them lie tiles behind each other for each
    channel, or channels for each tile. `scratch` grows by what is between them."""
    memory = dict[tuple[str, DType], Param]()
    rules = [_Rule(conv, how, channels_last, scratch, memory) for conv in pieces]
    if pieces[0].of_taps:
        made = [rule.sums() for rule in rules]
        return [*(n for _, nests in made for n in nests), rules[0].gradient([m for m, _ in made])]
    g, taps = rules[0].taps()
    return [taps, *(n for rule in rules for n in rule.nests(g))]


Operand = tuple[str, tuple[Var, ...], bool]
"""An operand of products: its memory, the variables of its own, and whether steps of the sum are outside these."""


class _Rule:
    """`tiles` are the variables of tiles; `memory` that pieces share, the first of which is the largest, by what it is
    for."""

    def __init__(self, conv: Convolution, how: Form, channels_last: bool, scratch: list[Param],
                 memory: dict[tuple[str, DType], Param]):
        self.conv, self.form, self.scratch, self.memory = conv, how, scratch, memory
        self.batch, self.dtype, self.channels_last = conv.sum.batch, conv.sum.total, channels_last
        self.tiles = tuple([Var(a.place.name, 0, ceil(extent(a.place) / how.outputs) - 1) for a in conv.axes])
        self.many = (*conv.examples, *self.tiles)

    def places(self, count: int) -> list[tuple[int, ...]]:
        """The places of so many along each axis."""
        return list(combinations(range(count), repeat=len(self.conv.axes)))

    def ordered(self, own: tuple[Var, ...], places: tuple[Var, ...]) -> tuple[Var, ...]:
        """A domain of channels or kernels and places in the order in which they lie."""
        if self.channels_last:
            return (*self.batch, *self.conv.examples, *places, *own)
        return (*self.batch, *own, *self.conv.examples, *places)

    def taps(self) -> tuple[str, Nest]:
        """Memory for the transformed taps, and the nest that stores them."""
        conv = self.conv
        taps = [substitute(conv.other, self.at_taps(k)) for k in self.places(TAPS)]
        order = (*conv.channels, *conv.kernels) if self.channels_last else (*conv.kernels, *conv.channels)
        return self.transformed("taps", self.form.taps, (*self.batch, *order), taps, TAPS)

    def image(self) -> tuple[str, list[Nest]]:
        """Memory for the transformed image, and the nests that store it."""
        first = [2 if a.backwards else 0 for a in self.conv.axes]
        return self.transformed_image("image", self.conv.image, self.conv.channels, self.form.image, first,
                                      self.form.places)

    def nests(self, g: str) -> list[Nest]:
        """The nests of a convolution with transformed taps."""
        conv, (d, image) = self.conv, self.image()
        if self.channels_last:
            m, product = self.products("products", (d, self.many, False), (g, conv.kernels, True), conv.channels)
        else:
            m, product = self.products("products", (g, conv.kernels, False), (d, self.many, True), conv.channels)
        return [*image, product, *self.results(m)]

    def sums(self) -> tuple[str, list[Nest]]:
        """Memory for the sums of which the gradient by the taps is made, and the nests that store them."""
        conv, (d, image), first = self.conv, self.image(), [0] * len(self.conv.axes)
        g, other = self.transformed_image("results", conv.other, conv.kernels, transposed(self.form.results), first,
                                          self.form.outputs)
        last = self.channels_last
        m, product = self.products(f"sums {len(self.memory)}", (g, conv.kernels, last), (d, conv.channels, last),
                                   self.many)
        return m, [*image, *other, product]

    def at_taps(self, place: tuple[int, ...]) -> dict[Var, Index]:
        """The values that the variables of taps have at a place."""
        return {a.tap: 2 - k if a.backwards else k for a, k in zip(self.conv.axes, place, strict=True)}

    def kept(self, of: str, dtype: DType, size: int) -> str:
        """The name of memory between stages."""
        found = self.memory.get((of, dtype))
        if found is None or not isinstance(found.shape[0], int) or found.shape[0] < size:
            found = self.memory[of, dtype] = Param(f"w{len(self.scratch)}", dtype, (size,), "out")
            self.scratch.append(found)
        return found.name

    def transformed_image(self, of: str, value: Value, own: tuple[Var, ...], matrix: Matrix, first: Sequence[int],
                          count: int) -> tuple[str, list[Nest]]:
        """Memory for what a matrix makes of `count` values along each axis of each tile, and the nests: one that stores
        the values as far as tiles reach, from `first` places before on, 0 beyond, and one that transforms them."""
        axes, halo = self.conv.axes, count - self.form.outputs
        reach = tuple([Var(t.name, 0, extent(t) * self.form.outputs + halo - 1) for t in self.tiles])
        there: dict[Var, Index] = {a.tap: 0 for a in axes}
        there |= {a.place: u - k for a, u, k in zip(axes, reach, first, strict=True)}
        inside = tuple([extent(a.place) + halo - 1 - u for a, u in zip(axes, reach, strict=True)
                        if extent(u) > extent(a.place) + halo])
        padded = guard(substitute(value, there), const(0, value.dtype), inside)
        domain = self.ordered(own, reach)
        name = self.kept(f"padded {of}", value.dtype, prod(map(extent, domain)))
        read = []
        for at in self.places(count):
            near: dict[Var, Index] = {u: t * self.form.outputs + k
                                      for u, t, k in zip(reach, self.tiles, at, strict=True)}
            read.append(load(name, (Rewriter(near).index(place_of(domain)),), value.dtype))
        made, nest = self.transformed(of, matrix, self.ordered(own, self.tiles), read, count)
        return made, [Nest(domain, (Store(name, (place_of(domain),), padded),)), nest]

    def transformed(self, of: str, matrix: Matrix, domain: tuple[Var, ...], values: list[Value], count: int
                    ) -> tuple[str, Nest]:
        """Memory for each place of tiles, and the nest that stores what a matrix makes of `count` values along each
        axis."""
        body, last = self.times(matrix, values, count)
        size, dtype = spread(prod(map(extent, domain))), values[0].dtype
        name, at = self.kept(of, dtype, size * len(last)), place_of(domain)
        return name, Nest(domain, (*body, *[Store(name, (at + size * t,), v) for t, v in enumerate(last)]))

    def times(self, matrix: Matrix, values: list[Value], count: int) -> tuple[list[Define], list[Value]]:
        """Definitions, and a matrix by `count` values along each axis, of which the last one goes fastest."""
        body, axes = list[Define](), len(self.conv.axes)
        shape = [count] * axes
        for axis in range(axes):
            body += [Define(f"{'de'[axis]}{k}", v) for k, v in enumerate(values)]
            names = [local(s.name, s.value.dtype) for s in body[-len(values):]]
            after = [*shape[:axis], len(matrix), *shape[axis + 1:]]
            values = [combined(matrix[at[axis]], [names[number((*at[:axis], k, *at[axis + 1:]), shape)]
                                                  for k in range(count)])
                      for at in combinations(*map(range, after))]
            shape = after
        return body, values

    def products(self, of: str, a: Operand, b: Operand, step: tuple[Var, ...]) -> tuple[str, Nest]:
        """The products of matrices, for each place of tiles and of the batch."""
        places = len(self.places(self.form.places))
        batch, rows, columns, steps = [prod(map(extent, vs)) for vs in (self.batch, a[1], b[1], step)]
        t, z, i, j, k = [Var(name, 0, n - 1) for name, n in zip(
            ("i0", "i1", "i2", "i3", "r0"), (places, batch, rows, columns, steps), strict=True)]
        read = []
        for (name, _, by_step), own, n in ((a, i, rows), (b, j, columns)):
            inner = offset((z, k, own), (batch, steps, n)) if by_step else offset((z, own, k), (batch, n, steps))
            read.append(load(name, (t * spread(batch * n * steps) + inner,), self.dtype))
        single: dict[Var, Index] = {v: 0 for v in (z, i, j) if not v.hi}
        size = spread(batch * rows * columns)
        at = Rewriter(single).index(t * size + offset((z, i, j), (batch, rows, columns)))
        name, total = self.kept(of, self.dtype, places * size), reduce("sum", (k,), binary("mul", *read))
        return name, Nest(tuple([v for v in (t, z, i, j) if v.hi]),
                          (Define("t0", substitute(total, single)), Store(name, (at,), local("t0", self.dtype))))

    def made(self, matrix: Matrix, sums: Sequence[str], domain: tuple[Var, ...]) -> tuple[list[Define], list[Value]]:
        """Definitions, and what a matrix makes of the products of a tile, or of sums of these."""
        size, at, read = spread(prod(map(extent, domain))), place_of(domain), list[Value]()
        for t in range(len(self.places(self.form.places))):
            read.append(load(sums[0], (at + size * t,), self.dtype))
            for m in sums[1:]:
                read[-1] = binary("add", read[-1], load(m, (at + size * t,), self.dtype))
        return self.times(matrix, read, self.form.places)

    def results(self, m: str) -> Iterator[Nest]:
        """The nests that make results of the products: of whole tiles first, then of those with fewer outputs."""
        conv, count = self.conv, self.form.outputs
        domain = self.ordered(conv.kernels, self.tiles)
        body, last = self.made(self.form.results, [m], domain)
        parts = []
        for a, tile in zip(conv.axes, self.tiles, strict=True):
            whole, rest = divmod(extent(a.place), count)
            parts.append([(Var(tile.name, 0, whole - 1), count)] * (whole > 0) + [(whole, rest)] * (rest > 0))
        for part in combinations(*parts):
            tiles = dict(zip(self.tiles, [x for x, _ in part], strict=True))
            here = Rewriter(tiles)
            stores: list[Define | Store] = [Define(s.name, here.value(s.value)) for s in body]
            for outputs in combinations(*[range(n) for _, n in part]):
                there = {a.place: x * count + k for a, (x, _), k in zip(conv.axes, part, outputs, strict=True)}
                stores += self.stored(outputs, here.value(last[number(outputs, (count,) * len(part))]), there)
            left = [tiles.get(v, v) for v in domain]
            yield Nest(tuple([v for v in left if isinstance(v, Var)]), tuple(stores))

    def gradient(self, sums: Sequence[str]) -> Nest:
        """The nest that makes the gradient by each tap of sums of products."""
        domain = (*self.batch, *self.conv.kernels, *self.conv.channels)
        body, last = self.made(transposed(self.form.taps), sums, domain)
        stores = [s for k, v in zip(self.places(TAPS), last, strict=True) for s in self.stored(k, v, self.at_taps(k))]
        return Nest(domain, (*body, *stores))

    def stored(self, place: tuple[int, ...], value: Value, there: dict[Var, Index]) -> list[Define | Store]:
        """A result, and the stores of what is made of it."""
        name = "y" + "_".join(map(str, place))
        here = Rewriter(there, locals_={self.conv.sum.name: local(name, self.dtype)})
        return [Define(name, value), *here.stores(self.conv.sum.outputs)]


def transposed(matrix: Matrix) -> Matrix:
    """The matrix with rows and columns exchanged."""
    return tuple(zip(*matrix, strict=True))


def place_of(domain: tuple[Var, ...]) -> Index:
    """The row-major position in a domain."""
    return offset(domain, tuple(map(extent, domain)))


def spread(size: int) -> int:
    """A size from one place of tiles to the next: an odd number of cache lines, so that places do not share those of a
    cache."""
    return (-(-size // LINE) | 1) * LINE


def number(at: Sequence[int], shape: Sequence[int]) -> int:
    """The row-major number of a place."""
    total = 0
    for k, n in zip(at, shape, strict=True):
        total = total * n + k
    return total


def combined(row: Sequence[float], values: Sequence[Value]) -> Value:
    """A row of a matrix by some values."""
    terms = sorted([(f, v) for f, v in zip(row, values, strict=True) if f], key=lambda x: (abs(x[0]) == 1, x[0] < 0))
    (first, total), *rest = terms
    dtype = total.dtype
    if first != 1:
        total = unary("neg", total) if first == -1 else binary("mul", total, const(first, dtype))
    for factor, v in rest:
        if abs(factor) == 1:
            total = binary("add" if factor > 0 else "sub", total, v)
        else:
            total = make("fma", dtype, (v, const(factor, dtype), total))
    return total
