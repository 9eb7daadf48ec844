"""LLVM IR of every case, compiled and compared with the interpreter; what must not be in the code is looked for."""
from __future__ import annotations

import ctypes
import itertools
import struct
from dataclasses import replace

import numpy as np
import pytest
from support import render_cases
from support.render_cases import CASES, Case

from minigrad.codegen.ir.text import parse_function
from minigrad.codegen.render.llvm import QUICK, render_llvm
from minigrad.errors import InternalError
from minigrad.runtime.cpu import host_target, shared_jit
from minigrad.runtime.llvm_jit import Unit
from minigrad.runtime.object_symbols import foreign_symbols

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
    for begin, end in itertools.pairwise(edges):
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
    assert not foreign_symbols(shared_jit().object_code([Unit((program.name,), program.source)]))


TILE = """func tile(in a: f32[6*k], in b: f32[k*n], out c: f32[6*n], k: index in 1..4096, n: index in 16..4096)
  for j in 0..n // 16 parallel:
    for l in 0..16 vector:
      alloc acc: f32[6] register
      for r in 0..6 unroll:
        acc[r] = 0.0
      for p in 0..k serial:
        for r in 0..6 unroll:
          acc[r] = fma(a[r*k + p], b[p*n + 16*j + l], acc[r])
      for r in 0..6 unroll:
        c[r*n + 16*j + l] = acc[r]
"""


def inner_loop(source: str) -> list[str]:
    """The instructions of the loop over p."""
    lines = source.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("p.") and line.endswith(".body:"))
    end = next(i for i, line in enumerate(lines) if ".next = add" in line and i > start)
    return [line.strip() for line in lines[start + 2:end]]


def test_address_sums_are_hoisted():
    body = inner_loop(render_llvm(parse_function(TILE), TARGET).source)
    assert sum("load float" in line for line in body) == 6
    assert sum("load <16 x float>, ptr %p" in line for line in body) == 1
    # Only the row of b needs arithmetic: every other address is a pointer from outside plus p.
    assert sum(" = mul " in line or " = add " in line for line in body) == 1


@pytest.mark.skipif("sse" not in TARGET.features, reason="reads x86 assembly")
def test_accumulators_stay_in_registers():
    text = shared_jit().assembly(render_llvm(parse_function(TILE), TARGET).source).split(".Lfunc_end0")[0]
    assert "fmadd" in text or "fma" not in TARGET.features
    assert not [line for line in text.splitlines() if "mm" in line and "(%rsp" in line]


def test_invariant_loads_leave_loops_that_run():
    source = render_llvm(parse_function("""func f(in x: f32[4], in y: f32[n], out z: f32[4], n: index in 0..9)
  for i in 0..4 parallel:
    alloc s: f32[1] register
    s[0] = 0.0
    for p in 0..n serial:
      s[0] = s[0] + y[0] * x[i]
    z[i] = s[0]
"""), TARGET).source
    body = inner_loop(source)
    assert not any("load float, ptr %p" in line for line in body)  # x[i] is in bounds whatever n is
    assert any("load float, ptr %y" in line for line in body)      # y[0] is not, where n is 0


def test_taps_of_a_stride_share_their_loads():
    source = render_llvm(parse_function("""func f(in x: f32[64], out y: f32[16])
  for l in 0..16 vector:
    y[l] = x[2*l] + x[2*l + 1]
"""), TARGET).source
    assert source.count("load <16 x float>") == 2


@pytest.mark.parametrize("name", ["masked_square", "square_in_branch"])
def test_columns_are_transposed_under_masks_and_in_branches(name: str) -> None:
    case, = (c for c in CASES if c.name == name)
    source = render_llvm(case.function, TARGET).source
    assert source.count("shufflevector <16 x float>") >= 64
    assert source.count("insertelement <16 x float>") <= 2, "rows are not gathered"


def test_the_last_square_is_masked() -> None:
    last = next(c for c in CASES if c.name == "square_at_the_end").function
    source = render_llvm(last, replace(TARGET, features=TARGET.features | {"avx"})).source
    assert source.count("call <16 x float> @llvm.masked.load") == 16 and "load float" not in source
    assert source.count("load float") == 0 < render_llvm(last, replace(TARGET, features=frozenset())).source.count(
        "load float")


