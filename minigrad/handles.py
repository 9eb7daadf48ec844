"""Every live Tensor: what a capture journals, and what an assign must not take the old value from.

`changes.mark` tells whether anything happened to them: it is another object after each change of a handle or of a
gradient, and after anything that may keep a reference to a Node or a gradient (an operation on it, another handle, a
look at `.grad`).
"""
from __future__ import annotations

from collections.abc import Iterator
from threading import get_ident
from typing import Any
from weakref import ref

handles: dict[ref, None] = {}
"""A Tensor's hash is its identity, so that a weak reference finds itself here, dead or alive."""
forget = handles.pop


class Changes:
    """`mark` is replaced after a change was made, so that code that reads `mark` before it looks at Tensors misses
    none."""

    __slots__ = ("mark",)

    def __init__(self) -> None:
        self.mark = object()


changes = Changes()


def changed() -> None:
    """Says that a Tensor, its gradient or its Node's references are not what they were."""
    changes.mark = object()


rebound: dict[int, set[int]] = {}
"""By the thread that captures a function: ids of the Tensors that it gave another value or gradient."""


def changed_by_user(tensor: Any) -> None:
    """`changed`: this thread gave the Tensor another value or gradient."""
    changes.mark = object()
    if rebound:
        mine = rebound.get(get_ident())
        if mine is not None:
            mine.add(id(tensor))


asked: dict[int, set[int]] = {}
"""By the thread that captures a function: ids of the Tensors of which it asked whether they have or need a gradient."""


def ask(tensor: Any) -> None:
    """Notes that this thread asks for the gradient of a Tensor, or whether it needs one."""
    mine = asked.get(get_ident())
    if mine is not None:
        mine.add(id(tensor))


def register(tensor: Any) -> None:
    """Adds a Tensor; it leaves by itself when it dies."""
    handles[ref(tensor, forget)] = None


def live() -> Iterator[Any]:
    """The live Tensors, oldest first."""
    for handle in list(handles):
        tensor = handle()
        if tensor is not None:
            yield tensor


def count() -> int:
    """The number of live Tensors."""
    return sum([1 for _ in live()])
