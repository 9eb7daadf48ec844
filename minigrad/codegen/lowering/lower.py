"""Fusion group -> Kernel: index maps are composed, elementwise operations become one scalar expression per output.

The scheduler decides which Nodes form a fusion group; here each output is written as a function of its index variables.
A reduction met on the way becomes a definition at the level of the index variables that it depends on: at the whole
domain (an epilogue follows it), or at a prefix (the row of a softmax), or it merges into the sum around it.
"""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from minigrad.codegen.kernel.nodes import Define, Kernel, Param, Scalar, Store
from minigrad.codegen.kernel.value_walk import Rewriter, loaded
from minigrad.codegen.lowering.arrange import arrange
from minigrad.codegen.lowering.reads import read_at
from minigrad.codegen.lowering.rename import strip_bindings
from minigrad.dtype import DType, bool_, int64
from minigrad.errors import InternalError
from minigrad.expr import Expr, Index, Var, emax, emin, prove_nonneg, subs, variables
from minigrad.ops.node import Node
from minigrad.ops.op import Elementwise, Generate, IndexMap, Reduction
from minigrad.ops.scalars import as_stored
from minigrad.value import (
    Value,
    ValueIndex,
    cast,
    const,
    guard,
    index,
    load,
    local,
    make,
    reduce,
    walk,
)

IDENTITIES = frozenset(("contiguous", "detach", "same"))
"""Primitives whose value is that of their first operand."""

LIFTED_NEVER = frozenset((0.0, 1.0, -1.0, 2.0, -2.0, 0.5, -0.5, float("inf"), float("-inf")))
"""Float constants that stay in the text of a kernel: the others become arguments, so that kernels are shared."""


@dataclass(frozen=True, slots=True)
class Lowered:
    """A kernel, and the values of its arguments: one Node per buffer param; a Node (`scalar`) or a number per scalar;
    the user's variable (or an expression) per symbolic dim."""

    kernel: Kernel
    nodes: tuple[Node, ...]
    scalars: tuple[Node | float, ...]
    dims: tuple[Index, ...]


def peel(node: Node, is_leaf: Callable[[Node], bool]) -> Node:
    """The Node whose row-major elements are those of `node`, below reshapes and identities that are not leaves."""
    while not is_leaf(node) and (node.op.name == "reshape" or node.op.name in IDENTITIES):
        node = node.inputs[0]
    return node


