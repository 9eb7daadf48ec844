"""Computes what a kernel means with numpy, all elements of a domain at once: the oracle for everything after lowering.

Each index variable is an axis: the k-th variable in scope varies along axis -1-k, so that values of outer scopes
broadcast into inner ones as they are. A value is computed for the variables it depends on only. Loads outside their
buffer are allowed where a guard drops them and are an InternalError elsewhere. A block runs place by place, its own
buffers full of NaN at each.
"""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

from minigrad.codegen.kernel.nodes import Block, Define, Kernel, Nest, Param, Steps, Store, nests_of
from minigrad.codegen.kernel.value_eval import (
    Array,
    Fault,
    Result,
    combine,
    constant,
    decode,
    encode,
    fold,
    guarded,
    index_value,
    masked,
    merge,
    operate,
)
from minigrad.codegen.kernel.value_walk import Rewriter
from minigrad.codegen.kernel.walk import statements
from minigrad.errors import InternalError
from minigrad.expr import Atom, Index, Var, evaluate, to_text
from minigrad.value import Value, ValueIndex, free_variables, local, values_inside, walk

MOST_ELEMENTS = 1 << 22  # of one array; a larger domain is computed in pieces along its variables
MOST_COPIED = 1 << 26    # bytes for all places of a block to see their own results only


def interpret_kernel(kernel: Kernel, arrays: Mapping[str, Array], scalars: Mapping[str, float] | None = None,
                     dims: Mapping[str, int] | None = None) -> None:
    """Writes the outputs of a kernel into `arrays`, in place.

    `arrays` has each parameter by name, of its storage type (bfloat16: uint16), either in its logical shape with any
    strides or flat as it is stored (row-major or by its layout). Raises InternalError for a load or store outside its
    buffer and for arguments that do not fit.
    """
    scalars, dims = scalars or {}, dims or {}
    missing = [d.name for d in kernel.dims if d.name not in dims]
    missing += [s.name for s in kernel.scalars if s.name not in scalars]
    missing += [p.name for p in kernel.params if p.name not in arrays]
    if missing:
        raise InternalError(f"[interpret] {kernel.name}: expected arguments {', '.join(missing)}")
    root = _Scope(None, {v: int(dims[v.name]) for v in kernel.dims})
    root.memo = {local(s.name, s.dtype): (constant(scalars[s.name], s.dtype), None) for s in kernel.scalars}
    run = _Run(kernel, {p.name: _logical(kernel, p, arrays[p.name], dims) for p in kernel.params})
    with np.errstate(all="ignore"):
        for nest in kernel.nests:
            run.nest(nest, root, {}, {})
        if kernel.block is not None:
            _interpret_block(kernel.block, run, root)


def _interpret_block(block: Block, run: _Run, root: _Scope) -> None:
    """Runs a block, place by place. Where that is no great work, each place sees nothing of what others store, and it
    is an InternalError if two store different values to one element."""
    written = _written(block.body) & {p.name for p in run.kernel.params}
    extents = [_number(v.hi + 1, root) for v in block.domain]
    kept = {name: run.arrays[name] for name in written}
    alone = prod(extents) * sum([a.nbytes for a in kept.values()]) <= MOST_COPIED
    done = {name: np.zeros(a.shape, np.bool_) for name, a in kept.items()} if alone else {}
    first = {name: kept[name].copy() for name in done}
    for place in np.ndindex(*extents):
        at = {**root.own, **dict(zip(block.domain, place, strict=True))}
        for p in block.local:
            run.arrays[p.name] = _poison([evaluate(e, root.variables) for e in p.shape], p.dtype.np)
        run.arrays |= {name: a.copy() for name, a in first.items()}
        run.stored = {name: np.zeros(a.shape, np.bool_) for name, a in first.items()}
        _interpret_body(block.body, run, _Scope(None, at, root.memo))
        for name, stored in run.stored.items():
            made, twice = run.arrays[name], stored & done[name]
            if made[twice].tobytes() != kept[name][twice].tobytes():
                raise InternalError(f"[interpret] {run.kernel.name}: places of the block store different values to one "
                                    f"element of {name}")
            kept[name][stored] = made[stored]
            done[name] |= stored
    run.arrays |= kept
    run.stored = {}


