"""A call of a captured function that only reads its arguments notices whatever might make the replay wrong."""
import ctypes
import gc
from concurrent.futures import ThreadPoolExecutor
from weakref import ref

import numpy as np
import pytest
from support.jit_steady import random, settled

from minigrad import Tensor, config, jit, profile
from minigrad.engine import storage
from minigrad.engine.stats import stats
from minigrad.errors import DeviceError
from minigrad.runtime.registry import get_device

pytestmark = pytest.mark.usefixtures("on_cpu")


def plain(function) -> bool:
    """Whether the next call is answered by the plan alone."""
    found = function._own._kept[0].steady
    return found is not None and found.around is not None and bool(found.makers)


def test_a_capture_is_freed_with_its_function():
    step = product()
    pairs = [tuple(Tensor.randn(8, 8).realize() for _ in range(2)) for _ in range(3)]
    for x, y in pairs * 3:
        step(x, y)
    assert plain(step)
    captures = [ref(c) for c in step._own._kept]
    gc.disable()
    try:
        del step
        assert not any(c() for c in captures)
    finally:
        gc.enable()


def product():
    return jit(lambda x, y: (x @ y).contiguous().realize())


def test_calls_with_other_arguments_are_short():
    f, y = product(), Tensor(random(5, 5)).realize()
    for k in range(12):
        x = Tensor(random(5, 5, seed=k)).realize()
        before = stats.snapshot()
        result = f(x, y)
        counted = stats.snapshot() - before
        assert (counted.calls, counted.launches, counted.flops > 0) == (1, 1, True)
        np.testing.assert_allclose(result.numpy(), x.numpy() @ y.numpy(), rtol=1e-5, atol=1e-5)
        assert k < 4 or plain(f)
    assert f.captures == 1 and f.replays == 11


def test_modes_of_tensors_are_seen():
    """They are attributes of Tensor."""
    f = jit(lambda x: (x + 1) * (3 if Tensor.training else 2))
    x = settled(f, Tensor(np.ones(4, np.float32)).realize()) and Tensor(np.ones(4, np.float32)).realize()
    for _ in range(3):
        assert f(x).tolist() == [4] * 4
        with Tensor.train():
            assert f(x).tolist() == [6] * 4
        with Tensor.no_grad():
            assert f(x).tolist() == [4] * 4
    assert f.captures == 3


def test_arguments_of_another_kind_are_seen():
    f, y = product(), Tensor(random(4, 4)).realize()
    x = Tensor(random(4, 4, seed=1)).realize()
    settled(f, x, y)
    wide, lazy = Tensor(random(6, 4, seed=2)).realize(), y * 2
    loved = Tensor(random(4, 4, seed=3), requires_grad=True)
    graded = Tensor(random(4, 4, seed=4)).realize()
    graded.grad = y
    for a, b in ((wide, y), (x, lazy), (loved, y), (graded, y), (y, x), (x, x), (x, y), (y, y)):
        for _ in range(3):
            np.testing.assert_allclose(f(a, b).numpy(), a.numpy() @ b.numpy(), rtol=1e-5, atol=1e-5)
    f(x, y)
    with pytest.raises(TypeError):
        f(x)
    np.testing.assert_allclose(f(x, y=y).numpy(), x.numpy() @ y.numpy(), rtol=1e-5, atol=1e-5)


def test_one_tensor_twice_is_another_capture():
    """The captured function tells both arguments apart, whichever they were."""
    f = jit(lambda x, y: x * 2 if x is y else x + y)
    a, b, c = (Tensor(random(3, seed=k)).realize() for k in range(3))
    for x, y in ((a, b), (b, c), (c, a), (a, b), (b, b), (a, a), (c, b), (b, b)):
        for _ in range(3):
            np.testing.assert_array_equal(f(x, y).numpy(), x.numpy() + y.numpy())


def test_settings_are_seen():
    f, x = product(), Tensor(random(300, 300)).realize()
    settled(f, x, x + 0)
    y = Tensor(random(300, 300, seed=1)).realize()
    for _ in range(6):
        f(x, y)
    assert plain(f)
    used, pool = [], get_device("CPU").pool
    expected = f(x, y).numpy()
    for threads in (1, 3, 2, 3):
        with config(threads=threads):
            for _ in range(3):
                np.testing.assert_array_equal(f(x, y).numpy(), expected)
            used.append(pool.threads)
    np.testing.assert_array_equal(f(x, y).numpy(), expected)
    assert used == [1, 3, 2, 3]
    with config(jit=False):
        replays = f.replays
        f(x, y)
        assert f.replays == replays


def test_other_runs_of_its_plan_between_calls():
    """A slow replay, of a guarded Tensor that moved, writes other addresses to the plan's table."""
    w = Tensor(random(4, 4)).realize()
    f = jit(lambda x: (x @ w).contiguous().realize())
    x = Tensor(random(4, 4, seed=1)).realize()
    settled(f, x)
    other = Tensor(random(4, 4, seed=2)).realize()
    old = w.clone().realize()
    for value in (other, old, other, old):
        w.replace(value)
        for _ in range(4):
            np.testing.assert_allclose(f(x).numpy(), x.numpy() @ value.numpy(), rtol=1e-5, atol=1e-5)


