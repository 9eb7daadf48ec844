"""The passes from a Kernel to the text of its programs, a line each with its reason, in the order in which they run.

All go through `run`: under `config.verify` the rules of the form that a pass returned are checked before the next one
begins, and an error names the pass. Functions between passes are kept where equal forms meet: kernels of other shapes
or lengths that are one when flat, layers whose sizes are arguments, programs.
"""
from __future__ import annotations

import sys
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from types import ModuleType
from typing import TypeVar

from minigrad.codegen.ir.inline import inline_calls
from minigrad.codegen.ir.nodes import Function, extent_of
from minigrad.codegen.ir.text import print_function
from minigrad.codegen.ir.verify import verify_function
from minigrad.codegen.ir.walk import has_scratch, touched
from minigrad.codegen.kernel.nodes import Kernel, Nest, Param
from minigrad.codegen.kernel.nodes import Store as KernelStore
from minigrad.codegen.kernel.text import print_kernel
from minigrad.codegen.kernel.walk import statements
from minigrad.codegen.lowering.arguments import beginning, from_first, of_any_length, with_arguments
from minigrad.codegen.lowering.borders import split_borders
from minigrad.codegen.lowering.collapse import collapse
from minigrad.codegen.lowering.flatten import flatten
from minigrad.codegen.lowering.split import split_divisions, split_phases
from minigrad.codegen.plan.block import build_block
from minigrad.codegen.plan.build_nests import build_nests
from minigrad.codegen.plan.given import (
    PATTERN,
    Given,
    given_plans,
    has_rows,
    names,
    naming,
    parse_given,
    tuned_plans,
)
from minigrad.codegen.plan.groups import check_room
from minigrad.codegen.plan.several import AnyPlan, BlockPlan
from minigrad.codegen.plan.sizes import shares_sizes, with_sizes_as_dims
from minigrad.codegen.plan.steps import Plan
from minigrad.codegen.policy import scan
from minigrad.codegen.policy.attention_decode import split_keys
from minigrad.codegen.policy.blocks import block_form
from minigrad.codegen.policy.choose import choose_plans, general_plan_of, product_plan
from minigrad.codegen.policy.cut import cut_columns
from minigrad.codegen.policy.general import cheapest
from minigrad.codegen.policy.lanes import with_widest
from minigrad.codegen.policy.scan import as_block
from minigrad.codegen.policy.split_k import split_k
from minigrad.codegen.policy.split_reduction import split_reduction
from minigrad.codegen.policy.thin import transpose_thin
from minigrad.codegen.policy.tiles import split_tiles
from minigrad.codegen.policy.window import plane_extents
from minigrad.codegen.policy.window_groups import split_planes
from minigrad.codegen.policy.winograd import winograd
from minigrad.codegen.transforms.bounded_sums import bounded_sums
from minigrad.codegen.transforms.budget import limit_iterations
from minigrad.codegen.transforms.read_words import read_words
from minigrad.codegen.transforms.roll import roll
from minigrad.config import current
from minigrad.dtype import DType
from minigrad.errors import InternalError, PlanError, present, reporting
from minigrad.expr import Index, Var, subs
from minigrad.program import Program
from minigrad.target import Target

MISTAKES = (PlanError, InternalError, ArithmeticError, AssertionError, AttributeError, LookupError, StopIteration,
            TypeError, ValueError)
"""Raised by planning where it is wrong; an interruption is none of these."""

renderers: dict[str, Callable[[Function, Target], Program]] = {}
"""The functions that write programs in the languages that users add (minigrad.devices), by language."""

Unit = tuple[tuple[Nest, ...], AnyPlan]
"""The nests of a stage, and its plan."""
T = TypeVar("T")


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
    """All stages of a kernel, in order, all of one done before the next. Each takes the kernel's params, then one
    buffer per `scratch` entry."""

    kernel: Kernel
    stages: tuple[Stage, ...]
    scratch: tuple[tuple[DType, Index], ...]


def run(step: Callable[..., T], form: object, *others: object, of: object = None) -> T:
    """Makes a form by a pass, and has it checked under `config.verify`; `of` is what it is part of (`checks.check`)."""
    made = step(form, *others)
    if current().verify:
        checks().check(step.__name__, form, made, of)
    return made


def checks() -> ModuleType:
    from minigrad.codegen import checks

    return checks


# ---- Kernel to stages ----


