"""Composites: they compute what their expansions do, differentiate twice, and leave nothing behind."""
import gc
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from support.scheduler import ready

from minigrad import Tensor, nn
from minigrad.dtype import float32
from minigrad.engine.show import show
from minigrad.ops import OPS
from minigrad.ops import build as B
from minigrad.ops.composite import expanded
from minigrad.ops.node import live_count, toposort
from minigrad.ops.op import Composite

CASES = {
    "matmul": lambda x: x @ x.permute(0, 1, 3, 2),
    "vector times matrices": lambda x: x[0, 0, 0] @ x.permute(0, 1, 3, 2),
    "broadcast matmul": lambda x: x @ x[0, 0].T,
    "conv": lambda x: x.conv2d(x[:, :, :3, :2].permute(1, 0, 2, 3)[:, :1].expand(4, 4, 3, 2), x[0, :, 0, 0], padding=1),
    "strided depthwise": lambda x: x.conv2d(x[:1, :, :3, :3].permute(1, 0, 2, 3), groups=4, stride=2, padding=1),
    "one tap": lambda x: x.conv2d(x[:1, :, :1, :1].permute(1, 0, 2, 3).expand(4, 4, 1, 1)),
    "silu": lambda x: x.silu(),
    "mean": lambda x: x.mean((0, 2), keepdim=True) * x,
    "variance": lambda x: x.var((1, 3)),
    "softmax": lambda x: x.softmax(-1) * x,
    "layer norm": lambda x: x.layernorm((2, 3)) * x,
    "batch norm": lambda x: x.batchnorm_train(x[0, :, 0, 0], x[0, :, 1, 1])[0],
}


def composites(*tensors: Tensor) -> list[str]:
    return [n.op.name for n in toposort(*[t.node for t in tensors]) if isinstance(n.op.lower, Composite)]


@pytest.mark.parametrize("name", CASES)
def test_gradients_of_gradients_agree_with_differences(name: str) -> None:
    """Along a random direction: d/dt of the gradient's projection is the second derivative's."""
    run, rng = CASES[name], np.random.default_rng(3)
    a, v = (rng.standard_normal((2, 4, 6, 6)) for _ in range(2))
    direction = Tensor(v, dtype="float64")

    def slope(values: np.ndarray) -> tuple[Tensor, Tensor]:
        x = Tensor(values, dtype="float64", requires_grad=True)
        y = run(x)
        first = (y * y * 0.5).sum().gradient(x)[0]
        assert composites(y) and not composites(*[Tensor._wrap(n) for n in expanded([first.node]).values()])
        return (first * direction).sum(), x

    projected, x = slope(a)
    second = (projected.gradient(x)[0] * direction).sum().item()
    step = 1e-6
    differences = (slope(a + step * v)[0].item() - slope(a - step * v)[0].item()) / (2 * step)
    assert second == pytest.approx(differences, rel=2e-5, abs=1e-5)


def test_a_composite_does_not_read_what_happens_to_be_realized_inside_it() -> None:
    """Its plan depends on its inputs alone: the same one serves every graph of equal structure."""
    x = ready(5, 7)
    ones = Tensor.ones(5, 7)
    held = ones + x
    ones.realize()
    top = x.max(1, keepdim=True)
    top.realize()
    fresh = show(ready(5, 7).log_softmax(), "kernels")
    assert show(x.log_softmax(), "kernels") == fresh and held.shape == (5, 7)
    rows = x.numpy().astype(np.float64)
    np.testing.assert_allclose(x.log_softmax().numpy(), rows - np.log(np.exp(rows).sum(1, keepdims=True)), rtol=1e-5)


def test_expansions_are_gone_after_planning() -> None:
    x, w = ready(3, 6), ready(6, 4)
    gc.collect()
    before = live_count()
    y = (x @ w).softmax()
    y.realize()
    del y
    assert live_count() <= before


def test_every_composite_says_what_it_is_made_of() -> None:
    assert all(isinstance(op.lower, Composite) for op in OPS.values() if op.vjp is None)


def test_a_layer_is_few_nodes() -> None:
    """What one step of training makes per layer decides the host's time."""
    conv, norm = nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm(8)
    x = ready(2, 3, 8, 8)
    with Tensor.train():
        y = norm(conv(x)).silu()
    forward = ["conv", "_by_own_statistics", "silu"]
    assert [name.split(".")[0] for name in composites(y)] == forward
    assert norm.weight is not None and norm.bias is not None
    gradients = y.sum().gradient(conv.weight, norm.weight, norm.bias)
    names = {name.split(".")[0] for name in composites(*gradients)} - {*forward}
    assert names == {"silu_gradient", "_by_own_statistics_gradient", "conv_gradient_w"}


def test_steps_of_half_types() -> None:
    rng = np.random.default_rng(0)
    p, g = (rng.standard_normal(100).astype(np.float16) for _ in range(2))
    got = Tensor(p).stepped(Tensor(g), Tensor(0.125)).numpy()
    np.testing.assert_array_equal(got, p - (g.astype(np.float32) * 0.125).astype(np.float16))
    moved = Tensor(p).moved(Tensor(g), 0.25).numpy()
    np.testing.assert_allclose(moved, p.astype(np.float32) * 0.75 + g.astype(np.float32) * 0.25, atol=2e-3)


def test_threads_expand_apart() -> None:
    """Numbers that one thread makes while others expand are the same Nodes as ever."""
    def work(k: int) -> list[bool]:
        x = ready(3, 4 + k)
        found = []
        for _ in range(20):
            image = expanded([(x.softmax() * 2.0).node])
            mine = B.full(0.25 + k, (3,), float32, "CPU")
            found.append(mine is B.full(0.25 + k, (3,), float32, "CPU") and mine not in image)
        return found

    with ThreadPoolExecutor(4) as pool:
        assert all(all(found) for found in pool.map(work, range(8)))


@pytest.mark.parametrize("size", [0, 4])
def test_a_composite_and_what_it_expands_to_are_asked_for_together(size: int) -> None:
    x, y = ready(3, size), ready(size, 5)
    product = x @ y
    image = expanded([product.node])[product.node]
    plain, other = Tensor._wrap(image), x * 2
    Tensor.realize(other, product, plain, y * 3)
    values = x.numpy() @ y.numpy()
    for held in (product, plain):
        np.testing.assert_allclose(held.numpy(), values, rtol=1e-5)
    product.assign(product + 1).realize()
    np.testing.assert_allclose(plain.numpy(), values, rtol=1e-5)
    np.testing.assert_allclose(product.numpy(), values + 1, rtol=1e-5)
    np.testing.assert_array_equal(other.numpy(), x.numpy() * 2)
