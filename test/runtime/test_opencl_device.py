"""The OpenCL device with programs written by hand: memory, arguments, launches, caches, names, forks."""
import os
import signal
import subprocess
import sys
import textwrap
from typing import Any

import numpy as np
import pytest
from conftest import drivers, each_driver, needs_device
from support.opencl_device import SCALE, fill, read
from support.paths import ROOT

from minigrad import Tensor
from minigrad.errors import DeviceError, InternalError
from minigrad.program import Program
from minigrad.runtime import opencl_devices
from minigrad.runtime.device import Buffer, Launch
from minigrad.runtime.opencl import CPU_SINGLE_LIMIT, OpenCL, open_device

pytestmark = each_driver


@pytest.fixture(params=drivers())
def device(request) -> OpenCL:
    return open_device(request.param.partition(":")[2])


def test_same_device_is_one_object(device):
    assert open_device(device.name.partition(":")[2]) is device
    assert open_device(f" {device.info.name.upper()} ") is device
    assert device.target.name == device.name == f"CL:{device.info.index}"


def test_target_says_what_the_driver_says(device):
    target = device.target
    assert target.language == "opencl" and target.units >= 1 and target.local_memory > 0 and target.max_group >= 64
    extensions = device.info.handle.extensions.split()
    assert ("fp64" in target.features) == ("cl_khr_fp64" in extensions)
    assert ("fp16" in target.features) == ("cl_khr_fp16" in extensions)
    assert target.is_gpu == (target.vector_bytes == 4)


@pytest.mark.parametrize("extent", [1, 63, 64, 1000, CPU_SINGLE_LIMIT, CPU_SINGLE_LIMIT + 1, 100_003])
def test_extents_and_offsets(device, extent):
    x = np.random.default_rng(extent).standard_normal(extent + 5).astype(np.float32)
    source, target = fill(device, x), fill(device, np.full(extent + 5, 7, np.float32))
    scale, = device.load([SCALE])
    x_part = Buffer(device, 4 * extent, source.handle, 8, source)
    y_part = Buffer(device, 4 * extent, target.handle, 12, target)
    device.launch([Launch(scale, (y_part, x_part, 2.0, -3), extent)])
    expected = np.full(extent + 5, 7, np.float32)
    expected[3:3 + extent] = x[2:2 + extent] * 2 - 3
    np.testing.assert_array_equal(read(target, np.float32, extent + 5), expected)
    np.testing.assert_array_equal(read(y_part, np.float32, extent), expected[3:3 + extent])
    device.free(source)
    device.free(target)


SCALARS = {"b8": ("uchar", np.uint8, True), "i8": ("char", np.int8, -128), "u8": ("uchar", np.uint8, 255),
           "i16": ("short", np.int16, -2**15), "u16": ("ushort", np.uint16, 2**16 - 1),
           "i32": ("int", np.int32, -2**31), "u32": ("uint", np.uint32, 2**32 - 1),
           "i64": ("long", np.int64, -2**63), "u64": ("ulong", np.uint64, 2**64 - 1),
           "f16": ("float", np.float32, 0.1), "bf16": ("float", np.float32, float("-inf")),
           "f32": ("float", np.float32, -0.0), "f64": ("double", np.float64, 0.1)}


@pytest.mark.parametrize("short", SCALARS)
def test_scalar_arguments(device, short):
    if short == "f64" and "fp64" not in device.target.features:
        pytest.skip(f"{device.info.name} has no float64")
    ctype, dtype, value = SCALARS[short]
    program = Program(f"put_{short}", "opencl", f"""
__kernel void put_{short}(__global {ctype} *restrict y, long y_offset, {ctype} v, long shift, long extent)
{{ long p = get_global_id(0); if (p >= extent) return; y[y_offset + shift + p] = v; }}
""", (f"buffer:{np.dtype(dtype).itemsize}", short, "i64"))
    put, = device.load([program])
    y = fill(device, np.zeros(5, dtype))
    device.launch([Launch(put, (y, value, 2), 3)])
    expected = np.array([0] * 2 + [value] * 3, dtype)
    np.testing.assert_array_equal(read(y, dtype, 5).view(np.uint8), expected.view(np.uint8))


def test_a_thousand_launches_in_order(device):
    scale, = device.load([SCALE])
    a, b = fill(device, np.zeros(10, np.float32)), device.alloc(40)
    device.elapsed()
    device.launch([Launch(scale, (y, x, 1.0, 1), 10) for y, x in [(b, a), (a, b)] * 500])
    device.synchronize()
    assert 0 < device.elapsed() < 60
    assert device.elapsed() == 0
    assert set(read(a, np.float32, 10)) == {1000.0}


