"""The launches of a step as a graph in layers (Sugiyama): which read what others write, and where each is drawn."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from minigrad.report.explained.step import Step, Timed

MOST_DRAWN = 120
"""The boxes of a picture; neighbours beyond are drawn as one."""

SWEEPS = 4
"""The times that the boxes of each layer are ordered by those above and below them."""


@dataclass(slots=True)
class Box:
    """Launches `first` to `last` of a step, drawn at a place of a layer; `reads` are the boxes whose results they
    read."""

    first: int
    last: int
    seconds: float
    line: str
    reads: frozenset[int] = frozenset()
    layer: int = 0
    place: float = 0.0


def boxes_of(step: Step) -> list[Box]:
    """The boxes in order of the launches. Neighbours of one line are joined first, then those that take least."""
    boxes = [Box(k, k, t.seconds, t.plan.lines.get(t.item, "")) for k, t in enumerate(step.launches)]
    boxes = _joined(_chunked(boxes), MOST_DRAWN)
    owner = [0] * len(step.launches)
    for b, box in enumerate(boxes):
        owner[box.first:box.last + 1] = [b] * (box.last - box.first + 1)
    for b, sources in enumerate(_sources(step.launches, owner, len(boxes))):
        boxes[b].reads = frozenset(sources - {b})
    _place(boxes)
    return boxes


def _chunked(boxes: list[Box]) -> list[Box]:
    """At most a few times as many boxes as are drawn, of equally many launches."""
    size = -(-len(boxes) // (8 * MOST_DRAWN))
    return [_one(boxes[k:k + size]) for k in range(0, len(boxes), size)] if size > 1 else boxes


def _one(boxes: Sequence[Box]) -> Box:
    longest = max(boxes, key=lambda b: b.seconds)
    return Box(boxes[0].first, boxes[-1].last, sum([b.seconds for b in boxes]), longest.line)


def _joined(boxes: list[Box], most: int) -> list[Box]:
    """Neighbours as one, until there are few enough."""
    while len(boxes) > most:
        k = min(range(len(boxes) - 1), key=lambda k: (boxes[k].line != boxes[k + 1].line,
                                                       boxes[k].seconds + boxes[k + 1].seconds))
        boxes[k:k + 2] = [_one(boxes[k:k + 2])]
    return boxes


def _sources(launches: Sequence[Timed], owner: Sequence[int], count: int) -> list[set[int]]:
    """For each box, the boxes whose results it reads, in the same run of a plan."""
    found: list[set[int]] = [set() for _ in range(count)]
    writers: dict[tuple[int, int], int] = {}
    for k, t in enumerate(launches):
        item = t.plan.items[t.item]
        for slot in item.reads:
            source = writers.get((id(t.plan), slot))
            if source is not None:
                found[owner[k]].add(owner[source])
        for slot in item.writes:
            writers[id(t.plan), slot] = k
    return found


def _place(boxes: list[Box]) -> None:
    """Layers by the longest path from the begin, places in a layer by the mean of the neighbours."""
    layers: dict[int, list[int]] = {}
    for b, box in enumerate(boxes):
        before = [boxes[r].layer for r in box.reads if r < b]
        box.layer = 1 + max(before) if before else (boxes[b - 1].layer if b and not box.reads else 0)
        layers.setdefault(box.layer, []).append(b)
    readers: dict[int, list[int]] = {}
    for b, box in enumerate(boxes):
        for r in box.reads:
            readers.setdefault(r, []).append(b)
    for layer in layers.values():
        _spread(boxes, layer)
    for sweep in range(SWEEPS):
        for number in sorted(layers, reverse=bool(sweep % 2)):
            near = {b: (readers.get(b, []) if sweep % 2 else list(boxes[b].reads)) for b in layers[number]}
            layers[number].sort(key=lambda b: sum([boxes[n].place for n in near[b]]) / len(near[b]) if near[b]
                                else boxes[b].place)
            _spread(boxes, layers[number])


def _spread(boxes: list[Box], layer: Sequence[int]) -> None:
    for k, b in enumerate(layer):
        boxes[b].place = k - (len(layer) - 1) / 2
