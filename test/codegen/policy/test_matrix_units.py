"""Matrix units of GPUs: plans and loops against the kernel, what their work-items load, what compilers make of it."""
import re
import shutil
from collections.abc import Callable
from ctypes import CFUNCTYPE, c_int64, c_void_p
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from conftest import drivers
from support.packed import arguments, equal_the_kernel, flat_kernel, tensor

import minigrad
from minigrad import Tensor, config
from minigrad.codegen.ir.interpret import interpret_function
from minigrad.codegen.ir.text import meaning_of
from minigrad.codegen.ir.verify import verify_function, verify_meaning
from minigrad.codegen.kernel.interpret import interpret_kernel
from minigrad.codegen.kernel.nodes import Nest
from minigrad.codegen.microkernels.matrix import UNITS, WAVE, MatrixUnit, matrix_microkernel
from minigrad.codegen.passes import render, stages_of
from minigrad.codegen.plan.build_nests import build_nests
from minigrad.codegen.plan.several import parse_plan
from minigrad.codegen.plan.steps import Plan
from minigrad.codegen.policy import tiles
from minigrad.dtype import float32
from minigrad.report.occupancy import occupancy
from minigrad.runtime.device import Launch
from minigrad.runtime.opencl import OpenCL, open_device
from minigrad.runtime.opencl_build import build_quietly
from minigrad.runtime.registry import get_device
from minigrad.target import Target

GPU = Target("gpu", "opencl", "none", 4, 64, 8, local_memory=48 << 10, max_group=256)
NV = replace(GPU, language="nvptx", features=frozenset({"mma-f16", "mma-bf16"}))
ROUNDING = replace(NV, features=NV.features | {"mma-tf32"})
AMD = replace(GPU, language="amdgpu", features=frozenset({"wmma-f16", "wmma-bf16"}))
NAMES = [f"{u.name}_{language}" for u in UNITS
         for language in (("opencl", "nvptx") if u.family == "mma" else ("amdgpu",))]


def half(*shape: int, kind: str = "float16") -> Tensor:
    return tensor(*shape).cast(kind).contiguous().realize()


def wide(*shape: int, kind: str = "float16") -> Tensor:
    """Half values as float32, so that what is computed from them is not rounded to halves."""
    return half(*shape, kind=kind).float()


CASES: dict[str, Callable[[], Tensor]] = {
    "a @ b": lambda: wide(40, 36) @ wide(36, 30),
    "a.T @ b.T": lambda: wide(33, 20).transpose(0, 1) @ wide(40, 33).transpose(0, 1),
    "batched bfloat16": lambda: wide(2, 17, 35, kind="bfloat16") @ wide(2, 35, 20, kind="bfloat16"),
    "epilogue": lambda: (wide(36, 32).linear(wide(32, 40)) + tensor(40)).relu(),
    "conv": lambda: wide(1, 4, 5, 7).conv2d(wide(20, 4, 3, 3), padding=1),
}
FLOATS: dict[str, Callable[[], Tensor]] = {
    "a @ b": lambda: tensor(40, 36) @ tensor(36, 30),
    "a.T @ b.T": lambda: tensor(33, 20).transpose(0, 1) @ tensor(40, 33).transpose(0, 1),
    "prologue and epilogue": lambda: ((tensor(36, 32) * 1.5).exp() @ tensor(32, 40) + tensor(40)).relu(),
    "conv": lambda: tensor(1, 4, 5, 7).conv2d(tensor(20, 4, 3, 3), padding=1),
}


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles with edges in small tests."""
    monkeypatch.setattr(tiles, "MIN_WORK", 1)
    monkeypatch.setattr(tiles, "IN_UNITS", ((32, 16, 2, 1),))


def tiled(nest: Nest, target: Target) -> tuple[Nest, Plan]:
    """A contraction's plan for work-groups, and the nest that it is for."""
    made = tiles.plan(nest, target)
    assert isinstance(made, tuple), made
    return made


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("target", [NV, AMD], ids=["nvidia", "amd"])
def test_loops_equal_the_kernel(case: str, target: Target, small: None) -> None:
    kernel = flat_kernel(CASES[case](), target)
    nest, = kernel.nests
    own, plan = tiled(nest, target)
    assert plan.pattern == "matrix" and parse_plan(str(plan)) == plan
    equal_the_kernel(kernel, [build_nests(kernel.with_nests((own,)), plan, "f")])


