"""Versions and assign: a slice is a value, old versions stay readable, in place where that is safe."""
import gc
from typing import Any

import numpy as np
import pytest
from conftest import devices

from minigrad import Tensor, Variable, nn
from minigrad.config import config
from minigrad.engine.stats import stats

COMPILED = [d for d in devices() if d != "NUMPY"]


@pytest.fixture(params=devices())
def device(request):
    with config(device=request.param):
        yield request.param


@pytest.fixture(params=COMPILED)
def compiled(request):
    with config(device=request.param):
        yield request.param


def count(*shape: int) -> np.ndarray:
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


def place(x: Tensor) -> object:
    buffer = x.realize().node.storage
    return buffer.handle, buffer.offset


# ---- a slice is a value ----


@pytest.mark.parametrize("read_first", [True, False])
@pytest.mark.parametrize("start_realized", [True, False])
def test_slice_keeps_the_old_values(device, read_first, start_realized):
    x = Tensor(count(4)) if start_realized else Tensor(count(4)) + 0
    y = x[0:2]
    if read_first:
        y.realize()
    x[0] = 9
    if not read_first:
        x.realize()
    np.testing.assert_array_equal(y.numpy(), [0, 1])
    np.testing.assert_array_equal(x.numpy(), [9, 1, 2, 3])


def test_lazy_readers_see_the_version_they_were_made_from(device):
    x = Tensor(count(5)).realize()
    before = x * 2
    x.assign(x + 10)
    between = x * 2
    x.assign(x + 10)
    np.testing.assert_array_equal(x.numpy(), count(5) + 20)
    np.testing.assert_array_equal(between.numpy(), (count(5) + 10) * 2)
    np.testing.assert_array_equal(before.numpy(), count(5) * 2)


def test_reader_whose_work_is_in_the_plan(device):
    """The value that the new version comes from is still what it was when it is read afterwards."""
    x = Tensor(count(3, 4)).realize()
    work = (x.exp() * 0.1).sum(1, keepdim=True)
    x.assign(x - work)
    new = x.numpy()
    expected = (np.exp(count(3, 4)) * 0.1).sum(1, keepdims=True)
    np.testing.assert_allclose(work.numpy(), expected, rtol=1e-5)
    np.testing.assert_allclose(new, count(3, 4) - expected, rtol=1e-5)


def test_reader_of_old_and_new(device):
    x = Tensor(count(6)).realize()
    old = x + 0
    x[2:4] = x[2:4] * 10
    both = old + x
    np.testing.assert_array_equal(both.numpy(), [0, 2, 2 + 20, 3 + 30, 8, 10])


# ---- overlap ----


@pytest.mark.parametrize("size", [2, 5, 1000])
def test_overlapping_source_and_target(device, size):
    x = Tensor(count(size)).realize()
    x[1:] = x[:-1]
    np.testing.assert_array_equal(x.numpy(), [0, *range(size - 1)])
    x = Tensor(count(size)).realize()
    x[:-1] = x[1:]
    np.testing.assert_array_equal(x.numpy(), [*range(1, size), size - 1])


@pytest.mark.parametrize("shape", [(3, 3), (7, 5), (64, 64)])
def test_assigning_what_reads_other_elements(device, shape):
    for change in (lambda t: t.flip(0), lambda t: t.flip(1) + t, lambda t: t.permute(1, 0).reshape(shape),
                   lambda t: t - t.mean(1, keepdim=True), lambda t: t.softmax(), lambda t: t + t.sum()):
        x, y = Tensor(count(*shape)).realize(), Tensor(count(*shape)).realize()
        expected = change(y).numpy()
        x.assign(change(x))
        np.testing.assert_allclose(x.numpy(), expected, rtol=1e-6)


def test_transpose_of_a_square(device):
    x = Tensor(count(9, 9)).realize()
    x.assign(x.transpose(0, 1))
    np.testing.assert_array_equal(x.numpy(), count(9, 9).T)