@lru_cache(maxsize=4096)
def stages_of(kernel: Kernel, target: Target) -> Staged:
    """The stages by which `kernel` runs on `target`. All that is run or shown comes from here: a failure is an
    InternalError with the kernel's text."""
    target = with_widest(target, kernel.nests)
    with reporting(lambda: print_kernel(kernel)):
        if current().verify:
            checks().check("the scheduler", None, kernel, None)
        return _stages_of(kernel, target) if kernel.block is None else _stages_of_block(kernel, target)


def flat_form(kernel: Kernel) -> Kernel:
    """The form of a kernel that plans are made for: nests over flat buffers."""
    kernel = run(split_phases, kernel)     # a strided gradient becomes dense nests, one per phase
    kernel = run(split_borders, kernel)    # what is put together of parts, such as padded images: a nest per part
    kernel = run(split_divisions, kernel)  # no division by a constant stays where extents divide
    kernel = run(flatten, kernel)          # accesses are offsets: sums of variables times steps
    return run(collapse, kernel)           # variables that step together are one: long inner loops; names by position


@lru_cache(maxsize=1024)
def _beginning_of(kernel: Kernel) -> tuple[Kernel, dict[str, int]]:
    """The flat form of a kernel, on all targets the same, and where its reading begins: `x[t]` is one program for all
    t."""
    return run(from_first, flat_form(kernel))


def _stages_of(kernel: Kernel, target: Target) -> Staged:
    """The stages of a kernel, shared with those that differ in what becomes an argument."""
    flat, begins = _beginning_of(kernel)
    plain, length, staged = plain_target(target), dict[Var, Index](), None
    if target.plans or has_rows(target.tuned, flat.name):
        staged = _stages_of_given(flat, target, plain)
    if staged is None:
        general, length = run(of_any_length, flat)  # the length of what is pointwise
        staged = _stages_of_flat(general, plain, ())
    return _bound(staged, length, begins) if length or begins or any([s.begins for s in staged.stages]) else staged


def plain_target(target: Target) -> Target:
    """The target without plans that are given."""
    return replace(target, plans=(), tuned=None) if target.plans or target.tuned else target


@lru_cache(maxsize=64)
def drafted(kernel: Kernel, target: Target) -> tuple[tuple[Unit, ...], list[Kernel], tuple[str, ...]]:
    """For each stage of a kernel without a carried state: the nests with the plan that a policy gives them, the kernel
    that plans are given for, and its name."""
    flat = _beginning_of(kernel)[0]
    units, scratch = units_of(flat, with_widest(plain_target(target), kernel.nests))
    parts = parts_of(flat, units, scratch)
    return units, parts, tuple([own for _, own in names(parts)])


def stage_by(kernel: Kernel, k: int, plan: AnyPlan, target: Target) -> Stage:
    """A stage of a kernel by a plan that is given for it. Raises PlanError, and others of MISTAKES for some plans that
    nobody would write."""
    units, parts, _ = drafted(kernel, target)
    name = f"{kernel.name}_{k}" if len(units) > 1 else kernel.name
    stage = _stage(parts[k], units[k][0], plan, name, with_widest(plain_target(target), kernel.nests))
    begins = _beginning_of(kernel)[1]
    return _bound(Staged(kernel, (stage,), ()), {}, begins).stages[0] if begins or stage.begins else stage


def _stages_of_given(flat: Kernel, target: Target, plain: Target) -> Staged | None:
    """The stages of a flat kernel with users' plans, and with those that a search has found; None where it has neither.
    One of a search that does not fit is told and left out."""
    units, scratch = units_of(flat, plain)
    parts = parts_of(flat, units, scratch)
    given = given_plans(parts, target.plans)
    tuned = tuned_plans(parts, [plan for _, plan in units], target.tuned) if target.tuned else {}
    tuned = {k: row for k, row in tuned.items() if k not in dict(given)}
    if tuned:
        try:
            return _stages_of_flat(flat, plain, (*given, *[(k, parse_given(text)) for k, (_, text) in tuned.items()]))
        except MISTAKES as error:
            warnings.warn(f"[tuned] {', '.join(name for name, _ in tuned.values())}: expected plans that fit the "
                          f"kernel, which runs without them, got: {error}", RuntimeWarning, stacklevel=2)
    return _stages_of_flat(flat, plain, given) if given else None


