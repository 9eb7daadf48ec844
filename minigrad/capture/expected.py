"""Conditions under which a capture answers a call at once: its surroundings, the settings, and the kinds of
arguments."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

from minigrad.capture.surroundings import Surroundings
from minigrad.config import Config, override
from minigrad.engine.observe import dry_runs, observers
from minigrad.mixins.modes import modes
from minigrad.ops.kinds import Type

MISS = object()
"""The result of a replay that found something not as the last one left it."""

Kind = tuple[Type, bool, bool, Callable[[], Any] | None]
"""The kind of an argument: type, True if it requires a gradient, True if it has none, and a function that gives the
Tensor that it was in the capture (None once any other will do)."""
Call = Callable[[tuple, object | None], Any]
"""A function of arguments, and of the object whose method is called if any."""


class Expected:
    """The surroundings of a function and the settings under which a capture holds: these very objects."""

    __slots__ = ("same", "override", "mode", "threads")

    def __init__(self, surroundings: Surroundings, around: tuple, settings: Config):
        self.same = surroundings.watch(around)
        self.override, self.threads = override(), settings.threads
        self.mode = modes.now

    def found(self, owner: object | None) -> bool:
        """True where all of it is in force, and there are no observers. `owner` is the object whose method is called,
        if any."""
        return override() is self.override and modes.now is self.mode and not observers and not dry_runs and \
            self.same(owner)


def same_type(a: Type, b: Type) -> bool:
    """True for equal types: they are mostly the same object, but not for ever."""
    return a.shape == b.shape and a.dtype is b.dtype and a.device == b.device


def lengths_of(keys: tuple) -> tuple[tuple, tuple[int, ...]]:
    """(keys of all Tensors, number of them in each argument, -1 for one that is no list) from the key of arguments."""
    flat: list[Any] = []
    lengths = []
    for key in keys:
        if type(key) is tuple and len(key) == 2 and key[0] == "list" and type(key[1]) is tuple:
            flat += key[1]
            lengths.append(len(key[1]))
        else:
            flat.append(key)
            lengths.append(-1)
    return tuple(flat), tuple(lengths)


def taken_apart(args: tuple, lengths: tuple[int, ...]) -> list[Any] | None:
    """The elements of `args` and of the lists among them, in order; None where they are other ones than `lengths`
    says."""
    if len(args) != len(lengths):
        return None
    flat: list[Any] = []
    for value, length in zip(args, lengths, strict=True):
        if length < 0:
            flat.append(value)
        elif type(value) is list and len(value) == length:
            flat += value
        else:
            return None
    return flat
