"""GPUs that are compiled for and not run: what the object says, what LLVM says, waves, PTX."""
import re
import shutil
from types import SimpleNamespace

import numpy as np
import pytest

from minigrad import Tensor, config
from minigrad.codegen.ir.text import parse_function
from minigrad.codegen.machines.gpus import gpu as facts_of
from minigrad.codegen.machines.gpus import of_isa
from minigrad.codegen.passes import render
from minigrad.errors import CompileError, ConfigError, DeviceError
from minigrad.program import Program
from minigrad.report.occupancy import occupancy
from minigrad.runtime import inspected
from minigrad.runtime.device import Launch
from minigrad.runtime.gpu_objects import Resources, amd_resources, max_warps, max_waves, unpack
from minigrad.runtime.inspected import InspectedGpu
from minigrad.runtime.registry import get_device


def tensor(*shape: int) -> Tensor:
    return Tensor(np.ones(shape, np.float32))


WORK = {
    "tiles": lambda: tensor(256, 256) @ tensor(256, 256),
    "guarded tiles": lambda: tensor(1, 20, 30, 30).conv2d(tensor(40, 20, 3, 3), padding=1).relu(),
    "attention": lambda: tensor(2, 64, 32).scaled_dot_product_attention(tensor(2, 90, 32), tensor(2, 90, 32)),
    "softmax": lambda: tensor(64, 1000).softmax(1),
    "pointwise": lambda: (tensor(1000) * 2 + 1).exp(),
    "sum": lambda: tensor(3, 5000).sum(1),
    "depthwise": lambda: tensor(1, 16, 20, 20).conv2d(tensor(16, 1, 3, 3), padding=1, groups=16),
    "half": lambda: (tensor(100).cast("float16") * 3).cast("bfloat16").sin(),
    "gathered": lambda: tensor(50, 30)[Tensor([3, 1, 2])],
}


@pytest.fixture(scope="module", params=["gfx1031", "gfx1100"])
def gpu(request: pytest.FixtureRequest) -> InspectedGpu:
    device = get_device(f"AMD:{request.param}")
    assert isinstance(device, InspectedGpu)
    return device


def test_resources_are_those_of_the_object(gpu: InspectedGpu) -> None:
    """Read from the object's note, they equal what the assembler's text says; waves what LLVM's remark says."""
    def prepare():
        return lambda: Tensor.realize(*[make() for make in WORK.values()])

    found = occupancy(gpu.name, prepare)
    assert len(found.kernels) >= len(WORK) and gpu.target.has_groups
    assert sum(k.resources is not None and k.resources.local > 0 for k, _ in found.kernels) >= 4
    fields = {"vgprs": "vgpr_count", "sgprs": "sgpr_count", "local": "group_segment_fixed_size",
              "private": "private_segment_fixed_size", "group": "max_flat_workgroup_size", "wave": "wavefront_size"}
    for kernel, _ in found.kernels:
        assert kernel.resources is not None
        text = gpu.assembly(kernel.program)
        for field, name in fields.items():
            said = re.search(rf"\.{name}: +(\d+)", text)
            assert said is not None and getattr(kernel.resources, field) == int(said[1]), (kernel.program.name, field)
        assert kernel.resources.group == (kernel.program.group or 64)
        assert kernel.waves == max_waves(kernel.resources, gpu.facts) >= 1
        assert not re.search(r"^\s+(flat|scratch)_(load|store)", text, re.MULTILINE)
    lines = found.histogram()
    assert sum(int(line.split()[0]) for line in lines) == len(found.kernels)
    assert all(re.fullmatch(r" *\d+ Max Waves: \d+", line) for line in lines)


@pytest.mark.parametrize("vgprs, local, group, processor, waves", [
    (1, 0, 64, "gfx1031", 16), (64, 0, 64, "gfx1031", 16), (65, 0, 64, "gfx1031", 12), (128, 0, 64, "gfx1031", 8),
    (256, 0, 64, "gfx1031", 4), (64, 0, 64, "gfx1010", 16), (40, 0, 32, "gfx1010", 20), (96, 0, 64, "gfx1100", 16),
    (97, 0, 32, "gfx1100", 12), (97, 0, 64, "gfx1102", 9), (32, 64 << 10, 256, "gfx1031", 4),
    (32, 16 << 10, 256, "gfx1031", 16),
])
def test_waves(vgprs: int, local: int, group: int, processor: str, waves: int) -> None:
    assert max_waves(Resources(vgprs, 20, 0, local, 0, group, 32), facts_of(processor)) == waves


def test_waves_are_those_that_llvm_prints(gpu: InspectedGpu) -> None:
    """For kernels without local memory, where both count registers alone."""
    from minigrad.runtime.inspected import compiler

    text = ("func many(in x: f32[100000], out y: f32[1000])\n  for i in 0..1000 parallel:\n"
            "    alloc r: f32[{n}] register\n    for k in 0..{n} unroll:\n      r[k] = x[i+1000*k]\n"
            "    y[i] = 1.0\n    for s in 0..50 serial:\n      for k in 0..{n} unroll:\n"
            "        r[k] = r[k] * r[(k+7)%{n}] + x[i+s]\n"
            "    for k in 0..{n} unroll:\n      y[i] = y[i] + r[k]\n")
    _, machine = compiler(gpu.family, gpu.processor)
    machine.set_asm_verbosity(True)
    seen = set()
    for n in (4, 50, 80, 99):
        program = render(parse_function(text.replace("{n}", str(n))), gpu.target)
        kernel, = gpu.load([program])
        said = re.search(r"; Occupancy: (\d+)", gpu.assembly(program))
        assert said is not None and kernel.waves == int(said[1])
        seen.add(kernel.waves)
    machine.set_asm_verbosity(False)
    assert len(seen) > 1


