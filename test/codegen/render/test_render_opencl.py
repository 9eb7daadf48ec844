"""OpenCL C of every case, run on each platform that the machine has and compared with the interpreter."""
from __future__ import annotations

import re
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
from support import render_cases
from support.golden_plans import TARGETS
from support.render_cases import CASES, Case

from minigrad import config
from minigrad.codegen.ir.text import parse_function
from minigrad.codegen.kernel.text import parse_kernel
from minigrad.codegen.passes import stages_of
from minigrad.codegen.render.opencl import render_opencl
from minigrad.codegen.render.opencl_language import uses_double
from minigrad.errors import DeviceError
from minigrad.runtime.opencl_build import Builder, build_quietly
from minigrad.runtime.opencl_devices import DeviceInfo, devices
from minigrad.runtime.opencl_quirks import NARROW_CODE
from minigrad.target import Target

OF_64_BYTES = r"\b(float|u?int)16\b|\b(double|u?long)8\b"
NO_WIDE_VECTORS = "this driver compiles for vectors of 32 bytes, and its LLVM may end the process at wider ones"


@lru_cache
def context(info: DeviceInfo):
    cl = pytest.importorskip("pyopencl")
    made = cl.Context([info.handle])
    return made, cl.CommandQueue(made)


@lru_cache
def kernels(info: DeviceInfo) -> dict[str, Any]:
    """The kernels of the cases that a driver takes, by name; built together, since builds are what takes time."""
    programs = {case.name: render_opencl(case.function, info.target) for case in CASES
                if "fp64" in info.target.features or not uses_double(case.function)}
    if NARROW_CODE in info.quirks:
        programs = {name: p for name, p in programs.items() if not re.search(OF_64_BYTES, p.source)}
    with config(disk_cache=False):
        kernels = Builder(info, context(info)[0]).kernels(programs.values())
        return {name: kernels[p] for name, p in programs.items()}


def run(case: Case, info: DeviceInfo) -> dict[str, np.ndarray]:
    """The buffers after the kernel ran; each is placed two elements into its memory."""
    import pyopencl as cl

    if case.name not in kernels(info):
        pytest.skip(NO_WIDE_VECTORS)
    (made, queue), kernel = context(info), kernels(info)[case.name]
    buffers, extent = render_cases.arguments(case)
    values: list = []
    memory = {}
    for name, array in buffers.items():
        shifted = np.concatenate([np.zeros(2, array.dtype), array, np.zeros(16, array.dtype)])
        memory[name] = cl.Buffer(made, cl.mem_flags.COPY_HOST_PTR, hostbuf=shifted)
        values += [memory[name], np.int64(2)]
    values += [np.float32(case.scalars[s.name]) for s in case.function.scalars]
    values += [np.int64(case.dims[d.name]) for d in case.function.dims]
    kernel(queue, (max(1, extent) + 2,), (1,), *values, np.int64(extent))
    for name, array in buffers.items():
        whole = np.zeros(array.size + 18, array.dtype)
        cl.enqueue_copy(queue, whole, memory[name])
        array[:] = whole[2:-16]
    return buffers


def found() -> list[DeviceInfo]:
    """Of each platform the device that is preferred: a second build of PoCL would take what the first one did."""
    try:
        return list({d.platform: d for d in reversed(devices())}.values())
    except DeviceError:
        return []


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
@pytest.mark.parametrize("info", found(), ids=lambda d: f"{d.index}-{d.platform.replace(' ', '_')}")
def test_equals_interpreter(case, info):
    if uses_double(case.function) and "fp64" not in info.target.features:
        pytest.skip("the device has no float64")
    render_cases.check(case, run(case, info))


TARGET = Target("CL", "opencl", "none", 32, 16, 4)


def source_of(text: str, target: Target = TARGET) -> str:
    return render_opencl(parse_function(text), target).source


def test_index_arithmetic_is_narrow_only_where_it_fits():
    text = ("func f(in x: f32[n], out y: f32[n], n: index in 1..{n})\n  for i in 0..n parallel:\n"
            "    y[i] = x[n - 1 - i]\n")
    assert "const int i" in source_of(text.replace("{n}", "100000"))
    assert "const long i" in source_of(text.replace("{n}", "5000000000"))


