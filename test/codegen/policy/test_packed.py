"""Packed contractions: recognition, the packed form against the kernel as written, and on the CPU against numpy."""
# Tests know their dims are ints.
# mypy: disable-error-code="arg-type,type-var"
from dataclasses import replace

import numpy as np
import pytest
from conftest import needs_device, one_in
from support.machine_code import assembly
from support.packed import (
    AVX2,
    AVX512,
    CASES,
    TARGETS,
    TINY,
    all_blocks,
    arguments,
    built,
    each_choice,
    equal_the_kernel,
    flat_kernel,
    gradient_of_conv,
    parts_equal_the_kernel,
    rng,
    tensor,
)

from minigrad import Tensor, config
from minigrad.codegen.cost.plans import estimate
from minigrad.codegen.ir.interpret import interpret_function
from minigrad.codegen.ir.verify import verify_function
from minigrad.codegen.kernel.interpret import interpret_kernel
from minigrad.codegen.kernel.nodes import Kernel, Param
from minigrad.codegen.passes import stages_of
from minigrad.codegen.patterns.recognise import Contraction, recognise
from minigrad.codegen.policy import packed as packed_module
from minigrad.codegen.policy import split_k as split_k_module
from minigrad.codegen.policy.blocking import Blocks
from minigrad.codegen.policy.packed import ways, why_unpacked
from minigrad.codegen.policy.window_axes import swapped
from minigrad.codegen.render.llvm import render_llvm
from minigrad.codegen.render.opencl import render_opencl
from minigrad.scheduler.graph import build_graph
from minigrad.scheduler.schedule import schedule
from minigrad.target import Target


def gradient_by_weights(x: Tensor, w: Tensor) -> Tensor:
    w.requires_grad = True
    return x.conv2d(w, padding=1).gradient(w, gradient=tensor(x.shape[0], w.shape[0], *x.shape[2:]))[0]


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
@pytest.mark.parametrize("case", CASES)
@one_in(3)
def test_packed_equals_the_kernel(case: str, target: Target) -> None:
    """Each time by another choice of another way to copy operands."""
    kernel = flat_kernel(CASES[case](), target)
    found, turn = each_choice(kernel, target), 3 * list(CASES).index(case) + TARGETS.index(target)
    equal_the_kernel(kernel, [built(kernel, nest, made) for nest, made in zip(
        kernel.nests, found[turn % len(found)], strict=True)])


def of_windows(kernel: Kernel, target: Target, swapped: bool) -> Blocks:
    """The first choice that packs a window as a box."""
    return next(made for made in all_blocks(kernel.nests[0], target) if made.windows and made.swapped == swapped)


