"""Plans that users give, by the names of kernels: `sum_mul` for all kernels of a name, `sum_mul@91ab3f` for one.

A plan is for one nest of a kernel after flattening and collapsing, as `minigrad.plans.of` prints it. It takes the place
of everything that is decided for that nest, also of how its sums are shared by stages.
"""
from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from hashlib import sha256

from minigrad.codegen.kernel.nodes import Kernel
from minigrad.codegen.kernel.text import print_kernel
from minigrad.codegen.plan.steps import Plan
from minigrad.codegen.plan.text import parse_plan
from minigrad.errors import PlanError
from minigrad.interned import remember

PATTERN = "given"
MOST_TAKEN = 4096

taken: dict[tuple[str, str], None] = {}
"""Names and texts that were for some kernel, the last ones."""

Given = tuple[tuple[int, Plan], ...]
"""Nests of a kernel, by position, that have a user's plan."""


def names(kernel: Kernel) -> list[tuple[str, str]]:
    """For each nest of a flat kernel what its plans are called: those for all kernels of the name, and for this one."""
    found = []
    for k, nest in enumerate(kernel.nests):
        name = kernel.name if len(kernel.nests) == 1 else f"{kernel.name}_{k}"
        text = print_kernel(kernel.with_nests((nest,)))
        found.append((name, f"{name}@{sha256(text.encode()).hexdigest()[:6]}"))
    return found


def given_plans(kernel: Kernel, plans: tuple[tuple[str, str], ...]) -> Given:
    """Those of users' plans that are for nests of a flat kernel. Raises PlanError for what is no text of a plan."""
    if not plans:
        return ()
    found: list[tuple[int, Plan]] = []
    texts = dict(plans)
    for k, (name, own) in enumerate(names(kernel)):
        key = own if own in texts else name
        if key in texts:
            found.append((k, replace(parse_plan(texts[key]), pattern=PATTERN)))
            remember(taken, (key, texts[key]), None, MOST_TAKEN)
    return tuple(found)


@contextmanager
def naming(name: str) -> Iterator[None]:
    """A PlanError from inside says which kernel it is for."""
    try:
        yield
    except PlanError as error:
        raise PlanError(f"[plan] for {name}: {str(error).removeprefix('[plan] ')}") from None
