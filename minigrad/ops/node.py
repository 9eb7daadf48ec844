"""`Node`: one operation of the lazy graph. Immutable, hash-consed, made by `apply` and nowhere else."""
from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import reduce
from itertools import count
from threading import local
from typing import Any
from weakref import ref

from minigrad.dtype import DType
from minigrad.errors import quantity
from minigrad.expr import Index
from minigrad.handles import changes
from minigrad.interned import Interned, Table
from minigrad.ops.kinds import Kind, Type, kind_of, kinds
from minigrad.ops.op import Op


class Node:
    """`op` over `inputs` with `params` (a dict that nobody changes), its inferred `shape` and `dtype`, and its device.

    `kind` (None for a leaf) and `type` say the same, interned and with numbers. `storage` is a memo, not part of the
    Node's meaning: the runtime Buffer that holds the value (row-major) once it was realized, else None. Only `engine`
    writes it. `depth` is the longest path to a leaf or to what was realized when the Node was made: a cheap bound that
    tells when a graph has grown long. `serial` grows from Node to Node: inputs have smaller ones than their users.
    `hooks` is there where `hooked` has the Node: what makes another gradient of its gradient. `rule` is there in a CALL
    (calls.py): what makes gradients of its inputs. `owned`: one handle alone stands for it (identity.py).
    """

    __slots__ = ("op", "inputs", "params", "shape", "dtype", "device", "kind", "type", "storage", "depth", "serial",
                 "hooks", "rule", "owned", "__weakref__")
    op: Op
    inputs: tuple[Node, ...]
    params: dict[str, Any]
    shape: tuple[Index, ...]
    dtype: DType
    device: str
    kind: Kind | None
    type: Type
    storage: Any
    depth: int
    serial: int
    hooks: Callable[[Node], Node]
    rule: Any
    owned: bool

    def __repr__(self) -> str:
        params = "".join(f", {k}={v}" for k, v in self.params.items())
        result = f"{self.dtype.short}{list(self.shape)} on {self.device}"
        return f"{self.op.name}({quantity(len(self.inputs), 'input')}{params}) -> {result}"


_serials = count()
_elsewhere = 0
"""The number of serials that belong to leaves, or to Nodes that are gone or have forgotten their inputs."""


class _Here(local):
    """Each thread's own state. `world` stands for the inputs of Nodes that have none: Nodes that were made in different
    worlds are never the same (ops/composite.py)."""

    world: tuple[Any, ...] = ()


here = _Here()
created: Callable[[Node], None] | None = None
"""Called with every new Node, if it is set."""


def apply(op: Op, *inputs: Node, device: str | None = None, **params: Any) -> Node:
    """The Node `op(*inputs, **params)`: the existing equal one, or a new one. A float that a handle owns is not found.

    Shapes and dtypes are inferred and checked here, once for operands of the same types: `kind_of`. `device` is needed
    where there are no inputs, and overrides theirs for `copy`. Params must be hashable, and always passed in the same
    order for one op.
    """
    types: tuple[Type, ...]
    place: Hashable
    if len(inputs) == 2:  # most Nodes have one or two inputs: a number is made quickly, and no collector walks over it
        x, y = inputs
        types, place = (x.type, y.type), x.serial << 64 | y.serial
    elif len(inputs) == 1:
        x, = inputs
        types, place = (x.type,), x.serial
    else:
        types, place = tuple([i.type for i in inputs]), _place(inputs)
    kind = kinds.get((op, device, types, *params.values()) if params else (op, device, types))
    if kind is None or kind.has_zero:
        kind = kind_of(op, device, types, params)
    found = kind.nodes.get(place)
    if found is not None:
        node: Node | None = found()
        if node is not None and not (node.owned and node.dtype.is_float):
            if changes.mark is node.serial:
                changes.mark = object()  # another thread made it, and has it no longer to himself
            return node
        if node is not None:
            _leave(node, kind.nodes, place)
    return _new(kind, inputs, params, place)


def apply_once(op: Op, *inputs: Node, **params: Any) -> Node:
    """The Node `op(*inputs, **params)`, which no other equals."""
    return _new(kind_of(op, None, tuple([i.type for i in inputs]), params), inputs, params, (object(),))


def is_variable(node: Node) -> bool:
    """True where a handle owns it, by which a gradient may be asked: rewrites do not look through it."""
    return node.owned and node.dtype.is_float


