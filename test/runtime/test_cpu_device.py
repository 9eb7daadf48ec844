"""The CPU device: memory, loading and its caches, argument words, prepared lists, errors; names of devices."""
import ctypes
import gc
import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from support.cpu_programs import fill, increment, reverse
from support.paths import ROOT

from minigrad.config import config, current
from minigrad.errors import CompileError, DeviceError, InternalError
from minigrad.program import Link
from minigrad.runtime import registry
from minigrad.runtime.cpu import CPU, shared_jit
from minigrad.runtime.device import Buffer, Launch, Program
from minigrad.runtime.executor_ir import emit_executor
from minigrad.runtime.host import address_of, bucket_size
from minigrad.runtime.llvm_jit import Jit, Unit
from minigrad.runtime.object_symbols import foreign_symbols

COPY = """
define void @copy(ptr %args, i64 %begin, i64 %end, ptr %scratch) {
  %a = load ptr, ptr %args
  %q = getelementptr i64, ptr %args, i64 1
  %b = load ptr, ptr %q
  call void @llvm.memcpy.p0.p0.i64(ptr %a, ptr %b, i64 %end, i1 false)
  ret void
}
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
"""
EXTERNAL = """
define void @calls(ptr %args, i64 %begin, i64 %end, ptr %scratch) {
  %x = load float, ptr %args
  %y = call float @expf(float %x)
  store float %y, ptr %args
  ret void
}
declare float @expf(float)
"""


@pytest.fixture(scope="module")
def device():
    return CPU(2)


def test_memory_is_aligned_and_reused(device):
    for nbytes in (0, 1, 63, 64, 65, 1000, 4097, 1_000_001):
        buffer = device.alloc(nbytes)
        assert buffer.nbytes == nbytes
        assert address_of(buffer) % 64 == 0
        assert buffer.handle.nbytes >= nbytes
    address = address_of(buffer)
    device.free(buffer)
    assert buffer.handle is None
    device.free(buffer)  # a second time does nothing
    again = device.alloc(1_000_000)
    assert address_of(again) == address


