"""What processes do together, checked in each of them: `python -m minigrad launch -n 3 distributed_checks.py`.

Prints "passed NAME" in rank 0 for each check that all have passed. Every process knows what the others have, as all
draw it from the same seeds, and works out by numpy, or alone, what is to come out.
"""
from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

import minigrad
from minigrad import Tensor, distributed, jit, nn
from minigrad.data import ArrayDataset, DataLoader, DistributedSampler
from minigrad.dtype import bfloat16_to_float32, float32_to_bfloat16
from minigrad.errors import MinigradError

RANK, SIZE = distributed.rank(), distributed.size()
NUMPY: dict[str, Any] = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}
DTYPES = ("float32", "float64", "float16", "bfloat16", "int32", "int64", "uint8", "bool")


def drawn(rank: int, shape: tuple[int, ...], dtype: str, special: bool = False) -> np.ndarray:
    """What a rank has: bfloat16 as float32."""
    rng = np.random.default_rng((rank, *shape, len(dtype)))
    values = rng.standard_normal(shape) * 3
    if special and values.size > 6:
        flat = values.reshape(-1)
        flat[:6] = [np.nan, np.inf, -np.inf, -0.0, 0.0, rank]
    if dtype == "bool":
        return values > 0
    if dtype == "bfloat16":
        return bfloat16_to_float32(float32_to_bfloat16(values.astype(np.float32)))
    if dtype == "uint8":
        return np.abs(values).astype(np.uint8)
    return values.astype(dtype)


def expected(shape: tuple[int, ...], dtype: str, how: str, special: bool = False) -> np.ndarray:
    """In the order of the ranks; half types in float32, rounded once."""
    parts = [drawn(r, shape, dtype, special) for r in range(SIZE)]
    kind = parts[0].dtype
    if dtype == "float16":
        parts = [p.astype(np.float32) for p in parts]
    total = parts[0]
    with np.errstate(all="ignore"):
        for p in parts[1:]:
            total = NUMPY[how](total, p)
    if dtype == "bfloat16":
        return bfloat16_to_float32(float32_to_bfloat16(total))
    return total.astype(kind)


def same_bits(got: np.ndarray, wanted: np.ndarray, what: object) -> None:
    assert got.dtype == wanted.dtype and got.shape == wanted.shape, (what, got.dtype, got.shape)
    assert np.array_equal(got, wanted, equal_nan=got.dtype.kind == "f"), (what, got, wanted)


def same_everywhere(tensors: list[Tensor]) -> None:
    for t in tensors:
        found = distributed.all_gather(t).numpy()
        assert all(row.tobytes() == found[0].tobytes() for row in found)


# Collectives

def all_reduce_of_every_dtype() -> None:
    for dtype in DTYPES:
        for how in ("sum", "max") if dtype in ("bool", "uint8") else NUMPY:
            t = Tensor(drawn(RANK, (5, 3), dtype), dtype=dtype)
            assert distributed.all_reduce(t, how) is t
            same_bits(t.numpy(), expected((5, 3), dtype, how), (dtype, how))


def all_reduce_of_every_shape() -> None:
    for shape in ((), (1,), (0,), (3, 0, 2), (7,), (2, 3, 5), (70001,), (SIZE * 40000,)):
        t = Tensor(drawn(RANK, shape, "float32", True))
        distributed.all_reduce(t)
        same_bits(t.numpy(), expected(shape, "float32", "sum", True), shape)
        same_everywhere([t])


def all_reduce_means() -> None:
    t = distributed.all_reduce(Tensor([1.0 + RANK, 5.0]), "avg")
    assert t.tolist() == [1 + (SIZE - 1) / 2, 5.0]


def all_reduce_within_a_captured_function() -> None:
    @jit
    def step(x: Tensor) -> tuple[Tensor, Tensor]:
        total = distributed.all_reduce((x * 2).contiguous())
        return total, distributed.all_reduce(x.max(), "max")

    for k in range(5):
        total, most = step(Tensor([float(k + RANK), 1.0]))
        assert total.tolist() == [2.0 * sum(k + r for r in range(SIZE)), 2.0 * SIZE]
        assert most.item() == max(k + SIZE - 1, 1)
    assert step.replays == 4, step.last_reason


def all_gather_of_dtypes_and_shapes() -> None:
    for dtype in DTYPES:
        for shape in ((), (0,), (4, 3)):
            got = distributed.all_gather(Tensor(drawn(RANK, shape, dtype), dtype=dtype))
            same_bits(got.numpy(), np.stack([drawn(r, shape, dtype) for r in range(SIZE)]), (dtype, shape))


