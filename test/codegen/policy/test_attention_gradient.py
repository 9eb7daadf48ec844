"""The gradient of attention: blocks against the kernel as written, numbers, kernels and bytes, and who has none."""
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest

import minigrad
from minigrad import Tensor, Variable
from minigrad.codegen.ir.interpret import interpret_function
from minigrad.codegen.ir.text import parse_function, print_function
from minigrad.codegen.kernel.interpret import interpret_kernel
from minigrad.codegen.kernel.nodes import Kernel
from minigrad.codegen.passes import stages_of
from minigrad.codegen.plan.several import BlockPlan, parse_plan
from minigrad.scheduler.graph import build_graph
from minigrad.scheduler.schedule import Schedule, schedule
from minigrad.target import Target

AVX512 = Target("avx512", "llvm", "x86-64-v4", 64, 32, 2, 48 << 10, 1 << 20, features=frozenset({"avx512f", "fma"}))
AVX2 = Target("avx2", "llvm", "x86-64-v3", 32, 16, 2, features=frozenset({"avx2", "fma"}))
GPU = Target("gpu", "opencl", "gpu", 4, 256, 16, local_memory=48 << 10, max_group=256)
OPENCL_CPU = Target("pocl", "opencl", "cpu", 32, 16, 2, local_memory=256 << 10, max_group=4096)
rng = np.random.default_rng(5)


def tensor(*shape: int, grad: bool = True) -> Tensor:
    return Tensor(rng.standard_normal(shape).astype(np.float32), device="CPU", requires_grad=grad).realize()


def weight_of(y: Tensor) -> Tensor:
    """What every element of a result counts for."""
    return Tensor(weights_of(tuple(map(int, y.shape))), device="CPU").realize()


def weights_of(shape: tuple[int, ...]) -> np.ndarray:
    return np.random.default_rng(1).standard_normal(shape).astype(np.float32)


def gradients(q: Tensor, k: Tensor, v: Tensor, *args: Any, wanted: str = "qkv", **how: Any) -> list[Tensor]:
    y = q.scaled_dot_product_attention(k, v, *args, **how)
    weight = weight_of(y)
    return list((y * weight).sum().gradient(*({"q": q, "k": k, "v": v}[name] for name in wanted)))


def scheduled(tensors: Sequence[Tensor], target: Target) -> Schedule:
    return schedule(build_graph([t.node for t in tensors]), frozenset(), target)


def patterns(tensors: Sequence[Tensor], target: Target) -> list[str]:
    """Those of the kernels of gradients."""
    return [stage.plan.pattern for step in scheduled(tensors, target).steps if step.kernel.name == "attention_gradient"
            for stage in stages_of(step.kernel, target).stages]


def heads(n: int, length: int, width: int) -> Tensor:
    """Heads as layers make them: [1, length, heads, width] transposed."""
    return tensor(1, length, n, width).transpose(1, 2)


CASES: dict[str, Callable[[], list[Tensor]]] = {
    "plain": lambda: gradients(tensor(2, 9, 6), tensor(2, 11, 6), tensor(2, 11, 5)),
    "one": lambda: gradients(tensor(9, 6), tensor(11, 6), tensor(11, 5)),
    "causal": lambda: gradients(tensor(2, 19, 4), tensor(2, 19, 4), tensor(2, 19, 7), is_causal=True),
    "offset": lambda: gradients(tensor(9, 4), tensor(23, 4), tensor(23, 4), is_causal=True, causal_offset=14),
    "heads": lambda: gradients(heads(3, 12, 4), heads(3, 13, 4), heads(3, 13, 4)),
    "groups": lambda: gradients(tensor(1, 4, 10, 4), tensor(1, 2, 12, 4), tensor(1, 2, 12, 4), enable_gqa=True),
    "bool mask": lambda: gradients(tensor(9, 4), tensor(12, 4), tensor(12, 4),
                                   Tensor(rng.random((9, 12)) < 0.7, device="CPU").realize()),
    "added mask": lambda: gradients(tensor(2, 9, 4), tensor(2, 12, 4), tensor(2, 12, 4), tensor(9, 12, grad=False)),
    "window": lambda: gradients(tensor(150, 4), tensor(150, 4), tensor(150, 4), is_causal=True, window=20),
    "blocks": lambda: gradients(tensor(70, 2), tensor(130, 2), tensor(130, 3)),
    **{f"of {w}": partial(lambda w: gradients(tensor(9, 4), tensor(12, 4), tensor(12, 3), wanted=w), w)
       for w in ("q", "k", "v", "qv", "kv")},
}


