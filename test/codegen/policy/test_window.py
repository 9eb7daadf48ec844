"""Windows over planes: recognition, the staged form against the kernel as written, and on the CPU against numpy."""
# Tests know their dims are ints.
# mypy: disable-error-code="arg-type,type-var"
from dataclasses import replace

import numpy as np
import pytest
from conftest import devices
from support.machine_code import assembly
from support.packed import AVX2, AVX512, NEON, arguments, flat_kernel, tensor
from support.window import CASES, FOR_ALL, depthwise, fused_gradient

import minigrad
from minigrad import Tensor, config
from minigrad.codegen.ir.interpret import interpret_function
from minigrad.codegen.ir.nodes import Function, Loop, Prefetch
from minigrad.codegen.ir.text import parse_function, print_function
from minigrad.codegen.ir.verify import verify_function
from minigrad.codegen.ir.walk import statements
from minigrad.codegen.kernel.interpret import interpret_kernel
from minigrad.codegen.kernel.nodes import Kernel
from minigrad.codegen.passes import stages_of
from minigrad.codegen.patterns.recognise_phases import recognise_phases
from minigrad.codegen.patterns.recognise_window import recognise_window
from minigrad.codegen.plan.block import build_block
from minigrad.codegen.plan.build_nests import build_nests
from minigrad.codegen.plan.several import BlockPlan
from minigrad.codegen.policy.blocks import block_form
from minigrad.codegen.policy.choose import choose_plans
from minigrad.codegen.policy.window import plan
from minigrad.codegen.render.llvm import render_llvm
from minigrad.scheduler.graph import build_graph
from minigrad.scheduler.schedule import schedule
from minigrad.target import Target

TINY = replace(AVX2, name="tiny caches", l1=1 << 11)
TARGETS = (AVX512, AVX2, NEON, TINY)


def window_function(kernel: Kernel, target: Target) -> Function:
    """The loops by the plan that is chosen, which is no window's where that would gain nothing."""
    (nests, made), = choose_plans(kernel.nests, target)
    if isinstance(made, BlockPlan):
        return build_block(block_form(kernel, target), made, "window")
    return build_nests(kernel.with_nests(nests), made, "window")


@pytest.mark.parametrize("case, target", [(c, t) for c in CASES for t in TARGETS if t in TARGETS[:2] or c in FOR_ALL],
                         ids=lambda x: x if isinstance(x, str) else x.name)
def test_window_equals_the_kernel(case: str, target: Target) -> None:
    kernel = flat_kernel(CASES[case](), target)
    arrays = arguments(kernel)
    scalars = {s.name: 0.75 for s in kernel.scalars}
    expected = {name: a.copy() for name, a in arrays.items()}
    interpret_kernel(kernel, expected, scalars)
    function = window_function(kernel, target)
    verify_function(function)
    assert parse_function(print_function(function)) == function
    interpret_function(function, arrays, scalars)
    for p in kernel.params:
        if p.mode != "in":
            tolerance = 2e-3 if p.dtype.itemsize == 2 else 3e-5
            np.testing.assert_allclose(arrays[p.name], expected[p.name], rtol=tolerance, atol=tolerance)


def gradient_of_tall_taps() -> Tensor:
    """Its sums over rows and over columns both step with the taps' rows."""
    x, w = tensor(1, 27, 15, 8), tensor(6, 9, 5, 1)
    w.requires_grad = True
    return x.conv2d(w, groups=3, stride=2).gradient(w, gradient=tensor(1, 6, 6, 4))[0]


@pytest.mark.parametrize("result, reason", [
    (lambda: tensor(4, 90).sum(1), "one operand over a plane"),
    (lambda: tensor(6, 7) @ tensor(7, 9), "moves along no variable"),
    (lambda: tensor(1, 4, 9, 9).conv2d(tensor(4, 2, 3, 3), groups=2), "moves along no variable"),
    (lambda: tensor(4, 9) * 2.0, "0 reductions"),
    (lambda: gradient_of_tall_taps(), "taps along 2 axes"),
    (lambda: tensor(1, 4) @ tensor(60, 4).transpose(0, 1), "no position is read twice"),
    (lambda: tensor(1, 1, 1, 2048).conv2d(tensor(1, 1, 1, 256), stride=(1, 2)), "more than 256 taps"),
])
def test_what_is_no_window_says_why(result, reason: str) -> None:
    found = recognise_window(flat_kernel(result()).nests[0])
    assert isinstance(found, str) and found.startswith("not a window: ") and reason in found


def test_phases_become_one_stage() -> None:
    for result, count in ((depthwise("data", 16, 14, stride=2), 4), (fused_gradient(15, 16), 4)):
        step = schedule(build_graph([result.node]), frozenset(), AVX2).steps[-1]
        stage, = stages_of(step.kernel, AVX2).stages
        assert isinstance(stage.plan, BlockPlan) and len(stage.nests) == count


def test_what_are_no_phases_says_why() -> None:
    first = flat_kernel(depthwise("data", 16, 14, stride=2)).nests
    second = flat_kernel(depthwise("data", 16, 14, channels=4, stride=2)).nests
    assert "phases of different shape" in str(recognise_phases([first[1], second[2]]))
    assert "outputs apart" in str(recognise_phases([first[1], first[2], first[3]]))


def test_show_says_why_a_kernel_has_no_window() -> None:
    text = minigrad.show(tensor(1, 4, 9, 9).conv2d(tensor(4, 2, 3, 3), groups=2), stage="plan")
    assert "# not packed" in text and "# not a window: r0 moves along no variable" in text


def test_few_windows_are_left_to_other_plans() -> None:
    left = {case for case, kernel in CASES.items() for nests in [flat_kernel(kernel()).nests]
            if len(nests) == 1 and isinstance(plan(nests[0], AVX512), str)}
    assert left == {"one column of taps", "stride and dilation"}


