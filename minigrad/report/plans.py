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

from minigrad.codegen.kernel.nodes import Kernel
from minigrad.codegen.kernel.text import print_kernel
from minigrad.codegen.lowering.arguments import from_first
from minigrad.codegen.passes import flat_form, parts_of, plain_target, stages_of, units_of
from minigrad.codegen.plan.given import names, parse_given, taken
from minigrad.codegen.plan.several import AnyPlan, BlockPlan
from minigrad.codegen.policy.blocks import block_form
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

        Every text begins with the kernel that it is for, in remarks: a stage, one of several where sums are shared, or
        operands are rewritten first.
        """
        found = scheduled(what)
        if found is None:
            return {}
        schedule, target = found
        made: dict[str, tuple[str, str]] = {}
        for step in schedule.steps:
            for name, own, kernel, plan in _plans(step.kernel, target):
                head, *steps = str(plan).splitlines()
                remarks = [f"  # {line}" for line in print_kernel(kernel).splitlines()]
                made[own] = name, "\n".join([head, *remarks, *steps])
        count = Counter(name for name, _ in made.values())
        return {name if count[name] == 1 else own: text for own, (name, text) in made.items()}


def _plans(kernel: Kernel, target: Target) -> Iterator[tuple[str, str, Kernel, AnyPlan]]:
    """The two names of the plan of each stage of a kernel, what it is for, and the plan."""
    staged = stages_of(kernel, target)
    if kernel.block is not None:
        parts = [staged.kernel]
    else:
        flat = from_first(flat_form(kernel))[0]
        parts = parts_of(flat, *units_of(flat, plain_target(target)))
    for part, stage, (name, own) in zip(parts, staged.stages, names(parts), strict=True):
        form = block_form(part, target) if isinstance(stage.plan, BlockPlan) and part.block is None else part
        yield name, own, form, stage.plan
