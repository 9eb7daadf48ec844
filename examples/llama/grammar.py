"""Languages of bytes, as expressions with recursion, and the automaton that reads them byte by byte.

An expression is a set of bytes, a sequence, a choice, a repetition or a name, which stands for another expression. What
is left to read is a stack of expressions; a state of the automaton is the set of stacks that the bytes so far may have
left (partial derivatives). States are numbered as they are met, and every one of them can still be completed.

https://doi.org/10.1016/0304-3975(95)00182-4 (Antimirov)
"""
from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import lru_cache

import numpy as np

ALL = (1 << 256) - 1
MAX_STATES = 200_000
"""States that are remembered; the automaton begins again where there are more."""


class Expression:
    """One of the five below. Never compared by contents: those that should be one are made once."""


class Bytes(Expression):
    """One byte of a set, whose members are the bits of `members`."""

    def __init__(self, members: int):
        self.members = members


class Seq(Expression):
    """All of `parts`, one after another; none of them is the empty text."""

    def __init__(self, *parts: Expression):
        self.parts = parts


class Choice(Expression):
    """One of `options`; without any, there is no such text."""

    def __init__(self, *options: Expression):
        self.options = options


class Repeat(Expression):
    """`part` again and again, at least `least` times and at most `most` (None: any number)."""

    def __init__(self, part: Expression, least: int = 0, most: int | None = None):
        self.part, self.least, self.most = part, least, most
        self._fewer: Repeat | None = None

    def fewer(self) -> Repeat:
        """The repetition after one of them, always the same object."""
        if self.least == 0 and self.most is None:
            return self
        if self._fewer is None:
            most = None if self.most is None else self.most - 1
            self._fewer = Repeat(self.part, max(self.least - 1, 0), most)
        return self._fewer


class Name(Expression):
    """Stands for an expression that is given later, maybe around this one."""

    def __init__(self) -> None:
        self.meaning: Expression = Choice()


NOTHING, EMPTY = Choice(), Seq()


def literal(text: str) -> Expression:
    """Exactly this text, in UTF-8."""
    return Seq(*[Bytes(1 << byte) for byte in text.encode()])


def one_of(text: str) -> Bytes:
    """One of these ASCII characters."""
    return Bytes(sum([1 << ord(character) for character in set(text)]))


@lru_cache(maxsize=4096)
def characters(ranges: tuple[tuple[int, int], ...]) -> Expression:
    """The UTF-8 form of one code point in the ranges (both ends are in them); surrogates have none."""
    options: list[Expression] = []
    for first, last in ((0, 0x7F), (0x80, 0x7FF), (0x800, 0xD7FF), (0xE000, 0xFFFF), (0x10000, 0x10FFFF)):
        for low, high in ranges:
            if max(low, first) <= min(high, last):
                options.append(_same_size(chr(max(low, first)).encode(), chr(min(high, last)).encode()))
    return options[0] if len(options) == 1 else Choice(*options)


def _same_size(low: bytes, high: bytes) -> Expression:
    """The UTF-8 texts of one character from `low` to `high`, which have as many bytes."""
    def between(first: int, last: int) -> Bytes:
        return Bytes((1 << last + 1) - (1 << first))

    if len(low) == 1:
        return between(low[0], high[0])
    rest = len(low) - 1
    if low[0] == high[0]:
        return Seq(between(low[0], low[0]), _same_size(low[1:], high[1:]))
    options = [Seq(between(low[0], low[0]), _same_size(low[1:], b"\xBF" * rest)),
               Seq(between(high[0], high[0]), _same_size(b"\x80" * rest, high[1:]))]
    if low[0] + 1 < high[0]:
        options.append(Seq(between(low[0] + 1, high[0] - 1), _same_size(b"\x80" * rest, b"\xBF" * rest)))
    return Choice(*options)


class Stack:
    """The rest of a text: `top` and then `rest` (None: nothing). `least` is the number of bytes of its shortest
    text.
    """

    def __init__(self, top: Expression, rest: Stack | None, least: float):
        self.top, self.rest, self.least = top, rest, least
        self.pushed: dict[Expression, Stack] = {}


