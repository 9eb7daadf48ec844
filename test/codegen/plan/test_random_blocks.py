"""Blocks by random plans of their nests: each that is accepted gives what the block says, each other is a PlanError."""
# mypy: disable-error-code="arg-type"
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from support.golden_plans import TARGETS
from support.random_plans import Random, random_plan
from support.scheduler import ready
from support.stages import kernels

from minigrad import Tensor, scan
from minigrad.codegen.ir.interpret import interpret_function
from minigrad.codegen.ir.verify import verify_function
from minigrad.codegen.kernel.interpret import interpret_kernel
from minigrad.codegen.kernel.nodes import Kernel
from minigrad.codegen.passes import stages_of
from minigrad.codegen.plan.block import build_block
from minigrad.codegen.plan.build import build
from minigrad.codegen.plan.several import BlockPlan
from minigrad.codegen.plan.steps import Bind, Plan
from minigrad.codegen.policy.blocks import block_form
from minigrad.codegen.policy.scan import as_block, choose
from minigrad.errors import PlanError, present
from minigrad.nn import functional as F

TARGET = TARGETS["avx2"]


def attention(rng: Random, rows: tuple[int, int]) -> Tensor:
    n, m, d, e = (int(rng.integers(*x)) for x in (rows, (3, 40), (3, 12), (3, 12)))
    return ready(1, 2, n, d).scaled_dot_product_attention(ready(1, 2, m, d), ready(1, 2, m, e),
                                                          is_causal=bool(rng.random() < 0.4))


def phases(rng: Random) -> Tensor:
    c, h, k, stride = (int(rng.integers(*x)) for x in ((1, 4), (6, 14), (2, 5), (2, 4)))
    x = ready(1, c, h, h, requires_grad=True)
    y = F.conv2d(x, ready(c, 1, k, k), stride=stride, groups=c, padding=int(rng.integers(0, 2)))
    return (y * ready(*y.shape)).sum().gradient(x)[0]


def state(rng: Random) -> Tensor:
    k, v, length = (int(rng.integers(2, n)) for n in (6, 9, 7))

    def step(s: Tensor, x: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        s = s * 0.5 + x[0].reshape(k, 1) * x[1].reshape(1, v)
        return s, (s * x[0].reshape(k, 1)).sum(0)

    return scan(step, ready(k, v), (ready(length, k), ready(length, v)))[1]


MADE = {"attention": lambda rng: attention(rng, (17, 40)), "few rows": lambda rng: attention(rng, (1, 4)),
        "phases": phases, "loops with a state": state}


def blocks(y: Tensor) -> Iterator[tuple[Kernel, BlockPlan]]:
    """Of the kernels of a tensor those that are blocks, with the plans that they get."""
    for kernel in kernels(y, target=TARGET):
        staged = stages_of(kernel, TARGET)
        for stage in staged.stages:
            if not isinstance(stage.plan, BlockPlan):
                continue
            if kernel.block is not None:
                yield as_block(kernel, present(choose(kernel, TARGET), "expected places"), TARGET)[0], stage.plan
            else:
                yield block_form(staged.kernel.with_nests(stage.nests), TARGET), stage.plan


def accepted_plan(rng: Random, alone: Kernel, instead: Plan) -> Plan:
    """A random plan of a nest without workers that is accepted; that `instead` where there is none in 30."""
    for _ in range(30):
        plan = random_plan(rng, alone)
        plan = replace(plan, steps=tuple([s for s in plan.steps if not isinstance(s, Bind) or s.kind != "parallel"]))
        try:
            build(alone, alone.nests[0], plan, "k")
        except PlanError:
            continue
        return plan
    return instead


@pytest.mark.parametrize("kind", MADE)
def test_random_plans_compute_what_the_block_says(kind: str) -> None:
    rng = np.random.default_rng(5)
    accepted = 0
    for _ in range(40):
        for block, chosen in blocks(MADE[kind](rng)):
            scalars = {s.name: 0.5 for s in block.scalars}
            arrays = {p.name: rng.standard_normal(p.shape).astype(p.dtype.np) for p in block.params}
            want = {name: a.copy() for name, a in arrays.items()}
            interpret_kernel(block, want, scalars)
            plan = BlockPlan(tuple([accepted_plan(rng, alone, instead)
                                    for alone, instead in zip(block.alone(), chosen.plans, strict=True)]))
            try:
                function = build_block(block, plan, "k")
            except PlanError:
                continue
            verify_function(function)
            interpret_function(function, arrays, scalars)
            for name, a in want.items():
                np.testing.assert_allclose(arrays[name], a, rtol=2e-4, atol=2e-4, err_msg=f"{name} under\n{plan}")
            accepted += 1
        if accepted >= 6:
            break
    assert accepted >= 6
