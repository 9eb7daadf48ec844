"""A division of indices by what is 1 or more stands outside the loops that it does not depend on, even of those that
may not run; one that may be by 0 stays inside."""
from __future__ import annotations

import pytest
from support.packed import AVX512

from minigrad.codegen.ir.text import parse_function
from minigrad.codegen.render.llvm import render_llvm

TEXT = """func f(out o0: f32[4096], in p0: f32[4096], e0: index in {least}..64, e1: index in 0..64, e2: index in 1..64)
  for p in 0..e2*((e0+5)//6) parallel:
    alloc acc: f32[1] register
    acc[0] = 0.0
    for r in 0..e1 serial:
      acc[0] = acc[0] + p0[64*(p//((e0+5)//6))+r]
    o0[p] = acc[0]
"""


@pytest.mark.parametrize("least, outside", [(1, True), (6, True), (0, False)])
def test_divisions_by_sizes(least: int, outside: bool) -> None:
    source = render_llvm(parse_function(TEXT.format(least=least)), AVX512).source
    start = source.index("\nr.")
    assert ("udiv i32" in source[start:]) != outside
    assert source[:start].count("udiv") == (2 if outside else 1)  # the other one is that of the loop's end