def test_bucket_sizes():
    previous = 0
    for nbytes in range(0, 70_000, 7):
        size = bucket_size(nbytes)
        assert size >= max(nbytes, previous) and size % 64 == 0
        assert size <= max(nbytes * 9 // 8 + 64, 64)
        previous = size


def test_memory_that_an_array_looks_at_is_not_reused(device):
    buffer = device.alloc(1 << 16)
    view = buffer.handle[:100].view(np.int32)
    view[:] = 7
    address = address_of(buffer)
    device.free(buffer)
    assert address_of(device.alloc(1 << 16)) != address
    assert (view == 7).all()


def test_copies(device):
    buffer = device.alloc(64)
    device.copy_in(buffer, np.arange(12, dtype=np.float32).reshape(3, 4))
    out = np.empty((4, 3), np.float32)
    device.copy_out(buffer, out)
    assert out.tolist() == np.arange(12).reshape(4, 3).tolist()
    part = Buffer(device, 8, buffer.handle, 8, buffer)
    device.copy_out(part, out[0, :2])
    assert out[0, :2].tolist() == [2, 3]
    device.copy_in(part, np.array(5.0, np.float32))
    device.copy_in(buffer, np.empty(0, np.float32))
    device.copy_out(buffer, out)
    assert out[0].tolist() == [0, 1, 5]
    with pytest.raises(DeviceError, match=r"\[copy_in\] expected at most 8 bytes, got 12 \(shape \(3,\), float32\)"):
        device.copy_in(part, np.zeros(3, np.float32))
    with pytest.raises(DeviceError, match=r"\[copy_out\] expected a C-contiguous array"):
        device.copy_out(buffer, out.T)


def test_wrap_aliases_the_array(device):
    [program] = device.load([increment()])
    array = np.arange(10)
    buffer = device.wrap(array)
    device.launch([Launch(program, (buffer,), 10)])
    assert array.tolist() == list(range(1, 11))
    device.free(buffer)
    assert address_of(device.alloc(80)) != array.ctypes.data
    with pytest.raises(DeviceError, match=r"\[wrap\] expected a C-contiguous"):
        device.wrap(array[::2])


def test_out_of_memory(device):
    with pytest.raises(DeviceError, match=r"\[alloc\] expected 1152921504606846976 bytes of host memory"):
        device.alloc(1 << 60)


def test_numpy_device_has_memory_only():
    host = registry.get_device("NUMPY")
    buffer = host.alloc(16)
    host.copy_in(buffer, np.array([1.5, 2.5]))
    out = np.empty(2)
    host.copy_out(buffer, out)
    assert out.tolist() == [1.5, 2.5]
    with pytest.raises(DeviceError, match=r"\[load\] expected a device that runs programs, got NUMPY"):
        host.load([])


@pytest.mark.parametrize("kind, llvm_type, value, bits", [
    ("f32", "i32", 1.5, 0x3FC00000), ("f32", "i32", -1e300, 0xFF800000), ("f32", "i32", 3, 0x40400000),
    ("f64", "i64", 1.5, 0x3FF8000000000000), ("f16", "i16", 1.5, 0x3E00), ("f16", "i16", 1e30, 0x7C00),
    ("bf16", "i16", 1.5, 0x3FC0), ("bf16", "i16", 1.00390625, 0x3F80), ("bf16", "i16", 1.01171875, 0x3F82),
    ("bf16", "i16", float("nan"), 0x7FC0), ("bf16", "i16", 3.4e38, 0x7F80),
    ("i64", "i64", -1, 2**64 - 1), ("i32", "i32", -2, 2**32 - 2), ("u8", "i8", 300, 44), ("b8", "i8", True, 1),
    ("i8", "i8", np.int8(-1), 255), ("f32", "i32", np.float32(0.5), 0x3F000000),
])
def test_scalar_arguments(device, kind, llvm_type, value, bits):
    [program] = device.load([fill(kind, llvm_type)])
    a = device.alloc(8)
    device.copy_in(a, np.zeros(1, np.uint64))
    device.launch([Launch(program, (a, value), 1)])
    out = np.empty(1, np.uint64)
    device.copy_out(a, out)
    assert int(out[0]) == bits


def test_prepared_list_is_replayed_with_new_arguments(device):
    [up, turn] = device.load([increment(), reverse()])
    n = 500
    a, b, c = (device.wrap(np.zeros(n, np.int64)) for _ in range(3))
    kept = device.keep([Launch(up, (a,), n, work=1e6), Launch(turn, (b, a, n), n, work=1e6)], [(0,), (1, 0)])
    for _ in range(3):
        kept.run()
    assert (a.base == 3).all() and (b.base == 4).all()
    kept.set_addresses([[kept.place(1, 0)]], [address_of(c)])
    kept.set_number([kept.place(1, 2)], 1)
    kept.set_extent(1, 1)
    kept.run()
    assert c.base.tolist() == [5] + [0] * (n - 1) and (b.base == 4).all()
    with pytest.raises(InternalError, match="alone and has no table, got launch 0"):
        device.keep([Launch(up, (), 0, (((a,), 1),))], [(0,)]).set_extent(0, 2)


def test_nothing_to_launch(device):
    device.launch([])
    device.synchronize()


def test_elapsed_counts_time_in_launches(device):
    [program] = device.load([increment()])
    a = device.wrap(np.zeros(100_000, np.int64))
    device.elapsed()
    assert device.elapsed() == 0.0
    device.launch([Launch(program, (a,), 100_000)])
    assert 0.0 < device.elapsed() < 60.0
    assert device.elapsed() == 0.0


def test_wrong_arguments_leave_the_device_usable(device):
    [program] = device.load([increment()])
    a = device.wrap(np.zeros(10, np.int64))
    with pytest.raises(InternalError, match=r"\[launch\] expected 1 arguments for increment, got 2"):
        device.launch([Launch(program, (a,), 10), Launch(program, (a, a), 10)])
    freed = device.alloc(80)
    device.free(freed)
    with pytest.raises(InternalError, match=r"\[launch\] expected a live buffer"):
        device.launch([Launch(program, (freed,), 10)])
    with pytest.raises(InternalError, match=r"\[load\] expected an argument type of .* or buffer, got f8"):
        device.load([replace(increment(), arguments=("f8",))])
    device.launch([Launch(program, (a,), 10)])
    assert (a.base == 1).all()


def test_refused_source_is_a_compile_error(device):
    bad = Program("bad", "llvm", "define void @bad(ptr %args) {\n  %x = add i32 %y, 1\n  ret void\n}\n", ())
    with pytest.raises(CompileError, match=r"\[load\] LLVM refused the program: .*undefined value '%y'") as caught:
        device.load([increment(), bad])
    assert caught.value.source == bad.source
    unverified = "define i32 @bad() {\n  br label %b\na:\n  %x = add i32 1, 1\n  br label %b\nb:\n  ret i32 %x\n}\n"
    with pytest.raises(CompileError, match="does not dominate"):
        device.load([Program("bad", "llvm", unverified, ())])
    with pytest.raises(CompileError, match=r"expected definitions of \('missing',\), got 0 of them"):
        device.load([replace(increment(), name="missing")])
    with pytest.raises(DeviceError, match=r"expected a program in llvm for the CPU, got opencl"):
        device.load([replace(increment(), language="opencl")])


def test_external_calls_are_refused_before_loading(device):
    with pytest.raises(CompileError, match=r"expected programs without external calls, got \['expf'\]") as caught:
        device.load([increment("a"), Program("calls", "llvm", EXTERNAL, ("f32",))])
    assert "@expf" in caught.value.source


def test_objects_take_nothing_else_from_the_process(device):
    jit = shared_jit()
    executor = Unit(("run", "work", "spin", "stop"), emit_executor(jit.triple))
    assert foreign_symbols(jit.object_code([executor, Unit(("increment",), increment().source)])) == frozenset()
    [program] = device.load([Program("copy", "llvm", COPY, ("buffer:1", "buffer:1"))])
    source, target = np.arange(100, dtype=np.uint8), np.zeros(100, np.uint8)
    device.launch([Launch(program, (device.wrap(target), device.wrap(source)), 100, work=1.0)])
    assert np.array_equal(source, target)


def test_equal_names_and_internal_helpers_do_not_clash(device):
    helper = "define i64 @helper(i64 %x) {\n  %y = add i64 %x, STEP\n  ret i64 %y\n}\n"
    programs = []
    for step in (1, 10, 100):
        p = increment("same")
        body = p.source.replace(f"%new = add i64 %old, {1}", "%new = call i64 @helper(i64 %old)")
        programs.append(replace(p, source=body + helper.replace("STEP", str(step))))
    loaded = device.load([*programs, programs[0]])
    assert loaded[0].address == loaded[3].address
    a = device.wrap(np.zeros(4, np.int64))
    device.launch([Launch(e, (a,), 4) for e in loaded])
    assert (a.base == 112).all()


def test_objects_are_cached_by_source(tmp_path):
    with config(cache_dir=tmp_path, disk_cache=True):
        first = Jit()
        units = [Unit((f"k{i}",), increment(f"k{i}", 1000 + i).source) for i in range(5)]
        first.addresses(units[:3])
        first.addresses(units[2:])
        assert first.compiled == 5
        second = Jit()
        second.addresses(units)
        assert second.compiled == 0
        for path in tmp_path.rglob("llvm-object/*/*"):
            path.write_bytes(path.read_bytes()[:-1])
        third = Jit()
        third.addresses(units)
        assert third.compiled == 5
        changed = Unit(("k0",), increment("k0", 9).source)
        assert third.key(changed) != third.key(units[0])


def test_an_object_brings_the_microkernels_of_all_its_units(tmp_path):
    """One object holds several units: loading it for one of them needs what the others call."""
    seven = Link("seven_1", "seven", "define i64 @seven() {\n  ret i64 7\n}")
    caller = "declare i64 @seven_1()\ndefine i64 @calls() {\n  %x = call i64 @seven_1()\n  ret i64 %x\n}"
    plain = Unit(("k0",), increment("k0", 5).source)
    calling = Unit(("calls",), caller, (seven,))
    with config(cache_dir=tmp_path, disk_cache=True):
        Jit().addresses([plain, calling])
        alone = Jit()
        alone.addresses([plain])
        (address,), = alone.addresses([calling])
        assert alone.compiled == 0 and ctypes.CFUNCTYPE(ctypes.c_int64)(address)() == 7
        for path in tmp_path.rglob("llvm-links/*/*"):
            path.unlink()
        without = Jit()
        without.addresses([plain])
        assert without.compiled == 1


FRESH = """
import sys
sys.path.insert(0, {test!r})
import numpy as np
from support.cpu_programs import increment, reverse
from minigrad.runtime import llvm_jit
from minigrad.runtime.cpu import CPU
from minigrad.runtime.device import Launch
if {forbid}:
    def refuse(self, units):
        raise AssertionError("compiled again")
    llvm_jit.Jit._emit = refuse
device = CPU(2)
up, turn = device.load([increment(), reverse()])
a, b = device.wrap(np.arange(1000)), device.wrap(np.zeros(1000, np.int64))
device.launch([Launch(up, (a,), 1000), Launch(turn, (b, a, 1000), 1000)])
assert np.array_equal(b.base, np.arange(1000)[::-1] + 2)
print(device._jit.compiled)
"""


def test_fresh_process_runs_known_programs_without_compiling(tmp_path):
    environment = {**os.environ, "MINIGRAD_CACHE": str(tmp_path), "MINIGRAD_DISK_CACHE": "1"}
    printed = []
    for forbid in (False, True):
        script = FRESH.format(test=str(ROOT / "test"), forbid=forbid)
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, cwd=ROOT,
                              env=environment)
        assert done.returncode == 0, done.stderr
        printed.append(done.stdout.strip())
    assert printed == ["3", "0"]  # two programs and the executor, then none


