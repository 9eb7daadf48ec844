"""Products that stream interleaved rows: recognition, loops against the kernel as written, tables of four bits."""
# Tests know their dims are ints.
# mypy: disable-error-code="arg-type,type-var"
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from conftest import one_in
from support.machine_code import ARM, assembly
from support.plan_reading import copies
from support.stream import computes, last_kernel, panels, rng, streamed, tensor

from minigrad import Tensor, config
from minigrad.codegen.ir.interpret import interpret_function
from minigrad.codegen.ir.nodes import Alloc
from minigrad.codegen.ir.text import print_function
from minigrad.codegen.ir.walk import statements
from minigrad.codegen.kernel.nodes import Define
from minigrad.codegen.kernel.value_interval import interval
from minigrad.codegen.lowering.collapse import collapse
from minigrad.codegen.lowering.flatten import flatten
from minigrad.codegen.lowering.scales import is_exact_in_integers, scaled_terms
from minigrad.codegen.lowering.split import split_divisions
from minigrad.codegen.plan.several import Plan, parse_plan
from minigrad.codegen.policy.stream import recognise_stream
from minigrad.codegen.render.llvm import render_llvm
from minigrad.codegen.render.llvm_dot_products import dot_of, possible_bits
from minigrad.codegen.render.llvm_tables import table_of
from minigrad.dtype import float32, float64, int32, uint8, uint32
from minigrad.expr import Var
from minigrad.ops.scalars import dot_bytes, look_up
from minigrad.state import QuantizedTensor
from minigrad.target import Target
from minigrad.value import Value, binary, cast, const, free_variables, load, local, rebuild, unary

AVX512 = Target("avx512", "llvm", "x86-64-v4", 64, 32, 2, features=frozenset({"sse", "avx512f", "fma", "f16c"}))
AVX2 = Target("avx2", "llvm", "x86-64-v3", 32, 16, 2, features=frozenset({"sse", "avx2", "fma", "f16c"}))
LONG = replace(AVX512, name="long streams", host="znver4")
NEON = Target("neon", "llvm", "generic", 16, 32, 4)


@pytest.fixture(autouse=True)
def same_numbers_in_any_order() -> None:
    global rng
    rng = np.random.default_rng(5)


def quantized(kind: str, rows: int, columns: int) -> QuantizedTensor:
    return QuantizedTensor.quantize(rng.standard_normal((rows, columns)).astype(np.float32), kind, device="CPU")


def two(kind: str, rows: int, integers: bool = False, outputs: int = 96) -> Tensor:
    x = tensor(rows, 64)
    gate, up = [quantized(kind, outputs, 64).linear(x, quantize_activations=integers) for _ in range(2)]
    return gate.silu() * up


def experts(kind: str) -> QuantizedTensor:
    """Of three matrices five."""
    blocks = QuantizedTensor.quantize(rng.standard_normal((3, 64, 64)).astype(np.float32), kind, device="CPU")
    return blocks.pick(Tensor(np.array([2, 0, 1, 2, 2], np.int32), device="CPU"))


CASES: dict[str, Callable[[], Tensor]] = {
    "vector": lambda: tensor(80) @ panels(96, 80).transpose(),
    "one row, epilogue": lambda: (tensor(1, 80) @ panels(96, 80).transpose() + tensor(96)).relu(),
    "rows": lambda: tensor(5, 26) @ panels(160, 26).transpose(),
    "32 rows interleaved": lambda: tensor(3, 64) @ panels(128, 64, 32).transpose(),
    "prologue": lambda: (tensor(2, 64) * tensor(64)).tanh() @ panels(96, 64).transpose(),
    "Q8_0": lambda: quantized("Q8_0", 96, 64).linear(tensor(64)),
    "Q8_0, rows": lambda: quantized("Q8_0", 64, 64).linear(tensor(2, 64)),
    "Q4_0": lambda: quantized("Q4_0", 192, 64).linear(tensor(64)),
    "Q4_0, rows": lambda: quantized("Q4_0", 64, 64).linear(tensor(1, 3, 64)),
    "Q4_1": lambda: quantized("Q4_1", 96, 64).linear(tensor(64)),
    "two products, one kernel": lambda: two("Q4_0", 1),
    "two products in integers": lambda: two("Q8_0", 1, True, 288),
    "two products of rows in integers": lambda: two("Q4_1", 2, True, 288),
    "Q8_0 in integers": lambda: quantized("Q8_0", 192, 96).linear(tensor(96), quantize_activations=True),
    "Q4_1 in integers": lambda: quantized("Q4_1", 192, 96).linear(tensor(1, 96), quantize_activations=True),
    "Q8_0, looked up": lambda: experts("Q8_0").linear(tensor(5, 2, 64)),
    "Q4_1, rows": lambda: quantized("Q4_1", 64, 64).linear(tensor(2, 64), tensor(64)),
}


