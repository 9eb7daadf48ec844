"""Windows by work-groups: the plans, their loops against the kernel as written, and what compilers make of them."""
# Tests know their dims are ints.
# mypy: disable-error-code="arg-type,type-var"
from dataclasses import replace

import numpy as np
import pytest
from support.groups import GPU
from support.packed import equal_the_kernel, flat_kernel, parts_equal_the_kernel, tensor
from support.window import CASES, FOR_ALL, depthwise

import minigrad
from minigrad import Tensor
from minigrad.codegen.ir.nodes import Alloc, Barrier
from minigrad.codegen.ir.text import print_function
from minigrad.codegen.ir.walk import statements
from minigrad.codegen.kernel.nodes import Kernel
from minigrad.codegen.passes import stages_of
from minigrad.codegen.patterns.recognise_phases import recognise_any
from minigrad.codegen.patterns.recognise_window import Window, recognise_window
from minigrad.codegen.plan.block import build_block
from minigrad.codegen.plan.box import BANKS
from minigrad.codegen.plan.build_nests import build_nests
from minigrad.codegen.plan.context import Context
from minigrad.codegen.plan.position import Position
from minigrad.codegen.plan.several import BlockPlan, Plan, parse_plan
from minigrad.codegen.plan.steps import resolve
from minigrad.codegen.policy import window_groups
from minigrad.codegen.policy.blocks import block_form
from minigrad.codegen.policy.choose import choose_plans
from minigrad.codegen.policy.window_groups import best, figures
from minigrad.expr import subs

READ_ONCE = ("average pooling", "stride 3", "stride and dilation")
"""Cases whose positions are read once each, or little more often: nothing to keep near."""


OTHERS = replace(GPU, max_group=64, units=1), replace(GPU, local_memory=8 << 10, max_group=128, units=40)


@pytest.mark.parametrize("case", [c for c in CASES if c not in READ_ONCE and c != "float16"])
def test_windows_by_groups_equal_the_kernel(case: str) -> None:
    """The chosen plan, and others that divide the image otherwise."""
    for target in (GPU, *(OTHERS if case in FOR_ALL else ())):
        kernel = flat_kernel(CASES[case](), target)
        functions, patterns = [], []
        for nests, plan in choose_plans(kernel.nests, target):
            assert parse_plan(str(plan)) == plan
            own = kernel.with_nests(nests)
            functions.append(build_block(block_form(own, target), plan, "f") if isinstance(plan, BlockPlan)
                             else build_nests(own, plan, "f"))
            patterns.append(plan.pattern)
        assert target is not GPU or patterns == ["block" if len(kernel.nests) > 1 else "window_groups"]
        equal_the_kernel(kernel, functions)


@pytest.mark.parametrize("seed", range(12))
def test_random_gradients_of_strided_windows_are_blocks(seed: int) -> None:
    """Of few planes, by taps that are fewer than the stride or more, and phases of other lengths."""
    rng = np.random.default_rng(seed)
    stride, kernel, sizes = int(rng.integers(2, 4)), int(rng.integers(3, 6)), rng.integers(7, 30, 2)
    y = depthwise("data", *map(int, sizes), batch=int(rng.integers(1, 4)), channels=int(rng.integers(1, 7)),
                  kernel=kernel, stride=stride, padding=int(rng.integers(0, kernel)))
    flat = flat_kernel(y, GPU)
    for target in (GPU, *OTHERS):
        stages = stages_of(flat, target)
        equal_the_kernel(stages.kernel, [s.function for s in stages.stages])


def test_what_groups_decline() -> None:
    def declined(y: Tensor, **changes: int) -> str:
        nest, = flat_kernel(y, GPU).nests
        return str(window_groups.plan(nest, replace(GPU, **changes)))

    assert "few positions are read twice" in declined(CASES["average pooling"]())
    assert "no work-groups" in declined(CASES["3x3"](), local_memory=0)
    assert "too many iterations" in declined(CASES["3x3"](), max_iterations=1)
    assert "too many iterations" in declined(depthwise("weight", 7, 9, batch=40), max_iterations=10)
    assert "not a window" in declined(tensor(40, 40) @ tensor(40, 40))