WINDOWS = {
    "conv": lambda: tensor(2, 3, 9, 9).conv2d(tensor(5, 3, 3, 3), padding=1).relu(),
    "conv of whole images": lambda: tensor(5, 3, 4, 5).conv2d(tensor(5, 3, 3, 3), padding=1),
    "conv without padding": lambda: tensor(1, 3, 9, 8).conv2d(tensor(4, 3, 2, 3)),
    "strided conv": lambda: tensor(1, 3, 11, 12).conv2d(tensor(4, 3, 3, 3), stride=2, padding=1),
    "strided conv of an even kernel": lambda: tensor(2, 2, 12, 12).conv2d(tensor(4, 2, 4, 2), stride=2, padding=1),
    "stride 3": lambda: tensor(1, 2, 17, 19).conv2d(tensor(4, 2, 5, 4), stride=3, padding=2),
    "dilated conv": lambda: tensor(1, 3, 12, 11).conv2d(tensor(4, 3, 3, 3), dilation=2, padding=2),
    "dilated strided conv": lambda: tensor(1, 2, 19, 18).conv2d(tensor(4, 2, 3, 3), dilation=3, stride=2, padding=1),
    "grouped conv": lambda: tensor(2, 4, 9, 9).conv2d(tensor(6, 2, 3, 3), padding=1, groups=2),
    "rows only": lambda: tensor(2, 3, 9, 9).conv2d(tensor(5, 3, 3, 1)),
    "prologue": lambda: (tensor(2, 3, 9, 9) * tensor(3, 1, 1) + 1.0).relu().conv2d(tensor(5, 3, 3, 3), padding=1),
    "prologue of weights": lambda: tensor(2, 3, 9, 9).conv2d(tensor(5, 3, 3, 3) * 2.0 + 1.0, padding=1),
    "1 dimension": lambda: tensor(2, 4, 30).conv2d(tensor(5, 4, 5), padding=2),
    "3 dimensions": lambda: tensor(1, 2, 5, 6, 7).conv2d(tensor(4, 2, 3, 3, 2), padding=1),
    "data gradient": lambda: gradient_of_conv("data", 9),
    "dilated data gradient": lambda: gradient_of_conv("data", 11, dilation=2),
    "strided data gradient": lambda: gradient_of_conv("data", 9, stride=2),
    "weight gradient": lambda: gradient_of_conv("weight", 9),
    "strided weight gradient": lambda: gradient_of_conv("weight", 12, stride=2),
    "dilated weight gradient": lambda: gradient_of_conv("weight", 9, dilation=2),
    "grouped weight gradient": lambda: gradient_of_conv("weight", 7, groups=2),
}


@pytest.mark.parametrize("target", [AVX512, TINY], ids=lambda t: t.name)
@pytest.mark.parametrize("case", WINDOWS)
def test_windows_are_packed_once_per_element(case: str, target: Target) -> None:
    """Each time by another choice of another way that does so: as they are, and as rows."""
    kernel = flat_kernel(WINDOWS[case](), target)
    found = [made for made in each_choice(kernel, target) if any(blocks.windows for blocks in made)]
    check_plans(kernel, found[(list(WINDOWS).index(case) + 2 * (target is TINY)) % len(found)])


@pytest.mark.parametrize("case", [
    "conv without padding", "strided conv", "stride 3", "dilated conv", "1 dimension", "prologue", "data gradient"])