def test_swap(device):
    a, b = Tensor(count(20)).realize(), Tensor(count(20) + 100).realize()
    old = a + 0
    a.assign(b)
    b.assign(old)
    Tensor.realize(a, b)
    np.testing.assert_array_equal(a.numpy(), count(20) + 100)
    np.testing.assert_array_equal(b.numpy(), count(20))


def test_updates_that_read_each_others_targets_elsewhere(device):
    a, b = Tensor(count(4, 6)).realize(), Tensor(count(4, 6) * 3).realize()
    x, y = a.numpy(), b.numpy()
    old_a = a + 0
    a.assign(a + b.flip(0))
    b.assign(b * 2 + old_a.flip(1))
    Tensor.realize(a, b)
    np.testing.assert_array_equal(a.numpy(), x + y[::-1])
    np.testing.assert_array_equal(b.numpy(), y * 2 + x[:, ::-1])


# ---- chains and loops ----


def test_chain_of_assigns(device):
    x = Tensor(count(8)).realize()
    expected = count(8)
    for k in range(10):
        x.assign(x * 2 - k)
        expected = expected * 2 - k
        x[k % 8] = k
        expected[k % 8] = k
    np.testing.assert_array_equal(x.numpy(), expected)


def test_loop_reuses_the_memory(compiled):
    x = Tensor(count(33)).realize()
    where = place(x)
    for _ in range(5):
        x.assign(x + 1)
        assert place(x) == where
        x[3:5] = 0
        assert place(x) == where
    np.testing.assert_array_equal(x.numpy()[:3], [5, 6, 7])


def test_reader_that_lives_keeps_its_memory(compiled):
    x = Tensor(count(4)).realize()
    y = x.reshape(2, 2)
    x.assign(x + 1)
    x.realize()
    np.testing.assert_array_equal(y.numpy().ravel(), count(4))
    np.testing.assert_array_equal(x.numpy(), count(4) + 1)


def test_shared_storage(device):
    x = Tensor(count(4)).realize()
    same = x.reshape(4)
    alias = x.detach()
    x.assign(x * 10)
    x.realize()
    np.testing.assert_array_equal(same.numpy(), count(4))
    np.testing.assert_array_equal(alias.numpy(), count(4))
    np.testing.assert_array_equal(x.numpy(), count(4) * 10)


def test_equal_values_do_not_share_their_updates(device):
    a, b = Tensor.zeros(5).contiguous().realize(), Tensor.zeros(5).contiguous().realize()
    a.assign(a + 1)
    a.realize()
    np.testing.assert_array_equal(b.numpy(), np.zeros(5))
    np.testing.assert_array_equal(a.numpy(), np.ones(5))


def test_blob_is_read_and_copied_on_write(device):
    array = count(6)
    x = Tensor.from_blob(array)
    y = x + 1
    np.testing.assert_array_equal(y.numpy(), count(6) + 1)
    kept = x[2:4]
    x.assign(x * 2)
    np.testing.assert_array_equal(x.numpy(), count(6) * 2)
    np.testing.assert_array_equal(kept.numpy(), [2, 3])


def test_detach_reads_the_same_version(device):
    x = Tensor(count(3), requires_grad=True).realize()
    old = x.detach() * 2
    x.assign(x.detach() + 1)
    np.testing.assert_array_equal(old.numpy(), count(3) * 2)
    np.testing.assert_array_equal(x.detach().numpy(), count(3) + 1)


def test_results_do_not_depend_on_garbage(device):
    """A cycle keeps old readers alive: the numbers are the same, only memory differs."""
    def steps() -> np.ndarray:
        x = Tensor(count(7)).realize()
        for k in range(4):
            holder: list = [x * k]
            holder.append(holder)
            x.assign(x * 2 + k)
            x[k] = -1
            x.realize()
        return x.numpy()

    expected = steps()
    gc.disable()
    try:
        np.testing.assert_array_equal(steps(), expected)
    finally:
        gc.enable()


# ---- regions ----


def test_strided_and_reversed_regions(device):
    x, expected = Tensor(count(5, 6)).realize(), count(5, 6)
    x[1:4, ::2] = Tensor(count(3, 3) + 50)
    expected[1:4, ::2] = count(3, 3) + 50
    x[:, 1] = 7
    expected[:, 1] = 7
    np.testing.assert_array_equal(x.numpy(), expected)


