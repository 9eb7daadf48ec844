"""`summary`: a table of a model's layers, with the shapes of their results, parameters, operations and memory."""
from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from minigrad.dtype import float32, to_dtype
from minigrad.errors import MinigradError
from minigrad.expr import Expr, evaluate
from minigrad.nn.module import Module
from minigrad.ops.attention import ATTENTION
from minigrad.ops.composite import expand
from minigrad.ops.node import Node
from minigrad.ops.op import Composite, Shape
from minigrad.ops.products import CONV, MATMUL
from minigrad.ops.storage import BUFFER
from minigrad.state.tree import children_of, get_state_dict
from minigrad.tensor import Tensor


@dataclass(frozen=True, slots=True)
class LayerRow:
    """One call of a layer: the path to it, its kind, the shape of its first result and the bytes of all, the parameters
    of it alone and the floating point operations of its products, two for a multiplication with its sum."""

    name: str
    kind: str
    shape: tuple[Any, ...]
    parameters: int
    flops: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Summary:
    """The result of `summary`. `parameters` and their bytes count each Tensor once, `trainable` those with gradients.
    """

    rows: tuple[LayerRow, ...]
    parameters: int
    trainable: int
    parameter_bytes: int

    @property
    def flops(self) -> int:
        """Of all products of a forward pass."""
        return sum([r.flops for r in self.rows])

    @property
    def result_bytes(self) -> int:
        """Of the results of all layers, which a training step keeps at most."""
        return sum([r.nbytes for r in self.rows])

    def __str__(self) -> str:
        lines = [("layer", "kind", "result", "parameters", "MFLOP", "MB")]
        lines += [(r.name, r.kind, str(list(r.shape)), f"{r.parameters:,}", f"{r.flops / 1e6:.2f}",
                   f"{r.nbytes / 1e6:.3f}") for r in self.rows]
        widths = [max(len(line[k]) for line in lines) for k in range(6)]
        table = ["  ".join([text.rjust(w) if k > 2 else text.ljust(w)
                            for k, (text, w) in enumerate(zip(line, widths, strict=True))]) for line in lines]
        rule = "-" * max(map(len, table))
        return "\n".join([table[0], rule, *table[1:], rule,
                          f"parameters: {self.parameters:,}, {self.trainable:,} of them trainable, "
                          f"{self.parameter_bytes / 1e6:.3f} MB",
                          f"{self.flops / 1e6:.2f} MFLOP in products, {self.result_bytes / 1e6:.3f} MB of results"])


def summary(model: Any, *inputs: Any, dtype: Any = float32) -> Summary:
    """The layers that `model(*inputs)` calls, in order: print the result for a table. Inputs are Tensors, or shapes of
    Tensors of zeros of a `dtype`. Nothing is computed and nothing changes.

    The model may be any object: its layers of `minigrad.nn` are found in attributes, lists and dictionaries. Raises
    MinigradError for a model that is not called.
    """
    if not callable(model):
        raise MinigradError(f"[summary] expected a model that can be called, got {type(model).__name__}")
    given = [x if isinstance(x, Tensor) or not isinstance(x, (tuple, list)) else Tensor.zeros(*x, dtype=to_dtype(dtype))
             for x in inputs]
    rows: list[LayerRow] = []
    own: set[int] = set()
    hooks = []
    try:
        for name, layer in _layers(model):
            def note(module: Any, args: tuple[Any, ...], output: Any, name: str = name) -> None:
                rows.append(_row(name, module, args, output, own))

            hooks.append(layer.register_forward_hook(note))
        before = [(t, t.node, t.lazy_node) for t in get_state_dict(model).values()]
        with Tensor.no_grad(), Tensor.train(False):
            model(*given)
    finally:
        for hook in hooks:
            hook.remove()
    for t, node, lazy in before:  # running statistics of Modules in training
        if t.node is not node:
            t.replace(Tensor.over(node))
            t.lazy_node = lazy
    tensors = list({id(t): t for t in get_state_dict(model).values()}.values())
    trainable = [t for t in tensors if t.requires_grad]
    parameters = trainable or tensors
    return Summary(tuple(rows), _count(parameters), _count(trainable), _bytes(parameters))


def _layers(model: Any) -> Iterable[tuple[str, Module]]:
    """The Modules that have Tensors of their own or hold no other ones, with the paths to them, each once."""
    seen: set[int] = set()
    pending: list[tuple[str, Any]] = [("", model)]
    while pending:
        path, part = pending.pop()
        if id(part) in seen or isinstance(part, Tensor):
            continue
        seen.add(id(part))
        inner = [(f"{path}.{name}" if path else name, p) for name, p in children_of(part)]
        whole = any([isinstance(p, Tensor) for _, p in inner]) or not any([_has_module(p) for _, p in inner])
        if isinstance(part, Module) and whole:
            yield path or type(part).__name__, part
        else:
            pending += reversed(inner)


def _has_module(part: Any) -> bool:
    if isinstance(part, (list, tuple, dict)):
        return any([_has_module(p) for _, p in children_of(part)])
    return isinstance(part, Module)


def _row(name: str, layer: Any, args: tuple[Any, ...], output: Any, own: set[int]) -> LayerRow:
    parameters = [t for t in get_state_dict(layer).values() if id(t) not in own and t.requires_grad]
    own.update(map(id, parameters))
    results = [r for r in (output if isinstance(output, (tuple, list)) else [output]) if isinstance(r, Tensor)]
    shape = results[0].shape if results else ()
    flops = _flops([r.node for r in results], {a.node for a in args if isinstance(a, Tensor)})
    return LayerRow(name, type(layer).__name__, tuple(shape), _count(parameters), flops, _bytes(results))


def _flops(results: Sequence[Node], seen: set[Node]) -> int:
    """The operations of the products that make these Nodes, in what composites stand for too, but for Nodes in `seen`,
    to which it adds: equal parts of two composites are computed once."""
    total, stack = 0, list(results)
    while stack:
        node = stack.pop()
        if node in seen or node.storage is not None or node.op is BUFFER:
            continue
        seen.add(node)
        stack += node.inputs
        products = _products(node)
        if products is None and isinstance(node.op.lower, Composite):
            stack.append(expand(node, node.inputs))
        total += products or 0
    return total


def _products(node: Node) -> int | None:
    """The operations of one product of matrices, convolution or attention; None for any other Node."""
    if node.op is MATMUL:
        return 2 * _elements((*node.shape, node.inputs[0].shape[-1]))
    if node.op is CONV:
        return 2 * _elements((*node.shape, *node.inputs[1].shape[1:]))
    if node.op is ATTENTION:
        q, k, v = node.inputs[:3]
        return 2 * _elements((*q.shape[:-1], k.shape[-2], q.shape[-1] + v.shape[-1]))
    return None


def _elements(shape: Shape) -> int:
    """The number of elements of a shape; its Variables are bound to values."""
    return prod([evaluate(d, {}) if isinstance(d, Expr) else d for d in shape])


def _count(tensors: Sequence[Tensor]) -> int:
    return sum([_elements(t.shape) for t in tensors])


def _bytes(tensors: Sequence[Tensor]) -> int:
    return sum([_elements(t.shape) * t.dtype.itemsize for t in tensors])