@pytest.mark.parametrize("target", [AVX512, LONG, AVX2, NEON], ids=lambda t: t.name)
@pytest.mark.parametrize("case", CASES)
@one_in(3)
def test_a_stream_equals_its_kernel(case: str, target: Target) -> None:
    kernel = last_kernel(CASES[case](), target)
    stage = streamed(kernel, target)
    assert parse_plan(str(stage.plan)) == stage.plan
    sums = [s.value for s in stage.nests[0].body if isinstance(s, Define) and s.value.op == "reduce"]
    scaled = any(v.args[0].reduces for v in sums)
    assert scaled == (case[0] == "Q" or case.startswith("two"))
    computes(stage, kernel, -8.0, cancels="integers" in case and case.startswith("two"))
    assert render_llvm(stage.function, target).scratch == 0


@pytest.mark.parametrize("make", [
    lambda: tensor(17, 64) @ panels(96, 64).transpose(),         # more rows than one tile has
    lambda: tensor(2, 64) @ tensor(96, 64).transpose(),          # rows that are not interleaved
    lambda: tensor(2, 64) @ tensor(64, 512),                     # long steps from one row of w to the next
    lambda: panels(96, 64).sum(1),                               # nothing to multiply with
    lambda: tensor(3, 1, 64) @ tensor(3, 4, 64, 16).permute(0, 1, 3, 2).reshape(3, 64, 64).transpose(1, 2),  # batched
], ids=["many rows", "row-major", "far", "a sum", "batched"])
def test_what_does_not_stream(make: Callable[[], Tensor]) -> None:
    kernel = collapse(flatten(split_divisions(last_kernel(make(), AVX512))))
    assert recognise_stream(kernel.nests[0], AVX512) is None


def test_few_panels_are_still_shared_by_workers() -> None:
    stage = streamed(last_kernel(tensor(576) @ panels(576, 576).transpose(), AVX512), AVX512)
    assert isinstance(stage.extent, int) and stage.extent >= 12


def test_small_products_have_fewer_and_larger_tiles() -> None:
    """Several panels at a time hide the latency of the sums; workers would not share so little anyway."""
    small = streamed(last_kernel(tensor(576) @ panels(192, 576).transpose(), AVX512), AVX512).plan
    large = streamed(last_kernel(tensor(2048) @ panels(192, 2048).transpose(), AVX512), AVX512).plan
    assert isinstance(small, Plan) and isinstance(large, Plan)
    assert copies(small) == {"i0": 3} and copies(large) == {}


def test_scales_leave_the_inner_sum() -> None:
    b, c = Var("b", 0, 3), Var("c", 0, 31)
    x, q = load("x", (32 * b + c,), float32), load("q", (32 * b + c,), float32)
    d, m = load("d", (b + 0,), float32), load("m", (b + 0,), float32)
    mul, both = (lambda p, r: binary("mul", p, r)), mul_add(d, q, m)
    assert scaled_terms(mul(x, mul(q, d)), (c,)) == [(d, mul(x, q))]
    assert scaled_terms(mul(x, both), (c,)) == [(d, mul(x, q)), (m, x)]
    assert scaled_terms(mul(x, binary("sub", mul(d, q), m)), (c,)) == [(d, mul(x, q)), (m, unary("neg", x))]
    assert scaled_terms(mul(x, q), (c,)) == [(None, mul(x, q))]
    lifted = mul(x, binary("sub", q, const(8, float32)))
    assert scaled_terms(lifted, (c,)) == [(None, lifted)] and free_variables(lifted) == {b, c}


