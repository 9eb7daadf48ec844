"""Microkernels: calls in loop IR, generated forms against their meaning and for their processors, and users' own."""
from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from conftest import needs_device
from support.machine_code import ARM, X86, assembly, vectors_on_the_stack

from minigrad import Tensor, config, microkernels, show
from minigrad.codegen.ir.inline import inline_calls
from minigrad.codegen.ir.interpret import interpret_function
from minigrad.codegen.ir.nodes import Call, Function
from minigrad.codegen.ir.text import meaning_of, parse_function, print_function
from minigrad.codegen.ir.verify import verify_function, verify_meaning
from minigrad.codegen.ir.walk import statements
from minigrad.codegen.microkernels.amx import SHAPES, SIDE
from minigrad.codegen.microkernels.generate import FORMS, Form, generated, most_rows
from minigrad.codegen.microkernels.registry import find
from minigrad.codegen.microkernels.tile import KINDS, Tile
from minigrad.codegen.passes import render
from minigrad.codegen.plan.microkernel_choice import microkernel_of
from minigrad.codegen.render.llvm import link_of, render_llvm
from minigrad.errors import CompileError, FormatError, InternalError, MicrokernelError
from minigrad.microkernels import Microkernel
from minigrad.runtime import disk_cache
from minigrad.runtime.cpu import host_target, shared_jit
from minigrad.runtime.llvm_jit import Jit, Unit
from minigrad.target import Target

HOST = host_target(shared_jit(), 1)
AVX512 = Target("avx512", "llvm", "icelake-server", 64, 32, 2,
                features=frozenset("sse fma f16c avx2 avx512f avx512bw avx512vnni".split()))
BYTE_PRODUCTS = replace(AVX512, name="dots", cpu="cooperlake", features=AVX512.features | {"avx512bf16"})
AMX = replace(AVX512, name="amx", cpu="sapphirerapids",
              features=AVX512.features | {"amx-tile", "amx-int8", "amx-bf16"})
AVX2 = Target("avx2", "llvm", "x86-64-v3", 32, 16, 2, features=frozenset("sse fma f16c avx2".split()))
AVXVNNI = replace(AVX2, name="avxvnni", cpu="alderlake", features=AVX2.features | {"avxvnni"})
NEON = Target("neon", "llvm", "neoverse-n1", 16, 32, 4, features=frozenset({"neon", "dotprod"}))
V1 = replace(NEON, name="v1", cpu="neoverse-v1", features=NEON.features | {"i8mm"})
ARMS = NEON, V1

SCALE = """func scale(in x: f32[n], inout y: f32[n], factor: f32, n: index in 0..1000)
  for i in 0..n serial:
    y[i] = y[i] + x[i] * factor
"""
SCALE_IR = """define void @scale(ptr noalias %x, ptr noalias %y, float %factor, i64 %n) {
entry:
  %some = icmp sgt i64 %n, 0
  br i1 %some, label %loop, label %done
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
  %p = getelementptr float, ptr %x, i64 %i
  %q = getelementptr float, ptr %y, i64 %i
  %a = load float, ptr %p
  %b = load float, ptr %q
  %m = fmul contract float %a, %factor
  %s = fadd contract float %b, %m
  store float %s, ptr %q
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %n
  br i1 %more, label %loop, label %done
done:
  ret void
}
"""
CALLS = """func f(in x: f32[64], inout y: f32[64], k: f32)
  for p in 0..4 parallel:
    alloc i: f32[16] scratch
    for j in 0..16 serial:
      i[j] = x[16 * p + j] * 2.0
    for t in 0..2 serial:
      call scale(i[8 * t], y[16 * p + 8 * t], k + 1.0, 8 - 1)
"""


@pytest.fixture
def scale() -> Iterator[Microkernel]:
    kernel = Microkernel("scale", SCALE, frozenset(), SCALE_IR)
    microkernels.register(kernel)
    yield kernel
    if kernel in microkernels.registered():
        microkernels.unregister("scale")


def caller(text: str = CALLS) -> Function:
    return parse_function(text)


def outcome(function: Function) -> np.ndarray:
    x, y = np.arange(64, dtype=np.float32), np.full(64, 3, np.float32)
    interpret_function(function, {"x": x, "y": y}, {"k": 4.0})
    return y


# ---- the statement ----

