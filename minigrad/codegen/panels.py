"""Kernels that read a constant matrix in panels of columns, packed once, instead of as it lies.

    y[m, n] = sum over k of x[m, k] * w[k, n]      ->      ... * p[n // L, k, n % L]      p: panels of w

w may also lie as [n, k], as weights of linear layers do. Few rows stream panels of 16 columns (policy/stream.py);
more of them read panels of a register tile's width in place, where each call would copy w into such panels otherwise
(policy/panels.py). The sums keep their order, so that every bit of the result stays. One row reads a matrix as fast
where it lies, but not where processors want long streams.
"""
from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from minigrad.codegen.kernel.nodes import Define, Kernel, Nest, Param, Store
from minigrad.codegen.machines.machine import machine
from minigrad.codegen.passes import stages_of
from minigrad.codegen.plan.several import AnyPlan
from minigrad.codegen.plan.steps import Plan, resolve
from minigrad.codegen.policy.panels import MAX_K
from minigrad.errors import InternalError
from minigrad.expr import Var, variables
from minigrad.target import Target
from minigrad.value import Value, load, rebuild, walk

PANEL = 16
MIN_ELEMENTS = 1 << 16
"""A smaller matrix stays in the cache, whatever its layout."""

MOST_ROWS = 128
"""Rows up to which panels for register tiles are worth their memory (decision 40)."""


@dataclass(frozen=True, slots=True)
class Panelled:
    """`kernel` reads `param` as panels; `pack` makes them (o0) of the matrix (p0)."""

    param: str
    kernel: Kernel
    pack: Kernel


def panelled(kernel: Kernel, constant: frozenset[str], target: Target) -> Panelled | None:
    """The kernel with one of its constant params in panels, if it reads those faster and adds up in the same order."""
    if kernel.dims or kernel.block is not None or len(kernel.nests) != 1 or any(
            isinstance(s, Nest) for s in kernel.nests[0].body):
        return None
    for param in kernel.params:
        if param.name in constant and _is_matrix(param) and in_order(kernel, target):
            for width in dict.fromkeys((PANEL, tile_columns(target))):
                made = _read_in_panels(kernel, param, width, target)
                if made is not None:
                    return made
    return None


def tile_columns(target: Target) -> int:
    """The columns of the usual register tile of float32."""
    return target.registers // 8 * min(16, target.lanes(32))


def _read_in_panels(kernel: Kernel, param: Param, width: int, target: Target) -> Panelled | None:
    """The kernel with a param in panels of so many columns; None where it gains nothing by them."""
    nest, found = kernel.nests[0], _columns(kernel.nests[0], param)
    if found is None:
        return None
    by_row, rows, columns = found
    if columns % width != 0:
        return None
    params = tuple(replace(p, shape=(columns // width, rows, width)) if p is param else p for p in kernel.params)
    made = replace(kernel, params=params, nests=(_in_panels(nest, param, by_row, width),))
    plan = stages_of(made, target).stages[0].plan
    outputs = prod([v.hi + 1 for v in nest.domain if isinstance(v.hi, int)])
    if plan.pattern == "stream":
        gains = width == PANEL and (outputs != columns or machine(target).speed.long_streams)
    else:
        gains = width == tile_columns(target) and rows <= MAX_K and outputs <= MOST_ROWS * columns and (
            isinstance(plan, Plan) and not plan.stages) and _copies(stages_of(kernel, target).stages[0].plan, param)
    return Panelled(param.name, made, pack_kernel(param, by_row, width)) if gains and in_order(made, target) else None


def _copies(plan: AnyPlan, param: Param) -> bool:
    """True where a plan copies what it reads of a param."""
    return isinstance(plan, Plan) and any([s.operand == param.name for s in plan.stages])


def in_order(kernel: Kernel, target: Target) -> bool:
    """True where each sum runs from its first term to its last in one accumulator."""
    stages = stages_of(kernel, target).stages
    plan = stages[0].plan
    return len(stages) == 1 and isinstance(plan, Plan) and plan.pattern in ("contraction", "panels", "stream") and (
        _adds_in_order(stages[0].nests[0], plan))


def pack_kernel(param: Param, by_row: bool, width: int) -> Kernel:
    """o0[q, k, l] = p0[k, width * q + l], or where `p0` does not lie by rows of k p0[width * q + l, k]."""
    shape = param.shape if by_row else param.shape[::-1]
    rows, columns = shape
    if not isinstance(rows, int) or not isinstance(columns, int):
        raise InternalError(f"[pack] expected a matrix of known sizes, got {rows} x {columns}")
    q, k, lane = Var("i0", 0, columns // width - 1), Var("i1", 0, rows - 1), Var("i2", 0, width - 1)
    at = (k + 0, width * q + lane)
    out = Param("o0", param.dtype, (columns // width, rows, width), "out")
    nest = Nest((q, k, lane), (Store("o0", (q + 0, k + 0, lane + 0), load("p0", at if by_row else at[::-1],
                                                                          param.dtype)),))
    return Kernel("pack", (out, Param("p0", param.dtype, param.shape)), (), (), (nest,))


def _is_matrix(param: Param) -> bool:
    if param.mode != "in" or not param.dtype.is_float or len(param.shape) != 2 or param.layout is not None:
        return False
    rows, columns = param.shape
    return isinstance(rows, int) and isinstance(columns, int) and rows * columns >= MIN_ELEMENTS


def _columns(nest: Nest, param: Param) -> tuple[bool, int, int] | None:
    """(whether a param lies by rows of the sum, steps of the sum, columns); None if some load of it is not w[reduction
    variable, place of the domain], or all of them the other way round."""
    found: set[bool] = set()
    for s in nest.body:
        for v in () if isinstance(s, Nest) else walk(s.value):
            if v.op != "load" or v.buffer != param.name:
                continue
            along = [d for d, e in enumerate(v.indices)
                     if isinstance(e, Var) and e not in nest.domain and e.hi + 1 == param.shape[d]]
            if len(along) != 1 or not variables(v.indices[1 - along[0]]) <= set(nest.domain):
                return None
            found.add(along[0] == 0)
    if len(found) != 1:
        return None
    by_row = found.pop()
    rows, columns = param.shape if by_row else param.shape[::-1]
    return (by_row, rows, columns) if isinstance(rows, int) and isinstance(columns, int) else None


def _in_panels(nest: Nest, param: Param, by_row: bool, width: int) -> Nest:
    """The nest with every load of the param from panels."""
    body: list[Define | Store | Nest] = []
    for s in nest.body:
        if isinstance(s, Nest):
            raise InternalError("[pack] expected a nest without inner ones")
        done: dict[Value, Value] = {}
        for v in walk(s.value):
            if v.op == "load" and v.buffer == param.name:
                row, column = v.indices if by_row else v.indices[::-1]
                done[v] = load(param.name, (column // width, row, column % width), v.dtype)
            else:
                done[v] = rebuild(v, tuple([done[a] for a in v.args]), v.attr)
        body.append(replace(s, value=done[s.value]))
    return Nest(nest.domain, tuple(body))


def _adds_in_order(nest: Nest, plan: Plan) -> bool:
    """True where each sum of a nest runs from its first term to its last in one accumulator, lanes along the domain."""
    loops = resolve(nest, plan)
    lanes = [x for x in loops.order if loops.kind[x] == "vector"]
    return not loops.parts and bool(lanes) and not any(loops.space[x] for x in lanes) and len(set(
        loops.space.values())) <= 2
