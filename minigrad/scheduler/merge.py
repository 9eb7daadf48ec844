"""Sibling kernels: groups over the same index space that read the same values become one kernel with several outputs.

    two reductions over the same space        batch norm's mean and variance read an activation once instead of twice
    a reduction and what is elementwise in it  the running statistics are written by the kernel that finds them; an
                                               activation by the product that its gradient reads
    elementwise kernels over the same domain  an optimizer's moments and its parameter are one update

Groups merge only where no path leads from one to the other through a third, so that an order still exists.
"""
from __future__ import annotations

from typing import Any

from minigrad.errors import InternalError
from minigrad.ops.op import Scan
from minigrad.scheduler.fusion import MAX_MEMBERS
from minigrad.scheduler.graph import numel
from minigrad.scheduler.groups import ATTENTIONS, Fusion, Group, operand_accesses, peeled

MAX_OUTPUTS = 8
SIBLINGS = 64
"""The number of fusion groups of the same space that are looked at, before and after one: the work stays linear in the
graph."""


def merge_siblings(state: Fusion, merger: Merger) -> None:
    """Merges fusion groups, smallest number first, so that the result is deterministic."""
    buckets: dict[tuple[Any, ...], list[int]] = {}
    for g in range(len(state.groups)):
        key = merger.space(g)
        if key is not None:
            buckets.setdefault(key, []).append(g)
    for candidates in buckets.values():
        place = {g: i for i, g in enumerate(candidates)}
        pending = candidates[::-1]
        while pending:
            a = pending.pop()
            apart = merger.touched(a).isdisjoint
            for b in candidates[max(place[a] - SIBLINGS, 0):place[a] + SIBLINGS]:
                if a == b or apart(merger.touched(b)):
                    continue
                if state.groups[a].roots and state.groups[b].roots and merger.may_merge(a, b):
                    pending.append(merger.merge(a, b))
                    break


def merge_attentions(state: Fusion, merger: Merger) -> None:
    """An attention with its sums, and the gradients of one attention: one kernel each, by the weights they share."""
    graph = state.graph
    hosts: dict[tuple[Any, ...], int] = {}
    for g, group in enumerate(state.groups):
        root = group.roots[0] if group.roots else None
        if root is None or graph.nodes[root].op.name not in ATTENTIONS:
            continue
        node, inputs = graph.nodes[root], graph.inputs[root]
        gradient = node.op.name == "attention_gradient"
        read = inputs if gradient else (*inputs[:2], *inputs[2 if node.op.name == "attention_sums" else 3:])
        key = (gradient, read, *[node.params[name] for name in ("scale", "causal", "window", "softcap")])
        host = hosts.get(key)
        if host is None or merger.path_between(host, g) or state.apart(
                state.groups[host].roots, group.roots) or (not gradient and same_operation(state, host, root)):
            hosts[key] = g
        else:
            hosts[key] = merger.merge(host, g)


def merge_loops(state: Fusion, merger: Merger) -> None:
    """The results of one loop with a carried state: one kernel."""
    hosts: dict[tuple[Any, ...], int] = {}
    for g, group in enumerate(state.groups):
        node = state.graph.nodes[group.roots[0]] if group.roots else None
        if node is not None and type(node.op.lower) is Scan:
            key = node.op, state.graph.inputs[group.roots[0]], node.params["length"], node.params["reverse"]
            hosts[key] = merger.merge(hosts[key], g) if key in hosts else g


def same_operation(state: Fusion, g: int, k: int) -> bool:
    """True where one of the fusion group's roots has the operation of Node `k`."""
    return any(state.graph.nodes[r].op is state.graph.nodes[k].op for r in state.groups[g].roots)


def dependencies(state: Fusion, g: int) -> set[int]:
    """The fusion groups whose roots group `g` reads."""
    group_of, inputs = state.group_of, state.graph.inputs
    found = {group_of[i] for m in state.groups[g].members for i in inputs[m] if i in group_of}
    found.discard(g)
    return found


def is_update(state: Fusion, k: int) -> bool:
    return state.graph.nodes[k].op.name in ("assign", "scatter")


def covers(state: Fusion, k: int) -> bool:
    """True where an assign replaces its whole target."""
    node = state.graph.nodes[k]
    return node.inputs[1].shape == node.shape and all(start == 0 and step == 1 for start, step in node.params["region"])


