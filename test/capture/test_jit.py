"""Captured functions: a replay equals running the function, bit for bit, and what it depends on is noticed."""
# Tests know their dims are ints.
# mypy: disable-error-code="union-attr"
import gc
from collections import namedtuple
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pytest
from conftest import devices
from support.jit_steady import random

from minigrad import Tensor, TinyJit, config, jit
from minigrad.engine.stats import stats
from minigrad.errors import CaptureError


@pytest.fixture(autouse=True, params=["CPU"])
def device(request):
    with config(device=request.param):
        yield request.param


def same(a: Tensor, b: Tensor) -> None:
    np.testing.assert_array_equal(a.numpy(), b.numpy())


# ---- values ----


def test_replay_computes_with_new_inputs():
    @jit
    def f(x, y):
        return (x * y).sum(axis=1) + 1

    for seed in range(4):
        x, y = random(3, 5, seed=seed), random(5, seed=seed)
        np.testing.assert_allclose(f(Tensor(x), Tensor(y)).numpy(), (x * y).sum(axis=1) + 1, rtol=1e-5, atol=1e-6)
    assert (f.captures, f.replays) == (1, 3)
    assert TinyJit is jit and f.__name__ == "f"


def test_a_replay_schedules_nothing():
    @jit
    def f(x):
        return (x @ x).relu().sum()

    f(Tensor(random(4, 4)))
    before = stats.snapshot()
    f(Tensor(random(4, 4, seed=1)))
    spent = stats - before
    assert spent.schedules == spent.plan_hits == spent.nodes == 0 and spent.launches > 0


def test_outputs_of_calls_do_not_alias():
    f = jit(lambda x: x + 1)
    results = [f(Tensor(np.full(3, k, np.float32))) for k in range(4)]
    assert [r.tolist() for r in results] == [[k + 1.0] * 3 for k in range(4)]
    results[1].assign(results[1] * 10).realize()
    assert [r.tolist()[0] for r in results] == [1, 20, 3, 4]


@dataclass
class Pair:
    left: Tensor
    right: Tensor | None
    name: str = "pair"


Named = namedtuple("Named", "first second")


def test_nested_containers_in_and_out():
    @jit
    def f(a, *, pair, table):
        total = a[0] + a[1][0] + pair.left + table["x"]
        return {"sum": total, "list": [total * 2, (None, 3)], "pair": Pair(total, None), "named": Named(total, 1)}

    for k in range(3):
        t = [Tensor([float(k + i)]) for i in range(4)]
        r = f([t[0], (t[1],)], pair=Pair(t[2], None), table={"x": t[3]})
        total = 4.0 * k + 6
        assert r["sum"].tolist() == [total] and r["list"][0].tolist() == [2 * total] and r["list"][1] == (None, 3)
        assert r["pair"].left is r["sum"] is r["named"].first and r["pair"].right is None and r["named"].second == 1
    assert (f.captures, f.replays) == (1, 2)


def test_views_as_inputs():
    f = jit(lambda x: x * 2)
    base = random(6, 4)
    for k in range(3):
        np.testing.assert_array_equal(f(Tensor(base)[k:k + 2, ::2].T).numpy(), base[k:k + 2, ::2].T * 2)
    assert f.replays == 2, f.last_reason


def test_an_input_may_be_returned():
    f = jit(lambda x: (x, x.reshape(4), x + 1))
    for k in range(3):
        x = Tensor(random(2, 2, seed=k))
        a, b, c = f(x)
        assert a is x
        np.testing.assert_array_equal(b.numpy(), random(2, 2, seed=k).reshape(4))
        np.testing.assert_array_equal(c.numpy(), random(2, 2, seed=k) + 1)


def test_data_made_inside_is_a_constant():
    @jit
    def f(x):
        t = Tensor(np.arange(3, dtype=np.float32))
        t[1] = x.sum()
        return t + Tensor(1.0)

    for k in range(3):
        assert f(Tensor([k, 1.0])).tolist() == [1, k + 2, 3]
    assert f.replays == 2, f.last_reason