def rounded(x: np.ndarray) -> np.ndarray:
    """float32 to nearest with 10 bits of mantissa, from halves away from zero."""
    mantissa, exponent = np.frexp(x.astype(np.float64))
    scaled = np.ldexp(mantissa, 11)
    return np.ldexp(np.trunc(scaled + np.copysign(0.5, scaled)), exponent - 11).astype(np.float32)


@pytest.mark.parametrize("case", FLOATS)
def test_units_that_round_float32(case: str, small: None) -> None:
    """Of operands that numpy rounded before, the loops of tiles make what the kernel makes of them."""
    kernel = flat_kernel(FLOATS[case](), ROUNDING)
    nest, = kernel.nests
    own, plan = tiled(nest, ROUNDING)
    assert parse_plan(str(plan)) == plan and "call mma_tf32_nvptx at v" in str(plan)
    function = build_nests(kernel.with_nests((own,)), plan, "f")
    verify_function(function)
    arrays, scalars = arguments(kernel), {s.name: 1.5 for s in kernel.scalars}
    near: np.ndarray | float = 3e-5
    if case == "prologue and epilogue":
        # What is rounded is computed there: each factor by 2**-11 of it at most, so the sum by 2**-10 of all products.
        products = {n: np.zeros_like(a) if n == "p2" else np.abs(a) if n == "p1" else a.copy()
                    for n, a in arrays.items()}
        interpret_kernel(kernel, products, scalars)
        near = near + 1.001 * 2.0 ** -10 * products["o0"]
    else:
        arrays = {n: rounded(a) if n in ("p0", "p1") else a for n, a in arrays.items()}
    coarse, exact = ({n: a.copy() for n, a in arrays.items()} for _ in range(2))
    interpret_function(function, coarse, scalars)
    interpret_kernel(kernel, exact, scalars)
    assert (np.abs(coarse["o0"] - exact["o0"]) <= near + 3e-5 * np.abs(exact["o0"])).all()


def test_the_meaning_rounds_as_numpy_does() -> None:
    kernel = matrix_microkernel("mma_tf32_opencl")
    assert kernel is not None
    random = np.random.default_rng(3)
    a, b = (random.standard_normal((n, 8)).astype(np.float32) for n in (16, 8))
    a[0, :4] = 1 + 2.0 ** -11, -1 - 2.0 ** -11, 1 + 2.0 ** -12, 3.0000002  # halves, and less than a half
    a[1, 0], b[0, 0] = np.float32(3.4e38), 1e-30
    expected = rounded(a).astype(np.float64) @ rounded(b).astype(np.float64).T
    unit = UNITS[-1]
    for lane in range(WAVE):
        sums = np.zeros(4, np.float32)
        interpret_function(meaning_of(kernel), {"a": a.ravel(), "b": b.ravel(), "c": sums}, {},
                           {"lane": lane, "a_pitch": 8, "b_pitch": 8})
        there = [expected[int(str(i)), int(str(j))] for i, j in (unit.place(lane, e) for e in range(4))]
        np.testing.assert_allclose(sums, there, rtol=2e-6, atol=1e-6)
    assert rounded(a)[0, :3].tolist() == [1 + 2.0 ** -10, -1 - 2.0 ** -10, 1.0]


