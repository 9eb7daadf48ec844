"""OpenCL programs: what a driver refuses, sources built together, binaries for other processes."""
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from threading import get_ident
from time import sleep

import numpy as np
import pytest
from conftest import drivers, each_driver
from support.opencl_device import SCALE, read
from support.paths import ROOT, TESTS

from minigrad.config import config, current
from minigrad.errors import CompileError, DeviceError
from minigrad.program import Program
from minigrad.runtime import disk_cache, opencl_build
from minigrad.runtime.device import Launch
from minigrad.runtime.opencl import OpenCL, open_device
from minigrad.target import BYTE_PRODUCTS

pytestmark = each_driver


@pytest.fixture(params=drivers())
def device(request) -> OpenCL:
    return open_device(request.param.partition(":")[2])


def test_sources_that_the_driver_refuses(device):
    broken = Program("broken", "opencl", "__kernel void broken(long extent) { not_declared(extent); }", ())
    fine = Program("fine", "opencl", "__kernel void fine(__global int *p, long o, long extent) { p[o] = 1; }",
                   ("buffer:4",))
    with pytest.raises(CompileError, match=r"refused kernel broken(.|\n)*not_declared") as caught:
        device.load([fine, broken])
    assert caught.value.source == broken.source
    with pytest.raises(CompileError, match="expected a kernel named absent"):
        device.load([Program("absent", "opencl", fine.source, ("buffer:4",))])
    with pytest.raises(DeviceError, match="expected a program in opencl"):
        device.load([Program("fine", "llvm", "", ())])


def test_the_language_is_opencl_3_where_a_driver_has_it(device):
    """Its macros say what else there is; drivers of OpenCL 3 assume 1.2, which has none of them."""
    version, = device.load([Program("version_of", "opencl", "__kernel void version_of(__global int *p, long o, "
                                    "long extent) { p[o] = __OPENCL_C_VERSION__; }", ("buffer:4",))])
    found = device.alloc(4)
    device.launch([Launch(version, (found,), 1)])
    major = int(device.info.version.split()[1].partition(".")[0])
    assert read(found, np.int32, 1) == 300 or major < 3
    names = {f.name for f in device.info.handle.opencl_c_features} if major >= 3 else set()
    assert not device.info.features.intersection(BYTE_PRODUCTS.values()) or \
        "__opencl_c_integer_dot_product_input_4x8bit_packed" in names


def test_programs_with_shared_helpers_build_together(device, monkeypatch):
    builds = []
    original = opencl_build._built
    monkeypatch.setattr(opencl_build, "_built", lambda *a: builds.append(1) or original(*a))
    helper = "inline float twice_(float x)\n{\n  return 2 * x;\n}\n\n"
    programs = [Program(f"shared_{i}", "opencl", helper + f"__kernel void shared_{i}(__global float *p, long o, "
                        f"long extent)\n{{ if (get_global_id(0) < extent) p[o] = twice_({i}); }}", ("buffer:4",))
                for i in range(5)]
    y = device.alloc(4)
    with config(disk_cache=False):
        loaded = device.load(programs + programs[:1])
        assert loaded[0] is loaded[5] and len(builds) == 1
        for i, executable in enumerate(loaded[:5]):
            device.launch([Launch(executable, (y,), 1)])
            assert read(y, np.float32, 1) == 2 * i
        same_name = Program("shared_0", "opencl", programs[0].source.replace("2 * x", "3 * x"), ("buffer:4",))
        again, other = device.load([programs[0], same_name])
        device.launch([Launch(other, (y,), 1)])
    assert again is loaded[0] and other is not again


def numbered(stem: str, count: int) -> list[Program]:
    return [Program(f"{stem}_{i}", "opencl", f"__kernel void {stem}_{i}(__global float *p, long o, long extent)\n"
                    f"{{ if (get_global_id(0) < extent) p[o] = {i}; }}", ("buffer:4",)) for i in range(count)]


def test_long_joins_are_built_by_threads_while_programs_are_made(device, monkeypatch):
    """Whether builds are cut by characters or by kernels, in one thread or several."""
    monkeypatch.setattr(opencl_build, "CHARS_PER_BUILD", 150)
    monkeypatch.setattr(opencl_build, "KERNELS_PER_BUILD", 2)
    builders, original = [], opencl_build._built
    monkeypatch.setattr(opencl_build, "_built", lambda *a: builders.append(get_ident()) or original(*a))

    def made(programs):
        yield from programs
        while not builders and current().threads > 1:  # a build has begun before all programs were made
            sleep(0.001)

    y = device.alloc(4)
    for threads in (1, 2):
        builders.clear()
        with config(disk_cache=False, threads=threads):
            loaded = device.load(made(numbered(f"beside{threads}", 7)))
        assert len(builders) == 4 and (set(builders) == {get_ident()}) == (threads == 1)
        for i, executable in enumerate(loaded):
            device.launch([Launch(executable, (y,), 1)])
            assert read(y, np.float32, 1) == i


