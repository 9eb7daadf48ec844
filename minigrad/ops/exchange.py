"""Values that processes combine: what `minigrad.distributed` adds up across them, as part of a graph.

    s0, s1 = sent(g0), sent(g1)      kept in memory of their own
    e = exchange(s0, s1)             begins to combine both, in one message, with those of the other processes
    received(s0, e)                  the combined value: whoever reads it waits for e

All processes have the same `received`, bit for bit. In one process alone all three are identities, and that is what
their kernels compute: the engine puts calls that exchange memory between launches (engine/exchange.py).

The same three compute what the host has a library for (HOSTED): the call changes the memory in place, and no other
process takes part.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from minigrad.dtype import DType, int32
from minigrad.errors import MinigradError, ShapeError
from minigrad.ops import build as B
from minigrad.ops.node import Node, apply, apply_once
from minigrad.ops.op import Elementwise, Op, Shape, Storage
from minigrad.value import Value

Shapes = Sequence[Shape]
DTypes = Sequence[DType]

KINDS = ("sum", "prod", "max", "min")
"""The ways to combine elements, in the order of the processes."""


def _first(shapes: Shapes, dtypes: DTypes, **_: Any) -> tuple[Shape, DType]:
    return shapes[0], dtypes[0]


def _same_element(x: Value, *_: Value, dtype: DType, **__: Any) -> Value:
    return x


def _token(shapes: Shapes, dtypes: DTypes, *, how: str, channel: int) -> tuple[Shape, DType]:
    if any(not isinstance(d, int) for shape in shapes for d in shape):
        raise ShapeError(f"[exchange] expected shapes without Variables, got {', '.join(map(str, map(list, shapes)))}")
    return (), int32


def _received_vjp(node: Node, g: Node) -> tuple[Node | None, None]:
    how, channel = node.params["how"], node.params["channel"]
    if how != "sum":
        raise MinigradError(f"[reduced] expected a sum or a mean where gradients are asked for, got {how!r}")
    return exchanged([g], how, channel + 1)[0], None


HOSTED: dict[str, Callable[[np.ndarray], None]] = {}
"""By the name that stands in the place of `how`: functions of the memory of one value, which the host runs."""


def _made_here(*_: np.ndarray, how: str, **__: object) -> np.ndarray:
    if how not in HOSTED:
        raise NotImplementedError("[exchange] processes exchange values of the device CPU")
    return np.zeros((), np.int32)


def _received(x: np.ndarray, _: np.ndarray, *, how: str, **__: object) -> np.ndarray:
    if how not in HOSTED:
        return x
    made = np.array(x, order="C")
    HOSTED[how](made)
    return made


def hosted(x: Node, how: str) -> Node:
    """The value, of the same shape and dtype, that HOSTED[how] makes of this one. Devices that do not call the host
    have none of it."""
    return exchanged([x], how, 0)[0]


SENT = Op("sent", _first, lambda node, g: (g,), lambda x, **_: x, Elementwise(_same_element, 0))
"""The same value, in memory that an exchange may overwrite. Its params, those of the exchange and its number there,
tell it from others."""

EXCHANGE = Op("exchange", _token, lambda node, g: (None,) * len(node.inputs), _made_here, Storage("exchange"))
"""A number nobody looks at. Once it is there, memory of its operands (all SENT, of one dtype) is being combined by
`how` with that of the other processes. Exchanges of one `channel` are told apart by their order alone."""

RECEIVED = Op("received", _first, _received_vjp, _received, Elementwise(_same_element, 0))
"""(a SENT value, an exchange of it): the combined value."""


def exchanged(nodes: Sequence[Node], how: str, channel: int) -> list[Node]:
    """The values, of one dtype, combined by `how` with those of the other processes, in one message."""
    parts = [apply_once(SENT, n, how=how, channel=channel, part=k) for k, n in enumerate(nodes)]
    made = apply_once(EXCHANGE, *parts, how=how, channel=channel)
    return [apply(RECEIVED, p, B.expand(B.reshape(made, (1,) * len(p.shape)), p.shape), how=how, channel=channel)
            for p in parts]
