"""Products of small integers in words: exact for every value, on every kind of instruction, odd lengths included."""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from support.packed import TARGETS, all_blocks, arguments, built, flat_kernel

from minigrad import Tensor, config, show
from minigrad.codegen.ir.interpret import interpret_function
from minigrad.codegen.ir.text import parse_function, print_function
from minigrad.codegen.ir.verify import verify_function
from minigrad.codegen.kernel.interpret import interpret_kernel
from minigrad.codegen.patterns.recognise import Contraction, recognise
from minigrad.codegen.policy.narrow import narrow_kind
from minigrad.codegen.render.llvm import render_llvm
from minigrad.target import Target

AVX512, AVX2, NEON = (replace(t, name=name, features=t.features | frozenset(more.split())) for t, name, more in zip(
    TARGETS, ("vnni", "avx2", "dotprod"), ("avx512bw avx512vnni", "", "neon dotprod"), strict=False))
AMX = replace(AVX512, name="amx", features=AVX512.features | {"amx-tile", "amx-int8"})
rng = np.random.default_rng(5)


def whole(*shape: int, dtype: str = "int8") -> Tensor:
    """Numbers of the whole range."""
    info = np.iinfo(dtype)
    return Tensor(rng.integers(info.min, info.max, shape, dtype, endpoint=True), device="CPU")


CASES: dict[str, tuple[Callable[[], Tensor], str]] = {
    "a @ b": (lambda: whole(19, 24) @ whole(24, 37), "u8x4 i16x2 i8x4"),
    "odd": (lambda: whole(19, 23) @ whole(23, 37), "u8x4 i16x2 i8x4"),
    "a.T @ b.T": (lambda: whole(21, 13).transpose(0, 1) @ whole(18, 21).transpose(0, 1), "u8x4 i16x2 i8x4"),
    "batched": (lambda: whole(3, 5, 7) @ whole(3, 7, 17), "u8x4 i16x2 i8x4"),
    "scaled": (lambda: (whole(3, 5, 7) @ whole(7, 17) + whole(17)).cast("float32") * 0.5, "u8x4 i16x2 i8x4"),
    "conv": (lambda: whole(2, 3, 9, 9).conv2d(whole(5, 3, 3, 3), padding=1), "u8x4 i16x2 i8x4"),
    "int16": (lambda: whole(9, 11, dtype="int16") @ whole(11, 18, dtype="int16"), "i16x2 i16x2 -"),
    "uint8": (lambda: whole(9, 11, dtype="uint8") @ whole(11, 18, dtype="uint8"), "i16x2 i16x2 -"),
    "mixed": (lambda: whole(9, 11, dtype="uint8") @ whole(11, 18), "u8x4 i16x2 -"),
    "cast": (lambda: whole(9, 11).cast("int32") @ whole(11, 18, dtype="int16").cast("int32"), "i16x2 i16x2 -"),
    "zero points": (lambda: (whole(9, 11, dtype="uint8").cast("int32") - whole(1, dtype="uint8").cast("int32"))
                    @ (whole(11, 18).cast("int32") - 7), "i16x2 i16x2 -"),
    "zero points, conv": (lambda: (whole(2, 3, 9, 9, dtype="uint8").cast("int32") - 113).conv2d(
        whole(5, 3, 3, 3, dtype="uint8").cast("int32") - 121, padding=1), "i16x2 i16x2 -"),
    "sums of int16": (lambda: (whole(9, 11, dtype="int16").cast("int32") + 1)
                      @ whole(11, 18).cast("int32"), ""),
    "wide": (lambda: whole(9, 11, dtype="int32") @ whole(11, 18, dtype="int32"), ""),
}


@pytest.mark.parametrize("target, place", [(AVX512, 0), (AVX2, 1), (NEON, 2), (AMX, 2)],
                         ids=["vnni", "avx2", "dotprod", "amx"])
