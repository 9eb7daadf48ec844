"""The places of a kernel's definitions and stores: a chain of nested domains."""
from __future__ import annotations

from collections.abc import Iterable, Sequence

from minigrad.codegen.kernel.nodes import Define, Nest, Store
from minigrad.codegen.kernel.value_walk import locals_of
from minigrad.errors import present
from minigrad.expr import Var, variables
from minigrad.value import free_variables


def arrange(domain: tuple[Var, ...], definitions: Iterable[Define], stores: list[tuple[frozenset[Var], Store]],
            late: Sequence[Define | Store] = ()) -> Nest:
    """The nest with definitions and stores at the outermost level that has their variables: a chain of nested domains.

    `late` ones come after the inner domain of their level, which is that of the variables in a store's indices.
    """
    whole = frozenset(domain)
    defined_at: dict[str, frozenset[Var]] = {}
    placed: list[tuple[frozenset[Var], Define | Store]] = []
    after = frozenset[Var]().union(*(variables(e) for s in late if isinstance(s, Store) for e in s.indices))
    for definition in definitions:
        level = free_variables(definition.value) & whole
        for name in locals_of(definition.value):
            level |= defined_at.get(name, frozenset())
        defined_at[definition.name] = level
        placed.append((level, definition))
    for level, store in stores:
        placed.append((whole if len(level) == len(whole) else level, store))
    levels = sorted({level for level, _ in placed} | ({after} if late else set()), key=len)
    chain: list[frozenset[Var]] = []
    for level in levels:
        if chain and not chain[-1] <= level:
            continue
        chain.append(level)
    if not chain or chain[-1] != whole:
        chain.append(whole)
    bodies: list[list[Define | Store | Nest]] = [[] for _ in chain]
    for level, statement in placed:
        bodies[next(k for k, c in enumerate(chain) if level <= c)].append(statement)
    nest: Nest | None = None
    for k in reversed(range(len(chain))):
        before = chain[k - 1] if k else frozenset()
        own = tuple(v for v in domain if v in chain[k] and v not in before)
        ends = tuple(late) if chain[k] == after else ()
        if nest is not None and not bodies[k] and not ends and k:
            nest = Nest(own + nest.domain, nest.body)
            continue
        body = tuple(bodies[k]) + ((nest,) if nest is not None else ()) + ends
        nest = Nest(own, body)
    nest = present(nest, "[lower] expected statements of a nest")
    if not any(not isinstance(s, Nest) for s in nest.body) and len(nest.body) == 1 and isinstance(nest.body[0], Nest):
        inner = nest.body[0]
        nest = Nest(nest.domain + inner.domain, inner.body)
    return nest
