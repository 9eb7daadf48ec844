"""The rules of the kernel form (see `kernel.py`), checked in tests and under `config.verify`."""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from minigrad.codegen.kernel.coverage import Placed, box, linear, miscounted, points, uncovered
from minigrad.codegen.kernel.monoid import MONOIDS
from minigrad.codegen.kernel.nodes import Block, Define, Kernel, Nest, Param, Steps, Store, nests_of
from minigrad.codegen.kernel.text import MODES
from minigrad.codegen.kernel.value_eval import index_value
from minigrad.codegen.kernel.value_verify import check_name, check_types, check_variables, fail
from minigrad.codegen.kernel.value_walk import loads
from minigrad.codegen.kernel.walk import assignments, values_of
from minigrad.dtype import DType
from minigrad.expr import Index, Var, bounds, to_text, variables
from minigrad.value import Value, free_variables, value_atoms, values_inside, walk

COMBINES = (None, "set", *MONOIDS)
MOST_CONTEXTS = 4096      # (value, conditions) pairs looked at per statement
MOST_POINTS = 1 << 16     # of a guarded index that is checked point by point


def verify_kernel(kernel: Kernel, proven: bool = True) -> None:
    """Raises InternalError naming the kernel, the statement and the rule that it breaks.

    Loads are checked where their bounds can be decided: those of symbolic or loaded indices are not. Unless `proven`,
    so is that each element is stored once.
    """
    scope = _scope_of(kernel)
    if kernel.block is not None:
        return _check_block(kernel, kernel.block, scope)
    for nest in kernel.nests:
        _check_nest(nest, scope)
    _check_coverage(kernel, proven)
    _check_updates(kernel)


def _check_block(kernel: Kernel, block: Block, scope: _Scope) -> None:
    """The rules of a block: every nest is one of a kernel of its own, which may read what those before it stored and
    no buffer of the block's that none has stored to; and every element of an output is stored, where that is decided.
    That places are independent is for its maker to know, and for the interpreter to find wrong."""
    if kernel.nests:
        raise fail(kernel.name, "a block stands in place of nests")
    for v in block.domain:
        scope.bind(v.name)
        if v.lo != 0:
            raise fail(kernel.name, f"a domain starts at 0, got {v.name} from {v.lo}")
        check_variables(f"{kernel.name}, block {v.name}", variables(v.hi), kernel.dims)
    for p in block.local:
        scope.bind(p.name)
        _check_param(kernel, p)
        if p.mode != "inout" or p.layout is not None:
            raise fail(kernel.name, f"expected the mode inout and no layout of {p.name}, got {p.mode} and {p.layout}")
    scope.variables.extend(block.domain)
    _check_steps(block.body, scope)
    empty, late = {p.name for p in block.local}, tuple([s.var for s in _steps_of(block.body) if s.start != 0])
    for alone in kernel.alone():
        verify_nest(alone, alone.nests[0], kernel.dims + late)
        for s in assignments(alone.nests):
            for load in [x for root in values_of((s,)) for x, conditions in _guarded_loads(root) if not conditions]:
                if load.buffer in empty:
                    raise fail(kernel.name, f"{load.buffer} is read before anything is stored to it")
            if isinstance(s, Store):
                empty.discard(s.param)
    _check_stored(kernel, block)


def _check_steps(body: tuple[Nest | Steps, ...], outer: _Scope) -> None:
    for s in body:
        if isinstance(s, Steps):
            scope, where = outer.inner(), f"{outer.kernel.name}, steps {s.var.name}"
            scope.bind(s.var.name)
            check_variables(where, variables(s.start) | variables(s.var.hi), outer.variables)
            if s.var.lo != 0 or bounds(s.start)[0] < 0:
                raise fail(where, f"expected a variable from 0 and a start of at least 0, got {s.var.lo} and {s.start}")
            scope.variables.append(s.var)
            _check_steps(s.body, scope)