@pytest.mark.parametrize("kind, scales", [("Q4_0", 1), ("Q4_1", 2)])
def test_words_are_prefetched_once_per_line(kind: str, scales: int) -> None:
    """512 bytes ahead, each stream once for the eight weights of a word; scales 192 bytes ahead, once per block; x,
    which is small, never."""
    x = tensor(1, 64)
    text = print_function(streamed(last_kernel(quantized(kind, 768, 64).linear(x), AVX512), AVX512).function)
    lines = [line.split() for line in text.splitlines()]
    fetched = [k for k, words in enumerate(lines) if words[0] == "prefetch"]
    assert [lines[k][1].rpartition("+")[2] for k in fetched] == ["96]"] * scales + ["128]"]
    between = [words[-1] for words in lines[fetched[scales - 1] + 1:fetched[scales]] if words[0] == "for"]
    assert between[-2:] == ["serial:", "unroll:"]  # the words of a block, the streams
    after = [words[-1] for words in lines[fetched[-1] + 1:] if words[0] == "for"]
    assert after[:2] == ["unroll:", "unroll:"]  # of the eight weights


def mul_add(a: Value, b: Value, c: Value) -> Value:
    return binary("add", binary("mul", a, b), c)


def test_functions_of_four_bits_are_tables() -> None:
    w = local("w", uint32)
    nibble = binary("and", w, const(15, uint32))
    signed = cast(binary("sub", cast(nibble, int32), const(8, int32)), float32)
    assert table_of(signed) == (w, tuple([float(k - 8) for k in range(16)]))
    assert table_of(binary("mul", cast(nibble, float32), const(0.5, float32))) == (w, tuple([k / 2 for k in range(16)]))
    numbers = tuple([(7 * k) % 23 - 11 for k in range(16)])
    assert table_of(look_up(w, dtype=int32, table=numbers)) == (w, numbers)
    assert table_of(cast(look_up(w, dtype=int32, table=numbers), float32)) == (w, numbers)
    assert table_of(cast(binary("and", w, const(31, uint32)), float32)) is None
    assert table_of(binary("add", cast(nibble, float32), local("y", float32))) is None
    function = streamed(last_kernel(quantized("Q4_0", 208, 64).linear(tensor(64)), AVX512), AVX512).function
    assert render_llvm(function, AVX512).source.count("permvar") >= 8
    assert "permvar" not in render_llvm(function, replace(AVX512, features=AVX512.features - {"avx512f"})).source


def test_byte_products_are_one_instruction() -> None:
    w, x = local("w", int32), local("x", int32)
    assert dot_of(dot_bytes(w, x, dtype=int32)) == (w, x)
    assert dot_of(binary("add", w, x)) is None
    parts = dot_bytes(w, x, dtype=int32)
    assert dot_of(rebuild(parts, (parts.args[0], parts.args[0].args[1]), None)) is None  # one byte twice


def having(target: Target, *features: str) -> Target:
    return replace(target, features=target.features | set(features))


@pytest.mark.parametrize("target, found, for_q8", [
    (having(AVX512, "avx512vnni"), "x86.avx512.vpdpbusd.512", "x86.avx512.vpdpbusd.512"),
    (having(AVX512, "avx512bw"), "x86.avx512.pmaddubs.w.512", "x86.avx512.pmaddw.d.512"),
    (AVX512, "", ""),
    (having(AVX2, "avxvnni"), "x86.avx512.vpdpbusd.256", "x86.avx512.vpdpbusd.256"),
    (AVX2, "x86.avx2.pmadd.ub.sw", "x86.avx2.pmadd.wd"),
    (having(replace(AVX2, vector_bytes=16), "ssse3"), "x86.ssse3.pmadd.ub.sw.128", "x86.sse2.pmadd.wd"),
    (having(NEON, "dotprod"), "aarch64.neon.sdot", "aarch64.neon.sdot"),
    (having(NEON, "dotprod", "i8mm"), "aarch64.neon.usdot", "aarch64.neon.usdot"),
])
def test_byte_products_are_a_few_instructions(target: Target, found: str, for_q8: str) -> None:
    """Bytes of words of four bits are below 128, so that products of two add up in int16; eight bits need not be."""
    for kind, name in (("Q4_0", found), ("Q8_0", for_q8)):
        result = quantized(kind, 192, 96).linear(tensor(96), quantize_activations=True)
        function = streamed(last_kernel(result, target), target).function
        source = render_llvm(function, target).source
        assert name in source
        assert any(dot in source for dot in ("vpdpbusd", "pmadd", "dot.v4i32")) == bool(name)
        if target.vector_bytes == 64:
            assert ("add <16 x i32>" in source) == ("vpdpbusd" not in name)  # VNNI adds to the sums, too
        if target.name == "neon":
            assert name.replace("aarch64.neon.", "\t") in assembly(source, "generic", ARM, "+dotprod,+i8mm")