def test_several_runs_inside():
    @jit
    def f(x):
        y = (x * 2).realize()
        z = (y + 1).realize()
        z.assign(z * y).realize()
        return z - x

    for k in range(3):
        x = random(5, seed=k)
        np.testing.assert_array_equal(f(Tensor(x)).numpy(), (x * 2 + 1) * (x * 2) - x)
    assert f.replays == 2, f.last_reason


def test_a_replay_gives_back_its_memory():
    f = jit(lambda x: ((x * 2).realize() + 1).realize() * x)
    x = Tensor(random(1000))
    for _ in range(2):
        f(x)
    gc.collect()
    before = stats.mem_used
    for _ in range(3):
        f(x)
    assert stats.mem_used == before


# ---- what is noticed ----


def test_shapes_dtypes_and_static_values_are_part_of_the_key():
    @jit
    def f(x, k, name="a"):
        return x * k + len(name)

    assert f(Tensor([1.0, 2.0]), 3).tolist() == [4, 7]
    assert f(Tensor([1.0, 2.0, 3.0]), 3).tolist() == [4, 7, 10]
    assert f(Tensor([1, 2]), 3).tolist() == [4, 7]
    assert f(Tensor([1.0, 2.0]), 4).tolist() == [5, 9] and "'k' changed" in f.last_reason
    assert f(Tensor([1.0, 2.0]), 3, name="abc").tolist() == [6, 9]
    assert (f.captures, f.replays) == (5, 0)
    assert f(Tensor([5.0, 6.0]), 3).tolist() == [16, 19] and f(Tensor([5, 6]), 3).tolist() == [16, 19]
    assert (f.captures, f.replays) == (5, 2)


SCALE = 2.0


def test_globals_cells_defaults_and_attributes_are_noticed(monkeypatch):
    cell = 1.0

    class Model:
        shift = 0.0

        def __init__(self):
            self.factor = 1.0

        @jit
        def __call__(self, x, k=3.0):
            return x * SCALE * cell * self.factor + k

    model = Model()
    assert model(Tensor([1.0])).tolist() == [5]
    monkeypatch.setitem(globals(), "SCALE", 4.0)
    assert model(Tensor([1.0])).tolist() == [7]
    cell = 10.0
    assert model(Tensor([1.0])).tolist() == [43]
    model.factor = 2.0
    assert model(Tensor([1.0])).tolist() == [83]
    method = Model.__dict__["__call__"].of(model)
    assert (method.captures, method.replays) == (4, 0) and method.last_reason.startswith("'self.factor' changed")
    assert model(Tensor([2.0])).tolist() == [163] and method.replays == 1


def test_an_object_that_gives_way_to_none_is_noticed():
    class Scale:
        pass

    scale = Scale()
    double = jit(lambda x, *, by=2.0: x * (by if scale is None else 1))
    assert [double(Tensor([1.0])).tolist() for _ in range(3)] == [[1]] * 3
    scale = None
    assert [double(Tensor([1.0])).tolist() for _ in range(3)] == [[2]] * 3
    double._function.__kwdefaults__["by"] = 3.0
    assert double(Tensor([1.0])).tolist() == [3]


OF_THE_MODULE = 1


@pytest.mark.parametrize("place", ["cell", "global", "default", "keyword", "attribute", "class attribute"])
def test_a_number_is_noticed_wherever_a_function_finds_it(place, monkeypatch):
    """Set, then put back, while the function answers at once."""
    number = 1

    class Holder:
        by_class = 1

        def __init__(self):
            self.by = 1

        def run(self, x):
            return x + self.by + self.by_class

    holder = Holder()

    def function(x, by=1, *, more=1):
        return x + by + more + number + OF_THE_MODULE

    captured, x = jit(holder.run if "attribute" in place else function), Tensor([0.0]).realize()
    for to in (1, 5, 1, 7, 5):
        number = to if place == "cell" else 1
        if place == "default":
            function.__defaults__ = (to,)
        elif place == "keyword":
            function.__kwdefaults__ = {"more": to}
        elif place == "global":
            monkeypatch.setitem(globals(), "OF_THE_MODULE", to)
        elif place == "attribute":
            holder.by = to
        elif place == "class attribute":
            Holder.by_class = to
        expected = [to + (1 if "attribute" in place else 3)]
        assert [captured(x).tolist() for _ in range(4)] == [expected] * 4
    assert captured.captures == 3 and captured.replays == 17


