"""Which extents of a nest a plan does not need to know: they become arguments of a program that many sizes share."""
from __future__ import annotations

from minigrad.codegen.kernel import Nest
from minigrad.codegen.lowering.arguments import Extents, accesses, plain_variables, variables_of
from minigrad.codegen.plan.steps import Bind, Plan, Split
from minigrad.codegen.strategies.recognise_phases import recognise_any
from minigrad.expr import Expr


def free_extents(nest: Nest, plan: Plan) -> Extents:
    """All that loops do not write out, where nothing is proved from extents: where indices are sums of multiples of the
    nest's variables. Each has the size of a block that the last one can reach back over."""
    plain = plain_variables((nest,))
    if len(plain) < len(variables_of((nest,))) or any(e.const if isinstance(e, Expr) else e
                                                      for _, e in accesses((nest,))):
        return {}
    least = {s.loop: s.size for s in plan.steps if isinstance(s, Split) and s.edge == "back"}
    constant = written_out(plan)
    return {x: 0 if x in constant else least.get(x, 1) for x in plain}


def plane_extents(nests: tuple[Nest, ...]) -> Extents:
    """How many planes a window has, and sums around a plane: what is staged of one does not depend on that."""
    window = recognise_any(nests)
    if isinstance(window, str):
        return {}
    plain = plain_variables(nests)
    return {v.name: block for block, vs in enumerate((window.extra, window.planes)) for v in vs if v.name in plain}


def written_out(plan: Plan) -> frozenset[str]:
    """Variables whose extents stay constants: those that say how often a loop runs that is written out."""
    splits = [s for s in plan.steps if isinstance(s, Split)]
    above = {s.inner if s.into else s.outer: s.loop for s in splits}
    sized = {s.outer if s.into else s.inner for s in splits}
    found = set()
    for x in [x for s in plan.steps if isinstance(s, Bind) and s.kind == "unroll" for x in s.loops]:
        while x in above:
            x = above[x]
        if x not in sized:
            found.add(x)
    return frozenset(found)