def _check_stored(kernel: Kernel, block: Block) -> None:
    """All places of a block together store each element of an output, where extents are numbers. Two may store the
    same one, as blocks do of which the last reaches back."""
    if any(s.start != 0 for s in _steps_of(block.body)):
        return
    stores = [x for nest, around in nests_of(block.body, block.domain) for x in _placed((nest,), around)]
    for p in kernel.params:
        if p.mode == "out":
            reason = miscounted([placed for s, placed in stores if s.param == p.name], p.shape, "at least")
            if reason is not None:
                raise fail(kernel.name, f"stores to {p.name}{list(p.shape)}: {reason}")


def _steps_of(body: tuple[Nest | Steps, ...]) -> Iterator[Steps]:
    for s in body:
        if isinstance(s, Steps):
            yield s
            yield from _steps_of(s.body)


def verify_nest(kernel: Kernel, nest: Nest, related: tuple[Var, ...] | None = None) -> None:
    """`verify_kernel` of one of the nests that a kernel runs as, which may read what others before it have stored.
    `related`: the dims between which there may be relations that are not stated, all unless told."""
    params = tuple([replace(p, mode="inout" if p.mode == "out" else p.mode) for p in kernel.params])
    _check_nest(nest, _scope_of(replace(kernel, params=params), related))


@dataclass(slots=True)
class _Scope:
    """The names that a statement may use."""

    kernel: Kernel
    related: tuple[Var, ...] | None = None
    names: set[str] = field(default_factory=set)
    variables: list[Var] = field(default_factory=list)
    locals: dict[str, DType] = field(default_factory=dict)
    stored: list[tuple[Store, tuple[Var, ...]]] = field(default_factory=list)

    def inner(self) -> _Scope:
        return _Scope(self.kernel, self.related, set(self.names), list(self.variables), dict(self.locals),
                      list(self.stored))

    def is_stored(self, name: str, at: tuple[Index, ...]) -> bool:
        """True where an inner domain before stored the output at these indices, over other variables."""
        own = [v for v in set[Var]().union(*map(variables, at)) if v not in self.variables]
        read = box(Placed(at, tuple(own)))
        return read is not None and any(s.param == name and box(Placed(s.indices, domain)) == read
                                        for s, domain in self.stored)

    def bind(self, name: str) -> None:
        check_name(self.kernel.name, name, self.names)
        self.names.add(name)


def _scope_of(kernel: Kernel, related: tuple[Var, ...] | None = None) -> _Scope:
    """The arguments of a kernel, which are checked."""
    scope = _Scope(kernel, related)
    for d in kernel.dims:
        scope.bind(d.name)
        if d.value is not None:
            raise fail(kernel.name, f"dim {d.name} has a run-time value, which may not be part of a kernel")
        check_variables(f"{kernel.name}, dim {d.name}", variables(d.lo) | variables(d.hi), scope.variables)
        scope.variables.append(d)
    for p in kernel.params:
        scope.bind(p.name)
        _check_param(kernel, p)
    for s in kernel.scalars:
        scope.bind(s.name)
        scope.locals[s.name] = s.dtype
    return scope


def _check_param(kernel: Kernel, p: Param) -> None:
    where = f"{kernel.name}, parameter {p.name}"
    if p.mode not in MODES:
        raise fail(where, f"expected a mode of {', '.join(MODES)}, got {p.mode!r}")
    for e in p.shape:
        check_variables(where, variables(e), kernel.dims)
    if p.layout is not None and sorted(p.layout) != list(range(len(p.shape))):
        raise fail(where, f"expected a layout that orders {len(p.shape)} axes, got {p.layout}")


