"""Blocks by plans: the loops mean what the kernel says, whatever is inside."""
from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support.block_kernels import ATTENTION, random_block
from support.golden_plans import TARGETS
from support.scans import LOOPS, scanned, tensors, weighted

from minigrad.codegen.ir.check_accesses import check_accesses
from minigrad.codegen.ir.interpret import interpret_function
from minigrad.codegen.ir.nodes import Alloc, Barrier, Function, Store, extent_of
from minigrad.codegen.ir.verify import verify_function
from minigrad.codegen.ir.walk import statements
from minigrad.codegen.kernel.interpret import interpret_kernel
from minigrad.codegen.kernel.nodes import Kernel
from minigrad.codegen.kernel.text import parse_kernel
from minigrad.codegen.kernel.verify import verify_kernel
from minigrad.codegen.lowering.apart import apart
from minigrad.codegen.lowering.independent_axes import independent_axes
from minigrad.codegen.plan.block import build_block
from minigrad.codegen.plan.build import build
from minigrad.codegen.plan.compute import computed
from minigrad.codegen.plan.several import BlockPlan, parse_plan
from minigrad.codegen.plan.steps import Bind, Compute, Order, Plan
from minigrad.codegen.policy import inner, items, scan
from minigrad.errors import PlanError, present
from minigrad.expr import Var, product
from minigrad.scheduler.graph import build_graph
from minigrad.scheduler.schedule import schedule

KINDS = ("avx512", "avx2", "neon")


def planned(kernel: Kernel, target: str) -> BlockPlan:
    return inner.plan_block(present(kernel.block, "no block"), TARGETS[target])


