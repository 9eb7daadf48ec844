"""The block that nests become whose plan is that of a block."""
from __future__ import annotations

from dataclasses import replace

from minigrad.codegen.kernel.nodes import Kernel
from minigrad.codegen.policy import attention, attention_decode, phases
from minigrad.errors import present
from minigrad.target import Target


def block_form(kernel: Kernel, target: Target) -> Kernel:
    """The kernel as a block: phases of a strided gradient read what they share once, attention meets its keys part by
    part."""
    if len(kernel.nests) > 1:
        block = phases.block_of(kernel.nests)
    else:
        nest, = kernel.nests
        block = attention_decode.block_of(nest, target) or attention.block_of(nest, target)
    return replace(kernel, nests=(), block=present(block, "[plan] expected what a block computes"))
