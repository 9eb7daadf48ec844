"""Plans as text: what is read back runs as what was written, and keys tell structures apart."""
import numpy as np
import pytest
from support.paths import PACKAGE
from test_layers import LAYERS, LEVEL

from minigrad import Tensor, Variable, config
from minigrad.dtype import float32
from minigrad.engine import compiled, plan_store
from minigrad.engine.observe import Observer, Ran, observing
from minigrad.engine.plan_store import NotWritable, read_plan, spell, write_plan
from minigrad.engine.stats import stats
from minigrad.expr import unbind


@pytest.fixture(autouse=True)
def folder(tmp_path):
    with config(device="CPU", cache_dir=tmp_path, disk_cache=True, verify=False):
        compiled.forget_plans()
        yield tmp_path


class Plans(Observer):
    def __init__(self):
        self.ran_plans = []

    def ran(self, run: Ran) -> None:
        self.ran_plans.append(run.plan)


def values(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def graphs(n: int) -> list[Tensor]:
    rows = Variable("rows", 1, 64).bind(n)
    x = Tensor(values(64, 8))[:rows]
    y = (x @ Tensor(values(8, 5))).softmax()
    return [y.sum(axis=0), (x * float("inf")).isnan().sum(), x.sum() * -0.0 + 2.5]


def test_plans_read_back():
    with observing(Plans()) as seen:
        for n in (5, 64):
            Tensor.realize(*graphs(n))
    for plan in seen.ran_plans:
        text = write_plan(plan)
        again = read_plan(text, plan.device)
        assert write_plan(again) == text
        assert [unbind(s)[0] for s in plan.sizes] == again.sizes
        assert [s.leaf for s in again.schedule.slots] == [s.leaf for s in plan.schedule.slots]
        for i, j in zip(again.items, plan.items, strict=True):
            assert [(r.values, r.scalars, r.work) for r in i.rows] == [(r.values, r.scalars, r.work) for r in j.rows]
            assert [r.extent for r in i.rows] == [unbind(r.extent)[0] for r in j.rows]
        assert [i.executable.address for i in again.items] == [i.executable.address for i in plan.items]


def test_a_plan_from_disk_gives_the_same_bits():
    expected = [[t.numpy() for t in graphs(n)] for n in (5, 64, 17)]
    compiled.forget_plans()
    before = stats.snapshot()
    for n, arrays in zip((5, 64, 17), expected, strict=True):
        for t, array in zip(graphs(n), arrays, strict=True):
            np.testing.assert_array_equal(t.numpy(), array)
    spent = stats.snapshot() - before
    assert spent.schedules == 0 and spent.programs == 0 and spent.plan_loads > 0


def test_in_place_updates_from_disk():
    def run() -> np.ndarray:
        x = Tensor(values(6)).realize()
        for _ in range(3):
            x.assign(x * 0.5 + 1).realize()
        return x.numpy()

    expected = run()
    compiled.forget_plans()
    before = stats.snapshot()
    np.testing.assert_array_equal(run(), expected)
    assert (stats.snapshot() - before).schedules == 0


def test_a_training_step_of_layers_is_stored():
    """Params of composites have a text too."""
    from minigrad.nn import BatchNorm2d, Conv2d, Linear
    from minigrad.nn.optim import SGD
    from minigrad.nn.state import get_parameters

    layers = [Conv2d(3, 4, 3, padding=1, bias=False), BatchNorm2d(4), Conv2d(4, 4, 3, groups=4), Linear(4, 5)]
    weights = [p for layer in layers for p in get_parameters(layer)]
    Tensor.realize(*weights)
    optimizer = SGD(weights, lr=0.1)
    x = Tensor(values(2, 3, 8, 8)).realize()
    for _ in range(2):
        compiled.forget_plans()
        before = stats.snapshot()
        with Tensor.train():
            y = layers[3](layers[2](layers[1](layers[0](x)).relu()).mean((2, 3))).cross_entropy(Tensor([1, 4]))
            optimizer.zero_grad()
            y.backward()
            optimizer.step()
    made = stats.snapshot() - before
    assert made.plan_loads and not made.schedules


def test_settings_that_look_inside_make_plans_anew():
    graphs(5)[0].numpy()
    for setting in ({"verify": True}, {"disk_cache": False}):
        compiled.forget_plans()
        before = stats.snapshot()
        with config(**setting):
            graphs(5)[0].numpy()
        spent = stats.snapshot() - before
        assert spent.schedules == 1 and spent.plan_loads == 0


def test_keys_tell_structures_apart():
    rows, other = Variable("rows", 1, 64), Variable("rows", 1, 65)
    keys = [1, "1", (1,), ("1",), ((1,), 2), (1, (2,)), (1, 2), None, "None", ("bool", True), ("bool", 1), float32,
            "float32", rows, other, rows + 1, rows * 2, (rows, other), frozenset((1, 2)), ("a", "b"), ("a,b",),
            ("'a','b'",)]
    assert len({spell(k) for k in keys}) == len(keys)
    assert spell(frozenset((3, 1, 2))) == spell(frozenset((2, 3, 1)))
    with pytest.raises(NotWritable, match="object"):
        spell((1, object()))


def test_sources_are_part_of_the_key(monkeypatch):
    x = Tensor(values(4))
    (x + 1).numpy()
    compiled.forget_plans()
    monkeypatch.setattr(plan_store, "sources_digest", lambda: "other sources")
    before = stats.snapshot()
    (x + 1).numpy()
    assert (stats.snapshot() - before).plan_loads == 0
    compiled.forget_plans()
    monkeypatch.setattr(plan_store, "sources_digest", lambda: "")  # sources that cannot be read
    before = stats.snapshot()
    (x + 1).numpy()
    assert (stats.snapshot() - before).plan_loads == 0


def test_plans_depend_on_all_folders_below_the_engine() -> None:
    """A folder that is left out could change, and plans of before would still be read."""
    below = {part for layer in LAYERS[:LEVEL["engine"]] for part in layer if (PACKAGE / part).is_dir()}
    assert {*plan_store.MAKERS} == {*below, "engine"}