def test_infinities_and_nans_pass_the_rounding() -> None:
    kernel = matrix_microkernel("mma_tf32_opencl")
    assert kernel is not None
    a, b = np.zeros((16, 8), np.float32), np.ones((8, 8), np.float32)
    a[0, 0], a[8, 0] = np.inf, np.frombuffer(b"\xff\xff\xff\x7f", np.float32)[0]  # a NaN of all bits
    sums = np.zeros(4, np.float32)
    interpret_function(meaning_of(kernel), {"a": a.ravel(), "b": b.ravel(), "c": sums}, {},
                       {"lane": 0, "a_pitch": 8, "b_pitch": 8})
    assert np.isposinf(sums[:2]).all() and np.isnan(sums[2:]).all()


def test_float32_is_rounded_only_where_it_is_allowed() -> None:
    """The setting is part of what plans are made for."""
    def texts() -> str:
        a, b = (Tensor(np.ones((256, 256), np.float32), device="NV:sm_86") for _ in range(2))
        return minigrad.show(a @ b, stage="plan")

    assert "mma" not in texts()
    with config(allow_tf32=True):
        assert "call mma_tf32_nvptx at " in texts()
    assert "mma" not in texts()
    assert pattern(half(64, 64) @ half(64, 64), ROUNDING) == "matrix"
    with config(allow_tf32=True):
        device = get_device("NV:sm_75")
        assert "mma-tf32" not in device.target.features


def pattern(x: Tensor, target: Target) -> str:
    """What a contraction runs by."""
    return tiled(flat_kernel(x, target).nests[0], target)[1].pattern


def test_other_operands_and_devices_have_tiles_without_units() -> None:
    assert pattern(half(64, 64) @ half(64, 64), NV) == "matrix"
    assert pattern(half(64, 64) @ half(64, 64), GPU) == "tiles"
    assert pattern(tensor(64, 64) @ tensor(64, 64), NV) == "tiles"
    mixed = half(64, 64).float() @ half(64, 64, kind="bfloat16").float()
    assert pattern(mixed, NV) == "tiles"
    computed = (half(64, 64).float() * 1.5) @ half(64, 64).float()
    assert pattern(computed, NV) == "tiles"
    assert pattern(wide(64, 64) @ wide(64, 64), NV) == "matrix"
    assert pattern(half(64, 64) @ half(64, 64), replace(NV, local_memory=16 << 10, max_group=64)) == "matrix"


# ---- what a work-item gives the unit ----


@pytest.mark.parametrize("unit", UNITS, ids=lambda u: u.name)
def test_every_sum_has_one_owner(unit: MatrixUnit) -> None:
    places = [unit.place(lane, e) for lane in range(WAVE) for e in range(unit.each)]
    assert sorted(places) == [(i, j) for i in range(unit.rows) for j in range(unit.columns)]
    kernel = matrix_microkernel(f"{unit.name}_{'nvptx' if unit.family == 'mma' else 'amdgpu'}")
    assert kernel is not None
    verify_meaning(kernel)


