"""What may compute a Node of a Kind at once if its inputs are realized: `single` enters it, `realize` asks for it."""
from __future__ import annotations

from collections.abc import Callable

from minigrad.ops.kinds import Kind
from minigrad.ops.node import Node

Direct = Callable[[Node], bool]
"""False with nothing done."""
direct: dict[Kind | None, Direct] = {}