def test_too_many_captures_run_eagerly_and_say_so():
    @jit(limit=3)
    def f(x, position):
        return x + position

    for k in range(3):
        assert f(Tensor([1.0]), k).tolist() == [1 + k]
    with pytest.warns(RuntimeWarning, match="'position' changed from 2 to 3; make it a Variable"):
        assert f(Tensor([1.0]), 3).tolist() == [4]
    assert f(Tensor([1.0]), 4).tolist() == [5]
    assert f(Tensor([2.0]), 1).tolist() == [3]
    assert (f.captures, f.replays) == (3, 1)


def test_a_changed_handle_is_noticed():
    holder = {"w": Tensor([1.0, 2.0])}

    @jit
    def f(x):
        return x * holder["w"]

    assert f(Tensor([1.0, 1.0])).tolist() == [1, 2]
    holder["w"].assign(Tensor([5.0, 6.0]))
    assert f(Tensor([1.0, 1.0])).tolist() == [5, 6]
    assert (f.captures, f.replays) == (1, 1)
    holder["w"] = Tensor([7.0, 8.0])
    assert f(Tensor([1.0, 1.0])).tolist() == [7, 8] and "gone" in f.last_reason
    assert (f.captures, f.replays) == (2, 1)


def test_a_constant_that_was_there_before_is_data():
    scale = Tensor(2.0)
    f = jit(lambda x: x * scale)
    assert f(Tensor([1.0])).tolist() == [2]
    scale.assign(Tensor(3.0))
    assert f(Tensor([1.0])).tolist() == [3] and f.replays == 1


def test_an_argument_that_is_also_read_by_another_name():
    x = Tensor([2.0])
    f = jit(lambda y: x * y)
    assert f(x).tolist() == [4]
    assert f(Tensor([5.0])).tolist() == [10]
    assert f(x).tolist() == [4]
    assert f(Tensor([7.0])).tolist() == [14]


def test_arguments_that_live_on_are_replayed_after_a_second_look():
    f = jit(lambda x: x + 1)
    batches = [Tensor([float(k)]) for k in range(5)]
    assert [f(b).item() for b in batches] == [1, 2, 3, 4, 5]
    assert (f.captures, f.replays) == (2, 3)


def test_the_same_argument_twice():
    f = jit(lambda x, y: x - 2 * y)
    a, b = Tensor([1.0]), Tensor([5.0])
    assert f(a, a).tolist() == [-1]
    assert f(a, b).tolist() == [-9]
    assert f(b, b).tolist() == [-5]


def test_training_mode_and_no_grad_are_part_of_the_key():
    f = jit(lambda x: x.dropout(0.5))
    assert f(Tensor.ones(100)).numpy().min() == 1
    with Tensor.train():
        assert f(Tensor.ones(100)).numpy().min() == 0
    assert f.captures == 2


def test_values_cannot_be_read_inside():
    for read, name in ((Tensor.item, "item"), (bool, "__bool__"), (Tensor.numpy, "numpy"), (Tensor.tolist, "tolist")):
        @jit
        def f(x, read=read):
            return x * 2 if read(x.sum()) else x

        with pytest.raises(CaptureError, match=rf"got Tensor\.{name}\(\) at .*test_jit\.py:\d+"):
            f(Tensor([1.0]))
    with config(jit=False):
        assert f(Tensor([1.0])).tolist() == [2]
    assert f.captures == 0


def test_jit_can_be_turned_off_and_nested():
    inner = jit(lambda x: x * 3)
    outer = jit(lambda x: inner(x) + 1)
    for k in range(3):
        assert outer(Tensor([float(k)])).tolist() == [3 * k + 1]
    assert (outer.captures, outer.replays, inner.captures) == (1, 2, 0)
    with config(jit=False):
        assert outer(Tensor([1.0])).tolist() == [4]
    assert outer.replays == 2