def expected_words(lane: int, a: np.ndarray, b: np.ndarray) -> list[int]:
    """The operand registers as the PTX manual has them: of m16n8k16 two neighbours along k in each, of m16n8k8 a float.
    """
    g, k = lane // 4, lane % 4 * 2
    if a.dtype == np.float32:
        k = lane % 4
        places = [(a, g + 8 * (r % 2), k + 4 * (r // 2)) for r in range(4)] + [(b, g, k + 4 * r) for r in range(2)]
        return [int(x[i, j].view(np.uint32)) for x, i, j in places]
    words = [(a, g + 8 * (r % 2), k + 8 * (r // 2)) for r in range(4)] + [(b, g, k + 8 * r) for r in range(2)]
    return [int(x[i, j]) | int(x[i, j + 1]) << 16 for x, i, j in words]


PITCHES = (24, 40)


def operands(unit: MatrixUnit) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    if unit.stored is float32:
        return (random.standard_normal((unit.rows, PITCHES[0])).astype(np.float32),
                random.standard_normal((unit.columns, PITCHES[1])).astype(np.float32))
    return (random.integers(0, 1 << 16, (unit.rows, PITCHES[0]), np.uint16),
            random.integers(0, 1 << 16, (unit.columns, PITCHES[1]), np.uint16))


@pytest.mark.parametrize("name", [n for n in NAMES if "opencl" not in n])
def test_work_items_load_what_the_unit_expects(name: str) -> None:
    """The texts for LLVM, up to the instruction, whose operands are stored instead, run on this processor."""
    import llvmlite.binding as llvm

    kernel = matrix_microkernel(name)
    assert kernel is not None and kernel.implementation is not None
    unit = next(u for u in UNITS if name.startswith(u.name))
    loads, = re.findall(r"(define .*\n)  %new = ", kernel.implementation, re.DOTALL)
    mma = unit.family == "mma"
    kinds = ["i32"] * 6 if mma else ["<16 x half>" if unit.name == "wmma_f16" else "<16 x i16>"] * 2
    given = ["a0", "a1", "a2", "a3", "b0", "b1"] if mma else ["a.x", "b.x"]
    lines = [f"  %at{i} = getelementptr i8, ptr %c0, i64 {i * (4 if mma else 32)}\n"
             f"  store {kind} %{x}, ptr %at{i}, align 4" for i, (kind, x) in enumerate(zip(kinds, given, strict=True))]
    loads, rounds = re.subn(r'call i32 asm "cvt.rna.tf32.f32 \$0, \$1;", "=r,f"\((.*)\) nounwind memory\(none\)',
                            r"bitcast \1 to i32", loads)
    assert rounds == (6 if unit.name == "mma_tf32" else 0)
    text = "\n".join([loads.replace("internal ", "").replace("addrspace(5) ", ""), *lines, "  ret void", "}"])
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine()
    with llvm.create_mcjit_compiler(llvm.parse_assembly(text), machine) as engine:
        engine.finalize_object()
        call = CFUNCTYPE(None, *[c_void_p] * (2 + unit.each), *[c_int64] * 3)(engine.get_function_address(name))
        a, b = operands(unit)
        for lane in range(WAVE):
            out = np.zeros(32, np.uint32)
            call(a.ctypes.data, b.ctypes.data, *[out.ctypes.data] * unit.each, lane, *PITCHES)
            if mma:
                assert out[:6].tolist() == expected_words(lane, a, b)
            else:
                found = out.view(np.uint16)
                assert (found[:16] == a[lane % 16, :16]).all() and (found[16:32] == b[lane % 16, :16]).all()


@pytest.mark.parametrize("unit", [u for u in UNITS if u.name in ("mma_f16", "mma_tf32")], ids=lambda u: u.name)
@pytest.mark.parametrize("device", drivers())
def test_work_items_load_what_the_unit_expects_in_opencl(device: str, unit: MatrixUnit) -> None:
    import pyopencl as cl

    kernel = matrix_microkernel(f"{unit.name}_opencl")
    assert kernel is not None and kernel.implementation is not None
    given = [f"c0[{i}] = as_float({x});" for i, x in enumerate(("a0", "a1", "a2", "a3", "b0", "b1"))]
    text, rounds = re.subn(r'asm\("cvt.rna.tf32.f32 %0, %1;" : "=r"\((\w+)\) : "f"\((.*)\)\);', r"\1 = as_uint(\2);",
                           kernel.implementation)
    assert rounds == (6 if unit.name == "mma_tf32" else 0)
    text, count = re.subn(r"asm\(.*\);", " ".join(given), text)
    a, b = operands(unit)
    kind = "float" if unit.stored is float32 else "ushort"
    source = text + f"""
__kernel __attribute__((reqd_work_group_size(32, 1, 1)))
void run(__global const {kind} *a, __global const {kind} *b, __global float *out) {{
    __local {kind} la[{a.size}] __attribute__((aligned(64))), lb[{b.size}] __attribute__((aligned(64)));
    const int lane = get_local_id(0);
    for (int i = lane; i < {a.size}; i += 32) la[i] = a[i];
    for (int i = lane; i < {b.size}; i += 32) lb[i] = b[i];
    barrier(CLK_LOCAL_MEM_FENCE);
    float words[6];
    {kernel.name}(la, lb, words, words, words, words, lane, {PITCHES[0]}, {PITCHES[1]});
    for (int i = 0; i < 6; ++i) out[6 * lane + i] = words[i];
}}"""
    assert count == 1
    context = cl.Context([open_device(device.partition(":")[2]).info.handle])
    queue = cl.CommandQueue(context)
    memory = [cl.Buffer(context, cl.mem_flags.COPY_HOST_PTR, hostbuf=x) for x in (a, b, np.zeros(192, np.float32))]
    cl.Kernel(build_quietly(cl.Program(context, source), []), "run")(queue, (32,), (32,), *memory)
    words = np.zeros((32, 6), np.uint32)
    cl.enqueue_copy(queue, words, memory[2])
    assert words.tolist() == [expected_words(lane, a, b) for lane in range(WAVE)]


# ---- whole kernels ----


def run_on(device: OpenCL) -> None:
    """A product planned for matrix units, on a device without: the meaning runs, through local memory and barriers."""
    for cases, target in ((CASES, NV), (FLOATS, ROUNDING)):
        run_case(device, cases["conv"](), target)


def run_case(device: OpenCL, result: Tensor, target: Target) -> None:
    staged = stages_of(flat_kernel(result, target), target)
    stage, = staged.stages
    assert stage.plan.pattern == "matrix"
    arrays = arguments(staged.kernel)
    if target is ROUNDING:
        arrays = {n: rounded(a) for n, a in arrays.items()}
    expected = {n: a.copy() for n, a in arrays.items()}
    interpret_kernel(staged.kernel, expected, {})
    executable, = device.load([render(stage.function, device.target)])
    buffers = [device.alloc(a.nbytes) for a in arrays.values()]
    for buffer, array in zip(buffers, arrays.values(), strict=True):
        device.copy_in(buffer, array)
    device.launch([Launch(executable, tuple(buffers), int(stage.extent))])
    device.copy_out(buffers[0], arrays["o0"])
    np.testing.assert_allclose(arrays["o0"], expected["o0"], rtol=3e-5, atol=3e-5)


@pytest.mark.parametrize("name", drivers())
def test_the_meaning_runs_where_there_is_no_unit(name: str, small: None) -> None:
    run_on(open_device(name.partition(":")[2]))


@pytest.mark.parametrize("name, kind, said", [
    ("NV:sm_86", "float16", "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32"),
    ("NV:sm_90", "bfloat16", "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32"), ("NV:sm_75", "float16", ""),
    ("NV:sm_86", "float32", "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32"),
    ("AMD:gfx1100", "float16", "v_wmma_f32_16x16x16_f16"), ("AMD:gfx1100", "bfloat16", "v_wmma_f32_16x16x16_bf16"),
    ("AMD:gfx1031", "float16", "")])
def test_compilers_keep_sums_in_registers(name: str, kind: str, said: str) -> None:
    def prepare() -> Callable[[], object]:
        a, b = (Tensor(np.ones(shape, np.float32)).cast(kind).contiguous() for shape in ((512, 256), (256, 512)))
        return lambda: (a @ b).realize()

    with config(allow_tf32=True):
        found = occupancy(name, prepare)
    device: Any = get_device(name)
    kernels = [k for k, _ in found.kernels if k.program.group]
    assert kernels
    texts = [device.assembly(k.program) for k in kernels]
    assert any("mma" in t for t in texts) == bool(said) and all(said in t for t in texts)
    for k in kernels:
        if name.startswith("AMD") or shutil.which("ptxas"):
            assert k.resources is not None and k.resources.private == k.resources.spills == 0
