"""The machine that runs pickles from files that nobody vouches for.

A pickle is a program for a stack machine. Python's own machine lets it call any importable function and set attributes
of what it finds, and trusts its numbers: one index makes a table of gigabytes. The machine here makes plain containers
and scalars, and calls what its owner's `find` returns; nothing can be changed but containers that the program itself
made, and memory and time are in proportion to its length.
"""
from __future__ import annotations

import pickletools
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import IO, Any

from minigrad.errors import FormatError, quantity
from minigrad.state.fields import MAX_RANK, brief


@dataclass(frozen=True, slots=True)
class Function:
    """Something that a program may call."""

    call: Callable[..., Any]


class Machine:
    """Runs one pickle after the other. `find(module, name)` says what a name stands for: a `Function`, or a value;
    `persistent(id)` what an object outside of the pickle does."""

    def __init__(self, find: Callable[[str, str], Any], persistent: Callable[[Any], Any]):
        self.find, self.persistent = find, persistent

    def run(self, stream: IO[bytes]) -> Any:
        """The object that the pickle at the stream's position describes; the position is then behind it."""
        self.stack: list[Any] = []
        self.outer: list[list[Any]] = []  # the stacks below each MARK
        self.memo: dict[int, Any] = {}
        self.steps = self.copied = self.read = 0
        for opcode, argument, _ in pickletools.genops(stream):
            self.steps += 1
            self.read += len(argument) if isinstance(argument, (str, bytes)) else 0
            name = opcode.name
            if name in _MAKES:
                made = _MAKES[name](self, argument)
                self.stack.append(made)
            elif name in _CHANGES:
                _CHANGES[name](self, argument)
            elif name != "STOP":
                raise FormatError(f"the instruction {name}, which no checkpoint needs")
        return self.stack.pop()

    def mark(self) -> None:
        """A new stack on top of those before it."""
        self.outer.append(self.stack)
        self.stack = []

    def marked(self) -> list[Any]:
        """Takes the values that were pushed since the last MARK off the stack, and returns them."""
        items, self.stack = self.stack, self.outer.pop()
        return items

    def pop(self) -> Any:
        """The value on top, taken off the stack; of an empty one what was marked."""
        return self.stack.pop() if self.stack else self.marked()

    def last(self, count: int) -> list[Any]:
        """The last `count` values, taken off the stack."""
        if count > len(self.stack):
            raise FormatError(f"{quantity(count, 'value')} of a stack of {len(self.stack)}")
        items, self.stack[-count:] = self.stack[-count:], []
        return items

    def extend(self, kind: type, items: list[Any]) -> None:
        """Adds to the list or set on top of the stack."""
        target: Any = self.stack[-1]
        fits = type(target) is kind
        if not fits:
            raise FormatError(f"elements for a {type(target).__name__}, expected a {kind.__name__}")
        target.extend(items) if kind is list else target.update(hashable(items))

    def set_items(self, items: list[Any]) -> None:
        """Keys and values in turn, into the dictionary on top of the stack."""
        target = self.stack[-1]
        if type(target) not in (dict, OrderedDict, Counter):
            raise FormatError(f"items for a {type(target).__name__}, expected a dictionary")
        target.update(_pairs(items))

    def named(self, module: Any, name: Any) -> Any:
        """The global of two strings. Raises FormatError for others."""
        if type(module) is not str or type(name) is not str:
            raise FormatError(f"a name that is {brief((module, name))}, expected two strings")
        return self.find(module, name)

    def call(self) -> Any:
        """Calls a function with the arguments, both on the stack, and gives its result. Raises FormatError for other
        objects."""
        function, arguments = self.last(2)
        if not isinstance(function, Function) or type(arguments) is not tuple:
            raise FormatError(f"a call of {brief(function)}, which is no function")
        return function.call(*arguments)

    def copy(self, value: Any) -> None:
        """Counts a copy of a container or text. Raises FormatError where all of them are more than their steps and the
        pickle's texts could need: each is meant to be made once."""
        self.copied += len(value)
        if self.copied > self.steps + self.read:
            raise FormatError("containers that are made of others again and again")

    def ordered_dict(self, pairs: Any = ()) -> OrderedDict:
        """An OrderedDict, of a list of pairs as Python 2 wrote it. Each pair took a step to make: more copies than
        steps are no file that anybody saved."""
        self.copied += len(pairs)
        if self.copied > self.steps or not all([type(pair) in (list, tuple) and len(pair) == 2 for pair in pairs]):
            raise FormatError("an OrderedDict that is not made of pairs of its own")
        return OrderedDict(_pairs([part for pair in pairs for part in pair]))

    def set_attributes(self) -> None:
        """Attributes for the object on top of the stack. PyTorch notes the versions of its layers in those of a
        state_dict, which nobody reads here; no other object has any."""
        state, target = self.stack.pop(), self.stack[-1]
        if type(target) is not OrderedDict or type(state) is not dict:
            raise FormatError(f"attributes for a {type(target).__name__}, expected them for an OrderedDict only")


