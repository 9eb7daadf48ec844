"""Convolutions of three taps by Winograd's algorithm (winograd_nests.py), where that is estimated to be faster."""
from __future__ import annotations

from dataclasses import replace
from math import ceil

from minigrad.codegen.kernel.access import extent
from minigrad.codegen.kernel.nodes import Nest, Param
from minigrad.codegen.patterns.recognise import recognise
from minigrad.codegen.patterns.recognise_convolution import Convolution, convolution, piece
from minigrad.codegen.policy.blocking import size
from minigrad.codegen.policy.choose import cycles
from minigrad.codegen.policy.winograd_nests import Form, form
from minigrad.codegen.policy.winograd_nests import winograd as nests_of
from minigrad.dtype import float32
from minigrad.expr import bounds
from minigrad.target import WINOGRAD, Target

MIN_SIDE = 8
"""Channels of images and of results from which the transforms of tiles may pay."""

ROOM = 16
"""Second-level caches that hold what is between the stages of a piece of a convolution."""

LAUNCH = 5000
"""Cycles that a stage takes besides, until all workers have begun and ended it."""


TAPS_SHARE = 0.125
"""Part of the time of transforming taps that counts: captures do it once, training once for all examples."""


def winograd(nest: Nest, scratch: list[Param], target: Target) -> list[Nest]:
    """The nests of a convolution by the cheaper form of those that are allowed, if it is cheaper; else the nest itself.
    The smaller form is looked at where the larger one does not halve the time."""
    allowed = [outputs for outputs, feature in WINOGRAD.items() if feature in target.features]
    conv = suited(nest) if allowed else None
    if conv is None:
        return [nest]
    one, best, made = replace(target, units=1), [nest], list(scratch)
    direct = least = cycles(nest, one)
    for how in map(form, sorted(allowed, reverse=True)):
        between, pieces, last = list(scratch), pieces_of(conv, how, target), has_channels_last(conv, how, target)
        if not pieces or least < direct / 2:
            continue
        nests = nests_of(pieces, how, last, between)
        part = nests if len(pieces) == 1 else nests_of(pieces[:1], how, last, list(scratch))
        once, each = (part[-1], part[:-1]) if conv.of_taps else (part[0], part[1:])
        total = cycles(once, one) * (1 if conv.of_taps else TAPS_SHARE)
        total += sum([cycles(n, one) + LAUNCH for n in each]) * len(pieces)
        if total < least:
            least, best, made = total, nests, between
    scratch += made[len(scratch):]
    return best


def has_channels_last(conv: Convolution, how: Form, target: Target) -> bool:
    """True where the tiles of a row are no multiple of half a vector: then lanes go along channels."""
    return ceil(extent(conv.axes[-1].place) / how.outputs) % max(target.lanes(32) // 2, 1) != 0


def pieces_of(conv: Convolution, how: Form, target: Target) -> list[Convolution]:
    """A convolution in pieces of examples, or of whole tiles along its first axis, such that what is between stages
    stays near the processor; none where sums over all pieces do not."""
    between: list[Param] = []
    nests_of([conv], how, False, between)
    sizes = [bounds(p.shape[0])[1] * p.dtype.itemsize for p in between]
    room = ROOM * target.l2
    if conv.of_taps and sizes[-1] > room:
        return []
    count = ceil(sum(sizes if conv.of_taps else sizes[1:]) / room)
    v = next((v for v in conv.examples if extent(v) > 1), conv.axes[0].place)
    step = 1 if v in conv.examples else how.outputs
    size = ceil(extent(v) / step / count) * step
    return [piece(conv, v, start, min(size, extent(v) - start)) for start in range(0, extent(v), size)]


def suited(nest: Nest) -> Convolution | None:
    """The convolution that a nest is; None where it is none of known sizes and float32, or has few channels."""
    c = recognise(nest)
    if isinstance(c, str) or c.total is not float32 or any(not isinstance(v.hi, int) for v in (*nest.domain, *c.k)):
        return None
    conv = convolution(c)
    if conv is None or min(size(conv.channels), size(conv.kernels)) < MIN_SIDE:
        return None
    return conv if conv.image.dtype is conv.other.dtype is float32 else None