def test_symbolic_region_is_one_plan(device):
    position = Variable("assign_position", 0, 9)
    cache = Tensor.zeros(10, 3).contiguous().realize()
    expected = np.zeros((10, 3), np.float32)
    made = stats.snapshot()
    for k in (0, 4, 9, 2):
        at = position.bind(k)
        cache[at:at + 1] = Tensor(count(1, 3) + k).realize()
        cache.realize()
        expected[k] = count(3) + k
    assert (stats - made).schedules <= 1
    np.testing.assert_array_equal(cache.numpy(), expected)


def test_growing_cache_is_read_up_to_the_position(device):
    position = Variable("assign_length", 1, 8)
    cache = Tensor.zeros(8, 2).contiguous().realize()
    for k in range(1, 6):
        n = position.bind(k)
        cache[n - 1:n] = Tensor(np.full((1, 2), k, np.float32))
        total = cache[0:n].sum(0)
        np.testing.assert_array_equal(total.numpy(), [k * (k + 1) / 2] * 2)


# ---- the training step ----


@pytest.mark.parametrize("kind", ["SGD", "Adam"])
def test_loss_printed_after_the_step(device, kind):
    """The loss is that of the weights before the step, whenever it is read."""
    rng = np.random.default_rng(5)
    x, y = (rng.standard_normal(s).astype(np.float32) for s in ((6, 4), (6, 3)))
    losses = {}
    for early in (True, False):
        w = Tensor(np.ones((4, 3), np.float32), requires_grad=True)
        optimizer = getattr(nn.optim, kind)([w], lr=0.05)
        found = losses[early] = []
        for _ in range(3):
            optimizer.zero_grad()
            loss = ((Tensor(x) @ w - Tensor(y)) ** 2).mean()
            loss.backward()
            if early:
                found.append(loss.item())
            optimizer.step()
            if not early:
                found.append(loss.item())
    np.testing.assert_allclose(losses[True], losses[False], rtol=1e-6)
    assert losses[True][2] < losses[True][0]


def test_training_keeps_parameters_where_they_are(compiled):
    w = Tensor(count(5, 3), requires_grad=True).realize()
    optimizer = nn.optim.SGD([w], lr=0.1, momentum=0.9)
    where = place(w), place(optimizer.velocities[0])
    memory = None
    for _ in range(4):
        optimizer.zero_grad()
        loss = (Tensor(count(2, 5)) @ w).relu().sum()
        loss.backward()
        optimizer.step()
        loss.item()
        del loss
        assert (place(w), place(optimizer.velocities[0])) == where
        assert memory is None or stats.mem_used <= memory
        memory = stats.mem_used


# ---- positions computed from the target ----


def test_positions_and_values_of_a_scatter_come_from_its_target(device):
    values = np.random.default_rng(1).standard_normal((4, 6)).astype(np.float32)
    best = values.argmax(1)[:, None]
    x = Tensor(values)
    expected = values.copy()
    np.put_along_axis(expected, best, 0, 1)
    np.testing.assert_array_equal(x.scatter(1, x.argmax(1, keepdim=True), 0.0).numpy(), expected)
    expected = values.copy()
    np.put_along_axis(expected, best, np.take_along_axis(values, best, 1) + values[:, -1:], 1)
    np.testing.assert_array_equal(x.scatter_add(1, x.argmax(1, keepdim=True), x.flip(1)).numpy(), expected)
    np.testing.assert_array_equal(x.numpy(), values)


def test_repeated_updates_at_the_largest_element(device):
    x = Tensor(count(4, 6)).realize()
    for _ in range(3):
        x[Tensor.arange(4), x.argmax(1)] = -x[:, 0]
        x.realize()
    expected = count(4, 6)
    for _ in range(3):
        expected[np.arange(4), expected.argmax(1)] = -expected[:, 0]
    np.testing.assert_array_equal(x.numpy(), expected)


