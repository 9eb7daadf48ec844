"""Rules on blocks: before and after, and on random ones the same meaning."""
from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from support.block_kernels import random_block

from minigrad.codegen.kernel.interpret import interpret_kernel
from minigrad.codegen.kernel.nodes import Kernel
from minigrad.codegen.kernel.text import parse_kernel, print_kernel
from minigrad.codegen.kernel.verify import verify_kernel
from minigrad.codegen.lowering.apart import apart
from minigrad.codegen.lowering.beside import beside
from minigrad.codegen.lowering.independent import independent
from minigrad.expr import product

HEAD = "kernel k(p0: f32[512], out o0: f32[512])\n  block a<4:\n"
BESIDE = HEAD + """\
    local s: f32[64], u: f32[64], v: f32[64]
    for i<64:
      s[i] = 0.0
    steps t in 0..2:
      for i<64:
        s[i] = s[i] * p0[64*t+i]
      for j<64:
        u[j] = s[j] + 1.0
      for i<64:
        o0[128*a+64*t+i] = s[i] * u[i]
        v[i] = s[i]
"""
BESIDE_AFTER = HEAD + """\
    local s: f32[64]
    for i<64:
      s[i] = 0.0
    steps t in 0..2:
      for i<64:
        s_new = s[i] * p0[i+64*t]
        s[i] = s_new
        u_new = s_new + 1.0
        o0[128*a+i+64*t] = s_new * u_new
"""
APART = HEAD + """\
    local s: f32[64]
    for i<8:
      n = sum(k<8: p0[8*i+k])
      for j<8:
        m = n * p0[j]
        s[8*i+j] = m
        for l<2:
          o0[128*a+16*i+2*j+l] = m + n
"""
APART_AFTER = HEAD + """\
    local s: f32[64], kept0: f32[8], kept1: f32[64]
    for i<8:
      n = sum(k<8: p0[8*i+k])
      kept0[i] = n
    for i<8, j<8:
      m = kept0[i] * p0[j]
      s[8*i+j] = m
      kept1[8*i+j] = m
    for i<8, j<8, l<2:
      o0[128*a+16*i+2*j+l] = kept1[8*i+j] + kept0[i]
"""
LOOP = """\
kernel loop(p0: f32[2, 3, 32], p1: f32[4, 2, 32], out o0: f32[4, 2, 32])
  block:
    local s0: f32[2, 3, 32], s1: f32[2, 32], s2: f32[2, 3, 32]
    for h<2, k<3, v<32:
      s0[h, k, v] = p0[h, k, v]
    steps t in 0..4:
      for h<2, v<32:
        n = sum(r<3: s0[h, r, v])
        s1[h, v] = n * p1[t, h, v]
      for h<2, k<3, v<32:
        s2[h, k, v] = s0[h, k, v] + s1[h, v]
      for h<2, v<32:
        o0[t, h, v] = s1[h, v]
      for h<2, k<3, v<32:
        s0[h, k, v] = s2[h, k, v]
"""
LOOP_AFTER = """\
kernel loop(p0: f32[192], p1: f32[256], out o0: f32[256])
  block a0<2, a1<2:
    local s0: f32[48], s1: f32[16]
    for k<3, lane<16:
      s0[16*k+lane] = p0[16*a0+96*a1+32*k+lane]
    steps t in 0..4:
      for lane<16:
        n = sum(r<3: s0[lane+16*r])
        s1[lane] = n * p1[16*a0+32*a1+lane+64*t]
      for k<3, lane<16:
        s0[16*k+lane] = s0[16*k+lane] + s1[lane]
      for lane<16:
        o0[16*a0+32*a1+lane+64*t] = s1[lane]
"""


@pytest.mark.parametrize("rule, before, after", [
    (beside, BESIDE, BESIDE_AFTER), (apart, APART, APART_AFTER),
    (lambda kernel: independent(kernel, 0, 16), LOOP, LOOP_AFTER)], ids=["beside", "apart", "independent"])
def test_before_and_after(rule: Callable[[Kernel], Kernel], before: str, after: str) -> None:
    kernel = parse_kernel(before)
    verify_kernel(kernel)
    assert print_kernel(rule(kernel)) == after
    agree(kernel, rule(kernel))


@pytest.mark.parametrize("seed", range(100, 140))
def test_random_blocks_mean_the_same(seed: int) -> None:
    kernel = random_block(seed)
    agree(kernel, beside(kernel), apart(kernel), apart(beside(kernel, "lane")))


def agree(kernel: Kernel, *others: Kernel) -> None:
    rng = np.random.default_rng(0)
    arrays = {p.name: rng.standard_normal(int(product(p.shape))).astype(np.float32) for p in kernel.params}
    wanted = {name: a.copy() for name, a in arrays.items()}
    interpret_kernel(kernel, wanted)
    for other in others:
        verify_kernel(other)
        found = {name: a.copy() for name, a in arrays.items()}
        interpret_kernel(other, found)
        for name, a in wanted.items():
            np.testing.assert_allclose(found[name], a, rtol=1e-6)


@pytest.mark.parametrize("change", [
    ("u[j] = s[j] + 1.0", "u[j] = s[63-j] + 1.0"),      # another element than the one just stored
    ("u[j] = s[j] + 1.0", "s[j] = s[j] + 1.0"),         # stored twice
    ("for j<64", "for j<32"),
])
def test_what_needs_all_of_the_nest_before_stays(change: tuple[str, str]) -> None:
    assert change[0] in BESIDE
    kernel = parse_kernel(BESIDE.replace(*change))
    assert print_kernel(beside(kernel)).count("for ") > BESIDE_AFTER.count("for ")