class Merger:
    """The fusion groups with what each reads, and as bit sets everything that each needs, directly or not.

    A merged group keeps the bits of both: a group that needs one of them needs both from then on.
    """

    def __init__(self, state: Fusion):
        self.state = state
        groups = state.groups
        self.needs = [dependencies(state, g) if groups[g].roots else set() for g in range(len(groups))]
        self.above = ancestors(self.needs)
        self.merged: dict[int, int] = {}
        self.reads: dict[int, set[int]] = {}
        self.touches: dict[int, set[int]] = {}
        self.reduces: dict[int, tuple[Any, ...] | None] = {}
        self.elsewhere: set[int] = set()
        """The fusion groups that compute roots of theirs at other elements again."""

    def space(self, g: int) -> tuple[Any, ...] | None:
        """The device and the index space of the outputs, which siblings have in common; None for groups that never
        merge."""
        state, group = self.state, self.state.groups[g]
        if len(group.roots) != 1 or group.row is not None:
            return None
        root = group.roots[0]
        node, kind = state.graph.nodes[root], state.graph.kinds[root]
        if node.op.name == "assign":
            return (node.device, node.shape) if covers(state, root) else None
        return (node.device, node.shape) if kind in ("elementwise", "reduce") else None

    def operands(self, g: int) -> set[int]:
        """The materialised nodes and leaves that a fusion group reads."""
        found = self.reads.get(g)
        if found is None:
            graph, group_of = self.state.graph, self.state.group_of
            found = {i for m in self.state.groups[g].members for i in graph.inputs[m]
                     if graph.leaf[i] or group_of.get(i, g) != g}
            self.reads[g] = found
        return found

    def touched(self, g: int) -> set[int]:
        """The nodes that a fusion group reads or makes: groups that have none of them in common share no work."""
        found = self.touches.get(g)
        if found is None:
            found = self.touches[g] = self.operands(g).union(self.state.groups[g].roots)
        return found

    def may_merge(self, a: int, b: int) -> bool:
        """True where one kernel instead of two reads less, and is possible."""
        x, y = self.state.groups[a], self.state.groups[b]
        if len(x.roots) + len(y.roots) > MAX_OUTPUTS or x.size + y.size > MAX_MEMBERS or self.state.apart(
                x.roots, y.roots):
            return False
        return not self.path_between(a, b) and self.shares_work(a, b) and self.updates_in_step(a, b)

    def shares_work(self, a: int, b: int) -> bool:
        """True where they share an operand of the size of the space that they run over, or one reads what the other
        computes, element by element."""
        state = self.state
        x, y = self.reduced(a), self.reduced(b)
        if x is not None and y is not None:
            if x != y or state.groups[a].contraction or state.groups[b].contraction:
                return False
            if not all(self.aligned(h, k) for g, h in ((a, b), (b, a))
                       for k in sorted(self.operands(h).intersection(state.groups[g].roots))):
                return False  # a step of a recurrence would compute all steps before it again for each element
            size = numel(x[0])
            return any(2 * state.graph.counts[k] >= size for k in self.operands(a) & self.operands(b))
        if x is None and y is None:
            shared = self.operands(a) & self.operands(b)
        else:
            first, second = (a, b) if x is not None else (b, a)
            shared = self.operands(second) & set(state.groups[first].roots)
        return any(self.aligned(g, k) for k in sorted(shared) for g in (a, b) if k in self.operands(g))

    def reduced(self, g: int) -> tuple[Any, ...] | None:
        """(shape, axes) that every reduction of the fusion group runs over; None without reductions or if they
        differ."""
        if g not in self.reduces:
            graph = self.state.graph
            spaces = {(graph.nodes[graph.inputs[k][0]].shape, graph.nodes[k].params.get("axes"))
                      for k in self.state.groups[g].reductions}
            self.reduces[g] = spaces.pop() if len(spaces) == 1 else None if not spaces else ((), g)
        return self.reduces[g]

    def aligned(self, g: int, k: int) -> bool:
        """True where the fusion group reads node `k` element by element, each at the index of its own output only."""
        state, group = self.state, self.state.groups[g]
        at = group.members[group.roots[0]][0]
        users, inputs = state.graph.users[k], state.graph.inputs
        if len(users) > len(group.members):  # a learning rate, which every parameter's update reads
            users = [m for m in group.members if k in inputs[m]]
        for u in users:
            for here in group.members.get(u, ()):
                if is_update(state, u) and state.graph.inputs[u][0] == k and state.graph.inputs[u][1] != k:
                    continue
                if any(there != at for there in operand_accesses(state, u, k, here)):
                    return False
        return True

    def path_between(self, a: int, b: int) -> bool:
        """True where one needs the other through a third fusion group."""
        for x, y in ((a, b), (b, a)):
            if self.above[y] >> x & 1 and any(self.above[d] >> x & 1 for d in self.current(self.needs[y]) - {x}):
                return True
        return False

    def current(self, groups: set[int]) -> set[int]:
        found = set()
        for g in groups:
            while g in self.merged:
                g = self.merged[g]
            found.add(g)
        return found

    def updates_in_step(self, a: int, b: int) -> bool:
        """True where assigns of the merged kernel may update in place. It may read what they replace and what they
        write at the assigned element only, and may not compute a root, which may read that, elsewhere again. It may not
        compute what is replaced: old and new values lie in one place."""
        state = self.state
        targets = []
        roots = {*state.groups[a].roots, *state.groups[b].roots}
        for g in (a, b):
            for k in state.groups[g].roots:
                if is_update(state, k):
                    old = peeled(state.graph, state.graph.inputs[k][0])
                    if old in roots or state.graph.nodes[old].shape != state.graph.nodes[k].shape:
                        return False
                    targets += [old, k]
        if len(set(targets)) < len(targets):
            return False
        if targets and (not self.elsewhere.isdisjoint((a, b)) or self.reads_elsewhere(a, b)):
            return False
        return all(self.aligned(g, k) for k in targets for g in (a, b) if k in self.operands(g))

    def reads_elsewhere(self, a: int, b: int) -> bool:
        """True where one of two fusion groups reads a root of the other at another element than its own."""
        return any(not self.aligned(g, k) for g, h in ((a, b), (b, a))
                   for k in self.operands(g).intersection(self.state.groups[h].roots))

    def merge(self, a: int, b: int) -> int:
        """Joins two fusion groups; the one that needs the other comes first. Gives the number of the joint group."""
        return self.join(b, a) if a in self.current(self.needs[b]) else self.join(a, b)

    def join(self, first: int, second: int) -> int:
        """Adds everything of the second fusion group to the first one, whose first root stays first."""
        state = self.state
        keep, gone = state.groups[first], state.groups[second]
        if second in self.elsewhere or self.reads_elsewhere(first, second):
            self.elsewhere.add(first)
        keep.roots += gone.roots
        keep.reductions += gone.reductions
        for m, at in gone.members.items():
            keep.members[m] = tuple(dict.fromkeys(keep.members.get(m, ()) + at))
        keep.size += gone.size
        keep.reasons += gone.reasons
        for k in gone.roots:
            state.group_of[k] = first
        for m in gone.members:
            inside = state.inside.get(m)
            if inside and second in inside:
                inside.discard(second)
                inside.add(first)
        state.groups[second] = Group([], ())
        self.merged[second] = first
        self.needs[first] = self.current(self.needs[first] | self.needs[second]) - {first}
        self.reads.pop(first, None)
        self.touches.pop(first, None)
        self.reduces.pop(first, None)
        both = 1 << first | 1 << second
        self.above[first] = (self.above[first] | self.above[second]) & ~both
        more = self.above[first] | both
        self.above = [bits | more if bits & both else bits for bits in self.above]
        return first


def ancestors(needs: list[set[int]]) -> list[int]:
    """Bit sets of all that each fusion group needs, directly or not. Raises InternalError where two need each other."""
    result = [0] * len(needs)
    done = [False] * len(needs)
    for start in range(len(needs)):
        stack, entered = [(start, False)], set()
        while stack:
            g, ready = stack.pop()
            if done[g]:
                continue
            if ready:
                for d in needs[g]:
                    result[g] |= result[d] | 1 << d
                done[g] = True
            elif g in entered:
                raise InternalError(f"[schedule] kernel {g} waits for what is computed from it")
            else:
                entered.add(g)
                stack.append((g, True))
                stack += [(d, False) for d in needs[g] if not done[d]]
    return result
