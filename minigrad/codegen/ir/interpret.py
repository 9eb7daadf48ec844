"""Runs loop IR as it is written, one iteration after another: the oracle for builders, transforms and renderers.

Vector and item loops run in lockstep: what depends on the lane is a numpy array over the lanes. An access outside its
buffer that is not guarded, a store to an input, iterations of the parallel loop that touch each other's elements, lanes
that store different values at one place, work-items that touch what another one stores between two barriers: each is an
InternalError naming the access.
"""
from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from minigrad.codegen.ir.inline import inlined
from minigrad.codegen.ir.nodes import Alloc, Barrier, Call, Function, If, Let, Loop, Stmt, Store
from minigrad.codegen.ir.text import meaning_of
from minigrad.codegen.kernel.value_eval import (
    Array,
    Fault,
    Result,
    constant,
    decode,
    encode,
    fold,
    guarded,
    index_value,
    masked,
    merge,
    operate,
    some,
)
from minigrad.dtype import DType
from minigrad.errors import InternalError
from minigrad.expr import Atom, Index, Var, evaluate, to_text
from minigrad.value import Value, ValueIndex, walk


def interpret_function(function: Function, buffers: Mapping[str, Array], scalars: Mapping[str, float] | None = None,
                       dims: Mapping[str, int] | None = None, begin: int = 0, end: int | None = None,
                       counted: Counter[tuple[str, str]] | None = None) -> None:
    """Runs iterations `begin <= i < end` (None: all) of the parallel loop. Output buffers are written in place, and to
    `counted` are added the loads and stores of elements of each buffer, as (buffer, 'load' or 'store').

    `buffers` are flat arrays of each parameter's storage type (bfloat16: uint16) with at least its size. Raises
    InternalError for a broken rule (see the module) and for arguments that do not fit.
    """
    with np.errstate(all="ignore"):
        run = _Run(function, buffers, scalars or {}, dims or {}, begin, end)
        run.counted = counted
        run.block(function.body)


@dataclass(slots=True)
class _Buffer:
    """`data` holds storage elements; with `lanes` it is [size, W], a private copy for each lane."""

    name: str
    dtype: DType
    size: int
    data: Array
    lanes: bool = False
    mode: str = "inout"
    owner: Array | None = None  # the parallel iteration that wrote each element, -1 for none
    shared: Shared | None = None  # who touched each element since the last barrier, in an item loop


class Shared:
    """The work-item that stored and the one that loaded each element since the last barrier: -1 none, -2 several."""

    def __init__(self, size: int):
        self.storer, self.loader = np.full(size, -1, np.int32), np.full(size, -1, np.int32)

    def stored(self, at: Array, item: Array) -> bool:
        """Notes that each `item` stores at its `at`; True if another one touches it."""
        foreign = [(who != -1) & (who != item) for who in (self.storer[at], self.loader[at])]
        self.storer[at] = item
        return bool(np.any(foreign[0] | foreign[1]) or np.any(self.storer[at] != item))

    def loaded(self, at: Array, outside: Array) -> Array:
        """Notes the loads of all work-items, but for those `outside` the buffer; returns a mask of those where another
        one stores."""
        item = np.arange(at.size, dtype=np.int32)
        inside = ~np.broadcast_to(outside, at.shape)
        if not self.loader.size:
            return ~inside
        before = self.loader[at]
        self.loader[at[inside]] = item[inside]
        several = inside & ((self.loader[at] != item) | ((before != -1) & (before != item)))
        self.loader[at[several]] = -2
        storer = self.storer[at]
        seen: Array = inside & (storer != -1) & (storer != item)
        return seen


