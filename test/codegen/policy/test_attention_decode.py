"""Attention of few rows, as in decoding: parts of the keys against the kernel as written, numbers, launches, bytes."""
import math

import numpy as np
import pytest

import minigrad
from minigrad import Tensor, Variable, jit
from minigrad.codegen.ir.interpret import interpret_function
from minigrad.codegen.ir.text import parse_function, print_function
from minigrad.codegen.kernel.interpret import interpret_kernel
from minigrad.codegen.kernel.nodes import Kernel
from minigrad.codegen.passes import Staged, stages_of
from minigrad.codegen.plan.several import BlockPlan, parse_plan
from minigrad.codegen.policy import attention_decode
from minigrad.expr import evaluate
from minigrad.scheduler.graph import build_graph
from minigrad.scheduler.schedule import schedule
from minigrad.target import Target

AVX512 = Target("avx512", "llvm", "x86-64-v4", 64, 32, 2, 48 << 10, 1 << 20, features=frozenset({"avx512f", "fma"}))
AVX2 = Target("avx2", "llvm", "x86-64-v3", 32, 16, 2, features=frozenset({"avx2", "fma"}))
rng = np.random.default_rng(7)


def tensor(*shape: int) -> Tensor:
    return Tensor(rng.standard_normal(shape).astype(np.float32), device="CPU").realize()


def staged(t: Tensor, target: Target) -> tuple[Kernel, Staged]:
    (step,) = schedule(build_graph([t.node]), frozenset(), target).steps
    return step.kernel, stages_of(step.kernel, target)


