"""Copies of operands, laid out as they are read: `stage p1 at j as [kk][v][l]`.

    for j ...:
      for kk ...: for v: for l vector:
        p1_staged[kk, v, l] = p1[...]
      for i ...: for l vector: for k ...: for u, v unroll:
        acc[u, v] = fma(p0[...], p1_staged[k, v, l], acc[u, v])

What is copied is the largest part of the sum's terms that reads the operand and depends on the coordinates and on loops
outside alone, with its casts and guards; of several such parts, as of the bytes of a word, what all of them read it by.
The copy is made where all loops that it depends on are open, in the first iteration of those between that do not matter
to it.
"""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from minigrad.codegen.ir.nodes import Alloc
from minigrad.codegen.kernel.value_walk import loaded, replace_values
from minigrad.codegen.plan.box import Box, box, depends_on_sums, on_sums_alone
from minigrad.codegen.plan.coordinates import leaves, terms_of
from minigrad.codegen.plan.loops import Loops, refuse
from minigrad.codegen.plan.matrix_units import Wave, for_unit
from minigrad.codegen.plan.places import Places
from minigrad.codegen.plan.position import Position
from minigrad.codegen.plan.rows import aligned
from minigrad.codegen.plan.spaces import terms_of_sums
from minigrad.codegen.plan.steps.ahead import Ahead
from minigrad.codegen.plan.steps.stage import Stage
from minigrad.codegen.plan.tiles import Tiled
from minigrad.codegen.plan.words import narrowed
from minigrad.dtype import DType
from minigrad.expr import Index
from minigrad.value import Value, const, free_variables, guard, load, local, walk


@dataclass(frozen=True, slots=True)
class Staged:
    """A step, what it copies and where to.

    part: of the terms, and what is copied for it: `factor`, the part under the guards around
    box: the memory's layout; filled: the loop in which the copy is made; once: loops that it does not
    depend on, of which it is made in the first iteration
    called: for what microkernel it has words, whose elements are narrow; None where it has none
    """

    step: Stage
    part: Value
    factor: Value
    memory: str
    box: Box
    filled: str
    once: tuple[str, ...]
    called: Tiled | None = None
    ahead: int = 0

    @property
    def dtype(self) -> DType:
        """The type of elements of the copy."""
        return self.factor.dtype if self.called is None else self.called.tile.panel

    @property
    def apart(self) -> bool:
        """True where its border is filled apart from what is inside."""
        return self.box.padded and not self.step.transposed and self.called is None

    def alloc(self) -> Alloc:
        return Alloc(self.memory, self.dtype, self.box.size, "local" if self.step.items else "scratch")

    def read(self, here: Position) -> Value:
        return load(self.memory, (self.box.at(here),), self.dtype)