def test_register_buffers_are_values() -> None:
    source = render_llvm(parse_function(TILE), TARGET).source
    assert "alloca" not in source
    assert source.count("phi <16 x float>") == 6


@pytest.mark.parametrize("lanes", [2, 4, 8, 16])
@pytest.mark.parametrize("count", [1, 2, 3, 6, 16, 18])
@pytest.mark.parametrize("monoid", ["sum", "max"])
def test_vectors_across_lanes_together_have_the_bits_of_each_alone(monoid: str, count: int, lanes: int) -> None:
    head = f"func totals(in x: f32[{count * lanes}], out y: f32[{count}])\n"
    each = f"""  for l in 0..{lanes} vector:
    for u in 0..{count} serial:
      y[u] = across({monoid}, x[{lanes}*u+l])
"""
    together = f"""  alloc total: f32[{count}] register
  for l in 0..{lanes} vector:
    for u in 0..{count} unroll:
      total[u] = across({monoid}, x[{lanes}*u+l])
  for u in 0..{count} unroll:
    y[u] = total[u]
"""
    alone, several = (Case("totals", head + text) for text in (each, together))
    np.testing.assert_array_equal(run(several)["y"].view(np.int32), run(alone)["y"].view(np.int32))
    source = render_llvm(several.function, TARGET).source
    steps = lanes.bit_length() - 1
    assert source.count(" shufflevector ") <= 2 * sum(-(-count >> k) + 1 for k in range(1, steps + 1))


def test_quick_programs_are_one_function():
    text = """func f(out c: f32[z], in a: f32[k], in b: f32[k], z: index in 1..99, k: index in 2..99, s: index in 2..9)
  for i in 0..4 parallel:
    for l in 0..8 vector:
      alloc acc: f32[24] register
      for u in 0..24 unroll:
        acc[u] = 0.0
      for p in 0..k serial:
        for u in 0..8 unroll:
          for v in 0..3 unroll:
            acc[3*u + v] = fma(a[s*u + p], b[24*p + 8*v + l], acc[3*u + v])
      for u in 0..8 unroll:
        for v in 0..3 unroll:
          c[8*s*i + s*u + 8*v + l] = acc[3*u + v]
"""
    target = replace(TARGET, features=TARGET.features | {"sse"}, registers=32)
    source = render_llvm(parse_function(text), target).source
    assert source.startswith(QUICK) and source.count("define") == 1
    assert "%k = load i64" in source and "%z" not in source  # what is not used is not loaded


def test_stores_in_steps_are_parts_of_vectors():
    text = "func f(out y: f32[31])\n  for l in 0..16 vector:\n    y[2*l] = f32(index(l))\n"
    source = render_llvm(parse_function(text), replace(TARGET, features=TARGET.features | {"avx", "avx2"})).source
    assert source.count("call void @llvm.masked.store") == 2
    assert "masked.store" not in render_llvm(parse_function(text), replace(TARGET, features=frozenset())).source


@pytest.mark.parametrize("text,message", [
    ("func f(out y: f32[8], n: index in 1..8)\n  for l in 0..8 vector:\n    y[0] = f32(index(l))\n",
     "expected one value for all lanes"),
    ("func f(out y: f32[8])\n  alloc s: f32[2] register\n  for i in 0..2 serial:\n    s[i] = 1.0\n  y[0] = s[0]\n",
     "expected a constant below 2"),
    ("func f(out y: f32[8])\n  alloc s: f32[1] register\n  for l in 0..8 vector:\n    s[0] = f32(index(l))\n",
     "allocated outside the vector loop"),
    ("func f(out y: f32[8])\n  for l in 0..8 vector:\n    if l - 3 >= 0:\n      y[l] = 1.0\n",
     "may not depend on the lane"),
])
def test_broken_rules_are_named(text, message):
    with pytest.raises(InternalError, match=message):
        render_llvm(parse_function(text), TARGET)
