"""Functions of Tensors as Blocks (graph/blocks.py): layers and updates that are made again at each step."""
from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import wraps
from threading import get_ident
from typing import Any, TypeVar, cast

from minigrad.engine.observe import Observer, observing
from minigrad.errors import MinigradError
from minigrad.graph.blocks import block
from minigrad.mixins.base import Base
from minigrad.mixins.modes import Within
from minigrad.ops.node import Node

T = TypeVar("T", bound=Base)
F = TypeVar("F", bound=Callable[..., Any])


class _WithoutValues(Observer):
    """Makes it an error to read values in this thread."""

    def __init__(self) -> None:
        self._thread = get_ident()

    def asked(self) -> None:
        if get_ident() == self._thread:
            raise MinigradError("[block] expected no value on the host, as operands stand for any")


def as_block(name: str, key: Hashable, function: Callable[..., Sequence[T]], *operands: T, detached: bool = False,
             ) -> tuple[T, ...]:
    """`function(*operands)`, as one Node per result with those of the gradient, rather than all that it is made of.

    `function` runs only where no Block of this `name` and `key` over operands of these types is known yet: all else
    that its results depend on is part of `key`. It draws no random numbers and assigns nothing; one that reads values
    is no Block, but what it is made of. No gradient goes through results that are `detached`, which those of a `name`
    all are or none.
    """
    kind = type(operands[0])

    def body(*nodes: Node) -> list[Node]:
        with observing(_WithoutValues()), Within("autocast", None):  # it is found again by the types of its operands
            return [t.node for t in function(*[kind._wrap(n) for n in nodes])]

    parents = () if detached else operands if len(operands) == 1 else (  # those that matter to a handle
        max(operands, key=lambda t: t.node.depth), *[t for t in operands if t.needs_grad][:1])
    try:
        nodes = block(name, (key,), body, [t.node for t in operands], detached)
        return tuple([kind._wrap(n, *parents) for n in nodes])
    except MinigradError:
        pass
    return tuple(function(*operands))  # which may raise that again: no traceback keeps what stood for the operands


def as_one_node(method: F) -> F:
    """A method or function that gives one Tensor, as a Block of the Tensors among its arguments for each set of others:
    numbers, words, and tuples or lists of those. With further ones, such as arrays, it is what it is made of."""
    name = method.__name__

    @wraps(method)
    def whole(*args: Any, **options: Any) -> Any:
        given = (*args, *options.values())
        operands = [a for a in given if isinstance(a, Base)]
        others = [a for a in given if not isinstance(a, Base)]
        if not operands or not all(map(_is_plain, others)):
            return method(*args, **options)

        def body(*tensors: Any) -> list[Any]:
            rest = iter(tensors)
            values = [next(rest) if isinstance(a, Base) else a for a in given]
            return [method(*values[:len(args)], **dict(zip(options, values[len(args):], strict=True)))]

        # In words 1, 1.0 and True differ, as do 0.0 and -0.0; a Tensor is told apart by its place.
        key = (*[isinstance(a, Base) for a in given], *options, repr(others)) if len(given) > 1 else ()
        return as_block(name, key, body, *operands)[0]

    return cast(F, whole)


def _is_plain(value: Any) -> bool:
    return type(value) in (int, float, bool, str, type(None)) or (
        isinstance(value, (tuple, list)) and all(map(_is_plain, value)))