def _check_nest(nest: Nest, outer: _Scope) -> None:
    scope = outer.inner()
    for v in nest.domain:
        scope.bind(v.name)
        if v.lo != 0:
            raise fail(scope.kernel.name, f"a domain starts at 0, got {v.name} from {v.lo}")
        check_variables(f"{scope.kernel.name}, for {v.name}", variables(v.hi), scope.kernel.dims)
    scope.variables.extend(nest.domain)
    for s in nest.body:
        if isinstance(s, Nest):
            _check_nest(s, scope)
            scope.stored += [(inner, placed.domain) for inner, placed in _placed((s,))]
            continue
        name = s.name if isinstance(s, Define) else f"store {s.param}[{', '.join(map(to_text, s.indices))}]"
        where = f"{scope.kernel.name}, {name}"
        if isinstance(s, Store):
            _check_store(where, s, scope)
        _check_value(where, s.value, scope)
        if isinstance(s, Define):
            scope.bind(s.name)
            scope.locals[s.name] = s.value.dtype


def _check_store(where: str, s: Store, scope: _Scope) -> None:
    param = next((p for p in scope.kernel.params if p.name == s.param), None)
    if param is None or param.mode == "in":
        raise fail(where, "an input is never stored to" if param else "there is no such parameter")
    if param.dtype is not s.value.dtype or len(param.shape) != len(s.indices):
        raise fail(where, f"expected {param.dtype.name} at {len(param.shape)} indices, "
                          f"got {s.value.dtype.name} at {len(s.indices)}")
    if s.combine not in COMBINES:
        raise fail(where, f"expected to combine by one of {COMBINES}, got {s.combine!r}")
    for e, extent in zip(s.indices, param.shape, strict=True):
        check_variables(where, variables(e), scope.variables)
        if s.combine is None and linear(e, scope.variables[len(scope.kernel.dims):]) is None:
            raise fail(where, f"a store takes affine indices, got {to_text(e)}")
        _check_bounds(where, e, extent, frozenset(), scope)
    for v in values_inside(s.indices):
        _check_value(where, v, scope)


def _check_value(where: str, root: Value, scope: _Scope) -> None:
    def leaf(v: Value) -> None:
        if v.op == "local":
            known = scope.locals.get(v.name)
            if known is not v.dtype:
                raise fail(where, f"{v.name} is read as {v.dtype.name} and is "
                                  f"{known.name if known else 'not bound'} here")
            return
        name, at = v.buffer, v.indices
        param = next((p for p in scope.kernel.params if p.name == name), None)
        if param is None or param.dtype is not v.dtype or len(param.shape) != len(at):
            raise fail(where, f"load of {name} as {v.dtype.name} at {len(at)} indices; it is "
                              f"{param.dtype.name + str(list(param.shape)) if param else 'not known'} here")
        if param.mode == "out" and not scope.is_stored(name, at):
            raise fail(where, f"the output {name} is read before an inner domain has stored it")

    check_types(where, root, leaf)
    bound: dict[Value, frozenset[str]] = {}
    for v in walk(root):
        bound[v] = frozenset[str]().union(*(bound[a] for a in v.args))
        if v.op == "across":
            raise fail(where, "across(...) belongs to loop IR, not to kernels")
        if v.op == "reduce":
            own = [x.name for x in v.over]
            if any(x.lo != 0 for x in v.over) or len(set(own)) < len(own) or (scope.names | bound[v]) & set(own):
                raise fail(where, f"a reduction runs from 0 over fresh variables, got {', '.join(own)}")
            bound[v] |= set(own)
    check_variables(where, free_variables(root), scope.variables)
    for load, conditions in _guarded_loads(root):
        name, indices = load.buffer, load.indices
        for e, extent in zip(indices, scope.kernel.param(name).shape, strict=True):
            _check_bounds(f"{where}, load {name}[{', '.join(map(to_text, indices))}]", e, extent, conditions, scope)


