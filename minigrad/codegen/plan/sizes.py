"""What a plan needs to know of extents that become arguments of a shared program."""
from __future__ import annotations

from minigrad.codegen.plan.steps import Bind, Plan, Split


def least_extents(plan: Plan) -> dict[str, int]:
    """By variable, the extent from which on it has a whole block that the last one can reach back over."""
    return {s.loop: s.size for s in plan.steps if isinstance(s, Split) and s.edge == "back"}


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
