"""Axes by name: `x.rearrange("b (h w) c -> b c h w", h=14)`, as in einops and tinygrad."""
from __future__ import annotations

import re
from typing import Any, Self

from minigrad.errors import ShapeError
from minigrad.mixins.base import Base, as_index
from minigrad.ops import build as B

_WORD = re.compile(r"\s*(\.\.\.|[A-Za-z_]\w*|1|[()])")
_REST = "*"


class PatternMixin(Base):
    __slots__ = ()

    def rearrange(self, formula: str, **sizes: int) -> Self:
        """Axes named on the left of '->', in the order and groups of the right: '(h w)' is one axis of h * w elements,
        of which one length may be left out, '...' the axes without a name, 1 an axis of length 1.

        Raises ShapeError for names that are not on both sides once, and lengths that do not fit.
        """
        sides = formula.split("->") if isinstance(formula, str) else []
        if len(sides) != 2:
            raise ShapeError(f"[rearrange] expected a formula such as 'b (h w) c -> b c h w', got {formula!r}")
        extra = max(self.ndim - len([g for g in _groups(formula, sides[0]) if g != [_REST]]), 0)
        hidden = [f"...{i}" for i in range(extra)]
        left, right = (_spread(_groups(formula, side), hidden) for side in sides)
        names, wanted = ([n for g in groups for n in g] for groups in (left, right))
        if len(left) != self.ndim or sorted(names) != sorted(wanted) or len(set(names)) != len(names) or set(
                sizes) - set(names):
            raise ShapeError(f"[rearrange] expected each name once on both sides, and a name or group of them per axis "
                             f"of {list(self.shape)}, got {formula!r} with {sizes}")
        shape: list[Any] = []
        for group, length in zip(left, self.shape, strict=True):
            shape += self._lengths(formula, group, length, sizes)
        by_name = dict(zip(names, shape, strict=True))
        x = self.reshape(*shape).permute(*[names.index(n) for n in wanted])
        return x.reshape(*[B.numel(tuple([by_name[n] for n in group])) for group in right])

    def _lengths(self, formula: str, group: list[str], length: Any, sizes: dict[str, int]) -> list[Any]:
        """The lengths of the axes in a group of `length` elements."""
        known: list[Any] = [as_index(sizes.get(n)) for n in group]
        product: Any = B.numel(tuple([k for k in known if k is not None]))
        if len(group) == 1 and known[0] is None:
            return [length]
        if known.count(None) == 1 and product != 0 and length % product == 0:
            known[known.index(None)] = length // product
        if None in known or B.numel(tuple(known)) != length:
            raise ShapeError(f"[rearrange] expected lengths of {' '.join(group) or '1'} whose product is {length}, at "
                             f"most one left out, got {sizes} for {formula!r}")
        return known


def _groups(formula: str, side: str) -> list[list[str]]:
    """The names of each axis; `_REST` alone for '...' outside brackets."""
    words, at, side = [], 0, side.strip()
    while at < len(side):
        found = _WORD.match(side, at)
        if found is None:
            raise ShapeError(f"[rearrange] expected names, 1, ... and brackets, got {side[at:].strip()!r} in "
                             f"{formula!r}")
        words.append(found[1])
        at = found.end()
    groups: list[list[str]] = []
    inside = False
    for word in words:
        if word in "()":
            if inside == (word == "("):
                raise ShapeError(f"[rearrange] expected brackets in pairs, none inside others, got {formula!r}")
            inside = word == "("
            groups += [[]] if inside else []
        elif inside:
            groups[-1] += [] if word == "1" else [word]
        else:
            groups.append([] if word == "1" else [_REST] if word == "..." else [word])
    if inside:
        raise ShapeError(f"[rearrange] expected brackets in pairs, none inside others, got {formula!r}")
    return groups


def _spread(groups: list[list[str]], hidden: list[str]) -> list[list[str]]:
    """With the axes that '...' stands for: axes of their own, or several of a group."""
    result: list[list[str]] = []
    for group in groups:
        if group == [_REST]:
            result += [[n] for n in hidden]
        else:
            result.append([m for n in group for m in (hidden if n == "..." else [n])])
    return result