def test_float64_needs_a_device_that_has_it():
    text = "func f(in x: f64[8], out y: f64[8])\n  for i in 0..8 parallel:\n    y[i] = x[i] * 2.0:f64\n"
    with pytest.raises(DeviceError, match="has no float64"):
        source_of(text)
    assert "cl_khr_fp64" in source_of(text, replace(TARGET, features=frozenset({"fp64"})))


def test_names_of_the_language_are_not_shadowed():
    source = source_of("func f(in float: f32[8], out max: f32[8])\n  for i in 0..8 parallel:\n    max[i] = float[i]\n")
    assert "float_[" in source and "max_[" in source


def test_long_literals_are_64_bits():
    source = source_of("func f(in x: i64[8], out y: i64[8])\n  for i in 0..8 parallel:\n"
                       "    y[i] = x[i] + 5000000000:i64\n")
    assert "5000000000L" in source and "LL" not in source


@pytest.mark.parametrize("lanes, hint", [(1, ""), (2, "float2"), (3, "float4"), (8, "float8"), (16, "float16"),
                                         (20, "float16")])
def test_kernels_of_vectors_say_so(lanes, hint):
    """Compilers that make vectors of work-items take twice as long where they try."""
    source = source_of(f"func f(in x: f32[{8 * lanes}], out y: f32[{8 * lanes}])\n  for i in 0..8 parallel:\n"
                       f"    for l in 0..{lanes} {'vector' if hint else 'serial'}:\n"
                       f"      y[{lanes} * i + l] = x[{lanes} * i + l] + 1.0\n")
    assert re.findall(r"vec_type_hint\((\w+)\)", source) == ([hint] if hint else [])


FOUR_BITS = """func f(in x: u32[64], out y: f32[64])
  for i in 0..4 parallel:
    for l in 0..16 vector:
      prefetch x[16 * i + 16]
      y[l + 16 * i] = f32(i32(x[l + 16 * i] >> 8:u32 & 15:u32) - 8)
"""


@pytest.mark.parametrize("info", found(), ids=lambda d: f"{d.index}-{d.platform.replace(' ', '_')}")
@pytest.mark.parametrize("feature", ["__AVX512F__", "NO_SUCH_FEATURE"])
def test_functions_of_four_bits_are_looked_up_or_computed(info, feature):
    import pyopencl as cl

    if NARROW_CODE in info.quirks:
        pytest.skip(NO_WIDE_VECTORS)
    target = replace(info.target, vector_bytes=64)
    program = render_opencl(parse_function(FOUR_BITS), target)
    assert "of_four_bits(" in program.source and "fetch(" in program.source
    made, queue = context(info)
    source = program.source.replace("__AVX512F__", feature)
    kernel = cl.Kernel(build_quietly(cl.Program(made, source), []), program.name)
    words = np.random.default_rng(0).integers(0, 2**32, 64, np.uint32)
    x, y = (cl.Buffer(made, cl.mem_flags.COPY_HOST_PTR, hostbuf=a) for a in (words, np.zeros(64, np.float32)))
    kernel(queue, (4,), (1,), x, np.int64(0), y, np.int64(0), np.int64(4))
    found = np.zeros(64, np.float32)
    cl.enqueue_copy(queue, found, y)
    np.testing.assert_array_equal(found, (words >> 8 & 15).astype(np.float32) - 8)


def test_other_functions_of_four_bits_are_computed():
    source = source_of(FOUR_BITS.replace("- 8)", "* 3)"))
    assert "of_four_bits" not in source


MIXED = """kernel mixed(out o0: f32[1, 3], p0: f32[1, 5], p1: i64[1], p2: f32[5, 3])
  for i1<3:
    t0 = sum(r0<5: where(i64(index(r0)) != p1[0], p0[0, r0] / 3.0, p0[0, r0]) * p2[r0, i1])
    o0[0, i1] = t0
"""
FILLED = """kernel filled(out o0: i64[64])
  for i0<64:
    o0[i0] = 9:i64
"""


@pytest.mark.parametrize("text", [MIXED, FILLED])
def test_vectors_fit_a_register_whatever_else_a_kernel_has(text):
    """A driver that takes the processor for an older one passes wider vectors to its functions by two conventions."""
    target = replace(TARGETS["pocl"], vector_bytes=32)
    stage, = stages_of(parse_kernel(text), target).stages
    source = render_opencl(stage.function, target).source
    assert re.search(r"\blong4\b", source) and not re.search(OF_64_BYTES, source)
