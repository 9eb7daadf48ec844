"""What a plan needs to know of extents that become arguments of a shared program."""
from __future__ import annotations

from minigrad.codegen.plan.steps import Bind, Plan, Split


def least_extents(plan: Plan) -> dict[str, int]:
    """By variable, the extent from which on it has a whole block that the last one can reach back over."""
    return {s.loop: s.size for s in plan.steps if isinstance(s, Split) and s.edge == "back"}


def written_out(plan: Plan) -> frozenset[str]:
    """Loops that are written out and that no split gave a size: variables whose extents stay constants."""
    made = {name for s in plan.steps if isinstance(s, Split) for name in (s.outer, s.inner)}
    return frozenset([x for s in plan.steps if isinstance(s, Bind) and s.kind == "unroll"
                      for x in s.loops if x not in made])
