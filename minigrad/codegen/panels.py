"""Kernels that read a constant matrix in panels of 16 columns, packed once, instead of row by row.

    y[m, n] = sum over k of x[m, k] * w[k, n]      ->      ... * p[n // 16, k, n % 16]      p: panels of w

The sums keep their order, so that every bit of the result stays; see strategies/stream.py for how they are read. One
row reads a matrix as fast where it lies, but not where processors want long streams.
"""
from __future__ import annotations

from dataclasses import dataclass, replace

from minigrad.codegen.cost.machine import machine
from minigrad.codegen.kernel import Define, Kernel, Nest, Param, Store
from minigrad.codegen.plan.loops import adds_in_order
from minigrad.codegen.plan.steps import Plan
from minigrad.codegen.stages import stages_of
from minigrad.errors import InternalError
from minigrad.expr import Var, product
from minigrad.target import Target
from minigrad.value import Value, load, rebuild, walk

PANEL = 16
MIN_ELEMENTS = 1 << 16
"""A smaller matrix stays in the cache, whatever its layout."""


@dataclass(frozen=True, slots=True)
class Panelled:
    """`kernel` reads `param` as panels; `pack` makes them (o0) of the matrix (p0)."""

    param: str
    kernel: Kernel
    pack: Kernel


def panelled(kernel: Kernel, constant: frozenset[str], target: Target) -> Panelled | None:
    """The kernel with one of its constant params in panels, if it streams them then and adds up in the same order."""
    if kernel.dims or kernel.steps is not None or len(kernel.nests) != 1 or any(
            isinstance(s, Nest) for s in kernel.nests[0].body):
        return None
    outputs = product(v.hi + 1 for v in kernel.nests[0].domain)
    for param in kernel.params:
        if param.name not in constant or not _is_matrix(param) or not in_order(kernel, target):
            continue
        nest = _in_panels(kernel.nests[0], param)
        rows, columns = param.shape
        if nest is None or (outputs == columns and not machine(target).speed.long_streams):
            continue
        shape = (columns // PANEL, rows, PANEL)
        params = tuple(replace(p, shape=shape) if p is param else p for p in kernel.params)
        made = replace(kernel, params=params, nests=(nest,))
        if stages_of(made, target).stages[0].plan.strategy == "stream" and in_order(made, target):
            return Panelled(param.name, made, pack_kernel(param))
    return None


def in_order(kernel: Kernel, target: Target) -> bool:
    """True where each sum runs from its first term to its last in one accumulator."""
    stages = stages_of(kernel, target).stages
    plan = stages[0].plan
    return len(stages) == 1 and isinstance(plan, Plan) and plan.pattern in ("contraction", "panels", "stream") and (
        adds_in_order(stages[0].nests[0], plan))


def pack_kernel(param: Param) -> Kernel:
    """o0[q, k, l] = p0[k, 16 * q + l]."""
    rows, columns = param.shape
    if not isinstance(rows, int) or not isinstance(columns, int):
        raise InternalError(f"[pack] expected a matrix of known sizes, got {rows} x {columns}")
    q, k, lane = Var("i0", 0, columns // PANEL - 1), Var("i1", 0, rows - 1), Var("i2", 0, PANEL - 1)
    value = load("p0", (k + 0, PANEL * q + lane), param.dtype)
    out = Param("o0", param.dtype, (columns // PANEL, rows, PANEL), "out")
    nest = Nest((q, k, lane), (Store("o0", (q + 0, k + 0, lane + 0), value),))
    return Kernel("pack", (out, Param("p0", param.dtype, param.shape)), (), (), (nest,))


def _is_matrix(param: Param) -> bool:
    if param.mode != "in" or not param.dtype.is_float or len(param.shape) != 2 or param.layout is not None:
        return False
    rows, columns = param.shape
    return isinstance(rows, int) and isinstance(columns, int) and columns % PANEL == 0 and (
        rows * columns >= MIN_ELEMENTS)


def _in_panels(nest: Nest, param: Param) -> Nest | None:
    """The nest with every load of the param from panels; None if one is not w[reduction variable, domain variable]."""
    body: list[Define | Store | Nest] = []
    for s in nest.body:
        if isinstance(s, Nest):
            return None
        done: dict[Value, Value] = {}
        for v in walk(s.value):
            if v.op == "load" and v.buffer == param.name:
                row, column = v.indices
                if not any(column == d and d.hi + 1 == param.shape[1] for d in nest.domain) or not isinstance(row, Var):
                    return None
                if row in nest.domain or row.hi + 1 != param.shape[0]:
                    return None
                done[v] = load(param.name, (column // PANEL, row, column % PANEL), v.dtype)
            else:
                done[v] = rebuild(v, tuple([done[a] for a in v.args]), v.attr)
        body.append(replace(s, value=done[s.value]))
    return Nest(nest.domain, tuple(body))