class Automaton:
    """Reads texts of `start` without bytes that are not in `alphabet`, a set as in `Bytes`.

    State 0 is the start; -1 says that no text continues so.
    """

    def __init__(self, start: Expression, alphabet: int = ALL):
        self.alphabet = alphabet
        self._shortest: dict[Expression, float] = {}
        self._find_shortest(start)
        self.bottom = Stack(EMPTY, None, 0)
        self.start = start
        self.begin()

    def begin(self) -> None:
        self.bottom.pushed.clear()
        first = self._push(self.start, self.bottom)
        self.states: dict[frozenset[Stack], int] = {}
        self.stacks: list[frozenset[Stack]] = []
        self.rows: list[np.ndarray | None] = []
        self._number(frozenset([first] if first.least < math.inf else []))

    def shortest(self, state: int) -> float:
        """The fewest bytes that complete a text; infinite where the language is empty."""
        return min([stack.least for stack in self.stacks[state]], default=math.inf)

    def row(self, state: int) -> np.ndarray:
        """The state after each byte, int32 [256]."""
        found = self.rows[state]
        if found is None:
            found = self.rows[state] = self._derive(self.stacks[state])
        return found

    def step(self, state: int, text: bytes) -> int:
        """The state after some bytes."""
        for byte in text:
            state = int(self.row(state)[byte])
            if state < 0:
                break
        return state

    def accepts(self, text: bytes) -> bool:
        """Says whether a whole text is in the language."""
        state = self.step(0, text) if self.stacks[0] else -1
        return state >= 0 and self.shortest(state) == 0

    def _number(self, stacks: frozenset[Stack]) -> int:
        number = self.states.get(stacks)
        if number is None:
            number = self.states[stacks] = len(self.stacks)
            self.stacks.append(stacks)
            self.rows.append(None)
        return number

    def _derive(self, stacks: Iterable[Stack]) -> np.ndarray:
        parts: dict[int, frozenset[Stack]] = {ALL: frozenset()}  # bytes with the same outcome
        for members, after in self._heads(stacks):
            split: dict[int, frozenset[Stack]] = {}
            for group, of in parts.items():
                if group & ~members:
                    split[group & ~members] = of
                if group & members:
                    split[group & members] = of | {after}
            parts = split
        row = np.full(256, -1, np.int32)
        for group, of in parts.items():
            if of:
                bits = np.frombuffer(group.to_bytes(32, "little"), np.uint8)
                row[np.unpackbits(bits, bitorder="little").astype(bool)] = self._number(of)
        return row

    def _heads(self, stacks: Iterable[Stack]) -> list[tuple[int, Stack]]:
        """(bytes, what is left after one of them), for all ways in which these stacks can go on."""
        found: list[tuple[int, Stack]] = []
        waiting = list(stacks)
        seen = set(waiting)
        while waiting:
            stack = waiting.pop()
            top, rest = stack.top, stack.rest
            if rest is None:
                continue  # the end of the text
            if isinstance(top, Bytes):
                found.append((top.members & self.alphabet, rest))
                continue
            for after in self._opened(top, rest):
                if after not in seen and after.least < math.inf:
                    seen.add(after)
                    waiting.append(after)
        return found

    def _opened(self, top: Expression, rest: Stack) -> Sequence[Stack]:
        if isinstance(top, Choice):
            return [self._push(option, rest) for option in top.options]
        if isinstance(top, Name):
            return [self._push(top.meaning, rest)]
        if isinstance(top, Seq):
            for part in reversed(top.parts):
                rest = self._push(part, rest)
            return [rest]
        assert isinstance(top, Repeat)
        again = [] if top.most == 0 else [self._push(top.part, self._push(top.fewer(), rest))]
        return again if top.least else [*again, rest]

    def _push(self, top: Expression, rest: Stack) -> Stack:
        found = rest.pushed.get(top)
        if found is None:
            found = rest.pushed[top] = Stack(top, rest, self._known(top) + rest.least)
        return found

    def _least(self, expression: Expression) -> float:
        """Bytes of the shortest text of an expression."""
        if isinstance(expression, Bytes):
            return 1 if expression.members & self.alphabet else math.inf
        if isinstance(expression, Name):
            return self._shortest.get(expression, math.inf)
        if isinstance(expression, Repeat):
            return expression.least * self._known(expression.part) if expression.least else 0
        if isinstance(expression, Seq):
            return sum([self._known(part) for part in expression.parts])
        assert isinstance(expression, Choice)
        return min([self._known(option) for option in expression.options], default=math.inf)

    def _known(self, expression: Expression) -> float:
        found = self._shortest.get(expression)
        return self._least(expression) if found is None else found

    def _find_shortest(self, start: Expression) -> None:
        """Fills in the shortest texts of all expressions, from infinite ones down, until none changes."""
        order, waiting = [], [start]
        while waiting:
            expression = waiting.pop()
            if expression not in self._shortest:
                self._shortest[expression] = math.inf
                order.append(expression)
                waiting += _inner(expression)
        changed = True
        while changed:
            changed = False
            for expression in reversed(order):
                inner = expression.meaning if isinstance(expression, Name) else expression
                least = self._least(inner)
                if least < self._shortest[expression]:
                    self._shortest[expression], changed = least, True


def _inner(expression: Expression) -> Sequence[Expression]:
    if isinstance(expression, Seq):
        return expression.parts
    if isinstance(expression, Choice):
        return expression.options
    if isinstance(expression, Repeat):
        return [expression.part]
    return [expression.meaning] if isinstance(expression, Name) else []
