"""`explain`: why a step takes as long as it does, as a page of HTML.

    report = minigrad.explain(step, x, y, path="report.html")
    print(report)               # the summary in words
    report.as_dict()            # everything, for programs
"""
from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from minigrad.errors import MinigradError
from minigrad.report.explained.page import page_of
from minigrad.report.explained.report import Report, report_of
from minigrad.report.explained.step import watched_call


def explain(function: Callable[..., Any], *args: Any, path: str | Path | None = "report.html", **kwargs: Any) -> Report:
    """Explains a call `function(*args, **kwargs)`, and writes the report as a page of HTML to `path` (None: nowhere).

    The page has the time with where it goes, kernels by time with their lines, amounts, limits, predictions and every
    form from index notation to machine code, the graph, the memory, and named warnings with what to do (`docs/warnings
    .md`). The function is called some fifteen times and has the effects of all of these calls; one under `jit` is
    captured anew. Raises MinigradError where it runs no kernels, or the page cannot be written.
    """
    if not callable(function):
        raise MinigradError(f"[explain] expected a function and its arguments, got {type(function).__name__}")
    report = report_of(watched_call(function, args, kwargs))
    if path is not None:
        write_whole(Path(path), page_of(report))
    return report


def write_whole(path: Path, text: str) -> None:
    """Writes a file as a whole or not at all. Raises MinigradError where that is not possible."""
    temporary = ""
    try:
        with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=path.parent, prefix=f".{path.name}.",
                                         delete=False) as file:
            temporary = file.name
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o666 & ~_mask())
        os.replace(temporary, path)
    except OSError as error:
        with suppress(OSError):
            os.unlink(temporary)
        raise MinigradError(f"[explain] expected to write {len(text.encode())} bytes to {str(path)!r}, got: "
                            f"{error.strerror or error}") from None


def _mask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
