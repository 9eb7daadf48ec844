"""Copies of statements: a call becomes the body of its microkernel's meaning."""
from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from minigrad.codegen.ir.nodes import Alloc, Call, Function, If, Let, Loop, Prefetch, Stmt, Store
from minigrad.codegen.ir.text import meaning_of
from minigrad.codegen.ir.walk import fresh, map_blocks, map_function, names, statements
from minigrad.codegen.kernel.value_walk import Rewriter
from minigrad.codegen.microkernels.microkernel import Microkernel
from minigrad.expr import Index, Var, bounds
from minigrad.value import Value, load


def inline_calls(function: Function, kept: Callable[[Microkernel], bool] = lambda _: False) -> Function:
    """Replaces every call by the statements that it means, for languages and targets without the implementation; but
    for those `kept`.

        call add_4(x[i * 4], y[0])      ->      for u in 0..4 serial:
                                                  y[u] = y[u] + x[i * 4 + u]

    Names of the meaning that are taken are others in each copy.
    """
    if not any(isinstance(s, Call) and not kept(s.kernel) for s in statements(function)):
        return function
    used = names(function)

    def body(statements: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        made: list[Stmt] = []
        for s in statements:
            made += inlined(s, used) if isinstance(s, Call) and not kept(s.kernel) else (map_blocks(s, body),)
        return tuple(made)

    return map_function(function, body)


def inlined(call: Call, used: set[str]) -> tuple[Stmt, ...]:
    """The statements that a call means; `used` grows by the names in them."""
    meaning = meaning_of(call.kernel)
    places = {b.name: place for b, place in zip(meaning.buffers, call.buffers, strict=True)}
    scalars = {s.name: value for s, value in zip(meaning.scalars, call.scalars, strict=True)}
    return _Copy(used, dict(zip(meaning.dims, call.dims, strict=True)), {}, scalars, places).body(meaning.body)


def copied(body: tuple[Stmt, ...], variables: Mapping[Var, Index], used: set[str]) -> tuple[Stmt, ...]:
    """Statements as they are inside another function, or once more in their own: its variables are these, names of
    their own that are `used` are others, and all enter there. Loops that run once are none."""
    return _Copy(used, variables, {}, {}, {}).body(body)


class _Copy(Rewriter):
    """A Rewriter that also moves accesses of buffers, and copies statements: `places` gives a buffer's new name and the
    offset where it starts there."""

    def __init__(self, used: set[str], variables: Mapping[Var, Index], renamed: Mapping[str, str],
                 scalars: Mapping[str, Value], places: Mapping[str, tuple[str, Index]]):
        super().__init__(variables, renamed, scalars)
        self.used, self.places = used, places

    def inner(self, variables: Mapping[Var, Index]) -> _Copy:
        """The same inside a block, with these variables besides."""
        return _Copy(self.used, {**self.variables, **variables}, self.names, self.locals, self.places)

    def value(self, root: Value) -> Value:
        return self.rewritten(root)

    def place(self, buffer: str, offset: Index) -> tuple[str, Index]:
        name, start = self.places.get(buffer, (self.name(buffer), 0))
        return name, start + self.index(offset)

    def _one(self, v: Value) -> Value:
        if v.op == "load":
            name, offset = self.place(v.buffer, v.indices[0])
            return load(name, (offset,), v.dtype)
        return super()._one(v)

    def body(self, body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        made: list[Stmt] = []
        for s in body:
            if isinstance(s, Store):
                conditions = tuple(map(self.index, s.conditions))
                made.append(Store(*self.place(s.buffer, s.offset), self.value(s.value), conditions))
            elif isinstance(s, Let):
                value = self.value(s.value)
                made.append(Let(self._renamed(s.name), value))
            elif isinstance(s, Alloc):
                made.append(replace(s, name=self._renamed(s.name)))
            elif isinstance(s, If):
                made += self._if(s)
            elif isinstance(s, Loop):
                made += self._loop(s)
            elif isinstance(s, Prefetch):
                made.append(Prefetch(*self.place(s.buffer, s.offset), s.far))
            elif isinstance(s, Call):
                buffers = tuple([self.place(name, at) for name, at in s.buffers])
                made.append(Call(s.kernel, buffers, tuple(map(self.value, s.scalars)), tuple(map(self.index, s.dims))))
            else:
                made.append(s)
        return tuple(made)

    def _renamed(self, name: str) -> str:
        self.rename(name, fresh(name, self.used))
        return self.name(name)

    def _loop(self, s: Loop) -> tuple[Stmt, ...]:
        start, stop = self.index(s.start), self.index(s.stop)
        if s.kind == "serial" and stop - start == 1:
            return self.inner({s.var: start}).body(s.body)
        var = Var(fresh(s.var.name, self.used), self.index(s.var.lo), self.index(s.var.hi))
        return (Loop(var, start, stop, s.kind, self.inner({s.var: var}).body(s.body)),)

    def _if(self, s: If) -> tuple[Stmt, ...]:
        conditions = tuple(map(self.index, s.conditions))
        then, otherwise = (self.inner({}).body(side) for side in (s.then, s.otherwise))
        if any(bounds(c)[1] < 0 for c in conditions):
            return otherwise
        return (If(conditions, then, otherwise),) if any(bounds(c)[0] < 0 for c in conditions) else then
