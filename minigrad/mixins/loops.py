"""`scan`: a loop over an axis with a carried state, as one operation."""
from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from minigrad.errors import DeviceError, DTypeError, MinigradError, ShapeError
from minigrad.expr import Index
from minigrad.mixins.base import as_axis
from minigrad.ops.composite import apart
from minigrad.ops.kinds import type_of
from minigrad.ops.node import Node, apply, toposort
from minigrad.ops.op import IndexMap
from minigrad.ops.scan import Operand, body_of, operand
from minigrad.ops.storage import CONST, COPY, DETACH, IOTA
from minigrad.ops.traced import Traced, remade
from minigrad.tensor import Tensor

Leaves = list[tuple[str, Tensor]]


def scan(function: Callable[[Any, Any], tuple[Any, Any]], init: Any, xs: Any = None, length: Index | None = None,
         dim: int = 0, reverse: bool = False) -> tuple[Any, Any]:
    """(the carry after the last step, the results of all steps) of a loop over an axis:

        carry, ys = init, []
        for x in xs:
            carry, y = function(carry, x)
            ys.append(y)
        return carry, stack(ys)

    `init`, `xs` and what `function` gives are Tensors, or tuples, lists and dictionaries of them, or None. Each Tensor
    of `xs` is cut along axis `dim`, and the results are joined along axis `dim`; `reverse` goes from the last slice to
    the first one, and each result stands where its slice stood. Without `xs`, `length` says how many steps there are;
    it may be symbolic, as may be the length of that axis.

    `function` is called once, with Tensors that stand for those of any step: it must give a carry of the same
    structure, shapes and dtypes, read no values, and change no Tensor. What it computes from neither argument is
    computed once, random numbers too. Gradients go to `init`, `xs` and to all else that `function` uses; for them, the
    carries before all steps are kept in memory.

    Raises MinigradError for another structure, ShapeError and DTypeError for a carry of another shape or dtype, and
    ShapeError for axes that do not agree, and for results of a shape that is symbolic. As `jax.lax.scan`.
    """
    carries, slices = _leaves("init", init), _leaves("xs", xs)
    if not carries and not slices:
        raise MinigradError("[scan] expected Tensors in init or xs, got none")
    moved = [(name, _first(name, x, dim)) for name, x in slices]
    steps = _length(moved, length)
    given = [t for _, t in (*carries, *moved)]
    device = given[0].device
    for name, t in (*carries, *moved):
        if t.device != device:
            raise DeviceError(f"[scan] expected all Tensors on {device}, got {name} on {t.device}")
    traced = _Step(function, init, xs, carries, moved, any([t.needs_grad for t in given]))
    if not traced.flows and any([t.needs_grad for t in traced.results]):
        traced = _Step(function, init, xs, carries, moved, True)  # gradients go to what it uses besides, by the carry
    nodes = traced.body([*[t.node for t in given], *traced.captured], steps, bool(reverse))
    parents = [t for t in (*given, *traced.results) if t.needs_grad]
    made = [Tensor._wrap(n, *(parents if n.dtype.is_float else ())) for n in nodes]
    parts = [*made[:len(carries)], *[_back(t, dim) for t in made[len(carries):]]]
    results = iter(parts)
    return _rebuilt(init, results), _rebuilt(traced.structure, results)


class _Step:
    """`function` over operands that stand for any: `body`, `captured` Nodes that it uses besides, the Tensors `results`
    that it gave for the operands, and the `structure` of those that are by step."""

    def __init__(self, function: Callable[[Any, Any], tuple[Any, Any]], init: Any, xs: Any, carries: Leaves,
                 slices: Leaves, flows: bool):
        self.flows = flows
        shapes = [*[t.shape for _, t in carries], *[t.shape[1:] for _, t in slices]]
        operands = []
        for (name, t), shape in zip((*carries, *slices), shapes, strict=True):
            if any([not isinstance(n, int) for n in shape]):
                raise ShapeError(f"[scan] expected a known shape of a step, got {list(shape)} of {name}")
            operands.append(operand(type_of(shape, t.dtype, t.device)))
        with apart():
            tensors = [Tensor.over(n) for n in operands]
            for t in tensors:
                t.needs_grad = flows and t.dtype.is_float
            parts = iter(tensors)
            given = _rebuilt(init, parts), _rebuilt(xs, parts)
            got = function(*given)
            if not isinstance(got, tuple) or len(got) != 2:
                raise MinigradError(f"[scan] expected function(carry, x) to give (carry, y), got {_described(got)}")
            _same_structure(init, got[0], "carry")
            found = _leaves("carry", got[0])
            for (name, new), (_, old) in zip(found, carries, strict=True):
                _same_type(name, new, old)
            self.structure = got[1]
            self.results = [t for _, t in (*found, *_leaves("y", got[1]))]
            self.captured, step = _parted(operands, [t.node for t in self.results])
            self.body = body_of(step, len(carries), len(slices))