def _guarded_loads(root: Value) -> Iterator[tuple[Value, frozenset[Index]]]:
    """Every load with the conditions under which it counts, once for each set of them (up to a limit)."""
    seen: set[tuple[Value, frozenset[Index]]] = set()
    stack: list[tuple[Value, frozenset[Index]]] = [(root, frozenset())]
    while stack and len(seen) < MOST_CONTEXTS:
        pair = stack.pop()
        if pair in seen:
            continue
        seen.add(pair)
        v, conditions = pair
        if v.op == "load":
            yield pair
        if v.op == "guard":
            stack.append((v.args[0], conditions.union(v.conditions)))
            if len(v.conditions) == 1:
                stack.append((v.args[1], conditions | {-v.conditions[0] - 1}))
        else:
            stack.extend((a, conditions) for a in v.args)


def _check_bounds(where: str, e: Index, extent: Index, conditions: frozenset[Index], scope: _Scope) -> None:
    """Raises when `e` leaves 0..extent-1 at a point where all conditions hold; undecided is right."""
    if bounds(e)[0] >= 0 and bounds(extent - 1 - e)[0] >= 0:
        return
    involved = set(variables(e))
    relevant: list[Index] = []
    while True:
        more = [c for c in conditions if c not in relevant and variables(c) & involved]
        if not more:
            break
        relevant += more
        involved = involved.union(*map(variables, more))
    related = scope.kernel.dims if scope.related is None else scope.related
    if not isinstance(extent, int) or involved & set(related) or any(value_atoms(x) for x in (e, *relevant)):
        return  # dims keep to relations that are not stated here, such as pos + n <= capacity
    domain = points(sorted(involved, key=lambda v: v.name), MOST_POINTS)
    if domain is None:
        return
    values, inside = domain[1], np.asarray(True)
    for c in relevant:
        inside = inside & (index_value(c, values.__getitem__) >= 0)
    found = np.asarray(index_value(e, values.__getitem__))
    wrong = inside & ((found < 0) | (found >= extent))
    if np.any(wrong):
        raise fail(where, f"index {to_text(e)} reaches {np.broadcast_to(found, wrong.shape)[wrong][0]}, "
                          f"outside 0..{extent - 1}")


def _placed(nests: tuple[Nest, ...], around: tuple[Var, ...] = ()) -> Iterator[tuple[Store, Placed]]:
    stack: list[tuple[Nest, tuple[Var, ...]]] = [(n, around) for n in reversed(nests)]
    while stack:
        nest, outer = stack.pop()
        domain = outer + nest.domain
        for s in nest.body:
            if isinstance(s, Nest):
                stack.append((s, domain))
            elif isinstance(s, Store):
                yield s, Placed(s.indices, domain)


def _check_coverage(kernel: Kernel, proven: bool) -> None:
    """Outputs are stored exactly once, updated buffers at most once; combining stores may repeat."""
    stores = list(_placed(kernel.nests))
    for p in kernel.params:
        own = [(s, placed) for s, placed in stores if s.param == p.name]
        if p.mode == "in" or (own and all(s.combine is not None for s, _ in own) and p.mode == "inout"):
            continue
        if any(s.combine is not None for s, _ in own):
            raise fail(kernel.name, f"{p.name} is combined into; expected mode inout and no other stores")
        reason = uncovered([placed for _, placed in own], p.shape, p.mode == "out", proven)
        if reason is not None:
            raise fail(kernel.name, f"stores to {p.name}{list(p.shape)}: {reason}")


def _check_updates(kernel: Kernel) -> None:
    """An updated buffer is read only at the element that is being stored."""
    updated = {p.name for p in kernel.params if p.mode == "inout"}
    if not updated:
        return
    places: dict[str, set[tuple[Index, ...]]] = {name: set() for name in updated}
    for s in assignments(kernel.nests):
        if isinstance(s, Store) and s.param in updated:
            places[s.param].add(s.indices)
    for v in loads(*[s.value for s in assignments(kernel.nests)]):
        if v.buffer in updated and v.indices not in places[v.buffer]:
            raise fail(kernel.name, f"the updated buffer {v.buffer} is read at "
                                    f"[{', '.join(map(to_text, v.indices))}], where it is not stored")
