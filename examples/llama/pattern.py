r"""Regular expressions of a JSON Schema's "pattern" as grammars of what stands between the quotes of a string.

    a|b   ab   (a)   (?:a)   .   [a-z]   [^a-z]   \d \w \s \D \W \S   a* a+ a? a{2,3}   ^ and $ at the ends

Where engines differ (is a letter of another script a \w?) only what all of them take is generated. What is not here,
as backreferences and looking around, is refused.
"""
from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import NoReturn

from examples.llama.grammar import Choice, Expression, Repeat, Seq, characters, literal

Ranges = tuple[tuple[int, int], ...]
MAX_REPEAT = 1000
UNICODE = 0x10FFFF
PLAIN: Ranges = ((0x20, 0x21), (0x23, 0x5B), (0x5D, UNICODE))
"""Code points that stand for themselves in a JSON string."""
_ESCAPES = {0x22: '\\"', 0x5C: "\\\\", 8: "\\b", 12: "\\f", 10: "\\n", 13: "\\r", 9: "\\t"}
_SETS: dict[str, Ranges] = {"d": ((48, 57),), "w": ((48, 57), (65, 90), (95, 95), (97, 122)),
                            "s": ((9, 13), (32, 32))}
_CONTROLS = {"t": 9, "n": 10, "v": 11, "f": 12, "r": 13, "0": 0}
_GROUP_NAME = re.compile(r"\?P?<\w+>")
_ASCII: Ranges = ((0, 0x7E),)
_DOT: Ranges = ((0, 9), (11, 12), (14, 0x84), (0x86, 0x2027), (0x202A, UNICODE))  # no ends of lines


@lru_cache(maxsize=1024)
def in_string(ranges: Ranges) -> Expression:
    """One character of these, as a JSON string writes it: the shortest way."""
    options = [characters(_common(ranges, PLAIN))]
    for point in [*_ESCAPES, *range(0x20)]:
        if any([low <= point <= high for low, high in ranges]) and (point in _ESCAPES or point < 0x20):
            options.append(literal(_ESCAPES.get(point, f"\\u{point:04x}")))
    return Choice(*options)


def pattern(text: str, refuse: Callable[[str], NoReturn]) -> Expression:
    """The strings, without their quotes, in which the expression is found; `refuse` is called with what is wrong."""
    return _Reader(text, refuse).whole()


def _common(first: Ranges, second: Ranges) -> Ranges:
    pairs = [(max(a, c), min(b, d)) for a, b in first for c, d in second]
    return tuple([(low, high) for low, high in pairs if low <= high])


def _others(ranges: Ranges) -> Ranges:
    found, at = [], 0
    for low, high in sorted(ranges):
        if low > at:
            found.append((at, low - 1))
        at = max(at, high + 1)
    return tuple([*found, (at, UNICODE)] if at <= UNICODE else found)