@dataclass(slots=True)
class Lowering:
    """State of one fusion group's lowering. `is_leaf(node)` is True where the node's value lies in a buffer."""

    is_leaf: Callable[[Node], bool]
    domain: tuple[Var, ...] = ()
    params: dict[Node, Param] = field(default_factory=dict)
    scalars: dict[tuple[Node | float, DType], Scalar] = field(default_factory=dict)
    definitions: dict[tuple[Node, tuple[Index, ...]], Define] = field(default_factory=dict)
    memo: dict[tuple[Node, tuple[Index, ...]], Value] = field(default_factory=dict)
    counter: int = 0
    kept: frozenset[Node] = frozenset()
    """Reductions that are outputs of rows: they are definitions also where there is nothing to reduce."""

    def fresh(self, extent: Index) -> Var:
        """A new reduction variable in [0, extent)."""
        self.counter += 1
        return Var(f"r{self.counter - 1}", 0, extent - 1)

    def element(self, node: Node, at: tuple[Index, ...]) -> Value:
        """The element of `node` at index `at`, in the compute type of its dtype."""
        key = (node, at)
        found = self.memo.get(key)
        if found is None:
            if 0 in node.shape:
                found = const(0, node.dtype.compute)  # behind a guard, or in a domain that never runs
            else:
                found = self.leaf(node, at) if self.is_leaf(node) else self.operation(node, at)
            self.memo[key] = found
        return found

    def leaf(self, node: Node, at: tuple[Index, ...]) -> Value:
        param = self.params.get(node)
        if param is None:
            param = self.params[node] = Param(f"p{len(self.params)}", node.dtype, node.shape)
        return cast(load(param.name, at, node.dtype), node.dtype.compute)

    def operation(self, node: Node, at: tuple[Index, ...]) -> Value:
        op, lower = node.op, node.op.lower
        if op.name == "const":
            return self.constant(node.params["value"], node.dtype)
        if isinstance(lower, Elementwise):
            operands = [self.element(i, at) for i in node.inputs]
            if node.dtype is bool_:  # a half that was stored equals itself computed again
                operands = list(map(as_stored, operands, [i.dtype for i in node.inputs]))
            return lower.scalar(*operands, dtype=node.dtype, **node.params)
        if isinstance(lower, IndexMap):
            return self.movement(node, at)
        if isinstance(lower, Reduction):
            return self.reduction(node, at)
        if isinstance(lower, Generate):
            operands = [self.element(i, ()) for i in node.inputs]
            return lower.element(at, *operands, dtype=node.dtype, **node.params)
        if op.name in IDENTITIES:
            return self.element(node.inputs[0], at)
        if op.name == "scalar":
            return local(self.scalar(node, node.dtype).name, node.dtype)
        if op.name == "gather":
            return self.gather(node, at)
        if op.name == "assign" and node.inputs[1].shape == node.shape:  # all of it, by another output of this kernel
            return cast(cast(self.element(node.inputs[1], at), node.dtype), node.dtype.compute)
        raise InternalError(f"[lower] {op.name} cannot be part of a fused kernel")

    def constant(self, value: Any, dtype: DType) -> Value:
        if isinstance(value, Expr):
            return cast(index(value, int64), dtype.compute)
        if dtype.is_float and value == value and value not in LIFTED_NEVER:  # NaN stays too
            return local(self.scalar(float(value), dtype.compute).name, dtype.compute)
        return const(value, dtype.compute)

    def scalar(self, number: Node | float, dtype: DType) -> Scalar:
        found = self.scalars.get((number, dtype))
        if found is None:
            found = self.scalars[number, dtype] = Scalar(f"c{len(self.scalars)}", dtype)
        return found

    def movement(self, node: Node, at: tuple[Index, ...]) -> Value:
        source = node.inputs[0]
        mapped = read_at(node, source, at)
        renamed = {v: self.fresh(v.hi + 1) for v in mapped.reduce}
        where_from, conditions = mapped.index, mapped.conditions
        if renamed:
            where_from = tuple(subs(e, renamed) for e in where_from)
            conditions = tuple(subs(e, renamed) for e in conditions)
        inside = self.element(source, where_from)
        value = guard(inside, const(mapped.fill, node.dtype.compute), conditions)
        if not renamed:
            return value
        value = merge_reduce("sum", tuple(renamed.values()), value)
        return self.name_reduction(node, at, value) if value.op == "reduce" else value

    def reduction(self, node: Node, at: tuple[Index, ...]) -> Value:
        source, axes = node.inputs[0], node.params["axes"]
        inner: list[Index] = []
        over: list[Var] = []
        outer = iter(at)
        for d, extent in enumerate(source.shape):
            if d not in axes:
                inner.append(next(outer))
            elif extent == 1:
                inner.append(0)
            else:
                over.append(self.fresh(extent))
                inner.append(over[-1])
        lower: Any = node.op.lower
        value = merge_reduce(lower.monoid, tuple(over), self.element(source, tuple(inner)))
        return self.name_reduction(node, at, value) if value.op == "reduce" or node in self.kept else value

    def name_reduction(self, node: Node, at: tuple[Index, ...], value: Value) -> Value:
        """The name of a definition of the reduction, where it depends on domain variables only; inside another
        reduction, its value.

        A definition runs for every iteration, also where padding hides it: its reads are guarded there.
        """
        used = frozenset[Var]().union(*(variables(e) for e in at)) if at else frozenset()
        if any(v.name[0] == "r" and v.name[1:].isdigit() for v in used):
            return value
        found = self.definitions.get((node, at))
        if found is None:
            conditions = outside(at, node.shape)
            if conditions and value.op != "reduce":
                value = guard(value, const(0, value.dtype), conditions)
            elif conditions:
                value = reduce(value.monoid, value.over, guard(value.args[0], const(0, value.dtype), conditions))
            found = self.definitions[node, at] = Define(f"t{len(self.definitions)}", value)
        return local(found.name, value.dtype)

    def gather(self, node: Node, at: tuple[Index, ...]) -> Value:
        source, picks = node.inputs
        axis = node.params["axis"]
        extent = source.shape[axis]
        chosen = cast(self.element(picks, at), int64)
        position = clamped_index(chosen, extent)
        return self.element(source, (*at[:axis], position, *at[axis + 1:]))


