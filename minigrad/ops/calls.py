"""Calls of functions with gradients of the user's own, whose backward somebody else wrote (`minigrad.autograd`).

A call is one Node CALL over the inputs that gradients may go to, and each of its results an OUTPUT over it and the
computed value. Both are gone once a plan is made. The function that makes gradients stands in the CALL's `rule`, so
that it goes with it.
"""
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from minigrad.dtype import DType, float32
from minigrad.ops import build as B
from minigrad.ops.composite import composite
from minigrad.ops.node import Node, apply, apply_once
from minigrad.ops.op import Elementwise, Op, Shape

Rule = Callable[[Node, Mapping[int, Node], Sequence[bool]], Sequence[Node | None]]
"""(the CALL, gradients of its results by number, True for each input that needs one) -> a gradient or None per
input."""


def _call_infer(shapes: Sequence[Shape], dtypes: Sequence[DType]) -> tuple[Shape, DType]:
    return (), float32


def _output_infer(shapes: Sequence[Shape], dtypes: Sequence[DType], *, number: int) -> tuple[Shape, DType]:
    return shapes[1], dtypes[1]


def _by_rule(node: Node, g: Node) -> tuple[Node | None, ...]:
    raise NotImplementedError("[function] graph.autodiff gathers the gradients of all results of a call")


CALL = composite("call", _call_infer, lambda *inputs: B.full(0.0, (), float32, inputs[0].device), _by_rule)
"""A number nobody looks at, which depends on the inputs of a function."""

OUTPUT = composite("output", _output_infer, lambda call, value, *, number: value, _by_rule)
"""(a CALL, a value): the value, as result `number` of the call."""

AFTER = Op("after", lambda shapes, dtypes: (shapes[0], dtypes[0]), lambda node, g: (g, None),
           lambda x, y, *, shape, dtype: x, Elementwise(lambda x, y, *, dtype: x, 0))
"""(a value, another of its shape): the first, computed once there is the second. What is made of it equals nothing that
is made of the value itself, so that it is computed again."""

FUNCTION = (CALL, OUTPUT)


def after(x: Node, other: Node) -> Node:
    """x, once an element of `other` is there."""
    if B.numel(other.shape) == 0:
        return x
    one = B.slice_(other, (0,) * len(other.shape), (1,) * len(other.shape))
    return apply(AFTER, x, B.expand(B.reshape(one, (1,) * len(x.shape)), x.shape))


def call(rule: Rule, *inputs: Node) -> Node:
    """A CALL that equals no other."""
    made = apply_once(CALL, *inputs)
    made.rule = rule
    return made


def output(of: Node, value: Node, number: int) -> Node:
    return apply(OUTPUT, of, value, number=number)
