"""Functions that compute a Node of a Kind at once if its inputs are realized: `single` enters them, `realize` calls
them."""
from __future__ import annotations

from collections.abc import Callable

from minigrad.ops.kinds import Kind
from minigrad.ops.node import Node

Direct = Callable[[Node], bool]
"""Computes a Node; returns False, with nothing done, where it cannot."""
direct: dict[Kind | None, Direct] = {}