def lowered(kernel: Kernel, nodes: tuple[Node, ...], state: Lowering, symbolic: bool = True) -> Lowered:
    """Completes a lowering: symbolic dims become arguments."""
    stripped, dims = strip_bindings(kernel) if symbolic else (kernel, ())
    return Lowered(stripped, nodes, tuple([n for n, _ in state.scalars]), dims)


def outside(at: tuple[Index, ...], shape: tuple[Index, ...]) -> tuple[Index, ...]:
    """Conditions (each >= 0) for `at` to be an index of `shape`, without those that always hold."""
    conditions = [c for e, extent in zip(at, shape, strict=True) for c in (e, extent - 1 - e)]
    return tuple(c for c in conditions if not prove_nonneg(c))


def clamped_index(chosen: Value, extent: Index) -> Index:
    """A loaded index as an index expression within [0, extent)."""
    if isinstance(extent, int):
        low, high = const(0, int64), const(max(extent - 1, 0), int64)
        inside = make("min", int64, (make("max", int64, (chosen, low)), high))
        return ValueIndex(inside, 0, max(extent - 1, 0))
    return emin(emax(ValueIndex(chosen, -(1 << 62), 1 << 62), 0), extent - 1)


def merge_reduce(monoid: str, over: tuple[Var, ...], body: Value) -> Value:
    """reduce(over, body), joined with a reduction of the same monoid that is its whole body, guarded or not."""
    while True:
        if body.op == "reduce" and body.monoid == monoid:
            over, body = over + body.over, body.args[0]
        elif (body.op == "guard" and monoid == "sum" and body.args[0].op == "reduce"
              and body.args[0].monoid == "sum" and body.args[1] is const(0, body.dtype)):
            inner = body.args[0]
            over = over + inner.over
            body = guard(inner.args[0], body.args[1], body.conditions)
        else:
            return reduce(monoid, over, body)


def lower_group(outputs: tuple[Node, ...], is_leaf: Callable[[Node], bool], name: str = "kernel",
                in_place: frozenset[Node] = frozenset(), tails: dict[Node, tuple[Index, ...]] | None = None,
                symbolic: bool = True) -> Lowered | None:
    """The kernel that computes `outputs` (already peeled) from the leaves below them.

    The first output gives the domain. Every other one either has the same shape, or is a reduction met while lowering
    the first (a row's definition), stored as soon as it is known. An assign's output holds the old version already. For
    those in `in_place` it is the target's own buffer, which may be read only at the element being written: else None is
    returned, and the values must be computed into buffers of their own before. `tails` are outputs, with their index,
    that read the first one back once the part of it that they need is stored. Where nothing is `symbolic`, no dims are
    looked for.
    """
    tails = tails or {}
    state = Lowering(is_leaf)
    shape = computed(outputs[0]).shape
    at = tuple(0 if extent == 1 else Var(f"i{d}", 0, extent - 1) for d, extent in enumerate(shape))
    state.domain = tuple(v for v in at if isinstance(v, Var))
    state.kept = frozenset(n for n in outputs[1:] if n not in tails and n.op.name != "assign" and n.shape != shape)
    outs: list[Param] = []
    stores: list[tuple[frozenset[Var], Store]] = []
    for k, node in enumerate(outputs):
        if node in tails:
            outs.append(Param(f"o{k}", node.dtype, node.shape, "out"))
            continue
        where: tuple[Index, ...] = at
        mode = "out"
        if node.op.name == "assign":
            value = state.element(node.inputs[1], at)
            where = tuple(start + i * step for i, (start, step) in zip(at, node.params["region"], strict=True))
            mode = "inout" if node in in_place or node.inputs[1].shape != node.shape else "out"
        elif node.shape == shape:
            value = state.operation(node, at)
        else:
            where, definition = row_definition(state, node)
            value = local(definition.name, definition.value.dtype)
        outs.append(Param(f"o{k}", node.dtype, node.shape, mode))
        level = frozenset[Var]().union(*(variables(e) for e in where)) if where else frozenset()
        stores.append((level & frozenset(state.domain), Store(f"o{k}", where, cast(value, node.dtype))))
    updated = {peel(n.inputs[0], is_leaf): k for k, n in enumerate(outputs) if n in in_place}
    read = {n: k for n, k in updated.items() if n in state.params}
    if read and not read_in_place(state, read, outs, stores):
        return None
    nests = (arrange(state.domain, state.definitions.values(), stores, lower_tails(state, outputs, tails)),)
    kernel = Kernel(name, (*outs, *state.params.values()), tuple(state.scalars.values()), (), nests)
    return lowered(kernel, (*outputs, *state.params), state, symbolic)


