"""Reads and stores of the statements of a plan, and those of them that lie together."""
from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter

from minigrad.codegen.machines.caches import LINE
from minigrad.codegen.plan.steps.stage import Stage
from minigrad.expr import Index
from minigrad.value import Value


@dataclass(frozen=True, slots=True)
class Read:
    """A value that is read inside the loops of a statement, or stored, at an offset of a buffer; `copy` is the step
    that makes a copy which is read in its place."""

    value: Value
    buffer: str
    offset: Index
    bytes: int
    copy: Stage | None = None


def together(reads: Sequence[Read]) -> Iterator[tuple[Read, int]]:
    """One of the reads that follow each other within a cache line, and the bytes of them all."""
    alike = dict[object, list[tuple[int, Read]]]()
    for r in reads:
        first = r.offset if isinstance(r.offset, int) else r.offset.const
        key = r if r.copy is not None else (r.buffer, r.offset - first)
        alike.setdefault(key, []).append((first * r.bytes, r))
    for group in alike.values():
        begin, one = min(group, key=itemgetter(0))
        end = begin
        for place, r in sorted(group, key=itemgetter(0)):
            if place >= begin + LINE:
                yield one, end - begin
                begin, one = place, r
            end = place + r.bytes
        yield one, end - begin