def test_a_call_prints_parses_and_means_its_meaning(scale: Microkernel) -> None:
    function = caller()
    verify_function(function)
    assert parse_function(print_function(function)) == function
    assert "call scale(i[8*t], y[16*p+8*t], k + 1.0, 7)" in print_function(function)
    inside = inline_calls(function)
    verify_function(inside)
    assert not any(isinstance(s, Call) for s in statements(inside))
    expected = np.full((8, 8), 3, np.float32)
    expected[:, :7] += 10 * np.arange(64).reshape(8, 8)[:, :7]
    np.testing.assert_array_equal(outcome(function), expected.ravel())
    np.testing.assert_array_equal(outcome(inside), expected.ravel())


def test_a_meaning_without_dims_and_scalars_is_inlined() -> None:
    pair = Microkernel("pair", "func pair(in x: f32[2], inout y: f32[1])\n  y[0] = x[0] + x[1]\n")
    empty = parse_function("func f(in x: f32[64], inout y: f32[64])\n  y[0] = 1.0\n")
    function = replace(empty, body=(Call(pair, (("x", 4), ("y", 9))),))
    assert print_function(inline_calls(function)).splitlines()[1:] == ["  y[9] = x[4] + x[5]"]


@pytest.mark.parametrize("before, after, message", [
    ("y[16 * p + 8 * t], k", "x[16 * p + 8 * t], k", "x is no memory that y can be"),
    ("call scale(i[8 * t], y", "call scale(y[8 * t], y", "y is written and given twice"),
    ("8 - 1)", "2000)", "n is 0..1000, got 2000"),
    ("call scale(", "for l in 0..4 vector:\n        call scale(", "may not stand inside a vector loop"),
])
def test_wrong_calls_are_found(scale: Microkernel, before: str, after: str, message: str) -> None:
    with pytest.raises(InternalError, match=message):
        verify_function(caller(CALLS.replace(before, after)))


def test_an_unknown_microkernel_is_no_text() -> None:
    with pytest.raises(FormatError, match="expected a registered microkernel, got 'scale'"):
        caller()


def test_the_interpreter_refuses_what_is_outside(scale: Microkernel) -> None:
    with pytest.raises(InternalError, match=r"call scale: y\[60..66\] is outside 0..63"):
        outcome(caller(CALLS.replace("y[16 * p + 8 * t]", "y[60]")))


def test_opencl_inlines_calls(scale: Microkernel) -> None:
    function = parse_function(CALLS.replace("alloc i: f32[16] scratch", "alloc i: f32[16] register")
                              .replace("for j in 0..16 serial", "for j in 0..16 unroll").replace("i[8 * t]", "x[0]"))
    source = render(function, Target("cl", "opencl", "", 32, 16, 2, features=frozenset({"fma"}))).source
    assert "call" not in source and "y[" in source


OPENCL_SCALE = """
void scale(SPACE_x const float *x, SPACE_y float *y, float factor, long n)
{
  for (long i = 0; i < n; ++i)

    y[i] += x[i] * factor;
}
"""


@pytest.mark.parametrize("size, space", [(16, "local"), (5000, "private")])
def test_opencl_c_is_called_with_the_address_spaces_of_its_buffers(size: int, space: str) -> None:
    microkernels.register(Microkernel("scale", SCALE, frozenset({"fma"}), OPENCL_SCALE, "opencl"))
    try:
        target = Target("cl", "opencl", "", 32, 16, 2, features=frozenset({"fma"}), local_memory=4096)
        function = caller(CALLS.replace("f32[16] scratch", f"f32[{size}] scratch"))
        source = render(function, target).source
        found = re.search(rf"void (scale_\w+)\(__{space} const float \*x, __global float \*y", source)
        assert found is not None and source.count(f"{found[1]}(") == 2
        assert "scale_" not in render(function, replace(target, features=frozenset())).source
        assert "scale_" not in render(function, replace(target, max_iterations=1 << 20)).source
    finally:
        microkernels.unregister("scale")


@needs_device("CL:pocl")
def test_check_runs_opencl_c() -> None:
    mine = Microkernel("scale", SCALE, frozenset(), OPENCL_SCALE, "opencl")
    assert microkernels.check(mine, device="CL:pocl") == []
    wrong = replace(mine, implementation=OPENCL_SCALE.replace("i < n", "i < n - 1"))
    assert "of y differ, first y[" in microkernels.check(wrong, device="CL:pocl")[0]


def test_opencl_c_is_not_for_the_cpu() -> None:
    mine = Microkernel("scale", SCALE, frozenset(), OPENCL_SCALE, "opencl")
    assert not mine.fits(HOST)
    with pytest.raises(MicrokernelError, match="in opencl to be for CPU, which runs llvm"):
        microkernels.check(mine, device="CPU")


