"""The parts that expressions of a nest are computed from: operations, reads and guards."""
from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from minigrad.value import Value

FREE = frozenset(("load", "const", "index", "local", "reduce", "guard"))
"""Operations that are no instructions of their own; neither is the addition of a sum, which is one with its last
product."""


@dataclass(frozen=True, slots=True)
class Terms:
    """The parts of expressions: operations, reads, and guards."""

    operations: tuple[Value, ...]
    reads: tuple[Value, ...]
    guards: tuple[Value, ...]


@lru_cache(maxsize=1 << 12)
def terms(values: tuple[Value, ...], copied: frozenset[Value]) -> Terms:
    """The terms of some values; the parts that are `copied` are reads as a whole."""
    operations, reads, guards = list[Value](), list[Value](), list[Value]()
    todo, seen = list(reversed(values)), set[Value]()
    while todo:
        v = todo.pop()
        if v in seen:
            continue
        seen.add(v)
        if v.op == "load" or v in copied:
            reads.append(v)
            continue
        if v.op == "guard":
            guards.append(v)
        elif v.op not in FREE:
            operations.append(v)
        todo += v.args
    return Terms(tuple(operations), tuple(reads), tuple(guards))
