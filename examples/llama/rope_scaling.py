"""Reads rotary embeddings, and how families stretch them, of Hugging Face's configurations and of GGUF files."""
from __future__ import annotations

import math
from typing import Any

import numpy as np

from examples.llama.config import FACTORS, Rope
from minigrad.errors import FormatError
from minigrad.state.fields import Fields, brief

KINDS = ("default", "linear", "llama3", "yarn", "longrope")
"""Scalings that are computed here."""


def read_rope(fields: Fields, base: float, size: int, context: int) -> Rope:
    """The rotary embedding of heads of which `size` elements are turned: `fields` are Hugging Face's `rope_parameters`,
    or `rope_scaling`, in a model for `context` tokens."""
    kind = fields.text("rope_type", fields.text("type", "default"))
    kind = "longrope" if kind == "su" else kind
    if kind not in KINDS:
        raise FormatError(f"{fields.source}: the rotary embedding is scaled by {brief(kind)}; expected one of "
                          f"{', '.join(map(repr, KINDS))}; use another model")
    pairs, rope = size // 2, Rope(base, size)
    if kind == "default":
        return rope
    if kind == "linear":
        return Rope(base, size, (fields.real("factor", *FACTORS),) * pairs)
    original = fields.count("original_max_position_embeddings", default=context)
    if kind == "longrope":
        return _longrope(fields, rope, original, context)
    factor = fields.real("factor", *FACTORS)
    if kind == "llama3":
        low = fields.real("low_freq_factor", *FACTORS)
        high = fields.real("high_freq_factor", low + FACTORS[0], 2 * FACTORS[1])
        return Rope(base, size, llama3_factors(base, pairs, original, factor, low, high))
    scale = fields.real("attention_factor", *FACTORS, default=_yarn_scale(fields, factor))
    fast, slow = fields.real("beta_fast", *FACTORS, default=32.0), fields.real("beta_slow", *FACTORS, default=1.0)
    whole = fields.flag("truncate", True)
    return Rope(base, size, yarn_factors(base, size, original, factor, fast, slow, whole), scale=scale)


def _turns(base: float, pairs: int, original: int) -> np.ndarray:
    """Times that each pair goes round in the original context."""
    return original * base ** (-np.arange(pairs) / pairs) / (2 * np.pi)


def llama3_factors(base: float, pairs: int, original: int, factor: float, low: float, high: float) -> tuple[float, ...]:
    """Divisors of the frequencies: `factor` for pairs that go round less than `low` times in the original context, 1
    for those that do more than `high` times, and something between for the others."""
    smooth = np.clip((_turns(base, pairs, original) - low) / (high - low), 0, 1)
    return tuple((1 / ((1 - smooth) / factor + smooth)).tolist())


def yarn_factors(base: float, size: int, original: int, factor: float, fast: float, slow: float, whole: bool,
                 ) -> tuple[float, ...]:
    """Divisors of the frequencies: `factor` for pairs that go round less than `slow` times in the original context, 1
    for those that do more than `fast` times; between them the inverse changes linearly by the number of the pair.
    `whole` rounds the ends of that range outwards. https://arxiv.org/abs/2309.00071
    """
    def pair_with(turns: float) -> float:
        return size * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(base))

    first, last = pair_with(fast), pair_with(slow)
    if whole:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, size - 1)
    last = last + 0.001 if first == last else last
    stretched = np.clip((np.arange(size // 2) - first) / (last - first), 0, 1)
    return tuple((1 / (stretched / factor + (1 - stretched))).tolist())


def _yarn_scale(fields: Fields, factor: float) -> float:
    """The factor of cosines and sines, so that attention stays as sharp over more tokens."""
    def of(weight: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0

    if "mscale" in fields and "mscale_all_dim" in fields:
        return of(fields.real("mscale", 0, 1e3)) / of(fields.real("mscale_all_dim", 0, 1e3))
    return of(1.0)


def _longrope(fields: Fields, rope: Rope, original: int, context: int) -> Rope:
    """One list of factors up to the original context, another beyond it. https://arxiv.org/abs/2402.13753"""
    short, long = [_numbers(fields, name, rope.size // 2) for name in ("short_factor", "long_factor")]
    factor = fields.real("factor", *FACTORS, default=context / original)
    scale = 1.0 if factor <= 1 or original == 1 else math.sqrt(1 + math.log(factor) / math.log(original))
    return Rope(rope.base, rope.size, short, long, original,
                fields.real("attention_factor", *FACTORS, default=scale))


def _numbers(fields: Fields, name: str, length: int) -> tuple[float, ...]:
    found: list[Any] = fields.items(name, float, int, length=length)
    return tuple(map(float, found))
