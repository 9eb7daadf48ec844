"""Blocks: functions of Nodes as composites with a gradient, so that a whole layer is one Node while a program runs.

A Block is found by a key that says everything its function depends on besides the types of its operands. The function
runs once, over operands that stand for any; what it made is made again over the real ones where a plan is made.
Gradients are Blocks too. As operands are variables there, it shows in no result which of them are equal or constants.
"""
from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from hashlib import sha256
from typing import Any, NoReturn

from minigrad.dtype import DType, bool_
from minigrad.errors import InternalError
from minigrad.graph.autodiff import History, gradient
from minigrad.interned import remember
from minigrad.ops.composite import apart, composite, once
from minigrad.ops.kinds import Type
from minigrad.ops.node import Node, apply, leaf
from minigrad.ops.op import Op, Shape, Storage
from minigrad.ops.storage import BUFFER, DETACH
from minigrad.ops.traced import Traced

Body = Callable[..., Sequence[Node]]
"""Makes result Nodes of operand Nodes, and no leaf of its own."""

MOST = 2048
"""The most Blocks that are kept, some 10 kB each; programs whose shapes change all the time would add to them without
end."""
_blocks: dict[tuple[Any, ...], Block] = {}


class Block:
    """`body` over operands of `types`. `text` is equal for equal bodies, in every process; None: the operations that it
    makes.

    One result is one Node over the operands. Several are one each over a Node that has the operands, the call. No
    gradient goes through a Block that is `detached`.
    """

    def __init__(self, name: str, body: Body, types: Sequence[Type], text: str | None = None, detached: bool = False):
        self.name, self.types = name, tuple(types)
        operands = [leaf(BUFFER, t, None, {}) for t in types]
        with apart():
            self._results = list(body(*operands))
        self.made_of = Traced(operands, self._results)
        beside = next((n for n in self.made_of.order if n.storage is not None), None)
        if beside is not None:
            raise InternalError(f"[block {name}] expected a function of its operands, got one that reads {beside}")
        self._text = self.made_of.text() if text is None else text
        name = f"{name}.{sha256(self._text.encode()).hexdigest()[:16]}"
        self._gradient: Block | None = None
        self._call: Op | None = None
        if len(self._results) == 1:
            self._ops = [composite(name, self._infer(0), lambda *operands: once(self.made_of, *operands)[0],
                                   _nothing if detached else self._vjp)]
        else:
            self._call = Op(name, lambda shapes, dtypes: ((), bool_), None, _uncomputed, Storage("call"))
            self._ops = [self._part(k, f"{name}.{k}", _nothing if detached else None)
                         for k in range(len(self._results))]

    def __call__(self, *operands: Node) -> Iterator[Node]:
        """The results, a Node each, made when it is asked for."""
        if self._call is not None:
            operands = (apply(self._call, *operands),)
        return (apply(op, *operands) for op in self._ops)

    def _infer(self, k: int) -> Callable[..., tuple[Shape, DType]]:
        result = self._results[k].shape, self._results[k].dtype
        return lambda shapes, dtypes: result

    def _part(self, k: int, name: str, vjp: Callable[..., Any] | None) -> Op:
        """The operation that gives result k of a call. Without `vjp`, gradients go through what it is made of."""
        return composite(name, self._infer(k), lambda call: once(self.made_of, *call.inputs)[k], vjp)

    def _vjp(self, node: Node, grad: Node) -> tuple[Node | None, ...]:
        """The gradients by float operands, as a Block over the operands and the gradient of the only result."""
        if self._gradient is None:
            def body(*operands: Node) -> list[Node]:
                floats = [n for n in operands[:-1] if n.dtype.is_float]
                return gradient(History(self.made_of(*operands[:-1])[0]), floats, operands[-1])

            self._gradient = Block(f"{self.name}_gradient", body, (*self.types, self._results[0].type),
                                   f"gradient of {self._text}")
        made = self._gradient(*node.inputs, grad)
        return tuple([next(made) if t.dtype.is_float else None for t in self.types])


def _nothing(node: Node, _: Node) -> tuple[None, ...]:
    return (None,) * len(node.inputs)


def _uncomputed(*_: object, **__: object) -> NoReturn:
    raise InternalError("[block] expected a call to be made of its operations before anything is computed")


def block(name: str, key: tuple[Any, ...], body: Body, operands: Sequence[Node],
          detached: bool = False) -> Iterator[Node]:
    """The results of `body` for the operands, as Nodes of one Block. `key` is hashable and names the function: equal
    keys, over operands of equal types, stand for equal functions. Over symbolic dims the body itself is called. No
    gradient goes through it if it is `detached`, which must be the same for all Blocks of a `name`."""
    types = tuple([n.type for n in operands])
    found = _blocks.get((name, key, types))
    if found is None:
        if any([t.symbolic for t in types]):
            made = body(*operands)
            return iter([apply(DETACH, n, id=0) for n in made] if detached else made)
        found = Block(name, body, types, detached=detached)
        remember(_blocks, (name, key, types), found, MOST)
    return found(*operands)
