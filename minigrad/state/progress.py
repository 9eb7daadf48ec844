"""A line on stderr for what takes long."""
from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")


def progress(items: Iterable[T], total: int, what: str, always: bool = False) -> Iterator[T]:
    """Yields `items`, about `total` of them, and shows meanwhile how many per cent are done; nothing of it is left.

    Shown on a terminal, or `always`.
    """
    stream = sys.stderr  # None in a program without a console
    shown = stream is not None and (always or stream.isatty())
    line = ""
    for k, item in enumerate(items):
        now = f"{what}: {100 * k // max(total, 1)}%"
        if shown and now != line:
            line = now
            print(f"\r{line}", end="", file=stream, flush=True)
        yield item
    if line:
        print(f"\r{' ' * len(line)}\r", end="", file=stream, flush=True)
