"""`B`, the functions of `build.py`, for the rules of operations.

The gradient of expand is a sum, and that of a sum an expand: rules are written with operations that are defined later
than themselves. `build.py` imports the operations, and enters its functions here when it has.
"""
from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from minigrad.ops import build as B
else:
    B = SimpleNamespace()

__all__ = ["B"]
