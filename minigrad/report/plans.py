"""`plans`: how kernels run, as texts that a user may read, change and give back.

    texts = plans.of(y)                                  {"sum_mul": "plan contraction ..."}
    with plans({"sum_mul": texts["sum_mul"].replace("by 4", "by 6")}):
        y.realize()

The language is in `docs/plans.md`. A plan says how loops run, never what they compute: one that does not fit is a
PlanError that names the kernel, the step and what was expected.
"""
from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace

from minigrad.codegen.kernel.nodes import Kernel
from minigrad.codegen.kernel.text import print_kernel
from minigrad.codegen.lowering.arguments import from_first
from minigrad.codegen.passes import Staged, flat_form, stages_of
from minigrad.codegen.plan.given import PATTERN, given_plans, names, parse_given, taken
from minigrad.codegen.plan.several import BlockPlan
from minigrad.codegen.plan.steps import Plan
from minigrad.codegen.policy.blocks import block_form, runs
from minigrad.codegen.policy.choose import plan_of_steps
from minigrad.config import config, current
from minigrad.engine.show import scheduled
from minigrad.errors import PlanError
from minigrad.target import Target


class plans:  # noqa: N801  (used like a function)
    """`with plans({"sum_mul": text}): ...`: in this thread kernels of these names run by these plans, meanwhile.

    Keys are names as `plans.of` gives them, `name` for all kernels that are called so or `name@digits` for one of them;
    an inner block adds to those around it. Raises PlanError for a text that is no plan, when a kernel is planned for a
    plan that does not fit it, and at the end for one that no kernel was there for.
    """

    def __init__(self, given: Mapping[str, str]):
        self._given = dict(given)
        for name, text in self._given.items():
            if not isinstance(name, str) or not isinstance(text, str):
                raise PlanError(f"[plan] for {name}: expected the text of a plan, got {type(text).__name__}")
            try:
                parse_given(text)
            except PlanError as error:
                raise PlanError(f"[plan] for {name}: {str(error).removeprefix('[plan] ')}") from None
        self._entered: list[config] = []

    def __enter__(self) -> None:
        entered = config(plans=tuple({**dict(current().plans), **self._given}.items()))
        self._entered.append(entered)
        entered.__enter__()

    def __exit__(self, kind: object, *_: object) -> None:
        self._entered.pop().__exit__()
        unused = [name for name, text in self._given.items() if (name, text) not in taken]
        if unused and kind is None:
            raise PlanError(f"[plan] for {unused[0]}: expected the name of a kernel that ran, or was shown, in the "
                            f"block; plans.of(x) has those of a lazy Tensor x")

    @staticmethod
    def of(what: object) -> dict[str, str]:
        """The plans of what a lazy Tensor (or a list of them) computes, by the names of kernels; nothing is run.

        Every text begins with the kernel that it is for, in remarks. Where a kernel runs by a plan of another kind (its
        last remark says which), the text has the steps that it would have without that.
        """
        found = scheduled(what)
        if found is None:
            return {}
        schedule, target = found
        plain = replace(target, plans=())
        made: dict[str, tuple[str, str]] = {}
        for step in schedule.steps:
            staged = stages_of(step.kernel, target)
            others = sorted({s.plan.pattern for s in staged.stages})
            for name, own, kernel, plan in _plans(step.kernel, staged, target, plain):
                remarks = print_kernel(kernel).splitlines()
                if plan.pattern != PATTERN and others != [plan.pattern]:
                    remarks.append(f"runs by: {', '.join(others)}")
                head, *steps = str(plan).splitlines()
                made[own] = name, "\n".join([head, *(f"  # {line}" for line in remarks), *steps])
        count = Counter(name for name, _ in made.values())
        return {name if count[name] == 1 else own: text for own, (name, text) in made.items()}


def _plans(kernel: Kernel, staged: Staged, target: Target, plain: Target
           ) -> Iterator[tuple[str, str, Kernel, Plan | BlockPlan]]:
    """The two names of each plan of a kernel, what it is for, and the plan."""
    if kernel.block is not None:
        (name, own), = names(staged.kernel, ())
        yield from [(name, own, staged.kernel, s.plan) for s in staged.stages if isinstance(s.plan, BlockPlan)]
        return
    flat = from_first(flat_form(kernel))[0]
    together = runs(flat.nests, target)
    given = dict(given_plans(flat, together, target.plans))
    for k, (name, own) in enumerate(names(flat, together)):
        plan = given.get(k) or plan_of_steps(together[k], plain)
        part = flat.with_nests(together[k])
        yield name, own, block_form(part, target) if isinstance(plan, BlockPlan) else part, plan