def test_a_position_found_by_a_reduction_of_the_same_kernel(device):
    values = np.random.default_rng(2).standard_normal((4, 6)).astype(np.float32)
    x, best = Tensor(values), values.argmax(1)
    np.testing.assert_array_equal(x.gather(1, x.argmax(1, keepdim=True)).numpy(),
                                  np.take_along_axis(values, best[:, None], 1))
    np.testing.assert_array_equal(x.index_select(1, x.argmax(1)).numpy(), values[:, best])


def test_a_detached_handle_read_beside_the_new_value_keeps_the_old_one():
    p = Tensor(np.ones(3, np.float32), requires_grad=True).realize()
    q = p.detach()
    p.assign(p.detach() - q * 2)
    p.realize()
    assert p.tolist() == [-1, -1, -1] and q.tolist() == [1, 1, 1]


def test_a_computed_tensor_is_scattered_into_itself(device):
    for at in ([2, 0, 1], [1, 2, 0]):
        x = (Tensor([1, 2, 3], device=device) * 2).contiguous()
        np.testing.assert_array_equal(x.scatter(0, Tensor(at, device=device), x).numpy()[at], [2, 4, 6])
    x = (Tensor([0, 1, 2], device=device) + 0).contiguous()
    assert x.scatter_add(0, x, (x * 3).flip(0)).tolist() == [6, 4, 2]


def test_a_value_that_is_not_computed_yet_is_replaced(device):
    """What is replaced and what replaces it lie in one place: no kernel may write both."""
    w = Tensor(count(4)).realize()
    x = w * 2
    before = x + 1
    x.assign(x * w + 3)
    np.testing.assert_array_equal(x.numpy(), count(4) * 2 * count(4) + 3)
    np.testing.assert_array_equal(before.numpy(), count(4) * 2 + 1)


@pytest.mark.parametrize("computed", [False, True])
def test_gradients_pass_a_new_version(device, computed):
    """Also one that was computed, here to be looked at, before it was differentiated."""
    w, v = Tensor(count(4), requires_grad=True), Tensor([5.0], requires_grad=True)
    x = w * 2
    x[1:2] = v * 3
    x[3] = 0
    if computed:
        x.numpy()
    ((x * x).sum() + w.sum()).backward()
    np.testing.assert_array_equal(w.grad.numpy(), [1, 1, 17, 1])
    np.testing.assert_array_equal(v.grad.numpy(), [90])


def test_a_value_without_axes_is_replaced(device):
    total = Tensor(count(3)).sum()
    total.assign(total * 2 + 1)
    assert total.item() == 7


def _sums(w: Tensor, v: Tensor, g: Tensor) -> list[Tensor]:
    new = w * 0.5 + g.sum(1, keepdim=True)
    w.assign(new)
    return [new]


def _both_read_both(w: Tensor, v: Tensor, g: Tensor) -> list[Tensor]:
    total = g.sum(1, keepdim=True)
    a, b = w - total, v + w * total
    w.assign(a), v.assign(b)
    return [a, b]


def _product(w: Tensor, v: Tensor, g: Tensor) -> list[Tensor]:
    new = w * 0.5 + v @ g
    w.assign(new)
    return [new]


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("update", [_sums, _both_read_both, _product])
def test_what_a_sum_updates_is_read_before_by_its_other_outputs(device: str, update: Any) -> None:
    """One kernel writes the buffer and a copy, or two buffers that read each other's old values."""
    for n in (1, 4, 5, 64):
        shapes = [(1, n), (1, n), (n, n)] if update is _product else [(n, 1), (n, 1), (n, 3)]
        arrays = [np.random.default_rng(k).standard_normal(shape).astype(np.float32) for k, shape in enumerate(shapes)]
        found: list[list[np.ndarray]] = []
        for at in (device, "NUMPY"):
            w, v, g = (Tensor(a, device=at).realize() for a in arrays)
            new = update(w, v, g)
            Tensor.realize(w, v, *new)
            found.append([t.numpy() for t in (w, v, *new)])
        for ours, expected in zip(*found, strict=True):
            np.testing.assert_allclose(ours, expected, rtol=1e-4, atol=1e-5)
