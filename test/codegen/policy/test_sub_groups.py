"""Sub-groups: sums that are joined by them, the microkernel and its text, and where they are declined."""
# Tests know their dims are ints.
# mypy: disable-error-code="arg-type,type-var"
import re
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from conftest import drivers, each_driver
from support.groups import GPU, REDUCTIONS
from support.packed import arguments, equal_the_kernel, flat_kernel, tensor

from minigrad import Tensor, config
from minigrad.codegen.ir.interpret import interpret_function
from minigrad.codegen.ir.nodes import Barrier
from minigrad.codegen.ir.nodes import Call as IRCall
from minigrad.codegen.ir.text import meaning_of, parse_function
from minigrad.codegen.ir.verify import verify_meaning
from minigrad.codegen.ir.walk import statements
from minigrad.codegen.kernel.interpret import interpret_kernel
from minigrad.codegen.microkernels.registry import find
from minigrad.codegen.microkernels.sub_group import width_of
from minigrad.codegen.passes import render, stages_of
from minigrad.codegen.plan.build_nests import build_nests
from minigrad.codegen.plan.several import Plan, parse_plan
from minigrad.codegen.plan.steps import Call
from minigrad.codegen.policy import group_reduction
from minigrad.runtime.device import Launch
from minigrad.runtime.opencl import OpenCL, open_device
from minigrad.runtime.opencl_build import build_quietly
from minigrad.runtime.opencl_devices import has_sub_groups
from minigrad.target import Target

SUB = replace(GPU, features=frozenset({"sub-groups"}), sub_group=8)
JOINED = ("sum of rows", "all", "mean and more", "matrix and vector", "softmax", "layer norm", "int32")
"""Cases whose neighbouring work-items are of one row."""


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_reduction, "GROUP", 32)
    monkeypatch.setattr(group_reduction, "NEIGHBOURS", 8)


def sub_group(plan: Plan | str) -> int:
    """How many neighbours the plan of a sum has join at once, 0 for none."""
    assert isinstance(plan, Plan), plan
    return max((width_of(s.kernel) for s in plan.steps if isinstance(s, Call)), default=0)


def width(result: Tensor, target: Target) -> int:
    return sub_group(group_reduction.plan(flat_kernel(result, target).nests[0], target))


@pytest.mark.parametrize("case", JOINED)
def test_teams_equal_the_kernel(case: str, small: None) -> None:
    kernel = flat_kernel(REDUCTIONS[case](), SUB)
    nest, = kernel.nests
    plan = group_reduction.plan(nest, SUB)
    assert sub_group(plan) == 8 and parse_plan(str(plan)) == plan
    function = build_nests(kernel.with_nests((nest,)), plan, "f")
    reductions = sum(isinstance(s, IRCall) for s in statements(function))
    barriers = sum(isinstance(s, Barrier) for s in statements(function))
    assert reductions and barriers == 2 * reductions  # a tree of 32 work-items has six
    equal_the_kernel(kernel, [function])


def test_where_the_tree_stays(small: None) -> None:
    assert width(tensor(7, 150).sum(1), SUB) == 8
    assert width(tensor(7, 150).sum(1), GPU) == 0
    assert width(tensor(7, 150).sum(1), replace(SUB, sub_group=12)) == 0
    assert width(tensor(7, 150).sum(1), replace(SUB, sub_group=64)) == 0  # the group is smaller
    assert width(tensor(7, 150).prod(1), SUB) == 0
    assert width(tensor(150, 7).sum(0), SUB) == 0  # neighbours are of different rows


@pytest.mark.parametrize("monoid", ["sum", "max", "min"])
@pytest.mark.parametrize("kind", ["f32", "i64"])
def test_the_meaning(monoid: str, kind: str) -> None:
    kernel = find(f"sub_{monoid}_{kind}_16")
    assert kernel is not None and find(f"sub_{monoid}_{kind}_12") is None and find(f"sub_prod_{kind}_16") is None
    verify_meaning(kernel)
    dtype = np.float32 if kind == "f32" else np.int64
    part = (np.random.default_rng(1).standard_normal(16) * 100).astype(dtype)
    total = np.zeros(1, dtype)
    interpret_function(meaning_of(kernel), {"part": part, "total": total}, {})
    np.testing.assert_allclose(total[0], {"sum": part.sum(), "max": part.max(), "min": part.min()}[monoid], rtol=1e-5)


