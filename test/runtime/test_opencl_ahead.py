"""Kernels that other processes compile ahead: the driver finds them, and failures change nothing."""
import sys
from pathlib import Path

import numpy as np
import pytest
from conftest import drivers, quirks
from support.opencl_device import read

from minigrad.config import config
from minigrad.program import Program
from minigrad.runtime import opencl_ahead
from minigrad.runtime.device import Launch
from minigrad.runtime.opencl import OpenCL, open_device
from minigrad.runtime.opencl_quirks import COMPILES_LATE

COUNT = 4


@pytest.fixture(params=[name for name in drivers() if COMPILES_LATE in quirks(name)])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> OpenCL:
    """PoCL, on a machine of two cores that calls for help at once."""
    monkeypatch.setattr(opencl_ahead, "HELP_CHARS", 1)
    monkeypatch.setattr(opencl_ahead, "usable_cores", lambda: 2)
    monkeypatch.setattr(opencl_ahead, "_helpers", [])
    return open_device(request.param.partition(":")[2])


def programs(stem: str) -> list[Program]:
    return [Program(f"{stem}_{k}", "opencl", f"""
__kernel void {stem}_{k}(__global float *p, long o, float x, long extent)
{{
  if (get_global_id(0) < extent) p[o + get_global_id(0)] = x + {k};
}}
""", ("buffer:4", "f32")) for k in range(COUNT)]


def launch(device: OpenCL, stem: str) -> None:
    """Loads and launches kernels that no cache has, and looks at their results."""
    y = device.alloc(4 * 8)
    with config(threads=2, disk_cache=False):
        loaded = device.load(programs(stem))
        assert all(executable.program in device._builder.fresh for executable in loaded)
        device.launch([Launch(executable, (y, 0.5), 8) for executable in loaded])
    assert not any(executable.program in device._builder.fresh for executable in loaded)
    np.testing.assert_array_equal(read(y, np.float32, 8), np.full(8, 0.5 + COUNT - 1, np.float32))


def compiled(stem: str, cache: str) -> set[str]:
    """Which of the kernels PoCL has on disk."""
    return {path.stem for path in Path(cache).rglob(f"{stem}_*.so")}


def test_a_helper_compiles_what_this_process_will_launch(device: OpenCL, tmp_path: Path,
                                                         monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POCL_CACHE_DIR", str(tmp_path))  # of the helper: this process has read the variable before
    launch(device, "ahead")
    helper, = opencl_ahead._helpers
    assert helper.wait(timeout=120) == 0
    assert compiled("ahead", str(tmp_path)) == {f"ahead_{k}" for k in range(COUNT)}


@pytest.mark.parametrize("executable", ["/does/not/exist", "/bin/false"])
def test_helpers_that_fail_change_nothing(device: OpenCL, executable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", executable)
    launch(device, f"failing{len(executable)}")
    assert all(helper.wait(timeout=60) for helper in opencl_ahead._helpers)


def test_no_help_for_little_or_on_one_core(device: OpenCL, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opencl_ahead, "HELP_CHARS", 1 << 20)
    launch(device, "little")
    monkeypatch.setattr(opencl_ahead, "HELP_CHARS", 1)
    monkeypatch.setattr(opencl_ahead, "usable_cores", lambda: 1)
    launch(device, "alone")
    assert not opencl_ahead._helpers
