"""Blocks: their text, their rules, and what they mean."""
from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support.block_kernels import ATTENTION, DEPTH, HEADS, LENGTH, random_block

from minigrad.codegen.kernel.interpret import interpret_kernel
from minigrad.codegen.kernel.nodes import Block, Kernel, Steps
from minigrad.codegen.kernel.text import parse_kernel, print_kernel
from minigrad.codegen.kernel.verify import verify_kernel
from minigrad.errors import FormatError, InternalError
from minigrad.expr import Var

SUMS = """\
kernel k(x: f32[4, 3], out y: f32[4, 3])
  block i<4:
    local s: f32[3]
    for j<3:
      s[j] = x[i, j]
    steps t in 0..2:
      for j<3:
        s[j] = s[j] + s[j]
    for j<3:
      y[i, j] = s[j]
"""


@pytest.mark.parametrize("text", [SUMS, ATTENTION])
def test_canonical_texts(text: str) -> None:
    kernel = parse_kernel(text)
    assert print_kernel(kernel) == text and parse_kernel(print_kernel(kernel)) == kernel
    verify_kernel(kernel)


@pytest.mark.parametrize("seed", range(40))
def test_random_blocks_round_trip_and_are_valid(seed: int) -> None:
    kernel = random_block(seed)
    text = print_kernel(kernel)
    assert parse_kernel(text) == kernel and print_kernel(parse_kernel(text)) == text
    verify_kernel(kernel)


def test_attention_is_that_of_its_formula() -> None:
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((HEADS, LENGTH, DEPTH)).astype(np.float32) for _ in range(3))
    scores = np.where(np.tri(LENGTH, dtype=bool), q @ k.transpose(0, 2, 1) * 0.5, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    arrays = {"p0": q.ravel(), "p1": k.ravel(), "p2": v.ravel(), "o0": np.zeros(q.size, np.float32)}
    interpret_kernel(parse_kernel(ATTENTION), arrays)
    wanted = weights / weights.sum(-1, keepdims=True) @ v
    np.testing.assert_allclose(arrays["o0"].reshape(q.shape), wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("change, message", [
    (("s[j] = x[i, j]", "s[j] = x[i, j] + s[j]"), "s is read before anything is stored to it"),
    (("      s[j] = x[i, j]", "      y[i, j] = s[j]"), "s is read before anything is stored to it"),
    (("block i<4", "block i<3"), r"y\[4, 3\]: element \[3, 0\] is stored 0 times"),
    (("y[i, j] = s[j]", "y[i, 0] = s[j]"), r"element \[0, 1\] is stored 0 times"),
    (("x[i, j]", "x[i+1, j]"), "outside 0..3"),
    (("local s: f32[3]", "local s: f32[2]"), "outside 0..1"),
    (("local s: f32[3]", "local s: f64[3]"), "load of s as f64|expected float64"),
    (("s[j] = s[j] + s[j]", "x[i, j] = s[j] + s[j]"), "an input is never stored to"),
    (("steps t in 0..2", "steps i in 0..2"), "i"),
    (("steps t in 0..2", "steps t in i-1..2"), "a start of at least 0"),
    (("local s: f32[3]", "local s: f32[3], x: f32[3]"), "x"),
    (("block i<4", "block x<4"), "x|i"),
])
def test_rules(change: tuple[str, str], message: str) -> None:
    assert change[0] in SUMS
    with pytest.raises((InternalError, FormatError), match=message):
        verify_kernel(parse_kernel(SUMS.replace(*change)))


def test_what_no_text_says() -> None:
    kernel = parse_kernel(SUMS)
    block = kernel.block
    assert block is not None
    wrong: list[Kernel] = [
        replace(kernel, nests=(block.body[0],)),  # type: ignore[arg-type]
        replace(kernel, block=replace(block, local=(replace(block.local[0], mode="out"),))),
        replace(kernel, block=replace(block, local=(replace(block.local[0], layout=(0,)),))),
        replace(kernel, block=replace(block, domain=(Var("i", 0, Var("n", 1, 4) - 1),))),
        replace(kernel, block=Block(block.domain, block.local, (
            *block.body, Steps(Var("u", 0, Var("n", 1, 4)), 0, (block.body[0],))))),
    ]
    for bad in wrong:
        with pytest.raises(InternalError):
            verify_kernel(bad)


@pytest.mark.parametrize("text, message", [
    (SUMS + "  for i<4, j<3:\n    y[i, j] = 0.0\n", "line 11: expected one block"),
    (SUMS.replace("steps t in 0..2", "steps t<2"), "line 6: expected 'in'"),
    (SUMS.replace("local s: f32[3]", "local s"), "line 3: expected ':'"),
    (SUMS.replace("      s[j] = s[j] + s[j]\n", "").replace("      for j<3:\n    for", "    for"), "an indented block"),
])
def test_errors_name_the_line(text: str, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        parse_kernel(text)


def test_each_place_has_memory_of_its_own_with_nothing_in_it() -> None:
    text = SUMS.replace("for j<3:\n      s[j] = x[i, j]", "for j<i:\n      s[j] = x[i, j]")
    arrays = {"x": np.ones((4, 3), np.float32), "y": np.zeros((4, 3), np.float32)}
    interpret_kernel(parse_kernel(text), arrays)
    np.testing.assert_array_equal(arrays["y"], np.where(np.tri(4, 3, -1, dtype=bool), 4, np.nan))


def test_places_see_nothing_of_each_other() -> None:
    text = "kernel k(inout y: f32[4])\n  block i<3:\n    for :\n      y[i+1] = y[i] + 1.0\n"
    arrays = {"y": np.arange(4, dtype=np.float32) * 10}
    interpret_kernel(parse_kernel(text), arrays)
    np.testing.assert_array_equal(arrays["y"], [0, 1, 11, 21])
    same = "kernel k(out y: f32[4], x: f32[4])\n  block i<3:\n    for j<2:\n      y[i+j] = x[i+j]\n"
    arrays = {"y": np.zeros(4, np.float32), "x": np.arange(4, dtype=np.float32)}
    interpret_kernel(parse_kernel(same), arrays)
    np.testing.assert_array_equal(arrays["y"], arrays["x"])
    with pytest.raises(InternalError, match="store different values to one element of y"):
        interpret_kernel(parse_kernel(same.replace("x[i+j]", "x[i]")), arrays)
