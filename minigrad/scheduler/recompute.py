"""Rematerialisation: values that live from the forward to the backward pass are computed again, so that a plan's memory
stays within a budget (`jit(step, memory="2GB")`).

The order of kernels gives the bytes that live at each time. Those alive where that is most, at time T, that are read
both before and after it may be dropped after their last use before T; a copy of what computes them runs just before
their first use after T. Greedily, again and again, the value with most bytes per time of recomputation goes, at the
place where most bytes live then, until the peak fits. What a copy reads and is gone by then lives on, or is computed
again too, if it is large. Each copy is the same operations on the same operands: the same bits, random numbers too.

Sources: Chen et al. 2016, https://arxiv.org/abs/1604.06174; Kirisame et al. 2021, https://arxiv.org/abs/2006.09616,
whose cost of neighbours is that of what must be computed again as well
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from minigrad.expr import bounds, product
from minigrad.ops.node import Node, apply, apply_once
from minigrad.ops.op import Elementwise, Scan
from minigrad.scheduler.graph import Graph, build_graph
from minigrad.scheduler.groups import ATTENTIONS, Again, Fusion
from minigrad.scheduler.memory import plan_memory

ROUNDS = 4
"""The times that a graph whose values are computed again is looked at again."""

ROOM = 0.98
"""The share of the budget that the estimate may fill: memory that temporaries share has gaps."""

SMALL = 0.25
"""A value that is gone is kept for a copy rather than computed again if it is smaller than this share of the copy."""

FLOPS_PER_NS, BYTES_PER_NS = 50.0, 10.0
"""Work that a machine does in a nanosecond, for comparing recomputations with each other."""


@dataclass(slots=True)
class Timed:
    """The fusion groups of a graph in order, and what a Scheduler knows of them: `kept` are the positions of results,
    `in_place` those that overwrite others."""

    state: Fusion
    order: list[int]
    kept: set[int]
    in_place: set[int]


@dataclass(frozen=True, slots=True)
class Recomputation:
    """The outcome of a budget of memory: as many `values` are computed again, which adds the share `work` to the
    arithmetic; the bytes at the peak `before` and `after`."""

    values: int
    work: float
    before: int
    after: int


@dataclass(slots=True)
class Recomputed:
    """A graph in which as many `values` are computed `again`. `back` are positions in the graph that it came from;
    `before` and `after` are bytes at the peak, `work` is the share of the operations that is added."""

    graph: Graph
    back: list[int]
    again: Again | None = None
    before: int = 0
    after: int = 0
    values: int = 0
    work: float = 0.0


def recompute(graph: Graph, time: Callable[[Recomputed], Timed], budget: int) -> Recomputed:
    """The graph with as many values computed again as keeps its temporaries, and what it reads and gives, in `budget`
    bytes; nothing is computed again where that is so anyway, or where nothing helps. `time` fuses and orders."""
    now = best = Recomputed(graph, list(range(len(graph.nodes))))
    model = Model(time(now), budget)
    now.before = now.after = model.peak()
    flops = model.flops()
    for _ in range(ROUNDS):
        if best.after <= budget:
            break
        chosen = model.choose()
        if not chosen:
            break
        now = model.rewritten(chosen, now)
        model = Model(time(now), budget)
        now.before, now.after = best.before, model.peak()
        now.work = model.flops() / max(flops, 1.0) - 1
        best = now if now.after < best.after else best
    return best


class Model:
    """The times at which values of a fused graph are made and used, and what would live if some were computed again.

    A value is a root of a fusion group in memory of its own, by position. `reads[v]` are the values that a copy of v
    needs, `inner[v]` the other Nodes that it computes, `cost[v]` the nanoseconds that it takes.
    """

    def __init__(self, timed: Timed, budget: int):
        self.timed, self.state, self.graph = timed, timed.state, timed.state.graph
        self.born: dict[int, int] = {}
        self.uses: dict[int, list[int]] = {}
        graph, groups = self.graph, self.state.groups
        for t, g in enumerate(timed.order):
            for k in groups[g].roots:
                self.born[k] = t
                self.uses.setdefault(k, [])
            for i in {i for m in groups[g].members for i in graph.inputs[m]}:
                if self.state.group_of.get(i, g) != g:
                    self.uses.setdefault(i, []).append(t)
        self.length = len(timed.order)
        self.own = {k for k in self.born if k not in timed.kept and k not in timed.in_place}
        self.sizes = {k: self._bytes(k) for k in self.born}
        self.fixed = sum([self._bytes(k) for k in range(len(graph.nodes)) if graph.leaf[k]]) + sum(
            [self.sizes[k] for k in timed.kept if k in self.sizes and k not in timed.in_place])
        self.target = int((budget - self.fixed) * ROOM)
        self.reads: dict[int, list[int]] = {}
        self.inner: dict[int, list[int]] = {}
        self.cost: dict[int, float] = {}
        self._readers: dict[int, list[int]] = {}
        """The values whose copies read value k."""
        self.turn = int(self.curve({}).argmax()) if self.length else 0

    def _bytes(self, k: int) -> int:
        node = self.graph.nodes[k]
        return bounds(product(node.shape))[1] * node.dtype.itemsize

    def peak(self) -> int:
        """Bytes at the peak: what is read and given, and the arena of the temporaries."""
        uses: list[tuple[int, ...]] = [() for _ in range(self.length)]
        for k in self.own:
            for t in (self.born[k], *self.uses[k]):
                uses[t] = (*uses[t], k)
        return self.fixed + plan_memory({k: self.sizes[k] for k in self.own}, uses).nbytes

    def flops(self) -> float:
        """Operations, in nanoseconds."""
        return sum([sum(map(self._work, self.state.groups[g].members)) for g in self.timed.order])

    def _work(self, k: int) -> float:
        node = self.graph.nodes[k]
        if isinstance(node.op.lower, Elementwise):
            return self.graph.counts[k] * max(min(node.op.lower.flops, 1), 0) / FLOPS_PER_NS
        if self.graph.kinds[k] == "reduce":
            return self.graph.counts[self.graph.inputs[k][0]] / FLOPS_PER_NS
        if node.op.name in ATTENTIONS:
            keys = bounds(self.graph.nodes[self.graph.inputs[k][1]].shape[-2])[1]
            return 2.0 * self.graph.counts[k] * keys / FLOPS_PER_NS
        return 0.0

    # What lives when

    def curve(self, starts: dict[int, int]) -> np.ndarray:
        """The bytes that live at each time, where the values in `starts` are computed again at these times."""
        change = np.zeros(self.length + 1, np.int64)
        for k in self.own:
            size = self.sizes[k]
            for begin, end in self._lives(k, starts):
                change[begin] += size
                change[end + 1] -= size
        return change.cumsum()[:-1]

    def _lives(self, k: int, starts: dict[int, int]) -> list[tuple[int, int]]:
        if k not in starts:
            return [(self.born[k], self._end(k, starts))]
        first = max([t for t in self.uses[k] if t <= self.turn], default=self.born[k])
        return [(self.born[k], first), (starts[k], max([*self.uses[k], *self._copied(k, starts)]))]

    def _copied(self, k: int, starts: dict[int, int]) -> list[int]:
        """The times at which copies read value k."""
        return [starts[w] for w in self._readers.get(k, ()) if w in starts]

    def _end(self, k: int, starts: dict[int, int]) -> int:
        return max([self.born[k], *self.uses[k], *self._copied(k, starts)])

    def _starts(self, chosen: set[int]) -> dict[int, int]:
        """The time at which each chosen value is computed again: before its first use after the turn, by a copy too."""
        starts: dict[int, int] = {}
        for k in sorted(chosen, key=lambda k: -self.born[k]):
            late = [t for t in self.uses[k] if t > self.turn] + self._copied(k, starts)
            starts[k] = min(late, default=self.length - 1)
        return starts

    # What goes

    def choose(self) -> set[int]:
        """The values to compute again, as far as that helps."""
        crossing = [k for k in self.own if self.born[k] <= self.turn and any(t > self.turn for t in self.uses[k])]
        for k in self.own:
            if self.born[k] <= self.turn and self._may_repeat(k):
                self._note_cone(k)
        candidates = [k for k in crossing if k in self.reads]
        chosen: set[int] = set()
        starts: dict[int, int] = {}
        lives = self.curve({})
        while lives.max() > self.target:
            top = int(lives.argmax())
            best: tuple[float, set[int]] | None = None
            for k in candidates:
                if k not in chosen:
                    score, more = self._gain(k, top, chosen, starts)
                    if score > 0 and (best is None or score > best[0]):
                        best = score, more
            if best is None:
                break
            chosen |= best[1]
            starts = self._starts(chosen)
            lives = self.curve(starts)
        return chosen

    def _may_repeat(self, k: int) -> bool:
        node = self.graph.nodes[k]
        return node.op.name not in ("assign", "scatter", "copy", "sent", "exchange") and type(node.op.lower) is not Scan

    def _note_cone(self, k: int) -> None:
        """Finds what a copy of value k reads and computes."""
        graph, found, stack = self.graph, [k], list(self.graph.inputs[k])
        reads: dict[int, None] = {}
        seen = {k}
        while stack:
            i = stack.pop()
            if i in seen or graph.leaf[i]:
                continue
            seen.add(i)
            if i in self.state.group_of:
                reads[i] = None
            else:
                found.append(i)
                stack += graph.inputs[i]
        self.reads[k], self.inner[k] = list(reads), found[1:]
        moved = self.sizes[k] + sum([self.sizes[i] for i in reads])
        self.cost[k] = sum(map(self._work, found)) + moved / BYTES_PER_NS
        for i in reads:
            self._readers.setdefault(i, []).append(k)

    def _gain(self, k: int, top: int, chosen: set[int], starts: dict[int, int]) -> tuple[float, set[int]]:
        """(bytes that go at time `top` per nanosecond, the values that are computed again for it)."""
        again = min([t for t in self.uses[k] if t > self.turn] + self._copied(k, starts), default=0)
        first = max([t for t in self.uses[k] if t <= self.turn], default=self.born[k])
        if not first < top < again:
            return 0.0, set()
        more, cost, gain, stack = {k}, 0.0, self.sizes[k], [k]
        while stack:
            v = stack.pop()
            cost += self.cost[v]
            for u in self.reads[v]:
                if u in more or u in chosen or u not in self.own:
                    continue
                end = self._end(u, starts)
                if end >= min(again, top):
                    continue
                if u in self.reads and self.sizes[u] > SMALL * self.sizes[k]:
                    more.add(u)
                    stack.append(u)
                else:
                    gain -= self.sizes[u]
        return gain / cost, more

    # The graph

    def rewritten(self, chosen: set[int], before: Recomputed) -> Recomputed:
        """The graph in which what is computed after the turn reads copies of the chosen values."""
        graph, group_of = self.graph, self.state.group_of
        time_of = {g: float(t) for t, g in enumerate(self.timed.order)}
        under = {i for k in chosen for i in self.inner[k] if graph.kinds[i] != "free"}
        late: list[Node] = []
        origin: dict[Node, int] = {n: k for k, n in enumerate(graph.nodes)}
        copies = set() if before.again is None else set(before.again.copies)
        for k, node in enumerate(graph.nodes):
            early = k in group_of and time_of[group_of[k]] <= self.turn
            inputs = tuple([late[i] for i in graph.inputs[k]])
            if graph.leaf[k] or (early and k not in chosen):
                made = node
            elif k in chosen or (k in under and k not in group_of):
                made = apply_once(node.op, *inputs, **node.params)
                copies.add(made)
            elif all(new is graph.nodes[i] for new, i in zip(inputs, graph.inputs[k], strict=True)):
                made = node
            else:
                away = not inputs or node.device != inputs[0].device
                made = apply(node.op, *inputs, device=node.device if away else None, **node.params)
            late.append(made)
            origin.setdefault(made, k)
        roots = {n for k in group_of for n in (graph.nodes[k], late[k])}
        plain = build_graph([self._target(k, late, time_of) for k in graph.targets])
        times = self._times(plain, origin, copies, time_of)
        back = [before.back[origin[n]] for n in plain.nodes]
        return Recomputed(plain, back, Again(times, copies, roots), values=before.values + len(chosen))

    def _target(self, k: int, late: Sequence[Node], time_of: dict[int, float]) -> Node:
        below = k
        while below not in self.state.group_of and self.graph.inputs[below]:
            below = self.graph.inputs[below][0]
        g = self.state.group_of.get(below)
        return late[k] if g is not None and time_of[g] > self.turn else self.graph.nodes[k]

    def _times(self, plain: Graph, origin: dict[Node, int], copies: set[Node], time_of: dict[int, float],
               ) -> dict[Node, float]:
        """The time at which each Node is computed: as before, and a copy just before its first user."""
        plain.connect()
        times: dict[Node, float] = {}
        first: dict[int, float] = {}
        for k in reversed(range(len(plain.nodes))):
            node = plain.nodes[k]
            group = None if node in copies else self.state.group_of.get(origin[node])
            at = time_of[group] if group is not None else first.get(k, float(self.length)) - 1e-6
            times[node] = at
            for i in plain.inputs[k]:
                first[i] = min(first.get(i, at), at)
        return times
