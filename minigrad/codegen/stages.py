"""Kernel -> stages: loop nests with a device-wide barrier between them, and the scratch they share.

The pipeline, each line with its reason:

    split_phases      a strided gradient becomes dense nests, one per phase
    split_borders     what is put together of parts, such as padded images, becomes one nest per part
    split_divisions   no division by a constant stays where extents divide
    flatten, collapse accesses are offsets; variables that step together are one: long inner loops, shared programs;
                      they are named by position: equal kernels of different origin become equal
    from_first        where a parameter is read from becomes an argument: `x[t]` is one program for all t
    of_any_length     pointwise kernels of all lengths are one program
    split_reduction   a long sum with few outputs gets partial sums, by a tree that depends on shapes only
    transpose_thin    a contraction with few columns reads its small operand along the sum
    split             so does a contraction with too few blocks for several workers, and attention of few rows
    choose_plans      by how the variables are used; a nest with a user's plan has that one, and skips what is above it
                      from of_any_length on, and what is below it but for `build`
    with_arguments    layers that differ in sizes only are one program, where knowing the sizes gains nothing, and steps
                      that differ in a number only: masks, what is padded
    build             the loop nest, in which then no accumulator takes many terms (bounded_sums)
"""
from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache

from minigrad.codegen.ir.nodes import Function, extent_of
from minigrad.codegen.ir.verify import verify_function
from minigrad.codegen.ir.walk import touched
from minigrad.codegen.kernel.access import extent
from minigrad.codegen.kernel.nodes import Define, Kernel, Nest, Param, Store, is_sum
from minigrad.codegen.kernel.text import print_kernel
from minigrad.codegen.lowering.arguments import beginning, from_first, of_any_length, with_arguments
from minigrad.codegen.lowering.borders import split_borders
from minigrad.codegen.lowering.collapse import collapse
from minigrad.codegen.lowering.flatten import flatten
from minigrad.codegen.lowering.split import split_divisions, split_phases
from minigrad.codegen.plan.build import build
from minigrad.codegen.plan.given import PATTERN, Given, given_plans, naming
from minigrad.codegen.plan.groups import check_room
from minigrad.codegen.plan.other_plans import (
    AnyPlan,
    AttentionDecodePlan,
    AttentionGradientPlan,
    AttentionPlan,
    GroupAttentionPlan,
    GroupWindowPlan,
    JoinedPlan,
    ScanPlan,
    WindowPlan,
)
from minigrad.codegen.plan.sizes import shares_sizes, with_sizes_as_dims
from minigrad.codegen.plan.steps import Plan
from minigrad.codegen.policy import packed, panels, scan, tiles, window_groups
from minigrad.codegen.policy.attention_decode import split_keys
from minigrad.codegen.policy.choose import choose_plans, general_plan_of, is_row_kernel
from minigrad.codegen.policy.cut import cut_columns
from minigrad.codegen.policy.lanes import with_widest
from minigrad.codegen.policy.split_k import part_variable, split_k
from minigrad.codegen.policy.thin import transpose_thin
from minigrad.codegen.policy.window import plane_extents
from minigrad.codegen.strategies.build_attention import build_attention
from minigrad.codegen.strategies.build_attention_decode import build_attention_decode
from minigrad.codegen.strategies.build_attention_gradient import build_attention_gradient
from minigrad.codegen.strategies.build_attention_groups import build_attention_groups
from minigrad.codegen.strategies.build_joined import build_joined
from minigrad.codegen.strategies.build_scan_shared import build_loop
from minigrad.codegen.strategies.build_window import build_window
from minigrad.codegen.strategies.build_window_groups import build_window_groups
from minigrad.codegen.transforms.bounded_sums import bounded_sums
from minigrad.config import current
from minigrad.dtype import DType
from minigrad.errors import InternalError, PlanError, present, reporting
from minigrad.expr import Index, Var, product, subs
from minigrad.target import Target
from minigrad.value import cast, load, local, reduce, substitute, walk

