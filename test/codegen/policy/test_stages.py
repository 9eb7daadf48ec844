"""Policies: a scheduled kernel equals its unscheduled self under the interpreters, for several targets.

Every pass of the pipeline is verified, every text round-trips, and no plan changes a result.
"""
# Tests know their dims are ints.
# mypy: disable-error-code="arg-type"

from typing import Any

import numpy as np
import pytest
from conftest import one_in
from support.plan_reading import lanes
from support.stages import AVX512, CASES, arguments, kernels, tensor

from minigrad import Tensor
from minigrad.codegen import passes
from minigrad.codegen.ir.interpret import interpret_function
from minigrad.codegen.ir.nodes import Alloc
from minigrad.codegen.ir.text import parse_function, print_function
from minigrad.codegen.ir.verify import verify_function
from minigrad.codegen.ir.walk import statements
from minigrad.codegen.kernel.interpret import interpret_kernel
from minigrad.codegen.kernel.nodes import Kernel
from minigrad.codegen.kernel.text import parse_kernel, print_kernel
from minigrad.codegen.passes import stages_of
from minigrad.codegen.plan.several import Plan, parse_plan
from minigrad.errors import PlanError
from minigrad.expr import evaluate
from minigrad.scheduler.graph import build_graph
from minigrad.scheduler.schedule import schedule
from minigrad.target import Target

AVX2 = Target("avx2", "llvm", "x86-64-v3", 32, 16, 2, features=frozenset({"avx2", "fma"}))
NEON = Target("neon", "llvm", "generic", 16, 32, 4)
GPU = Target("gpu", "opencl", "gpu", 4, 64, 40, local_memory=64 << 10, max_group=256)
TARGETS = (AVX512, AVX2, NEON, GPU)


