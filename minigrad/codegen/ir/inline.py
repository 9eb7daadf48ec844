"""Call -> the body of its microkernel's meaning."""
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

    Names of the meaning are renamed in each copy.
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
    dims = dict(zip(meaning.dims, call.dims, strict=True))
    return _Copy(used).body(meaning.body, _Placed(dims, {}, scalars, places))


def inlined_body(body: tuple[Stmt, ...], variables: Mapping[Var, Index], used: set[str]) -> tuple[Stmt, ...]:
    """Statements of a function inside another one that has its buffers: its variables are these, names of its own that
    are `used` are others, and all enter there. Loops that run once are none."""
    return _Copy(used, False).body(body, _Placed(variables, {}, {}, {}))


class _Placed(Rewriter):
    """A Rewriter that also moves accesses of buffers: `places` gives a buffer's new name and the offset where it starts
    there."""

    def __init__(self, variables: Mapping[Var, Index], renamed: Mapping[str, str], scalars: Mapping[str, Value],
                 places: Mapping[str, tuple[str, Index]]):
        super().__init__(variables, renamed, scalars)
        self.places = places

    def inner(self, variables: Mapping[Var, Index]) -> _Placed:
        return _Placed({**self.variables, **variables}, self.names, self.locals, self.places)

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


class _Copy:
    def __init__(self, used: set[str], single: bool = True):
        """`single`: loops that run once are kept, and all names new."""
        self.used, self.single = used, single

    def fresh(self, name: str) -> str:
        if not self.single:
            return fresh(name, self.used)
        count = 1
        while f"{name}_{count}" in self.used:
            count += 1
        self.used.add(f"{name}_{count}")
        return f"{name}_{count}"

    def body(self, body: tuple[Stmt, ...], rewriter: _Placed) -> tuple[Stmt, ...]:
        made: list[Stmt] = []
        for s in body:
            if isinstance(s, Store):
                conditions = tuple(rewriter.index(c) for c in s.conditions)
                made.append(Store(*rewriter.place(s.buffer, s.offset), rewriter.value(s.value), conditions))
            elif isinstance(s, Let):
                value = rewriter.value(s.value)
                made.append(Let(self._renamed(s.name, rewriter), value))
            elif isinstance(s, Alloc):
                made.append(replace(s, name=self._renamed(s.name, rewriter)))
            elif isinstance(s, If):
                made += self._if(s, rewriter)
            elif isinstance(s, Loop):
                made += self._loop(s, rewriter)
            elif isinstance(s, Prefetch):
                made.append(Prefetch(*rewriter.place(s.buffer, s.offset), s.far))
            elif isinstance(s, Call):
                buffers = tuple([rewriter.place(name, at) for name, at in s.buffers])
                made.append(Call(s.kernel, buffers, tuple(map(rewriter.value, s.scalars)),
                                 tuple(map(rewriter.index, s.dims))))
            else:
                made.append(s)
        return tuple(made)

    def _renamed(self, name: str, rewriter: _Placed) -> str:
        rewriter.rename(name, self.fresh(name))
        return rewriter.name(name)

    def _loop(self, s: Loop, rewriter: _Placed) -> tuple[Stmt, ...]:
        index = rewriter.index
        start, stop = index(s.start), index(s.stop)
        if s.kind == "serial" and stop - start == 1 and not self.single:
            return self.body(s.body, rewriter.inner({s.var: start}))
        var = Var(self.fresh(s.var.name), index(s.var.lo), index(s.var.hi))
        return (Loop(var, start, stop, s.kind, self.body(s.body, rewriter.inner({s.var: var}))),)

    def _if(self, s: If, rewriter: _Placed) -> tuple[Stmt, ...]:
        conditions = tuple(rewriter.index(c) for c in s.conditions)
        then, otherwise = (self.body(side, rewriter.inner({})) for side in (s.then, s.otherwise))
        if any(bounds(c)[1] < 0 for c in conditions):
            return otherwise
        return (If(conditions, then, otherwise),) if any(bounds(c)[0] < 0 for c in conditions) else then
