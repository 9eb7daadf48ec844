"""Contractions in panels whose vectors hold two steps of the sum: the kernel's meaning, and when they are chosen."""
# Tests know their dims are ints.
# mypy: disable-error-code="arg-type,type-var"
from dataclasses import replace

import numpy as np
import pytest
from conftest import needs_device
from machine_code import assembly
from test_packed import AVX2, AVX512, NEON, equal_the_kernel, flat_kernel, rng, tensor

from minigrad import Tensor, config
from minigrad.codegen.panels import in_order
from minigrad.codegen.render.llvm import render_llvm
from minigrad.codegen.stages import stages_of
from minigrad.codegen.strategies import panels as module
from minigrad.codegen.strategies.build_panels import build_panels
from minigrad.codegen.strategies.panels import plan
from minigrad.codegen.strategies.plan import PanelPlan, parse_plan
from minigrad.target import Target

CASES = {
    "plain": lambda a, b: a @ b,
    "epilogue": lambda a, b: ((a @ b) * 0.5 + tensor(1, b.shape[1])).relu(),
    "long epilogue": lambda a, b: ((a @ b + tensor(b.shape[1])) * 0.5).silu() + tensor(a.shape[0], 1),
    "prologue": lambda a, b: a @ (b + tensor(b.shape[0], 1)).relu(),
    "batched": lambda a, b: tensor(2, *a.shape) @ b,
}


@pytest.mark.parametrize("case, target", [*((case, AVX2) for case in CASES), ("plain", AVX512), ("plain", NEON)],
                         ids=lambda x: x if isinstance(x, str) else x.name)
def test_pairs_equal_the_kernel(case: str, target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    """Vectors of a tile that are whole or leave half of one, tiles of rows that reach back, and units of several."""
    monkeypatch.setattr(module, "MIN_WORK", 1)
    half = min(16, target.lanes(32)) // 2
    for m, vectors, across, k in ((13, 3, 2, 10), (8, 2, 1, 8), (9, 1, 2, 6)):
        kernel = flat_kernel(CASES[case](tensor(m, k), tensor(k, max(vectors * across, 2) * half)), target)
        made = plan(kernel.nests[0], target)
        assert isinstance(made, PanelPlan), made
        for rows, down, block_m in ((4, 1, 4), (4, 2, 8), (2, 4, 2)):
            made = replace(made, group=2, rows=rows, vectors=vectors, unit_m=rows * down, block_m=block_m,
                           unit_n=vectors * half * across, block_k=k, a="place", b="panels", dots=0)
            assert parse_plan(str(made)) == made
            equal_the_kernel(kernel, [build_panels(kernel, kernel.nests[0], made, "panels")])


@pytest.mark.parametrize("m, n, k, group", [
    (3136, 24, 96, 2), (784, 40, 144, 2), (12544, 16, 32, 2), (784, 72, 144, 2),
    (784, 48, 144, 1), (784, 40, 143, 1), (40, 24, 96, 1), (784, 44, 144, 1), (784, 1000, 64, 1),
])
def test_where_columns_are_half_a_vector_too_few(m: int, n: int, k: int, group: int) -> None:
    """Never by the number of workers: the order of a sum depends on it."""
    kernel = flat_kernel(tensor(m, k) @ tensor(k, n), AVX512)
    for workers in (1, 2, 16):
        made = plan(kernel.nests[0], replace(AVX512, units=workers))
        assert isinstance(made, PanelPlan) and made.group == group
        assert group == 1 or n % made.columns == 0
        assert group == 1 or workers != 2 or -(-m // made.unit_m) % 2 == 0
        assert group == 1 or workers != 1 or made.unit_m >= m  # B is packed once
    assert in_order(kernel, AVX512) == (group == 1)


@pytest.mark.parametrize("target, register", [(AVX512, "zmm"), (AVX2, "ymm")], ids=["avx512", "avx2"])
def test_the_loop_is_loads_and_multiply_adds(target: Target, register: str) -> None:
    """One load for two neighbours of A in all lanes; no accumulator on the stack, and nothing is shuffled."""
    half = target.lanes(32) // 2
    stage = stages_of(flat_kernel(tensor(784, 96) @ tensor(96, 3 * half), target), target).stages[0]
    made = stage.plan
    assert isinstance(made, PanelPlan) and made.group == 2
    lines = assembly(render_llvm(stage.function, target).source, target.cpu).splitlines()
    sums = [k for k, line in enumerate(lines) if "vfmadd" in line and register in line]
    assert len(sums) % (made.rows * made.vectors) == 0
    start = max(k for k in range(sums[0]) if lines[k].endswith(":"))
    inner = lines[start:next(k for k in range(sums[-1], len(lines)) if lines[k].startswith("\tj"))]
    assert not [line for line in inner if register in line and "%rsp" in line], "\n".join(inner)
    assert sum("vbroadcastsd\t(" in line or "vbroadcastsd\t" in line and "(%" in line for line in inner) \
        == len(sums) // made.vectors
    assert not [line for line in inner if "vperm" in line or "vshuf" in line or "vinsert" in line]


@needs_device("CPU")
def test_the_processor_adds_what_is_there_and_nothing_else() -> None:
    """Infinities and NaN of one row or column stay there; the number of threads changes no bit."""
    for m, n, k in ((700, 24, 32), (650, 40, 18), (1300, 16, 64)):
        a, b = rng.standard_normal((m, k)).astype(np.float32), rng.standard_normal((k, n)).astype(np.float32)
        a[3, k - 1], a[5, 0], a[m - 1, 2], b[k - 1, n - 1] = np.inf, np.nan, -np.inf, np.inf
        with np.errstate(invalid="ignore"):
            expected = a.astype(np.float64) @ b.astype(np.float64)
        found = []
        for threads in (1, 2):
            with config(threads=threads):
                found.append((Tensor(a, device="CPU") @ Tensor(b, device="CPU")).numpy())
        assert found[0].tobytes() == found[1].tobytes()
        np.testing.assert_allclose(found[0], expected, rtol=2e-5, atol=2e-5)
