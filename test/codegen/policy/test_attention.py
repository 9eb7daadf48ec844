"""Attention in blocks: what is recognised, the blocks against the kernel as written, memory, gradients, odd inputs."""
import math
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from conftest import one_in

import minigrad
from minigrad import Tensor, Variable, jit
from minigrad.codegen.ir.interpret import interpret_function
from minigrad.codegen.ir.nodes import Alloc, Barrier
from minigrad.codegen.ir.text import parse_function, print_function
from minigrad.codegen.ir.verify import verify_function
from minigrad.codegen.ir.walk import statements
from minigrad.codegen.kernel.interpret import interpret_kernel
from minigrad.codegen.kernel.nodes import Kernel
from minigrad.codegen.passes import stages_of
from minigrad.codegen.plan.several import BlockPlan, parse_plan
from minigrad.codegen.policy import attention_groups
from minigrad.scheduler.graph import build_graph
from minigrad.scheduler.schedule import schedule
from minigrad.target import Target

AVX512 = Target("avx512", "llvm", "x86-64-v4", 64, 32, 2, 48 << 10, 1 << 20, features=frozenset({"avx512f", "fma"}))
AVX2 = Target("avx2", "llvm", "x86-64-v3", 32, 16, 2, features=frozenset({"avx2", "fma"}))
TINY = replace(AVX2, name="tiny", l1=1 << 11)
GPU = Target("gpu", "opencl", "gpu", 4, 256, 16, local_memory=48 << 10, max_group=256)
SMALL_GPU = replace(GPU, name="small gpu", local_memory=16 << 10)
rng = np.random.default_rng(3)


def tensor(*shape: int) -> Tensor:
    return Tensor(rng.standard_normal(shape).astype(np.float32), device="CPU").realize()


def kernel_of(t: Tensor, target: Target) -> Kernel:
    (step,) = schedule(build_graph([t.node]), frozenset(), target).steps
    return step.kernel


def attend(q: np.ndarray, k: np.ndarray, v: np.ndarray, mask: np.ndarray | None = None, offset: int | None = None,
           ) -> np.ndarray:
    """In float64."""
    s = q.astype(np.float64) @ np.swapaxes(k, -1, -2).astype(np.float64) / math.sqrt(q.shape[-1])
    if mask is not None:
        s = np.where(mask, s, -np.inf) if mask.dtype == bool else s + mask
    if offset is not None:
        s = np.where(np.arange(s.shape[-1])[None] <= np.arange(s.shape[-2])[:, None] + offset, s, -np.inf)
    top = s.max(-1, keepdims=True)
    e = np.exp(s - np.where(top == -np.inf, 0, top))
    return e / np.maximum(e.sum(-1, keepdims=True), 1e-300) @ v


CASES = {
    "plain": lambda: tensor(2, 9, 6).scaled_dot_product_attention(tensor(2, 11, 6), tensor(2, 11, 5)),
    "causal": lambda: tensor(2, 19, 4).scaled_dot_product_attention(tensor(2, 19, 4), tensor(2, 19, 7), is_causal=True),
    "offset": lambda: tensor(9, 4).scaled_dot_product_attention(tensor(23, 4), tensor(23, 4), is_causal=True,
                                                                 causal_offset=14),
    "heads": lambda: tensor(1, 12, 3, 4).transpose(1, 2).scaled_dot_product_attention(
        tensor(1, 13, 3, 4).transpose(1, 2), tensor(1, 13, 3, 4).transpose(1, 2)),
    "groups": lambda: tensor(1, 4, 10, 4).scaled_dot_product_attention(tensor(1, 2, 12, 4), tensor(1, 2, 12, 4),
                                                                       enable_gqa=True),
    "equal rows": lambda: tensor(1, 8).expand(17, 8).scaled_dot_product_attention(tensor(5, 8), tensor(5, 4)),
    "equal rows, mask": lambda: tensor(2, 1, 8).expand(2, 17, 8).scaled_dot_product_attention(
        tensor(2, 5, 8), tensor(2, 5, 4), tensor(17, 5)),
    "bool mask": lambda: tensor(9, 4).scaled_dot_product_attention(
        tensor(12, 4), tensor(12, 4), Tensor(rng.random((9, 12)) < 0.7, device="CPU").realize()),
    "few keys": lambda: tensor(2, 19, 4).scaled_dot_product_attention(tensor(2, 3, 4), tensor(2, 3, 9)),
    "window": lambda: tensor(2, 21, 4).scaled_dot_product_attention(
        tensor(2, 33, 4), tensor(2, 33, 4), is_causal=True, causal_offset=12, window=7),
    "sinks": lambda: tensor(2, 11, 4).scaled_dot_product_attention(
        tensor(2, 16, 4), tensor(2, 16, 4), is_causal=True, softcap=2.0, sinks=tensor(2)),
    "added mask": lambda: tensor(2, 9, 4).scaled_dot_product_attention(tensor(2, 12, 4), tensor(2, 12, 4),
                                                                       tensor(9, 12)),
}