def broadcast_from_each_rank() -> None:
    for source in range(SIZE):
        tensors = [Tensor(drawn(RANK, shape, dtype), dtype=dtype)
                   for shape, dtype in (((3, 2), "float32"), ((), "int64"), ((0, 2), "uint8"), ((90000,), "bfloat16"))]
        distributed.broadcast(tensors, source)
        for t in tensors:
            same_bits(t.numpy(), drawn(source, tuple(map(int, t.shape)), t.dtype.name), source)
    one = Tensor([RANK])
    distributed.broadcast(one, SIZE - 1)
    assert one.tolist() == [SIZE - 1]
    distributed.barrier()


def gradients_of_sums_and_means() -> None:
    x = Tensor(drawn(RANK, (4,), "float32"), requires_grad=True)
    (distributed.reduced(x.square()) * (RANK + 1.0)).sum().backward()  # the sum of all losses has this gradient
    weight = sum(r + 1.0 for r in range(SIZE))
    np.testing.assert_allclose(present(x.grad).numpy(), 2 * x.numpy() * weight, rtol=1e-6)
    y = Tensor([1.0 + RANK], requires_grad=True)
    distributed.reduced(y, "mean").sum().backward()
    assert abs(present(y.grad).item() - 1.0) < 1e-6
    z = Tensor([1.0], requires_grad=True)
    assert distributed.reduced(z.detach(), "max").item() == 1.0
    try:
        distributed.reduced(z, "max").sum().backward()
    except MinigradError as error:
        assert "expected a sum or a mean" in str(error)
    else:
        raise AssertionError("a maximum has no gradient")


def present(t: Tensor | None) -> Tensor:
    assert t is not None
    return t


# Training

def model() -> nn.Sequential:
    minigrad.manual_seed(4)
    return nn.Sequential(nn.Linear(7, 33), nn.ReLU(), nn.Linear(33, 19, bias=False), nn.Tanh(), nn.Linear(19, 3))


BATCHES = [(np.random.default_rng(k).standard_normal((4 * SIZE, 7)).astype(np.float32),
            np.random.default_rng(k).integers(0, 3, 4 * SIZE)) for k in range(5)]


def trained(together: bool, captured: bool, bucket_mb: float | None = None, parts: int = 1, memory: str | None = None,
            ) -> tuple[list[float], list[np.ndarray]]:
    """(losses, parameters) after five steps of Adam, by this process's share of each batch or by the whole of it."""
    net = model()
    optimizer = nn.optim.Adam(net.parameters(), lr=0.01)

    def step(x: Tensor, y: Tensor) -> Tensor:
        total = Tensor([0.0])
        for k in range(parts):
            loss = net(x[k::parts]).cross_entropy(y[k::parts]) / parts
            loss.backward()
            total = total + loss.detach()
        if together:
            distributed.average_gradients(net.parameters(), bucket_mb)
        optimizer.step()
        optimizer.zero_grad()
        return distributed.all_reduce(total, "mean") if together else total

    run: Any = (jit(step, memory=memory) if memory else jit(step)) if captured else step
    losses = [run(Tensor(x[RANK::SIZE] if together else x), Tensor(y[RANK::SIZE] if together else y)).item()
              for x, y in BATCHES]
    if captured:
        assert run.replays >= 3, run.last_reason
    return losses, [p.numpy() for p in net.parameters()]


def close(a: tuple[list[float], list[np.ndarray]], b: tuple[list[float], list[np.ndarray]]) -> None:
    np.testing.assert_allclose(a[0], b[0], rtol=1e-5)
    for p, q in zip(a[1], b[1], strict=True):
        np.testing.assert_allclose(p, q, atol=2e-6)


def equal(a: tuple[list[float], list[np.ndarray]], b: tuple[list[float], list[np.ndarray]]) -> None:
    assert a[0] == b[0] and all(p.tobytes() == q.tobytes() for p, q in zip(a[1], b[1], strict=True))


def training_equals_one_process() -> None:
    eager = trained(True, False)
    close(trained(False, False), eager)
    same_everywhere([Tensor(p) for p in eager[1]])
    equal(eager, trained(True, False))
    equal(eager, trained(True, True))
    equal(eager, trained(True, True, bucket_mb=0.002))  # several buckets: the order of sums is that of the ranks
    equal(eager, trained(True, False, bucket_mb=1e-6))


def training_with_parts_of_batches() -> None:
    close(trained(False, True), trained(True, True, parts=2))


def training_within_a_budget_of_memory() -> None:
    close(trained(False, True), trained(True, True, memory="1MB"))


