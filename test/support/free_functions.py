"""Writes minigrad/methods.pyi: the functions of `minigrad.methods`, for type checkers."""
from __future__ import annotations

from pathlib import Path

from minigrad import functions
from minigrad.unbound import unbound

STUB = Path(__file__).parents[2] / "minigrad" / "methods.pyi"


def stub() -> str:
    """The text of the stub: each function is the method by its name, but where `minigrad.functions` has another."""
    lines = [f"{name} = Tensor.{getattr(f, '__wrapped__', f).__name__}"
             for name, f in sorted(unbound().items()) if name not in functions.__all__]
    return "\n".join(["from minigrad.tensor import Tensor", "", *lines, ""])


if __name__ == "__main__":
    STUB.write_text(stub(), encoding="utf-8")
