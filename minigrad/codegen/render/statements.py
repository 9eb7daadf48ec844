"""Statements of loop IR to instructions; `block` walks them, `STATEMENTS` has a function for each kind.

Accesses are in `accesses.py`, values in `values.py`, index arithmetic in `index.py`; where instructions go is decided
in `emitter.py`, and a language supplies their texts (`language.py`).
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from minigrad.codegen.ir.nodes import Alloc, Barrier, Call, If, Let, Loop, Prefetch, Stmt, Store
from minigrad.codegen.render.accesses import write
from minigrad.codegen.render.conditions import mask_of
from minigrad.codegen.render.index import index
from minigrad.codegen.render.refs import INDEX, Ref, Scope
from minigrad.codegen.render.totals import totals
from minigrad.errors import InternalError
from minigrad.expr import bounds, to_text

if TYPE_CHECKING:
    from minigrad.codegen.render.emitter import Emitter


def block(out: Emitter, body: Sequence[Stmt]) -> None:
    """Statements in order; names given in it end with it."""
    locals_, memory = out.locals, out.memory
    own = False
    for s in body:
        if out.brief:
            out.brief = {}
        kind = type(s)
        if not own and (kind is Let or kind is Alloc):
            out.locals, out.memory, own = dict(locals_), dict(memory), True
        STATEMENTS[kind](out, s)
    if own:
        for s in body:
            if isinstance(s, Alloc):  # nothing reads a register buffer any more
                for slot in out.memory[s.name].slots:
                    out.scope.held.pop(slot, None)
        out.locals, out.memory = locals_, memory


def store(out: Emitter, s: Store) -> None:
    """A store under conditions that are the same in every lane is a branch; others are masked."""
    memory, mask = out.memory[s.buffer], None
    if s.conditions:
        left = out.copies.left(s.conditions)
        if left is None:
            return
        mask = mask_of(out, left)
        if mask is not None and mask.lanes == 1 and memory.place != "register":
            branch(out, mask, (Store(s.buffer, s.offset, s.value),), ())
            return
    write(out, memory, s, mask)


def let(out: Emitter, s: Let) -> None:
    out.locals[s.name] = out.values.emit(s.value)


def allocate(out: Emitter, s: Alloc) -> None:
    out.memory[s.name] = out.storage.allocate(s)


def prefetch(out: Emitter, s: Prefetch) -> None:
    out.access.prefetch(out.memory[s.buffer], out.copies.at(s.offset), s.far)


def barrier(out: Emitter, s: Barrier) -> None:
    out.epoch += 1
    out.control.barrier()


def microkernel(out: Emitter, s: Call) -> None:
    if out.copies.copy:
        buffers = tuple([(name, out.copies.at(offset)) for name, offset in s.buffers])
        s = Call(s.kernel, buffers, s.scalars, tuple([out.copies.at(e) for e in s.dims]))
    out.control.call_microkernel(s)
    for name, _ in s.buffers:
        out.memory[name].version += 1


def choose(out: Emitter, s: If) -> None:
    left = out.copies.left(s.conditions)
    if not left:
        block(out, s.otherwise if left is None else s.then)
        return
    out.language.comment("if " + " and ".join(f"{to_text(e)} >= 0" for e in left))
    mask = mask_of(out, left)
    if mask is not None and mask.lanes > 1:
        raise InternalError(f"[render] {out.function.name}: an if inside a vector loop may not depend on the lane")
    branch(out, mask, s.then, s.otherwise)


def loop(out: Emitter, s: Loop) -> None:
    if s.kind == "unroll":
        unrolled(out, s)
        return
    var, s = s.var, out.copies.placed(s)
    out.language.comment(f"for {s.var.name} in {to_text(s.start)}..{to_text(s.stop)} {s.kind}")
    out.brief = {}
    memo = out.memo
    out.memo = {} if s.kind == "vector" else dict(memo)
    iterations(out, s)
    out.memo = memo
    out.copies.copy.pop(var, None)


def unrolled(out: Emitter, s: Loop) -> None:
    """The body once per iteration, in the same scope."""
    if totals(out, s):
        return
    for number in out.copies.numbers(s):
        out.copies.copy[s.var] = number
        block(out, s.body)
    out.copies.copy.pop(s.var, None)


def iterations(out: Emitter, s: Loop) -> None:
    """A loop that is one in the text, or lanes."""
    if s.kind == "vector":
        if s.stop == 1:
            out.variables[s.var] = out.constant(0, INDEX)
            block(out, s.body)
            return
        if out.lane is not None or s.start != 0 or not isinstance(s.stop, int):
            raise InternalError(f"[render] {out.function.name}: vector loop {s.var.name} expected 0..constant, "
                                f"not nested")
        out.lane = s.var
        out.set_width(s.stop, s.stop)
        out.control.vector_body(s)
        out.lane = None
        out.set_width(1, 1)
        return
    trips = s.stop - s.start
    if out.copies.range_of(trips)[1] <= 0:
        return
    if trips == 1 and s.kind == "serial":
        out.variables[s.var] = only_iteration(out, s)
        block(out, s.body)
        return
    variable, state = out.control.open_loop(s)
    out.variables[s.var] = variable
    out.epoch += 1
    out.control.region(s.body)
    out.epoch += 1
    out.control.close_loop(s, out.scopes.pop(), state)


def only_iteration(out: Emitter, s: Loop) -> Ref:
    """The variable of a loop of one iteration. Where its start may leave the variable's bounds outside this scope
    (in another branch), nothing that those bounds prove may move out."""
    start = index(out, s.start)
    lo, hi = out.copies.range_of(s.start)
    if bounds(s.var.lo)[1] <= lo and hi <= bounds(s.var.hi)[0]:
        return start
    return Ref(start.text, start.dtype, start.lanes, len(out.scopes) - 1)


def branch(out: Emitter, mask: Ref | None, then: Sequence[Stmt], otherwise: Sequence[Stmt]) -> None:
    if mask is None:
        block(out, then)
        return
    out.brief = {}
    memo = out.memo
    sides: list[Scope] = []
    for body in (then, otherwise) if otherwise else (then,):
        out.epoch += 1
        out.scopes.append(Scope(crossable=False, label=out.language.name("branch."), held=out.scope.held))
        out.memo = dict(memo)
        out.control.region(body)
        sides.append(out.scopes.pop())
    out.memo = memo
    out.epoch += 1
    out.control.close_if(mask, sides[0], sides[1] if otherwise else None)


STATEMENTS: dict[type[Stmt], Callable[[Emitter, Any], None]] = {
    Store: store, Let: let, Loop: loop, If: choose, Alloc: allocate, Call: microkernel, Prefetch: prefetch,
    Barrier: barrier}