# ---- what is linked ----

def test_it_is_compiled_once_and_linked_by_symbol(scale: Microkernel) -> None:
    programs = [render_llvm(caller(CALLS.replace("func f", f"func f{i}").replace("8 - 1", f"{i}")), HOST)
                for i in (1, 2)]
    (link,), (same,) = (p.links for p in programs)
    assert link == same and link.source == SCALE_IR and f"@{link.symbol}(" in programs[0].source
    assert "phi" not in programs[0].source.split("call void @scale")[1] and microkernels.check(scale) == []


def test_an_object_brings_what_its_other_programs_call(scale: Microkernel, tmp_path: Path) -> None:
    """Programs of one batch are one object: whoever loads it for one of them needs the links of all."""
    calling = render_llvm(caller(), HOST)
    plain = Unit(("plain",), "define void @plain() {\n  ret void\n}")
    with config(cache_dir=tmp_path, disk_cache=True):
        Jit().addresses([Unit((calling.name,), calling.source, calling.links), plain])
        second = Jit()
        second.addresses([plain])
        assert second.compiled == 0
        name = disk_cache.name_of(second._link_key(calling.links[0]))
        (link,) = (entry for entry in disk_cache.entries() if entry.name == name)
        assert disk_cache.remove(link)
        third = Jit()
        third.addresses([plain])
        assert third.compiled == 1


def test_without_its_features_the_meaning_runs() -> None:
    kernel = Microkernel("scale_far", SCALE.replace("scale", "scale_far"), frozenset({"no-such-feature"}), SCALE_IR)
    assert "no-such-feature" not in HOST.features and link_of(kernel, HOST).source != SCALE_IR
    with pytest.raises(MicrokernelError, match=r"it lacks \['no-such-feature'\]"):
        microkernels.check(kernel)
    assert "define void @scale_far(" in link_of(kernel, HOST).source
    shared_jit().link_object(link_of(kernel, HOST))


def test_check_says_what_differs() -> None:
    wrong = Microkernel("scale", SCALE, frozenset(), SCALE_IR.replace("fadd", "fsub"))
    found = microkernels.check(wrong)
    assert found and found[0].startswith("scale(n=") and "elements of y differ, first y[0]: expected" in found[0]
    beyond = Microkernel("scale", SCALE, frozenset(), SCALE_IR.replace("slt i64 %next, %n", "sle i64 %next, %n"))
    assert any("1 element of y differ" in line for line in microkernels.check(beyond))


@pytest.mark.skipif(not HOST.cpu or "sse" not in HOST.features, reason="the text is x86 assembly")
def test_assembly_is_an_implementation() -> None:
    text = """  .globl scale_asm
    .type scale_asm,@function
    scale_asm:
      xor %eax, %eax
    .Lscale_asm_loop:
      cmp %rdx, %rax
      jge .Lscale_asm_done
      movss (%rdi,%rax,4), %xmm1
      mulss %xmm0, %xmm1
      addss (%rsi,%rax,4), %xmm1
      movss %xmm1, (%rsi,%rax,4)
      inc %rax
      jmp .Lscale_asm_loop
    .Lscale_asm_done:
      ret
    """
    kernel = Microkernel("scale_asm", SCALE.replace("scale", "scale_asm"), frozenset(), text, "asm")
    assert microkernels.check(kernel) == []
    assert microkernels.check(Microkernel(kernel.name, kernel.meaning, frozenset(), text.replace("add", "sub"), "asm"))


