"""The loops of a kernel. Nests that do not depend on each other are one parallel loop: which of them an iteration is of
goes by its number.

On a GPU a launch costs as much as thousands of work-items do, and a strided gradient has a nest per phase.
"""
from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from minigrad.codegen.ir.launch import function_of
from minigrad.codegen.ir.nodes import Function, If, Loop, Stmt, extent_of
from minigrad.codegen.kernel.nodes import Kernel
from minigrad.codegen.plan.build import build
from minigrad.codegen.plan.several import JoinedPlan
from minigrad.codegen.plan.steps import Plan
from minigrad.expr import Index, Var


@lru_cache(maxsize=4096)
def build_nests(kernel: Kernel, plan: Plan | JoinedPlan, name: str) -> Function:
    """The loops of a kernel by its plan. Where sizes are dims, many layers ask for the same."""
    if isinstance(plan, Plan):
        nest, = kernel.nests
        return build(kernel, nest, plan, name)
    return _joined(kernel, [build(kernel, *each, name) for each in zip(kernel.nests, plan.plans, strict=True)], name)


def _joined(kernel: Kernel, functions: Sequence[Function], name: str) -> Function:
    """The loops of all nests in one: `for q: if q < e0: [first nest at q] else: if q < e0 + e1: ...`."""
    starts: list[Index] = [0]
    for f in functions:
        starts.append(starts[-1] + extent_of(f))
    q = Var("q", 0, starts[-1] - 1)
    body: tuple[Stmt, ...] = ()
    for f, start, stop in reversed(list(zip(functions, starts[:-1], starts[1:], strict=True))):
        here = _at(f, q - start)
        body = (If((stop - 1 - q,), here, body),) if body else here
    return function_of(kernel, name, Loop(q, 0, starts[-1], "parallel", body))


def _at(function: Function, place: Index) -> tuple[Stmt, ...]:
    """The statements of a function in one iteration."""
    loop = function.body[0]
    if len(function.body) == 1 and isinstance(loop, Loop) and loop.kind == "parallel":
        return (Loop(loop.var, place, place + 1, "serial", loop.body),)
    return function.body