def equal_gradients_and_parameters_without_one() -> None:
    a, b, c = (Tensor([1.0, 2.0], requires_grad=True) for _ in range(3))
    (a + b).sum().backward()  # one Node is the gradient of both
    distributed.average_gradients(p for p in (a, b, c))
    Tensor.realize(present(a.grad), present(b.grad))
    assert present(a.grad).tolist() == present(b.grad).tolist() == [1.0, 1.0] and c.grad is None


def two_optimizers_in_one_step() -> None:
    def run(together: bool) -> list[np.ndarray]:
        minigrad.manual_seed(5)
        one, two = nn.Linear(7, 7), nn.Linear(7, 7)
        optimizers = [nn.optim.SGD(m.parameters(), lr=0.1) for m in (one, two)]

        @jit
        def step(x: Tensor) -> Tensor:
            losses = []
            for m, other, optimizer in ((one, two, optimizers[0]), (two, one, optimizers[1])):
                for o in optimizers:
                    o.zero_grad()
                loss = (m(x) * other(x)).square().mean()
                loss.backward()
                if together:
                    distributed.average_gradients(m.parameters())
                optimizer.step()
                losses.append(loss.detach())
            for o in optimizers:
                o.zero_grad()
            return losses[1]

        for x, _ in BATCHES:
            step(Tensor(x[RANK::SIZE] if together else x))
        return [p.numpy() for m in (one, two) for p in m.parameters()]

    for p, q in zip(run(False), run(True), strict=True):
        np.testing.assert_allclose(p, q, atol=2e-6)


def batch_norm_across_processes() -> None:
    counts = [r + 1 for r in range(SIZE)]  # batches of different sizes
    own = slice(sum(counts[:RANK]), sum(counts[:RANK + 1]))
    x = np.random.default_rng(7).standard_normal((sum(counts), 5, 3, 2)).astype(np.float32) * 4 + 2
    w = np.random.default_rng(8).standard_normal(x.shape).astype(np.float32)
    whole, split = nn.BatchNorm2d(5), nn.SyncBatchNorm.convert_sync_batchnorm([nn.BatchNorm2d(5)])[0]
    results = []
    for norm, part in ((whole, slice(None)), (split, own)):
        t = Tensor(x[part], requires_grad=True)
        with Tensor.train():
            y = norm(t)
            (y * Tensor(w[part])).sum().backward()
        results.append([s.numpy() for s in (y, present(t.grad), norm.running_mean, norm.running_var)])
        assert norm.num_batches_tracked.item() == 1
    for (a, b), part in zip(zip(*results, strict=True), (own, own, slice(None), slice(None)), strict=True):
        np.testing.assert_allclose(a[part], b, rtol=1e-4, atol=1e-4)
    for name in ("weight", "bias"):
        total = distributed.all_reduce(present(getattr(split, name).grad).detach())
        np.testing.assert_allclose(total.numpy(), present(getattr(whole, name).grad).numpy(), rtol=1e-4, atol=1e-4)
    with Tensor.train(False):
        np.testing.assert_allclose(split(Tensor(x)).numpy(), whole(Tensor(x)).numpy(), rtol=1e-4, atol=1e-4)


def loaders_share_a_data_set() -> None:
    sampler = DistributedSampler(np.zeros(11), seed=3)
    seen = np.concatenate([[*DistributedSampler(np.zeros(11), SIZE, r, seed=3)] for r in range(SIZE)])
    assert [*sampler] == [*seen[RANK * len(sampler):(RANK + 1) * len(sampler)]] and set(seen) == set(range(11))
    loader = DataLoader(ArrayDataset(np.arange(11)), 2, sampler=sampler, generator=0)
    found = np.concatenate([np.asarray(batch.numpy()).reshape(-1) for batch, in loader])
    gathered = distributed.all_gather(Tensor(found)).numpy()
    assert set(gathered.reshape(-1)) == set(range(11))


CHECKS: list[Callable[[], None]] = [
    all_reduce_of_every_dtype, all_reduce_of_every_shape, all_reduce_means, all_reduce_within_a_captured_function,
    all_gather_of_dtypes_and_shapes, broadcast_from_each_rank, gradients_of_sums_and_means, training_equals_one_process,
    training_with_parts_of_batches, training_within_a_budget_of_memory, equal_gradients_and_parameters_without_one,
    two_optimizers_in_one_step, batch_norm_across_processes, loaders_share_a_data_set]


def main(names: list[str]) -> int:
    distributed.init()
    for check in CHECKS:
        if not names or check.__name__ in names:
            check()
            distributed.barrier()
            if RANK == 0:
                print(f"passed {check.__name__}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
