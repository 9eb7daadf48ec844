"""Going through nests: every statement, what it accesses, variables and index expressions, and nests with parts
replaced."""
from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from minigrad.codegen.kernel.nodes import Define, Nest, Store
from minigrad.codegen.kernel.value_walk import loads
from minigrad.expr import Expr, Index, Var
from minigrad.value import Value, expressions, reductions_in, values_inside

Statement = Define | Store | Nest
Indices = tuple[Index, ...]
Scope = tuple[Var, ...]
"""The variables of a domain or of a reduction."""


def statements(body: Iterable[Statement]) -> Iterator[Statement]:
    """Every statement in order of the text, a nest before what is inside it."""
    stack = list(reversed(tuple(body)))
    while stack:
        s = stack.pop()
        yield s
        if isinstance(s, Nest):
            stack.extend(reversed(s.body))


def assignments(body: Iterable[Statement]) -> Iterator[Define | Store]:
    """Every definition and store in order of the text, those of inner nests too."""
    return (s for s in statements(body) if not isinstance(s, Nest))


def values_of(body: Iterable[Statement]) -> Iterator[Value]:
    """The values of all statements in order, before each those used as indices of its store."""
    for s in assignments(body):
        if isinstance(s, Store):
            yield from values_inside(s.indices)
        yield s.value


def accesses_of(body: Iterable[Statement]) -> Iterator[tuple[str, Indices]]:
    """(buffer, indices) of every store and load, those inside indices too."""
    for s in assignments(body):
        if isinstance(s, Store):
            yield s.param, s.indices
        for v in loads(s.value, *(values_inside(s.indices) if isinstance(s, Store) else ())):
            yield v.buffer, v.indices


def scopes_of(body: Iterable[Statement]) -> list[Scope]:
    """The variables of each domain and each reduction, once."""
    found: dict[Scope, None] = {}
    for s in statements(body):
        found |= dict.fromkeys([s.domain] if isinstance(s, Nest) else [v.over for v in reductions_in(s.value)])
    return list(found)


def bound_variables(body: Iterable[Statement]) -> list[Var]:
    """The variables that domains and reductions bind, once."""
    return list(dict.fromkeys([v for scope in scopes_of(body) for v in scope]))


def expressions_of(body: Iterable[Statement]) -> list[Expr]:
    """Every index expression of domains, stores and values, once; not the extents of reductions."""
    found: dict[Index, None] = {}
    for s in statements(body):
        if isinstance(s, Nest):
            found |= dict.fromkeys([v.hi for v in s.domain])
            continue
        if isinstance(s, Store):
            found |= dict.fromkeys(s.indices)
        found |= dict.fromkeys(expressions(s.value))
    return [e for e in found if not isinstance(e, int)]


def map_nest(nest: Nest, value: Callable[[Value], Value], at: Callable[[str, Indices], Indices],
             scope: Callable[[Scope], Scope] = lambda over: over, name: Callable[[str], str] = str) -> Nest:
    """The nest, and those inside it, with every value replaced, the indices `at(buffer, indices)` of stores, the
    variables of domains, and the names of definitions and of buffers that are stored to."""
    body: list[Statement] = []
    for s in nest.body:
        if isinstance(s, Nest):
            body.append(map_nest(s, value, at, scope, name))
        elif isinstance(s, Define):
            body.append(Define(name(s.name), value(s.value)))
        else:
            body.append(Store(name(s.param), at(s.param, s.indices), value(s.value), s.combine))
    return Nest(scope(nest.domain), tuple(body))