@pytest.mark.parametrize("target", [AVX512, AVX2, TINY, GPU, SMALL_GPU], ids=lambda t: t.name)
@pytest.mark.parametrize("name", CASES)
@one_in(2)
def test_blocks_equal_the_kernel_as_written(name: str, target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    if target is SMALL_GPU:  # several groups, several blocks
        monkeypatch.setattr(attention_groups, "ROWS", (4,))
        monkeypatch.setattr(attention_groups, "KEYS", (8,))
    kernel = kernel_of(CASES[name](), target)
    staged = stages_of(kernel, target)
    (stage,) = staged.stages
    assert isinstance(stage.plan, BlockPlan)
    assert parse_plan(str(stage.plan)) == stage.plan
    assert parse_function(print_function(stage.function)) == stage.function
    inputs = {}
    for p in kernel.params:
        if p.mode == "in":
            shape = [int(n) for n in p.shape]
            inputs[p.name] = rng.random(shape) < 0.7 if p.dtype.kind == "b" else rng.standard_normal(shape).astype("f")
    scalars = {s.name: 0.5 for s in kernel.scalars}
    want = np.full([int(n) for n in kernel.params[0].shape], np.nan, np.float32)
    interpret_kernel(kernel, {**inputs, "o0": want}, scalars)
    names = dict(zip([p.name for p in kernel.params], [b.name for b in stage.function.buffers], strict=True))
    buffers = {names[n]: a.reshape(-1).copy() for n, a in inputs.items()}
    buffers[names["o0"]] = np.full(want.size, np.nan, np.float32)
    renamed = dict(zip([s.name for s in stage.function.scalars], scalars.values(), strict=True))
    interpret_function(stage.function, buffers, renamed)
    np.testing.assert_allclose(buffers[names["o0"]].reshape(want.shape), want, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("name", CASES)
def test_what_a_work_item_has_for_itself_is_in_registers(name: str) -> None:
    """Local memory has nothing but keys and values, for which the items of a group wait twice."""
    stage, = stages_of(kernel_of(CASES[name](), GPU), GPU).stages
    found = statements(stage.function)
    local = [s.name for s in found if isinstance(s, Alloc) and s.scope == "local"]
    assert local == ["keys", "values"] and sum(isinstance(s, Barrier) for s in found) <= 2
    verify_function(stage.function)  # registers have numbers


@pytest.mark.parametrize("rows, keys, depth, columns", [*product((8, 17, 50), (2, 9, 131), (2, 33), (3, 16))])
def test_odd_sizes(rows: int, keys: int, depth: int, columns: int) -> None:
    q, k, v = tensor(2, rows, depth), tensor(2, keys, depth), tensor(2, keys, columns)
    for causal in (False, True):
        got = q.scaled_dot_product_attention(k, v, is_causal=causal).numpy()
        want = attend(q.numpy(), k.numpy(), v.numpy(), offset=0 if causal else None)
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_other_types(dtype: str) -> None:
    q, k, v = (t.cast(dtype).realize() for t in (tensor(2, 20, 16), tensor(2, 40, 16), tensor(2, 40, 16)))
    got = q.scaled_dot_product_attention(k, v)
    assert got.dtype.name == dtype
    want = attend(q.float().numpy(), k.float().numpy(), v.float().numpy())
    limit = {"float16": 1e-3, "bfloat16": 8e-3, "float64": 1e-6}[dtype]
    np.testing.assert_allclose(got.cast("float32").numpy(), want, rtol=limit, atol=limit)


def test_large_scores_and_rows_that_start_late() -> None:
    """The largest score of a row comes in a late block, or there is none before it: no overflow, no NaN."""
    q, k, v = tensor(40, 8), tensor(300, 8), tensor(300, 8)
    mask = np.zeros((40, 300), bool)
    mask[:, 200:] = True
    k = (k * Tensor.arange(300, device="CPU").reshape(300, 1).cast("float32")).realize()
    got = q.scaled_dot_product_attention(k, v, Tensor(mask, device="CPU")).numpy()
    want = attend(q.numpy(), k.numpy(), v.numpy(), mask)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
    mask[3] = False
    nothing = q.scaled_dot_product_attention(k, v, Tensor(mask, device="CPU")).numpy()
    assert (nothing[3] == 0).all()
    np.testing.assert_array_equal(np.delete(nothing, 3, 0), np.delete(got, 3, 0))


def test_nan_and_infinity_reach_their_rows_only() -> None:
    q, k, v = (t.numpy().copy() for t in (tensor(20, 8), tensor(30, 8), tensor(30, 8)))
    q[3, 2] = np.nan
    v[5, 1] = np.inf
    got = Tensor(q, device="CPU").scaled_dot_product_attention(Tensor(k, device="CPU"), Tensor(v, device="CPU")).numpy()
    assert np.isnan(got[3]).all() and np.isinf(np.delete(got, 3, 0)[:, 1]).all()
    assert np.isfinite(np.delete(np.delete(got, 3, 0), 1, 1)).all()


def test_there_is_never_a_table_of_all_scores() -> None:
    n, q = 1024, [tensor(2, 1024, 16) for _ in range(3)]
    y = q[0].scaled_dot_product_attention(q[1], q[2], is_causal=True)
    forward = minigrad.plan(y)
    assert len(forward.kernels) == 1 and forward.peak_bytes == 4 * 4 * 2 * n * 16
    kernel = kernel_of(y, AVX512)
    (stage,) = stages_of(kernel, AVX512).stages
    scratch = sum(s.size * s.dtype.itemsize for s in stage.function.body[0].body if hasattr(s, "scope"))  # type: ignore
    assert scratch < 64 << 10


def test_gradients_come_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is no kernel for them: with one column, here."""
    from minigrad.ops import attention_gradient

    arrays = [rng.standard_normal((2, 50, 1)).astype(np.float32) for _ in range(4)]

    def gradients() -> tuple[list[np.ndarray], int]:
        q, k, v = (Tensor(a, device="CPU", requires_grad=True) for a in arrays[:3])
        y = q.scaled_dot_product_attention(k, v, is_causal=True)
        found = (y * Tensor(arrays[3], device="CPU")).sum().gradient(q, k, v)
        peak = minigrad.plan(list(found)).peak_bytes
        return [g.numpy() for g in found], peak

    whole, all_at_once = gradients()
    monkeypatch.setattr(attention_gradient, "BLOCK", 16 * 2 * 50)
    parts, in_blocks = gradients()
    for a, b in zip(whole, parts, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
    assert in_blocks < all_at_once


def test_symbolic_lengths_share_one_kernel() -> None:
    whole = [tensor(2, 64, 8) for _ in range(3)]

    @jit
    def f(q: Tensor, k: Tensor, v: Tensor, start: Variable, n: Variable) -> Tensor:
        end = start + n
        return q[:, :n].scaled_dot_product_attention(k[:, :end], v[:, :end], is_causal=True, causal_offset=start)

    for a, b in ((3, 20), (0, 8), (30, 33), (1, 32)):
        got = f(*whole, Variable("start", 0, 32).bind(a), Variable("n", 8, 33).bind(b)).numpy()
        q, k, v = (t.numpy() for t in whole)
        want = attend(q[:, :b], k[:, :a + b], v[:, :a + b], offset=a)
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
    assert f.captures == 1


def test_results_do_not_depend_on_threads() -> None:
    q, k, v = tensor(4, 200, 32), tensor(4, 200, 32), tensor(4, 200, 32)
    found = []
    for threads in (1, 2, 3):
        with minigrad.config(threads=threads):
            found.append(q.scaled_dot_product_attention(k, v, is_causal=True).contiguous().numpy().tobytes())
    assert len(set(found)) == 1


OPENCL_CPU = Target("pocl", "opencl", "cpu", 32, 16, 2, local_memory=256 << 10, max_group=4096)


def patterns(t: Tensor, target: Target) -> list[str]:
    steps = schedule(build_graph([t.node]), frozenset(), target).steps
    return [stage.plan.pattern for step in steps for stage in stages_of(step.kernel, target).stages]


@pytest.mark.parametrize("target, rows, blocks", [
    (AVX512, 9, True), (AVX512, 7, True), (OPENCL_CPU, 9, True), (OPENCL_CPU, 7, False), (GPU, 9, True),
    (GPU, 7, False), (replace(OPENCL_CPU, local_memory=8 << 10), 9, False),
    (replace(GPU, local_memory=0), 9, False), (replace(GPU, max_iterations=3), 9, False)])
def test_who_gets_blocks_is_decided_for_the_target(target: Target, rows: int, blocks: bool) -> None:
    """A table of scores, in several kernels, for few rows on some targets and where blocks have no room."""
    y = tensor(2, rows, 6).scaled_dot_product_attention(tensor(2, 11, 6), tensor(2, 11, 5), is_causal=True)
    made = patterns(y, target)
    assert made == ["block"] if blocks else "block" not in made and len(made) > 1


def test_dropout_outside_training_leaves_the_primitive() -> None:
    q, k, v = tensor(2, 9, 6), tensor(2, 11, 6), tensor(2, 11, 5)
    assert patterns(q.scaled_dot_product_attention(k, v, dropout_p=0.5), AVX512) == ["block"]
    with Tensor.train():
        assert "attention" not in patterns(q.scaled_dot_product_attention(k, v, dropout_p=0.5), AVX512)
    with pytest.raises(minigrad.errors.ShapeError, match=r"dropout_p in 0..1, got 1.5"):
        q.scaled_dot_product_attention(k, v, dropout_p=1.5)
