"""Kernel -> Kernel and numbers: numbers of a kernel become arguments, so that kernels that differ in these share a
program.

    for i0<240:                                       for i0<e0:
      t0 = sum(r0<8, r1<784:                            t0 = sum(r0<e1, r1<e2:
               p0[188160*r0 + 784*i0 + r1])                      p0[e0*e2*r0 + e2*i0 + r1])

An argument is a dim, named by its kind: extents e, steps of accesses s, lengths of buffers m, numbers k; b is the
element that a buffer begins at. There are two moments:

- Before there is a plan, numbers that no plan looks at, so that it is not made again: where parameters begin
  (`from_first`, `beginning`), and how long a pointwise kernel over contiguous memory is (`of_any_length`).
- Once there is one, made for the sizes as they are, numbers that its loops need not know (`with_arguments`;
  `plan/sizes.py` says which extents). Whether there is a whole tile is part of an extent's bounds.

A step over all of another variable is a product of its step and extent, so that dense accesses are seen to stay inside
their buffers; other steps are arguments of their own. Inner loops of equal extents keep equal extents, as reductions
share their loops.
"""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from itertools import count
from math import ceil

from minigrad.codegen.ir.nodes import BufferParam, Function
from minigrad.codegen.ir.walk import names
from minigrad.codegen.kernel.nodes import Kernel, Nest, Param, Store
from minigrad.codegen.kernel.value_walk import rebuilt
from minigrad.codegen.kernel.walk import accesses_of, assignments, expressions_of, map_nest, statements
from minigrad.codegen.lowering.flatten import map_accesses
from minigrad.expr import Expr, Index, Var, bounds, product, subs, variables, varying
from minigrad.value import Value, index, indices_of, rebuild, reductions_in, walk

MOST = (1 << 31) - 1
COMPARISONS = frozenset(("lt", "eq", "ne"))

Extents = Mapping[str, int]
"""Variables whose extents and steps become arguments, each with the size of a block that it may have a whole one of; 0
where the extent stays a constant."""

Multiples = Mapping[str, int]
"""Variables whose extents are multiples of a number, whatever the argument is."""


# ---- before there is a plan ----


def from_first(kernel: Kernel) -> tuple[Kernel, dict[str, int]]:
    """The flat kernel with every parameter from the first element that may be accessed to the last, and the positions
    of these first elements by parameter: parts of one buffer that are read together keep their distance."""
    ends: dict[str, tuple[int, int]] = {}
    for name, (at,) in accesses_of(kernel.nests):
        (first, last), (least, end) = bounds(at), ends.get(name, (MOST, 0))
        ends[name] = min(least, first), max(end, last)
    begins: dict[str, int] = {}
    params: list[Param] = []
    for p in kernel.params:
        least, last = ends.get(p.name, (0, 0))
        size = p.shape[0]
        if 0 < least < MOST and type(size) is int and p.layout is None:
            begins[p.name] = least
            p = Param(p.name, p.dtype, (min(size, last + 1) - least,), p.mode)
        params.append(p)
    if not begins:
        return kernel, {}
    nests = map_accesses(kernel.nests, lambda name, at: (at[0] - begins.get(name, 0),))
    return Kernel(kernel.name, tuple(params), kernel.scalars, kernel.dims, nests), begins


@lru_cache(maxsize=4096)
def beginning(function: Function, parameters: tuple[str, ...]) -> Function:
    """The function whose accesses of these parameters begin at further dims, in their order."""
    used = names(function)
    free = (name for name in map("b{}".format, count()) if name not in used)
    starts = {parameter: Var(next(free), 1, MOST) for parameter in parameters}
    buffers = tuple([BufferParam(b.name, b.dtype, b.size, b.mode, starts.get(b.name)) for b in function.buffers])
    return replace(function, buffers=buffers, dims=(*function.dims, *starts.values()))


