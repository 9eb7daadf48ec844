"""LLVM IR of every case, compiled and compared with the interpreter; what must not be in the code is looked for."""
from __future__ import annotations

import ctypes
import struct

import numpy as np
import pytest
import render_cases
from render_cases import CASES, Case

from minigrad.codegen.render.llvm import render_llvm
from minigrad.runtime.cpu import host_target, shared_jit
from minigrad.runtime.llvm_jit import Unit, undefined_symbols

TARGET = host_target(shared_jit(), 1)
ENTRY = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)


def run(case: Case, cuts: tuple[int, ...] = ()) -> dict[str, np.ndarray]:
    """The buffers after the program ran its iterations, in several calls where `cuts` says."""
    f = case.function
    program = render_llvm(f, TARGET)
    buffers, extent = render_cases.arguments(case)
    words = [b.ctypes.data for b in buffers.values()]
    words += [struct.unpack("<I", struct.pack("<f", case.scalars[s.name]))[0] for s in f.scalars]
    words += [case.dims[d.name] for d in f.dims]
    table = (ctypes.c_uint64 * max(1, len(words)))(*words)
    scratch = np.zeros(program.scratch + 64, np.uint8)
    ((address,),) = shared_jit().addresses([Unit((program.name,), program.source)])
    edges = [0, *cuts, extent]
    for begin, end in zip(edges, edges[1:], strict=False):
        ENTRY(address)(ctypes.addressof(table), begin, end, scratch.ctypes.data)
    return buffers


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_equals_interpreter(case):
    render_cases.check(case, run(case))


@pytest.mark.parametrize("case", [c for c in CASES if c.name in ("matmul_tile", "rows", "gather")],
                         ids=lambda c: c.name)
def test_sub_ranges(case):
    render_cases.check(case, run(case, cuts=(1,)))


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_no_library_calls(case):
    program = render_llvm(case.function, TARGET)
    assert undefined_symbols(shared_jit().object_code([Unit((program.name,), program.source)])) <= {"memset", "memcpy"}