def hashable(items: list[Any]) -> list[Any]:
    """The items, each of which is quickly hashed: a tuple of tuples of tuples can take for ever."""
    for item in items:
        parts = [item]
        for part in parts:  # which grows
            if type(part) is tuple and len(parts) + len(part) <= MAX_RANK:
                parts.extend(part)
            elif not (part is None or type(part) in (str, bytes, float, bool)
                      or (type(part) is int and part.bit_length() <= 64)):
                raise FormatError(f"{brief(item)} as a key, expected a string, a number or a few of them")
    return items


def _pairs(items: list[Any]) -> list[tuple[Any, Any]]:
    """Keys and values in turn, as pairs."""
    return list(zip(hashable(items[::2]), items[1::2], strict=True))


def _python2_text(text: str) -> str:
    """A string of Python 2, of whose bytes `pickletools` makes Latin-1."""
    return text.encode("latin-1").decode("utf-8")


_LITERALS = """INT BININT BININT1 BININT2 LONG LONG1 LONG4 FLOAT BINFLOAT STRING UNICODE BINUNICODE SHORT_BINUNICODE
    BINUNICODE8 BINBYTES SHORT_BINBYTES BINBYTES8 BYTEARRAY8""".split()
_MAKES: dict[str, Callable[[Machine, Any], Any]] = {
    **dict.fromkeys(_LITERALS, lambda m, literal: literal),
    "NONE": lambda m, _: None,
    "NEWTRUE": lambda m, _: True,
    "NEWFALSE": lambda m, _: False,
    "BINSTRING": lambda m, text: _python2_text(text),
    "SHORT_BINSTRING": lambda m, text: _python2_text(text),
    "DUP": lambda m, _: m.stack[-1],
    "GET": lambda m, index: m.memo[index],
    "BINGET": lambda m, index: m.memo[index],
    "LONG_BINGET": lambda m, index: m.memo[index],
    "EMPTY_LIST": lambda m, _: [],
    "EMPTY_DICT": lambda m, _: {},
    "EMPTY_SET": lambda m, _: set(),
    "EMPTY_TUPLE": lambda m, _: (),
    "TUPLE1": lambda m, _: tuple(m.last(1)),
    "TUPLE2": lambda m, _: tuple(m.last(2)),
    "TUPLE3": lambda m, _: tuple(m.last(3)),
    "LIST": lambda m, _: m.marked(),
    "TUPLE": lambda m, _: tuple(m.marked()),
    "FROZENSET": lambda m, _: frozenset(hashable(m.marked())),
    "DICT": lambda m, _: dict(_pairs(m.marked())),
    "GLOBAL": lambda m, names: m.named(*names.split(" ", 1)),
    "STACK_GLOBAL": lambda m, _: m.named(*m.last(2)),
    "REDUCE": lambda m, _: m.call(),
    "BINPERSID": lambda m, _: m.persistent(m.stack.pop()),
}
"""Instructions that push what they make."""

_CHANGES: dict[str, Callable[[Machine, Any], Any]] = {
    "PROTO": lambda m, _: None,
    "FRAME": lambda m, _: None,
    "MARK": lambda m, _: m.mark(),
    "POP": lambda m, _: m.pop(),
    "POP_MARK": lambda m, _: m.marked(),
    "PUT": lambda m, index: m.memo.update({index: m.stack[-1]}),
    "BINPUT": lambda m, index: m.memo.update({index: m.stack[-1]}),
    "LONG_BINPUT": lambda m, index: m.memo.update({index: m.stack[-1]}),
    "MEMOIZE": lambda m, _: m.memo.update({len(m.memo): m.stack[-1]}),
    "APPEND": lambda m, _: m.extend(list, m.last(1)),
    "APPENDS": lambda m, _: m.extend(list, m.marked()),
    "ADDITEMS": lambda m, _: m.extend(set, m.marked()),
    "SETITEM": lambda m, _: m.set_items(m.last(2)),
    "SETITEMS": lambda m, _: m.set_items(m.marked()),
    "BUILD": lambda m, _: m.set_attributes(),
}
"""Instructions that change what is on the stack or in the table."""