def test_target_describes_this_processor(device):
    target = device.target
    assert (target.name, target.language, target.units) == ("CPU", "llvm", 2)
    assert target.vector_bytes in (16, 32, 64) and target.registers in (16, 32)
    assert 8 * 1024 <= target.l1 <= target.l2
    assert "fp64" in target.features
    assert CPU().target.units == current().threads


def test_registry_names():
    assert registry.canonical("CPU") == "CPU" and registry.canonical(" cpu ") == "CPU"
    assert registry.get_device("CPU") is registry.get_device("cpu")
    assert registry.get_device("NUMPY").name == "NUMPY"
    with pytest.raises(DeviceError, match=r"\[device\] expected CPU, NUMPY, CL or CL:<.*>, got 'GPU'"):
        registry.get_device("GPU")
    with pytest.raises(DeviceError, match="got 'CPU:1'"):
        registry.canonical("CPU:1")
    registry.synchronize()
    registry.synchronize("CPU")


def test_devices_that_queue_are_waited_for(monkeypatch):
    """All that were opened, and one that is named; the CPU's launches return when they are done."""
    waited = []

    class Queueing(CPU):
        queues = True

        def synchronize(self):
            waited.append(self)

    for name, value in (("_opened", {}), ("_queueing", []), ("_canonical", {"CPU": "CPU"}),
                        ("_open", lambda name: Queueing(1))):
        monkeypatch.setattr(registry, name, value)
    registry.synchronize()
    device = registry.get_device("CPU")
    registry.synchronize()
    registry.synchronize("CPU")
    assert waited == [device, device] and not CPU.queues


def test_dropped_devices_are_collected():
    import weakref

    device = CPU(2)
    [program] = device.load([increment()])
    a = device.wrap(np.zeros(1000, np.int64))
    device.launch([Launch(program, (a,), 1000)])
    gone = weakref.ref(device)
    del device, a
    gc.collect()
    assert gone() is None