def test_unpack() -> None:
    packed = b"\x84\xa1a\x93\x01\xff\xcd\x01\x00\xd9\x03xyz\xc3\xa0\xc0\xa1n\xd3"
    packed += (-2**40).to_bytes(8, "big", signed=True)
    assert unpack(packed, 0) == ({"a": [1, -1, 256], "xyz": True, "": None, "n": -2**40}, len(packed))
    with pytest.raises(DeviceError, match="expected msgpack, got a value of type 0xc1"):
        unpack(b"\xc1", 0)


def test_what_is_refused(gpu: InspectedGpu) -> None:
    with pytest.raises(DeviceError, match=r"\[device\] expected AMD:<one of gfx803, .*gfx1201>, got AMD:gfx7"):
        get_device("AMD:gfx7")
    with pytest.raises(DeviceError, match=r"expected NV:sm_<number>, got NV:ada"):
        get_device("NV:ada")
    with pytest.raises(DeviceError, match="only compiles: there is nothing here that runs its programs"):
        gpu.launch([Launch(None, (), 1)])
    with pytest.raises(DeviceError, match="only compiles"):
        (Tensor(np.ones(3, np.float32), device=gpu.name) + 1).numpy()
    with pytest.raises(DeviceError, match="expected a program in amdgpu"):
        gpu.load([Program("f", "llvm", "", ())])
    with pytest.raises(CompileError, match="LLVM refused f"):
        gpu.load([Program("f", "amdgpu", "nonsense", ())])
    with pytest.raises(DeviceError, match="expected an object with AMD's metadata note"):
        amd_resources(b"\x7fELF\x02\x01" + bytes(100))
    with pytest.raises(DeviceError, match="expected a 64-bit little-endian ELF file"):
        amd_resources(b"?")
    with pytest.raises(DeviceError, match=r"\[occupancy\] expected AMD:<processor>"):
        occupancy("CPU", lambda: lambda: None)
    with pytest.raises(ConfigError, match="expected a device"):
        config(device="AMD")


@pytest.mark.parametrize("registers, local, group, processor, warps", [
    (32, 0, 256, "86", 48), (33, 0, 256, "86", 48), (41, 0, 256, "86", 40), (64, 0, 256, "86", 32),
    (128, 0, 256, "86", 16), (255, 0, 256, "86", 8), (255, 0, 257, "86", 0), (16, 0, 32, "86", 16),
    (16, 0, 64, "86", 32), (16, 0, 1024, "86", 32), (32, 16 << 10, 128, "86", 20),
    (32, 48 << 10, 128, "86", 8), (32, 0, 1024, "80", 64),
    (33, 0, 1024, "80", 32), (32, 48 << 10, 256, "80", 24), (32, 48 << 10, 256, "90", 32), (16, 0, 32, "89", 24),
    (16, 0, 32, "75", 16), (64, 0, 64, "75", 32), (32, 48 << 10, 512, "70", 32), (37, 33_000, 96, "120", 9),
])
def test_warps_are_those_of_nvidias_calculator(registers: int, local: int, group: int, processor: str, warps: int,
                                               ) -> None:
    assert max_warps(Resources(registers, 0, 0, local, 0, group, 32), facts_of(of_isa(f"sm_{processor}"))) == warps


def test_what_is_not_known_of_nvidia_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def lines(processor: str) -> list[str]:
        return occupancy(f"NV:{processor}", lambda: lambda: WORK["pointwise"]().realize()).histogram()

    counts = "Used 40 registers, 2048 bytes smem"
    monkeypatch.setattr(inspected.shutil, "which", lambda _: "ptxas")
    monkeypatch.setattr(inspected.subprocess, "run", lambda *_, **__: SimpleNamespace(returncode=0, stderr=counts))
    assert lines("sm_86") == ["      1 Max Waves: 32"]
    assert lines("sm_35") == ["      1 Max Waves: not known, what a multiprocessor of sm_35 holds is not known here"]
    monkeypatch.setattr(inspected.shutil, "which", lambda _: None)
    assert lines("sm_86") == ["      1 Max Waves: not known, ptxas is not installed, which counts registers"]


def test_nvidia() -> None:
    found = occupancy("NV:sm_80", lambda: lambda: WORK["softmax"]().realize())
    kernel, launches = found.kernels[0]
    device = get_device("NV:sm_80")
    assert isinstance(device, InspectedGpu)
    text = device.assembly(kernel.program)
    assert launches == 1 and ".visible .entry" in text and "bar.sync" in text and "ld.global" in text
    assert (kernel.resources is None) == (kernel.waves is None) == (shutil.which("ptxas") is None)