def test_show_says_why_a_kernel_has_no_window() -> None:
    x = Tensor(np.ones((1, 3, 8, 8), np.float32), device="AMD:gfx1031")
    assert "# no window by groups: few positions are read twice" in minigrad.show(x.avg_pool2d(2), stage="plan")
    assert "plan window_groups" in minigrad.show(x.max_pool2d(3, stride=1), stage="plan")


def by_steps(case: str) -> tuple[Kernel, Plan]:
    """A window, as a product, and its plan."""
    kernel = flat_kernel(CASES[case](), GPU)
    (nests, plan), = choose_plans(kernel.nests, GPU)
    assert isinstance(plan, Plan)
    return kernel.with_nests(nests), plan


def test_every_position_is_computed_once_a_tile() -> None:
    """A prologue stands in one place, before the one barrier; so do the weights of a group of several planes."""
    kernel, plan = by_steps("prologue")
    assert "gd d by" in str(plan)
    function = build_nests(kernel, plan, "f")
    assert sum(isinstance(s, Barrier) for s in statements(function)) == 1
    assert [s.name for s in statements(function) if isinstance(s, Alloc) and s.scope == "local"] == [
        "p0_staged", "p2_staged"]
    before, after = print_function(function).split("barrier")
    assert "p1[" in before and "p1[" not in after and "p2[" not in after


def test_a_weight_gradient_of_few_planes_is_split_along_the_batch() -> None:
    kernel = flat_kernel(depthwise("weight", 14, 14, batch=16, channels=2), GPU)
    nest, = kernel.nests
    scratch: list = []
    parts = window_groups.split_planes(nest, scratch, GPU)
    assert len(parts) == 2 and scratch[0].shape == (2 * 9 * 8,)
    assert isinstance(recognise_window(parts[0]), Window)
    parts_equal_the_kernel(kernel, parts, scratch)
    staged = stages_of(kernel, GPU)
    assert [s.plan.pattern for s in staged.stages] == ["window_groups", "reduction"]
    many = flat_kernel(depthwise("weight", 14, 14, batch=4, channels=400), GPU).nests[0]
    assert window_groups.split_planes(many, [], GPU) == [many]


@pytest.mark.parametrize("case", ["5x5", "strided 5x5", "3x3", "data gradient 5x5", "strided prologue",
                                  "weight gradient of one image", "strided weight gradient"])
def test_work_items_meet_in_few_banks_of_a_copy(case: str) -> None:
    """Two at most of a wave, by padding of a few elements."""
    kernel, plan = by_steps(case)
    ctx = Context(kernel, resolve(kernel.nests[0], plan), None, None)
    assert ctx.items is not None
    own = {x: 0 for x in ctx.loops.order} | ctx.items.places
    at = [subs(ctx.staged[0].box.at(Position(own)), {ctx.items.var: t}) for t in range(min(32, ctx.items.count))]
    assert max(sum(p % BANKS == b for p in at) for b in range(BANKS)) <= 2


def test_large_images_fill_groups_of_whole_columns() -> None:
    """Of EfficientNet's shapes: more than half of the items of a group of 256 work, whatever the image."""
    for channels, size, kernel, stride in ((32, 112, 3, 1), (144, 56, 5, 2), (480, 14, 5, 1), (240, 33, 5, 1)):
        window = recognise_any(flat_kernel(depthwise("forward", size, size, channels=channels, batch=8, kernel=kernel,
                                                     stride=stride, padding=kernel // 2), GPU).nests)
        assert isinstance(window, Window)
        f = figures(window)
        shares = best(f, GPU)
        assert shares is not None and 64 <= shares.items <= 256
        tiles = -(-f.rows // (shares.down * shares.height)) * -(-f.columns // shares.across)
        used = f.rows * f.columns / (tiles * shares.down * shares.height * shares.across)
        assert used > 0.85
