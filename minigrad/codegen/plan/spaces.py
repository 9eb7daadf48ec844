"""Which statements of a nest run in one loop nest, and the loops that a plan may name."""
from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache

from minigrad.codegen.kernel.nodes import Define, Kernel, Nest, Store, is_sum
from minigrad.codegen.kernel.value_walk import Rewriter, loaded, locals_of
from minigrad.codegen.kernel.walk import assignments, statements
from minigrad.expr import Var
from minigrad.record import record
from minigrad.value import Value

Unit = tuple[Define, ...] | Define | Store | Nest
"""Sums that share their loops, or one other statement."""


def touched(body: Sequence[Unit]) -> tuple[set[str], set[str]]:
    """The buffers that statements read, and those that they store to."""
    flat = tuple([s for u in body for s in (u if isinstance(u, tuple) else (u,))])
    own = list(assignments(flat))
    return loaded(*[s.value for s in own]), {s.param for s in own if isinstance(s, Store)}


def repeats(kernel: Kernel, nest: Nest) -> bool:
    """True where elements may be stored again: nothing reads what is stored, before or meanwhile."""
    read, stored = touched(nest.body)
    return stored.isdisjoint(read) and all([p.mode == "out" for p in kernel.params if p.name in stored]) and \
        all([s.combine is None for s in statements(nest.body) if isinstance(s, Store)])


def units(body: Sequence[Define | Store | Nest]) -> list[Unit]:
    """The statements in the order in which they run: sums as early as what they read allows, and together with others
    of equal extents that read no more."""
    pending, made = list(body), list[Unit]()
    own = {s.name for s in body if isinstance(s, Define)}
    known: set[str] = set()
    while pending:
        ready = []
        for s in pending:
            if not isinstance(s, Define):
                break
            if is_sum(s) and not (locals_of(s.value) & own) - known:
                ready.append(s)
        if not ready:
            s = pending.pop(0)
            made.append(s)
            known |= {s.name} if isinstance(s, Define) else set()
            continue
        extents = [v.hi for v in ready[0].value.over]
        group = tuple([s for s in ready if [v.hi for v in s.value.over] == extents])
        made.append(group)
        known |= {s.name for s in group}
        pending = [s for s in pending if not any(s is t for t in group)]
    return made


@record
class Space:
    """The index variables of one loop nest: a domain, or a sum's and those of `others`, sums that share it. `around`:
    those of inner nests and sums that it is inside of."""

    own: tuple[Var, ...]
    is_sum: bool = False
    others: tuple[tuple[Var, ...], ...] = ()
    around: tuple[Var, ...] = ()

    @property
    def along(self) -> dict[str, str]:
        """By name of each of `others`, the variable in whose loops it runs."""
        return {v.name: own.name for over in self.others for v, own in zip(over, self.own, strict=True)}


@lru_cache(maxsize=1024)
def spaces(nest: Nest) -> tuple[Space, ...]:
    """The loop nests of a nest in order, its domain first; sums inside one value over the same variables are one."""
    return tuple({space.own: space for space in (Space(nest.domain), *_spaces(nest, ()))}.values())


def _spaces(nest: Nest, around: tuple[Var, ...]) -> Iterator[Space]:
    """Those inside a nest."""
    for u in units(nest.body):
        if isinstance(u, Nest):
            yield Space(u.domain, around=around)
            yield from _spaces(u, (*around, *u.domain))
        elif isinstance(u, tuple):
            first, *others = [s.value.over for s in u]
            yield Space(first, True, tuple(others), around)
            for s in u:
                yield from _sums_inside(s.value.args[0], (*around, *first))
        else:
            yield from _sums_inside(u.value, around)


def _sums_inside(value: Value, around: tuple[Var, ...]) -> Iterator[Space]:
    """Those of the reductions in a value."""
    if value.op == "reduce":
        over = value.over
        yield Space(over, True, (), around)
        around = (*around, *over)
    if value.reduces:
        for a in value.args:
            yield from _sums_inside(a, around)


def terms_of_sums(group: Sequence[Define], names: Mapping[str, Value] | None = None) -> list[Value]:
    """The terms of sums that share loops, over the variables of the first one, `names` in place of definitions."""
    return [Rewriter(dict(zip(s.value.over, group[0].value.over, strict=True)), locals_=names).value(s.value.args[0])
            for s in group]
