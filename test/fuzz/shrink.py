"""Smaller networks that fail alike: operations left out, sizes made smaller, settings made plain."""
from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from fuzz.network import Network, Op, Shape, pruned

PLAIN: dict[str, tuple[Any, ...]] = {
    "calls": (0,), "poison": (False,), "dtype": ("float32",), "loss": ("weighted",), "threads": (1,),
    "wanted": ("values", "gradients"), "opencl_plans": ("auto",), "device": ("CPU",), "cpu": ("native",),
    "winograd": ("auto",)}
"""Settings, and what they had better be."""


def shrink(network: Network, fails: Callable[[Network], bool], shapes: Callable[[Network], list[Shape]],
           tries: int = 200) -> Network:
    """The smallest network found that `fails`, with at most so many asked. `shapes` are those of a network's values."""
    seen = {network.to_json()}
    smaller = True
    while smaller:
        smaller = False
        for candidate in candidates(network, shapes(network)):
            text = candidate.to_json()
            if text in seen:
                continue
            seen.add(text)
            if tries <= 0:
                return network
            tries -= 1
            if fails(candidate):
                network, smaller = candidate, True
                break
    return network


def candidates(network: Network, shapes: list[Shape]) -> Iterator[Network]:
    """Networks that are simpler by one step, those that are by much first."""
    last = len(network.ops) - 1
    if len(network.outputs) > 1:
        yield from [pruned(replace(network, outputs=(k,))) for k in network.outputs]
    for k in range(1, last):  # ends earlier, begins later
        yield pruned(replace(network, outputs=(k,)))
    for k in reversed(range(1, last)):
        yield cut(network, k, shapes[k])
    for name, values in PLAIN.items():
        for value in values:
            if getattr(network, name) == value:
                break
            yield replace(network, **{name: value})
    for k in reversed(range(1, last + 1)):
        for operand in network.ops[k].operands:
            yield bypassed(network, k, operand)
    for k, op in enumerate(network.ops):
        if not op.operands and op.kind not in ("buffer", "words"):
            yield changed(network, k, Op("buffer", (), {"shape": op.args["shape"]}))
        for name, value in op.args.items():
            for simple in simpler(value):
                yield changed(network, k, Op(op.kind, op.operands, {**op.args, name: simple}))


def changed(network: Network, k: int, op: Op) -> Network:
    """With another operation k."""
    return replace(network, ops=(*network.ops[:k], op, *network.ops[k + 1:]))


def cut(network: Network, k: int, shape: Shape) -> Network:
    """With an input in place of value k."""
    return pruned(changed(network, k, Op("buffer", (), {"shape": shape})))


def bypassed(network: Network, k: int, operand: int) -> Network:
    """Without operation k: its operand goes where it went."""
    def other(v: int) -> int:
        return operand if v == k else v

    ops = tuple([replace(op, operands=tuple(map(other, op.operands))) for op in network.ops])
    return pruned(replace(network, ops=ops, outputs=tuple(map(other, network.outputs))))


def simpler(value: Any) -> Iterator[Any]:
    """Simpler arguments in place of one."""
    if value is True:
        yield False
    elif isinstance(value, int) and not isinstance(value, bool):
        yield from dict.fromkeys(n for n in (0, 1, value // 2, value - 1) if 0 <= n < value)
    elif isinstance(value, tuple) and value and all(type(v) is int for v in value):
        if len(set(value)) == 1 and value[0] > 0:
            yield from [(n,) * len(value) for n in dict.fromkeys((1, value[0] // 2, value[0] - 1)) if n < value[0]]
        for at, v in enumerate(value):
            for n in dict.fromkeys((1, 2, 4, 8, 16, v // 2, v - 1)):
                if 0 < n < v:
                    yield (*value[:at], n, *value[at + 1:])