def test_c_needs_clang(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    kernel = Microkernel("scale", SCALE, frozenset(), "void scale(float *x, float *y, float f, long n) {}", "c")
    with pytest.raises(CompileError, match="expected clang for scale, which is in C, found none"):
        microkernels.check(kernel)


def compiles_for_this_processor() -> bool:
    """True where a compiler of C is here, and not that of the machine which emulates this one."""
    compiler = shutil.which("clang") or shutil.which("gcc")
    return compiler is not None and subprocess.run(
        [compiler, "-dumpmachine"], capture_output=True, text=True, check=False).stdout.startswith(platform.machine())


@pytest.mark.skipif(not compiles_for_this_processor(), reason="no compiler of C for this processor")
def test_c_is_an_implementation(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Where only gcc is installed it stands in for clang, whose options it knows."""
    if shutil.which("clang") is None:
        (tmp_path / "clang").symlink_to(str(shutil.which("gcc")))
        monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    text = """void scale_c(const float *restrict x, float *restrict y, float factor, long n) {
      for (long i = 0; i < n; i++) y[i] += x[i] * factor;
    }"""
    kernel = Microkernel("scale_c", SCALE.replace("scale", "scale_c"), frozenset(), text, "c")
    assert microkernels.check(kernel) == []
    with pytest.raises(CompileError, match=r"(?s)clang says .*error"):
        microkernels.check(replace(kernel, implementation=text.replace("long i = 0;", "long;")))


def test_what_calls_a_library_is_refused() -> None:
    text = "declare float @expf(float)\n" + SCALE_IR.replace("load float, ptr %p", "call float @expf(float 1.0)")
    with pytest.raises(CompileError, match=r"expected scale to call nothing, got \['expf'\]"):
        microkernels.check(Microkernel("scale", SCALE, frozenset(), text))


@pytest.mark.parametrize("kernel, error, message", [
    (Microkernel("scale", SCALE, language="fortran"), MicrokernelError, "expected a language among llvm, asm, c"),
    (Microkernel("tile_f32_6x16_k_avx2", SCALE), MicrokernelError, "expected a name of its own"),
    (Microkernel("scale", "func"), FormatError, "expected a name"),
    (Microkernel("p", "func p(out y: f32[4])\n  for i in 0..4 parallel:\n    y[i] = 1.0\n"), InternalError,
     "a meaning has no for i parallel"),
])
def test_what_cannot_be_registered(kernel: Microkernel, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        microkernels.register(kernel)
    with pytest.raises(MicrokernelError, match="expected the name of a microkernel that was added"):
        microkernels.unregister("scale")


# ---- ours ----

def small(form: Form, kind: str, rows: int = 3, vectors: int = 2, along: str = "k") -> Microkernel:
    if form.name == "amx":
        return generated(Tile(kind, 2 * SIDE, SIDE), form)
    if form.name == "amxbf16":
        return generated(Tile(kind, SIDE, 4 * SIDE), form)
    return generated(Tile(kind, rows, vectors * form.vector_bytes // KINDS[kind][0].itemsize, along), form)


OURS = [(form, kind, along) for form in FORMS for kind in sorted(form.kinds) for along in "km"
        if not form.name.startswith("amx") or along == "k"]


@pytest.mark.parametrize("form, kind, along", OURS, ids=lambda x: getattr(x, "name", x))
def test_generated_forms_do_what_they_mean(form: Form, kind: str, along: str) -> None:
    kernel = small(form, kind, along=along)
    verify_meaning(kernel)
    assert find(kernel.name) == kernel and parse_function(print_function(meaning_of(kernel))) == meaning_of(kernel)
    if not kernel.fits(HOST):
        pytest.skip(f"this processor lacks {sorted(kernel.requires - HOST.features)}")
    assert microkernels.check(kernel, trials=3) == []


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_tiles_multiply(kind: str) -> None:
    """The meaning against numpy."""
    rng = np.random.default_rng(3)
    tile = Tile(kind, 2, 4, "m")
    steps, group = 5, tile.group
    if group == 1:
        a, b = rng.standard_normal((2, steps, 4)).astype(tile.sum.np)
        panels = a, b
    elif kind == "bf16x2":
        halves = rng.standard_normal((2, steps, 4, 2)).astype(np.float32).view(np.uint32) >> 16
        pairs = halves[..., 0] | halves[..., 1] << 16
        panels = pairs[0], pairs[1]
        a, b = (halves << 16).view(np.float32).transpose(0, 1, 3, 2).reshape(2, 2 * steps, 4)
    else:
        narrow = np.int8 if group == 4 else np.int16
        info = np.iinfo(narrow)
        a, b = rng.integers(info.min, info.max, (2, steps, 4, group), narrow, endpoint=True)
        panels = a.copy().view(np.uint32)[..., 0], b.copy().view(np.uint32)[..., 0]
        a = a.view(np.uint8) if kind == "u8x4" else a
        a, b = (x.transpose(0, 2, 1).reshape(steps * group, 4).astype(np.int32) for x in (a, b))
    c = np.arange(8, dtype=tile.sum.np)
    dims = {"k": steps, "a_pitch": 4, "b_pitch": 4, "c_pitch": 4, "old": 1}
    arrays = {"a": np.ascontiguousarray(panels[0]).ravel(), "b": np.ascontiguousarray(panels[1]).ravel(), "c": c}
    expected = c.reshape(2, 4) + a[:, :2].T @ b
    interpret_function(meaning_of(Microkernel("tile", tile.meaning("tile"))), arrays, {}, dims)
    np.testing.assert_allclose(c.reshape(2, 4), expected, rtol=1e-5)


@pytest.mark.parametrize("target, kinds", [
    (AVX512, "f32 u8x4"), (AVX512, "i16x2"), (BYTE_PRODUCTS, "bf16x2"), (AVX2, "f32 i16x2"), (AVXVNNI, "u8x4"),
    (NEON, "f32 i8x4"), (V1, "u8x4")], ids=lambda x: getattr(x, "name", x))
def test_the_tallest_tile_has_no_sum_on_the_stack(target: Target, kinds: str) -> None:
    """Which is what the policy asks for."""
    for kind in kinds.split():
        for vectors in (1, 2, 3, 4):
            rows = most_rows(vectors, target)
            columns = vectors * target.vector_bytes // 4
            for along in "km":
                kernel = microkernel_of(Tile(kind, rows, columns, along), target)
                text = assembly(str(kernel.implementation), target.cpu, ARM if target in ARMS else X86)
                assert not vectors_on_the_stack(text), kernel.name


BIG = [(AVX512, "f32", 14, 2), (AVX512, "f32", 8, 3), (AVX512, "f64", 14, 2), (AVX512, "i16x2", 12, 2),
       (AVX512, "u8x4", 14, 2), (BYTE_PRODUCTS, "bf16x2", 14, 2), (BYTE_PRODUCTS, "bf16x2", 9, 3), (AVX2, "f32", 6, 2),
       (AVX2, "f32", 4, 3), (AVX2, "f64", 6, 2), (AVX2, "i16x2", 5, 2), (NEON, "f32", 8, 3), (NEON, "f64", 8, 3),
       (NEON, "i8x4", 8, 3), (V1, "u8x4", 8, 3)]


@pytest.mark.parametrize("along", "km")
@pytest.mark.parametrize("target, kind, rows, vectors", BIG, ids=lambda x: getattr(x, "name", x))
def test_no_accumulator_lives_on_the_stack(target: Target, kind: str, rows: int, vectors: int, along: str) -> None:
    lanes = target.vector_bytes // KINDS[kind][0].itemsize
    kernel = microkernel_of(Tile(kind, rows, vectors * lanes, along), target)
    assert kernel.implementation is not None and kernel.requires
    text = assembly(kernel.implementation, target.cpu, ARM if target in ARMS else X86)
    assert not vectors_on_the_stack(text)
    multiply = {"f": ("vfmadd", "fmla"), "i": ("vpmaddwd", "sdot"), "u": ("vpdpbusd", "usdot"),
                "b": ("vdpbf16ps",)}[kind[0]]
    if kind == "i16x2" and target is AVX512:
        multiply = ("vpdpwssd", "smlal")  # which LLVM would take apart
    steps = sum(line.split()[0].startswith(multiply) for line in text.splitlines() if line.startswith("\t"))
    assert steps == rows * vectors


@pytest.mark.parametrize("rows, columns", [(16, 16), (16, 32), (32, 16), (32, 32)])
def test_matrix_registers(rows: int, columns: int) -> None:
    tile = Tile("i8x4", rows, columns)
    kernel = microkernel_of(tile, AMX)
    assert kernel.name == f"{tile.name}_amx"
    text = assembly(str(kernel.implementation), AMX.cpu)
    assert text.count("tdpbssd") == 2 * rows * columns // SIDE**2 and text.count("tilerelease") == 1
    if kernel.fits(HOST):
        assert microkernels.check(kernel, trials=4, seed=rows) == []


@pytest.mark.parametrize("rows, columns", SHAPES["bf16x2"])
def test_matrix_registers_of_bfloat16(rows: int, columns: int) -> None:
    """Four products, no register loaded more than once for them; and once more in the end."""
    tile = Tile("bf16x2", rows, columns)
    kernel = microkernel_of(tile, AMX)
    assert kernel.name == f"{tile.name}_amxbf16"
    text = assembly(str(kernel.implementation), AMX.cpu)
    assert text.count("tdpbf16ps") == 2 * 4 and text.count("tilerelease") == 1
    assert text.count("tileloadd") == 2 * 4 + 2 * (rows + columns) // SIDE
    if kernel.fits(HOST):
        assert microkernels.check(kernel, trials=2) == []


def test_a_plan_names_its_microkernel() -> None:
    a, b = (Tensor(np.ones((300, 300), np.int8), device="CPU") for _ in "ab")
    product = a.cast("int32") @ b.cast("int32")
    assert "call tile_" in show(product, stage="plan") or not find("tile_i8x4_4x32_k_avx512")