def of_any_length(kernel: Kernel) -> tuple[Kernel, dict[Var, Index]]:
    """A kernel that computes each element from those at the same place, with its length as a dim, and the value of that
    dim; other kernels as they are."""
    if len(kernel.nests) != 1 or len(kernel.nests[0].domain) != 1 or kernel.dims:
        return kernel, {}
    nest = kernel.nests[0]
    v, = nest.domain
    if any([isinstance(s, Nest) or s.value.reduces or (isinstance(s, Store) and s.combine is not None)
            for s in nest.body]) or any([e != v for e in expressions_of((nest,))]) or not isinstance(v.hi, int):
        return kernel, {}
    if any([isinstance(e, int) and e > 0 for _, (e,) in accesses_of(kernel.nests)]):  # a place that shorter ones lack
        return kernel, {}
    general, values = _Arguments(kernel).lifted(kernel.nests, {v.name: 1}, {})
    return general, dict(zip(general.dims, values, strict=True))


# ---- once there is a plan ----


def with_arguments(kernel: Kernel, nests: tuple[Nest, ...], extents: Extents, pointwise: bool,
                   multiples: Multiples | None = None) -> tuple[Kernel, tuple[int, ...]]:
    """The kernel of these nests alone with further dims, and their values.

    Besides extents, steps and lengths, numbers that a loop in Python counts up become arguments: those that loaded
    integers and index variables are compared with and, in `pointwise` kernels, bounds of padding and offsets of reads.
    Renderers mask loads behind conditions, so that nothing has to be proved.
    """
    return _Arguments(kernel, pointwise).lifted(nests, extents, multiples or {})


def plain_variables(nests: tuple[Nest, ...]) -> tuple[str, ...]:
    """Variables of the nests that accesses step with, by a constant, and nothing else depends on."""
    own = variables_of(nests)
    others: set[Var] = {v for v in own if not isinstance(v.hi, int) or v.hi >= MOST}
    for _, (e,) in accesses_of(nests):
        if isinstance(e, Expr) and any([len(monomial) > 1 or monomial[0] not in own for monomial, _ in e.terms]):
            others |= variables(e)
    for s in assignments(nests):
        others.update(*[variables(e) for x in walk(s.value) if x.op in ("guard", "index") for e in indices_of(x)])
    names = {v.name for v in others}
    return tuple(dict.fromkeys([v.name for v in own if v.name not in names]))


def variables_of(nests: tuple[Nest, ...]) -> dict[Var, str]:
    """The nests' index variables in order of their first place, each with a key that variables of one extent share."""
    found: dict[Var, str] = {}
    for s in statements(nests):
        if isinstance(s, Nest):
            for v in s.domain:
                found.setdefault(v, f"e.{v.name}" if s in nests else "e")
        else:
            for x in reductions_in(s.value):
                for v in x.over:
                    found.setdefault(v, "e")
    return found