def attend(q: np.ndarray, k: np.ndarray, v: np.ndarray, offset: int | None = None) -> np.ndarray:
    """In float64; heads of k and v are repeated for those of q."""
    k, v = (np.repeat(x, q.shape[0] // x.shape[0], 0) for x in (k, v))
    s = q.astype(np.float64) @ k.swapaxes(-1, -2).astype(np.float64) / math.sqrt(q.shape[-1])
    if offset is not None:
        s = np.where(np.arange(s.shape[-1])[None] <= np.arange(s.shape[-2])[:, None] + offset, s, -np.inf)
    e = np.exp(s - s.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True) @ v


CASES = {
    "one head": lambda: tensor(1, 4).scaled_dot_product_attention(tensor(21, 4), tensor(21, 3)),
    "one part": lambda: tensor(2, 1, 16).scaled_dot_product_attention(tensor(2, 7, 16), tensor(2, 7, 16)),
    "causal": lambda: tensor(2, 3, 6).scaled_dot_product_attention(tensor(2, 30, 6), tensor(2, 30, 6), is_causal=True,
                                                                   causal_offset=27),
    "grouped": lambda: tensor(6, 1, 8).scaled_dot_product_attention(tensor(2, 20, 8), tensor(2, 20, 8),
                                                                    enable_gqa=True),
    "grouped rows": lambda: tensor(4, 3, 8).scaled_dot_product_attention(
        tensor(2, 19, 8), tensor(2, 19, 8), enable_gqa=True, is_causal=True, causal_offset=16),
    "bool mask": lambda: tensor(2, 4).scaled_dot_product_attention(
        tensor(20, 4), tensor(20, 4), Tensor(rng.random((2, 20)) < 0.7, device="CPU").realize()),
    "added mask": lambda: tensor(2, 1, 4).scaled_dot_product_attention(tensor(2, 20, 4), tensor(2, 20, 4),
                                                                       tensor(1, 20)),
    "half": lambda: tensor(2, 1, 4).cast("float16").realize().scaled_dot_product_attention(
        tensor(2, 20, 4).cast("float16").realize(), tensor(2, 20, 4).cast("float16").realize()),
}


@pytest.mark.parametrize("target", [AVX512, AVX2], ids=lambda t: t.name)
@pytest.mark.parametrize("name", CASES)
def test_parts_equal_the_kernel_as_written(name: str, target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention_decode, "PART", 8)
    stages_of.cache_clear()
    kernel, made = staged(CASES[name](), target)
    assert len(made.stages) == (1 if name == "one part" else 2)
    plan = made.stages[0].plan
    assert isinstance(plan, BlockPlan) and parse_plan(str(plan)) == plan
    inputs = {}
    for p in kernel.params:
        if p.mode == "in":
            shape = [int(n) for n in p.shape]
            values = rng.standard_normal(shape).astype(p.dtype.name if p.dtype.kind == "f" else "f")
            inputs[p.name] = values < 0.7 if p.dtype.kind == "b" else values
    scalars = {s.name: 0.5 for s in kernel.scalars}
    out = kernel.params[0]
    want = np.full([int(n) for n in out.shape], np.nan, out.dtype.name)
    interpret_kernel(kernel, {**inputs, "o0": want}, scalars)
    memory = [*inputs.values(), *(np.full(int(evaluate(n, {})), np.nan, d.name) for d, n in made.scratch)]
    got = np.full(want.size, np.nan, want.dtype)
    for stage in made.stages:
        assert parse_function(print_function(stage.function)) == stage.function
        names = [b.name for b in stage.function.buffers]
        numbers = dict(zip([s.name for s in stage.function.scalars], scalars.values(), strict=True))
        dims = {d.name: evaluate(e, {}) for d, e in zip(stage.function.dims, stage.dims, strict=True)}
        arrays = dict(zip(names, [got, *(a.reshape(-1) for a in memory)], strict=True))
        interpret_function(stage.function, arrays, numbers, dims)
    stages_of.cache_clear()
    limit = 2e-3 if want.dtype == np.float16 else 2e-5
    np.testing.assert_allclose(got.reshape(want.shape), want, rtol=limit, atol=limit / 10)


@pytest.mark.parametrize("heads, groups, rows, keys, depth, columns", [
    (1, 1, 1, 129, 8, 8), (9, 3, 1, 400, 64, 64), (4, 2, 2, 700, 6, 5), (2, 2, 1, 128, 64, 48), (8, 8, 7, 257, 16, 80),
    (32, 1, 1, 300, 16, 16), (2, 1, 4, 2, 3, 33)])
def test_odd_sizes(heads: int, groups: int, rows: int, keys: int, depth: int, columns: int) -> None:
    q, k, v = tensor(heads, rows, depth), tensor(groups, keys, depth), tensor(groups, keys, columns)
    for offset in (None, keys - rows):
        if offset is not None and offset < 0:
            continue
        got = q.scaled_dot_product_attention(k, v, is_causal=offset is not None, causal_offset=offset or 0,
                                             enable_gqa=True).numpy()
        np.testing.assert_allclose(got, attend(q.numpy(), k.numpy(), v.numpy(), offset), rtol=1e-5, atol=1e-5)


def test_a_growing_cache_is_one_capture_and_never_read_beyond_its_end() -> None:
    keys, values = (np.full((2, 300, 8), np.nan, np.float32) for _ in range(2))
    position = Variable("position", 0, 299)

    @jit
    def step(q: Tensor, k: Tensor, v: Tensor, position: Variable) -> Tensor:
        end = position + 1
        return q.scaled_dot_product_attention(k[:, :end], v[:, :end], is_causal=True, causal_offset=position,
                                              enable_gqa=True)

    for at in (5, 0, 127, 128, 200, 299):
        for x in (keys, values):
            x[:, :at + 1], x[:, at + 1:] = rng.standard_normal((2, at + 1, 8)), np.nan
        q = tensor(6, 1, 8)
        got = step(q, Tensor(keys, device="CPU"), Tensor(values, device="CPU"), position.bind(at)).numpy()
        np.testing.assert_allclose(got, attend(q.numpy(), keys[:, :at + 1], values[:, :at + 1]), rtol=1e-5, atol=1e-5)
    assert step.captures == 1


def test_a_row_with_nothing_left_is_zeros_and_no_other() -> None:
    q, k, v = tensor(3, 8), tensor(300, 8), tensor(300, 8)
    mask = np.zeros((3, 300), bool)
    mask[0, 290:] = mask[2, 5] = True
    got = q.scaled_dot_product_attention(k, v, Tensor(mask, device="CPU")).numpy()
    assert (got[1] == 0).all()
    assert not np.isnan(got[[0, 2]]).any()
    np.testing.assert_allclose(got[2], v.numpy()[5], rtol=1e-6)


def test_results_do_not_depend_on_threads() -> None:
    q, k, v = tensor(2, 1, 32), tensor(2, 1000, 32), tensor(2, 1000, 32)
    found = []
    for threads in (1, 2, 3):
        with minigrad.config(threads=threads):
            found.append(q.scaled_dot_product_attention(k, v).contiguous().numpy().tobytes())
    assert len(set(found)) == 1


def test_launches_and_bytes() -> None:
    """Two launches; what parts keep is little beside the keys and values, which are read once for all that share them.
    """
    y = tensor(8, 1, 64).scaled_dot_product_attention(tensor(2, 2048, 64), tensor(2, 2048, 64), enable_gqa=True)
    _, made = staged(y, AVX512)
    parts, rows = 2048 // attention_decode.PART, 8
    assert [s.plan.pattern for s in made.stages] == ["block", "rows"]
    assert [s.extent for s in made.stages] == [2 * parts, rows]
    assert [n for _, n in made.scratch] == [parts * rows, parts * rows, parts * rows * 64]


def test_many_rows_are_blocks_or_lanes() -> None:
    k, v = tensor(1, 300, 16), tensor(1, 300, 16)
    _, made = staged(tensor(32, 1, 16).scaled_dot_product_attention(k, v, enable_gqa=True), AVX512)
    assert [s.plan.pattern for s in made.stages] == ["block"]
    _, made = staged(tensor(1, 9, 16).scaled_dot_product_attention(k, v), AVX512)
    assert [s.plan.pattern for s in made.stages] == ["block"]
