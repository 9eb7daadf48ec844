"""Going through Values together with the values inside their indices, and replacing parts of them."""
from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from typing import Any

from minigrad.codegen.kernel.nodes import Store
from minigrad.expr import Binary, FloorDiv, Index, Min, Mod, Opaque, Var, dim, emax, emin, subs
from minigrad.value import Value, ValueIndex, rebuild, value_atoms, walk

Conditions = tuple[Index, ...]
"""All of them are `>= 0`."""


def below(root: Value, done: Container[Value]) -> Iterator[Value]:
    """Values at and below `root` that are not in `done`, operands first. The caller adds each one to `done`."""
    stack = [root]
    while stack:
        v = stack[-1]
        if v in done:
            stack.pop()
            continue
        missing = [a for a in v.operands if a not in done]
        if missing:
            stack.extend(reversed(missing))
        else:
            stack.pop()
            yield v


def replace_values(root: Value, by: Mapping[Value, Value]) -> Value:
    """`root` with parts of it replaced, outside indices."""
    done = dict(by)
    for v in below(root, done):
        done[v] = rebuild(v, tuple([done[a] for a in v.args]), v.attr)
    return done[root]


def rebuilt(root: Value, one: Callable[[Value, tuple[Value, ...]], Value | None]) -> Value:
    """`root` with what `one(value, operands)` makes of each value in it, operands first; where that is None, the same
    operation over these operands."""
    done: dict[Value, Value] = {}
    for v in walk(root):
        args = tuple([done[a] for a in v.args])
        done[v] = one(v, args) or rebuild(v, args, v.attr)
    return done[root]


def guarded_loads(roots: Iterable[Value], conditions: Conditions, left: Callable[[Conditions], Conditions | None]
                  ) -> Iterator[tuple[Value, Conditions]]:
    """The loads in values, once per set of conditions under which they happen: `conditions` and those of guards around
    them, of which `left` says what is not known, None if one is false."""
    todo = [(v, conditions) for v in roots]
    seen = set(todo)
    while todo:
        v, around = todo.pop()
        parts = [(a, around) for a in v.operands]
        if v.op == "load":
            yield v, around
        elif v.op == "guard":
            own = left(v.conditions)
            if own is None:
                parts = parts[1:]
            else:
                parts[0] = v.args[0], (*around, *[c for c in own if c not in around])
        for part in parts:
            if part not in seen:
                seen.add(part)
                todo.append(part)


def map_leaves(e: Index, fn: Callable[[Any], Any], least: Callable[[Any, Any], Any] = emin,
               most: Callable[[Any, Any], Any] = emax, opaque: Callable[[Any], Any] = dim) -> Any:
    """`e` with `fn` applied to each variable and each value used as an index in it, and simplified again; or computed,
    where `fn` gives numbers or arrays, with minimum and maximum of such."""
    if isinstance(e, int):
        return e
    total: Any = e.const
    for monomial, coefficient in e.terms:
        term: Any = coefficient
        for a in monomial:
            if isinstance(a, Binary):
                x, y = (map_leaves(part, fn, least, most, opaque) for part in (a.a, a.b))
                x = (x // y if isinstance(a, FloorDiv) else x % y if isinstance(a, Mod) else
                     least(x, y) if isinstance(a, Min) else most(x, y))
            else:
                x = opaque(map_leaves(a.inner, fn, least, most, opaque)) if isinstance(a, Opaque) else fn(a)
            term = term * x
        total = total + term
    return total


class Rewriter:
    """Replaces index variables and locals, and renames locals and buffers, all at once. Many roots share its memo.

    Variables bound inside the rewritten values must not be in `variables`.
    """

    def __init__(self, variables: Mapping[Var, Index], names: Mapping[str, str] | None = None,
                 locals_: Mapping[str, Value] | None = None):
        """`names` maps names of locals and of buffers; `locals_` gives values for locals."""
        self.locals = dict(locals_ or {})
        self.variables, self.names = variables, dict(names or {})
        self.done: dict[Value, Value] = {}

    def name(self, name: str) -> str:
        return self.names.get(name, name)

    def rename(self, name: str, to: str) -> None:
        """From here on; values that mention `name` must not have been rewritten yet."""
        self.names[name] = to

    def index(self, e: Index) -> Index:
        if isinstance(e, int):
            return e
        return map_leaves(e, self._leaf) if value_atoms(e) else subs(e, self.variables)

    def _leaf(self, a: Var | ValueIndex) -> Index:
        return self.variables.get(a, a) if isinstance(a, Var) else ValueIndex(self.value(a.value), a.lo, a.hi)

    def value(self, root: Value) -> Value:
        return self.rewritten(root) if self.variables or self.names or self.locals else root

    def stores(self, stores: Iterable[Store]) -> tuple[Store, ...]:
        return tuple([Store(s.param, tuple(map(self.index, s.indices)), self.value(s.value)) for s in stores])

    def rewritten(self, root: Value) -> Value:
        """The value with every node looked at."""
        found = self.done.get(root)
        if found is None:
            for v in below(root, self.done):
                self.done[v] = self._one(v)
            found = self.done[root]
        return found

    def _one(self, v: Value) -> Value:
        op = v.op
        if op == "const":
            return v
        if op == "load":
            attr: object = (self.names.get(v.buffer, v.buffer), tuple([self.index(e) for e in v.indices]))
        elif op == "index":
            attr = self.index(v.index)
        elif op == "local":
            if v.name in self.locals:
                return self.locals[v.name]
            attr = self.names.get(v.name, v.name)
        elif op == "guard":
            attr = tuple([self.index(e) for e in v.conditions])
        else:
            attr = v.attr
        return rebuild(v, tuple([self.done[a] for a in v.args]), attr)


def locals_of(value: Value) -> set[str]:
    """Names that a value reads."""
    return {v.name for v in walk(value) if v.op == "local"}


def loads(*values: Value) -> list[Value]:
    """The loads in values, those inside indices too, each once."""
    return [v for v in walk(*values) if v.op == "load"]


def loaded(*values: Value) -> set[str]:
    """The buffers that values read."""
    return {v.buffer for v in loads(*values)}
