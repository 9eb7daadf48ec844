"""Products in panels: how they are planned."""
from support.golden_plans import TARGETS
from support.packed import flat_kernel, tensor

from minigrad.codegen.kernel.nodes import Kernel
from minigrad.codegen.plan.steps import Plan
from minigrad.codegen.plan.text import parse_plan
from minigrad.codegen.policy.panels import plan
from minigrad.target import Target

AVX512, AVX2 = TARGETS["avx512"], TARGETS["avx2"]


def planned(kernel: Kernel, target: Target) -> Plan:
    made = plan(kernel.nests[0], target)
    assert isinstance(made, Plan), made
    assert parse_plan(str(made)) == made
    return made


def product(m: int, n: int, k: int, target: Target = AVX512) -> Kernel:
    return flat_kernel(tensor(m, k) @ tensor(k, n), target)