def _parted(operands: list[Node], results: list[Node]) -> tuple[list[Node], Traced]:
    """The Nodes that a step uses besides its operands, and the step with operands for these too. Constants and how they
    are moved are part of it."""
    own, inside, captured = set(operands), set(operands), dict[Node, Node]()
    order = toposort(*results)
    of_storage = {n.storage: n for n in operands}
    detached = {n: apply(DETACH, of_storage[n.storage], id=0)  # what is realized is detached as another leaf
                for n in order if type(n.storage) is Operand and n not in own and n.storage in of_storage}
    own.update(detached)
    inside.update(detached)
    constant: set[Node] = set()
    for node in order:
        if node.storage is None and any([i in own for i in node.inputs]):
            own.add(node)
        elif node.storage is None and (node.op in (CONST, IOTA) or (
                node.inputs and isinstance(node.op.lower, IndexMap) and all([i in constant for i in node.inputs]))):
            constant.add(node)
    needed = [*[i for node in order if node in own and node not in inside for i in node.inputs], *results]
    for node in needed:
        if node not in own and node not in constant and node not in captured:
            if node.type.symbolic:
                raise ShapeError(f"[scan] expected Tensors of known shapes in the function, got {list(node.shape)}")
            if node.device != operands[0].device:
                raise DeviceError(f"[scan] expected Tensors on {operands[0].device} in the function, got one on "
                                  f"{node.device}")
            captured[node] = operand(node.type)
    for node in order:
        if node in own and (node.op is COPY or node.type.symbolic or (
                node.kind is not None and node.kind.symbolic)):
            raise ShapeError(f"[scan] expected operations of known shapes on one device in the function, got {node}")
    image = {**{n: n for n in operands}, **detached, **captured}
    made = remade([n for n in order if (n in own or n in constant)], results, image)
    return list(captured), Traced([*operands, *captured.values()], made)


# Trees of Tensors


def _leaves(name: str, value: Any) -> Leaves:
    """The Tensors of a tree with their names, in order. Raises DTypeError for what is none."""
    if isinstance(value, Tensor):
        return [(name, value)]
    if value is None:
        return []
    if isinstance(value, Mapping):
        return [leaf for k, v in value.items() for leaf in _leaves(f"{name}[{k!r}]", v)]
    if isinstance(value, (tuple, list)):
        return [leaf for k, v in enumerate(value) for leaf in _leaves(f"{name}[{k}]", v)]
    raise DTypeError(f"[scan] expected Tensors, or tuples, lists and dictionaries of them, got {name} = "
                     f"{type(value).__name__}")


def _rebuilt(value: Any, tensors: Iterator[Tensor]) -> Any:
    """A tree with the next `tensors` in place of its own."""
    if isinstance(value, Tensor):
        return next(tensors)
    if isinstance(value, Mapping):
        return {k: _rebuilt(v, tensors) for k, v in value.items()}
    if isinstance(value, (tuple, list)):
        parts = [_rebuilt(v, tensors) for v in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    return value


def _same_structure(old: Any, new: Any, name: str) -> None:
    """Raises MinigradError where the tree of a new carry is not that of the first one."""
    parts: list[tuple[Any, Any, str]] = []
    if isinstance(old, Mapping) and isinstance(new, Mapping) and list(old) == list(new):
        parts = [(old[k], new[k], f"{name}[{k!r}]") for k in old]
    elif isinstance(old, (tuple, list)) and type(old) is type(new) and len(old) == len(new):
        parts = [(a, b, f"{name}[{k}]") for k, (a, b) in enumerate(zip(old, new, strict=True))]
    elif not (isinstance(old, Tensor) and isinstance(new, Tensor)) and not (old is None and new is None):
        raise MinigradError(f"[scan] expected the function to give {name} like that of init, {_described(old)}, got "
                            f"{_described(new)}")
    for a, b, part in parts:
        _same_structure(a, b, part)


def _same_type(name: str, new: Tensor, old: Tensor) -> None:
    """Raises ShapeError or DTypeError where a new carry is not of the first one's type."""
    message = (f"[scan] expected the function to give {name} as {old.dtype}{list(old.shape)}, like that of init, got "
               f"{new.dtype}{list(new.shape)}")
    if new.shape != old.shape:
        raise ShapeError(message)
    if new.dtype is not old.dtype:
        raise DTypeError(f"{message}; cast one of them")


def _described(value: Any) -> str:
    """A name for a tree by its top."""
    if isinstance(value, Tensor):
        return "a Tensor"
    if isinstance(value, Mapping):
        return f"a dictionary of {', '.join(map(repr, value)) or 'nothing'}"
    if isinstance(value, (tuple, list)):
        return f"a {type(value).__name__} of {len(value)}"
    return "None" if value is None else f"a {type(value).__name__}"


# The axis


def _first(name: str, x: Tensor, dim: int) -> Tensor:
    """`x` with the axis that is cut first."""
    if not x.ndim:
        raise ShapeError(f"[scan] expected Tensors with an axis {dim} to cut, got {name} of shape []")
    axis = as_axis("scan", dim, x.ndim)
    return x if axis == 0 else x.movedim(axis, 0)


def _back(y: Tensor, dim: int) -> Tensor:
    """The results of steps, joined along the first axis, with this axis at `dim`."""
    axis = as_axis("scan", dim, y.ndim)
    return y if axis == 0 else y.movedim(0, axis)


def _length(slices: Leaves, length: Index | None) -> Index:
    """The number of steps. Raises ShapeError where the lengths of `slices` and `length` differ, or there is none."""
    if length is not None and (isinstance(length, bool) or (isinstance(length, int) and length < 0)):
        raise ShapeError(f"[scan] expected a length of 0 or more, got {length!r}")
    found: Sequence[tuple[str, Index]] = [(name, x.shape[0]) for name, x in slices]
    if length is not None:
        found = [("length", length), *found]
    if not found:
        raise ShapeError("[scan] expected xs or a length, got neither")
    for name, n in found[1:]:
        if n != found[0][1]:
            raise ShapeError(f"[scan] expected axes of one length, got {found[0][0]} with {found[0][1]} and {name} "
                             f"with {n}")
    return found[0][1]