def test_what_will_be_staged_and_stored_is_prefetched() -> None:
    """A page ahead: of each vector of a row that is staged, and of what a tile of 9 rows stores."""
    function = window_function(flat_kernel(depthwise("forward", 9, 64), AVX512), AVX512)
    found = [s for s in statements(function) if isinstance(s, Prefetch)]
    constants = {name: sorted(s.offset.const for s in found if s.buffer == name and not isinstance(s.offset, int))
                 for name in ("p0", "o0")}
    assert constants["p0"][0] == 4096 // 4 - 64  # the padding above
    assert constants["o0"][0] == 4096 // 4


@pytest.mark.parametrize("size, stride", [(7, 1), (14, 2)])
def test_one_prefetch_serves_a_line(size: int, stride: int) -> None:
    """A plane of 7 rows of 7 is stored as one run of 49 elements, 4 lines."""
    function = window_function(flat_kernel(depthwise("forward", size, size, stride=stride), AVX512), AVX512)
    loop, = [s for s in statements(function) if isinstance(s, Loop) and s.kind == "unroll" and any(
        isinstance(p, Prefetch) and p.buffer == "o0" for p in s.body)]
    assert loop.stop == 4


def test_a_gpu_declines() -> None:
    nest, = flat_kernel(CASES["3x3"]()).nests
    assert "too little memory" in str(plan(nest, replace(AVX2, language="opencl", vector_bytes=4)))


@pytest.mark.parametrize("of", ["forward", "data", "weight"])
def test_infinities_and_nans_stay_where_they_are(of: str) -> None:
    """What is computed beside the image, or beyond its last row, must not meet values of the image."""
    random = np.random.default_rng(4)
    x, w, g = (random.standard_normal(s).astype(np.float32) for s in ((1, 2, 7, 14), (2, 1, 3, 3), (1, 2, 7, 14)))
    special = g if of == "data" else x
    special[0, 0, 3, 13], special[0, 1, 6, 5] = np.inf, np.nan
    found = []
    for device in devices():
        tx, tw = (Tensor(a, device=device, requires_grad=True) for a in (x, w))
        y = tx.conv2d(tw, groups=2, padding=1)
        if of != "forward":
            y = y.gradient(tx if of == "data" else tw, gradient=Tensor(g, device=device))[0]
        found.append(y.numpy())
    expected = found.pop(devices().index("NUMPY"))
    finite = np.isfinite(expected)
    assert not finite.all() and finite.any()
    for result in found:
        assert (np.isfinite(result) == finite).all()
        np.testing.assert_allclose(result[finite], expected[finite], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("rows, target", [(17, AVX512), (7, AVX2)], ids=["avx512", "avx2"])
def test_rows_beyond_the_last_meet_no_infinity(rows: int, target: Target) -> None:
    """Tiles of a gradient by weights whose heights do not divide that of the image."""
    kernel = flat_kernel(depthwise("weight", rows, 9, batch=1, channels=1), target)
    for operand in [p for p in kernel.params if p.mode == "in"]:
        arrays = arguments(kernel)
        arrays[operand.name].flat[-5] = np.inf  # inside the last row
        expected = {name: a.copy() for name, a in arrays.items()}
        interpret_kernel(kernel, expected, {})
        interpret_function(window_function(kernel, target), arrays, {})
        for p in kernel.params:
            assert (np.isfinite(arrays[p.name]) == np.isfinite(expected[p.name])).all()


def test_results_do_not_depend_on_the_number_of_threads() -> None:
    x, w = tensor(2, 5, 30, 31).realize(), tensor(5, 1, 5, 5).realize()
    found = []
    for threads in (1, 2, 4):
        with config(threads=threads):
            found.append(x.conv2d(w, groups=5, padding=2).numpy().tobytes())
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("case, target", [
    (case, target) for case in (("forward", 3), ("forward", 5), ("data", 5), ("weight", 3), ("weight", 5))
    for target in (AVX512, AVX2) if case != ("weight", 5) or target is AVX512],  # 25 sums, 16 registers
    ids=lambda x: x.name if isinstance(x, Target) else str(x))
def test_no_accumulator_lives_on_the_stack(case: tuple[str, int], target: Target) -> None:
    (of, kernel), register = case, "%zmm" if target is AVX512 else "%ymm"
    result = depthwise(of, 28, 32, kernel=kernel, padding=kernel // 2)
    step = schedule(build_graph([result.node]), frozenset(), target).steps[-1]
    stage = stages_of(step.kernel, target).stages[0]
    assert stage.plan.pattern == "window"
    lines = assembly(render_llvm(stage.function, target).source, target.cpu).splitlines()
    sums = [line for line in lines if "vfmadd" in line and register in line]
    assert len(sums) >= 2 * kernel  # at least those of one column of taps
    first, last = (k for k, line in enumerate(lines) if line is sums[0] or line is sums[-1])
    stored = [line for line in lines[first:last] if "vmov" in line and line.rstrip().endswith("(%rsp)")]
    assert not stored, "\n".join(stored)


def test_windows_over_random_numbers_are_built_in_time_that_grows_with_their_operations():
    """A value whose parts share parts, as random bits do, has 2**100 paths: each part is looked at once."""
    from minigrad import manual_seed

    found = []
    for realized in (False, True):
        manual_seed(3)
        x, w = Tensor.randn(2, 1, 14, 14, device="CPU"), Tensor.randn(8, 1, 3, 3, device="CPU")
        if realized:
            Tensor.realize(x, w)
        found.append(x.conv2d(w).relu().numpy())
    np.testing.assert_allclose(*found, rtol=1e-5, atol=1e-5)
