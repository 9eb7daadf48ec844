"""The places at which loops stand: what each open loop is, and which variables of the nest that gives."""
from __future__ import annotations

from dataclasses import replace

from minigrad.codegen.plan.loops import Loops
from minigrad.codegen.plan.matrix_units import Wave
from minigrad.codegen.plan.position import Position
from minigrad.expr import Index, Var


class Places:
    """The loops of a plan; `wave`: of a matrix unit."""

    def __init__(self, loops: Loops, wave: Wave | None):
        self.loops, self.wave = loops, wave

    def opened(self, here: Position, name: str, place: Index) -> Position:
        """`here` inside a loop."""
        at, places, wave = dict(here.at), {**here.places, name: place}, self.wave
        copies = tuple([x for x in here.copies if x != name])
        inside = Position(places, at, here.omitted, here.full_splits, copies, here.masked)
        opened = [name]
        if wave is not None and name == wave.each:
            places |= wave.places(places)
            opened = [wave.row, wave.column]
        for v in [self.loops.root[x] for x in opened]:
            if v not in at and self.is_open(v.name, inside):
                at[v] = self.loops.place(v.name, inside)
        return inside

    def located(self, here: Position) -> Position:
        """`here` with what the variables are whose loops are all open."""
        at: dict[Var, Index] = {}
        here = replace(here, at=at)
        for v in self.loops.variables:
            if self.is_open(v.name, here):
                at[v] = self.loops.place(v.name, here)
        return here

    def is_open(self, name: str, here: Position) -> bool:
        """True where all loops that a loop was taken apart into are open."""
        s = self.loops.split.get(name)
        return name in here.places or s is not None and self.is_open(s.outer, here) and self.is_open(s.inner, here)