# ---- effects ----


def test_state_is_updated_in_place():
    total, copy = Tensor.zeros(3).contiguous().realize(), None

    @jit
    def add(x):
        total.assign(total + x)

    for k in range(4):
        add(Tensor([1.0, 2.0, float(k)]))
        if k == 2:
            copy = total.detach()
    assert total.tolist() == [4, 8, 6] and copy.tolist() == [3, 6, 3] and add.replays >= 2


@pytest.mark.parametrize("make", [lambda x: x.contiguous(), lambda x: x.clone(), lambda x: x * 1])
def test_a_lazy_argument_may_have_the_value_of_a_tensor_that_lives(make):
    x = Tensor([1.0, 2.0]).realize()

    @jit
    def add(y):
        x.assign(x + 1)
        return x * 10 + y

    for k in range(5):
        assert add(make(x)).tolist() == [21 + 11 * k, 32 + 11 * k]
    assert add.captures == 1 and add.replays == 4
    assert add(Tensor([0.0, 1.0])).tolist() == [70, 81]


def test_other_holders_keep_the_old_value():
    state = Tensor([1.0, 2.0]).realize()

    @jit
    def double():
        state.assign(state * 2)

    double()
    held, lazy = [], []
    for k in range(1, 4):
        held.append(state.detach())
        lazy.append(state + 100)
        double()
        assert state.tolist() == [2.0 ** (k + 1), 2.0 ** (k + 2)]
    assert [h.tolist()[0] for h in held] == [2, 4, 8] and [v.tolist()[0] for v in lazy] == [102, 104, 108]
    assert double.captures == 1


def test_an_assigned_argument_is_changed_and_nothing_else():
    @jit
    def f(x, y):
        x.assign(x + y)
        return x * 1

    for k in range(3):
        a, b = Tensor([1.0, 2.0]).realize(), Tensor([float(k)])
        alias, lazy = a.detach(), a * 10
        assert f(a, b).tolist() == [1 + k, 2 + k] == a.tolist()
        assert alias.tolist() == [1, 2] and lazy.tolist() == [10, 20] and b.tolist() == [k]


def test_state_passed_as_argument():
    state = Tensor([1.0]).realize()

    @jit
    def f(x):
        state.assign(state + 1)
        return state * x

    assert f(Tensor([10.0])).tolist() == [20]
    assert f(state).tolist() == [9]
    assert f(Tensor([10.0])).tolist() == [40] and state.tolist() == [4]


def test_handles_that_share_a_value_and_part():
    a = Tensor([1.0]).realize()
    b = a.detach()

    @jit
    def f():
        a.assign(a + 1)
        return b * 10

    assert [f().item() for _ in range(4)] == [10] * 4 and a.tolist() == [5]


def test_a_tensor_kept_inside_is_not_captured():
    class Counter:
        def __init__(self):
            self.value = Tensor([0.0])

        @jit
        def step(self, x):
            self.value = self.value + x
            return self.value

    counter = Counter()
    with pytest.warns(RuntimeWarning, match="runs eagerly"):
        for k in range(12):
            assert counter.step(Tensor([1.0])).tolist() == [k + 1]
    assert counter.step.replays == 0 and counter.step.captures == 8


def test_a_table_made_on_the_first_call_is_captured_on_the_second():
    class Model:
        table = None

        @jit
        def __call__(self, x):
            if self.table is None:
                self.table = Tensor(np.arange(3, dtype=np.float32)) * 2
            return x * self.table

    model = Model()
    for k in range(4):
        assert model(Tensor([1.0, 1.0, float(k)])).tolist() == [0, 2, 4 * k]
    assert Model.__dict__["__call__"].of(model).replays == 2