def test_plans_use_them_only_where_they_are_asked_for() -> None:
    """A device that has sub-groups names them to plans under the setting, and none here has."""
    from minigrad.runtime.inspected import InspectedGpu

    device = InspectedGpu("NV", "sm_86")
    assert device.target.sub_group == 0 and "sub-groups" not in device.target.features
    device.target = replace(device.target, features=frozenset({"sub-groups", "mma-tf32"}), sub_group=32)
    assert device.target.features == frozenset()
    with config(sub_groups=True):
        assert device.target.features == {"sub-groups"} and device.target.sub_group == 32
        assert width(tensor(7, 1500).sum(1), device.target) == 32
    with config(sub_groups=True, allow_tf32=True):
        assert device.target.features == {"sub-groups", "mma-tf32"}
    assert width(tensor(7, 1500).sum(1), device.target) == 0


DEVICES = drivers()


@pytest.mark.parametrize("name", DEVICES)
def test_the_meaning_runs_where_there_are_none(name: str, small: None) -> None:
    run_on(open_device(name.partition(":")[2]))


def run_on(device: OpenCL) -> None:
    """Plans for sub-groups, on a device without: the meaning runs."""
    for case in ("softmax", "int32"):
        staged = stages_of(flat_kernel(REDUCTIONS[case](), SUB), SUB)
        stage, = staged.stages
        assert isinstance(stage.plan, Plan) and sub_group(stage.plan) == 8
        arrays = arguments(staged.kernel)
        expected = {n: a.copy() for n, a in arrays.items()}
        scalars = {s.name: 0.75 for s in staged.kernel.scalars}
        interpret_kernel(staged.kernel, expected, scalars)
        program = render(stage.function, device.target)
        assert "sub_group_" not in program.source
        assert "sub_group_reduce_add(x)" in render(stage.function, SUB).source
        executable, = device.load([program])
        buffers = [device.alloc(a.nbytes) for a in arrays.values()]
        for buffer, array in zip(buffers, arrays.values(), strict=True):
            device.copy_in(buffer, array)
        device.launch([Launch(executable, (*buffers, *scalars.values()), stage.extent)])
        device.copy_out(buffers[0], arrays["o0"])
        np.testing.assert_allclose(arrays["o0"], expected["o0"], rtol=3e-5, atol=3e-5)


STAND_INS = """
#define get_sub_group_size() SIZE
#define get_sub_group_id() ((uint)get_local_id(0) / 8)
#define get_sub_group_local_id() (get_local_id(0) % 8)
#define sub_group_all(x) (x)
#define sub_group_any(x) any_of(part)
#define sub_group_reduce_add(x) joined(part, 0)
#define sub_group_reduce_max(x) joined(part, 1)
#define sub_group_reduce_min(x) joined(part, 2)
int any_of(__local const float *part) {
    int found = 0;
    for (int i = 0; i < 8; ++i) found |= part[i] != part[i];
    return found;
}
float joined(__local const float *part, int how) {
    float total = part[7];
    for (int i = 6; i >= 0; --i)
        total = how == 0 ? total + part[i] : how == 1 ? fmax(total, part[i]) : fmin(total, part[i]);
    return total;
}
"""