def test_plans_with_temporaries_and_scalars():
    f = jit(lambda x, y: ((x @ y).softmax(-1) @ y * 0.3).realize())
    y, big = Tensor(random(40, 40)).realize(), jit(lambda z: (z @ z) @ (z * 2))
    for k in range(10):
        x, z = Tensor(random(40, 40, seed=k)).realize(), Tensor(random(300, 300, seed=k)).realize()
        e = np.exp(x.numpy().astype(np.float64) @ y.numpy())
        e /= e.sum(-1, keepdims=True)
        np.testing.assert_allclose(f(x, y).numpy(), e @ y.numpy() * 0.3, rtol=1e-4, atol=1e-5)
        big(z)  # takes more memory for temporaries
    assert plain(f)


def test_a_profile_sees_every_call():
    f, x = product(), Tensor(random(5, 5)).realize()
    y = Tensor(random(5, 5, seed=1)).realize()
    settled(f, x, y)
    assert plain(f)
    with profile() as seen:
        for _ in range(3):
            f(x, y)
    assert sum([row.count for row in seen.rows()]) == 3


def test_calls_from_threads():
    f = product()
    pairs = [tuple(Tensor(random(20, 20, seed=2 * k + s)).realize() for s in (0, 1)) for k in range(4)]
    expected = [a.numpy() @ b.numpy() for a, b in pairs]
    for a, b in pairs * 2:
        f(a, b)
    wrong = []

    def work(k: int) -> None:
        for _ in range(300):
            if not np.allclose(f(*pairs[k]).numpy(), expected[k], rtol=1e-4, atol=1e-4):
                wrong.append(k)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    assert not wrong


# ---- large results ----


def test_large_results_come_back():
    double, x = jit(lambda x: x * 2), Tensor(random(600_000)).realize()
    settled(double, x)
    places = {double(x).node.storage.address for _ in range(5)}
    assert len(places) == 1
    held = [double(x) for _ in range(5)]
    assert len({t.node.storage.address for t in held}) == 5
    for t in held:
        np.testing.assert_array_equal(t.numpy(), x.numpy() * 2)


def test_large_results_that_are_kept_are_bounded(monkeypatch):
    """Steps that ran last keep theirs; all of it goes with the functions, and when memory is short."""
    size = 600_000 * 4
    monkeypatch.setattr(storage, "LARGE_BYTES", 3 * size)
    monkeypatch.setattr(storage, "_large", [])
    x = Tensor(random(600_000)).realize()
    functions = [jit(lambda x, k=k: x * (k + 2.0)) for k in range(5)]
    gc.collect()
    used = stats.mem_used
    for f in functions:
        settled(f, x)
    kept = [len(f._own._kept[0].steady.makers[0].nodes) for f in functions]
    assert kept == [0, 0, 1, 1, 1] and stats.mem_used - used == 3 * size
    for f in functions[::-1] * 2:
        np.testing.assert_array_equal(f(x).numpy(), x.numpy() * (functions.index(f) + 2))
    assert stats.mem_used - used <= 3 * size
    real, asked = get_device("CPU").alloc, []

    def short_of_memory(nbytes):
        asked.append(nbytes)
        if len(asked) == 1:
            raise DeviceError("[alloc] out of memory")
        return real(nbytes)

    monkeypatch.setattr(get_device("CPU"), "alloc", short_of_memory)
    big = storage.allocate(get_device("CPU"), size)
    assert asked == [size, size] and stats.mem_used - used == size
    del big, f, functions
    gc.collect()
    assert stats.mem_used <= used


def test_the_builtin_that_runs_tables_takes_addresses_alone():
    run = get_device("CPU").pool.run
    for wrong in (None, "table", 1.5):
        with pytest.raises((TypeError, ctypes.ArgumentError)):
            run(wrong)


# ---- handles on results that are handed out again ----


def test_a_result_that_nobody_has_comes_again():
    f, x, y = product(), Tensor(random(4, 4)).realize(), Tensor(random(4, 4, seed=1)).realize()
    settled(f, x, y)
    f(x, y)
    assert len({id(f(x, y).node) for _ in range(5)}) == 1
    held = [f(x, y) for _ in range(5)]
    assert len({id(t) for t in held}) == len({id(t.node) for t in held}) == 5


@pytest.mark.parametrize("change", ["weak reference", "replaced", "in place", "lazy", "data", "gradient", "leaf",
                                    "Node"])
def test_a_result_that_was_used_does_not_come_again(change):
    f, x, y = product(), Tensor(random(4, 4)).realize(), Tensor(random(4, 4, seed=1)).realize()
    settled(f, x, y)
    expected, other = x.numpy() @ y.numpy(), Tensor(random(4, 4, seed=2)).realize()
    kept = value = None
    for _ in range(6):
        result = f(x, y)
        if change == "weak reference":
            kept = ref(result)
        elif change == "replaced":
            result.replace(other)
        elif change == "in place":
            result += 1
            kept, value = result.node, expected + 1
        elif change == "lazy":
            kept, value = result + 1, expected + 1
        elif change == "data":
            kept, value = result.data, expected
        elif change == "gradient":
            result.grad = other
        elif change == "leaf":
            result.requires_grad_()
        else:
            kept = result.lazydata
        del result
        again = f(Tensor(random(4, 4, seed=3)).realize(), y)
        assert again.kept_grad is None and not again.needs_grad
        np.testing.assert_allclose(again.numpy(), random(4, 4, seed=3) @ y.numpy(), rtol=1e-4, atol=1e-5)
        if change == "weak reference":
            assert kept() is None or kept() is not again
        elif change == "Node":
            assert kept is not again.node
        elif value is not None:
            found = kept.numpy() if isinstance(kept, Tensor) else Tensor._wrap(kept).numpy()
            np.testing.assert_allclose(found, value, rtol=1e-4, atol=1e-5)
        np.testing.assert_array_equal(other.numpy(), random(4, 4, seed=2))