def test_methods_capture_per_object():
    class Scale:
        def __init__(self, k):
            self.w = Tensor([k])

        @jit
        def __call__(self, x):
            return x * self.w

    a, b = Scale(2.0), Scale(3.0)
    for k in range(3):
        assert a(Tensor([float(k)])).tolist() == [2 * k] and b(Tensor([float(k)])).tolist() == [3 * k]
    method = Scale.__dict__["__call__"]
    assert method.of(a).captures == method.of(b).captures == 1 and method.of(a).replays == 2
    assert len(method._objects) == 2
    del a, b
    gc.collect()
    assert not method._objects


# ---- devices ----


@pytest.mark.parametrize("first", [1, 2])
def test_the_number_of_threads_may_change(first):
    f = jit(lambda x: (x @ x).exp().sum(axis=0))
    x = Tensor(random(150, 150) * 0.01).realize()
    results = []
    for threads in (first, 2, 1, 2):
        with config(threads=threads):
            results.append(f(x).numpy())
    for r in results[1:]:
        np.testing.assert_array_equal(r, results[0])


@pytest.mark.parametrize("name", [d for d in devices() if d.startswith("CL")])
def test_copies_between_devices_are_replayed(name):
    f = jit(lambda x: (x * 2).to("CPU") + 1)
    for k in range(3):
        assert f(Tensor([float(k)], device=name)).tolist() == [2 * k + 1]
    assert f.replays == 2, f.last_reason


# ---- jit_check ----


def test_a_check_compares_replays_with_the_function():
    total, offset = Tensor([1.0, 2.0]).realize(), SimpleNamespace(k=0.0)

    name = "k"

    @jit
    def f(x):
        total.assign(total + x)
        return total * 2 + Tensor.rand(2) + getattr(offset, name)

    with config(jit_check=True):
        for k in range(3):
            f(Tensor([1.0, 1.0]))
            assert total.tolist() == [2.0 + k, 3.0 + k]
        offset.k = 1.0
        expected = r"got other values of result 0.*the first kernel that differs is \w+, launch 1"
        with pytest.raises(CaptureError, match=expected):
            f(Tensor([1.0, 1.0]))
    assert f.captures == 1


def test_one_of_two_arguments_is_also_read_by_another_name():
    x = Tensor([2.0])
    f = jit(lambda a, b: x * a + b)
    assert f(x, Tensor([1.0])).tolist() == [5]
    kept = Tensor([2.0])
    assert f(x, kept).tolist() == [6]
    assert f(x, Tensor([3.0])).tolist() == [7]
    assert f(Tensor([5.0]), kept).tolist() == [12]
    assert f(Tensor([6.0]), Tensor([0.0])).tolist() == [12]


def test_a_value_moved_between_handles():
    a, b = Tensor([1.0]).realize(), Tensor([2.0]).realize()

    @jit
    def swap():
        keep = a.detach()
        a.replace(b)
        b.replace(keep)

    for k in range(5):
        swap()
        assert (a.item(), b.item()) == ((2, 1) if k % 2 == 0 else (1, 2))


def test_a_failing_call_leaves_no_trace():
    @jit
    def f(x, fail):
        if fail:
            raise KeyError("no")
        return x + 1

    for _ in range(2):
        with pytest.raises(KeyError):
            f(Tensor([1.0]), True)
        assert f(Tensor([1.0]), False).tolist() == [2]
    assert (f.captures, f.replays) == (1, 1)


def test_lazy_arguments_and_lazy_state():
    state = Tensor([1.0]).realize()
    f = jit(lambda x: x * state)
    for k in range(3):
        assert f(Tensor([float(k)]) + 1).tolist() == [(k + 1) * (k + 1)]
        state.assign(state + 1)
    assert f.replays == 2


def test_captures_are_for_one_rounding_of_products() -> None:
    @jit
    def product(a: Tensor, b: Tensor) -> Tensor:
        return a @ b

    a, b = (Tensor(np.ones((4, 4), np.float32)).realize() for _ in range(2))
    for allowed in (False, True, False, True):
        with config(allow_tf32=allowed):
            assert (product(a, b).numpy() == 4).all()
    assert (product.captures, product.replays) == (2, 2)
