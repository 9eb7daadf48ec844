"""The kernel of a loop with a carried state (ops/scan.py): kernels of one step, and the buffers between them.

The step is scheduled as a graph of its own, whose leaves are the carries, and what the loop reads. Its slices are those
of the number of the step, a symbolic dim. All buffers of the step become those of one block:

    block:
      local s0[..], s1[..]
      s0 = init                    before
      steps t in 0..T:
        ... the step's nests, which read s0 and p0[t], and store to s1 and o0[t]
        s0 = s1
      o1 = s0                      after
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from minigrad.codegen.ir.launch import places_of
from minigrad.codegen.kernel.access import iterations
from minigrad.codegen.kernel.nodes import Block, Define, Kernel, Nest, Param, Scalar, Steps, Store
from minigrad.codegen.kernel.value_walk import Rewriter
from minigrad.codegen.kernel.walk import map_nest, statements
from minigrad.codegen.lowering.flatten import map_accesses, offset
from minigrad.codegen.lowering.independent_axes import carried, independent_axes
from minigrad.codegen.lowering.lower import Lowered, lower_group
from minigrad.codegen.lowering.rename import kernel_dims, rename_nest
from minigrad.codegen.policy.scan import choose, runs
from minigrad.errors import present
from minigrad.expr import Index, Var, subs
from minigrad.ops import build as B
from minigrad.ops import storage
from minigrad.ops.composite import apart, rebuilt
from minigrad.ops.exchange import EXCHANGE
from minigrad.ops.node import Node, apply
from minigrad.ops.op import IndexMap
from minigrad.ops.scan import Body, Operand, operand
from minigrad.scheduler.graph import build_graph, resolve
from minigrad.target import Target
from minigrad.value import cast, load

if TYPE_CHECKING:
    from minigrad.scheduler.schedule import Schedule

Scheduled = Callable[..., "Schedule"]


def lower_loop(nodes: tuple[Node, ...], is_leaf: Callable[[Node], bool], target: Target, schedule: Scheduled,
               ) -> Lowered | None:
    """The kernel of results of one loop; None for a step that no nests can compute: that has a loop, or scatters."""
    with apart():
        return _Loop(nodes, is_leaf).lowered(target, schedule)


MOST_WORK = 1 << 12
"""Evaluations of an element in one step from which kernels for each step are faster, where no part is independent."""


def suits_loop(node: Node, target: Target, schedule: Scheduled) -> bool:
    """True where a loop is one kernel on a target. A loop whose length is not known is, wherever it can be."""
    lower: Any = node.op.lower
    body: Body = lower.body
    known = isinstance(node.params["length"], int)
    key = target, node.params["reverse"], node.params["length"] if target.max_iterations else known
    found = body.kernels.get(key)
    if found is None:
        found = body.kernels[key] = _suits(node, body, known, target, schedule)
    return found


def _suits(node: Node, body: Body, known: bool, target: Target, schedule: Scheduled) -> bool:
    if target.language not in ("llvm", "opencl") or (target.is_gpu and not target.has_groups):
        return False
    if any(0 in n.shape or n.op is EXCHANGE for n in (*body.step.operands, *body.step.results, *body.step.order)):
        return False
    with apart():
        inputs = [operand(n.type) for n in node.inputs]
        results = body([*inputs], node.params["length"], node.params["reverse"])
        lowered = lower_loop(tuple(results), lambda n: type(n.storage) is Operand, target, schedule)
    if lowered is None:
        return False
    places, loop = choose(lowered.kernel, target), carried(lowered.kernel)
    if places is None or not runs(lowered.kernel, places, target):
        return False
    work = sum([iterations(n) for n in loop.nests[loop.first:loop.last]])
    axes = independent_axes(lowered.kernel)
    for axis in axes:
        work /= axis.extent
    if places.items and places.across < 0:
        work /= places.lanes
    shared_out = places.across >= 0 if places.items else any([axis.extent > 1 for axis in axes])
    return not known or shared_out or work <= MOST_WORK


class _Loop:
    """`at`: the place of the slices of step `var`. `sources` are Nodes in memory by what stands for them."""

    def __init__(self, nodes: tuple[Node, ...], is_leaf: Callable[[Node], bool]):
        node = nodes[0]
        lower: Any = node.op.lower
        self.nodes, self.body = nodes, lower.body
        body: Body = self.body
        length = node.params["length"]
        self.var = Var("t", 0, length - 1)
        self.at: Index = length - 1 - self.var if node.params["reverse"] else self.var
        self.sources: dict[Operand, Node] = {}
        self.moved: dict[Node, Node] = {}
        given = [self._moved(n, is_leaf) for n in node.inputs]
        self.init = given[:body.carries]
        self.carries = [operand(n.type) for n in body.step.operands[:body.carries]]
        self.state = [Param(f"s{k}", n.dtype, n.shape, "inout") for k, n in enumerate(self.carries)]
        self.before: list[Nest] = []
        self.inside: list[Nest] = []
        self.scalars: dict[Any, Scalar] = {}
        self.params: dict[Node, Param] = {}
        slices = [self._slice(x) for x in given[body.carries:body.carries + body.slices]]
        self.results = body.step.images([*body.step.results[:body.carries], *body.by_step],
                                        [*self.carries, *slices, *given[body.carries + body.slices:]])

    def _moved(self, node: Node, is_leaf: Callable[[Node], bool]) -> Node:
        """An operand of the loop over what stands for the Node in memory that it is moved from."""
        node = resolve(node)
        if not is_leaf(node) and isinstance(node.op.lower, IndexMap):
            return rebuilt(node, {node.inputs[0]: self._moved(node.inputs[0], is_leaf)})
        if node.op in (storage.CONST, storage.IOTA) and not is_leaf(node):
            return rebuilt(node, {})
        if node not in self.moved:
            self.moved[node] = operand(node.type)
            self.sources[self.moved[node].storage] = node
        return self.moved[node]

    def _slice(self, x: Node) -> Node:
        """The slice of this step."""
        rest = x.shape[1:]
        starts: tuple[Index, ...] = (self.at, *[0] * len(rest))
        return B.reshape(B.slice_(x, starts, (self.at + 1, *rest)), rest)

    def lowered(self, target: Target, schedule: Scheduled) -> Lowered | None:
        carried = self.state[:self.body.carries]
        body, wanted = self.body, {n.params["number"]: f"o{k}" for k, n in enumerate(self.nodes)}
        outs = tuple([Param(f"o{k}", n.dtype, n.shape, "out") for k, n in enumerate(self.nodes)])
        first = body.carries + body.results  # of the carries before each step
        by_step = [k for k in wanted if body.carries <= k < first or k >= first + body.carries]
        results = [*self.results[:body.carries], *[self.results[k] for k in by_step]]
        places = self._step(results, target, schedule)
        if places is None:
            return None
        for k, carry in enumerate(carried):
            self.before += self._copied(self.init[k], lambda n: None, carry.name, ())
            if (number := first + k) in wanted:
                self.inside.insert(0, _stored(carry, wanted[number], (self.at,)))
        for k in by_step:
            self.inside += self._copied(self.results[k], places.get, wanted[k], (self.at,))
        new = [(carry, self._kept(self.results[k], places, carry)) for k, carry in enumerate(carried)]
        self.inside += [_moved_back(source, carry) for carry, source in new if source is not carry]
        after = [_stored(self.state[k], name, ()) for k, name in wanted.items() if k < body.carries]
        params = (*outs, *self.params.values())
        block = Block((), tuple(self.state), (*self.before, Steps(self.var, 0, tuple(self.inside)), *after))
        kernel = Kernel("scan", params, tuple(self.scalars.values()), (), (), block)
        stripped, dims = _strip(kernel)
        return Lowered(stripped, (*self.nodes, *self.params), tuple([n for n, _ in self.scalars]), dims)

    def _step(self, results: Sequence[Node], target: Target, schedule: Scheduled) -> dict[Node, Param] | None:
        """Adds the nests of a step; gives the buffers of its Nodes."""
        graph = build_graph([n for n in results])
        made = schedule(graph, frozenset(), target)
        places: dict[Node, Param] = dict(zip(self.carries, self.state, strict=True))
        slots: dict[int, Param] = {}
        for k, place in enumerate(made.slots):
            if place.leaf is not None:
                node = graph.nodes[place.leaf]
                slots[k] = places[node] if node in places else self._param(node)
        for number, step in enumerate(made.steps):
            if step.kernel.block is not None or any(
                    isinstance(s, Store) and s.combine for s in statements(step.kernel.nests)):
                return None
            for slot, param in zip(step.values, step.kernel.params, strict=True):
                if param.mode == "inout" or param.layout is not None:
                    return None
                if slot not in slots:
                    slots[slot] = Param(f"s{len(self.state)}", param.dtype, param.shape, "inout")
                    self.state.append(slots[slot])
            names = {p.name: slots[s].name for p, s in zip(step.kernel.params, step.values, strict=True)}
            for scalar, number_of in zip(step.kernel.scalars, step.scalars, strict=True):
                value: Any = graph.nodes[number_of] if type(number_of) is int else number_of
                names[scalar.name] = self._scalar(value, scalar)
            dims = dict(zip(step.kernel.dims, step.dims, strict=True))
            self.inside += [_renamed(nest, dims, names, f"n{number}_") for nest in step.kernel.nests]
        for k, slot in zip(graph.targets, made.outputs, strict=True):
            places[graph.nodes[k]] = slots[slot]
        return places

    def _param(self, node: Node) -> Param:
        """The parameter of what stands for a Node in memory."""
        source = self.sources[node.storage]
        if source not in self.params:
            self.params[source] = Param(f"p{len(self.params)}", source.dtype, source.shape)
        return self.params[source]

    def _scalar(self, value: Any, scalar: Scalar) -> str:
        found = self.scalars.setdefault((value, scalar.dtype), Scalar(f"c{len(self.scalars)}", scalar.dtype))
        return found.name

    def _kept(self, result: Node, places: dict[Node, Param], carry: Param) -> Param:
        """The buffer, in the carry's shape, that holds the next carry at the end of a step."""
        at = resolve(result)
        found = places.get(at)
        if found is not None and found.shape == carry.shape and found not in self.state[:len(self.carries)]:
            return found
        if found is carry and found.shape == carry.shape:
            return carry
        made = Param(f"s{len(self.state)}", carry.dtype, carry.shape, "inout")
        self.state.append(made)
        self.inside += self._copied(result, places.get, made.name, ())
        return made

    def _copied(self, node: Node, place: Callable[[Node], Param | None], into: str, at: tuple[Index, ...],
                ) -> list[Nest]:
        """The nest that stores a Node in a buffer, at further indices before its own."""
        node = resolve(node)
        root = apply(storage.CONTIGUOUS, node)
        lowered = present(lower_group((root,), lambda n: place(n) is not None or type(n.storage) is Operand, "copy",
                                      symbolic=False), "[scan] expected a kernel that copies")
        names = {"o0": into}
        for param, source in zip(lowered.kernel.params[1:], lowered.nodes[1:], strict=True):
            names[param.name] = (place(source) or self._param(source)).name
        for scalar, value in zip(lowered.kernel.scalars, lowered.scalars, strict=True):
            names[scalar.name] = self._scalar(value, scalar)
        shapes = {param.name: ((place(source) or source).shape, source.shape)
                  for param, source in zip(lowered.kernel.params[1:], lowered.nodes[1:], strict=True)}
        nests = map_accesses(lowered.kernel.nests,
                             lambda name, at: at if name not in shapes else _viewed(at, *shapes[name]))
        return [_shifted(_renamed(nest, {}, names, "n_"), into, at) for nest in nests]