@lru_cache(maxsize=4096)
def _stages_of_flat(flat: Kernel, target: Target, given: Given) -> Staged:
    """The stages of a flat kernel, which many kernels become, those of other shapes or lengths. Where a chosen plan
    fits no loops, by a mistake of ours, general plans take its place; not in tests, nor for a plan that is given."""
    try:
        units, scratch = units_of(flat, target)
        theirs = dict(given)
        return _staged(flat, [(nests, theirs.get(k, plan)) for k, (nests, plan) in enumerate(units)], scratch, target)
    except MISTAKES as error:
        if given or current().verify:
            raise
        if current().debug:
            print(f"[plan] {flat.name} gets general plans instead of what was refused: {error!r}", file=sys.stderr)
        units = tuple([((nest,), general_plan_of(nest, target)) for nest in flat.nests])
        return _staged(flat, units, (), target)


def units_of(flat: Kernel, target: Target) -> tuple[tuple[Unit, ...], tuple[Param, ...]]:
    """The nests of a flat kernel as they run, those together that are one stage, each with its plan; and the buffers
    between stages."""
    scratch: list[Param] = []
    nests = [part for nest in flat.nests for part in _shared_out(flat, nest, scratch, target)]
    return tuple(run(choose_plans, nests, target, of=(flat, scratch))), tuple(scratch)  # by how variables are used


def _shared_out(flat: Kernel, nest: Nest, scratch: list[Param], target: Target) -> list[Nest]:
    """A nest as several, each a stage, where workers share its sums or an operand is transposed first."""
    splits: tuple[Callable[[Nest, list[Param], Target], list[Nest]], ...]
    if target.has_groups:
        splits = (split_reduction,  # a long sum with few outputs is partial sums, by a tree that depends on shapes only
                  split_tiles,      # so is a product with too few tiles for all units
                  split_planes)     # so is a gradient by weights with too few planes for them
    else:
        splits = (winograd,         # a convolution of three taps has fewer multiplications
                  split_reduction,
                  split_keys,       # attention of few rows goes through parts of the keys
                  cut_columns,      # last columns of a product that fill no vector are dot products
                  transpose_thin,   # a product with few columns reads its small operand along the sum
                  split_k)          # a product with too few blocks for several workers is partial sums
    nests = [nest]
    for split in splits:
        nests = [part for n in nests for part in run(split, n, scratch, target, of=(flat, scratch))]
    return nests


def parts_of(flat: Kernel, units: Sequence[Unit], scratch: Sequence[Param]) -> list[Kernel]:
    """The kernel of each stage. A buffer between stages is an output of those that write it and an input of others."""
    found = []
    for nests, _ in units:
        own = {s.param for s in statements(nests) if isinstance(s, KernelStore)}
        params = [p if p.name in own else replace(p, mode="in") for p in scratch]
        found.append(replace(flat, params=(*flat.params, *params)).with_nests(nests))
    return found


def _staged(flat: Kernel, units: Sequence[Unit], scratch: Sequence[Param], target: Target) -> Staged:
    """The stages of nests with their plans; those that differ in where they begin are one."""
    stages, made = list[Stage](), dict[tuple[Kernel, AnyPlan], Stage]()
    parts = parts_of(flat, units, scratch)
    shared = len(units) > 1 and shares_sizes(target)
    first = [run(from_first, part, of=(part, ())) if shared and isinstance(plan, Plan) else (part, {})
             for part, (_, plan) in zip(parts, units, strict=True)]
    alike = Counter([(part, plan) for (part, _), (_, plan) in zip(first, units, strict=True)])
    for k, (part, (nests, plan)) in enumerate(zip(parts, units, strict=True)):
        general, begins = first[k]
        if alike[general, plan] == 1 and not (isinstance(plan, Plan) and plan.sizes):
            general, begins = part, {}
        if (general, plan) not in made:
            name = f"{flat.name}_{k}" if len(units) > 1 else flat.name
            made[general, plan] = _stage(general, general.nests, plan, name, target)
        stages.append(replace(made[general, plan], nests=nests, begins=begins))
    whole = replace(flat, params=(*flat.params, *scratch))
    return Staged(whole, tuple(stages), tuple((p.dtype, p.shape[0]) for p in scratch))


