"""Plans of the general shape: tiles of the domain for workers, copies and lanes in them, sums inside.

    plan contraction
      split i0 -> i0b u by 4, back          copies
      split i1 -> i1b l by 16, back         lanes
      split r0 -> r0k r0c by 4, rest        chains
      bind parallel i1b i0b
      bind vector l
      bind unroll u r0c
      order i1b i0b l r0k r0c u
      parts r0c
"""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from minigrad.codegen.kernel.nodes import Nest
from minigrad.codegen.plan.spaces import Space, spaces
from minigrad.codegen.plan.steps import Ahead, Bind, Order, Parts, Plan, Split, Step
from minigrad.expr import bounds

COPIES = "uvwxyz"


@dataclass(frozen=True, slots=True)
class Choice:
    """The choices of a policy for a nest. Names are those of its variables.

    order: the domain, outermost tiles first; the first `parallel` of them are for workers
    tile: copies per variable of the domain (vectors of them, of the variable across lanes)
    edge: of the tiles, where there is a whole one
    lanes, width: the variable of the domain across lanes
    inner: per variable of a sum or an inner nest: (lanes, chains); unroll: variables of sums that are written out, and
    copies: inside the loop across lanes
    line: vectors along a sum that are written out side by side, into the same accumulator; 0 is 1
    apart: the variable of the domain whose copies are as far apart as there are tiles
    ahead: prefetches
    """

    order: tuple[str, ...]
    parallel: int
    tile: Mapping[str, int] = field(default_factory=dict)
    edge: str = "rest"
    lanes: str = ""
    width: int = 1
    inner: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    unroll: frozenset[str] = frozenset()
    line: int = 0
    apart: str = ""
    ahead: tuple[Ahead, ...] = ()
    copies: frozenset[str] = frozenset()


def general_plan(pattern: str, nest: Nest, choice: Choice) -> Plan:
    """The steps of a choice."""
    made = _Steps(choice, nest)
    blocks = [made.block(name) for name in choice.order]
    lanes = list(made.lanes)
    inner = [x for space in spaces(nest)[1:] for x in made.inner(space)]
    binds = {"parallel": blocks[:choice.parallel], "vector": made.lanes, "unroll": [*made.copies, *made.unroll]}
    steps: list[Step] = [*made.splits, *(Bind(kind, tuple(loops)) for kind, loops in binds.items() if loops)]
    order = (*blocks, *lanes, *inner, *made.copies)
    if order:
        steps.append(Order(order))
    if made.parts:
        steps.append(Parts(tuple(made.parts)))
    return Plan(pattern, (*steps, *choice.ahead))


class _Steps:
    """Splits so far, and the loops of each kind that they made; `across`: variables of sums and inner nests that are
    across lanes."""

    def __init__(self, choice: Choice, nest: Nest):
        self.choice = choice
        self.least = {v.name: bounds(v.hi)[0] + 1 for v in nest.domain}
        self.splits: list[Step] = []
        self.copies: list[str] = []
        self.lanes: list[str] = []
        self.unroll: list[str] = []
        self.parts: list[str] = []
        self.across: set[str] = set()
        self.done: set[str] = set()
        self.around = {v.name: [o.name for o in space.around] for space in spaces(nest) for v in space.own}

    def split(self, name: str, outer: str, inner: str, size: int, edge: str = "exact", into: bool = False) -> None:
        self.splits.append(Split(name, outer, inner, size, edge, into))

    def block(self, name: str) -> str:
        """The loop over tiles of a variable of the domain."""
        choice = self.choice
        factor, width = choice.tile.get(name, 1), choice.width if name == choice.lanes else 1
        outer = f"{name}b" if factor * width > 1 else name
        copy = COPIES[len(self.copies)]
        if factor > 1:
            self.copies.append(copy)
        if width > 1:
            self.lanes.append("l")
        edge = choice.edge if self.least[name] >= factor * width else "rest"
        if name == choice.apart and factor > 1 and edge == "back":
            self.split(name, copy, outer, factor, edge, into=True)
        elif factor > 1 and width > 1:
            self.split(name, outer, f"{name}x", factor * width, edge)
            self.split(f"{name}x", copy, "l", width)
        elif factor * width > 1:
            self.split(name, outer, copy if factor > 1 else "l", factor * width, edge)
        return outer

    def inner(self, space: Space) -> list[str]:
        """The loops of a sum or an inner nest, outermost first: across lanes is outside all of a sum, and inside
        all of a nest."""
        across: list[str] = []
        serial: list[str] = []
        last: list[str] = []
        copies: list[str] = []
        for name in [v.name for v in space.own if v.name not in self.done]:
            self.done.add(name)  # sums and nests that have a variable in common share its loops
            width, chains = self.choice.inner.get(name, (1, 1))
            here, loops = name, [name]
            inside = any(name in self.around[x] for x in self.across)
            if width > 1 and not inside and self.across.isdisjoint(self.around[name]):
                self.across.add(name)
                here, lane = f"{name}b", f"{name}l"
                self.split(name, here, lane, width, "rest")
                across.append(lane)
                self.lanes.append(lane)
                loops = [here]
            count = chains if space.is_sum else 1
            line = max(self.choice.line, 1) if here != name else 1
            if count * line > 1:
                loop, chain = f"{name}k", f"{name}c"
                self.split(here, loop, chain, count * line, "rest")
                loops = [loop, chain]
                self.unroll.append(chain)
                if count > 1:
                    self.parts.append(chain)
            if name in self.choice.unroll or name in self.choice.copies:
                self.unroll.append(loops[0])
            if here != name:
                last = loops
            elif name in self.choice.copies:
                copies += loops
            else:
                serial += loops
        return [*across, *serial, *last, *copies] if space.is_sum else [*serial, *last, *across, *copies]
