"""Plans of one product, and how they compare."""
from minigrad.codegen.kernel.nodes import Kernel
from minigrad.codegen.kernel.text import parse_kernel
from minigrad.codegen.lowering.collapse import collapse
from minigrad.codegen.lowering.flatten import flatten


def product(m: int, n: int, k: int, b: str = "r0, i1", value: str = "p0[i0, r0] * p1[{}]") -> Kernel:
    shape = {"r0, i1": f"{k}, {n}", "i1, r0": f"{n}, {k}"}[b]
    return collapse(flatten(parse_kernel(
        f"kernel sum_mul(out o0: f32[{m}, {n}], p0: f32[{m}, {k}], p1: f32[{shape}], p2: f32[{k}])\n"
        f"  for i0<{m}, i1<{n}:\n    t0 = sum(r0<{k}: {value.format(b)})\n    o0[i0, i1] = t0 + 1.0\n")))
