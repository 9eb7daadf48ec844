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
from minigrad.codegen.passes import stages_of
from minigrad.codegen.patterns.recognise_phases import recognise_any
from minigrad.codegen.patterns.recognise_window import Window, recognise_window
from minigrad.codegen.plan.other_plans import GroupWindowPlan, Plan, parse_plan
from minigrad.codegen.policy import window_groups
from minigrad.codegen.policy.window_groups import (
    BANKS,
    Shares,
    best,
    candidates,
    figures,
    padded_tile,
    plan_of,
    tile_of,
)
from minigrad.codegen.strategies.build_any import build_any

READ_ONCE = ("average pooling", "stride 3", "stride and dilation")
"""Cases whose positions are read once each, or little more often: nothing to keep near."""


@pytest.mark.parametrize("case", [c for c in CASES if c not in READ_ONCE and c != "float16"])
def test_windows_by_groups_equal_the_kernel(case: str) -> None:
    """The chosen plan, and others that divide the image otherwise."""
    kernel = flat_kernel(CASES[case](), GPU)
    window = recognise_any(kernel.nests)
    assert isinstance(window, Window)
    chosen = window_groups.plan(kernel.nests, GPU)
    assert isinstance(chosen, GroupWindowPlan) and parse_plan(str(chosen)) == chosen
    options = list(candidates(figures(window), replace(GPU, max_group=64)))
    others = [plan_of(window, options[k]) for k in (len(options) // 3, -1)] if case in FOR_ALL else []
    for made in dict.fromkeys([chosen, *others]):
        equal_the_kernel(kernel, [build_any(kernel, kernel.nests, made, "f")])


def test_what_groups_decline() -> None:
    nests = flat_kernel(CASES["average pooling"](), GPU).nests
    assert "few positions are read twice" in str(window_groups.plan(nests, GPU))
    nests = flat_kernel(CASES["3x3"](), GPU).nests
    assert "no work-groups" in str(window_groups.plan(nests, replace(GPU, local_memory=0)))
    assert "too many iterations" in str(window_groups.plan(nests, replace(GPU, max_iterations=1)))
    whole = depthwise("weight", 7, 9, batch=40)
    assert "too many iterations" in str(window_groups.plan(flat_kernel(whole, GPU).nests,
                                                           replace(GPU, max_iterations=60)))
    assert "not a window" in str(window_groups.plan(flat_kernel(tensor(40, 40) @ tensor(40, 40), GPU).nests, GPU))


def test_show_says_why_a_kernel_has_no_window() -> None:
    x = Tensor(np.ones((1, 3, 8, 8), np.float32), device="AMD:gfx1031")
    assert "# no window by groups: few positions are read twice" in minigrad.show(x.avg_pool2d(2), stage="plan")
    assert "strategy='window_groups'" in minigrad.show(x.max_pool2d(3, stride=1), stage="plan")


def test_every_position_is_computed_once_a_tile() -> None:
    """A prologue stands in one place, before the one barrier; so do the weights of a group of several planes."""
    kernel = flat_kernel(CASES["prologue"](), GPU)
    plan = window_groups.plan(kernel.nests, GPU)
    assert isinstance(plan, GroupWindowPlan) and plan.deep > 1
    function = build_any(kernel, kernel.nests, plan, "f")
    assert sum(isinstance(s, Barrier) for s in statements(function)) == 1
    assert [s.name for s in statements(function) if isinstance(s, Alloc) and s.scope == "local"] == ["x_tile", "w_0"]
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
    assert isinstance(staged.stages[0].plan, GroupWindowPlan) and isinstance(staged.stages[1].plan, Plan)
    many = flat_kernel(depthwise("weight", 14, 14, batch=4, channels=400), GPU).nests[0]
    assert window_groups.split_planes(many, [], GPU) == [many]


@pytest.mark.parametrize("case", ["5x5", "strided 5x5", "3x3", "data gradient 5x5"])
def test_work_items_meet_in_few_banks(case: str) -> None:
    """Two at most of a wave, by padding of a few elements."""
    window = recognise_any(flat_kernel(CASES[case](), GPU).nests)
    assert isinstance(window, Window)
    f = figures(window)
    shares = best(f, GPU)
    assert shares is not None
    tile, plain = padded_tile(f, shares), tile_of(f, shares)
    assert plain.elements <= tile.elements <= plain.elements * 3 // 2
    places = [t % shares.across + t // shares.across % shares.down * shares.height * f.stride[0] * tile.pitch
              + t // (shares.across * shares.down) * tile.plane for t in range(min(32, shares.items))]
    assert max(sum(p % BANKS == b for p in places) for b in range(BANKS)) <= 2


def test_large_images_fill_groups_of_whole_columns() -> None:
    """Of EfficientNet's shapes: more than half of the items of a group of 256 work, whatever the image."""
    for channels, size, kernel, stride in ((32, 112, 3, 1), (144, 56, 5, 2), (480, 14, 5, 1), (240, 33, 5, 1)):
        window = recognise_any(flat_kernel(depthwise("forward", size, size, channels=channels, batch=8, kernel=kernel,
                                                     stride=stride, padding=kernel // 2), GPU).nests)
        assert isinstance(window, Window)
        f = figures(window)
        shares = best(f, GPU)
        assert shares is not None and isinstance(shares, Shares) and 64 <= shares.items <= 256
        tiles = -(-f.rows // (shares.down * shares.height)) * -(-f.columns // shares.across)
        used = f.rows * f.columns / (tiles * shares.down * shares.height * shares.across)
        assert used > 0.85
