"""Composites: Nodes that stand for a graph of others, so that the user's graph stays small.

A layer is one Node while the user's program runs, while gradients are made and while a plan is looked up; it is
expanded only to make a new plan, or to evaluate on NUMPY. An operation is a composite because it has a gradient written
by hand, or because it is used so often that the number of its Nodes matters.
"""
from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from minigrad.errors import InternalError
from minigrad.ops.builders import B
from minigrad.ops.node import Node, apply, here, leaf
from minigrad.ops.op import Composite, Op
from minigrad.ops.storage import ALIASES, BUFFER

Rewrite = Callable[[Node, Sequence[Node]], Node | None]
"""(a Node, the inputs that stand for its own) -> a Node that computes it over these, or None for the Node itself."""


def composite(name: str, infer: Callable[..., Any], expand: Callable[..., Node], vjp: Callable[..., Any] | None) -> Op:
    """An Op made of others. Without `vjp`, gradients go through what it expands to."""
    return Op(name, infer, vjp, _never, Composite(expand))


def _never(*_: np.ndarray, **__: object) -> np.ndarray:
    raise NotImplementedError("[composite] a composite is expanded before anything is computed")


def expand(node: Node, inputs: Sequence[Node]) -> Node:
    """The Node that computes a composite, over these inputs."""
    lower = node.op.lower
    if not isinstance(lower, Composite):
        raise InternalError(f"[expand] expected an operation made of others, got {node.op.name}")
    made: Node = lower.expand(*inputs, **node.params)
    if made.shape != node.shape or made.dtype is not node.dtype:
        raise InternalError(f"[{node.op.name}] expected to expand to {node}, got {made}")
    return made


def expanded(roots: Iterable[Node], rewrite: Rewrite | None = None, keep: Callable[[Node], bool] | None = None,
             ) -> dict[Node, Node]:
    """By Node, for all that `roots` need down to realized ones: a Node of the same value made without composites,
    except those for which `keep` is True. `rewrite` may give the Nodes that compute further ones.

    All of these Nodes are new: realized ones are leaves over the same storage, and no Node of the user's graph is among
    the others, so that what happens to be realized there decides nothing.
    """
    image: dict[Node, Node] = {}
    bodies: dict[Node, Node] = {}
    stack = list(roots)
    with apart():
        while stack:
            node = stack[-1]
            if node in image:
                stack.pop()
                continue
            waiting = [i for i in node.inputs if i not in image] if node.storage is None else []
            if waiting:
                stack += waiting
                continue
            body = bodies.get(node)
            if body is None and node.storage is None:
                inputs = [image[i] for i in node.inputs]
                if isinstance(node.op.lower, Composite):
                    body = None if keep is not None and keep(node) else expand(node, inputs)
                elif rewrite is not None:
                    body = rewrite(node, inputs)
            if body is None:
                made = image[node] = rebuilt(node, image)
                image[made] = made
            elif body in image:
                image[node] = image[body]
            else:
                bodies[node] = body
                stack.append(body)
    return image


def rebuilt(node: Node, image: dict[Node, Node]) -> Node:
    """The same operation over the images of its inputs, simplified as if no handle owned these; or a leaf over the same
    storage."""
    if node.storage is not None:
        return leaf(BUFFER, node.type, node.storage, {})
    inputs = tuple([image[i] for i in node.inputs])
    if node.op in ALIASES:
        return inputs[0]
    if node.op in B.SIMPLIFIED:
        return B.SIMPLIFIED[node.op](*inputs, **node.params)
    if inputs and inputs == node.inputs:
        return node
    own_device = not inputs or node.device != inputs[0].device
    return apply(node.op, *inputs, device=node.device if own_device else None, **node.params)


class _World:
    """An identity for Nodes that are made apart from all others; `made` has the results of functions called by
    `once`."""

    def __init__(self) -> None:
        self.made: dict[tuple[Any, ...], Any] = {}


def once(function: Callable[..., Any], *nodes: Node) -> Any:
    """The result of `function` for these Nodes, computed once while a graph is expanded."""
    if not here.world:
        return function(*nodes)
    made = here.world[0].made
    if (function, nodes) not in made:
        made[function, nodes] = function(*nodes)
    return made[function, nodes]


@contextmanager
def apart() -> Iterator[None]:
    """Nodes without inputs that are made meanwhile equal none that are there, hence nothing made of them does."""
    before, world = here.world, _World()
    here.world = (world,)
    try:
        yield
    finally:
        here.world = before
        world.made.clear()  # the tables of Nodes know the world, and must not keep those