def test_convolutions_with_lanes_along_channels(case: str) -> None:
    """Rows of a tile are columns of the image, parts of its rows are blocks."""
    kernel = flat_kernel(WINDOWS[case](), AVX2)
    plans = []
    for nest in kernel.nests:
        found = recognise(nest)
        assert isinstance(found, Contraction), found
        made = next(made for made in all_blocks(nest, AVX2) if made.swapped)
        outer, inner = next(tap for _, tap in made.windows), made.m[-1][0]
        sizes = {v.name: v.hi + 1 for v in swapped(found).m}
        cut, last = (max(d for d in range(1, sizes[v] // 2 + 1) if sizes[v] % d == 0) for v in (outer, inner))
        m = tuple((name, cut if name == outer else part) for name, part in made.m)
        plans.append(replace(made, m=m, rows=last))
    check_plans(kernel, plans)


def check_plans(kernel: Kernel, plans: list[Blocks]) -> None:
    """A kernel of which each nest runs by a plan gives what it gives as written."""
    arrays, scalars = arguments(kernel), {s.name: 0.75 for s in kernel.scalars}
    expected = {name: a.copy() for name, a in arrays.items()}
    interpret_kernel(kernel, expected, scalars)
    for nest, made in zip(kernel.nests, plans, strict=True):
        function = built(kernel, nest, made)
        verify_function(function)
        interpret_function(function, arrays, scalars)
    np.testing.assert_allclose(arrays["o0"], expected["o0"], rtol=3e-5, atol=3e-5)


@pytest.mark.parametrize("images, rows", [(2, 4), (3, 4), (1, 3)])
def test_windows_in_blocks_of_images_and_of_rows(images: int, rows: int) -> None:
    kernel = flat_kernel(tensor(5, 2, 4, 5).conv2d(tensor(6, 2, 3, 3), padding=1))
    made = of_windows(kernel, AVX2, False)
    n = tuple((name, part) for (name, _), part in zip(made.n, (images, rows, 5), strict=True))
    check_plans(kernel, [replace(made, n=n)])


@pytest.mark.parametrize("images, rows", [(2, 7), (3, 2), (1, 3)])
def test_swapped_windows_in_blocks_of_images_and_of_rows(images: int, rows: int) -> None:
    x, w = tensor(5, 3, 7, 6), tensor(10, 3, 3, 3)
    w.requires_grad = True
    kernel = flat_kernel(x.conv2d(w, padding=1).gradient(w, gradient=tensor(5, 10, 7, 6))[0])
    made = of_windows(kernel, AVX2, True)
    k = tuple((name, part) for (name, _), part in zip(made.k, (images, rows, 6), strict=True))
    check_plans(kernel, [replace(made, k=k, m=(("i1", 2), ("i2", 3), ("i3", 3)))])


@pytest.mark.parametrize("case", ["a @ b", "conv", "epilogue", "weight gradient"])
def test_packed_renders_in_every_language(case: str) -> None:
    kernel = flat_kernel(CASES[case]())
    for made in all_blocks(kernel.nests[0], AVX2):
        function = built(kernel, kernel.nests[0], made)
        assert render_llvm(function, AVX2).scratch > 0
        program = render_opencl(function, replace(AVX2, language="opencl", local_memory=1 << 20))
        assert "__local float" in program.source and program.scratch > 0 and program.group == 1
        assert "__local" not in render_opencl(function, replace(AVX2, language="opencl")).source


def test_groups_of_variables() -> None:
    def groups(case: str) -> tuple[int, ...]:
        found = recognise(flat_kernel(CASES[case]()).nests[0])
        assert isinstance(found, Contraction), found
        return tuple(len(vs) for vs in (found.batch, found.m, found.n, found.k))

    assert groups("a @ b") == (0, 1, 1, 1)
    assert groups("batched") == (1, 1, 1, 1)
    assert groups("one a for all") == (0, 1, 2, 1)
    assert groups("heads") == (2, 1, 1, 1)
    assert groups("conv") == (0, 1, 3, 3)
    assert groups("grouped conv") == (1, 1, 3, 3)
    assert groups("weight gradient") == (0, 1, 3, 3)


@pytest.mark.parametrize("result, reason", [
    (lambda: tensor(4, 9).sum(1), "belong together"),
    (lambda: (tensor(4, 9) * tensor(4, 9)).sum(1), "belong together"),
    (lambda: tensor(4, 9).max(1), "the reduction is max"),
    (lambda: tensor(1, 6, 9, 9).conv2d(tensor(6, 1, 3, 3), groups=6), "belong together"),
    (lambda: (tensor(7, 5, 1, 6) * tensor(7, 1, 4, 6)).sum(0), "i2 is used by both operands"),
    (lambda: tensor(4, 9) * 2.0, "0 reductions"),
])
def test_what_is_no_contraction_says_why(result, reason: str) -> None:
    found = recognise(flat_kernel(result()).nests[0])
    assert isinstance(found, str) and found.startswith("not a contraction: ") and reason in found


def test_what_is_not_packed_says_why() -> None:
    def reason(m: int, n: int, k: int) -> str:
        return why_unpacked(flat_kernel(tensor(m, k) @ tensor(k, n)).nests[0], AVX2)

    assert reason(300, 310, 300) == reason(64, 64, 16) == ""
    assert reason(32, 32, 32) == "not packed: M=32 N=32 K=32 is too small"
    assert reason(300, 300, 15) == "not packed: M=300 N=300 K=15 is too small"
    assert reason(1, 2048, 2048).startswith("not a contraction: ")
    kernel = flat_kernel(tensor(300, 300) @ tensor(300, 300))
    assert "a GPU has too little memory" in why_unpacked(kernel.nests[0], replace(AVX2, vector_bytes=4))


def test_blocks_fit_the_caches() -> None:
    for m, n, k in ((2048, 2048, 2048), (64, 3136, 576), (1000, 50, 4000), (13, 9000, 27)):
        for target in (AVX512, AVX2):
            kernel = flat_kernel(tensor(m, k) @ tensor(k, n), target)
            for made in all_blocks(kernel.nests[0], target, 2):
                program = render_llvm(built(kernel, kernel.nests[0], made), target)
                assert 0 < program.scratch <= target.l2 * 1.1


def test_convolutions_of_a_network_share_programs_and_need_no_buffer() -> None:
    """ResNet-18: (input channels, size, output channels, kernel, stride) of its distinct convolutions."""
    layers = ((3, 224, 64, 7, 2), (64, 56, 64, 3, 1), (64, 56, 128, 3, 2), (64, 56, 128, 1, 2), (128, 28, 128, 3, 1),
              (128, 28, 256, 3, 2), (128, 28, 256, 1, 2), (256, 14, 256, 3, 1), (256, 14, 512, 3, 2),
              (256, 14, 512, 1, 2), (512, 7, 512, 3, 1))
    programs = set()
    for depth, size, out, kernel, stride in layers:
        x, w = (Tensor.empty(*shape, device="CPU") for shape in ((1, depth, size, size), (out, depth, kernel, kernel)))
        y = x.conv2d(w, stride=stride, padding=kernel // 2)
        staged = stages_of(schedule(build_graph([y.node]), frozenset(), AVX512).steps[-1].kernel, AVX512)
        assert not staged.scratch
        for stage in staged.stages:
            program = render_llvm(stage.function, AVX512)
            programs.add(program.source)
            assert program.scratch <= AVX512.l2 * 1.1
    assert len(programs) <= 12


def test_results_do_not_depend_on_the_number_of_threads() -> None:
    a, b = tensor(300, 700).realize(), tensor(700, 310).realize()
    x, w = tensor(2, 32, 24, 24).realize(), tensor(48, 32, 3, 3).realize()
    found = []
    for threads in (1, 2, 4):
        with config(threads=threads):
            found.append(((a @ b).numpy().tobytes(), x.conv2d(w, padding=1).numpy().tobytes()))
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("case, make, expected", [
    ("matmul", lambda a, b: a @ b, lambda a, b: a @ b),
    ("a.T", lambda a, b: a.transpose(0, 1) @ b, lambda a, b: a.T @ b),
    ("b.T", lambda a, b: a @ b.transpose(0, 1), lambda a, b: a @ b.T),
    ("both", lambda a, b: (a.transpose(0, 1) @ b.transpose(0, 1) + 1.5).relu(),
     lambda a, b: np.maximum(a.T @ b.T + 1.5, 0)),
])
@pytest.mark.parametrize("device", ["CPU", pytest.param("CL:pocl", marks=needs_device("CL:pocl"))])
def test_on_processors(case: str, make, expected, device: str) -> None:
    a, b = rng.standard_normal((307, 307)).astype(np.float32), rng.standard_normal((307, 307)).astype(np.float32)
    got = make(Tensor(a, device=device), Tensor(b, device=device)).numpy()
    np.testing.assert_allclose(got, expected(a.astype(np.float64), b.astype(np.float64)), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("target, register", [(AVX512, "zmm"), (AVX2, "ymm")], ids=["avx512", "avx2"])
@pytest.mark.parametrize("make", [
    lambda: tensor(512, 512) @ tensor(512, 512),
    lambda: tensor(1200, 516).transpose(0, 1) @ tensor(1200, 512),
    lambda: tensor(510, 300) @ tensor(208, 300).transpose(0, 1),
    lambda: tensor(1, 64, 56, 56).conv2d(tensor(64, 64, 3, 3), padding=1),
    lambda: tensor(2, 64, 14, 14).conv2d(tensor(128, 64, 3, 3), padding=1, stride=2).relu(),
    lambda: gradient_by_weights(tensor(2, 64, 28, 28), tensor(64, 64, 3, 3)),
], ids=["a @ b", "a.T @ b", "a @ b.T", "conv", "strided conv", "weight gradient"])
def test_no_accumulator_lives_on_the_stack(make, target: Target, register: str) -> None:
    """In any way to copy operands."""
    kernel = flat_kernel(make(), target)
    for made in all_blocks(kernel.nests[0], target):
        program = render_llvm(built(kernel, kernel.nests[0], made), target)
        lines = assembly(program.links[0].source if program.links else program.source, target.cpu).splitlines()
        sums = [line for line in lines if "vfmadd" in line]
        assert len(sums) % (made.rows * made.vectors) == 0 and all(register in line for line in sums)
        first, last = (k for k, line in enumerate(lines) if line is sums[0] or line is sums[-1])
        start = max(k for k in range(first) if lines[k].endswith(":"))
        stop = next(k for k in range(last, len(lines)) if lines[k].startswith("\tj"))
        inner = lines[start:stop]
        assert not [line for line in inner if register in line and "%rsp" in line], "\n".join(inner)


@pytest.mark.parametrize("target", [AVX512, AVX2], ids=lambda t: t.name)
def test_a_long_sum_with_few_outputs_is_split(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed_module, "MIN_WORK", 1)
    monkeypatch.setattr(split_k_module, "MIN_WORK", 1)
    monkeypatch.setattr(split_k_module, "MIN_PART", 20)
    kernel = flat_kernel((tensor(20, 160).relu() @ tensor(160, 24) + tensor(24)).relu(), target)
    scratch: list[Param] = []
    nests = split_k_module.split_k(kernel.nests[0], scratch, target)
    assert len(nests) == 2 and len(scratch) == 1 and not why_unpacked(nests[0], target)
    assert split_k_module.split_k(kernel.nests[0], [], replace(target, units=64)) == nests
    parts_equal_the_kernel(kernel, nests, scratch)


def test_what_is_read_across_is_transposed_in_registers() -> None:
    """Weights along the lanes: whole vectors along K, transposed in registers."""
    kernel = flat_kernel(tensor(1, 512, 7, 7).conv2d(tensor(512, 512, 3, 3), padding=1), AVX512)
    function = built(kernel, kernel.nests[0], of_windows(kernel, AVX512, True))
    source = render_llvm(function, AVX512).source
    assert source.count("shufflevector <16 x float>") >= 64 and "insertelement <16 x float> %" not in source


def test_weight_gradients_on_the_cpu() -> None:
    x, w = tensor(4, 24, 56, 56), tensor(20, 24, 1, 1)
    x.requires_grad = w.requires_grad = True
    y = x.conv2d(w)
    scale = tensor(*y.shape)
    found = (y * scale).sum().gradient(w)[0]
    expected = np.einsum("nohw,nchw->oc", scale.numpy().astype(np.float64), x.numpy().astype(np.float64))
    np.testing.assert_allclose(found.numpy()[:, :, 0, 0], expected, rtol=1e-4, atol=1e-2)


def test_operands_whose_lines_do_not_stay_near_are_packed() -> None:
    """A gradient by data reads one tap of the weights, 9 elements apart: a line for each row and step of the sum."""
    def memory(kernel: int) -> bool:
        """True where memory takes longest if they are read in place."""
        x, w = tensor(1, 64, 56, 56), tensor(128, 64, kernel, kernel)
        x.requires_grad = True
        y = x.conv2d(w, stride=2, padding=kernel // 2)
        nest = flat_kernel(y.gradient(x, gradient=tensor(*y.shape))[0], AVX512).nests[0]
        own, plan = next(made for way in ways(nest, AVX512) for made in [way.made(way.choices[0][1], AVX512)]
                         if len(made[1].stages) == 1)
        found = estimate(own, plan, AVX512)
        return found.memory > max(found.arithmetic, found.ports)

    assert memory(3) and not memory(1)