def lower_tails(state: Lowering, outputs: tuple[Node, ...], tails: dict[Node, tuple[Index, ...]]
                ) -> list[Define | Store]:
    """The definitions and stores of `tails`, in which the first output is a buffer like any other."""
    if not tails:
        return []
    first, is_leaf = outputs[0], state.is_leaf
    state.is_leaf = lambda node: node is first or is_leaf(node)
    known = dict(state.definitions)
    values = {node: cast(state.operation(node, at), node.dtype) for node, at in tails.items()}
    renamed = Rewriter({}, {state.params.pop(first).name: "o0"})
    found: list[Define | Store] = []
    for key in [k for k in state.definitions if k not in known]:
        d = state.definitions.pop(key)
        found.append(Define(d.name, renamed.value(d.value)))
    return found + [Store(f"o{k}", tails[node], renamed.value(values[node]))
                    for k, node in enumerate(outputs) if node in tails]


def computed(node: Node) -> Node:
    """The Node that an output's kernel runs over: an assign's value, else the node itself."""
    return node.inputs[1] if node.op.name == "assign" else node


def read_in_place(state: Lowering, read: dict[Node, int], outs: list[Param],
                  stores: list[tuple[frozenset[Var], Store]]) -> bool:
    """Makes reads of updated buffers (`read`: the number of the output for each) reads of the outputs. False where that
    is wrong.

    With several outputs every value is named before the first store, so that none sees what another one wrote.
    """
    places, names = dict[str, tuple[Index, ...]](), dict[str, str]()
    for node, k in read.items():
        if node.shape != outs[k].shape:
            return False
        name = state.params.pop(node).name
        places[name], names[name] = stores[k][1].indices, outs[k].name
    values = [s.value for _, s in stores] + [d.value for d in state.definitions.values()]
    for v in walk(*values):
        if (v.op == "load" and v.indices != places.get(v.buffer, v.indices)) or loaded(*v.inner) & places.keys():
            return False
    renamed = Rewriter({}, names)
    for key, d in list(state.definitions.items()):
        state.definitions[key] = Define(d.name, renamed.value(d.value))
    for k, (level, store) in enumerate(stores):
        value = renamed.value(store.value)
        if len(stores) > 1:
            named = Define(f"t{len(state.definitions)}", value)
            state.definitions[outs[k].name, store.indices] = named  # type: ignore[index]
            value = local(named.name, value.dtype)
            level = frozenset(state.domain)
        stores[k] = level, Store(store.param, store.indices, value)
    return True


def row_definition(state: Lowering, node: Node) -> tuple[tuple[Index, ...], Define]:
    for (known, where), definition in state.definitions.items():
        if known is node:
            return where, definition
    raise InternalError(f"[lower] {node} is no row reduction of its group")


def lower_scatter(node: Node, is_leaf: Callable[[Node], bool], in_place: bool) -> Lowered | None:
    """The kernel that combines a scatter's values into an output that already holds the base.

    `in_place`: the output is the base's own buffer; then None if the values or positions are computed from the base.
    """
    base, picks, value = node.inputs
    axis, reduction = node.params["axis"], node.params["reduction"]
    state = Lowering(is_leaf)
    at = tuple(0 if extent == 1 else Var(f"i{d}", 0, extent - 1) for d, extent in enumerate(value.shape))
    state.domain = tuple(v for v in at if isinstance(v, Var))
    position = clamped_index(cast(state.element(picks, at), int64), base.shape[axis])
    where = (*at[:axis], position, *at[axis + 1:])
    element = cast(state.element(value, at), node.dtype)
    combine = {"add": "sum", "mul": "prod"}.get(reduction, reduction)
    if in_place and peel(base, is_leaf) in state.params:
        return None
    stored = [(frozenset(state.domain), Store("o0", where, element, combine))]
    nest = arrange(state.domain, state.definitions.values(), stored)
    out = Param("o0", node.dtype, node.shape, "inout")
    kernel = Kernel("scatter", (out, *state.params.values()), tuple(state.scalars.values()), (), (nest,))
    return lowered(kernel, (node, *state.params), state)
