"""What tests read out of a plan of steps."""
from minigrad.codegen.ir.nodes import Function
from minigrad.codegen.kernel import Kernel
from minigrad.codegen.lowering.arguments import with_arguments
from minigrad.codegen.plan.build import build
from minigrad.codegen.plan.sizes import plan_extents
from minigrad.codegen.plan.steps import Plan, Split


def copies(plan: object) -> dict[str, int]:
    """Copies of a tile per variable: of the domain, and chains of sums."""
    assert isinstance(plan, Plan)
    unrolled, found = plan.bound("unroll"), dict[str, int]()
    for s in plan.steps:
        if not isinstance(s, Split) or s.loop not in (s.outer[:-1], s.inner[:-1]):
            continue
        vectors = plan.split(s.inner)
        if s.outer in unrolled or s.inner in unrolled:
            found[s.loop] = s.size
        elif vectors is not None and vectors.outer in unrolled:
            found[s.loop] = s.size // vectors.size
    return found


def lanes(plan: object) -> int:
    """Lanes of a vector; 1 where nothing is across lanes."""
    assert isinstance(plan, Plan)
    return next((s.size for s in plan.steps if isinstance(s, Split) and s.inner in plan.bound("vector")), 1)


def built(kernel: Kernel, plan: Plan, name: str = "k") -> tuple[Function, dict[str, int]]:
    """The loops of a flat kernel of one nest under a plan, and the values of what `sizes` makes arguments. Raises
    PlanError."""
    extents = plan_extents(kernel.nests[0], plan)
    general, values = with_arguments(kernel, kernel.nests, extents, False)
    added = [d.name for d in general.dims[len(kernel.dims):]]
    return build(general, general.nests[0], plan, name), dict(zip(added, values, strict=True))