def test_table_launch_runs_each_row(device):
    scale, = device.load([SCALE])
    sizes = [3, 0, 70, 9]
    x = [fill(device, np.full(n, i, np.float32)) for i, n in enumerate(sizes)]
    y = [device.alloc(4 * n) for n in sizes]
    rows = tuple(((y[i], x[i], 10.0, 1), n) for i, n in enumerate(sizes))
    device.launch([Launch(scale, (), 0, rows)])
    for i, n in enumerate(sizes):
        np.testing.assert_array_equal(read(y[i], np.float32, n), np.full(n, 10 * i + 1, np.float32))


def test_zero_bytes(device):
    buffer = device.alloc(0)
    device.copy_in(buffer, np.empty((3, 0), np.float32))
    assert read(buffer, np.float32, 0).shape == (0,)
    scale, = device.load([SCALE])
    device.launch([Launch(scale, (buffer, buffer, 1.0, 1), 0)])
    device.free(buffer)


def test_freed_memory_is_used_again_but_views_are_not_freed(device):
    first = device.alloc(5000)
    handle = first.handle
    device.free(Buffer(device, 100, handle, 64, first))
    device.free(first)
    device.free(first)
    second, third = device.alloc(5000), device.alloc(5000)
    assert second.handle is handle and third.handle is not handle
    device.free(second)
    device.free(third)
    device.trim()
    assert device._pool == {} and device._pool_bytes == 0


def test_pool_is_bounded(device, monkeypatch):
    device.trim()
    monkeypatch.setattr(device, "_pool_limit", 3 << 20)
    buffers = [device.alloc(1 << 20) for _ in range(8)]
    for buffer in buffers:
        device.free(buffer)
        assert device._pool_bytes <= 3 << 20
    device.free(device.alloc(2 << 20))
    assert device._pool_bytes <= 3 << 20
    device.trim()


def test_too_much_memory_is_an_error(device):
    with pytest.raises(DeviceError, match=r"\[alloc\] expected at most \d+ bytes in one buffer"):
        device.alloc(1 << 50)


def test_copies_check_sizes_and_layout(device):
    buffer = device.alloc(16)
    with pytest.raises(DeviceError, match=r"\[copy_in\] expected at most 16 bytes, got 20"):
        device.copy_in(buffer, np.zeros(5, np.float32))
    with pytest.raises(DeviceError, match=r"\[copy_out\] expected a C-contiguous array"):
        device.copy_out(buffer, np.zeros((2, 2), np.float32).T)


def test_launch_checks_arguments(device):
    scale, = device.load([SCALE])
    x = device.alloc(64)
    with pytest.raises(InternalError, match="expected 4 arguments for scale, got 1"):
        device.launch([Launch(scale, (x,), 4)])
    with pytest.raises(InternalError, match="multiple of 4 bytes"):
        device.launch([Launch(scale, (x, Buffer(device, 8, x.handle, 2, x), 1.0, 1), 1)])


def test_out_of_memory_leaves_the_process_usable(device):
    wanted = device.info.max_allocation // 4 + 2**28
    with pytest.raises(DeviceError, match=r"\[alloc\] expected at most \d+ bytes in one buffer and \d+ in all on CL:"):
        Tensor.zeros((2 * wanted, 2), device=device.name).contiguous().realize()
    x = Tensor(np.arange(5, dtype=np.float32), device=device.name)
    np.testing.assert_array_equal((x * 2 + 1).numpy(), [1, 3, 5, 7, 9])


def test_memory_kept_for_reuse_is_given_back_before_an_error(device, monkeypatch):
    import pyopencl as cl

    device.free(device.alloc(1 << 20))
    real, failed = device._create, []

    def create(size: int) -> Any:
        if not failed:
            failed.append(size)
            raise cl.MemoryError("no room")
        return real(size)

    monkeypatch.setattr(device, "_create", create)
    buffer = device.alloc(3 << 20)
    assert failed and device._pool == {}
    device.free(buffer)


@needs_device("CL:pocl")
@needs_device("CL:rusticl")
def test_tensors_go_from_one_device_to_another():
    values = np.arange(12, dtype=np.float32).reshape(3, 4)
    here = Tensor(values, device="CL:pocl")
    there = (here + 1).to("CL:rusticl")
    back = (there * 2).to("CL:pocl")
    assert here.device != there.device and back.device == here.device
    np.testing.assert_array_equal((back + here).numpy(), (values + 1) * 2 + values)
    np.testing.assert_array_equal(there.to("CPU").numpy(), values + 1)
    gradient, = (there.to("CPU") * 3).sum().gradient(there)
    assert gradient.device == there.device and (gradient.numpy() == 3).all()


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_forked_child_gets_a_message(device):
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            device.alloc(4)
            answer = "no error"
        except DeviceError as e:
            answer = str(e)
        os.write(write_end, answer.encode())
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(write_end)
    with os.fdopen(read_end) as f:
        assert "OpenCL was used before this process was forked" in f.read()
    device.synchronize()


