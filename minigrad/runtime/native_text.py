"""The LLVM IR in `minigrad/runtime/native/`, which is written by hand and does not depend on a kernel."""
from __future__ import annotations

from functools import cache
from importlib.resources import files


@cache
def native_text(name: str) -> str:
    """The text of `native/<name>.ll`, read once."""
    return (files("minigrad.runtime") / "native" / f"{name}.ll").read_text(encoding="utf-8")
