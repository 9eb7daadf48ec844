"""Products of matrices of bfloat16, or of float32 in three bfloat16 each, where matrix registers multiply these
(parts.py). Words of panels hold two neighbours along K."""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from minigrad.codegen.microkernels.parts import PARTS, words_of
from minigrad.codegen.strategies.access import extent
from minigrad.codegen.strategies.blocking import size
from minigrad.codegen.strategies.narrow import filled
from minigrad.codegen.strategies.recognise import Contraction
from minigrad.dtype import bfloat16, float32
from minigrad.expr import Var
from minigrad.target import Target
from minigrad.value import Value, const, guard, substitute

GROUP, STEPS = 2, 16
"""Steps of K in a word, and words in a row of a matrix register."""

PASSES = {"bf16x3": 6, "bf16x1": 4}
"""Cycles per row of a matrix register, in units of those for int8: six products, where float32 is to be multiplied so;
one at a quarter of the rate, to which processors were seen to throttle it for seconds."""

CALL_CYCLES = {"bf16x3": 350.0, "bf16x1": 350.0}
"""Cycles of a call beside those of any tile: registers are configured, sums go through memory."""

UNSCALE = 0.4
"""Cycles per output to divide sums by the scale and look whether they are finite."""

LEAST = 64
"""Rows, columns and steps from which on float32 gains."""

NEEDS = frozenset({"amx-tile", "amx-bf16", "avx512f"})
FLOAT32 = "amx-float32"
"""The feature of a target that is to multiply float32 so."""


def parts_kind(c: Contraction, target: Target) -> str:
    """The kind of panels that the target multiplies the operands in, '' if there is none."""
    if target.language != "llvm" or not NEEDS <= target.features or not any(isinstance(v.hi, int) for v in c.k):
        return ""
    if c.total is not float32:
        return ""
    if _bfloat16(c.a) is not None and _bfloat16(c.b) is not None:
        return "bf16x1"
    large = all(size(vs) >= LEAST for vs in (c.m, c.n, c.k))
    return "bf16x3" if large and FLOAT32 in target.features and c.a.dtype is c.b.dtype is float32 else ""


def plane_count(words: str) -> int:
    """Planes of an operand packed in `words`."""
    return PARTS[words].planes if words in PARTS else 1


def whole_steps(steps: int, words: str) -> int:
    """Steps of a block of K, with those that fill up a matrix register."""
    return -(-steps // STEPS) * STEPS if words in PARTS else steps


def in_parts(c: Contraction, kind: str) -> Contraction:
    """The contraction over words: a variable of K counts pairs of what it counted before. Its operands are the first
    of the words of all planes, which `planes` gives."""
    k = _paired(c)
    a, b = (value[0] for value in planes(c, kind))
    return replace(c, a=a, b=b, k=tuple(_words(v) if v is k else v for v in c.k))


def planes(c: Contraction, kind: str) -> tuple[tuple[Value, ...], tuple[Value, ...]]:
    """The words of each operand of what `in_parts` is given."""
    k = _paired(c)
    take: Callable[[Value], Value | None] = _bfloat16 if kind == "bf16x1" else lambda value: value
    return _planes(kind, take(c.a), k), _planes(kind, take(c.b), k)


def _bfloat16(value: Value) -> Value | None:
    """What a float32 value was before it was widened; None if it is no such value."""
    if value.op == "cast" and value.dtype is float32 and value.args[0].dtype is bfloat16:
        return value.args[0]
    if value.op == "guard" and value.args[1].op == "const" and value.args[1].attr == 0:
        inside = _bfloat16(value.args[0])
        return None if inside is None else guard(inside, const(0, bfloat16), value.attr)
    return None


def _paired(c: Contraction) -> Var:
    return min((v for v in reversed(c.k) if isinstance(v.hi, int)), key=lambda v: filled(v, GROUP) / extent(v))


def _words(k: Var) -> Var:
    return Var(k.name, 0, filled(k, GROUP) // GROUP - 1)


def _planes(kind: str, value: Value | None, k: Var) -> tuple[Value, ...]:
    assert value is not None
    zero, places = const(0, value.dtype), [_words(k) * GROUP + t for t in range(GROUP)]
    return words_of(kind, *(guard(substitute(value, {k: place}), zero, (k.hi - place,)) for place in places))