def test_unknown_names_say_what_there_is():
    with pytest.raises(DeviceError, match=r"expected CL, CL:<index> or CL:<part of a name>, got 'CL:voodoo2'"):
        open_device("voodoo2")
    with pytest.raises(DeviceError, match="got 'CL:99'"):
        open_device("99")


@needs_device("CL:rusticl")
@pytest.mark.parametrize("first, message", [("", None), ("opencl_devices.devices()", "set RUSTICL_ENABLE=llvmpipe")])
def test_rusticl_enables_itself_unless_opencl_runs_already(first, message):
    code = textwrap.dedent(f"""
        from minigrad.runtime import opencl_devices
        from minigrad.runtime.opencl import open_device
        {first}
        print(open_device("rusticl").info.platform)
    """)
    environment = {k: v for k, v in os.environ.items() if k != "RUSTICL_ENABLE"}
    environment["PYTHONPATH"] = str(ROOT)
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    if message is None:
        assert (done.returncode, done.stdout.strip()) == (0, "rusticl"), done.stderr
    else:
        assert done.returncode == 1 and message in done.stderr.splitlines()[-1]


def test_order_of_preference():
    def info(name, platform="P", kind="CPU", units=4, driver="1.0", quirks=frozenset()):
        return opencl_devices.DeviceInfo(-1, platform, "", "", name, "", driver, kind, units, 0, 0, 0, 0, 4,
                                         frozenset(), quirks, None)

    wanted = [info("gpu", kind="GPU", units=2), info("cpu"), info("new", driver="3.10", units=2),
              info("old", driver="3.9", units=2), info("raster", quirks=frozenset({"software"}), units=64),
              info("clover gpu", kind="GPU", quirks=frozenset({"superseded"}))]
    assert sorted(reversed(wanted), key=opencl_devices._preference) == wanted


def test_of_several_devices_that_match_the_newest_driver_is_meant(monkeypatch):
    def info(index, name, driver, platform="PoCL", units=2):
        return opencl_devices.DeviceInfo(index, platform, "", "", name, "", driver, "CPU", units, 0, 0, 0, 0, 4,
                                         frozenset(), frozenset(), None)

    found = [info(0, "old and wide", "3.0", units=8), info(1, "new", "3.10"), info(2, "older", "3.9"),
             info(3, "other of pocl", "22.3", "rusticl")]
    monkeypatch.setattr(opencl_devices, "devices", lambda: found)
    assert [opencl_devices.find_device(words).index for words in ("pocl", "old", "2", "rusticl", "")] == [1, 2, 2, 3, 1]


def test_replays_set_only_the_arguments_that_change(device, monkeypatch):
    from minigrad import Variable, jit
    from minigrad.runtime.opencl_prepared import KeptLaunches

    real, calls = KeptLaunches._set_buffer, []
    monkeypatch.setattr(KeptLaunches, "_set_buffer", lambda self, *place: calls.append(place) or real(self, *place))
    random = np.random.default_rng(3)
    weight = Tensor(random.standard_normal((8, 8), np.float32), device=device.name).realize()

    @jit
    def step(x: Tensor, factor: Tensor) -> Tensor:
        h = (x @ weight).relu()
        return ((h - h.mean(1, keepdim=True)) * factor).softmax(1).realize()

    counts, kept = [], []
    for _ in range(6):
        x, factor = random.standard_normal((5, 8), np.float32), np.float32(random.standard_normal())
        calls.clear()
        got = step(Tensor(x, device=device.name), Tensor(factor, device=device.name))
        counts.append(len(calls))
        kept.append(got)  # the next result gets other memory
        h = np.maximum(x @ weight.numpy(), 0)
        e = np.exp((h - h.mean(1, keepdims=True)) * factor)
        np.testing.assert_allclose(got.numpy(), e / e.sum(1, keepdims=True), rtol=2e-5, atol=1e-6)
    assert 0 < counts[-1] < counts[1]

    length = Variable("length", 1, 20)

    @jit
    def total(x: Tensor, n: object) -> Tensor:
        return (x[:n] * 2).sum().realize()

    values = random.standard_normal(20).astype(np.float32)
    whole = Tensor(values, device=device.name).realize()
    for n in (3, 7, 7, 20, 1):
        np.testing.assert_allclose(total(whole, length.bind(n)).numpy(), 2 * values[:n].sum(), rtol=1e-4, atol=1e-5)