FEW_OUTPUTS = 16
LONG_SUM, LONG_SUM_FOR_GROUPS = 1 << 17, 1 << 15
"""Operations of a sum, its additions included, from which it is worth partial sums: for the cores of a processor, to
which a shorter one is not handed out, and for work-groups."""

PARTS = 64

MISTAKES = (PlanError, InternalError, ArithmeticError, AssertionError, AttributeError, LookupError, StopIteration,
            TypeError, ValueError)
"""Raised by planning where it is wrong; an interruption is none of these."""

Unit = tuple[tuple[Nest, ...], AnyPlan]


@dataclass(frozen=True, slots=True)
class Stage:
    """One launch. `dims` gives the function's dims as expressions over the kernel's; `extent` likewise. `begins`: the
    first elements of parameters that are not among the dims yet."""

    function: Function
    plan: AnyPlan
    nests: tuple[Nest, ...]
    dims: tuple[Index, ...]
    extent: Index
    begins: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Staged:
    """All stages of a kernel, in order. Each takes the kernel's params, then one buffer per `scratch` entry."""

    kernel: Kernel
    stages: tuple[Stage, ...]
    scratch: tuple[tuple[DType, Index], ...]


@lru_cache(maxsize=4096)
def stages_of(kernel: Kernel, target: Target) -> Staged:
    """The stages by which `kernel` runs on `target`. All that is run or shown comes from here: a failure is an
    InternalError with the kernel's text."""
    target = with_widest(target, kernel.nests)
    with reporting(lambda: print_kernel(kernel)):
        return _stages_of(kernel, target) if kernel.steps is None else _stages_of_steps(kernel, target)


def _stages_of_steps(kernel: Kernel, target: Target) -> Staged:
    """The one stage of a loop with a carried state."""
    plan = present(scan.choose(kernel, target), "[scan] expected a plan")
    function = bounded_sums(build_any(kernel, kernel.nests, plan, kernel.name), {})
    nests = kernel.nests[present(kernel.steps, "[scan] expected steps").first:]
    return Staged(kernel, (Stage(function, plan, nests, kernel.dims, extent_of(function)),), ())


def flat_form(kernel: Kernel) -> Kernel:
    """The form of a kernel that plans are made for: nests over flat buffers."""
    return collapse(flatten(split_divisions(split_borders(split_phases(kernel)))))


def _stages_of(kernel: Kernel, target: Target) -> Staged:
    flat, begins = from_first(flat_form(kernel))
    given = given_plans(flat, target.plans)
    general, length = (flat, {}) if given else of_any_length(flat)
    staged = _stages_of_flat(general, replace(target, plans=()) if target.plans else target, given)
    return _bound(staged, length, begins) if length or begins or any([s.begins for s in staged.stages]) else staged


def _bound(staged: Staged, values: dict[Var, Index], begins: dict[str, int]) -> Staged:
    """The stages with these values of dims, over parameters that begin at these elements."""
    stages = []
    for stage in staged.stages:
        used, own = touched(stage.function) if begins else (), dict(stage.begins)
        own |= {name: first + own.get(name, 0) for name, first in begins.items() if name in used}
        function = beginning(stage.function, tuple(own)) if own else stage.function
        dims = (*[subs(e, values) for e in stage.dims], *own.values())
        stages.append(replace(stage, function=function, dims=dims, extent=subs(stage.extent, values), begins={}))
    return replace(staged, stages=tuple(stages))


@lru_cache(maxsize=4096)
def _stages_of_flat(flat: Kernel, target: Target, given: Given) -> Staged:
    """The stages of a flat kernel, which many kernels become, those of other shapes or lengths. Where a chosen plan
    fits no loops, by a mistake of ours, general plans take its place; not in tests, nor for a plan that is given."""
    try:
        return _planned(flat, target, given)
    except MISTAKES as error:
        if given or current().verify:
            raise
        if current().debug:
            print(f"[plan] {flat.name} gets general plans instead of what was refused: {error!r}", file=sys.stderr)
        units: list[Unit] = [((nest,), general_plan_of(nest, target)) for nest in flat.nests]
        return _staged(flat, units, [], target)


