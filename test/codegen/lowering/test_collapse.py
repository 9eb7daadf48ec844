"""Index variables that step together become one, in nests inside others and beside each other."""
from __future__ import annotations

import numpy as np
import pytest

from minigrad import Tensor, config
from minigrad.codegen.kernel.interpret import interpret_kernel
from minigrad.codegen.kernel.text import parse_kernel
from minigrad.codegen.kernel.verify import verify_kernel
from minigrad.codegen.lowering.collapse import collapse

BESIDE = """kernel k(out o0: f32[{size}], p0: f32[3])
  for :
    t0 = sum(r0<3: p0[r0])
    for {first}:
      o0[{at}] = t0
    for {second}:
      o0[{later}] = t0 + 1.0
"""


@pytest.mark.parametrize("first, at, second, later, size", [
    ("i0<2, i2<2", "4*i0+i2", "i0<2, i2<2", "4*i0+i2+2", 8),
    ("i2<2, i0<2", "4*i0+i2", "i2<2, i0<2", "4*i0+i2+2", 8),
    ("i0<2, i1<2, i2<2", "8*i0+4*i1+i2", "i0<2, i1<2, i2<2", "8*i0+4*i1+i2+2", 16),
    ("i0<2, i1<2", "2*i0+i1", "i0<2, i2<3", "3*i0+i2+4", 10),
    ("i1<4", "i1", "i0<2, i1<4", "4*i0+i1+4", 12),
])
def test_nests_beside_each_other_with_variables_in_common(first: str, at: str, second: str, later: str, size: int
                                                          ) -> None:
    kernel = parse_kernel(BESIDE.format(first=first, at=at, second=second, later=later, size=size))
    made = collapse(kernel)
    verify_kernel(made)
    found = []
    for k in (kernel, made):
        arrays = {"o0": np.zeros(size, np.float32), "p0": np.arange(3, dtype=np.float32)}
        interpret_kernel(k, arrays)
        found.append(arrays["o0"])
    np.testing.assert_array_equal(found[1], found[0])


@pytest.mark.parametrize("columns", [1, 2, 3])
def test_parts_that_are_repeated(columns: int) -> None:
    x = np.arange(1, 4, dtype=np.float32)

    def repeated(t: Tensor) -> Tensor:
        row = t.sqrt().sum().reshape(1, 1).expand(1, columns)
        return Tensor.cat(row, row * 2, dim=0).repeat(2, 1) + 1

    with config(device="NUMPY"):
        wanted = repeated(Tensor(x)).numpy()
    np.testing.assert_allclose(repeated(Tensor(x)).numpy(), wanted, rtol=1e-6)
