"""OpenCL C of every case, run on each driver that the machine has and compared with the interpreter."""
from __future__ import annotations

from functools import lru_cache

import numpy as np
import pytest
import render_cases
from render_cases import CASES, Case

from minigrad.codegen.render.opencl import render_opencl
from minigrad.errors import DeviceError
from minigrad.runtime.opencl_devices import DeviceInfo, devices


@lru_cache
def context(info: DeviceInfo):
    cl = pytest.importorskip("pyopencl")
    made = cl.Context([info.handle])
    return made, cl.CommandQueue(made)


def run(case: Case, info: DeviceInfo) -> dict[str, np.ndarray]:
    """The buffers after the kernel ran; each is placed two elements into its memory."""
    import pyopencl as cl

    program = render_opencl(case.function, info.target)
    made, queue = context(info)
    options = ["-cl-fp32-correctly-rounded-divide-sqrt"] if "divide" in info.features else []
    kernel = cl.Kernel(cl.Program(made, program.source).build(options, cache_dir=False), program.name)
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
    try:
        return devices()
    except DeviceError:
        return []


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
@pytest.mark.parametrize("info", found(), ids=lambda d: f"{d.index}-{d.platform.replace(' ', '_')}")
def test_equals_interpreter(case, info):
    render_cases.check(case, run(case, info))