def _planned(flat: Kernel, target: Target, given: Given) -> Staged:
    """The stages of a flat kernel by the plans that are given and chosen."""
    scratch: list[Param] = []
    units: list[Unit] = []
    ours: list[Nest] = []
    theirs = dict(given)
    for k, nest in enumerate(flat.nests):
        if k not in theirs:
            ours += _shared_out(nest, scratch, target)
            continue
        units += [*choose_plans(ours, target), ((nest,), theirs[k])]
        ours = []
    return _staged(flat, [*units, *choose_plans(ours, target)], scratch, target)


def _staged(flat: Kernel, units: list[Unit], scratch: list[Param], target: Target) -> Staged:
    """The stages of nests with their plans."""
    whole = replace(flat, params=flat.params + tuple(scratch))
    stages = []
    written: set[str] = set()
    for k, (together, plan) in enumerate(units):
        here = whole
        if written and scratch:
            here = replace(whole, params=tuple([_scratch_mode(p, scratch, written) for p in whole.params]))
        name = f"{flat.name}_{k}" if len(units) > 1 else flat.name
        stages.append(_stage(here, together, plan, name, target))
        written |= {s.param for nest in together for s in nest.body if isinstance(s, Store)}
    return Staged(whole, tuple(stages), tuple((p.dtype, p.shape[0]) for p in scratch))


def _shared_out(nest: Nest, scratch: list[Param], target: Target) -> list[Nest]:
    """A nest as several where its sums are shared among workers, or an operand is transposed first."""
    nests: list[Nest] = []
    for part in split_reduction(nest, scratch, LONG_SUM_FOR_GROUPS if target.has_groups else LONG_SUM):
        if target.has_groups:
            nests += [p for cut in tiles.split(part, scratch, target)
                      for p in window_groups.split(cut, scratch, target)]
        else:
            for split in split_keys(part, scratch, target):
                nests += [p for cut in cut_columns(split, scratch, target)
                          for product in transpose_thin(cut, scratch, target)
                          for p in split_k(product, scratch, target)]
    return nests


def _stage(kernel: Kernel, nests: tuple[Nest, ...], plan: AnyPlan, name: str, target: Target) -> Stage:
    """The loops of one launch, shared with other sizes where that is worth it. Raises PlanError for a user's plan that
    does not fit."""
    general, values, begins = kernel.with_nests(nests), tuple[Index, ...](), dict[str, int]()
    with naming(name):
        shared = plan
        if isinstance(plan, WindowPlan) and shares_sizes(target):
            general, values = with_arguments(general, nests, plane_extents(nests), False)
        elif isinstance(plan, Plan) and plan.results is None and shares_sizes(target):
            if plan.sizes and name != kernel.name:  # other stages may begin elsewhere
                general, begins = from_first(general)
            general, shared, values = with_sizes_as_dims(general, plan)
        known = dict(zip(general.dims, dims := (*kernel.dims, *values), strict=True))
        function = bounded_sums(_loops(general, shared, name), known)
        check_room(function, target)
    if plan.strategy == PATTERN:
        verify_function(function)
    extent = subs(extent_of(function), known)
    return Stage(function, plan, nests, dims, extent, begins)


@lru_cache(maxsize=4096)
def _loops(kernel: Kernel, plan: AnyPlan, name: str) -> Function:
    """The loops of all nests of a kernel; where sizes are dims, many layers ask for the same."""
    return build_any(kernel, kernel.nests, plan, name)


def forget_stages() -> None:
    """Drops the stages that were planned so far: something that plans depend on has changed."""
    for cache in (stages_of, _stages_of_flat, _loops, packed.plan, panels.plan):
        cache.cache_clear()