def agrees(kernel: Kernel, *functions: Function) -> None:
    """Asserts that loops store what a kernel says."""
    verify_kernel(kernel)
    rng = np.random.default_rng(0)
    arrays = {p.name: rng.standard_normal(int(product(p.shape))).astype(np.float32) for p in kernel.params}
    scalars = {s.name: 0.5 for s in kernel.scalars}
    wanted = {name: a.copy() for name, a in arrays.items()}
    interpret_kernel(kernel, wanted, scalars)
    for function in functions:
        verify_function(function)
        check_accesses(function, {})
        found = {name: a.copy() for name, a in arrays.items()}
        interpret_function(function, found, scalars)
        for name, a in wanted.items():
            np.testing.assert_allclose(found[name], a, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("seed", range(30))
def test_random_blocks(seed: int) -> None:
    """By workers, and by work-items, whose races the interpreter finds."""
    kernel = random_block(seed)
    shared = apart(kernel)
    agrees(kernel, build_block(kernel, planned(kernel, KINDS[seed % 3]), "f"),
           build_block(shared, items.plan_block(present(shared.block, "no block"), 8), "f"))


@pytest.mark.parametrize("target", KINDS)
def test_attention(target: str) -> None:
    kernel = parse_kernel(ATTENTION)
    plan = planned(kernel, target)
    assert parse_plan(str(plan)) == plan
    agrees(kernel, build_block(kernel, plan, "f"))


def loops(name: str) -> list[Kernel]:
    """The kernels of a loop and of the gradients of all that it takes."""
    loop = next(x for x in LOOPS if x.name == name)
    groups = tensors(loop.arrays(2), "CPU")
    made = list(weighted(scanned(loop, *groups)).gradient(*[x for group in groups for x in group]))
    found = schedule(build_graph([x.node for x in made]), frozenset(), TARGETS["avx512"]).steps
    return [s.kernel for s in found if s.kernel.block is not None]


@pytest.mark.parametrize("name", [loop.name for loop in LOOPS])
def test_loops_with_a_carried_state(name: str) -> None:
    """Forwards and backwards, by workers and by work-groups, whatever their places are."""
    kernels = loops(name)
    assert len(kernels) > 1
    for number, kernel in enumerate(kernels):
        axes = independent_axes(kernel)
        for target in (TARGETS["avx2"], TARGETS["gpu"]):
            gpu = target.has_groups
            lanes = [1 << min(a.extent, 4).bit_length() - 1 for a in axes]
            others = [scan.Places(k, n, gpu) for k, n in enumerate(lanes) if n > 1] or [scan.Places(-1, 8, gpu)]
            places = {present(scan.choose(kernel, target), "no places"), others[number % len(others)]}
            made = [build_block(*scan.as_block(kernel, p, target), "f") for p in places]
            agrees(kernel, *[f for f in made if int(extent_of(f)) <= 24])  # others take long


RULE = """\
kernel rule(p0: f32[360], p1: f32[40], p2: f32[40], out o0: f32[360], out o1: f32[40])
  block i0<2:
    local s: f32[180], u: f32[20]
    for i1<9, i2<20:
      s[20*i1+i2] = p0[180*i0+20*i1+i2]
    steps t in 0..3:
      for i2<20:
        u[i2] = p1[20*i0+i2] * 0.5
      for i1<9, i2<20:
        s[20*i1+i2] = s[20*i1+i2] * 0.5 + u[i2]
      for i2<20:
        a = sum(r0<9: s[i2+20*r0] * p2[i0+r0])
        o1[20*i0+i2] = a + u[i2]
    for i1<9, i2<20:
      o0[180*i0+20*i1+i2] = s[20*i1+i2]
"""
"""A state that is stored and summed up in each step."""

COMPUTES = """\
plan block
plan
plan
plan computed
plan
  split r0 -> k c by 4, rest
  split i2 -> j l by 4, exact
  bind vector l
  bind unroll c
  order j l k c
  parts c
  compute s at c
plan
"""


def of_block(text: str) -> BlockPlan:
    plan = parse_plan(text)
    assert isinstance(plan, BlockPlan)
    return plan


def test_a_sum_computes_what_it_reads() -> None:
    kernel, plan = parse_kernel(RULE), of_block(COMPUTES)
    assert str(plan) + "\n" == COMPUTES
    function = build_block(kernel, plan, "f")
    agrees(kernel, function)
    assert sum(isinstance(s, Store) and s.buffer == "s" for s in statements(function)) == 3  # one of them of the rest
    whole = parse_kernel(RULE.replace("20", "16").replace("180", "144").replace("360", "288").replace("40]", "32]"))
    assert [p.pattern for p in planned(whole, "avx2").plans].count("computed") == 1


@pytest.mark.parametrize("change, message", [
    (("compute s at c", "compute s at k"), "compute s at k: expected the innermost loop of the sum, c, got k"),
    (("compute s at c", "compute u at c"), "compute u at c: expected a nest before that stores to u what"),
    (("i2 -> j l by 4, exact", "i2 -> j l by 16, back"), "each element once, .*i2.*, got split i2 -> j l by 16, back"),
    (("r0 -> k c by 4, rest", "r0 -> k c by 4, guard"), "each element once, .*r0.*, got split r0 -> k c by 4, guard"),
    (("  compute s at c\n", ""), "expected a step compute in the plan after `plan computed`, .* got plan"),
    (("compute s at c\nplan\n", "compute s at c\nplan computed\n"), "after `plan computed`, .* got none"),
    (("plan\nplan computed", "plan computed\nplan computed"), "after `plan computed`, .* got plan computed"),
    (("plan computed", "plan"), "compute s at c: expected a nest before that stores to s .*, got none"),
])
def test_what_cannot_be_computed_there_is_an_error(change: tuple[str, str], message: str) -> None:
    assert change[0] in COMPUTES
    with pytest.raises(PlanError, match=message):
        build_block(parse_kernel(RULE), of_block(COMPUTES.replace(*change)), "f")


@pytest.mark.parametrize("change", [
    ("a + u[i2]", "a + s[i2]"),                              # read again, after the sum
    ("s[20*i1+i2] * 0.5 + u[i2]", "s[i2] * 0.5 + u[i2]"),    # what is stored is read elsewhere
    ("s[i2+20*r0] * p2", "s[i2+20*r0] * s[i2] * p2"),        # two reads
    ("s[i2+20*r0] * p2", "s[20*r0] * p2"),                   # the same for all
    ("o1[20*i0+i2] = a", "u[i2] = a"),                       # stored over what is still needed
    ("sum(r0<9", "sum(r0<8"),                                # not all of it
])
def test_what_is_not_read_once_is_computed_before(change: tuple[str, str]) -> None:
    assert change[0] in RULE
    nests = [k.nests[0] for text in (RULE, RULE.replace(*change)) for k in parse_kernel(text).alone()]
    assert computed(*nests[2:4]) is not None and computed(*nests[7:9]) is None


def test_a_nest_alone_computes_nothing() -> None:
    kernel = next(parse_kernel(RULE).alone())
    plan = Plan("", (Compute("s", "i1"),))
    with pytest.raises(PlanError, match="compute s at i1: expected it in a block"):
        build(kernel, kernel.nests[0], plan, "f")


def test_work_items_wait_for_each_other() -> None:
    """Before one stores what another one reads, and before one reads what another one stores; not where each has its
    own, which is in registers."""
    text = """\
kernel k(p0: f32[8], out o0: f32[32])
  block a<2:
    local s: f32[8], u: f32[8]
    for lane<8:
      s[lane] = p0[lane]
      u[lane] = p0[lane]
    steps t in 0..2:
      for lane<8:
        o0[8*a+lane+16*t] = s[-lane+7] + u[lane]
      for lane<8:
        s[lane] = u[lane] * 0.5
      for lane<8:
        u[lane] = u[lane] + 1.0
"""
    kernel = parse_kernel(text)
    function = build_block(kernel, items.plan_block(present(kernel.block, "no block"), 8), "f")
    agrees(kernel, function)
    assert sum(isinstance(s, Barrier) for s in statements(function)) == 3
    alone = parse_kernel(text.replace("s[-lane+7]", "s[lane]"))
    function = build_block(alone, items.plan_block(present(alone.block, "no block"), 8), "f")
    agrees(alone, function)
    assert not any(isinstance(s, Barrier) for s in statements(function))
    assert {(s.name, s.size, s.scope) for s in statements(function) if isinstance(s, Alloc)} == {
        ("s", 1, "register"), ("u", 1, "register")}


def test_a_plan_that_does_not_fit_is_refused() -> None:
    kernel = parse_kernel(ATTENTION)
    plans = planned(kernel, "avx2").plans
    with pytest.raises(PlanError, match="expected a plan for each of 8 nests of the block, got 7"):
        build_block(kernel, BlockPlan(plans[1:]), "f")
    with pytest.raises(PlanError, match=r"expected .* in a block for\nkernel attention"):
        build_block(kernel, BlockPlan((Plan("", (Order(("nothing",)),)), *plans[1:])), "f")
    shared = Plan("", (Bind("parallel", ("row",)), Order(("row",))))
    with pytest.raises(PlanError, match="expected loops inside a block that no workers share"):
        build_block(kernel, BlockPlan((shared, *plans[1:])), "f")
    block = kernel.block
    assert block is not None
    n = Var("n", 1, 9)
    open_ = replace(block, local=tuple([replace(p, shape=(n,)) for p in block.local]))
    with pytest.raises(PlanError, match="expected a buffer of a block whose size is a number, got n"):
        build_block(replace(kernel, dims=(n,), block=open_), BlockPlan(plans), "f")