class _Arguments:
    """`found` are the arguments, by a key that must share one, and number. `sized` are the variables whose steps become
    arguments, as they are then; `all` is True where there are no others. `lengths` are of buffers, where an access says
    so."""

    def __init__(self, kernel: Kernel, pointwise: bool = False):
        self.kernel, self.pointwise, self.all = kernel, pointwise, False
        self.sizes: dict[str, Index] = {p.name: p.shape[0] for p in kernel.params}
        self.found: dict[tuple[object, int], Var] = {}
        self.sized: dict[Var, Var] = {}
        self.lengths: dict[str, Index] = {}

    def lifted(self, nests: tuple[Nest, ...], extents: Extents, multiples: Multiples) -> tuple[Kernel, tuple[int, ...]]:
        """The kernel of these nests with further dims, and their values."""
        own = variables_of(nests)
        for v, kind in own.items():
            block = extents.get(v.name)
            if block is not None:
                of = multiples.get(v.name, 1)
                self.sized[v] = Var(v.name, 0, self.size(kind, v.hi + 1, block, of) - 1) if block else v
        self.all = len(self.sized) == len(own)
        nests = tuple([map_nest(nest, lambda root: rebuilt(root, self.value),
                                lambda name, at: (self.offset(name, at[0]),), self.scope) for nest in nests])
        params = self.kernel.params
        if self.sized:
            params = tuple([Param(p.name, p.dtype, (self.lengths.get(p.name) or self.size(f"m.{p.name}", p.shape[0]),),
                                  p.mode, p.layout) for p in params])
        dims = (*self.kernel.dims, *self.found.values())
        return Kernel(self.kernel.name, params, self.kernel.scalars, dims, nests), tuple([n for _, n in self.found])

    def dim(self, letter: str, key: object, number: int, least: int, most: int = MOST) -> Var:
        """The argument for a number, which others of an equal key and number share."""
        known = self.found.get((key, number))
        if known is None:
            before = sum([v.name[0] == letter for v in self.found.values()])
            known = self.found[key, number] = Var(f"{letter}{before}", least, most)
        return known

    def size(self, kind: str, number: Index, block: int = 1, of: int = 1) -> Index:
        """The argument for an extent, a step or a length, or for how many times `of` it is; 0 and 1, which code relies
        on, stay numbers."""
        if not isinstance(number, int) or abs(number) <= 1:
            return number
        least, most = (block, MOST) if abs(number) >= block else (1, block - 1)
        known = self.dim(kind[0], (kind, of), abs(number) // of, ceil(least / of), most // of)
        return known * of if number > 0 else known * -of

    # ---- nests and values ----

    def scope(self, over: tuple[Var, ...]) -> tuple[Var, ...]:
        """Variables of other extents."""
        return tuple([self.sized.get(v, v) for v in over])

    def value(self, v: Value, args: tuple[Value, ...]) -> Value:
        """A value over new operands."""
        attr = v.attr
        if v.op in COMPARISONS and len(args) == 2:
            args = self.compared(v, args[0], 0), self.compared(v, args[1], 1)
        elif v.op == "load":
            name, (at,) = v.buffer, v.indices
            at = self.offset(name, at)
            attr = (name, (self.moved(name, at) if self.pointwise else at,))
        elif v.op == "reduce":
            attr = (v.monoid, self.scope(v.over))
        elif v.op == "guard":
            attr = tuple([self.condition(v.op, e) for e in v.conditions])
        elif v.op == "index":
            attr = self.condition(v.op, v.index)
        return rebuild(v, args, attr)

    def offset(self, name: str, e: Index) -> Index:
        """An access whose steps are arguments, or products of those and of the extents that they step over; where some
        variables stay as they are, so does the first step over these."""
        if isinstance(e, int) or not self.sized:
            return e
        total: Index = e.const
        over: tuple[Index, Index] | None = None  # how far the variable before steps in all: a number, and in arguments
        for number, monomial in sorted([(step, monomial) for monomial, step in e.terms], key=lambda t: t[0]):
            v = monomial[0]
            if not isinstance(v, Var) or v not in self.sized:
                total = total + product([*monomial, number])
                continue
            if over is not None and over[0] == number:
                step = over[1]
            else:
                step = self.size("s", number) if over or self.all else number
            new = self.sized[v]
            total = total + new * step
            over = number * (v.hi + 1), step * (new.hi + 1)
        if self.all and over is not None and over[0] == self.sizes[name]:
            self.lengths.setdefault(name, over[1])
        return total

    def condition(self, op: str, e: Index) -> Index:
        """A condition of a guard, or an index that is a value."""
        e = subs(e, self.sized)
        return self.moved(op, e) if self.pointwise else e

    def moved(self, beside: object, e: Index) -> Index:
        """An index with its constant as an argument."""
        if not isinstance(e, Expr) or not 0 < abs(e.const) <= MOST:
            return e
        whole = varying(e)
        return whole + self.dim("k", (beside, whole), e.const, -MOST)

    def compared(self, v: Value, side: Value, k: int) -> Value:
        """An operand of a comparison: a number beside a loaded integer or an index becomes an argument."""
        number, other = v.args[k], v.args[1 - k]
        other = other.args[0] if other.op == "cast" else other
        if number.op != "const" or not number.dtype.is_int or other.op not in ("load", "index"):
            return side
        n = int(number.number)
        return index(self.dim("k", v.op, n, -MOST), number.dtype) if 1 < abs(n) <= MOST else side