def _stage(kernel: Kernel, nests: tuple[Nest, ...], plan: AnyPlan, name: str, target: Target) -> Stage:
    """The loops of one launch. Raises PlanError for a user's plan that does not fit."""
    general, values = kernel.with_nests(nests), tuple[Index, ...]()
    part, shared = (kernel, ()), plan
    with naming(name):
        # Layers that differ in sizes only are one program, where nothing is gained from knowing the sizes, and so are
        # steps that differ in a number: masks, what is padded.
        if isinstance(plan, BlockPlan) and len(nests) > 1 and shares_sizes(target):
            general, values = run(with_arguments, general, nests, plane_extents(nests), False, of=part)
        elif isinstance(plan, Plan) and plan.results is None and shares_sizes(target):
            general, shared, values = run(with_sizes_as_dims, general, plan, of=part)
        known = dict(zip(general.dims, dims := (*kernel.dims, *values), strict=True))
        if isinstance(plan, BlockPlan):
            block = run(block_form, general, target, of=part)  # nests that share memory which nobody else sees
            function = run(build_block, block, plan, name, of=dims)
        else:
            function = run(build_nests, general, shared, name, of=dims)  # the loops that the plan says
        function = run(bounded_sums, function, known, of=dims)  # no accumulator takes many terms
        check_room(function, target)
        if current().verify:
            checks().check_copies(kernel, nests[0], plan)
    if plan.pattern == PATTERN:
        verify_function(function)
    return Stage(function, plan, nests, dims, subs(extent_of(function), known))


def _stages_of_block(kernel: Kernel, target: Target) -> Staged:
    """The one stage of a loop with a carried state."""
    places, nests = present(scan.choose(kernel, target), "[scan] expected a plan"), scan.repeated(kernel)
    kernel, plan = run(as_block, kernel, places, target)                    # what is independent is for workers
    plan = next((given for _, given in given_plans([kernel], target.plans) if isinstance(given, BlockPlan)), plan)
    function = run(build_block, kernel, plan, kernel.name, of=kernel.dims)  # the loops of each nest, one after another
    function = run(bounded_sums, function, {}, of=kernel.dims)              # no accumulator takes many terms
    return Staged(kernel, (Stage(function, plan, nests, kernel.dims, extent_of(function)),), ())


def _bound(staged: Staged, values: dict[Var, Index], begins: dict[str, int]) -> Staged:
    """The stages with these values of dims, over parameters that begin at these elements."""
    stages = []
    for stage in staged.stages:
        used, own = touched(stage.function) if begins else (), dict(stage.begins)
        own |= {name: first + own.get(name, 0) for name, first in begins.items() if name in used}
        dims = (*[subs(e, values) for e in stage.dims], *own.values())
        function = stage.function
        if own:
            function = run(beginning, function, tuple(own), of=dims)  # these parameters begin at arguments
        elif current().verify:
            checks().check("of_any_length", None, function, dims)
        stages.append(replace(stage, function=function, dims=dims, extent=subs(stage.extent, values), begins={}))
    return replace(staged, stages=tuple(stages))


def forget_stages() -> None:
    """Drops the stages that were planned so far: something that plans depend on has changed."""
    for cache in (stages_of, drafted, _beginning_of, _stages_of_flat, build_nests, product_plan, cheapest):
        cache.cache_clear()


# ---- loop IR to text ----


@lru_cache(maxsize=4096)
def render(function: Function, target: Target) -> Program:
    """The source of one stage for a target, cached. A failure is an InternalError with the stage's loops."""
    with reporting(lambda: print_function(function)):
        return _render(function, target, target.language)


def _render(function: Function, target: Target, language: str) -> Program:
    if language in renderers:
        return renderers[language](function, target)
    if language == "llvm":
        from minigrad.codegen.render.llvm import render_llvm

        function = run(roll, function)        # long copies of code are loops through memory, for LLVM's sake
        function = run(read_words, function)  # neighbours that are packed are read as one
        return render_llvm(function, target)
    # A call stays where the target has its implementation. A driver that ends long loops must see all of them.
    function = run(inline_calls, function, lambda kernel: kernel.fits(target) and not target.max_iterations)
    if language == "opencl":
        from minigrad.codegen.render.opencl import render_opencl

        if not target.is_gpu and has_scratch(function):  # rolling takes scratch memory; without any there are chains
            function = run(roll, function, False)
        function = run(limit_iterations, function, target.max_iterations)  # where a driver counts: few and long ones
        return render_opencl(function, target)
    from minigrad.codegen.render.llvm_gpu import render_llvm_gpu

    return render_llvm_gpu(function, target)
