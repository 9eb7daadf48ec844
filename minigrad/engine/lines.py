"""The line of the user's program that made a Node: 'file.py:12'. Kept only while somebody asks for it, as it costs
time."""
from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from weakref import WeakKeyDictionary

from minigrad.locks import free_in_children
from minigrad.ops import node as nodes
from minigrad.ops.node import Node

PACKAGE = str(Path(__file__).resolve().parent.parent)

_lines: WeakKeyDictionary[Node, str] = WeakKeyDictionary()
_lock = free_in_children(Lock())
_wanted = 0


def call_of_user() -> tuple[str, str]:
    """('Tensor.item()', 'file:line') of the innermost call from outside this package."""
    frame, name = sys._getframe(1), "?"
    while frame.f_back is not None and frame.f_code.co_filename.startswith(PACKAGE):
        name = frame.f_code.co_qualname
        frame = frame.f_back
    owner, _, method = name.rpartition(".")
    name = f"Tensor.{method}" if owner.endswith("Mixin") else name  # parts of Tensor
    return f"{name}()", f"{frame.f_code.co_filename}:{frame.f_lineno}"


def line_of(node: Node) -> str:
    """'file.py:12' of the call that made the Node; '' where nobody asked when it was made."""
    return _lines.get(node, "")


@contextmanager
def lines_kept() -> Iterator[None]:
    """Nodes that are made meanwhile, in any thread, know their line."""
    global _wanted
    with _lock:
        _wanted += 1
        nodes.created = _keep
    try:
        yield
    finally:
        with _lock:
            _wanted -= 1
            if not _wanted:
                nodes.created = None


def _keep(node: Node) -> None:
    path, _, line = call_of_user()[1].rpartition(":")
    _lines[node] = f"{Path(path).name}:{line}"