OF_NESTS: dict[type, Callable[..., Function]] = {
    WindowPlan: build_window, GroupWindowPlan: build_window_groups, JoinedPlan: build_joined}
OF_ONE_NEST: dict[type, Callable[..., Function]] = {
    AttentionPlan: build_attention, AttentionDecodePlan: build_attention_decode,
    AttentionGradientPlan: build_attention_gradient, GroupAttentionPlan: build_attention_groups}


def build_any(kernel: Kernel, nests: tuple[Nest, ...], plan: AnyPlan, name: str) -> Function:
    """The loop nest that a plan describes."""
    if isinstance(plan, ScanPlan):
        return build_loop(kernel, plan, name)
    if type(plan) in OF_NESTS:
        return OF_NESTS[type(plan)](kernel, nests, plan, name)
    nest, = nests
    return OF_ONE_NEST.get(type(plan), build)(kernel, nest, plan, name)


def _scratch_mode(param: Param, scratch: list[Param], written: set[str]) -> Param:
    """A scratch buffer is an output of the stage that writes it and an input of those after it."""
    return replace(param, mode="in") if param.name in written and any(param.name == s.name for s in scratch) else param


def split_reduction(nest: Nest, scratch: list[Param], long: int) -> list[Nest]:
    """A nest with few outputs and sums of `long` operations as two: partial results of fixed parts, then all of them.

    Before: `t = sum(k<K: e)`. After: `for p<P: w[p] = sum(k1<K/P: e[k := p*K/P + k1])`, then `t = sum(p<P: w[p])`.
    Halide calls it rfactor.
    """
    outputs = product(v.hi + 1 for v in nest.domain)
    sums = [s for s in nest.body if is_sum(s)]
    if not sums or not isinstance(outputs, int) or outputs > FEW_OUTPUTS or is_row_kernel(nest):
        return [nest]
    operations = sum(v.op not in ("load", "const", "index") for s in sums for v in walk(s.value))
    parts: list[tuple[Var, int]] = []
    for s in sums:
        over = s.value.over
        total = product(v.hi + 1 for v in over)
        if not isinstance(total, int) or total * operations < long:
            return [nest]
        chosen = max(over, key=lambda v: (part_count(extent(v)), extent(v)))
        parts.append((chosen, part_count(extent(chosen))))
    if len({count for _, count in parts}) != 1 or parts[0][1] < 2:
        return [nest]
    count = parts[0][1]
    p = part_variable(nest, count)
    place: Index = 0
    for v in nest.domain:
        place = place * (v.hi + 1) + v
    place = place * count + p
    partials: list[Define] = []
    kept: list[Store] = []
    second: list[Define | Store | Nest] = []
    chosen_in = {s.name: v for s, (v, _) in zip(sums, parts, strict=True)}
    for t in nest.body:
        if not (isinstance(t, Define) and t.name in chosen_in):
            second.append(t)
            continue
        s, v = t, chosen_in[t.name]
        monoid, over = s.value.monoid, s.value.over
        size = extent(v) // count
        inner = Var(v.name, 0, size - 1)
        body = substitute(s.value.args[0], {v: p * size + inner})
        partial = reduce(monoid, tuple(inner if o is v else o for o in over), body)
        param = Param(f"w{len(scratch)}", body.dtype, (outputs * count,), "out")
        scratch.append(param)
        partials.append(Define(s.name, partial))
        kept.append(Store(param.name, (place,), local(s.name, body.dtype)))
        q = Var(f"q{len(scratch)}", 0, count - 1)
        joined = load(param.name, (subs(place, {p: q}),), body.dtype)
        second.append(Define(s.name, cast(reduce(monoid, (q,), joined), body.dtype)))
    return [Nest((*nest.domain, p), (*partials, *kept)), Nest(nest.domain, tuple(second))]


def part_count(n: int) -> int:
    """The largest number of equal parts, at most PARTS."""
    return next((d for d in range(min(PARTS, n), 1, -1) if n % d == 0), 1)
