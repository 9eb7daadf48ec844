"""Printing and reading expressions."""
from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import lru_cache

from minigrad.errors import FormatError
from minigrad.expr.core import Atom, Expr, FloorDiv, Index, Max, Min, Mod, Opaque, Var
from minigrad.expr.interval import emax, emin
from minigrad.expr.sums import dim

Show = Callable[["Atom"], "str | None"]
_OPERATORS = {FloorDiv: "//", Mod: "%"}


def to_text(e: Index, show: Show | None = None) -> str:
    """`e` as text that `parse` reads back. `show` gives the text of atoms defined elsewhere (None: their `str`)."""
    if isinstance(e, int):
        return str(e)
    return _text(e, show) if show else _plain_text(e)


@lru_cache(maxsize=1 << 12)
def _plain_text(e: Expr) -> str:
    return _text(e, None)


def _text(e: Expr, show: Show | None) -> str:
    text = ""
    for m, c in e.terms:
        inside = len(m) > 1 or abs(c) != 1 or c < 0
        factors = "*".join([str(abs(c))] * (abs(c) != 1) + [_atom_text(a, show, inside) for a in m])
        text += ("-" if c < 0 else "+" if text else "") + factors
    return text + (f"{e.const:+d}" if e.const else "")


def _atom_text(a: Atom, show: Show | None, inside: bool) -> str:
    if isinstance(a, Var):
        return a.name
    if isinstance(a, (FloorDiv, Mod)):
        left, right = (to_text(x, show) if isinstance(x, (int, Var, Opaque)) else f"({to_text(x, show)})"
                       for x in (a.a, a.b))
        text = f"{left}{_OPERATORS[type(a)]}{right}"
        return f"({text})" if inside else text
    if isinstance(a, (Min, Max)):
        return f"{type(a).__name__.lower()}({to_text(a.a, show)}, {to_text(a.b, show)})"
    if isinstance(a, Opaque):
        return f"dim({to_text(a.inner, show)})"
    return (show(a) if show else None) or str(a)


_TOKEN = re.compile(r"\s*(\d+|[A-Za-z_]\w*|//|[-+*%(),])")
_CALLS: dict[str, Callable[[list[Index]], Index]] = {
    "min": lambda args: emin(*args), "max": lambda args: emax(*args), "dim": lambda args: dim(*args)}


def parse(text: str, names: Mapping[str, Index], atom: Callable[[str], Index] | None = None) -> Index:
    """Reads what `to_text` writes: + - * // % ( ) min(a, b) max(a, b) dim(sum), ints and the variables in `names`.

    `atom` reads a bracketed text `[...]` (brackets included) that stands for an atom defined elsewhere.
    Raises FormatError that quotes the text.
    """
    reader = _Reader(text, names, atom)
    e = reader.sum()
    if reader.peek():
        raise reader.error("an operator or the end")
    return e


class _Reader:
    """Recursive descent over one text."""

    def __init__(self, text: str, names: Mapping[str, Index], atom: Callable[[str], Index] | None):
        self.text, self.names, self.atom, self.at = text, names, atom, 0

    def error(self, expected: str) -> FormatError:
        return FormatError(f"[expr] expected {expected} at column {self.at + 1} of {self.text!r}")

    def peek(self) -> str:
        match = _TOKEN.match(self.text, self.at)
        return match.group(1) if match else self.text[self.at:].lstrip()[:1]

    def take(self, expected: str | None = None) -> str:
        token = self.peek()
        if not token or (expected is not None and token != expected):
            raise self.error(repr(expected) if expected else "an expression")
        self.at = self.text.index(token, self.at) + len(token)
        return token

    def sum(self) -> Index:
        total = self.term()
        while self.peek() in ("+", "-"):
            total = total + self.term() if self.take() == "+" else total - self.term()
        return total

    def term(self) -> Index:
        e = self.factor()
        while self.peek() in ("*", "//", "%"):
            sign, right = self.take(), self.factor()
            if sign != "*" and right == 0:
                raise self.error("a divisor that is not 0")
            e = e * right if sign == "*" else e // right if sign == "//" else e % right
        return e

    def factor(self) -> Index:
        token = self.peek()
        if token == "-":
            self.take()
            return -self.factor()
        if token == "(":
            self.take()
            e = self.sum()
            self.take(")")
            return e
        if token == "[" and self.atom is not None:
            return self.atom(self.bracket())
        if token.isdigit():
            return int(self.take())
        if token in _CALLS and token not in self.names:
            self.take()
            return self.call(token)
        if token in self.names:
            self.take()
            return self.names[token]
        raise self.error(f"a number or one of {', '.join(self.names) or 'no variables'}")

    def call(self, name: str) -> Index:
        self.take("(")
        args = [self.sum()]
        while self.peek() == ",":
            self.take()
            args.append(self.sum())
        if len(args) != (1 if name == "dim" else 2):
            raise self.error(f"the arguments of {name}")
        self.take(")")
        return _CALLS[name](args)

    def bracket(self) -> str:
        start, depth = self.text.index("[", self.at), 0
        for at in range(start, len(self.text)):
            depth += {"[": 1, "]": -1}.get(self.text[at], 0)
            if depth == 0:
                self.at = at + 1
                return self.text[start:self.at]
        raise self.error("']'")
