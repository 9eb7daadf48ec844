"""Which extents of a nest are arguments of its program: what `sizes` says of a plan, and the planes of a window.

    sizes i1 r0 un                                   e0, e1, q0 = 700, 150, 2
    split i1 -> un nn by 128, short                  for un in 0..(e0+64*q0-1)//(64*q0):
    split nn -> j jj by 64, back              ->       for j in 0..(min(64*q0, e0-64*q0*un)+63)//64: for jj in 0..64:
    split r0 -> k t by 2, exact                          for k in 0..e1: for t in 0..2:
"""
from __future__ import annotations

from dataclasses import replace
from itertools import count
from math import lcm

from minigrad.codegen.kernel.nodes import Kernel, Nest
from minigrad.codegen.kernel.walk import accesses_of
from minigrad.codegen.lowering.arguments import (
    MOST,
    Extents,
    Multiples,
    plain_variables,
    variables_of,
    with_arguments,
)
from minigrad.codegen.plan.coordinates import length, loop_of, terms_of
from minigrad.codegen.plan.loops import Step, refuse
from minigrad.codegen.plan.spaces import spaces
from minigrad.codegen.plan.steps import Fuse, Plan, Sizes, Split, Stage, resolve
from minigrad.expr import Expr, Var, bounds, exact_quotient, product
from minigrad.target import Target

SHORT, ROWS = 64, ("rows", "reduction")
"""Elements of a row up to which its length is a constant, and the patterns of plans for rows. A program for all lengths
takes up to 1.3 times as long for 20 to 64 elements, and no longer for more (docs/measurements/2026-11-plans.md)."""

LEAST_ROOM = 1 << 17
"""Elements of a copy that all programs have memory for whose sizes are arguments."""


def shares_sizes(target: Target) -> bool:
    """True where programs take their sizes as arguments: for processors, whose drivers compile them here."""
    return target.language in ("llvm", "opencl") and not target.is_gpu


def shares_copies(target: Target) -> bool:
    """True where programs with copies do, too, as memory that is not touched costs nothing: OpenCL's local memory is
    taken in full."""
    return target.language == "llvm" and not target.is_gpu


def without_sizes(plan: Plan) -> Plan:
    """The plan without the step that says which sizes are arguments."""
    return replace(plan, steps=tuple([s for s in plan.steps if not isinstance(s, Sizes)]))


def with_sizes(nest: Nest, plan: Plan) -> Plan:
    """The plan with all extents as arguments that its loops need not know, where nothing is proved from them: where
    indices are sums of multiples of the nest's variables, from one place in each buffer on. Not where blocks may end
    early that the plan does not name: their sizes were chosen for these extents, and would be others for others."""
    blocks = plan.sizes
    if not {v.name for space in spaces(nest) for v in space.own}.isdisjoint(blocks):
        return plan  # the policy has chosen
    plan = without_sizes(plan)
    if plan.results is not None or not {s.inner for s in _short(plan)} <= set(blocks):
        return plan
    plain, constant = plain_variables((nest,)), written_out(plan) | _short_rows(nest, plan)
    sizes = tuple([v.name for space in spaces(nest) for v in space.own if v.name not in constant])
    if not sizes or len(plain) < len(variables_of((nest,))) or not _begins_once(nest):
        return plan
    return replace(plan, steps=(Sizes((*sizes, *blocks)), *plan.steps))


def _short(plan: Plan) -> list[Split]:
    """The splits of a plan whose last blocks may end early."""
    return [s for s in plan.steps if isinstance(s, Split) and s.edge == "short"]


def _short_rows(nest: Nest, plan: Plan) -> set[str]:
    """The variables of sums and inner nests of rows that go across lanes and have few elements."""
    if plan.pattern not in ROWS:
        return set()
    root = resolve(nest, plan).root
    inner = {v.name for space in spaces(nest)[1:] for v in space.own if isinstance(v.hi, int) and v.hi < SHORT}
    return inner & {root[x].name for x in plan.bound("vector")}


def _begins_once(nest: Nest) -> bool:
    """True where all accesses of a buffer begin at one element, which `from_first` can make the first."""
    begins: dict[str, int] = {}
    return all([begins.setdefault(name, first) == first == bounds(e)[0] for name, (e,) in accesses_of((nest,))
                for first in [e.const if isinstance(e, Expr) else e]])


def with_sizes_as_dims(kernel: Kernel, plan: Plan) -> tuple[Kernel, Plan, tuple[int, ...]]:
    """The kernel of one nest with what `sizes` names, and numbers that differ from step to step, as further dims; its
    plan, for all values of these; and their values here. Raises PlanError."""
    nest, = kernel.nests
    extents, multiples = _plan_extents(nest, plan)
    general, values = with_arguments(kernel, kernel.nests, extents, plan.pattern == "pointwise", multiples)
    general, plan, blocks = _with_blocks(general, nest, plan)
    return general, plan, values + blocks