def _interpret_body(body: Sequence[Nest | Steps], run: _Run, scope: _Scope) -> None:
    for s in body:
        if isinstance(s, Nest):
            run.nest(s, _Scope(None, scope.own, dict(scope.memo)), {}, {})  # of what was read, much is stored to since
            continue
        for t in range(evaluate(s.start, scope.variables), evaluate(s.stop, scope.variables)):
            _interpret_body(s.body, run, _Scope(None, {**scope.own, s.var: t}, scope.memo))


def _written(body: Sequence[Nest | Steps]) -> set[str]:
    """The buffers that are stored to."""
    return {s.param for s in statements([nest for nest, _ in nests_of(body)]) if isinstance(s, Store)}


def _poison(shape: Sequence[int], dtype: np.dtype[Any]) -> Array:
    """An array of what nobody computes: NaN, -1 or true."""
    made = np.full(int(np.prod(shape)) * dtype.itemsize, 1 if dtype == np.bool_ else 255, np.uint8)
    return made.view(dtype).reshape(shape)


def _logical(kernel: Kernel, p: Param, array: Array, dims: Mapping[str, int]) -> Array:
    """`array` in the parameter's logical shape, over the same memory."""
    shape = tuple([evaluate(e, dims) for e in p.shape])
    flat = array.ndim == 1 and array.size == int(np.prod(shape)) and array.flags.c_contiguous
    if array.dtype != p.dtype.np or not (flat or array.shape == shape):
        raise InternalError(f"[interpret] {kernel.name}: expected {p.name} as {p.dtype.np} of shape {shape} or flat, "
                            f"got {array.dtype} of shape {array.shape}")
    if array.shape == shape:
        return array
    if p.layout is None:
        return array.reshape(shape)
    return array.reshape([shape[d] for d in p.layout]).transpose(np.argsort(p.layout))


@dataclass
class _Scope:
    """Index variables of one level with their values, and results for one choice of all variables so far."""

    outer: _Scope | None
    own: dict[Var, Any]
    memo: dict[Value, Result] = field(default_factory=dict)
    shape: tuple[int, ...] = ()  # the lengths of all axes, innermost variable first

    def __post_init__(self) -> None:
        self.variables: dict[Var, Any] = {**(self.outer.variables if self.outer else {}), **self.own}

    def inner(self, domain: Sequence[Var], extents: Sequence[tuple[int, int]]) -> _Scope:
        """A scope with one more axis per variable, which runs over start..stop of its entry in `extents`."""
        own: dict[Var, Any] = {}
        for k, (v, (start, stop)) in enumerate(zip(domain, extents, strict=True)):
            own[v] = np.arange(start, stop).reshape((stop - start,) + (1,) * (len(self.shape) + k))
        return _Scope(self, own, shape=tuple([stop - start for start, stop in reversed(extents)]) + self.shape)

    def home(self, free: frozenset[Var]) -> _Scope:
        """The outermost scope that binds everything in `free`, where a value is computed once."""
        scope = self
        while scope.outer is not None and free.isdisjoint(scope.own):
            scope = scope.outer
        return scope


