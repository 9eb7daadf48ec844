"""The rules of loop IR (see `nodes.py`), checked after each pass in tests and under `config.verify`."""
from __future__ import annotations

from dataclasses import dataclass, field

from minigrad.codegen.ir.nodes import Alloc, Barrier, Call, Function, If, Let, Loop, Prefetch, Stmt, Store
from minigrad.codegen.ir.text import KINDS, MODES, SCOPES, meaning_of
from minigrad.codegen.ir.walk import indices, statements, values
from minigrad.codegen.kernel.value_verify import check_name, check_types, check_variables, fail, index_variables
from minigrad.codegen.microkernels.microkernel import Microkernel
from minigrad.dtype import DType
from minigrad.expr import Index, Var, bounds, to_text, variables
from minigrad.value import Value, indices_of, values_inside, walk


def verify_function(function: Function) -> None:
    """Raises InternalError naming the function, the statement and the rule that it breaks."""
    scope = _Scope(function.name)
    for d in function.dims:
        scope.bind(d.name)
        if d.value is not None:
            raise fail(function.name, f"dim {d.name} has a run-time value, which may not be part of a function")
        check_variables(f"{function.name}, dim {d.name}", variables(d.lo) | variables(d.hi), scope.variables)
        scope.variables.append(d)
    for p in function.buffers:
        scope.bind(p.name)
        if p.mode not in MODES:
            raise fail(function.name, f"expected a mode of {', '.join(MODES)} for {p.name}, got {p.mode!r}")
        check_variables(f"{function.name}, parameter {p.name}", variables(p.size), scope.variables)
        check_variables(f"{function.name}, parameter {p.name}", () if p.start is None else (p.start,), scope.variables)
        scope.buffers[p.name] = _Memory(p.dtype, None, p.mode, False)
    for s in function.scalars:
        scope.bind(s.name)
        scope.locals[s.name] = (s.dtype, False)
    if sum(isinstance(s, Loop) and s.kind in ("parallel", "group") for s in statements(function)) > 1:
        raise fail(function.name, "expected at most one parallel or group loop")
    _block(function.body, scope, top=True)


@dataclass(slots=True)
class _Memory:
    dtype: DType
    size: int | None  # of a register buffer
    mode: str
    lanes: bool       # allocated inside the vector loop: one per lane


@dataclass(slots=True)
class _Scope:
    """The names that a statement may use. `lane` is the variable of the enclosing vector or item loop; `items` is True
    for an item loop, `group` directly in the body of a group loop."""

    where: str
    names: set[str] = field(default_factory=set)
    variables: list[Var] = field(default_factory=list)
    locals: dict[str, tuple[DType, bool]] = field(default_factory=dict)  # type, and whether it depends on the lane
    buffers: dict[str, _Memory] = field(default_factory=dict)
    lane: Var | None = None
    items: bool = False
    group: bool = False
    unrolling: frozenset[Var] = frozenset()  # variables of the enclosing unrolled loops

    def inner(self, var: Var | None = None, lane: bool = False) -> _Scope:
        return _Scope(self.where, set(self.names), [*self.variables, *([var] if var else [])],
                      dict(self.locals), dict(self.buffers), var if lane else self.lane, self.items,
                      unrolling=self.unrolling)

    def bind(self, name: str) -> None:
        check_name(self.where, name, self.names)
        self.names.add(name)


def _block(body: tuple[Stmt, ...], scope: _Scope, top: bool = False) -> None:
    for s in body:
        where = f"{scope.where}, {_describe(s)}"
        for e in indices(s):
            check_variables(where, variables(e), scope.variables)
        for v in (*values(s), *values_inside(indices(s))):
            _check_value(where, v, scope)
        if isinstance(s, Loop):
            _check_loop(where, s, scope, top)
        elif isinstance(s, If):
            if any(_varies(e, scope) for e in s.conditions):
                raise fail(where, "the conditions of an if may not depend on the lane")
            _block(s.then, scope.inner())
            _block(s.otherwise, scope.inner())
        elif isinstance(s, Alloc):
            scope.bind(s.name)
            if s.scope not in SCOPES or not isinstance(s.size, int) or s.size < 0:
                raise fail(where, f"expected a constant size and a scope of {', '.join(SCOPES)}")
            if s.scope == "local" and not scope.group:
                raise fail(where, "local memory is allocated directly in a group loop")
            size = s.size if s.scope == "register" else None
            scope.buffers[s.name] = _Memory(s.dtype, size, "inout", scope.lane is not None)
        elif isinstance(s, Let):
            scope.bind(s.name)
            scope.locals[s.name] = s.value.dtype, _varying(s.value, scope)
        elif isinstance(s, Store):
            _check_store(where, s, scope)
        elif isinstance(s, Call):
            _check_call(where, s, scope)
        elif isinstance(s, Barrier) and not scope.items:
            raise fail(where, "a barrier may not stand outside an item loop")
        elif isinstance(s, Prefetch) and s.buffer not in scope.buffers:
            raise fail(where, f"{s.buffer} is not a buffer here")


