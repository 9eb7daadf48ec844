"""Facts that tests read out of a plan of steps, and the check that its loops are the kernel's."""
# Tests know their dims are ints.
# mypy: disable-error-code="arg-type"
import numpy as np

from minigrad.codegen.ir.interpret import interpret_function
from minigrad.codegen.ir.nodes import Function
from minigrad.codegen.ir.text import parse_function, print_function
from minigrad.codegen.ir.verify import verify_function
from minigrad.codegen.kernel.interpret import interpret_kernel
from minigrad.codegen.kernel.nodes import Kernel
from minigrad.codegen.plan.build import build
from minigrad.codegen.plan.sizes import with_sizes_as_dims
from minigrad.codegen.plan.steps import Plan, Split
from minigrad.codegen.plan.text import parse_plan


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
    general, shared, values = with_sizes_as_dims(kernel, plan)
    added = [d.name for d in general.dims[len(kernel.dims):]]
    return build(general, general.nests[0], shared, name), dict(zip(added, values, strict=True))


def equals(kernel: Kernel, text: str) -> None:
    """The loops give the kernel's values, of small integers: exact in any order of summing."""
    plan = parse_plan(text)
    assert parse_plan(str(plan)) == plan
    function = build(kernel, kernel.nests[0], plan, "f")
    verify_function(function)
    assert parse_function(print_function(function)) == function
    rng = np.random.default_rng(0)
    arrays = {p.name: rng.integers(-8, 9, p.shape).astype(p.dtype.np) for p in kernel.params}
    expected = {name: a.copy() for name, a in arrays.items()}
    interpret_kernel(kernel, expected)
    interpret_function(function, arrays, {})
    np.testing.assert_array_equal(arrays["o0"], expected["o0"])