@pytest.mark.parametrize("case", CASES)
def test_words_equal_the_kernel(case: str, target: Target, place: int) -> None:
    make, kinds = CASES[case]
    kernel = flat_kernel(make(), target)
    found = recognise(kernel.nests[0])
    assert isinstance(found, Contraction), found
    kind = narrow_kind(found, target)
    expected_kind = kinds.split()[0 if "-" in kinds and target is AMX else place].strip("-") if kinds else ""
    assert kind == expected_kind
    if not kind:
        return
    choices = all_blocks(kernel.nests[0], target, 6)
    assert all(made.words == kind and f"tile_{kind}_" in made.microkernel for made in choices)
    function = built(kernel, kernel.nests[0], choices[list(CASES).index(case) % len(choices)])
    verify_function(function)
    assert parse_function(print_function(function)) == function
    arrays = arguments(kernel)
    for p in kernel.params:
        if p.mode == "in" and p.dtype.is_int:
            arrays[p.name] = np.frombuffer(rng.bytes(arrays[p.name].nbytes), p.dtype.np).copy()
    expected = {name: a.copy() for name, a in arrays.items()}
    interpret_kernel(kernel, expected, {s.name: 0.5 for s in kernel.scalars})
    interpret_function(function, arrays, {s.name: 0.5 for s in kernel.scalars})
    for p in kernel.params:
        np.testing.assert_array_equal(arrays[p.name], expected[p.name])


VALUES: dict[str, Callable[[tuple[int, ...], str], np.ndarray]] = {
    "lowest": lambda shape, dtype: np.full(shape, np.iinfo(dtype).min, dtype),
    "highest": lambda shape, dtype: np.full(shape, np.iinfo(dtype).max, dtype),
    "both": lambda shape, dtype: rng.choice(np.array([np.iinfo(dtype).min, np.iinfo(dtype).max], dtype), shape),
    "random": lambda shape, dtype: rng.integers(np.iinfo(dtype).min, np.iinfo(dtype).max, shape, dtype, endpoint=True),
}


@pytest.mark.parametrize("a_dtype, b_dtype", [("int8", "int8"), ("int16", "int16"), ("uint8", "int8"),
                                              ("uint8", "uint8")])
@pytest.mark.parametrize("a_kind", VALUES)
@pytest.mark.parametrize("b_kind", VALUES)
def test_exact_on_the_cpu(a_kind: str, b_kind: str, a_dtype: str, b_dtype: str) -> None:
    a, b = VALUES[a_kind]((70, 131), a_dtype), VALUES[b_kind]((131, 90), b_dtype)
    product = Tensor(a, device="CPU") @ Tensor(b, device="CPU")
    assert product.dtype.name == ("uint32" if a_dtype == b_dtype == "uint8" else "int32")
    expected = (a.astype(np.int64) @ b.astype(np.int64)).astype(product.dtype.np)
    np.testing.assert_array_equal(product.numpy(), expected)


@pytest.mark.parametrize("m, n, k", [(512, 96, 1), (300, 100, 19), (64, 64, 1027), (17, 515, 66)])
def test_shapes_and_threads(m: int, n: int, k: int) -> None:
    a, b = VALUES["random"]((m, k), "int8"), VALUES["random"]((n, k), "int8")
    for threads in (1, 2):
        with config(threads=threads):
            got = (Tensor(a, device="CPU") @ Tensor(b, device="CPU").transpose(0, 1)).numpy()
        np.testing.assert_array_equal(got, a.astype(np.int32) @ b.T.astype(np.int32))


def test_an_int8_product_is_one_kernel_with_its_own_microkernel() -> None:
    a, b = (Tensor(VALUES["random"]((256, 256), "int8"), device="CPU").realize() for _ in "ab")
    made = show(a.cast("int32") @ b.cast("int32"), stage="kernels")
    assert made.count("kernel ") == 1 and "i32(p0[" in made
    assert show(a.matmul(b, dtype="int32"), stage="kernels") == made
    kernel = flat_kernel(a @ b, AVX512)
    for blocks in all_blocks(kernel.nests[0], AVX512, 6):
        (link,) = render_llvm(built(kernel, kernel.nests[0], blocks), AVX512).links
        assert "vpdpbusd" in link.source


def test_operands_widen_before_they_multiply() -> None:
    """In all contractions: 100 * 100 is no int8."""
    x = Tensor(np.full((1, 2, 4, 4), 100, np.int8), device="CPU")
    w = Tensor(np.full((1, 2, 3, 3), 100, np.int8), device="CPU")
    assert x.conv2d(w).numpy().tolist() == [[[[180000] * 2] * 2]]
    assert Tensor.einsum("ij,jk->ik", x[0, 0], x[0, 1]).numpy().tolist() == [[40000] * 4] * 4
    assert Tensor.einsum("i,i->i", x[0, 0, 0], x[0, 1, 0], dtype="int16").numpy().tolist() == [10000] * 4