def _describe(s: Stmt) -> str:
    if isinstance(s, Loop):
        return f"for {s.var.name} {s.kind}"
    if isinstance(s, Store):
        return f"store {s.buffer}[{to_text(s.offset)}]"
    if isinstance(s, If):
        return f"if {' and '.join(map(str, s.conditions))}"
    if isinstance(s, Call):
        return f"call {s.kernel.name}"
    if isinstance(s, Prefetch):
        return f"prefetch {s.buffer}[{to_text(s.offset)}]"
    return "barrier" if isinstance(s, Barrier) else f"{type(s).__name__.lower()} {s.name}"


def _check_loop(where: str, s: Loop, scope: _Scope, top: bool) -> None:
    if s.kind not in KINDS:
        raise fail(where, f"expected a kind of {', '.join(KINDS)}")
    if s.kind in ("parallel", "group") and not (top and s.start == 0):
        raise fail(where, f"a {s.kind} loop is outermost and runs from 0")
    if s.kind == "item" and not scope.group:
        raise fail(where, "an item loop stands directly in a group loop")
    if s.kind == "unroll" and not (variables(s.start) | variables(s.stop)) <= scope.unrolling:
        raise fail(where, "the bounds of an unrolled loop may depend only on unrolled loops")
    if s.kind in ("vector", "item"):
        if scope.lane is not None:
            raise fail(where, "a vector loop may not stand inside another")
        if s.start != 0 or not isinstance(s.stop, int) or s.stop < 1:
            raise fail(where, f"expected a loop ({s.kind}) from 0 to a constant, got {s.start}..{s.stop}")
    elif _varies(s.start, scope) or _varies(s.stop, scope):
        raise fail(where, "the bounds of a loop may not depend on the lane")
    if bounds(s.stop - s.start)[0] > 0 and (bounds(s.var.lo - s.start)[0] > 0 or bounds(s.stop - 1 - s.var.hi)[0] > 0):
        raise fail(where, f"the variable is bounded by {s.var.lo}..{s.var.hi}, but runs {s.start}..{s.stop}")
    scope = scope.inner()
    scope.bind(s.var.name)
    inner = scope.inner(s.var, s.kind in ("vector", "item"))
    inner.items, inner.group = scope.items or s.kind == "item", s.kind == "group"
    if s.kind == "unroll":
        inner.unrolling = scope.unrolling | {s.var}
    _block(s.body, inner)


def _check_store(where: str, s: Store, scope: _Scope) -> None:
    memory = scope.buffers.get(s.buffer)
    if memory is None:
        raise fail(where, "the buffer is not known here")
    if memory.mode == "in":
        raise fail(where, "an input is never stored to")
    if memory.dtype is not s.value.dtype:
        raise fail(where, f"expected a value of {memory.dtype.name}, got {s.value.dtype.name}")
    _check_offset(where, memory, s.offset, scope)
    alone = scope.lane is not None and -scope.lane in s.conditions  # lane 0
    if scope.lane is not None and not memory.lanes and not alone and not _varies(s.offset, scope) \
            and _varying(s.value, scope):
        raise fail(where, "one element is stored with a value that depends on the lane")


