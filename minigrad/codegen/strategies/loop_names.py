"""Names of loops, and loops that have them."""
from __future__ import annotations

from collections.abc import Callable

from minigrad.codegen.ir.launch import Names
from minigrad.codegen.ir.nodes import Loop, Stmt
from minigrad.expr import Index, Var


class LoopNames(Names):
    """Fresh names of one function, and loops that have them."""

    def serial(self, stem: str, count: Index, body: Callable[[Index], list[Stmt]]) -> list[Stmt]:
        """`body` for 0..count."""
        if count == 1:
            return body(0)
        x = self.fresh(stem, count - 1)
        return [Loop(x, 0, count, "serial", tuple(body(x)))]

    def lanes(self, width: int, body: Callable[[Var], list[Stmt]]) -> Loop:
        """A vector loop."""
        lane = self.fresh("l", width - 1)
        return Loop(lane, 0, width, "vector", tuple(body(lane)))
