"""Nest + QuantizedPlan -> loop IR. The nest is the one in quantized.py."""
from __future__ import annotations

from minigrad.codegen.ir.nodes import Alloc, Call, Function, Let, Loop, Stmt
from minigrad.codegen.ir.nodes import Store as IRStore
from minigrad.codegen.kernel import Define, Kernel, Nest, Store
from minigrad.codegen.lowering.collapse import coefficient
from minigrad.codegen.microkernels.block_product import BLOCK, PANEL, VNNI, panels_at_once
from minigrad.codegen.microkernels.registry import find
from minigrad.codegen.strategies.access import extent
from minigrad.codegen.strategies.launch import function_of
from minigrad.codegen.strategies.plan import QuantizedPlan
from minigrad.codegen.strategies.quantized import Blocks, Quantized, recognise_quantized
from minigrad.codegen.value_walk import Rewriter
from minigrad.dtype import float32
from minigrad.errors import InternalError, present
from minigrad.expr import Index, Var, subs
from minigrad.value import Value, load, local, substitute


def build_quantized(kernel: Kernel, nest: Nest, plan: QuantizedPlan, name: str) -> Function:
    """The loop nest of products with quantised blocks."""
    found = recognise_quantized(nest)
    if found is None or [s.product.name for s in found.sums] != [k.removesuffix(VNNI) for k in plan.kernels]:
        raise InternalError(f"[build] expected products with quantised blocks for {plan}, got another nest")
    p = Var("p", 0, plan.units - 1)
    together = panels_at_once(plan.kernels[0])
    groups, left = divmod(extent(found.panel), together)
    first = p * groups // plan.units * together
    here = (p + 1) * groups // plan.units * together - first + (p + 1) // plan.units * left
    most = -(-groups // plan.units) * together + left
    body: list[Stmt] = []
    rows: dict[Value, tuple[str, Index]] = {}
    for k, s in enumerate(found.sums):
        if s.x not in rows:
            rows[s.x], statements = row(s, f"x_{k}")
            body += statements
        body += [Alloc(f"c_{k}", float32, PANEL * most, "scratch"),
                 call(plan.kernels[k], s, rows[s.x], f"c_{k}", first, here)]
    body.append(epilogue(nest, found, first, here, most))
    return function_of(kernel, name, Loop(p, 0, plan.units, "parallel", tuple(body)))


def row(s: Blocks, name: str) -> tuple[tuple[str, Index], list[Stmt]]:
    """Where x is, and what puts it there: nothing where it lies in memory as it is."""
    if s.x.op == "load" and s.x.dtype is float32:
        buffer, (offset,) = s.x.attr
        if coefficient(offset, s.k) == 1:
            return (buffer, subs(offset, {s.k: 0})), []
    vectors = extent(s.k) // PANEL
    j, lane = Var(f"j_{name}", 0, vectors - 1), Var(f"l_{name}", 0, PANEL - 1)
    store = IRStore(name, j * PANEL + lane, substitute(s.x, {s.k: j * PANEL + lane}))
    loop = Loop(j, 0, vectors, "serial", (Loop(lane, 0, PANEL, "vector", (store,)),))
    return (name, 0), [Alloc(name, float32, extent(s.k), "scratch"), loop]


def call(name: str, s: Blocks, x: tuple[str, Index], out: str, first: Index, count: Index) -> Call:
    """The sums of `count` panels from the panel `first` on."""
    kernel = present(find(name), f"[build] expected the microkernel {name}")
    buffers = (x, *((part.buffer, first * part.pitch + part.offset) for part in s.parts), (out, 0))
    return Call(kernel, buffers, (), (extent(s.k) // BLOCK, count, *(part.pitch for part in s.parts)))


def epilogue(nest: Nest, found: Quantized, first: Index, count: Index, most: int) -> Stmt:
    """The rest of the nest for the panels of a unit."""
    q, lane = Var("q", 0, most - 1), Var("l", 0, PANEL - 1)
    totals = {s.name: load(f"c_{k}", (q * PANEL + lane,), float32) for k, s in enumerate(found.sums)}
    at: dict[Var, Index] = {v: 0 for v in nest.domain}
    rewriter = Rewriter({**at, found.panel: first + q, found.lane: lane}, locals_=totals)
    body: list[Stmt] = []
    for s in nest.body:
        if isinstance(s, Store):
            body.append(IRStore(s.param, rewriter.index(s.indices[0]), rewriter.value(s.value)))
        elif isinstance(s, Define) and s.name not in totals:
            value = rewriter.value(s.value)
            body.append(Let(f"{s.name}_here", value))
            rewriter.locals[s.name] = local(f"{s.name}_here", value.dtype)
    return Loop(q, 0, count, "serial", (Loop(lane, 0, PANEL, "vector", tuple(body)),))