class _Run:
    def __init__(self, kernel: Kernel, arrays: dict[str, Array]):
        self.kernel, self.arrays = kernel, arrays
        self.stored: dict[str, Array] = {}
        """True where an element of a buffer is stored, for buffers that this is asked of."""

    # ---- statements ----

    def nest(self, nest: Nest, scope: _Scope, locals_: dict[str, Value], pieces: dict[Var, tuple[int, int]]) -> None:
        """Runs a nest, in pieces along its first long variable where it is too large for one array.

        `locals_` are the definitions around it, whose values stand for their names from here on.
        """
        extents = [pieces.get(v) or (0, _number(v.hi + 1, scope)) for v in nest.domain]
        widest = max([self._widest(s) for s in nest.body], default=1)
        total = widest * int(np.prod([stop - start for start, stop in extents] + list(scope.shape), dtype=object))
        if total > MOST_ELEMENTS:
            for v, (start, stop) in zip(nest.domain, extents, strict=True):
                if stop - start > 1:
                    step = max(1, (stop - start) * MOST_ELEMENTS // total)
                    for at in range(start, stop, step):
                        self.nest(nest, scope, locals_, {**pieces, v: (at, min(at + step, stop))})
                    return
        inner, locals_ = scope.inner(nest.domain, extents), dict(locals_)
        for s in nest.body:
            if isinstance(s, Nest):
                self.nest(s, inner, locals_, {})
                continue
            inlined = Rewriter({}, locals_=locals_)
            if isinstance(s, Define):
                locals_[s.name] = inlined.value(s.value)
                self._require(self.value(locals_[s.name], inner))
            else:
                self._store(s, tuple([inlined.index(e) for e in s.indices]), inlined.value(s.value), inner)

    def _widest(self, s: Define | Store | Nest) -> int:
        """Elements per point of the domain that its statement's largest reduction or inner nest has."""
        if isinstance(s, Nest):
            inner = max([self._widest(i) for i in s.body], default=1)
            return inner * _most(s.domain)
        width: dict[Value, int] = {}
        for v in walk(s.value):
            width[v] = max([width[a] for a in v.args], default=1) * (_most(v.over) if v.op == "reduce" else 1)
        return width[s.value]

    def _store(self, s: Store, indices: tuple[Index, ...], stored: Value, scope: _Scope) -> None:
        array = self.arrays[s.param]
        dtype = self.kernel.param(s.param).dtype
        if s.value.dtype is not dtype or len(s.indices) != array.ndim:
            raise InternalError(f"[interpret] store to {s.param}: expected {dtype.name} at {array.ndim} indices, "
                                f"got {s.value.dtype.name} at {len(s.indices)}")
        for v in values_inside(indices):
            self._require(self.value(v, scope))
        at = [index_value(e, lambda a: self._leaf(a, scope)) for e in indices]
        value = self._require(self.value(stored, scope))
        shape = scope.shape
        if 0 in shape:
            return
        for e, found, extent in zip(indices, at, array.shape, strict=True):
            if np.any((np.asarray(found) < 0) | (np.asarray(found) >= extent)):
                raise InternalError(f"[interpret] store {s.param} at {to_text(e)}: outside 0..{extent - 1}")
        # axes in reverse are the variables outermost first: index order
        places = tuple([np.broadcast_to(x, shape).T for x in at])
        values = encode(np.broadcast_to(value, shape).T, dtype)
        if s.param in self.stored:
            self.stored[s.param][places] = True
        if s.combine in (None, "set"):  # the last one in index order stays
            array[places] = values
        elif dtype.is_float and dtype.bits == 16:
            self._combine_rounded(s, array, places, values)
        else:
            combine(s.combine).at(array, places, values)

    def _combine_rounded(self, s: Store, array: Array, places: tuple[Array, ...], values: Array) -> None:
        dtype, ufunc = s.value.dtype, combine(s.combine or "sum")
        for position in np.ndindex(values.shape):
            at = tuple([p[position] for p in places])
            array[at] = encode(ufunc(decode(array[at], dtype), decode(values[position], dtype)), dtype)

    # ---- values ----

    def _require(self, result: Result) -> Array:
        if result[1] is not None:
            raise InternalError(f"[interpret] {self.kernel.name}: {result[1][1]}")
        return result[0]

    def value(self, root: Value, scope: _Scope) -> Result:
        home = scope.home(free_variables(root))
        stack: list[tuple[Value, _Scope, _Scope | None]] = [(root, home, None)]
        while stack:
            v, at, inside = stack.pop()
            if v in at.memo:
                continue
            if v.op == "reduce":
                if inside is None:
                    inside = at.inner(v.over, [(0, _number(x.hi + 1, at)) for x in v.over])
                    stack += [(v, at, inside), (v.args[0], inside.home(free_variables(v.args[0])), None)]
                else:
                    body = inside.home(free_variables(v.args[0])).memo[v.args[0]]
                    at.memo[v] = self._reduced(v, body, at, inside)
                continue
            homes = [(a, at.home(free_variables(a))) for a in v.operands]
            missing = [(a, h, None) for a, h in homes if a not in h.memo]
            if missing:
                stack.append((v, at, None))
                stack.extend(reversed(missing))
            else:
                at.memo[v] = self._one(v, [h.memo[a] for a, h in homes], at)
        return home.memo[root]

    def _reduced(self, v: Value, body: Result, at: _Scope, inside: _Scope) -> Result:
        monoid, over = v.monoid, v.over
        lengths = inside.shape[:len(over)]
        axes = tuple(range(len(over)))

        def spread(x: Array) -> Array:
            x = np.asarray(x)
            x = x.reshape((1,) * (len(inside.shape) - x.ndim) + x.shape)
            return np.broadcast_to(x, lengths + x.shape[len(over):])

        fault: Fault = None
        if body[1] is not None:
            fault = masked((np.any(spread(body[1][0]), axis=axes), body[1][1]), True)
        return fold(monoid, v.dtype, spread(body[0]), axes), fault

    def _one(self, v: Value, args: list[Result], scope: _Scope) -> Result:
        op = v.op
        if op == "local":
            raise InternalError(f"[interpret] {v.name} is read before it is bound")
        inner = merge(*(fault for _, fault in args[len(v.args):]))
        if op == "load":
            return self._load(v, inner, scope)
        if op == "index":
            found = np.asarray(index_value(v.index, lambda a: self._leaf(a, scope)))
            return found.astype(v.dtype.np), inner
        if op == "guard":
            mask: Array | bool = True
            for c in v.conditions:
                mask = mask & (index_value(c, lambda a: self._leaf(a, scope)) >= 0)
            value, fault = guarded(args[0], args[1], mask)
            return value, merge(fault, inner)
        return operate(v, args)

    def _load(self, v: Value, fault: Fault, scope: _Scope) -> Result:
        name, indices = v.buffer, v.indices
        if name not in self.arrays or self.arrays[name].ndim != len(indices):
            raise InternalError(f"[interpret] load of {name} at {len(indices)} indices: no such parameter")
        array, at = self.arrays[name], []
        for e, extent in zip(indices, array.shape, strict=True):
            found = np.asarray(index_value(e, lambda a: self._leaf(a, scope)))
            outside = (found < 0) | (found >= extent)
            if np.any(outside):
                text = f"load {name}[{', '.join(map(to_text, indices))}] has {to_text(e)} outside 0..{extent - 1}"
                fault = merge(fault, (outside, text))
                found = np.clip(found, 0, max(extent - 1, 0))
            at.append(found)
        if array.size == 0:
            return np.broadcast_to(constant(0, v.dtype), np.broadcast_shapes(*(x.shape for x in at))), fault
        return decode(array[tuple(at)], self.kernel.param(name).dtype), fault

    def _leaf(self, a: Atom, scope: _Scope) -> Any:
        if isinstance(a, ValueIndex):
            return np.asarray(scope.home(free_variables(a.value)).memo[a.value][0]).astype(np.int64)
        if not isinstance(a, Var) or a not in scope.variables:
            raise InternalError(f"[interpret] index variable {a} is not bound here")
        return scope.variables[a]


def _number(e: Index, scope: _Scope) -> int:
    """An extent, which may depend on dims only."""
    return evaluate(e, {v: x for v, x in scope.variables.items() if isinstance(x, int)})


def _most(domain: Sequence[Var]) -> int:
    """Elements of a domain by the upper bounds of its variables, capped where they are symbolic."""
    return int(np.prod([v.hi + 1 if isinstance(v.hi, int) else 64 for v in domain], dtype=object))