def filled(kernel: Kernel) -> dict[str, np.ndarray]:
    """Values for everything that a kernel reads."""
    made = {}
    for p in kernel.params:
        if p.mode == "in":
            shape = [int(n) for n in p.shape]
            made[p.name] = rng.random(shape) < 0.7 if p.dtype.kind == "b" else rng.standard_normal(shape).astype("f")
    return made


@pytest.mark.parametrize("target", [AVX512, AVX2], ids=lambda t: t.name)
@pytest.mark.parametrize("name", CASES)
def test_blocks_equal_the_kernel_as_written(name: str, target: Target) -> None:
    steps = scheduled(CASES[name](), target).steps
    kernels = [s.kernel for s in steps if s.kernel.name.startswith("attention")]
    assert [k.name for k in kernels] == ["attention", "attention_gradient"]
    for kernel in kernels:
        (stage,) = stages_of(kernel, target).stages
        assert isinstance(stage.plan, BlockPlan)
        assert parse_plan(str(stage.plan)) == stage.plan
        assert parse_function(print_function(stage.function)) == stage.function
        inputs, scalars = filled(kernel), {s.name: 0.5 for s in kernel.scalars}
        sizes = {p.name: [int(n) for n in p.shape] for p in kernel.params if p.mode == "out"}
        want = {n: np.full(shape, np.nan, np.float32) for n, shape in sizes.items()}
        interpret_kernel(kernel, {**inputs, **want}, scalars)
        names = dict(zip([p.name for p in kernel.params], [b.name for b in stage.function.buffers], strict=True))
        got = {names[n]: np.full(a.size, np.nan, np.float32) for n, a in want.items()}
        renamed = dict(zip([s.name for s in stage.function.scalars], scalars.values(), strict=True))
        interpret_function(stage.function, {**{names[n]: a.reshape(-1).copy() for n, a in inputs.items()},
                                                    **got}, renamed)
        for n, a in want.items():
            np.testing.assert_allclose(got[names[n]].reshape(a.shape), a, rtol=5e-5, atol=2e-5)