def _check_call(where: str, s: Call, scope: _Scope) -> None:
    meaning = meaning_of(s.kernel)
    if scope.lane is not None and not scope.items:
        raise fail(where, "a call may not stand inside a vector loop")
    counts = [(len(s.buffers), len(meaning.buffers)), (len(s.scalars), len(meaning.scalars)),
              (len(s.dims), len(meaning.dims))]
    if any(got != expected for got, expected in counts):
        raise fail(where, f"(got, expected) buffers, scalars and dims: {counts}")
    for (name, offset), param in zip(s.buffers, meaning.buffers, strict=True):
        memory = scope.buffers.get(name)
        if memory is None or memory.dtype is not param.dtype:
            raise fail(where, f"expected a buffer of {param.dtype.name} for {param.name}, got {name}")
        in_registers = memory.size is not None
        if (in_registers and not (scope.items and isinstance(param.size, int))) \
                or (memory.mode == "in" and param.mode != "in"):
            raise fail(where, f"{name} is no memory that {param.name} can be")
        if in_registers:
            _check_offset(where, memory, offset + param.size - 1, scope)
        if param.mode != "in" and sum(name == other for other, _ in s.buffers) > 1:
            raise fail(where, f"{name} is written and given twice")
    for value, scalar in zip(s.scalars, meaning.scalars, strict=True):
        if value.dtype is not scalar.dtype:
            raise fail(where, f"expected a {scalar.dtype.name} for {scalar.name}, got {value.dtype.name}")
    for e, dim in zip(s.dims, meaning.dims, strict=True):
        if bounds(e)[1] < bounds(dim)[0] or bounds(e)[0] > bounds(dim)[1]:  # others are for `check_accesses`
            raise fail(where, f"{dim.name} is {bounds(dim)[0]}..{bounds(dim)[1]}, got {to_text(e)} in "
                              f"{bounds(e)[0]}..{bounds(e)[1]}")


def verify_meaning(kernel: Microkernel) -> None:
    """A microkernel's meaning runs by itself: no parallel loop, no scratch, no calls, constant bounds of its dims."""
    meaning = meaning_of(kernel)
    verify_function(meaning)
    for s in statements(meaning):
        if isinstance(s, Call | Barrier) or (isinstance(s, Alloc) and s.scope == "scratch") \
                or (isinstance(s, Loop) and s.kind == "parallel"):
            raise fail(kernel.name, f"a meaning has no {_describe(s)}")
    for d in meaning.dims:
        if not (isinstance(d.lo, int) and isinstance(d.hi, int)):
            raise fail(kernel.name, f"expected constant bounds of {d.name}")


def _check_offset(where: str, memory: _Memory, offset: Index, scope: _Scope) -> None:
    if memory.size is None:
        return
    if not variables(offset) <= scope.unrolling or (isinstance(offset, int) and not 0 <= offset < memory.size):
        raise fail(where, f"a register offset is a constant below {memory.size} after unrolling, got {offset}")


def _check_value(where: str, root: Value, scope: _Scope) -> None:
    def leaf(v: Value) -> None:
        if v.op == "local":
            known = scope.locals.get(v.name)
            if known is None or known[0] is not v.dtype:
                raise fail(where, f"{v.name} is read as {v.dtype.name} and is "
                                  f"{known[0].name if known else 'not bound'} here")
            return
        name, at = v.buffer, v.indices
        memory = scope.buffers.get(name)
        if memory is None or memory.dtype is not v.dtype or len(at) != 1:
            raise fail(where, f"load of {name} as {v.dtype.name} at {len(at)} offsets; it is "
                              f"{memory.dtype.name + ' with one offset' if memory else 'not known'} here")
        _check_offset(where, memory, at[0], scope)

    check_types(where, root, leaf)
    for v in walk(root):
        if v.op == "reduce":
            raise fail(where, "a whole reduction belongs to kernels, not to loop IR")
        if v.op == "across" and (scope.lane is None or scope.items):
            raise fail(where, "across(...) outside a vector loop")
    check_variables(where, index_variables(root), scope.variables)


def _varies(e: Index, scope: _Scope) -> bool:
    """True where an index depends on the lane."""
    if scope.lane is None or isinstance(e, int):
        return False
    return scope.lane in variables(e) or any(_varying(v, scope) for v in values_inside((e,)))


def _varying(root: Value, scope: _Scope) -> bool:
    """True where a value depends on the lane."""
    if scope.lane is None:
        return False
    varying: dict[Value, bool] = {}
    for v in walk(root):
        found = v.op != "across" and any(varying[a] for a in v.args)
        if v.op == "local":
            found = scope.locals[v.name][1]
        elif v.op == "load":
            found = scope.buffers[v.buffer].lanes
        found = found or any(scope.lane in variables(e) for e in indices_of(v))
        found = found or any(varying[inner] for inner in v.inner)
        varying[v] = found
    return varying[root]
