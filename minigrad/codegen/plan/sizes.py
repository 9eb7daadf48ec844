"""Which extents of a nest are arguments of its program: what `sizes` says of a plan, and the planes of a window."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from minigrad.codegen.kernel import Nest
from minigrad.codegen.lowering.arguments import Extents, accesses, plain_variables, variables_of
from minigrad.codegen.plan.spaces import spaces
from minigrad.codegen.plan.steps import Fuse, Plan, Sizes, Split
from minigrad.codegen.plan.text import loop_of, refuse, terms_of
from minigrad.codegen.strategies.recognise_phases import recognise_any
from minigrad.expr import Expr, bounds
from minigrad.target import Target


def shares_sizes(target: Target) -> bool:
    """Whether programs take their sizes as arguments. Other compilers than ours plan by constant sizes themselves."""
    return target.language == "llvm" and not target.has_groups


def with_sizes(nest: Nest, plan: Plan) -> Plan:
    """The plan with all extents as arguments that its loops need not know, where nothing is proved from them: where
    indices are sums of multiples of the nest's variables, from one place in each buffer on. Not where blocks may end
    early: their sizes were chosen for these extents, and would be others for others."""
    if plan.results is not None or any([isinstance(s, Split) and s.edge == "short" for s in plan.steps]):
        return plan
    plain, constant = plain_variables((nest,)), written_out(plan)
    sizes = tuple([v.name for space in spaces(nest) for v in space.own if v.name not in constant])
    if not sizes or len(plain) < len(variables_of((nest,))) or not _begins_once(nest):
        return plan
    return replace(plan, steps=(Sizes(sizes), *plan.steps))


def _begins_once(nest: Nest) -> bool:
    """Whether all accesses of a buffer begin at one element, which `from_first` can make the first."""
    begins: dict[str, int] = {}
    return all([begins.setdefault(name, first) == first == bounds(e)[0] for name, e in accesses((nest,))
                for first in [e.const if isinstance(e, Expr) else e]])


def plan_extents(nest: Nest, plan: Plan) -> Extents:
    """What `sizes` says, each extent with the size of a block that its last one can reach back over. Raises PlanError
    for variables whose extents must be known."""
    if not plan.sizes:
        return {}
    plain, constant = plain_variables((nest,)), written_out(plan)
    least = {s.loop: s.size for s in plan.steps if isinstance(s, Split) and s.edge == "back"}
    loops = {x: loop for s in spaces(nest) for x, loop in ({v.name: v.name for v in s.own} | s.along).items()}
    free = [x for x, loop in loops.items() if loop in plan.sizes]
    for x in free:
        if x not in plain:
            raise refuse(Sizes(plan.sizes), "variables that indices are sums of multiples of, and no more", x)
        if x in constant:
            raise refuse(Sizes(plan.sizes), "variables whose loops are not written out", x)
    return dict.fromkeys(plain, 0) | {x: least.get(x, 1) for x in free}


def plane_extents(nests: Sequence[Nest]) -> Extents:
    """How many planes a window has, and how far sums around one step: what is staged of it does not depend on that."""
    window = recognise_any(nests)
    if isinstance(window, str):
        return {}
    plain = plain_variables(tuple(nests))
    return {v.name: block for block, vs in enumerate((window.extra, window.planes)) for v in vs if v.name in plain}


def written_out(plan: Plan) -> frozenset[str]:
    """Variables that say how often a loop runs that is written out, or how long memory for copies is."""
    splits = [s for s in plan.steps if isinstance(s, Split)]
    above = {s.inner if s.into else s.outer: s.loop for s in splits}
    sized = {s.outer if s.into else s.inner for s in splits}
    whole = {x: s.loop for s in splits for x in (s.outer, s.inner)}
    found = set[str]()
    for x in [x for s in plan.steps if isinstance(s, Fuse) for x in (s.outer, s.inner)]:
        while x in whole:
            x = whole.pop(x)
        found.add(x)
    for x in (*plan.bound("unroll"), *(loop_of(x) for s in plan.stages for c in s.layout for _, x in terms_of(c))):
        while x in above:
            x = above[x]
        if x not in sized:
            found.add(x)
    return frozenset(found)