def _renamed(nest: Nest, dims: dict[Var, Index], names: dict[str, str], stem: str) -> Nest:
    """The nest with dims, and other names of buffers and numbers; those of definitions begin with `stem`."""
    defined = {s.name: stem + s.name for s in statements((nest,)) if isinstance(s, Define)}
    rewriter = Rewriter({}, names | defined)

    made = map_nest(nest, rewriter.value, lambda _, at: tuple(map(rewriter.index, at)), name=rewriter.name)
    return rename_nest(made, dims) if dims else made


def _viewed(at: tuple[Index, ...], shape: tuple[Index, ...], seen: tuple[Index, ...]) -> tuple[Index, ...]:
    """The place in a buffer of `shape` of the element at `at` of what is seen in another shape, row by row."""
    if shape == seen:
        return at
    longer = iter([e for e, n in zip(at, seen, strict=True) if n != 1])
    if [n for n in shape if n != 1] == [n for n in seen if n != 1]:
        return tuple([0 if n == 1 else next(longer) for n in shape])
    return tuple(places_of(offset(at, seen), shape))


def _shifted(nest: Nest, into: str, at: tuple[Index, ...]) -> Nest:
    """The nest with further indices in its stores to a buffer."""
    return map_nest(nest, lambda v: v, lambda name, own: (*at, *own) if name == into else own)


