"""`checkpoint`: a function whose inner values are not kept for the backward pass, but computed again there.

The function runs once. What it made of its operands is made again by the rule of its gradient, over operands that wait
for that gradient (`ops.calls.after`): the same operations, with the same random numbers, on the same values. What it
assigns, such as running statistics, it assigns once.

Source: Chen et al. 2016, https://arxiv.org/abs/1604.06174
"""
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from minigrad.autograd import result_of
from minigrad.errors import MinigradError
from minigrad.graph.autodiff import History, gradient
from minigrad.ops import build as B
from minigrad.ops.calls import after, call, output
from minigrad.ops.node import Node, next_serial
from minigrad.ops.storage import BUFFER
from minigrad.ops.traced import Traced
from minigrad.tensor import Tensor


def checkpoint(function: Callable[..., Any], *args: Any, use_reentrant: bool | None = None,
               preserve_rng_state: bool = True, determinism_check: str = "default", debug: bool = False,
               context_fn: Any = None, early_stop: bool = True, **kwargs: Any) -> Any:
    """`function(*args, **kwargs)`, a Tensor or a tuple with Tensors, whose inner values are computed again in the
    backward pass: memory for arithmetic. Gradients are the same, of parameters that it reads too.

    PyTorch's options change nothing: random numbers are always the same again. Raises MinigradError for no function.
    """
    if not callable(function):
        raise MinigradError(f"[checkpoint] expected a function, got {type(function).__name__}")
    given = [a for a in (*args, *kwargs.values()) if isinstance(a, Tensor)]
    start = next_serial()
    results = function(*args, **kwargs)
    several = isinstance(results, (tuple, list))
    found = list(results) if several else [results]
    places = [k for k, r in enumerate(found) if isinstance(r, Tensor) and r.requires_grad and r.node.storage is None]
    if not places:
        return results
    traced = _between([t.node for t in given], [found[k].node for k in places], start)
    of = call(_Rule(traced), *traced.operands)
    for number, k in enumerate(places):
        made = found[k]
        found[k] = result_of(output(of, made.node, number), made)
    return type(results)(found) if several else found[0]


def _between(given: Sequence[Node], results: Sequence[Node], start: int) -> Traced:
    """The trace that makes the results of the given Nodes, and of others that were there before the serial `start`."""
    known, operands, seen = set(given), dict.fromkeys(given), set(given)
    stack = [r for r in results if r not in known]
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        if node.op is BUFFER or node.storage is not None or (node.serial < start and node.dtype.is_float):
            operands[node] = None
        else:
            stack += node.inputs
    return Traced(list(operands), results)


class _Rule:
    """Makes gradients of a call's inputs through values that are computed again."""

    def __init__(self, traced: Traced):
        self.traced = traced

    def __call__(self, of: Node, gradients: Mapping[int, Node], needed: Sequence[bool]) -> list[Node | None]:
        gate = next(iter(gradients.values()))
        again = [after(n, gate) for n in of.inputs]
        results = self.traced(*again)
        wanted = [n for n, need in zip(again, needed, strict=True) if need]
        totals: list[Node | None] = [None] * len(wanted)
        for number, g in gradients.items():
            made_from = History(results[number])
            parts = gradient(made_from, wanted, g)
            for k, part in enumerate(parts):
                if wanted[k] in made_from:
                    known = totals[k]
                    totals[k] = part if known is None else B.add(known, part)
        found = iter(totals)
        return [next(found) if need else None for need in needed]


def checkpoint_sequential(functions: Any, segments: int, input: Any, use_reentrant: bool | None = None,
                          **kwargs: Any) -> Any:
    """The functions (or layers of a Sequential) one after the other, in as many segments of which each is one
    `checkpoint` but the last."""
    layers = list(functions.children()) if hasattr(functions, "children") else list(functions)
    if not isinstance(segments, int) or not 1 <= segments <= max(len(layers), 1):
        raise MinigradError(f"[checkpoint_sequential] expected 1 to {len(layers)} segments, got {segments!r}")
    size = len(layers) // segments

    def run(start: int, stop: int) -> Callable[[Any], Any]:
        def segment(x: Any) -> Any:
            for layer in layers[start:stop]:
                x = layer(x)
            return x

        return segment

    for s in range(segments - 1):
        input = checkpoint(run(s * size, (s + 1) * size), input, use_reentrant=use_reentrant, **kwargs)
    return run((segments - 1) * size, len(layers))(input)
