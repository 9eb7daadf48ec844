"""Loop -> loop: unrolled loops become straight code."""
from __future__ import annotations

from collections.abc import Mapping

from minigrad.codegen.ir.nodes import Alloc, Call, Function, If, Let, Loop, Prefetch, Stmt, Store
from minigrad.codegen.ir.walk import map_function, names, statements
from minigrad.codegen.kernel.value_walk import Rewriter
from minigrad.errors import InternalError
from minigrad.expr import Index, Var, bounds


def unroll(function: Function) -> Function:
    """Expands every loop of kind 'unroll', after which register buffers have constant offsets. (Halide: unroll)

        for i in 0..2 unroll:                     let t_0 = a[0]
          let t = a[i]               ->           y[0] = t_0 * t_0
          y[i] = t * t                            let t_1 = a[1]
                                                  y[1] = t_1 * t_1

    Lets and allocations inside are renamed in each copy. Conditions that a copy decides are resolved: a guarded store
    that never happens and the branch of an `if` that is never taken disappear. Loops of other kinds are left as loops.
    Raises InternalError when the bounds of an unrolled loop are not constant.
    """
    if not any(isinstance(s, Loop) and s.kind == "unroll" for s in statements(function)):
        return function
    expansion = _Expansion(names(function))
    plain = Rewriter({})
    return map_function(function, lambda body: tuple(expansion.body(body, plain, "")))


def copied(body: tuple[Stmt, ...], variables: Mapping[Var, Index], used: set[str], suffix: str) -> tuple[Stmt, ...]:
    """The statements with index variables replaced and what they name renamed; `used` grows by the new names."""
    return tuple(_Expansion(used).body(body, Rewriter(variables), suffix))


class _Expansion:
    """Copies of statements under a substitution. `suffix` says which copy it is; empty outside all unrolled loops."""

    def __init__(self, used: set[str]):
        self.used = used

    def body(self, body: tuple[Stmt, ...], rewriter: Rewriter, suffix: str) -> list[Stmt]:
        made: list[Stmt] = []
        for s in body:
            if isinstance(s, Loop):
                made.extend(self._loop(s, rewriter, suffix))
            elif isinstance(s, Store):
                conditions = _left(s.conditions, rewriter)
                if conditions is not None:
                    offset, value = rewriter.index(s.offset), rewriter.value(s.value)
                    made.append(Store(rewriter.name(s.buffer), offset, value, conditions))
            elif isinstance(s, Let):
                value = rewriter.value(s.value)
                made.append(Let(self._rename(s.name, rewriter, suffix), value))
            elif isinstance(s, Prefetch):
                made.append(Prefetch(rewriter.name(s.buffer), rewriter.index(s.offset), s.far))
            elif isinstance(s, Alloc):
                made.append(Alloc(self._rename(s.name, rewriter, suffix), s.dtype, s.size, s.scope))
            elif isinstance(s, If):
                made.extend(self._if(s, rewriter, suffix))
            elif isinstance(s, Call):
                buffers = tuple((rewriter.name(name), rewriter.index(offset)) for name, offset in s.buffers)
                scalars, dims = map(rewriter.value, s.scalars), map(rewriter.index, s.dims)
                made.append(Call(s.kernel, buffers, tuple(scalars), tuple(dims)))
            else:
                made.append(s)
        return made

    def _loop(self, s: Loop, rewriter: Rewriter, suffix: str) -> list[Stmt]:
        start, stop = rewriter.index(s.start), rewriter.index(s.stop)
        if s.kind != "unroll":
            var, inner = s.var, _extended(rewriter, {}) if suffix else rewriter
            lo, hi = rewriter.index(var.lo), rewriter.index(var.hi)
            if lo != var.lo or hi != var.hi:
                var = Var(var.name, lo, hi)
                inner = _extended(rewriter, {s.var: var})
            return [Loop(var, start, stop, s.kind, tuple(self.body(s.body, inner, suffix)))]
        if not (isinstance(start, int) and isinstance(stop, int)):
            raise InternalError(f"[unroll] expected constant bounds of {s.var.name}, got {start}..{stop}")
        return [made for i in range(start, stop)
                for made in self.body(s.body, _extended(rewriter, {s.var: i}), f"{suffix}_{i}")]

    def _if(self, s: If, rewriter: Rewriter, suffix: str) -> list[Stmt]:
        conditions = _left(s.conditions, rewriter)
        if not conditions:
            return self.body(s.otherwise if conditions is None else s.then, _extended(rewriter, {}), suffix)
        then = tuple(self.body(s.then, _extended(rewriter, {}), suffix))
        otherwise = tuple(self.body(s.otherwise, _extended(rewriter, {}), suffix))
        return [If(conditions, then, otherwise)] if then or otherwise else []

    def _rename(self, name: str, rewriter: Rewriter, suffix: str) -> str:
        """The name in this copy, free in the whole function; what follows in the block refers to it."""
        if not suffix:
            return name
        fresh = name + suffix
        while fresh in self.used:
            fresh += "_"
        self.used.add(fresh)
        rewriter.rename(name, fresh)
        return fresh


def _extended(rewriter: Rewriter, variables: Mapping[Var, Index]) -> Rewriter:
    return Rewriter({**rewriter.variables, **variables}, rewriter.names)


def _left(conditions: tuple[Index, ...], rewriter: Rewriter) -> tuple[Index, ...] | None:
    """The conditions that are not proven true; None when one is proven false."""
    left: list[Index] = []
    for c in conditions:
        c = rewriter.index(c)
        lo, hi = bounds(c)
        if hi < 0:
            return None
        if lo < 0:
            left.append(c)
    return tuple(left)