class _Reader:
    def __init__(self, text: str, refuse: Callable[[str], NoReturn]):
        self.text, self.at, self._refuse = text, 0, refuse

    def refuse(self, what: str) -> NoReturn:
        self._refuse(f"the pattern {self.text!r} has {what}")

    def peek(self, *starts: str) -> bool:
        """Says whether one of these comes, and goes behind it."""
        for start in starts:
            if self.text.startswith(start, self.at):
                self.at += len(start)
                return True
        return False

    def next(self) -> str:
        if self.at == len(self.text):
            self.refuse("no end")
        self.at += 1
        return self.text[self.at - 1]

    def whole(self) -> Expression:
        anything = Repeat(in_string(((0, UNICODE),)))
        options: list[Expression] = []
        while True:
            start = [] if self.peek("^") else [anything]
            parts = self.sequence()
            end = [] if self.peek("$") else [anything]
            options.append(Seq(*start, *parts, *end))
            if self.at == len(self.text):
                return Choice(*options)
            if not self.peek("|"):
                self.refuse(f"{self.text[self.at]!r} at {self.at}, which is not supported there")

    def sequence(self) -> list[Expression]:
        parts = []
        while self.at < len(self.text) and self.text[self.at] not in "|)$":
            parts.append(self.quantified(self.atom()))
        return parts

    def quantified(self, part: Expression) -> Expression:
        least, most = 1, 1
        if self.peek("*"):
            least, most = 0, -1
        elif self.peek("+"):
            most = -1
        elif self.peek("?"):
            least = 0
        elif self.peek("{"):
            end = self.text.find("}", self.at)
            first, comma, last = self.text[self.at:max(end, self.at)].partition(",")
            if not first.isdecimal() or not (last.isdecimal() or not last):
                self.refuse("a '{' without numbers")
            least, most, self.at = int(first), int(last) if last else -1 if comma else int(first), end + 1
            if max(least, most) > MAX_REPEAT or 0 <= most < least:
                self.refuse(f"a repetition that is not of 0 to {MAX_REPEAT} times")
        else:
            return part
        self.peek("?")  # as few as possible: the same strings
        if self.text[self.at:self.at + 1] in ("*", "+", "{", "?"):
            self.refuse(f"{self.text[self.at]!r} after a repetition")
        return Repeat(part, least, None if most < 0 else most)

    def atom(self) -> Expression:
        if self.peek("("):
            return self.group()
        if self.peek("["):
            return in_string(self.set())
        character = self.next()
        if character in "*+?{^":
            self.refuse(f"{character!r} at {self.at - 1}, which is not supported there")
        if character == ".":
            return in_string(_DOT)
        return in_string(self.escape(False) if character == "\\" else ((ord(character),) * 2,))

    def group(self) -> Expression:
        named = _GROUP_NAME.match(self.text, self.at)
        if named:
            self.at = named.end()
        elif self.text.startswith("?", self.at) and not self.peek("?:"):
            self.refuse(f"a group that begins with {self.text[self.at:self.at + 2]!r}")
        options = [Seq(*self.sequence())]
        while self.peek("|"):
            options.append(Seq(*self.sequence()))
        if not self.peek(")"):
            self.refuse("a group without an end, or an anchor in one")
        return Choice(*options)

    def set(self) -> Ranges:
        ranges: list[tuple[int, int]] = []
        negated, first, spread = self.peek("^"), True, False
        while first or not self.peek("]"):
            first = False
            if self.peek("]"):
                break
            low = self.member(negated)
            if self.text[self.at:self.at + 1] == "-" and self.text[self.at + 1:self.at + 2] not in ("]", ""):
                self.at += 1
                high = self.member(negated)
                if len(low) != 1 or len(high) != 1 or low[0][0] != low[0][1] or high[0][0] < low[0][0]:
                    self.refuse("a set with a range from a greater to a lesser character")
                low = ((low[0][0], high[0][0]),)
            elif len(low) > 1 or low[0][0] != low[0][1]:
                spread = True
            ranges += low
        if not negated:
            return tuple(ranges)
        return _common(_others(tuple(ranges)), _ASCII) if spread else _others(tuple(ranges))

    def member(self, negated: bool) -> Ranges:
        character = self.next()
        return self.escape(negated) if character == "\\" else ((ord(character),) * 2,)

    def escape(self, negated: bool) -> Ranges:
        letter = self.next()
        if letter in _SETS:
            return _SETS[letter]
        if letter.lower() in _SETS and not negated:
            return _common(_others(_SETS[letter.lower()]), _ASCII)
        if letter in _CONTROLS:
            return ((_CONTROLS[letter],) * 2,)
        if letter in "xu":
            digits = self.text[self.at:self.at + (2 if letter == "x" else 4)]
            self.at += len(digits)
            try:
                return ((int(digits, 16),) * 2,)
            except ValueError:
                self.refuse(f"'\\{letter}' without digits")
        if letter.isalnum():
            self.refuse(f"'\\{letter}', which is not supported")
        return ((ord(letter),) * 2,)