def _place(inputs: tuple[Node, ...]) -> Hashable:
    """The key of Nodes over `inputs` in their kind's table. Serials stay below 2**64."""
    return reduce(lambda place, i: place << 64 | i.serial, inputs, 0) if inputs else here.world


def _new(kind: Kind, inputs: tuple[Node, ...], params: dict[str, Any], place: Hashable) -> Node:
    depth = 0
    for i in inputs:
        if i.storage is None and i.depth > depth:
            depth = i.depth
    node, result = Node(), kind.type
    node.op = kind.op
    node.inputs = inputs
    node.params = params
    node.shape, node.dtype, node.device = result.shape, result.dtype, result.device
    node.kind = kind
    node.type = result
    node.storage = None
    node.owned = False
    node.depth = depth + 1
    changes.mark = node.serial = next(_serials)  # a number that never was there; its inputs have another holder
    entry = Interned(node, _forget)
    entry.table, entry.key = kind.nodes, place
    kind.nodes[place] = entry  # where other threads find all of it
    if created is not None:
        created(node)
    return node


def _forget(dead: Interned) -> None:
    """Takes a Node out of its table. When the interpreter ends, names of modules become None, and nobody looks."""
    global _elsewhere
    if _elsewhere is not None:
        _elsewhere += 1
        if dead.table.get(dead.key) is dead:  # `interned.drop`, without the call
            del dead.table[dead.key]


def _leave(node: Node, table: Table, place: Hashable) -> None:
    """Takes a Node that lives on out of its table."""
    global _elsewhere
    found = table.get(place)
    if found is not None and found() is node:
        _elsewhere += 1
        del table[place]


def leaf(op: Op, what: Type, storage: Any, params: dict[str, Any]) -> Node:
    """A Node without inputs over `storage`. Its params tell it from all others, so that nobody will look for it."""
    global _elsewhere
    _elsewhere += 1
    node = Node()
    node.op = op
    node.inputs = ()
    node.params = params
    node.kind = None
    node.shape, node.dtype, node.device = what.shape, what.dtype, what.device
    node.type = what
    node.storage = storage
    node.owned = True
    node.depth = 1
    node.serial = next(_serials)
    if created is not None:
        created(node)
    return node


def next_serial() -> int:
    """A serial that no Node has: Nodes that are there have smaller ones, and those made later larger ones."""
    global _elsewhere
    _elsewhere += 1
    return next(_serials)


def live_count() -> int:
    """A bound on the Nodes of any graph that is not realized yet."""
    return next_serial() + 1 - _elsewhere


def toposort(*roots: Node, through_storage: bool = False) -> list[Node]:
    """Nodes that `roots` need, inputs first, iteratively. Stops at realized Nodes unless `through_storage`."""
    order: list[Node] = []
    seen: set[Node] = set()
    stack: list[Node | None] = list(reversed(roots))
    pending: list[Node] = []
    while stack:
        node = stack.pop()
        if node is None:
            order.append(pending.pop())
        elif node not in seen:
            seen.add(node)
            if node.inputs and (node.storage is None or through_storage):
                stack.append(None)
                pending.append(node)
                stack.extend(reversed(node.inputs))
            else:
                order.append(node)
    return order


differentiable: dict[ref[Any], None] = {}
"""The assigns that gradients may pass through: new versions of what is no leaf, and requires a gradient."""


def keep_history(node: Node) -> None:
    """Keeps `sever` away from a Node for as long as it lives."""
    differentiable[ref(node, differentiable.pop)] = None


hooked: dict[ref[Any], None] = {}
"""The Nodes that have `hooks`. These stand in the Node, so that functions which refer to it go with it."""


def hook(node: Node, hooks: Callable[[Node], Node]) -> None:
    """Replaces the Node's gradient, once it is complete, by the result of `hooks` for it."""
    node.hooks = hooks
    hooked[ref(node, hooked.pop)] = None


def sever(node: Node) -> None:
    """Lets a realized Node forget what it was computed from: a new version of a buffer is a leaf from then on, unless
    a gradient may pass through it.

    Without it the versions of a parameter would keep each other, and every value ever assigned, alive.
    """
    if differentiable and ref(node) in differentiable:
        return
    if node.kind is not None:
        _leave(node, node.kind.nodes, _place(node.inputs))
    node.inputs = ()
