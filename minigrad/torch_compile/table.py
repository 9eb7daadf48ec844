"""The table from ATen operators to expressions over Tensors, and the operators that torch takes apart for it."""
from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from torch._decomp import core_aten_decompositions

from minigrad.torch_compile import elementwise, indexing, norms, products, reductions, shapes
from minigrad.torch_compile.node import Operator

PAGES = (elementwise, reductions, shapes, indexing, products, norms)
OPERATORS: dict[str, Operator] = {name: operator for page in PAGES for name, operator in page.TABLE.items()}


def name_of(target: Any) -> str:
    """The name of an operator without its namespace: `add.Tensor`; of those of `prims` with it."""
    return str(target).removeprefix("aten.")


def operator_of(target: Any) -> Operator | None:
    """The operator of the table for an overload: that of its own name, else of all overloads."""
    name = name_of(target)
    return OPERATORS.get(name) or OPERATORS.get(name.rpartition(".")[0])


@cache
def decompositions() -> dict[Any, Callable[..., Any]]:
    """torch's decompositions into core ATen, but for what the table has whole."""
    return {op: function for op, function in core_aten_decompositions().items()
            if operator_of(op) is None or name_of(op).endswith((".out", "_out"))}