def _stored(source: Param, into: str, at: tuple[Index, ...]) -> Nest:
    """The nest that copies a buffer into another one, at further indices before its own."""
    place = tuple([0 if n == 1 else Var(f"i{d}", 0, n - 1) for d, n in enumerate(source.shape)])
    value = load(source.name, place, source.dtype)
    return Nest(tuple([v for v in place if isinstance(v, Var)]),
                (Store(into, (*at, *place), cast(cast(value, source.dtype.compute), source.dtype)),))


def _moved_back(source: Param, carry: Param) -> Nest:
    return _stored(source, carry.name, ())


def _strip(kernel: Kernel) -> tuple[Kernel, tuple[Var, ...]]:
    """`strip_bindings` of a kernel with a block."""
    block, loop = present(kernel.block, "[scan] expected a block"), carried(kernel)
    used = kernel_dims(kernel.with_nests((*loop.nests, Nest((loop.var,), ()))))
    dims = tuple([d for d in used if d.name != loop.var.name])
    originals = tuple(dict.fromkeys(Var(v.name, v.lo, v.hi) for v in dims))
    named = {o: Var(f"d{k}", o.lo, o.hi) for k, o in enumerate(originals)}
    mapping: dict[Var, Index] = {v: named[Var(v.name, v.lo, v.hi)] for v in dims}
    if not mapping:
        return kernel, ()
    var = Var(loop.var.name, 0, subs(loop.var.hi, mapping))
    mapping |= {d: var for d in (loop.var, *used) if d.name == var.name}
    params = tuple([replace(p, shape=tuple([subs(e, mapping) for e in p.shape])) for p in kernel.params])
    nests = [rename_nest(n, mapping) for n in loop.nests]
    steps = Steps(var, 0, tuple(nests[loop.first:loop.last]))
    body: tuple[Nest | Steps, ...] = (*nests[:loop.first], steps, *nests[loop.last:])
    return replace(kernel, params=params, dims=tuple(named.values()), block=replace(block, body=body)), originals
