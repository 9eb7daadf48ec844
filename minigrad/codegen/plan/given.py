"""Plans that users give, by the names of kernels: `sum_mul` for all kernels of a name, `sum_mul@91ab3f` for one; and
those that a search has found, which give way to them.

A plan is for one stage of a kernel, as `minigrad.plans.of` prints it: a nest, nests beside each other, or the block
that one or several become.
"""
from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from hashlib import sha256

from minigrad.codegen.kernel.nodes import Kernel
from minigrad.codegen.kernel.text import print_kernel
from minigrad.codegen.plan.block import COMPUTED
from minigrad.codegen.plan.several import AnyPlan, parse_plan
from minigrad.codegen.plan.steps import Plan
from minigrad.errors import PlanError
from minigrad.interned import remember
from minigrad.target import Tuned

PATTERN = "given"
MOST_TAKEN = 4096

taken: dict[tuple[str, str], None] = {}
"""Names and texts that were for some kernel, the last ones."""

Given = tuple[tuple[int, AnyPlan], ...]
"""Stages of a kernel, by position, that have a user's plan."""


def names(parts: Sequence[Kernel]) -> list[tuple[str, str]]:
    """The names of plans of the stages of a kernel: for all kernels of the name, and for this one."""
    found = []
    for k, part in enumerate(parts):
        name = part.name if len(parts) <= 1 else f"{part.name}_{k}"
        found.append((name, f"{name}@{sha256(print_kernel(part).encode()).hexdigest()[:6]}"))
    return found


def parse_given(text: str) -> AnyPlan:
    """The plan that a text spells. Raises PlanError naming what is wrong."""
    found = parse_plan(text)
    if isinstance(found, Plan):
        return replace(found, pattern=PATTERN)
    return replace(found, plans=tuple([p if p == COMPUTED else replace(p, pattern=PATTERN) for p in found.plans]))


def given_plans(parts: Sequence[Kernel], plans: tuple[tuple[str, str], ...]) -> Given:
    """Those of users' plans that are for stages of a kernel. Raises PlanError for what is no text of a plan."""
    found: list[tuple[int, AnyPlan]] = []
    texts = dict(plans)
    for k, (part, (name, own)) in enumerate(zip(parts, names(parts), strict=True)):
        key = own if own in texts else name
        if key in texts:
            found.append((k, parse_given(texts[key])))
            if isinstance(found[-1][1], Plan) and (part.block is not None or len(part.nests) > 1):
                raise PlanError(f"[plan] for {key}: expected 'plan block' and a plan for each nest, got {found[-1][1]}")
            remember(taken, (key, texts[key]), None, MOST_TAKEN)
    return tuple(found)


def has_rows(tuned: Tuned | None, name: str) -> bool:
    """True where plans that a search has found may be for stages of a kernel of this name."""
    return tuned is not None and name in _kernels(tuned)


@lru_cache(maxsize=8)
def _kernels(tuned: Tuned) -> frozenset[str]:
    """The names of kernels that rows may be for, with and without the number of a stage."""
    found = {row.split("@")[0] for row in tuned.rows}
    return frozenset(found | {name.rstrip("0123456789").removesuffix("_") for name in found})


def tuned_plans(parts: Sequence[Kernel], plans: Sequence[AnyPlan], tuned: Tuned) -> dict[int, tuple[str, str]]:
    """Those plans that a search has found that are for stages of a kernel, by position: (name, text). They are for the
    kernel that the name says and for what is faster by them than the plan that it has otherwise: a row that was
    compared with another one is left out, of which this warns."""
    found: dict[int, tuple[str, str]] = {}
    for k, (part, plan, (_, own)) in enumerate(zip(parts, plans, names(parts), strict=True)):
        kernel, instead, text = tuned.rows.get(own, ("", "", ""))
        if kernel != print_kernel(part):
            continue
        if instead in ("", str(plan)):
            found[k] = own, text
        else:
            warnings.warn("[tuned] rows are left out that were compared with other plans than kernels have now: "
                          "`python -m minigrad tune` searches again", RuntimeWarning, stacklevel=2)
    return found


@contextmanager
def naming(name: str) -> Iterator[None]:
    """A PlanError from inside says which kernel it is for."""
    try:
        yield
    except PlanError as error:
        raise PlanError(f"[plan] for {name}: {str(error).removeprefix('[plan] ')}") from None
