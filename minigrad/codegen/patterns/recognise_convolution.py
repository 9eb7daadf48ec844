"""Which contractions are convolutions of three taps, or gradients of these, by their index expressions.

    y[k, i, j] = sum(c, u<3, v<3: x[c, i+u, j+v] * w[k, c, u, v])

A value is an image along an axis if u is in none of its index expressions once i - u is in place of i. So it is in the
gradient by the image, x[c, i-u, j-v], whose taps go backwards. In the gradient by the taps, sum(i, j: x[c, i+u, j+v] *
y[k, i, j]), the sum is over places, and the taps are of the domain.
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product as combinations

from minigrad.codegen.kernel.value_walk import Rewriter
from minigrad.codegen.patterns.recognise import Contraction
from minigrad.expr import Var
from minigrad.value import Value, free_variables, substitute

TAPS = 3


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis of the image: the variable of its places, that of its taps, and whether these go backwards."""

    place: Var
    tap: Var
    backwards: bool


@dataclass(frozen=True, slots=True)
class Convolution:
    """A contraction whose operand `image` is read at neighbouring places, along `axes`. The rest of its variables:
    those of the batch are of both operands, `channels` and `examples` of the image, `channels` and `kernels` of the
    taps, `kernels` and `examples` of the results. Where it is `of_taps`, the gradient by these, `other` are not the
    taps but the gradient of the results, and it sums over examples in place of channels."""

    sum: Contraction
    image: Value
    other: Value
    axes: tuple[Axis, ...]
    channels: tuple[Var, ...]
    examples: tuple[Var, ...]
    kernels: tuple[Var, ...]
    of_taps: bool


def convolution(c: Contraction) -> Convolution | None:
    """A contraction as a convolution of three taps along one axis or two; None where it is none."""
    for image, other, own, kernels in ((c.b, c.a, c.n, c.m), (c.a, c.b, c.m, c.n)):
        for taps, places, of_taps in ((c.k, own, False), (own, c.k, True)):
            axes = axes_of(image, other, taps, places)
            taken = {v for a in axes for v in (a.place, a.tap)}
            left, steps = [tuple([v for v in vs if v not in taken]) for vs in (own, c.k)]
            channels, examples = (left, steps) if of_taps else (steps, left)
            if axes and channels and all([v in free_variables(x) for v in steps for x in (image, other)]):
                return Convolution(c, image, other, axes, channels, examples, kernels, of_taps)
    return None


def axes_of(image: Value, other: Value, taps: Sequence[Var], places: Sequence[Var]) -> tuple[Axis, ...]:
    """The axes, two at most, along which an image is read at a place and, by a tap, at its neighbours."""
    found = list[Axis]()
    for tap in [v for v in taps if v.hi == TAPS - 1]:
        for place, backwards in combinations([v for v in places if v not in [a.place for a in found]], (False, True)):
            if len(found) < 2 and tap not in free_variables(
                    substitute(image, {place: place + tap if backwards else place - tap})) and (
                    {tap, place} & free_variables(other)):
                found.append(Axis(place, tap, backwards))
                break
    return tuple(found)


def piece(conv: Convolution, v: Var, start: int, count: int) -> Convolution:
    """A part of a convolution, from `start` on along a variable of examples or of places."""
    new = Var(v.name, 0, count - 1)
    here = Rewriter({v: new + start})
    axes = tuple([replace(a, place=new) if a.place is v else a for a in conv.axes])
    examples = tuple([new if x is v else x for x in conv.examples])
    total = replace(conv.sum, outputs=here.stores(conv.sum.outputs))
    return replace(conv, sum=total, image=here.value(conv.image), other=here.value(conv.other), axes=axes,
                   examples=examples)
