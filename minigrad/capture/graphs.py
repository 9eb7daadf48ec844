"""The graph of a whole call: arguments, results and state as Nodes, with nothing computed. Exports begin with it."""
from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from minigrad import random
from minigrad.capture.arguments import Arguments, tensors_in
from minigrad.capture.journal import settle
from minigrad.capture.recorder import advice_for
from minigrad.engine.observe import Observer, call_of_user, observing, only_graphs
from minigrad.engine.storage import leaf_of_type
from minigrad.errors import MinigradError, quantity
from minigrad.expr import Expr
from minigrad.expr.core import Var
from minigrad.handles import changed, live
from minigrad.ops.kinds import clean
from minigrad.ops.node import Node, toposort
from minigrad.runtime.device import Buffer
from minigrad.tensor import Tensor


@dataclass(frozen=True, slots=True)
class Changed:
    """A Tensor that a call assigns: its leaf before, and the Node of its value after. `argument` is its number among
    the inputs, or None."""

    tensor: Tensor
    before: Node
    after: Node
    argument: int | None


@dataclass(frozen=True, slots=True)
class CallGraph:
    """`inputs` are the leaves of the arguments' Tensors by name, `outputs` the Nodes of the results', `changed` the
    Tensors that the call assigns. `variables` are the symbolic dims, without values, by name; `values` those that they
    had. `drawn` is how many random numbers were drawn from `counter` on."""

    inputs: dict[str, Node]
    outputs: dict[str, Node]
    changed: tuple[Changed, ...]
    variables: dict[str, Var]
    values: dict[str, int]
    counter: int
    drawn: int

    def roots(self) -> list[Node]:
        """The Nodes of everything that the call gives or assigns."""
        return [*self.outputs.values(), *[c.after for c in self.changed]]


class _Reads(Observer):
    def asked(self) -> None:
        what, where = call_of_user()
        raise MinigradError(f"[export] expected no value on the host, as nothing is computed, got {what} at {where}; "
                            f"{advice_for(what)}")


def graph_of_call(function: Callable[..., Any], args: tuple[Any, ...], inputs: Iterable[str] = (),
                  outputs: Iterable[str] = ()) -> CallGraph:
    """Runs the Python code of `function(*args)`, computes nothing, and leaves all Tensors as they were.

    `inputs` and `outputs` are names for the Tensors of arguments and results, in order; those of parameters, and
    `output` (`output_0`, ... of several), serve otherwise. Raises MinigradError where the function reads a value, gives
    no Tensor, or changes a gradient that was there.
    """
    settle(list(live()))
    there = list(live())
    found = Arguments(args, {})
    given = list(dict.fromkeys(found.tensors))
    saved = [(t, t.node, t.kept_grad, t.needs_grad, t.lazy_node) for t in there]
    nodes = _apart(there)
    position, seed = random.counter(), random.seed()
    try:
        for t in there:
            t.node = nodes[id(t)]
        with only_graphs(), observing(_Reads()):
            results = tensors_in(function(*args))
            after = [(t, t.node, t.kept_grad) for t in there]
            made = [t.node for t in results]
        drawn = random.counter() - position
    finally:
        for t, *state in saved:
            t.node, t.kept_grad, t.needs_grad, t.lazy_node = state
        changed()
        if random.seed() == seed:
            random.rewind(position)
    if not made:
        raise MinigradError("[export] expected a function that returns Tensors, got none")
    if any(grad is not None and new is not grad for (_, _, grad, _, _), (_, _, new) in zip(saved, after, strict=True)):
        raise MinigradError("[export] expected a function that makes gradients anew, got one that adds to a gradient "
                            "that is there; set it to None before")
    number = {id(t): k for k, t in enumerate(given)}
    moved = tuple([Changed(t, nodes[id(t)], new, number.get(id(t))) for t, new, _ in after if new is not nodes[id(t)]])
    lazy = next((t for t in given if nodes[id(t)].storage is None), None)
    if lazy is not None:
        raise MinigradError(f"[export] expected arguments that have values, got a Tensor of shape {list(lazy.shape)} "
                            "that cannot be computed")
    named = dict(zip(_names("inputs", inputs, _parameters(function, args, given)), [nodes[id(t)] for t in given],
                     strict=True))
    usual = ["output"] if len(made) == 1 else [f"output_{k}" for k in range(len(made))]
    outward = dict(zip(_names("outputs", outputs, usual), made, strict=True))
    variables, values = _variables([*made, *[c.after for c in moved], *named.values()])
    return CallGraph(named, outward, moved, variables, values, position, drawn)


def _apart(tensors: list[Tensor]) -> dict[int, Node]:
    """The Nodes of Tensors by their ids. Of those that share a buffer, as the call may change one, each has a leaf over
    a buffer object of its own, by which its value at entry is known."""
    found: dict[int, Node] = {}
    seen: set[int] = set()
    for t in tensors:
        node, buffer = t.node, t.node.storage
        if buffer is not None and id(buffer) in seen:
            own = Buffer(buffer.device, buffer.nbytes, buffer.handle, buffer.offset, buffer, buffer.address)
            node = leaf_of_type(node.type, own)
        found[id(t)] = node
        seen.add(id(node.storage))
    return found


def memory_of(buffer: Buffer) -> tuple[int, int, int]:
    """A key of the bytes that a buffer has, equal for buffer objects of the same."""
    return id(buffer.handle), buffer.offset, buffer.nbytes


def _names(what: str, given: Iterable[str], usual: list[str]) -> list[str]:
    names = list(given) or usual
    if len(names) != len(usual) or len(set(names)) != len(names) or not all(n.isidentifier() for n in names):
        raise MinigradError(f"[export] expected {quantity(len(usual), 'different identifier')} as {what}, got {names}")
    return names


def _parameters(function: Callable[..., Any], args: tuple[Any, ...], given: list[Tensor]) -> list[str]:
    """A name for each Tensor of the arguments: that of its parameter, with a number where it is inside one."""
    try:
        plain = [p.name for p in inspect.signature(function).parameters.values()
                 if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    except (TypeError, ValueError):
        plain = []
    names: dict[int, str] = {}
    for k, value in enumerate(args):
        name = plain[k] if k < len(plain) else f"input_{k}"
        inside = list(dict.fromkeys(Arguments((value,), {}).tensors))
        for j, t in enumerate(inside):
            names.setdefault(id(t), name if value is t else f"{name}_{j}")
    return [names[id(t)] for t in given]


def _variables(roots: list[Node]) -> tuple[dict[str, Var], dict[str, int]]:
    """The symbolic dims of a graph by name, and their values."""
    found: dict[str, Var] = {}
    values: dict[str, int] = {}
    symbols: list[Expr] = []
    for node in toposort(*roots):
        if node.type.symbolic or (node.kind is not None and node.kind.symbolic):
            clean((node.shape, *node.params.values()), symbols)
    for e in dict.fromkeys(symbols):
        for v in [a for a in e.atoms() if isinstance(a, Var)]:
            found[v.name] = Var(v.name, v.lo, v.hi)
            if v.value is not None:
                values[v.name] = v.value
    return dict(sorted(found.items())), values
