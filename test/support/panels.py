"""Products in panels: how they are planned."""
from dataclasses import replace

from support.golden_plans import TARGETS
from support.packed import flat_kernel, tensor

from minigrad.codegen.kernel.nodes import Kernel, Nest
from minigrad.codegen.plan.steps import Plan
from minigrad.codegen.plan.text import parse_plan
from minigrad.codegen.policy.panels import ways
from minigrad.codegen.policy.product import cheapest
from minigrad.target import Target

AVX512, AVX2 = TARGETS["avx512"], TARGETS["avx2"]


def each_choice(kernel: Kernel, target: Target) -> list[tuple[Nest, Plan]]:
    """The nest and the plan of each choice of each way, whose texts parse back."""
    found = [way.made(choice, target) for way in ways(kernel.nests[0], target) for _, choice in way.choices]
    assert all(parse_plan(str(plan)) == plan and plan.pattern == "panels" for _, plan in found)
    return found


def planned(kernel: Kernel, target: Target) -> tuple[Nest, Plan]:
    """The nest and the plan of the choice that is cheapest for one worker."""
    one = replace(target, units=1)
    found = cheapest(ways(kernel.nests[0], one), one)
    assert found is not None
    return found.nest, found.plan


def product(m: int, n: int, k: int, target: Target = AVX512) -> Kernel:
    return flat_kernel(tensor(m, k) @ tensor(k, n), target)
