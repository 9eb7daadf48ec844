"""Nests of a block that do something with each element that the one before has just stored become part of that.

    for i<64: s[i] = s[i] * p[64*t+i]                for i<64:
    for i<64: o[64*t+i] = s[i] + 1.0           ->      s_new = s[i] * p[64*t+i]
                                                       s[i] = s_new
                                                       o[64*t+i] = s_new + 1.0

Buffers of the block that nobody reads then are not stored.
"""
from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from minigrad.codegen.kernel.nodes import Block, Define, Kernel, Nest, Steps, Store, is_sum, nests_of
from minigrad.codegen.kernel.value_walk import Rewriter, loaded, loads, replace_values
from minigrad.codegen.kernel.walk import assignments
from minigrad.errors import present
from minigrad.expr import Index, Var
from minigrad.value import Value, load, local, reduce, substitute


def beside(kernel: Kernel, lane: str | None = None) -> Kernel:
    """The kernel of a block over flat buffers with fewer nests. Where work-items share nests without a variable `lane`,
    those do not read what they store: items beyond the last read its element, too."""
    block = present(kernel.block, "[beside] expected a block")
    body = _joined(block.body, lane)
    read = loaded(*[s.value for nest, _ in nests_of(body) for s in assignments((nest,))])
    unread = {p.name for p in block.local} - read
    local = tuple([p for p in block.local if p.name not in unread])
    return replace(kernel, block=Block(block.domain, local, _without(body, unread)))


def _joined(body: Sequence[Nest | Steps], lane: str | None) -> tuple[Nest | Steps, ...]:
    made: list[Nest | Steps] = []
    for s in body:
        last = made[-1] if made else None
        if isinstance(s, Steps):
            made.append(replace(s, body=_joined(s.body, lane)))
            continue
        both = _both(last, s, lane) if isinstance(last, Nest) else None
        made[-1:] = [both] if both is not None else [*made[-1:], _alike(s)]
    return tuple(made)


def _alike(nest: Nest) -> Nest:
    """The nest with one set of variables for all sums of as many terms: what lies along one lies along all."""
    first: dict[tuple[Index, ...], tuple[Var, ...]] = {}
    body: list[Define | Store | Nest] = []
    for s in nest.body:
        if is_sum(s) and not s.value.args[0].reduces:
            over = s.value.over
            same = first.setdefault(tuple([v.hi for v in over]), over)
            here = dict(zip(over, same, strict=True))
            s = Define(s.name, reduce(s.value.monoid, same, substitute(s.value.args[0], here)))
        body.append(s)
    return Nest(nest.domain, tuple(body))


def _both(a: Nest, b: Nest, lane: str | None) -> Nest | None:
    """One nest for two, where the second one has neither sums nor what the first one still needs."""
    if [v.hi for v in a.domain] != [v.hi for v in b.domain] or any(
            isinstance(s, Nest) or (isinstance(s, Store) and s.combine) for s in (*a.body, *b.body)):
        return None
    here = Rewriter(dict(zip(b.domain, a.domain, strict=True)))
    first: list[Define | Store] = []
    places: dict[str, Index] = {}
    known: dict[Value, Value] = {}
    for s in a.body:
        if isinstance(s, Store):
            if s.param in places:
                return None
            named = s.value.op == "local"
            new = s.value if named else local(f"{s.param}_new", s.value.dtype)
            known[load(s.param, s.indices, s.value.dtype)], places[s.param] = new, s.indices[0]
            if s.value.op == "load":
                known[s.value] = new
            first += [*([] if named else [Define(new.name, s.value)]), replace(s, value=new)]
        elif isinstance(s, Define):
            first.append(s)
    second = [s for s in b.body if isinstance(s, Store)]
    if len(second) != len(b.body) or any(s.value.reduces or s.param in places for s in second):
        return None
    stored = {s.param: here.index(s.indices[0]) for s in second}
    shared = lane is not None and all(v.name != lane for v in a.domain)
    if shared and any(x.buffer in stored for s in first for x in loads(s.value)):
        return None
    if any(stored.get(x.buffer, x.indices[0]) != x.indices[0] for s in first for x in loads(s.value)):
        return None
    then = [Store(s.param, (stored[s.param],), here.value(s.value)) for s in second]
    if any(places.get(x.buffer, x.indices[0]) != x.indices[0] for s in then for x in loads(s.value)):
        return None
    return Nest(a.domain, (*first, *[replace(s, value=replace_values(s.value, known)) for s in then]))


def _without(body: Iterable[Nest | Steps], unread: set[str]) -> tuple[Nest | Steps, ...]:
    """The nests and steps that are left without the stores to some buffers."""
    made = [replace(s, body=_without(s.body, unread)) if isinstance(s, Steps) else _nest_without(s, unread)
            for s in body]
    return tuple([s for s in made if s.body])


def _nest_without(nest: Nest, unread: set[str]) -> Nest:
    parts = [_nest_without(s, unread) if isinstance(s, Nest) else s for s in nest.body]
    left = [s for s in parts if (s.param not in unread if isinstance(s, Store) else not isinstance(s, Nest) or s.body)]
    return Nest(nest.domain, tuple(left) if any(not isinstance(s, Define) for s in left) else ())
