"""A graph as rows that can be changed and built again: what is left out, cut and made smaller until little remains."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from minigrad.dtype import DType
from minigrad.engine import reference
from minigrad.engine.realize import realize
from minigrad.engine.storage import buffer_node
from minigrad.engine.transfer import download, upload
from minigrad.errors import MinigradError, present
from minigrad.ops.composite import expanded
from minigrad.ops.node import Node, apply, toposort
from minigrad.ops.op import Op
from minigrad.ops.storage import BUFFER
from minigrad.report.reduced.names import name_of


@dataclass(frozen=True, eq=False)
class Row:
    """An operation over earlier rows, or a leaf with its value (bfloat16 as float32)."""

    op: Op | None
    inputs: tuple[int, ...]
    params: dict[str, Any]
    dtype: DType
    value: np.ndarray | None = None


@dataclass(frozen=True, eq=False)
class Program:
    """Rows, inputs first, and the one that is the result."""

    rows: tuple[Row, ...]
    target: int

    @property
    def size(self) -> int:
        """The number of operations."""
        return sum([1 for row in self.rows if row.op is not None])

    def pruned(self, target: int | None = None) -> Program:
        """The rows that a target needs, and no others."""
        target = self.target if target is None else target
        needed, stack = set[int](), [target]
        while stack:
            k = stack.pop()
            if k not in needed:
                needed.add(k)
                stack += self.rows[k].inputs
        place = {k: n for n, k in enumerate(sorted(needed))}
        rows = [replace(self.rows[k], inputs=tuple([place[i] for i in self.rows[k].inputs])) for k in sorted(needed)]
        return Program(tuple(rows), place[target])

    def changed(self, rows: dict[int, Row]) -> Program:
        """With other rows at some places, pruned."""
        return Program(tuple([rows.get(k, row) for k, row in enumerate(self.rows)]), self.target).pruned()

    def nodes(self, device: str) -> list[Node]:
        """Nodes of the rows on a device. Raises what operations raise that do not fit their operands."""
        made: list[Node] = []
        for row in self.rows:
            if row.op is None:
                made.append(leaf(present(row.value, "[reduce] expected the value of a row"), row.dtype, device))
            else:
                inputs = [made[i] for i in row.inputs]
                made.append(apply(row.op, *inputs, device=None if inputs else device, **row.params))
        return made

    def result(self, device: str) -> np.ndarray:
        """The value of the target, computed on a device; bfloat16 as float32."""
        return value_of(self.nodes(device)[self.target])

    def values(self) -> list[np.ndarray]:
        """The values of all rows, as NUMPY computes them."""
        nodes = self.nodes("NUMPY")
        realize(nodes)
        return [download(n) for n in nodes]


def leaf(value: np.ndarray, dtype: DType, device: str) -> Node:
    """A Node over a buffer with these numbers."""
    return buffer_node(upload(value, dtype, device), value.shape, dtype, device)


def value_of(node: Node) -> np.ndarray:
    """The value of a Node, computed where its device is."""
    realize([node])
    return download(node)


def program_of(roots: Sequence[Node]) -> tuple[Program, list[int]]:
    """The rows that compute some Nodes down to realized ones, and the rows of these. Blocks, which no module has a name
    for, are what they are made of. Symbolic sizes have the values that they have now. Raises MinigradError where a leaf
    has no value."""
    image = expanded(roots, keep=lambda node: name_of(node.op) != ("", ""))
    order = toposort(*[image[n] for n in roots])
    place = {n: k for k, n in enumerate(order)}
    return Program(tuple([_row(n, place) for n in order]), len(order) - 1), [place[image[n]] for n in roots]


def _row(node: Node, place: dict[Node, int]) -> Row:
    if node.storage is not None:
        return Row(None, (), {}, node.dtype, download(node))
    if node.op is BUFFER:
        raise MinigradError("[reduce] expected values of all operands")
    params = {name: reference.bound(p) for name, p in node.params.items()}
    return Row(node.op, tuple([place[i] for i in node.inputs]), params, node.dtype)