def staged(loops: Loops, step: Stage, wave: Wave | None, tile: Tiled | None, memory: str) -> Staged:
    """The copy that a step makes of the terms of a nest's sums. Raises PlanError where that is nothing, or too much."""
    order = loops.order
    coordinates = [leaves(loops, c) for c in step.layout]
    inside = frozenset().union(*coordinates)
    first = order.index(step.at)
    found = copied_parts(loops, step)
    if not found:
        for _, whole in copied_parts(loops, replace(step, layout=()), step.layout):
            depends_on_sums(loops, step, whole)
    if len(found) != 1:
        raise refuse(step, f"one part of a sum's terms that reads {step.operand} and depends on its coordinates and "
                           f"loops outside {step.at} alone", str(len(found)))
    part, factor = found[0]
    depends_on_sums(loops, step, factor)
    for x in inside:
        if loops.kind[x] == "unroll" and not loops.space[x] and loops.root[x] not in free_variables(factor):
            raise refuse(step, f"coordinates that {step.operand} is read along", x)
    rows = {x for c in step.layout for _, x in terms_of(c) if x in loops.root and loops.made_by.get(x) is None}
    for s in loops.split.values():
        entire = step.border and loops.top(s.loop) in rows and loops.root[s.loop].name in rows
        if entire and (s.edge == "back" or loops.inside(s.loop) <= coordinates[-1]):
            continue  # rows have room for whole vectors
        if s.edge in ("back", "guard") and any([loops.inside(s.loop) <= c for c in coordinates]) and \
                not loops.pads_results(s) and not loops.is_whole(s):
            blocks = "do not reach back" if s.edge == "back" else "are whole"
            raise refuse(step, f"coordinates whose blocks {blocks}", s.loop)
    if step.items:
        factor = factor if wave is None else for_unit(factor, wave)
        return Staged(step, part, factor, memory, box(loops, step, factor.dtype.itemsize), step.at, ())
    last = first
    for k in range(first + 1, len(order) if loops.kind.get(step.layout[-1]) == "vector" else 0):
        if loops.kind[order[k]] != "serial":
            break
        if order[k] in inside and not loops.space[order[k]]:
            last = k
    between = tuple([x for x in order[first + 1:last + 1] if x not in inside])
    for s in loops.split.values():
        if s.edge == "rest" and not loops.is_whole(s) and not loops.inside(s.inner).isdisjoint(between):
            raise refuse(step, f"loops without a rest between {step.at} and {order[last]}", f"some of `{s}`")
    called = tile if tile is not None and step.layout[-1] == tile.word else None
    if called is None:
        made = aligned(Places(loops, wave), box(loops, step, factor.dtype.itemsize), factor, step.at, step.border)
        ahead = next((a.by for a in loops.of(Ahead) if a.operand == step.operand and a.at == step.at and not a.of), 0)
        return Staged(step, part, factor, memory, made, order[last], between, ahead=ahead)
    narrow = narrowed(factor)
    if narrow is None:
        raise refuse(step, f"an operand of words for {called.tile.name}", "another part of the sum")
    step = replace(step, layout=step.layout[:-1])
    made = box(loops, step, called.tile.panel.itemsize)
    return Staged(step, part, narrow, memory, made, order[last], between, called)


def copied_parts(loops: Loops, step: Stage, layout: tuple[str, ...] = ()) -> list[tuple[Value, Value]]:
    """The parts of a nest's sums that a copy stands for, each with the guards around it; by the coordinates `layout`
    where the step has none."""
    inside = frozenset().union(*[leaves(loops, c) for c in step.layout or layout])
    outside = [*loops.order[:loops.order.index(step.at) + 1], *loops.ones]
    known = inside.union([x for x in outside if not step.items or loops.kind[x] != "item"])
    bodies = terms_of_sums(next((u for u in loops.units if isinstance(u, tuple)), ()))
    found = dict.fromkeys([f for body in bodies for f in _parts(body, step, loops, known)])
    return _whole([*found], step)


def _parts(body: Value, step: Stage, loops: Loops, known: frozenset[str]) -> Iterator[tuple[Value, Value]]:
    """The largest parts of a value that read an operand and depend on known loops alone, and each under its guards."""
    todo: list[tuple[Value, tuple[Index, ...]]] = [(body, ())]
    while todo:
        v, conditions = todo.pop()
        if not any(x.op == "load" and x.buffer == step.operand for x in walk(v)):
            continue
        part = guard(v, const(0, v.dtype), conditions)
        if all([loops.inside(x.name) <= known for x in free_variables(part) if x.name in loops.root]) and \
                (not step.layout or on_sums_alone(loops, step, part)):
            yield v, part
        elif v.op == "guard":
            todo.append((v.args[0], (*conditions, *v.conditions)))
            todo.append((v.args[1], conditions))
        else:
            todo += [(a, conditions) for a in v.args]


def _whole(found: list[tuple[Value, Value]], step: Stage) -> list[tuple[Value, Value]]:
    """In place of several parts without guards the largest value that they all have in common, if they read the operand
    by it alone."""
    parts = [part for part, guarded in found if part is guarded]
    if len(parts) == len(found) > 1:
        shared = set[Value](walk(parts[0])).intersection(*map(walk, parts[1:]))
        for v in reversed(walk(parts[0])):
            if v in shared and not any([step.operand in loaded(replace_values(part, {v: local("", v.dtype)}))
                                        for part in parts]):
                return [(v, v)]
    return found
