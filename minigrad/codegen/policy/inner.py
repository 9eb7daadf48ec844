"""The plans of a block: of each nest that of the general policies, for one worker.

Where a sum reads once what the nest before has stored, that is computed in the sum's loop, instead of being stored in
one loop and read in another.
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from minigrad.codegen.kernel.access import reductions
from minigrad.codegen.kernel.nodes import Block, Nest, Steps
from minigrad.codegen.plan.block import COMPUTED
from minigrad.codegen.plan.compute import with_compute
from minigrad.codegen.plan.several import BlockPlan
from minigrad.codegen.plan.steps import Bind, Plan
from minigrad.codegen.policy import contraction, general, rows
from minigrad.target import Target


def plan_block(block: Block, target: Target) -> BlockPlan:
    """The plans of all nests of a block."""
    return BlockPlan(tuple(_plans(block.body, target)))


def _plans(body: Sequence[Nest | Steps], target: Target) -> list[Plan]:
    made = [_plans(s.body, target) if isinstance(s, Steps) else [plan(s, target)] for s in body]
    for k, (before, nest) in enumerate(pairwise(body)):
        if isinstance(before, Nest) and isinstance(nest, Nest) and made[k] != [COMPUTED]:
            found = with_compute(before, nest, made[k + 1][0])
            if found is not None:
                made[k:k + 2] = ([COMPUTED], [found])
    return [p for each in made for p in each]


def plan(nest: Nest, target: Target) -> Plan:
    """The plan of one. A nest that runs often is no small one, whatever its work."""
    one = replace(target, units=1)
    found = None if rows.is_row_kernel(nest) or not reductions(nest) else contraction.reuse(nest, one)
    if found is not None:
        found = replace(found, small=False, near=True)
        made = contraction.with_tile(found, contraction.best_tiles(found, one)[0][1], False, one)
    else:
        made = general.plan(nest, one)
    return replace(made, steps=tuple([s for s in made.steps if not isinstance(s, Bind) or s.kind != "parallel"]))
