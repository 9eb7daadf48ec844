"""Plans that users give, by the names of kernels: `sum_mul` for all kernels of a name, `sum_mul@91ab3f` for one.

A plan is for one nest of a kernel after flattening and collapsing, or for the block that one or several become, as
`minigrad.plans.of` prints it. It takes the place of everything that is decided for them, also of how sums are shared by
stages.
"""
from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from hashlib import sha256

from minigrad.codegen.kernel.nodes import Kernel, Nest
from minigrad.codegen.kernel.text import print_kernel
from minigrad.codegen.plan.block import COMPUTED
from minigrad.codegen.plan.several import BlockPlan, parse_several
from minigrad.codegen.plan.steps import Plan
from minigrad.codegen.plan.text import parse_plan
from minigrad.errors import PlanError
from minigrad.interned import remember

PATTERN = "given"
MOST_TAKEN = 4096

taken: dict[tuple[str, str], None] = {}
"""Names and texts that were for some kernel, the last ones."""

Given = tuple[tuple[int, Plan | BlockPlan], ...]
"""Runs of nests of a kernel, by position, that have a user's plan."""

Runs = Sequence[tuple[Nest, ...]]
"""The nests of a flat kernel, those together that become one block."""


def names(kernel: Kernel, runs: Runs) -> list[tuple[str, str]]:
    """The names of plans of each run of a kernel, or of its block: for all kernels of the name, and for this one."""
    found = []
    for k, part in enumerate([kernel] if kernel.block is not None else map(kernel.with_nests, runs)):
        name = kernel.name if len(runs) <= 1 else f"{kernel.name}_{k}"
        found.append((name, f"{name}@{sha256(print_kernel(part).encode()).hexdigest()[:6]}"))
    return found


def parse_given(text: str) -> Plan | BlockPlan:
    """The plan of a nest or of a block that a text spells. Raises PlanError naming what is wrong."""
    if re.match(r"(\s*(#.*)?\n)*plan block\b", text):
        return BlockPlan(tuple([p if p == COMPUTED else replace(p, pattern=PATTERN) for p in parse_several(text)]))
    return replace(parse_plan(text), pattern=PATTERN)


def given_plans(kernel: Kernel, runs: Runs, plans: tuple[tuple[str, str], ...]) -> Given:
    """Those of users' plans that are for runs of a kernel. Raises PlanError for what is no text of a plan."""
    if not plans:
        return ()
    found: list[tuple[int, Plan | BlockPlan]] = []
    texts = dict(plans)
    for k, (name, own) in enumerate(names(kernel, runs)):
        key = own if own in texts else name
        if key in texts:
            found.append((k, parse_given(texts[key])))
            if isinstance(found[-1][1], Plan) and (kernel.block is not None or len(runs[k]) > 1):
                raise PlanError(f"[plan] for {key}: expected 'plan block' and a plan for each nest, got {found[-1][1]}")
            remember(taken, (key, texts[key]), None, MOST_TAKEN)
    return tuple(found)


@contextmanager
def naming(name: str) -> Iterator[None]:
    """A PlanError from inside says which kernel it is for."""
    try:
        yield
    except PlanError as error:
        raise PlanError(f"[plan] for {name}: {str(error).removeprefix('[plan] ')}") from None