class _Run:
    def __init__(self, function: Function, buffers: Mapping[str, Array], scalars: Mapping[str, float],
                 dims: Mapping[str, int], begin: int, end: int | None):
        self.begin, self.end = begin, end
        self.variables: dict[Var, Any] = {}
        for d in function.dims:
            if d.name not in dims:
                raise InternalError(f"[interpret] {function.name}: expected a value of dim {d.name}, got {list(dims)}")
            self.variables[d] = int(dims[d.name])
        self.locals: dict[str, Array] = {s.name: constant(scalars[s.name], s.dtype) for s in function.scalars}
        self.buffers: dict[str, _Buffer] = {}
        for p in function.buffers:
            size, start = evaluate(p.size, self.variables), self.variables[p.start] if p.start is not None else 0
            data = buffers[p.name][start:]
            if data.ndim != 1 or data.dtype != p.dtype.np or data.size < size:
                raise InternalError(f"[interpret] {function.name}: expected {p.name} as {start + size} flat "
                                    f"elements of {p.dtype.np}, got {buffers[p.name].shape} of {data.dtype}")
            self.buffers[p.name] = _Buffer(p.name, p.dtype, size, data, mode=p.mode, owner=np.full(size, -1, np.int64))
        self.lanes: int | None = None
        self.items = False
        self.active: Array | bool = True  # where the value that is being evaluated is used
        self.iteration: int | None = None
        self.order: dict[Value, list[Value]] = {}
        self.constants: dict[Value, Result] = {}
        self.results: dict[Value, Result] = {}
        self.counted: Counter[tuple[str, str]] | None = None

    # ---- statements ----

    def block(self, body: tuple[Stmt, ...]) -> None:
        outer_locals, outer_buffers = dict(self.locals), dict(self.buffers)
        for s in body:
            self.results = {}
            if isinstance(s, Let):
                self.locals[s.name] = self.value(s.value, True)
            elif isinstance(s, Store):
                self._store(s)
            elif isinstance(s, Loop):
                self._loop(s)
            elif isinstance(s, If):
                holds = np.unique(self._mask(s.conditions))
                if holds.size > 1:
                    raise InternalError(f"[interpret] expected a condition equal for all lanes, got {s.conditions}")
                self.block(s.then if holds[0] else s.otherwise)
            elif isinstance(s, Call):
                self._call(s)
            elif isinstance(s, Alloc):
                shape = (s.size,) if self.lanes is None else (s.size, self.lanes)
                fill = np.nan if s.dtype.is_float else 90
                data = np.empty(shape, s.dtype.np)
                data[...] = encode(constant(fill, s.dtype), s.dtype)
                self.buffers[s.name] = _Buffer(s.name, s.dtype, s.size, data, self.lanes is not None)
            elif isinstance(s, Barrier):
                self._forget()
        self.locals, self.buffers = outer_locals, outer_buffers

    def _loop(self, s: Loop) -> None:
        start, stop = self._uniform(s.start), self._uniform(s.stop)
        if s.kind in ("vector", "item"):
            if self.lanes is not None or start != 0:
                raise InternalError(f"[interpret] expected no vector loop inside another and a start of 0, got {s.var}")
            self.lanes, self.items = stop, s.kind == "item"
            self.variables[s.var] = np.arange(stop)
            self._forget()
            self.block(s.body)
            self.lanes, self.items = None, False
        else:
            parallel = s.kind in ("parallel", "group")
            if parallel:
                start, stop = max(start, self.begin), stop if self.end is None else min(stop, self.end)
            for i in range(start, stop):
                self.variables[s.var] = i
                if parallel:
                    self.iteration = i
                self.block(s.body)
            if parallel:
                self.iteration = None
        self.variables.pop(s.var, None)

    def _forget(self) -> None:
        """Forgets, at a barrier, what work-items touched before it: later accesses do not race with it."""
        for b in self.buffers.values():
            b.shared = Shared(b.size) if self.items and not b.lanes and b.mode != "in" else None

    def _store(self, s: Store) -> None:
        buffer = self._buffer(s.buffer)
        if buffer.mode == "in":
            raise InternalError(f"[interpret] store to the input {s.buffer}")
        mask = self._mask(s.conditions)
        if not some(mask):
            return
        at = index_value(s.offset, self._leaf)
        if some(mask & ((at < 0) | (at >= buffer.size))):
            raise InternalError(f"[interpret] store {s.buffer}[{to_text(s.offset)}] at {at}: outside "
                                f"0..{buffer.size - 1}")
        stored = encode(self.value(s.value, mask), s.value.dtype)
        if self.counted is not None:
            self.counted[s.buffer, "store"] += self._lanes_in(mask)
        if s.value.dtype is not buffer.dtype:
            raise InternalError(f"[interpret] store to {s.buffer}: expected {buffer.dtype.name}, "
                                f"got {s.value.dtype.name}")
        if self.lanes is None:
            self._claim(buffer, at, stored, s.offset)
            buffer.data[at] = stored
        else:
            where, at, stored = np.arange(self.lanes), self._of_lanes(at), self._of_lanes(stored)
            if mask is not True:
                mask = self._of_lanes(mask)
                where, at, stored = where[mask], at[mask], stored[mask]
            self._claim(buffer, at, stored, s.offset)
            if buffer.lanes:
                buffer.data[at, where] = stored
            else:
                if buffer.shared is not None and buffer.shared.stored(at, where):
                    raise InternalError(f"[interpret] work-items race at the store {s.buffer}[{to_text(s.offset)}]")
                buffer.data[at] = stored
                if buffer.data[at].tobytes() != stored.tobytes():
                    raise InternalError(f"[interpret] lanes store different values at {s.buffer}[{to_text(s.offset)}]")

    def _call(self, s: Call) -> None:
        """Runs the meaning on the parts of our buffers that the call names; for work-items as if it stood here."""
        if self.items:
            self.block(inlined(s, {*self.buffers, *self.locals, *(v.name for v in self.variables)}))
            return
        meaning, parts, owners = meaning_of(s.kernel), {}, {}
        dims = {d.name: self._uniform(e) for d, e in zip(meaning.dims, s.dims, strict=True)}
        scalars = [(p.name, self.value(v, True)) for p, v in zip(meaning.scalars, s.scalars, strict=True)]
        for p, (name, offset) in zip(meaning.buffers, s.buffers, strict=True):
            buffer, at = self._buffer(name), self._uniform(offset)
            size = evaluate(p.size, {d: dims[d.name] for d in meaning.dims})
            if at < 0 or at + size > buffer.size or (buffer.mode == "in" and p.mode != "in"):
                raise InternalError(f"[interpret] call {s.kernel.name}: {name}[{at}..{at + size - 1}] is outside "
                                    f"0..{buffer.size - 1}, or an input that {p.name} would write")
            parts[p.name] = buffer.data[at:at + size]
            owners[p.name] = None if buffer.owner is None else buffer.owner[at:at + size]
        run = _Run(meaning, parts, dict.fromkeys((name for name, _ in scalars), 0.0), dims, 0, None)
        run.locals.update(scalars)
        run.iteration = self.iteration
        for name, owner in owners.items():
            run.buffers[name].owner = owner
        run.block(meaning.body)

    def _claim(self, buffer: _Buffer, at: Any, stored: Array, offset: Index) -> None:
        """Checks a store of this iteration: another iteration may have stored the same value there, and no other."""
        if buffer.owner is not None and self.iteration is not None:
            owner = buffer.owner[at]
            foreign = (owner != -1) & (owner != self.iteration)
            if some(foreign) and buffer.data[at][foreign].tobytes() != np.asarray(stored)[foreign].tobytes():
                raise InternalError(f"[interpret] iterations {np.max(owner)} and {self.iteration} of the parallel loop "
                                    f"store different values to {buffer.name}[{to_text(offset)}] at {at}")
            buffer.owner[at] = self.iteration

    def _of_lanes(self, x: Any) -> Array:
        """One element for each lane."""
        x = np.asarray(x)
        return x if x.ndim else np.full(self.lanes or 0, x)

    # ---- values ----

    def value(self, root: Value, mask: Array | bool) -> Array:
        """The value, which must be defined where `mask` holds."""
        self.active = mask
        result, fault = self._evaluate(root)
        fault = masked(fault, mask)
        if fault is not None:
            raise InternalError(f"[interpret] {fault[1]}")
        if self.counted is not None:
            self._count(root, mask)
        return result

    def _count(self, root: Value, mask: Array | bool) -> None:
        """Counts the loads of a value that was evaluated: those that guards do not leave out."""
        wanted: dict[Value, Array | bool] = {root: mask}
        for v in reversed(self.order[root]):
            here = wanted[v]
            if v.op == "load" and self.counted is not None:
                self.counted[v.buffer, "load"] += self._lanes_in(here)
            inside = self._mask(v.conditions) if v.op == "guard" else True
            for k, x in enumerate(v.operands):
                of = here if v.op != "guard" or k > 1 else here & (inside if k == 0 else np.logical_not(inside))
                wanted[x] = wanted.get(x, False) | of

    def _lanes_in(self, mask: Array | bool) -> int:
        return int(np.count_nonzero(np.broadcast_to(mask, (self.lanes or 1,))))

    def _evaluate(self, root: Value) -> Result:
        order = self.order.get(root)
        if order is None:
            order = self.order[root] = list(walk(root))
        self.results = {}
        for v in order:
            self.results[v] = self._one(v)
        return self.results[root]

    def _one(self, v: Value) -> Result:
        op = v.op
        if op == "load":
            return self._load(v)
        if op == "const":
            known = self.constants.get(v)
            if known is None:
                known = self.constants[v] = operate(v, [])
            return known
        if op == "local":
            if v.name not in self.locals:
                raise InternalError(f"[interpret] {v.name} is read before it is bound")
            return self.locals[v.name], None
        args = [self.results[a] for a in v.args]
        if op == "index":
            return np.asarray(index_value(v.index, self._leaf)).astype(v.dtype.np), self._inner(v)
        if op == "guard":
            value, fault = guarded(args[0], args[1], self._mask(v.conditions))
            return value, merge(fault, self._inner(v))
        if op == "across":
            if self.lanes is None:
                raise InternalError("[interpret] across(...) outside a vector loop")
            value, fault = args[0]
            reason = None if fault is None else (np.asarray(np.any(fault[0])), fault[1])
            return fold(v.monoid, v.dtype, np.broadcast_to(value, (self.lanes,)), (0,)), reason
        return operate(v, args)

    def _load(self, v: Value) -> Result:
        name, (offset,) = v.buffer, v.indices
        buffer = self._buffer(name)
        at, fault = index_value(offset, self._leaf), self._inner(v)
        outside = (at < 0) | (at >= buffer.size)
        if some(outside):
            fault = merge(fault, (np.asarray(outside),
                                  f"load {name}[{to_text(offset)}] at {at}: outside 0..{buffer.size - 1}"))
            at = np.clip(at, 0, max(buffer.size - 1, 0))
            if buffer.size == 0:
                return constant(0, v.dtype), fault
        elif buffer.owner is not None and self.iteration is not None:
            owner = buffer.owner[at]
            foreign = (owner != -1) & (owner != self.iteration)
            if some(foreign):
                fault = merge(fault, (foreign, f"load {name}[{to_text(offset)}] at {at}: another iteration stores it"))
        if buffer.shared is not None:
            race = buffer.shared.loaded(np.broadcast_to(at, (self.lanes or 1,)), outside | ~np.asarray(self.active))
            if some(race):
                fault = merge((race, f"load {name}[{to_text(offset)}] at {at}: work-items race there"), fault)
        stored = buffer.data[at, np.arange(self.lanes or 0)] if buffer.lanes else buffer.data[at]
        return decode(stored, buffer.dtype), fault

    def _inner(self, v: Value) -> Fault:
        """The fault of the values that the indices of `v` are computed from."""
        return merge(*(self.results[a][1] for a in v.inner)) if v.inner else None

    def _leaf(self, a: Atom) -> Any:
        if isinstance(a, ValueIndex):
            found = self.results[a.value][0] if a.value in self.results else self.value(a.value, True)
            return np.asarray(found).astype(np.int64)
        if not isinstance(a, Var) or a not in self.variables:
            raise InternalError(f"[interpret] index variable {a} is not bound here")
        return self.variables[a]

    def _mask(self, conditions: tuple[Index, ...]) -> Array | bool:
        mask: Array | bool = True
        for c in conditions:
            mask = mask & (index_value(c, self._leaf) >= 0)
        return mask

    def _uniform(self, e: Index) -> int:
        found = np.unique(index_value(e, self._leaf))
        if found.size > 1:
            raise InternalError(f"[interpret] expected a loop bound that is the same for all lanes, got {to_text(e)}")
        return int(found[0])

    def _buffer(self, name: str) -> _Buffer:
        if name not in self.buffers:
            raise InternalError(f"[interpret] {name} is not a buffer here")
        return self.buffers[name]
