"""Work-groups: work-items that share memory, and what they do together.

    for g ... group:
      alloc p0_staged local
      for t ... item:
        p0_next = p0[...]                           stage p0 at kb as [k][mm], by items, double: the first block
        for kb ...:
          p0_staged[...] = p0_next;  barrier
          p0_next = p0[...]                         the next block is on its way while this one is used
          for k ...: ...
          barrier

Loops that are bound to work-items are no loops: all their iterations are there from the start. Those of the domain are
dimensions of the group; those of sums and inner nests share one: several work-items for each element of the domain,
which share its sums.
"""
from __future__ import annotations

from dataclasses import replace
from math import prod

from minigrad.codegen.ir.launch import places_of
from minigrad.codegen.ir.nodes import Alloc, Barrier, Function, Loop, Stmt, Store, group_size
from minigrad.codegen.ir.walk import statements
from minigrad.codegen.plan.context import Context, Items
from minigrad.codegen.plan.coordinates import base_of, before_ends, length, loop_of, place, room, terms_of
from minigrad.codegen.plan.copies import copied_value
from minigrad.codegen.plan.position import Position
from minigrad.codegen.plan.stage import Staged
from minigrad.errors import PlanError
from minigrad.expr import Index, Var, bounds
from minigrad.target import Target
from minigrad.value import Value, const, free_variables, guard, load, substitute

MAX_TURNS = 8
"""Copies of a window that a work-item makes and that are written out, so that all are on their way at once."""


def copied_by_items(ctx: Context, items: Items, name: str, here: Position, loop: Loop) -> list[Stmt]:
    """A loop, `here` inside it, whose iterations begin with the copies that all work-items make."""
    copies = [ItemsCopy(ctx, items, s) for s in ctx.staged if s.step.items and s.filled == name]
    if not copies:
        return [loop]
    left, double = loop.stop - 2 - loop.var, [c for c in copies if c.next]
    begin = replace(here, places={**here.places, name: 0})
    first: list[Stmt] = [c.registers() for c in double]
    first += [c.fetch(begin, (loop.stop - 1,) if bounds(loop.stop)[0] < 1 else ()) for c in double]
    after = replace(here, places={**here.places, name: loop.var + 1})
    then = [c.fetch(after, (left,)) for c in double if loop.stop != 1]
    return [*first, replace(loop, body=(*[c.deposit(here) for c in copies], Barrier(), *then, *loop.body, Barrier()))]


def copied_first(ctx: Context, here: Position) -> list[Stmt]:
    """The copies that a group begins with."""
    copies = [ItemsCopy(ctx, ctx.items, s).deposit(here) for s in ctx.staged
              if ctx.items is not None and s.step.items and ctx.loops.kind[s.filled] == "group"]
    return [*copies, Barrier()] if copies else []


class ItemsCopy:
    """A copy that work-items make, one element each in every `turn`; `next`: registers for a copy that is made
    twice. Neighbouring work-items copy neighbouring elements of the operand, columns of all residues in turn."""

    def __init__(self, ctx: Context, items: Items, s: Staged):
        self.ctx, self.s, step = ctx, s, s.step
        along = [step.transposed] if step.transposed else []
        along += [c for c in step.layout if "%" in c]
        self.order = (*[c for c in step.layout if c not in along], *along)
        self.counts = [int(length(ctx.loops, c)) for c in self.order]
        elements = prod(self.counts)
        self.turns = -(-elements // items.count)
        self.turn = Var(ctx.name("c"), 0, self.turns - 1)
        self.place = self.turn * items.count + items.var
        self.inside = (elements - 1 - self.place,) if elements % items.count else ()
        self.next = ctx.name(f"{step.operand}_next") if step.double else ""

    def at(self, here: Position) -> Position:
        """`here` at the coordinates of an element."""
        loops = self.ctx.loops
        places = loops.ones | {x: at for x, at in here.places.items() if loops.kind[x] != "item"}
        for c, at in zip(self.order, places_of(self.place, self.counts), strict=True):
            _, base, others = base_of(c)
            for factor, x in others:
                place(loops, x, 0 if factor > 0 else room(loops, x) - 1, places)
            place(loops, base, at, places)
        return self.ctx.located(replace(here, places=places, copies=()))

    def value(self, here: Position, conditions: tuple[Index, ...]) -> Value:
        """The value that is copied at a place; of a box, borders are what its guard says."""
        boxes = [c for c in self.order if len(terms_of(c)) > 1]
        if not boxes:
            return copied_value(self.ctx, self.s, here, conditions)
        own = self.ctx.loops.root
        wide = {own[loop_of(x)] for c in boxes for _, x in terms_of(c)}
        value = substitute(self.s.factor, here.at)
        inside, nothing = value.args if value.op == "guard" else (value, const(0, value.dtype))
        told = value.conditions if value.op == "guard" else ()
        last = [e for e in before_ends(
            self.ctx.loops, [c for c in self.s.step.layout if len(terms_of(c)) > 1], here)
                if not any([bounds(e - c)[0] >= 0 for c in told])]
        conditions += self.ctx.within(here, frozenset(free_variables(self.s.factor)) - wide)
        return guard(inside, nothing, (*conditions, *last, *told))

    def registers(self) -> Alloc:
        return Alloc(self.next, self.s.factor.dtype, self.turns, "register")

    def fetch(self, here: Position, conditions: tuple[Index, ...]) -> Loop:
        """A block to registers."""
        value = self.value(self.at(here), conditions + self.inside)
        return self.each(Store(self.next, self.turn, value))

    def deposit(self, here: Position) -> Loop:
        """A block, or what was fetched of it, to the memory that is shared."""
        at, s = self.at(here), self.s
        value = load(self.next, (self.turn,), s.factor.dtype) if self.next else self.value(at, ())
        return self.each(Store(s.memory, s.box.at(at), value, self.inside))

    def each(self, store: Store) -> Loop:
        boxes = any([len(terms_of(c)) > 1 for c in self.order])
        written_out = self.next or boxes and self.turns <= MAX_TURNS
        return Loop(self.turn, 0, self.turns, "unroll" if written_out else "serial", (store,))


def check_room(function: Function, target: Target) -> None:
    """Raises PlanError where a target has no such work-groups."""
    items, memory = group_size(function), sum(s.size * s.dtype.itemsize for s in statements(function)
                                              if isinstance(s, Alloc) and s.scope == "local")
    if items and (items > target.max_group or memory > target.local_memory):
        raise PlanError(f"[plan] bind group: expected {target.max_group} work-items of a group at most and "
                        f"{target.local_memory} bytes of memory that they share, got {items} and {memory}")