def _plan_extents(nest: Nest, plan: Plan) -> tuple[Extents, Multiples]:
    """The extents that are arguments, each with the size of a block that its last one can reach back over, and what
    they are multiples of. Raises PlanError for variables whose extents must be known."""
    if not plan.sizes:
        return {}, {}
    plain, constant = plain_variables((nest,)), written_out(plan)
    splits = [s for s in plan.steps if isinstance(s, Split)]
    above = {s.inner: s.loop for s in splits if s.edge == "short"}  # other blocks are as long as the splits say
    least, multiples = dict[str, int](), dict[str, int]()
    for s in reversed(splits):
        x, outer = s.loop, multiples.get(s.outer, 1) if s.edge == "exact" else 1
        while True:
            if s.edge == "back":
                least[x] = max(least.get(x, 1), s.size)
            if s.edge == "exact":
                multiples[x] = lcm(multiples.get(x, 1), s.size * outer)
            if x not in above:
                break
            x = above[x]
    least |= {s.transposed: s.transposed_by for s in plan.stages if s.transposed}
    loops = {x: loop for s in spaces(nest) for x, loop in ({v.name: v.name for v in s.own} | s.along).items()}
    free = [x for x, loop in loops.items() if loop in plan.sizes]
    for x in (*free, *plan.sizes):
        if x in loops and x not in plain:
            raise refuse(Sizes(plan.sizes), "variables that indices are sums of multiples of, and no more", x)
        if x in constant:
            raise refuse(Sizes(plan.sizes), "variables whose loops are not written out", x)
    extents = {v.name: v.hi + 1 for v in variables_of((nest,))}
    whole = {x: multiples[loops[x]] for x in free if loops[x] in multiples}
    boxed = in_boxes(plan)  # places there go by the steps that accesses have
    return (dict.fromkeys([x for x in plain if x not in boxed], 0) | {x: least.get(loops[x], 1) for x in free},
            {x: n for x, n in whole.items() if exact_quotient(extents[x], n) is not None})


def _with_blocks(kernel: Kernel, nest: Nest, plan: Plan) -> tuple[Kernel, Plan, tuple[int, ...]]:
    """The kernel with a dim for each block whose size `sizes` makes an argument, the plan with these as sizes and with
    the room of its copies, and the values of the dims. A block of several whole ones of the splits inside it has the
    number of these as its argument. `nest`: with extents as they are."""
    if not plan.sizes or not plan.stages and not _short(plan):
        return kernel, plan, ()
    loops = resolve(nest, plan)
    used = {*loops.root, *(d.name for d in kernel.dims)}
    names = (name for name in map("q{}".format, count()) if name not in used)
    steps, dims, values = list[Step](), list[Var](), list[int]()
    for s in plan.steps:
        if isinstance(s, Split) and s.edge == "short" and s.inner in plan.sizes:
            inner = loops.split.get(s.inner)
            whole = inner.size if inner is not None and not inner.into and s.size % inner.size == 0 else 1
            dims.append(Var(next(names), 1, MOST // whole))
            values.append(s.size // whole)
            s = replace(s, size=whole, times=dims[-1])
        elif isinstance(s, Stage) and not s.items and not s.border:
            elements = product([length(loops, c) for c in s.layout])
            s = replace(s, room=_rounded(elements)) if isinstance(elements, int) else s
        steps.append(s)
    return replace(kernel, dims=(*kernel.dims, *dims)), replace(plan, steps=tuple(steps)), tuple(values)


def _rounded(size: int) -> int:
    """The next of four sizes between powers of two, so that programs of similar sizes are one. What is not touched of
    memory costs nothing."""
    size = max(size, LEAST_ROOM)
    step = (1 << (size - 1).bit_length()) // 8
    return -(-size // step) * step


def in_boxes(plan: Plan) -> frozenset[str]:
    """Variables in coordinates of copies that are sums of several."""
    return frozenset([_made_of(loop_of(x), _splits(plan)) for s in plan.stages if s.border for c in s.layout
                      for _, x in terms_of(c)])


def _splits(plan: Plan) -> dict[str, str]:
    """By loop, the one that it is a part of."""
    return {x: s.loop for s in plan.steps if isinstance(s, Split) for x in (s.outer, s.inner)}


def _made_of(loop: str, whole: dict[str, str]) -> str:
    """The loop that one was made of at first, by the loops that splits took apart, in order."""
    for part, of in reversed(whole.items()):
        loop = of if part == loop else loop
    return loop


def written_out(plan: Plan) -> frozenset[str]:
    """Variables and blocks that say how often a loop runs that is written out, or how memory for copies is laid out
    where a coordinate of it is more than a loop."""
    splits = [s for s in plan.steps if isinstance(s, Split)]
    above = {s.inner if s.into else s.outer: s.loop for s in splits}
    sized = {s.outer if s.into else s.inner for s in splits} - {s.inner for s in _short(plan)}
    fused = [_made_of(x, _splits(plan)) for s in plan.steps if isinstance(s, Fuse) for x in (s.outer, s.inner)]
    boxes = [c for s in plan.stages for c in s.layout if s.items or terms_of(c) != ((1, loop_of(c)),)]
    fixed = (*plan.bound("unroll"), *(loop_of(x) for c in boxes for _, x in terms_of(c)))
    return frozenset(fused) | {_made_of(x, above) for x in fixed}.difference(sized)
