"""Neighbours in memory read as words: which values are, what programs read, and that nothing else changes."""
from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support.packed import AMX, flat_kernel

from minigrad import Tensor
from minigrad.codegen.ir.text import parse_function
from minigrad.codegen.kernel.words import with_words
from minigrad.codegen.passes import render
from minigrad.codegen.plan.build import build
from minigrad.codegen.policy.packed import ways
from minigrad.codegen.transforms.read_words import read_words
from minigrad.dtype import DType, bfloat16, int8, int16, uint8, uint16, uint32
from minigrad.expr import Index, Var
from minigrad.value import Value, binary, bitcast, cast, const, load

X = Var("x", 0, 99)


def word(places: list[Index], dtype: DType, unsigned: DType, bits: int) -> Value:
    """Elements at some places, each moved up by `bits` more than the one before it."""
    made: Value | None = None
    for t, place in enumerate(places):
        part = cast(bitcast(load("p", (place,), dtype), unsigned), uint32)
        part = binary("shl", part, const(bits * t, uint32)) if t else part
        made = part if made is None else binary("or", made, part)
    assert made is not None
    return made


@pytest.mark.parametrize("value, expected", [
    (word([X * 2, X * 2 + 1], bfloat16, uint16, 16), X),
    (word([X * 2 + 6, X * 2 + 7], int16, uint16, 16), X + 3),
    (word([X * 4 + t for t in range(4)], int8, uint8, 8), X),
    (word([X * 8 + 4 + t for t in range(4)], uint8, uint8, 8), X * 2 + 1),
])
def test_neighbours_are_words(value: Value, expected: Index) -> None:
    words, five = load("p_u32", (expected,), uint32), const(5, uint32)
    assert with_words(value) == words and with_words(binary("xor", value, five)) == binary("xor", words, five)


@pytest.mark.parametrize("value", [
    word([X * 2 + 1, X * 2 + 2], bfloat16, uint16, 16),  # begins within a word
    word([X * 3, X * 3 + 1], bfloat16, uint16, 16),
    word([X * 2, X * 2 + 2], bfloat16, uint16, 16),
    word([X * 2 + 1, X * 2], bfloat16, uint16, 16),
    word([X * 2, X * 2 + 1], bfloat16, uint16, 8),
    word([X * 4, X * 4 + 1], int8, uint8, 8),  # half of one
    word([X * 4, X * 4 + 1, X * 4 + 2, X * 4 + 2], int8, uint8, 8),
])
def test_others_stay_as_they_are(value: Value) -> None:
    assert with_words(value) is value


def test_only_inputs_are_read_so() -> None:
    """Memory that is written keeps one type."""
    text = """func f({mode} p: bf16[32], out y: u32[16])
  alloc s: u32[16] scratch
  for l in 0..16 vector:
    s[l] = u32(bitcast(p[2*l], u16)) | u32(bitcast(p[2*l + 1], u16)) << 16:u32
  for l in 0..16 vector:
    y[l] = s[l]
"""
    *_, view = read_words(parse_function(text.format(mode="in"))).buffers
    assert (view.name, view.size, view.dtype) == ("p_u32", 16, uint32)
    function = parse_function(text.format(mode="inout"))
    assert read_words(function) is function


@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
@pytest.mark.parametrize("transposed", [False, True])
def test_packing_reads_words(dtype: str, transposed: bool) -> None:
    """Whichever way an operand lies that is contiguous along K; square blocks of words are transposed in registers."""
    a, b = (Tensor(np.ones((96, 96), np.float32), device="CPU").cast(dtype).realize() for _ in "ab")
    target = replace(AMX, features=AMX.features | {"amx-int8"})
    result = a.matmul(b.transpose(0, 1) if transposed else b, dtype="int32" if dtype == "int8" else "float32")
    kernel = flat_kernel(result, target)
    way, = ways(kernel.nests[0], target)
    for _, choice in way.choices:
        nest, made = way.made(choice, target)
        assert "call tile_" in str(made)
        source = render(build(kernel, nest, made, "packed"), target).source
        narrow = f"load <16 x i{a.dtype.bits}>"
        assert source.count("load <16 x i32>") >= (17 if transposed else 1)
        assert (narrow in source) != transposed
