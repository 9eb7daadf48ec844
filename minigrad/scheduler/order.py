"""The order of kernels: after what they need, and among those that could be next the one that leaves least in memory.

A depth-first walk gives the order for the case that memory is no matter; it decides between equals, so that the order
is deterministic and results are used soon after they were made.
"""
from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from heapq import heapify, heappop, heappush

LOOK_AHEAD = 64
"""The most kernels that could be next and are looked at: the work stays linear in the graph."""


def lean_order(needs: Sequence[set[int]], wanted: list[int], makes: Mapping[int, float],
               reads: Mapping[int, set[int]], slow: Set[int] = frozenset()) -> list[int]:
    """The groups `wanted` after their `needs`. `makes[g]` are the bytes of the results of g, `reads[g]` the groups
    whose results it reads. What needs a `slow` group, which goes on beside others, comes after all that does not."""
    walk = depth_first(needs, wanted)
    waits = waits_of(needs, walk, slow)
    place = {g: (waits[g] if slow else 0, i) for i, g in enumerate(walk)}
    users: dict[int, list[int]] = {g: [] for g in walk}
    missing = {g: 0 for g in walk}
    for g in walk:
        for d in needs[g]:
            if d in place:
                users[d].append(g)
                missing[g] += 1
    readers: dict[int, set[int]] = {g: set() for g in walk}
    for g in walk:
        for d in reads[g]:
            if d in readers:
                readers[d].add(g)
    ready = sorted([g for g in walk if not missing[g]], key=place.__getitem__)
    order: list[int] = []
    growth = {g: makes[g] - sum([makes[d] for d in reads[g] if d in readers and len(readers[d]) == 1]) for g in walk}
    while ready:
        g = min(ready[:LOOK_AHEAD], key=lambda g: (place[g][0], growth[g], place[g][1]))
        ready.remove(g)
        order.append(g)
        for d in reads[g]:
            if d in readers:
                readers[d].discard(g)
                if len(readers[d]) == 1:
                    last, = readers[d]
                    growth[last] -= makes[d]  # which it will be the last to read
        for u in users[g]:
            missing[u] -= 1
            if not missing[u]:
                at = next((i for i, r in enumerate(ready) if place[r] > place[u]), len(ready))
                ready.insert(at, u)
    return order


def waits_of(needs: Sequence[set[int]], walk: Sequence[int], slow: Set[int]) -> dict[int, int]:
    """The most `slow` groups, one after the other, that each of `walk` (in an order that they can run in) comes
    after."""
    waits: dict[int, int] = {}
    for g in walk:
        waits[g] = max([waits[d] + (d in slow) for d in needs[g] if d in waits], default=0) if slow else 0
    return waits


def timed_order(needs: Sequence[set[int]], times: Mapping[int, float]) -> list[int]:
    """The groups in `times` after their `needs`, and otherwise by their times."""
    missing = {g: len(needs[g] & times.keys()) for g in times}
    users: dict[int, list[int]] = {}
    for g in times:
        for d in needs[g] & times.keys():
            users.setdefault(d, []).append(g)
    ready = [(times[g], g) for g in times if not missing[g]]
    heapify(ready)
    order: list[int] = []
    while ready:
        _, g = heappop(ready)
        order.append(g)
        for u in users.get(g, ()):
            missing[u] -= 1
            if not missing[u]:
                heappush(ready, (times[u], u))
    return order


def depth_first(needs: Sequence[set[int]], wanted: list[int]) -> list[int]:
    """Fusion groups after their needs; among free ones the highest number first, as groups were made users first."""
    order: list[int] = []
    done: set[int] = set()
    for start in sorted(wanted, reverse=True):
        stack = [(start, False)]
        while stack:
            g, ready = stack.pop()
            if g in done:
                continue
            if ready:
                done.add(g)
                order.append(g)
            else:
                stack.append((g, True))
                stack += [(d, False) for d in sorted(needs[g]) if d not in done]
    return order


def reaches(needs: Sequence[set[int]], starts: Iterable[int], goal: int) -> bool:
    """True where any of `starts` needs `goal`, directly or not. `needs[g]` is what `g` needs directly."""
    seen: set[int] = set()
    stack = list(starts)
    while stack:
        g = stack.pop()
        if g == goal:
            return True
        if g not in seen:
            seen.add(g)
            stack.extend(needs[g])
    return False