def test_bits_that_a_value_may_have() -> None:
    w, mask = local("w", uint32), const(0x0F0F0F0F, uint32)
    low = binary("and", binary("shr", w, const(4, uint32)), mask)
    high = binary("shl", binary("and", w, const(0x03030303, uint32)), const(4, uint32))
    assert [possible_bits(v) for v in (w, low, high, binary("or", low, high), cast(low, int32))] == [
        0xFFFFFFFF, 0x0F0F0F0F, 0x30303030, 0x3F3F3F3F, 0x0F0F0F0F]
    assert possible_bits(const(-1, int32)) == possible_bits(binary("add", low, low)) == 0xFFFFFFFF


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0"])
def test_integers_are_added_up_as_integers_panel_by_panel(kind: str) -> None:
    target = LONG
    kernel = last_kernel(quantized(kind, 192, 96).linear(tensor(96), quantize_activations=True), target)
    stage = streamed(kernel, target)
    assert isinstance(stage.plan, Plan) and copies(stage.plan) == {} and stage.plan.ahead
    parts = [s for s in statements(stage.function.body) if isinstance(s, Alloc) and s.name.startswith("acc")]
    assert int32 in [s.dtype for s in parts]
    computes(stage, kernel, -8.0)


def test_intervals_hold_what_values_can_be() -> None:
    w, x = local("w", int32), local("x", int32)
    byte, signed = binary("and", w, const(255, int32)), binary("shr", x, const(24, int32))
    cases = {byte: (0, 255), signed: (-128, 127), binary("mul", byte, signed): (-32640, 32385),
             binary("sub", signed, byte): (-383, 127), cast(local("b", uint8), int32): (0, 255),
             binary("add", w, const(1, int32)): (int32.min, int32.max),
             binary("mul", binary("shr", w, const(8, int32)), byte): (-(1 << 23) * 255, ((1 << 23) - 1) * 255),
             binary("mul", binary("shr", w, const(7, int32)), byte): (int32.min, int32.max)}
    assert {v: interval(v) for v in cases} == cases
    assert is_exact_in_integers(cast(binary("mul", byte, signed), float32), 514)
    assert not is_exact_in_integers(cast(binary("mul", byte, signed), float32), 515)
    assert not is_exact_in_integers(cast(w, float32), 1) and not is_exact_in_integers(cast(byte, float64), 1)


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "Q4_1"])
def test_quantised_products_on_the_cpu(kind: str) -> None:
    w = quantized(kind, 416, 320)
    exact = w.dequantize().numpy().astype(np.float64)
    for rows in (1, 3, 16, 40):
        x = rng.standard_normal((rows, 320)).astype(np.float32)
        found = []
        for threads in (1, 2):
            with config(threads=threads):
                found.append(w.linear(Tensor(x, device="CPU")).numpy())
        assert found[0].tobytes() == found[1].tobytes()
        np.testing.assert_allclose(found[0], x @ exact.T, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("columns, at_once", [(128 * 16, 3), (38 * 16, 2), (36 * 16, 3)])
def test_tiles_of_several_panels_leave_few(columns: int, at_once: int) -> None:
    plan = streamed(last_kernel(tensor(8, 512) @ panels(columns, 512).transpose(), AVX512), AVX512).plan
    assert copies(plan) == {"i0": 8, "i1": at_once}


def test_panels_that_are_left_go_one_by_one() -> None:
    """97 panels, three at a time."""
    kernel = last_kernel(tensor(8, 18) @ panels(97 * 16, 18).transpose(), AVX512)
    stage = streamed(kernel, AVX512)
    assert copies(stage.plan)["i1"] == 3
    flat = collapse(flatten(split_divisions(kernel)))
    arrays = {p.name: np.zeros(p.shape, np.float32) if p.mode == "out" else
              rng.standard_normal(p.shape).astype(np.float32) for p in flat.params}
    a, w = (arrays[p.name] for p in flat.params if p.mode == "in")
    dims = {d.name: value for d, value in zip(stage.function.dims, stage.dims, strict=True)}
    interpret_function(stage.function, arrays, {}, dims)
    expected = np.einsum("mk,qkl->mql", a.reshape(8, 18), w.reshape(97, 18, 16))
    np.testing.assert_allclose(arrays["o0"].reshape(8, 97, 16), expected, rtol=1e-4, atol=1e-4)