def run_stages(kernel: Kernel, arrays: dict[str, np.ndarray], scalars: dict[str, float], target: Target) -> None:
    staged = stages_of(kernel, target)
    flat = {name: a.reshape(-1) for name, a in arrays.items()}
    first_scratch = len(kernel.params)
    for p in staged.kernel.params[first_scratch:]:
        flat[p.name] = np.zeros(evaluate(p.shape[0], {}), p.dtype.np)
    for stage in staged.stages:
        assert parse_function(print_function(stage.function)) == stage.function
        verify_function(stage.function)
        dims = {v.name: evaluate(e, {}) for v, e in zip(stage.function.dims, stage.dims, strict=True)}
        interpret_function(stage.function, flat, scalars, dims)


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
@pytest.mark.parametrize("case", CASES)
@one_in(3)
def test_scheduled_equals_unscheduled(case: str, target: Target) -> None:
    for kernel in kernels(CASES[case](), target):
        assert parse_kernel(print_kernel(kernel)) == kernel
        arrays = arguments(kernel)
        scalars = {s.name: 0.75 for s in kernel.scalars}
        expected = {name: a.copy() for name, a in arrays.items()}
        interpret_kernel(kernel, expected, scalars)
        run_stages(kernel, arrays, scalars, target)
        for p in kernel.params:
            if p.mode != "in":
                np.testing.assert_allclose(arrays[p.name], expected[p.name], rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("case", CASES)
def test_every_pass_keeps_the_meaning(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run, forms = passes.run, list[Kernel]()

    def kept(*args: Any) -> Kernel:
        forms.append(run(*args))
        return forms[-1]

    monkeypatch.setattr(passes, "run", kept)
    for kernel in kernels(CASES[case](), AVX2):
        forms.clear()
        passes.flat_form(kernel)
        arrays = arguments(kernel)
        scalars = {s.name: 0.75 for s in kernel.scalars}
        expected = {name: a.copy() for name, a in arrays.items()}
        interpret_kernel(kernel, expected, scalars)
        for changed in dict.fromkeys(forms):
            got = {name: a.copy().reshape(-1) for name, a in arrays.items()}
            interpret_kernel(changed, got, scalars)
            for param in kernel.params:
                if param.mode != "in":
                    np.testing.assert_allclose(got[param.name], expected[param.name].reshape(-1), rtol=2e-5, atol=2e-5)


def test_no_division_in_an_inner_loop_where_extents_divide() -> None:
    for case in ("pointwise", "conv", "strided data gradient", "reshape after permute", "window of a flattened"):
        for kernel in kernels(CASES[case](), AVX2):
            for stage in stages_of(kernel, AVX2).stages:
                inner = print_function(stage.function).split("parallel:")[1]
                lines = [line for line in inner.splitlines() if not line.lstrip().startswith("for ")]
                divided = [word for line in lines for word in line.split() if "//" in word or "%" in word]
                assert all("p//" in w or "p%" in w or "(p" in w for w in divided), (case, divided)


def test_what_is_no_plan() -> None:
    with pytest.raises(PlanError, match="expected"):
        parse_plan("plan pattern='nonsense'")


def test_policies_follow_from_use() -> None:
    found = {}
    for case in ("pointwise", "rows", "row sum", "matmul", "conv"):
        kernel = kernels(CASES[case](), AVX2)[-1]
        found[case] = stages_of(kernel, AVX2).stages[0].plan.pattern
    assert found == {"pointwise": "pointwise", "rows": "rows", "row sum": "reduction", "matmul": "panels",
                     "conv": "contraction"}


def test_a_long_sum_has_two_stages() -> None:
    staged = stages_of(kernels(CASES["long sum"](), AVX2)[0], AVX2)
    assert len(staged.stages) == 2 and len(staged.scratch) == 1
    assert stages_of(kernels(CASES["long sum"](), AVX2)[0], AVX512).scratch == staged.scratch


def test_zeros_between_those_of_a_strided_gradient_are_stored_in_vectors() -> None:
    """Three of four phases of a 1x1 convolution's gradient: every other element of a row."""
    x, w = tensor(1, 2, 32, 32), tensor(3, 2, 1, 1)
    x.requires_grad = True
    y = x.conv2d(w, stride=2)
    gradient = y.gradient(x, gradient=tensor(*y.shape))[0]
    kernel = schedule(build_graph([gradient.node]), frozenset(), AVX2).steps[-1].kernel
    for vector_bytes, expected in (32, 8), (16, 4):
        target = Target("some", "llvm", "generic", vector_bytes, 16, 2)
        plans = [s.plan for s in stages_of(kernel, target).stages]
        assert [lanes(p) for p in plans if isinstance(p, Plan) and p.pattern == "pointwise"] == [expected] * 3


def contraction(m: int, n: int, k: int = 40, bias: bool = True) -> Tensor:
    """Both operands contiguous along the sum, with an epilogue that reads."""
    y = tensor(m, k) @ tensor(n, k).transpose(0, 1)
    return (y + tensor(m, n)).silu() if bias else y


@pytest.mark.parametrize("target", TARGETS[:3], ids=lambda t: t.name)
@pytest.mark.parametrize("shape", [(8, 10), (8, 6), (9, 5), (4, 4), (3, 7), (8, 3), (7, 13)], ids=str)
def test_the_last_tile_of_a_contraction_reaches_back(shape: tuple[int, int], target: Target) -> None:
    """Its sums are written out once; what is stored is its own, once."""
    kernel, = kernels(contraction(*shape), target)
    staged = stages_of(kernel, target)
    plan, function = staged.stages[0].plan, staged.stages[0].function
    assert isinstance(plan, Plan) and plan.pattern == "contraction"
    alloc = [s for s in statements(function) if isinstance(s, Alloc) and s.name.startswith("acc")]
    assert len(alloc) == 1, "no further tile for the edges"
    arrays = arguments(kernel)
    expected = {name: a.copy() for name, a in arrays.items()}
    interpret_kernel(kernel, expected, {})
    run_stages(kernel, arrays, {}, target)
    for p in kernel.params:
        if p.mode != "in":
            np.testing.assert_allclose(arrays[p.name], expected[p.name], rtol=2e-5, atol=2e-5)


def test_contractions_with_whole_tiles_share_a_program() -> None:
    found = [stages_of(kernels(contraction(8, n), AVX512)[0], AVX512).stages[0].function for n in (5, 6, 3)]
    assert found[0] == found[1] != found[2]
    x, w = tensor(8, 48), tensor(10, 48)
    np.testing.assert_allclose((x @ w.transpose(0, 1)).numpy(), x.numpy() @ w.numpy().T, rtol=1e-4, atol=1e-4)


def test_products_share_a_program_where_workers_take_whole_ones() -> None:
    """Batches of matrices, one for a worker: the tile and K, how often a copy's loop runs, stay constants."""
    found = {stages_of(kernels(tensor(b, m, 48) @ tensor(b, 48, n), AVX512)[0], AVX512).stages[0].function
             for b, m, n in ((64, 24, 64), (80, 36, 128))}
    assert len(found) == 1


@pytest.mark.parametrize("short", [2, 3, 8, 16, 17])
def test_sums_of_several_lengths_in_one_kernel(short: int) -> None:
    """A loop that a short sum is written out in is a constant of the program, also where a split made it."""
    r = np.random.default_rng(short)
    for long in (2, 5, 16, 20, 33, 64, 100):
        x, y = r.random(short, np.float32), r.random(long, np.float32)
        a, b = Tensor(x, device="CPU"), Tensor(y, device="CPU")
        total = (a * a.sin()).sum() + (b * b.sin()).sum() / 3
        np.testing.assert_allclose(total.numpy(), (x * np.sin(x)).sum() + (y * np.sin(y)).sum() / 3, rtol=1e-5)