def test_a_source_that_is_refused_in_a_thread_is_named(device, monkeypatch):
    monkeypatch.setattr(opencl_build, "KERNELS_PER_BUILD", 2)
    programs = numbered("refused", 5)
    programs[2] = replace(programs[2], source=programs[2].source.replace("extent)\n{", "extent)\n{ not_declared();"))
    with config(disk_cache=False, threads=2), pytest.raises(CompileError, match="refused kernel refused_2") as caught:
        device.load(programs)
    assert caught.value.source == programs[2].source


def test_equal_paragraphs_are_kept_once():
    assert opencl_build.join_sources(["A\nB\n\nk1\n", "\nA\nB\n \nk2", "k3"]) == "A\nB\n\nk1\n\nk2\n\nk3\n"


FRESH = """
import sys
import numpy as np
sys.path.insert(0, {tests!r})
from support.opencl_device import SCALE, fill, read
from minigrad.runtime import opencl_build
from minigrad.runtime.device import Launch
from minigrad.runtime.opencl import open_device
from minigrad.runtime.opencl_build import Builder
compiled = []
original = Builder._compile
Builder._compile = lambda self, programs: compiled.extend(p.name for p in programs) or original(self, programs)
device = open_device({selector!r})
x = fill(device, np.arange(6, dtype=np.float32))
scale, = device.load([SCALE])
device.launch([Launch(scale, (x, x, 2.0, 1), 6)])
print(read(x, np.float32, 6).tolist(), compiled)
"""


WRITES_LOST = 4
"""Entries that processes one after the other may not have written in time: a process has two or three to write."""


def test_binaries_serve_a_fresh_process(device, tmp_path):
    code = FRESH.format(tests=str(TESTS), selector=device.name.partition(":")[2])
    environment = os.environ | {"MINIGRAD_CACHE": str(tmp_path), "MINIGRAD_DISK_CACHE": "1",
                                "PYTHONPATH": str(ROOT)}

    drivers = tmp_path / "driver"
    environment |= {"POCL_CACHE_DIR": str(drivers), "MESA_SHADER_CACHE_DIR": str(drivers)}

    def run() -> str:
        done = subprocess.run([sys.executable, "-W", "error", "-c", code], env=environment, capture_output=True,
                              text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def kept_by_the_driver() -> set[Path]:
        # PoCL 3.0 leaves temporary files where it refuses a processor.
        return {path for path in drivers.rglob("*") if path.is_file() and not path.name.startswith("tempfile_")}

    values = "[1.0, 3.0, 5.0, 7.0, 9.0, 11.0]"
    assert run() == f"{values} ['scale']"
    # Mesa writes its cache in a thread, and a process that ends first leaves an entry to the next one.
    for _ in range(WRITES_LOST + 1):
        files = kept_by_the_driver()
        assert run() == f"{values} []"
        if kept_by_the_driver() == files:
            break
    else:
        pytest.fail(f"the driver compiled something in each of {WRITES_LOST + 1} processes that had our binaries")
    for path in set(tmp_path.rglob("*")) - files:
        if path.is_file():
            path.write_bytes(path.read_bytes()[:-1] + b"?")
    assert run() == f"{values} ['scale']"


def test_a_binary_that_the_driver_refuses_falls_back_to_its_source(device, tmp_path):
    if device.info.platform == "rusticl":
        pytest.skip("rusticl ends the process on a foreign binary; the checksums of the disk cache keep them away")
    program = Program("fallback", "opencl", SCALE.source.replace("scale", "fallback"), SCALE.arguments)
    with config(cache_dir=tmp_path, disk_cache=True):
        builder = opencl_build.Builder(device.info, device._context)
        builder.kernels([program])
        key = builder._key(opencl_build.join_sources([program.source]))
        entry = disk_cache.get("opencl-build", key)
        size = int.from_bytes(entry[:8], "little")
        disk_cache.put("opencl-build", key, entry[:8 + size] + b"not a program")
        other = opencl_build.Builder(device.info, device._context)
        assert other.kernels([program])[program].function_name == "fallback"


def test_another_driver_version_compiles_anew(device, tmp_path):
    program = Program("versioned", "opencl", SCALE.source.replace("scale", "versioned"), SCALE.arguments)
    with config(cache_dir=tmp_path, disk_cache=True):
        opencl_build.Builder(device.info, device._context).kernels([program])
        assert opencl_build.Builder(device.info, device._context)._stored(program) is not None
        for change in ({"driver": "99.9"}, {"version": "OpenCL 9"}, {"platform_version": "9"}, {"name": "other"}):
            assert opencl_build.Builder(replace(device.info, **change), device._context)._stored(program) is None
