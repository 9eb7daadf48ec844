"""`Graph`: an FX graph of ATen operators that runs: parts of it by minigrad, each captured, and what the table does not
have by torch."""
from __future__ import annotations

import operator
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from minigrad import Tensor, jit, random
from minigrad.torch_compile.node import Unsupported
from minigrad.torch_compile.program import Program
from minigrad.torch_compile.shared import to_minigrad
from minigrad.torch_compile.trial import refusal

MOST_KINDS = 64
"""Captures of one graph, for as many combinations of sizes and layouts; the oldest goes first."""
_warned: set[str] = set()


class Graph:
    """The function of an FX graph over a list of torch tensors and sizes, which it empties."""

    def __init__(self, module: fx.GraphModule, strict: bool = False):
        self._boxed_call = True  # what AOTAutograd looks for in a function that takes one list
        nodes = list(module.graph.nodes)
        self._inputs = [n for n in nodes if n.op == "placeholder"]
        self._outputs = nodes[-1].args[0]
        self._constants = {n: _attribute(module, n.target) for n in nodes if n.op == "get_attr"}
        self._parts = _parts(nodes, self._outputs, strict)

    def __call__(self, args: list[Any]) -> list[Any]:
        """The results: tensors, numbers and None."""
        values: dict[fx.Node, Any] = dict(zip(self._inputs, args, strict=True))
        args.clear()
        values.update(self._constants)
        for part in self._parts:
            part(values)
        return [values[o] if isinstance(o, fx.Node) else o for o in self._outputs]


class _ByTorch:
    """A node that torch runs."""

    def __init__(self, node: fx.Node):
        self.node = node

    def __call__(self, values: dict[fx.Node, Any]) -> None:
        node = self.node
        args, kwargs = fx.map_arg((node.args, node.kwargs), values.__getitem__)
        with torch.no_grad():
            values[node] = node.target(*args, **kwargs)


class _Captured:
    """Nodes that minigrad runs, from values that are there to `outputs`."""

    def __init__(self, nodes: list[fx.Node], outputs: list[fx.Node]):
        inside = set(nodes)
        inputs = list(dict.fromkeys(i for n in nodes for i in n.all_input_nodes if i not in inside))
        self._program = Program(nodes, inputs, outputs)
        self._numbers = [n for n in inputs if not isinstance(n.meta["val"], torch.Tensor)]
        self._tensors = [n for n in inputs if isinstance(n.meta["val"], torch.Tensor)]
        self._captures: dict[tuple, Any] = {}

    def __call__(self, values: dict[fx.Node, Any]) -> None:
        shared = [to_minigrad(values[n]) for n in self._tensors]
        tensors = [s.tensor for s in shared]
        kind = tuple([s.order for s in shared]), tuple([values[n] for n in self._numbers])
        del shared
        captured = self._captures.get(kind) or self._capture(kind)
        with_seed = _seeded if self._program.draws else _called
        self._program.finish(with_seed(captured, tensors), kind[1], values)

    def _capture(self, kind: tuple) -> Any:
        if len(self._captures) >= MOST_KINDS:
            del self._captures[next(iter(self._captures))]
        program, (orders, numbers) = self._program, kind
        found = self._captures[kind] = jit(lambda tensors: program.run(tensors, orders, numbers))
        return found


def _called(function: Callable[..., Any], tensors: list[Tensor]) -> Any:
    return function(tensors)


def _seeded(function: Callable[..., Any], tensors: list[Tensor]) -> Any:
    """`function(tensors)` with random numbers that depend on torch's generator; minigrad's own goes on where it was."""
    seed, counter = random.seed()[0], random.counter()
    random.manual_seed(int(torch.randint(1 << 62, ()).item()))
    try:
        return function(tensors)
    finally:
        random.manual_seed(seed)
        random.rewind(counter)


def _attribute(module: Any, path: Any) -> Any:
    for name in str(path).split("."):
        module = getattr(module, name)
    return module


def _parts(nodes: list[fx.Node], outputs: Sequence[Any], strict: bool) -> list[Callable[[dict[fx.Node, Any]], None]]:
    """Nodes in groups that run one after the other: even levels are minigrad's, odd ones torch's."""
    level: dict[fx.Node, int] = {}
    for node in nodes:
        if node.op != "call_function":
            continue
        lowest = max([level.get(i, 0) for i in node.all_input_nodes], default=0)
        if node.target is operator.getitem and isinstance(node.args[0], fx.Node) and node.args[0] in level:
            level[node] = lowest  # with the node that has the results
            continue
        why = refusal(node)
        if why is not None:
            _refuse(node, why, strict)
        level[node] = lowest + ((lowest % 2 == 0) is not (why is None))
    parts: list[Callable[[dict[fx.Node, Any]], None]] = []
    for k in sorted(set(level.values())):
        here = [n for n in nodes if level.get(n) == k]
        if k % 2:
            parts += [_ByTorch(n) for n in here]
        else:
            asked = {o for o in outputs if isinstance(o, fx.Node)}
            leaving = [n for n in here if n in asked or any(level.get(u, k) != k for u in n.users)]
            parts.append(_Captured(here, [n for n in leaving if not isinstance(n.meta.get("val"), (list, tuple))]))
    return parts


def _refuse(node: fx.Node, why: str, strict: bool) -> None:
    """Warns, once for each operator, that torch runs it; raises with `strict`."""
    message = f"[torch.compile] {node.target}: {why}"
    if strict:
        raise Unsupported(message)
    if str(node.target) not in _warned:
        _warned.add(str(node.target))
        warnings.warn(f"{message}; torch runs it, between parts that minigrad runs", RuntimeWarning, stacklevel=2)
