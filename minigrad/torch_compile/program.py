"""`Program`: nodes of an FX graph as one function of Tensors."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload

from minigrad import Tensor
from minigrad.dtype import DType
from minigrad.torch_compile.node import DTYPES, Node, Operator, Unsupported
from minigrad.torch_compile.shapes import RANDOM
from minigrad.torch_compile.shared import Shared, inverse_of, order_of, to_torch
from minigrad.torch_compile.table import name_of, operator_of


class Program:
    """Computes `nodes` from the nodes `inputs`, for the nodes `outputs`. `draws` says whether they draw random
    numbers."""

    def __init__(self, nodes: list[fx.Node], inputs: list[fx.Node], outputs: list[fx.Node]):
        self._nodes = nodes
        self._tensors = [n for n in inputs if is_tensor(n)]
        self._numbers = [n for n in inputs if not is_tensor(n)]
        self._results = [n for n in outputs if is_tensor(n)]
        self._sizes = [n for n in outputs if not is_tensor(n)]
        self._orders = [_order(n.meta["val"]) for n in self._results]
        self._inverse = [None if order is None else inverse_of(order) for order in self._orders]
        self._found: dict[tuple, list[Any]] = {}
        self.draws = any(name_of(n.target).rpartition(".")[0] in RANDOM for n in nodes)

    def run(self, tensors: Sequence[Tensor], orders: Sequence[Any], numbers: tuple) -> list[Tensor]:
        """The results, each with its axes in the order of its strides; `orders` are those of the inputs."""
        values: dict[fx.Node, Any] = dict(zip(self._numbers, numbers, strict=True))
        for node, tensor, order in zip(self._tensors, tensors, orders, strict=True):
            values[node] = in_order(Shared(tensor, order))
        for node in self._nodes:
            values[node] = value_of(node, *fx.map_arg((node.args, node.kwargs), values.__getitem__))
        self._found[numbers] = [values[n] for n in self._sizes]
        return [values[n].contiguous() if order is None else values[n].permute(*order).contiguous()
                for n, order in zip(self._results, self._orders, strict=True)]

    def finish(self, results: list[Tensor], numbers: tuple, values: dict[fx.Node, Any]) -> None:
        """Adds what `run` gave to `values`, as torch's tensors and as numbers."""
        taken = set()
        for node, result, inverse in zip(self._results, results, self._inverse, strict=True):
            found, key = to_torch(result), id(result.lazydata.storage)
            found = found.clone() if key in taken else found  # which may be written to
            taken.add(key)
            values[node] = found if inverse is None else found.permute(inverse)
        if self._sizes:
            values.update(zip(self._sizes, self._found[numbers], strict=True))


def in_order(shared: Shared) -> Tensor:
    """The Tensor with the axes of torch's tensor."""
    return shared.tensor if shared.order is None else shared.tensor.permute(*inverse_of(shared.order))


def is_tensor(node: fx.Node) -> bool:
    """True for a node whose value is a tensor, not a number."""
    return isinstance(node.meta["val"], torch.Tensor)


def _order(value: Any) -> tuple[int, ...] | None:
    """The order of axes in which a result lies densely as its strides say; None for its own."""
    strides, shape = [hint(s) for s in value.stride()], [hint(s) for s in value.shape]
    order, expected = order_of(strides), 1
    for axis in reversed(order):
        if shape[axis] != 1 and strides[axis] != expected:
            return None  # not dense: what reads it takes any layout
        expected *= shape[axis]
    return None if order == tuple(range(len(order))) else order


def hint(size: Any) -> int:
    """A size as torch met it when it traced; asking for it adds no guard."""
    found = size if isinstance(size, int) else size.node.hint
    if found is None:
        raise Unsupported("a size that depends on values")
    return int(found)


def value_of(node: fx.Node, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """The value of a node for the values of its arguments: Tensors, lists of them, and numbers."""
    if isinstance(node.target, OpOverload):
        if name_of(node.target) in ("sym_size.int", "sym_numel.default"):
            return args[0].shape[args[1]] if len(args) > 1 else args[0].numel()
        found = operator_of(node.target)
        if found is None:
            raise Unsupported("is not in the table of operators")
        return typed_results(found, node, args, kwargs)
    return node.target(*args, **kwargs)  # arithmetic on sizes, and items of lists


def typed_results(function: Operator, node: fx.Node, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """The results of an operator, in the types that ATen says."""
    kinds = result_types(node)
    found = function(Node(kinds), *args, **kwargs)
    if isinstance(node.meta["val"], (list, tuple)):
        return [t if kind is None or t is None else t.cast(kind) for t, kind in zip(found, kinds, strict=False)]
    return found.cast(kinds[0])


def result_types(node: fx.Node) -> list[DType | None]:
    """The types of the results of a node; None for one that is no tensor."""
    value = node.meta["val"]
    values = value if isinstance(value, (list, tuple)) else [value]
    return [DTYPES[v.dtype] if isinstance(v, torch.Tensor) else None for v in values]
