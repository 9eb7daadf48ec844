"""The table of what drivers do differently: which drivers each row is about, and what we do there."""
import numpy as np
import pytest
from conftest import drivers, each_driver
from support.opencl_device import SCALE, fill, read

from minigrad import Tensor
from minigrad.codegen.ir.text import parse_function
from minigrad.codegen.render.opencl import render_opencl
from minigrad.runtime import opencl_devices
from minigrad.runtime.device import Launch
from minigrad.runtime.opencl import OpenCL, open_device
from minigrad.runtime.opencl_quirks import (
    COMPILES_LATE,
    FINISH_SKIPS_FLUSHED,
    GROUPS_GO_ON,
    INTERPRETER,
    LOOP_BUDGET,
    NARROW_BYTES,
    NARROW_CODE,
    OWN_CACHE,
    PRODUCTS_EMULATED,
    QUIRKS,
    SIGNS_LOST,
    SOFTWARE,
    SUMS_REORDERED,
    SUPERSEDED,
    TRY_COMPILING,
    UNITS_UNKNOWN,
    WALL_TIME,
    quirks_of,
    short_name,
)

pytestmark = each_driver


@pytest.fixture(params=drivers())
def device(request) -> OpenCL:
    return open_device(request.param.partition(":")[2])


# Drivers that each row is about, and some that it is not about: (platform, device, version).
POCL = ("Portable Computing Language", "pthread-AMD EPYC", "PoCL HSTR: pthread-x86_64-znver3")
LLVMPIPE = ("rusticl", "llvmpipe (LLVM 15.0.6, 256 bits)", "OpenCL 3.0")
RADEON = ("rusticl", "AMD Radeon RX 6700 XT (navi22, LLVM 17)", "OpenCL 3.0")
NVIDIA = ("NVIDIA CUDA", "NVIDIA H100", "OpenCL 3.0 CUDA")
INTEL = ("Intel(R) OpenCL", "AMD EPYC", "OpenCL 3.1 (Build 0)")
INTEL_GPU = ("Intel(R) OpenCL Graphics", "Intel(R) Arc(TM) A770 Graphics", "OpenCL 3.0 NEO")
ABOUT = {
    WALL_TIME: ([LLVMPIPE, RADEON], [POCL, NVIDIA]),
    FINISH_SKIPS_FLUSHED: ([LLVMPIPE, RADEON], [POCL, NVIDIA]),
    SOFTWARE: ([LLVMPIPE], [RADEON, POCL]),
    INTERPRETER: ([("Oclgrind", "Oclgrind Simulator", "OpenCL 1.2")], [POCL, LLVMPIPE]),
    LOOP_BUDGET: ([LLVMPIPE], [RADEON, POCL]),
    UNITS_UNKNOWN: ([LLVMPIPE], [RADEON, POCL]),
    SUPERSEDED: ([("Clover", "AMD Radeon", "OpenCL 1.1")], [RADEON, NVIDIA]),
    OWN_CACHE: ([POCL], [LLVMPIPE, NVIDIA]),
    COMPILES_LATE: ([POCL], [LLVMPIPE, NVIDIA]),
    GROUPS_GO_ON: ([POCL, INTEL], [LLVMPIPE, NVIDIA, INTEL_GPU, (POCL[0], "NVIDIA H100", "PoCL HSTR: CUDA")]),
    NARROW_CODE: ([POCL], [LLVMPIPE, NVIDIA, (*POCL[:2], "PoCL HSTR: pthread-x86_64-skylake-avx512")]),
    SIGNS_LOST: ([INTEL], [POCL, LLVMPIPE, INTEL_GPU]),
    SUMS_REORDERED: ([INTEL], [POCL, LLVMPIPE, INTEL_GPU]),
    PRODUCTS_EMULATED: ([INTEL], [POCL, LLVMPIPE, INTEL_GPU]),
    TRY_COMPILING: ([(*POCL[:2], "PoCL HSTR: pthread-x86_64-generic")], [POCL, NVIDIA]),
}


def test_quirks_are_rows_with_reasons():
    assert all(q.reason for q in QUIRKS) and {q.what for q in QUIRKS} == set(ABOUT)
    for what, (yes, no) in ABOUT.items():
        assert all(what in quirks_of(*driver) for driver in yes)
        assert not any(what in quirks_of(*driver) for driver in no)