@pytest.mark.parametrize("size", [8, 16], ids=["by sub-groups", "by the loop"])
@pytest.mark.parametrize("name", DEVICES)
def test_the_text_joins_what_a_sub_group_has(name: str, size: int) -> None:
    """With stand-ins for the functions of sub-groups, of 8 neighbours or of a size that was not planned for."""
    import pyopencl as cl

    kernels = [find(f"sub_{monoid}_f32_8") for monoid in ("sum", "max", "min")]
    texts = [k.implementation for k in kernels if k is not None and k.implementation is not None]
    calls = "\n".join(f"    {k.name}(local_x + get_local_id(0) / 8 * 8, &total);\n"
                      f"    out[{16 * i} + get_local_id(0)] = total;" for i, k in enumerate(kernels) if k is not None)
    source = STAND_INS.replace("SIZE", str(size)) + "\n".join(texts) + f"""
__kernel __attribute__((reqd_work_group_size(16, 1, 1))) void run(__global const float *x, __global float *out) {{
    __local float local_x[16];
    float total;
    local_x[get_local_id(0)] = x[get_local_id(0)];
    barrier(CLK_LOCAL_MEM_FENCE);
{calls}
}}"""
    x = np.random.default_rng(5).standard_normal(16).astype(np.float32)
    x[11] = np.nan
    context = cl.Context([open_device(name.partition(":")[2]).info.handle])
    queue = cl.CommandQueue(context)
    memory = [cl.Buffer(context, cl.mem_flags.COPY_HOST_PTR, hostbuf=a) for a in (x, np.zeros(48, np.float32))]
    cl.Kernel(build_quietly(cl.Program(context, source), []), "run")(queue, (16,), (16,), *memory)
    out = np.zeros((3, 16), np.float32)
    cl.enqueue_copy(queue, out, memory[1])
    for row, expected in zip(out, (x[:8].sum(), x[:8].max(), x[:8].min()), strict=True):
        np.testing.assert_allclose(row[:8], expected, rtol=1e-5)
        assert np.isnan(row[8:]).all()


@pytest.mark.parametrize("version, extensions, features, there", [
    ("OpenCL 1.2 CUDA", "cl_khr_fp64", None, False),
    ("OpenCL 2.0 AMD-APP (3590.0)", "cl_khr_subgroups cl_khr_fp64", None, True),
    ("OpenCL 3.0 ", "cl_khr_subgroups", [], True),
    ("OpenCL 3.1 (Build 0)", "cl_intel_subgroups cl_intel_required_subgroup_size", ["__opencl_c_subgroups"], True),
    ("OpenCL 3.0 NEO", "cl_khr_subgroup_shuffle", ["__opencl_c_images", "__opencl_c_fp64"], False),
])
def test_sub_groups_are_an_extension_or_a_feature(version: str, extensions: str, features: list[str] | None,
                                                  there: bool) -> None:
    device = SimpleNamespace(version=version, extensions=extensions)
    if features is not None:  # older devices cannot be asked
        device.opencl_c_features = [SimpleNamespace(name=name) for name in features]
    assert has_sub_groups(device) is there


@each_driver
@pytest.mark.parametrize("name", DEVICES)
def test_devices_say_what_they_have(name: str) -> None:
    """The size that plans are made for is that of the sub-groups in kernels that ask for it, or of all."""
    device = open_device(name.partition(":")[2])
    info = device.info
    assert (info.sub_group > 0) == ("sub-groups" in info.features)
    if not info.sub_group:
        assert not has_sub_groups(info.handle)
        return
    kernel, target = find(f"sub_sum_f32_{info.sub_group}"), replace(info.target, vector_bytes=4)
    assert kernel is not None
    function = parse_function(f"""func f(in x: f32[128], out y: f32[128])
  for g in 0..1 group:
    alloc part: f32[128] local
    for t in 0..128 item:
      part[t] = x[t]
      barrier
      alloc total: f32[1] register
      call {kernel.name}(part[t//{info.sub_group}*{info.sub_group}], total[0])
      y[t] = total[0]
""")
    program = render(function, target)
    assert ("intel_reqd_sub_group_size" in program.source) == ("sized sub-groups" in info.features)
    source = re.sub(r"\*sum = .*;", "*sum = get_sub_group_size();", program.source, count=1)
    executable, = device.load([replace(program, source=source)])
    x, out = np.ones(128, np.float32), np.zeros(128, np.float32)
    buffers = [device.alloc(x.nbytes), device.alloc(x.nbytes)]
    device.copy_in(buffers[0], x)
    device.launch([Launch(executable, (*buffers,), 1)])
    device.copy_out(buffers[1], out)
    assert (out == info.sub_group).all()
