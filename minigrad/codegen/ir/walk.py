"""Going through loop IR: every statement, the values and indices in it, and rebuilding with parts replaced."""
from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from minigrad.codegen.ir.nodes import Alloc, Call, Function, If, Let, Loop, Prefetch, Stmt, Store
from minigrad.expr import Index
from minigrad.value import Value, value_atoms, walk

Body = tuple[Stmt, ...]


def statements(body: Function | Iterable[Stmt]) -> list[Stmt]:
    """Every statement in order of the text, an enclosing one before those inside it."""
    found: list[Stmt] = []
    _collect(body.body if isinstance(body, Function) else body, found)
    return found


def _collect(body: Iterable[Stmt], found: list[Stmt]) -> None:
    """Goes as deep as loops and branches are nested."""
    for s in body:
        found.append(s)
        if type(s) is Loop:
            _collect(s.body, found)
        elif type(s) is If:
            _collect(s.then, found)
            _collect(s.otherwise, found)


def blocks(s: Stmt) -> tuple[Body, ...]:
    """The statement lists directly inside a statement."""
    if isinstance(s, Loop):
        return (s.body,)
    return (s.then, s.otherwise) if isinstance(s, If) else ()


def values(s: Stmt) -> tuple[Value, ...]:
    """The values that a statement evaluates itself."""
    if isinstance(s, Call):
        return s.scalars
    return (s.value,) if isinstance(s, (Let, Store)) else ()


def indices(s: Stmt) -> tuple[Index, ...]:
    """The index expressions that a statement holds itself, outside its values."""
    if isinstance(s, Store):
        return (s.offset, *s.conditions)
    if isinstance(s, Loop):
        return (s.start, s.stop)
    if isinstance(s, Call):
        return (*(offset for _, offset in s.buffers), *s.dims)
    if isinstance(s, Prefetch):
        return (s.offset,)
    return s.conditions if isinstance(s, If) else ()


def all_values(s: Stmt) -> list[Value]:
    """Every Value that a statement evaluates itself once, operands first; those inside its indices too."""
    return walk(*values(s), *(a.value for e in indices(s) for a in value_atoms(e)))


def map_blocks(s: Stmt, fn: Callable[[Body], Body]) -> Stmt:
    """The statement with `fn` applied to each statement list directly inside it; itself if nothing changed."""
    if isinstance(s, Loop):
        body = fn(s.body)
        return s if body is s.body else Loop(s.var, s.start, s.stop, s.kind, body)
    if isinstance(s, If):
        then, otherwise = fn(s.then), fn(s.otherwise)
        return s if then is s.then and otherwise is s.otherwise else If(s.conditions, then, otherwise)
    return s


def map_all(body: Body, value: Callable[[Value], Value], index: Callable[[Index], Index],
            offset: Callable[[str, Index], Index]) -> Body:
    """Statements, and those inside them, with every value, index expression and `offset(buffer, index)` replaced."""
    def statement(s: Stmt) -> Stmt:
        if type(s) is Store:
            return Store(s.buffer, offset(s.buffer, s.offset), value(s.value), tuple(map(index, s.conditions)))
        if type(s) is Let:
            return Let(s.name, value(s.value))
        if isinstance(s, Loop):
            return Loop(s.var, index(s.start), index(s.stop), s.kind, tuple(map(statement, s.body)))
        if isinstance(s, If):
            then, otherwise = tuple(map(statement, s.then)), tuple(map(statement, s.otherwise))
            return If(tuple(map(index, s.conditions)), then, otherwise)
        if isinstance(s, Prefetch):
            return Prefetch(s.buffer, offset(s.buffer, s.offset), s.far)
        if isinstance(s, Call):
            buffers = tuple([(name, offset(name, at)) for name, at in s.buffers])
            return Call(s.kernel, buffers, tuple(map(value, s.scalars)), tuple(map(index, s.dims)))
        return s

    return tuple(map(statement, body))


def map_function(function: Function, fn: Callable[[Body], Body]) -> Function:
    """The function with another body."""
    return Function(function.name, function.buffers, function.scalars, function.dims, fn(function.body))


def accesses(body: Function | Iterable[Stmt]) -> Iterator[tuple[str, Index, str]]:
    """(buffer, flat offset, 'load' or 'store') of every access in the text, those inside indices too."""
    for s in statements(body):
        if isinstance(s, Store):
            yield s.buffer, s.offset, "store"
        for v in all_values(s):
            if v.op == "load":
                yield v.buffer, v.indices[0], "load"


def touched(function: Function) -> set[str]:
    """Names of the buffers that are read or written, microkernels' included."""
    called = {name for s in statements(function) if isinstance(s, Call) for name, _ in s.buffers}
    return called | {name for name, _, _ in accesses(function)}


def has_scratch(function: Function) -> bool:
    """True where a function has memory of its own beside registers."""
    return any([isinstance(s, Alloc) and s.scope == "scratch" for s in statements(function)])


def fresh(stem: str, used: set[str]) -> str:
    """A name that is not in `used`, and is entered there: the stem, or the stem and a number."""
    count, name = 1, stem
    while name in used:
        count += 1
        name = f"{stem}_{count}"
    used.add(name)
    return name


def names(function: Function) -> set[str]:
    """Every name in use: parameters, dims, allocations, lets, loop variables."""
    used = {p.name for p in function.buffers} | {p.name for p in function.scalars} | {d.name for d in function.dims}
    for s in statements(function):
        if type(s) is Alloc or type(s) is Let:
            used.add(s.name)
        elif type(s) is Loop:
            used.add(s.var.name)
    return used