def test_times_are_known_with_and_without_events(device):
    scale, = device.load([SCALE])
    x = fill(device, np.ones(100_000, np.float32))
    device.elapsed()
    device.launch([Launch(scale, (x, x, 1.0, 0), 100_000)] * 3)
    assert 0 < device.elapsed() < 60
    assert device._wall == (WALL_TIME in device.info.quirks)


def test_waiting_waits_for_what_was_flushed(device):
    import pyopencl as cl

    scale, = device.load([SCALE])
    x = fill(device, np.ones(3_000_000, np.float32))
    device.launch([Launch(scale, (x, x, 1.0, 1), 3_000_000)] * 10)
    last = device._events[-1][1]
    device.synchronize()
    assert last.get_info(cl.event_info.COMMAND_EXECUTION_STATUS) == cl.command_execution_status.COMPLETE


def test_a_driver_with_a_cache_of_its_own_is_asked_for_no_binary(device):
    device.load([SCALE])
    build = next(iter(device._builder._builds.values()))
    assert (device._builder._binary(build) == b"") == (OWN_CACHE in device.info.quirks)


def test_what_does_not_compile_is_not_listed(monkeypatch):
    made = []
    monkeypatch.setattr(opencl_devices, "quirks_of", lambda *_: frozenset({TRY_COMPILING}))
    monkeypatch.setattr(opencl_devices, "_compiles", lambda device: bool(made.append(device)))
    for info in opencl_devices.devices():
        assert opencl_devices._describe(info.handle) is None and made[-1] is info.handle


def test_vectors_are_as_wide_as_the_drivers_code(device):
    narrow = NARROW_CODE in device.info.quirks
    assert device.target.vector_bytes <= (NARROW_BYTES if narrow else opencl_devices.MAX_VECTOR_BYTES)
    if narrow:
        assert device.target.registers == 16


def test_whole_numbers_become_floats_at_every_width(device):
    values = np.arange(-100, 157, dtype=np.int32)
    np.testing.assert_array_equal(Tensor(values, device=device.name).cast("float32").numpy(), values.astype(np.float32))


def test_a_loop_of_a_work_item_adds_in_order(device):
    text = """func sums(in x: f32[n], out y: f32[1], n: index in 1..999)
  alloc acc: f32[1] register
  acc[0] = 0.0
  for i in 0..n serial:
    acc[0] = acc[0] + x[i]
  y[0] = acc[0]
"""
    executable, = device.load([render_opencl(parse_function(text), device.target)])
    x = np.random.default_rng(1).standard_normal(500).astype(np.float32)
    y = device.alloc(4)
    device.launch([Launch(executable, (fill(device, x), y, x.size), 1)])
    assert read(y, np.float32, 1)[0] == np.cumsum(x)[-1]


@pytest.mark.parametrize("kind", ["int8", "uint8", "int16", "uint16"])
def test_narrow_integers_at_edges(device, kind):
    """Numbers that are read where there are some, 0 elsewhere, before they are made wider."""
    random = np.random.default_rng(2)
    low, high = np.iinfo(kind).min, np.iinfo(kind).max
    a, b, x = (random.integers(low, high, shape).astype(kind) for shape in ((40, 64), (64, 64), (37, 41)))
    product = (Tensor(a, device=device.name) @ Tensor(b, device=device.name)).numpy()
    np.testing.assert_array_equal(product, (a.astype(np.int64) @ b.astype(np.int64)).astype(product.dtype))
    padded = Tensor(x, device=device.name).float().pad(((1, 2), (3, 1))).sum(0)
    np.testing.assert_array_equal(padded.numpy(), np.pad(x.astype(np.float32), ((1, 2), (3, 1))).sum(0))


def test_platforms_have_short_names():
    names = {POCL[0]: "pocl", "rusticl": "rusticl", "NVIDIA CUDA": "nvidia", "Intel(R) OpenCL": "intel",
             "AMD Accelerated Parallel Processing": "amd", "Oclgrind": "oclgrind", "": ""}
    assert {platform: short_name(platform) for platform in names} == names
