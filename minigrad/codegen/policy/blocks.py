"""The block that nests become whose plan is that of a block."""
from __future__ import annotations

from dataclasses import replace

from minigrad.codegen.kernel.nodes import Block, Kernel, Nest
from minigrad.codegen.plan.several import BlockPlan
from minigrad.codegen.policy import (
    attention,
    attention_decode,
    attention_gradient,
    attention_groups,
    inner,
    items,
    phases,
)
from minigrad.errors import PlanError
from minigrad.target import Target


def block_form(kernel: Kernel, target: Target) -> Kernel:
    """The kernel as a block: phases of a strided gradient read what they share once, attention and its gradients meet
    keys part by part."""
    if len(kernel.nests) > 1:
        block = phases.block_of(kernel.nests, target)
    else:
        nest, = kernel.nests
        block = attention_of(nest, target)
    if block is None:
        raise PlanError(f"[plan] expected a plan of one nest for what is no block on {target.name}, got 'plan block'")
    return replace(kernel, nests=(), block=block)


def attention_of(nest: Nest, target: Target) -> Block | None:
    """Attention or its gradients as a block; None for another nest, or a target without room for one."""
    return (attention_groups.block_of(nest, target) or attention_decode.block_of(nest, target)
            or attention.block_of(nest, target) or attention_gradient.block_of(nest, target))


def plan_attention(nest: Nest, target: Target) -> BlockPlan | None:
    """The plans of the nests of attention as a block; None where it is none."""
    block = attention_of(nest, target)
    if block is not None and target.has_groups:
        return items.plan_block(block, items.lanes(block), in_registers=True)
    return None if block is None else inner.plan_block(block, target)