def reference(q: np.ndarray, k: np.ndarray, v: np.ndarray, g: np.ndarray, offset: int | None) -> list[np.ndarray]:
    """In float64, with all weights at once."""
    q, k, v, g = (x.astype(np.float64) for x in (q, k, v, g))
    scale = 1 / math.sqrt(q.shape[-1])
    s = q @ k.swapaxes(-1, -2) * scale
    if offset is not None:
        s = np.where(np.arange(s.shape[-1])[None] <= np.arange(s.shape[-2])[:, None] + offset, s, -np.inf)
    p = np.exp(s - s.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    t = p * (g @ v.swapaxes(-1, -2) - (g * (p @ v)).sum(-1, keepdims=True))
    return [t @ k * scale, t.swapaxes(-1, -2) @ q * scale, p.swapaxes(-1, -2) @ g]


@pytest.mark.parametrize("rows, keys, depth, columns",
                         [(8, 2, 2, 3), (50, 131, 33, 16), (130, 65, 16, 80), (64, 128, 64, 64), (17, 9, 5, 130)])
@pytest.mark.parametrize("causal", [False, True])
def test_odd_sizes(rows: int, keys: int, depth: int, columns: int, causal: bool) -> None:
    q, k, v = tensor(2, rows, depth), tensor(2, keys, depth), tensor(2, keys, columns)
    got = gradients(q, k, v, is_causal=causal)
    assert patterns(got, minigrad.runtime.registry.get_device("CPU").target) == ["block"]
    g = weights_of((2, rows, columns))
    for a, b in zip(got, reference(q.numpy(), k.numpy(), v.numpy(), g, 0 if causal else None), strict=True):
        np.testing.assert_allclose(a.numpy(), b, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_other_types(dtype: str) -> None:
    q, k, v = (tensor(2, 20, 16, grad=False).cast(dtype).detach() for _ in range(3))
    for t in (q, k, v):
        t.requires_grad = True
    y = q.scaled_dot_product_attention(k, v, is_causal=True)
    weight = tensor(2, 20, 16, grad=False).cast(dtype)
    got = (y * weight).sum().gradient(q, k, v)
    limit = {"float16": 4e-3, "bfloat16": 3e-2, "float64": 1e-12}[dtype]
    queries, keys, values, g = (t.detach().cast("float64").numpy() for t in (q, k, v, weight))
    for a, b in zip(got, reference(queries, keys, values, g, 0), strict=True):
        assert a.dtype.name == dtype
        np.testing.assert_allclose(a.cast("float64").numpy(), b, rtol=limit, atol=limit)


def test_first_and_second_order_against_differences() -> None:
    """Along a random direction, in float64: of the result, and of its gradient."""
    arrays = [rng.standard_normal(s) for s in ((2, 9, 4), (2, 10, 4), (2, 10, 3), (9, 10))]
    ways = [rng.standard_normal(a.shape) for a in arrays]
    weight = rng.standard_normal((2, 9, 3))

    def value(order: int, step: float) -> tuple[float, float]:
        """The function at a step along the ways, and its derivative there."""
        xs = [Tensor(a + step * w, device="CPU", requires_grad=True) for a, w in zip(arrays, ways, strict=True)]
        y = (xs[0].scaled_dot_product_attention(xs[1], xs[2], xs[3]) * Tensor(weight, device="CPU")).sum()
        if order == 2:
            y = sum((g.square().sum() for g in y.gradient(*xs)), start=Tensor(0.0, dtype="float64", device="CPU"))
        slopes = y.gradient(*xs)
        return y.item(), sum(float((s.numpy() * w).sum()) for s, w in zip(slopes, ways, strict=True))

    for order in (1, 2):
        h = 1e-5
        slope = (value(order, h)[0] - value(order, -h)[0]) / (2 * h)
        assert value(order, 0)[1] == pytest.approx(slope, rel=1e-6)


def test_three_kernels_and_no_table() -> None:
    """The forward kernel leaves its sums, one kernel has d, one the gradients; nothing is larger than these."""
    n, size = 512, 4 * 2 * 512 * 16
    planned = minigrad.plan(gradients(tensor(2, n, 16), tensor(2, n, 16), tensor(2, n, 16), is_causal=True))
    assert [k.name for k in planned.kernels][::2] == ["attention", "attention_gradient"] and len(planned.kernels) == 3
    assert planned.peak_bytes < 9 * size
    moved = sum(k.bytes for k in planned.kernels)
    assert moved < 4 * size + 2 * size + 7 * size + 8 * 4 * 2 * n


def test_sums_alone_where_the_result_is_there_already() -> None:
    q, k, v = tensor(2, 40, 8), tensor(2, 40, 8), tensor(2, 40, 8)
    y = q.scaled_dot_product_attention(k, v, is_causal=True).realize()
    again = (y * tensor(2, 40, 8, grad=False)).sum().gradient(q, k, v)
    kernels = [s.kernel for s in scheduled(again, AVX512).steps]
    assert [k.name for k in kernels].count("attention") == 1
    assert not any(s.plan.pattern == "rows" for k in kernels for s in stages_of(k, AVX512).stages)
    y2 = q.scaled_dot_product_attention(k, v, is_causal=True)
    want = gradients(q, k, v, is_causal=True)
    for a, b in zip((y * weight_of(y2)).sum().gradient(q, k, v), want, strict=True):
        np.testing.assert_array_equal(a.numpy(), b.numpy())


def test_results_do_not_depend_on_threads() -> None:
    q, k, v = tensor(4, 200, 32), tensor(4, 200, 32), tensor(4, 200, 32)
    found = []
    for threads in (1, 2, 3):
        with minigrad.config(threads=threads):
            found.append(b"".join(g.numpy().tobytes() for g in gradients(q, k, v, is_causal=True)))
    assert len(set(found)) == 1


@pytest.mark.parametrize("target, rows, kernel", [(AVX512, 9, True), (AVX2, 9, True), (AVX512, 7, False),
                                                        (GPU, 9, False), (OPENCL_CPU, 9, False)])
def test_who_gets_a_kernel_is_decided_for_the_target(target: Target, rows: int, kernel: bool) -> None:
    made = patterns(gradients(tensor(2, rows, 6), tensor(2, 11, 6), tensor(2, 11, 5), is_causal=True), target)
    assert made == ["block"] * kernel


def test_symbolic_lengths_have_no_kernel() -> None:
    n = Variable("n", 8, 20).bind(15)
    q, k, v = (tensor(2, 20, 4) for _ in range(3))
    y = q[:, :n].scaled_dot_product_attention(k[:, :n], v[:, :n], is_causal=True)
    got = list(y.square().sum().gradient(q, k, v))
    assert not patterns(got, AVX512)
    q2, k2, v2 = (Tensor(t.numpy()[:, :15], device="CPU", requires_grad=True) for t in (q, k, v))
    y2 = q2.scaled_dot_product_attention(k2, v2, is_causal=True)
    for a, b in zip(got, y2.square().sum().gradient(q2, k2, v2), strict=True):
        np.testing.assert_allclose(a.numpy()[:, :15], b.numpy(), rtol=2e-5, atol=2e-5)
        assert not a.numpy()[:, 15:].any()
