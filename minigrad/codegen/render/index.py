"""Index arithmetic and conditions, for renderers.

Address polynomials are summed by loop level, outer terms first, so that an inner loop only adds what it changes.
"""
from __future__ import annotations

from collections.abc import Sequence

from minigrad.codegen.lowering.collapse import coefficient as step_of
from minigrad.codegen.render.copies import CopyEmitter
from minigrad.codegen.render.place import INDEX, Memory, Ref
from minigrad.dtype import bool_
from minigrad.errors import InternalError
from minigrad.expr import (
    Atom,
    Expr,
    FloorDiv,
    Index,
    Max,
    Min,
    Mod,
    Opaque,
    Var,
    bounds,
    split,
    subs,
    to_text,
    variables,
    varying,
)
from minigrad.value import ValueIndex, value_atoms


class IndexEmitter(CopyEmitter):
    """Index expressions and conditions to instructions."""

    def sums(self, e: Index, lane: int | None = None) -> tuple[list[Ref], int]:
        """`e` as one partial sum per loop level, outermost first, and its constant; `lane` is the lane's number."""
        if isinstance(e, int):
            return [], e
        whole: Index = varying(e)
        key = "sums", whole, lane
        found = self.memo.get(key)
        if found is None:
            plain = not value_atoms(e)
            if lane is not None and self.lane is not None and plain:
                split = self.by_lane(whole)
                if split is None:
                    whole = subs(whole, {self.lane: self.first_lane + lane})
                else:
                    whole = split[0] + split[1] * (lane if split[1] else 0)
                found = self.sums(whole)
            else:
                found = ([], whole) if isinstance(whole, int) else (self.by_level(whole, lane), 0)
            if plain:
                self.memo[key] = found
        return found[0], found[1] + e.const

    def by_level(self, e: Expr, lane: int | None) -> list[Ref]:
        """The terms of `e` as one sum per loop level, outermost first."""
        levels: dict[int, Ref] = {}
        for term in e.terms:
            key = "term", term, lane
            product = self.memo.get(key)
            if product is None:
                product = self.term(*term, lane)
                if not any([type(a) is not Var and value_atoms(a) for a in term[0]]):
                    self.memo[key] = product
            known = levels.get(product.level)
            levels[product.level] = product if known is None else self.integer("add", known, product)
        return [levels[level] for level in sorted(levels)]

    def term(self, monomial: tuple[Atom, ...], coefficient: int, lane: int | None) -> Ref:
        """A product, of what is defined outside first."""
        factors = [self.atom(a, lane) for a in monomial]
        if len(factors) > 1:
            factors.sort(key=lambda r: r.level)
        if coefficient != 1:
            factors.insert(0, self.constant(coefficient, INDEX))
        product = factors[0]
        for f in factors[1:]:
            product = self.integer("mul", product, f)
        return product

    def total(self, parts: list[Ref], constant: int) -> Ref:
        """The sum of what `sums` returns."""
        result: Ref | None = None
        for p in parts:
            result = p if result is None else self.integer("add", result, p)
        if result is None:
            return self.constant(constant, INDEX)
        return self.integer("add", result, self.constant(constant, INDEX)) if constant else result

    def index(self, e: Index, lane: int | None = None) -> Ref:
        """A scalar index."""
        return self.total(*self.sums(e, lane))

    def atom(self, a: Atom, lane: int | None) -> Ref:
        if isinstance(a, Var):
            if a is self.lane:
                if lane is None:
                    raise InternalError(f"[render] {self.function.name}: lane {a.name} used where a scalar is needed")
                return self.constant(self.first_lane + lane, INDEX)
            if a not in self.variables:
                raise InternalError(f"[render] {self.function.name}: unbound index variable {a.name}")
            return self.variables[a]
        if isinstance(a, ValueIndex):
            x = self.value(a.value, self.under)
            if x.lanes > 1:
                if lane is None:
                    raise InternalError(f"[render] {self.function.name}: an index that differs by lane needs a lane")
                x = self.extract(x, lane)
            return self.convert(x, INDEX)
        if isinstance(a, Opaque):
            return self.index(a.inner, lane)
        if isinstance(a, (Min, Max)):
            return self.integer("min" if isinstance(a, Min) else "max", self.index(a.a, lane), self.index(a.b, lane))
        if isinstance(a, (FloorDiv, Mod)):
            return self.division(a, lane)
        raise InternalError(f"[render] {self.function.name}: cannot render index {to_text(a)}")

    def division(self, a: FloorDiv | Mod, lane: int | None) -> Ref:
        """Floor division of a possibly negative number by a constant is shifted to be one of a non-negative number."""
        (lo, hi), op = bounds(a.a), "div" if isinstance(a, FloorDiv) else "mod"
        x, y = self.index(a.a, lane), self.index(a.b, lane)
        if lo >= 0:
            return self.integer(op, x, y, small=hi < 2**31 and bounds(a.b)[1] < 2**31)
        if not isinstance(a.b, int) or lo < -2**62:
            return self.integer("f" + op, x, y)
        shift = -(lo // a.b)
        x = self.integer("add", x, self.constant(shift * a.b, INDEX))
        q = self.integer(op, x, y, small=hi + shift * a.b < 2**31)
        return self.integer("add", q, self.constant(-shift, INDEX)) if op == "div" else q

    def varies(self, a: Atom) -> bool:
        """True where an atom differs from lane to lane."""
        if self.lane is None or not value_atoms(a):
            return self.lane in variables(a)
        if isinstance(a, ValueIndex):
            return self.value(a.value, self.under).lanes > 1
        return any(self.varies(f) for e in a.children() if not isinstance(e, int) for m, _ in e.terms for f in m)

    def by_lane(self, e: Index) -> tuple[Index, int] | None:
        """(rest, stride) with e = rest + stride * lane and nothing else that varies, or None."""
        if isinstance(e, int) or self.lane is None:
            return e, 0
        whole = varying(e)
        key = "by_lane", whole
        if key in self.memo:
            found = self.memo[key]
        else:
            found = self.split_lane(whole)
            if not value_atoms(whole):
                self.memo[key] = found
        if found is None or not found[1]:
            return None if found is None else (e, 0)
        return found[0] + e.const, found[1]

    def split_lane(self, e: Index) -> tuple[Index, int] | None:
        if isinstance(e, int) or self.lane is None or (self.lane not in variables(e) and not value_atoms(e)):
            return e, 0
        rest, steps = split(e, (self.lane,))
        if not isinstance(rest, int):
            for monomial, _ in rest.terms:
                for a in monomial:
                    if (type(a) is not Var or a is self.lane) and self.varies(a):
                        return None
        stride = steps[0][1] if steps else 0
        return rest + stride * self.first_lane, stride

    def far_step(self, e: Index) -> tuple[Index, Index] | None:
        """(rest, stride) with e = rest + stride * lane for a stride that is a constant above 4 or an argument."""
        if self.lane is None or isinstance(e, int) or value_atoms(e):
            return None
        stride = step_of(e, self.lane)
        if stride is None or (isinstance(stride, int) and stride <= 4):
            return None
        return e - stride * self.lane + stride * self.first_lane, stride

    def lane_steps(self, e: Index) -> tuple[Index, list[int]] | None:
        """(rest, steps) with e = rest + steps[lane] for constant steps, such as those of lane // 2; or None."""
        if self.lane is None or isinstance(e, int) or value_atoms(e):
            return None
        rest = subs(e, {self.lane: self.first_lane})
        moved = [subs(e, {self.lane: self.first_lane + i}) - rest for i in range(self.real_width)]
        steps = [step for step in moved if isinstance(step, int)]
        return (rest, steps) if len(steps) == len(moved) else None

    # ---- offsets ----

    def in_bounds(self, memory: Memory, offset: Index) -> bool:
        """True where every offset that the variables' bounds allow is inside the buffer."""
        if isinstance(memory.size, int):
            lo, hi = self.range_of(offset)
            return 0 <= lo and hi < memory.size
        if type(memory.size) is Var and memory.size not in variables(offset):
            return isinstance(offset, int) and 0 <= offset < bounds(memory.size)[0]  # no more of it is known
        if self.range_of(offset)[0] < 0:
            return False
        whole, constant = (0, offset) if isinstance(offset, int) else (varying(offset), offset.const)
        key = "room", memory.size, whole
        room = self.memo.get(key)
        if room is None:
            room = self.memo[key] = bounds(memory.size - 1 - whole)[0]
        return room >= constant

    def could_move(self, offset: Index) -> bool:
        """True where a load from a buffer that is never written, without a mask, would leave a branch if it is in
        bounds: its address is known outside."""
        floor = self.safe_floor()
        return floor > 0 and \
            all([v not in self.variables or self.variables[v].level < floor for v in variables(offset)])

    def place_of(self, memory: Memory, offset: Index) -> Index:
        """Memory allocated inside a vector loop holds one element per lane at each offset."""
        if memory.lanes == 1 or self.lane is None:
            return offset
        return offset * memory.lanes + (self.lane - self.first_lane)

    # ---- conditions ----

    def conjunction(self, x: Ref | None, y: Ref | None) -> Ref | None:
        """Both masks; None is always true."""
        if x is None or y is None or x is y:
            return x if y is None else y
        lanes = max(x.lanes, y.lanes)
        return self.operation("and", [self.spread(x, lanes), self.spread(y, lanes)], bool_)

    def conditions(self, conditions: Sequence[Index], lane: int | None = None) -> Ref | None:
        """The mask of all of them (scalar if none differs by lane), None if there are none to check."""
        uniform: Ref | None = None
        varying: Ref | None = None
        for e in conditions:
            if isinstance(e, int):
                if e < 0:
                    return self.constant(False, bool_)
                continue
            mask = self.condition(e, lane)
            if mask.lanes > 1:
                varying = self.conjunction(varying, mask)
            else:
                uniform = self.conjunction(uniform, mask)
        return self.conjunction(uniform, varying)

    def condition(self, e: Expr, lane: int | None) -> Ref:
        key = "condition", e, lane
        found = self.memo.get(key)
        if found is None:
            found = self.compared(e, lane)
            if not value_atoms(e):
                self.memo[key] = found
        return found

    def compared(self, e: Expr, lane: int | None) -> Ref:
        split = (e, 0) if lane is not None else self.by_lane(e)
        if split is None:
            parts = [self.condition(e, i) for i in range(self.width)]
            return self.gather_lanes(parts)
        rest, stride = split
        sums, constant = self.sums(rest, lane)
        if not stride:
            return self.at_least(self.total(sums, 0), -constant)
        limits = [-constant - stride * i for i in range(self.width)]
        lo, hi = bounds(rest)
        small = -2**31 < min(lo - constant, *limits) and max(hi - constant, *limits) < 2**31
        return self.lanes_at_least(self.total(sums, 0), limits, small)
