"""Launches that run together: products with a common operand, and who declines."""
import itertools

import numpy as np
import pytest

import minigrad
from minigrad import Tensor, Variable, config
from minigrad.engine import compiled
from minigrad.engine import plan as plans
from minigrad.engine.observe import Observer, Ran, observing
from minigrad.engine.plan import ExecutionPlan, uses_of
from minigrad.engine.plan_store import read_plan, write_plan


@pytest.fixture(autouse=True)
def folder(tmp_path):
    with config(device="CPU", cache_dir=tmp_path):
        compiled.forget_plans()
        yield tmp_path


class Plans(Observer):
    def __init__(self) -> None:
        self.made: list[ExecutionPlan] = []

    def ran(self, run: Ran) -> None:
        self.made.append(run.plan)


def tensor(*shape: int) -> Tensor:
    return Tensor(np.random.default_rng(shape).standard_normal(shape).astype(np.float32), device="CPU").realize()


def plan_of(*tensors: Tensor) -> ExecutionPlan:
    seen = Plans()
    with observing(seen):
        Tensor.realize(*tensors)
    return seen.made[-1]


def groups(plan: ExecutionPlan) -> list[list[str]]:
    """Names of the items of each group, in order."""
    found: dict[int, list[str]] = {}
    for item in plan.items:
        if item.group >= 0:
            found.setdefault(item.group, []).append(item.name)
    return list(found.values())


def projections(x: Tensor) -> list[Tensor]:
    """Of one activation, each followed by more than its product."""
    q, k, v = (x @ tensor(64, n) for n in (64, 32, 48))
    return [q.softmax(), k.softmax(), v.softmax()]


def test_products_with_a_common_operand_run_together() -> None:
    x = (tensor(4, 64) * 2).contiguous()
    with_groups = plan_of(*projections(x))
    assert [len(g) for g in groups(with_groups)] == [3]
    assert len({item.group for item in with_groups.items if item.group >= 0}) == 1
    places = [k for k, item in enumerate(with_groups.items) if item.group >= 0]
    assert places == list(range(places[0], places[0] + 3))


def test_results_are_those_of_launches_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for work in (plans.GROUPED_WORK, 0.0):
        monkeypatch.setattr(plans, "GROUPED_WORK", work)
        for threads in (1, 2, 3):
            compiled.forget_plans()
            with config(threads=threads):
                made = projections((tensor(4, 64) * 2).contiguous())
                plan = plan_of(*made)
                found.append(b"".join(t.numpy().tobytes() for t in made))
            assert bool(groups(plan)) == (work > 0)
    assert len(set(found)) == 1


def test_what_depends_on_another_stays_apart() -> None:
    x, w = (tensor(4, 64) * 2).contiguous(), tensor(64, 64)
    y = x @ w
    plan = plan_of(y, y.softmax() @ w)  # both read w
    assert not groups(plan)


def test_large_launches_and_other_operands_stay_apart() -> None:
    assert not groups(plan_of(tensor(4, 64) @ tensor(64, 64), tensor(5, 64) @ tensor(64, 32)))
    x = tensor(256, 512)
    assert not groups(plan_of(x @ tensor(512, 512), x @ tensor(512, 256)))


def test_symbolic_sizes_stay_apart() -> None:
    n = Variable("n", 2, 4096).bind(40)
    x = tensor(4096, 64)[:n]
    assert not groups(plan_of(x @ tensor(64, 16), x @ tensor(64, 24)))


def test_products_of_a_symbolic_size_whose_launches_are_known_are_a_group() -> None:
    """Which gives right numbers with every other size, too."""
    x, a, b = tensor(64, 64), tensor(64, 16), tensor(64, 24)
    n = Variable("n", 2, 64)
    assert len(groups(plan_of(x[:n.bind(40)] @ a, x[:n.bind(40)] @ b))) == 1
    both = minigrad.jit(lambda rows: (rows @ a, rows @ b))
    for size in (40, 7, 64, 2, 33):
        for found, w in zip(both(x[:n.bind(size)]), (a, b), strict=True):
            expected = x.numpy()[:size] @ w.numpy()
            np.testing.assert_allclose(found.numpy()[:size], expected, rtol=1e-4, atol=1e-4)


def test_temporaries_of_a_group_live_side_by_side_and_the_text_of_a_plan_keeps_it() -> None:
    plan = plan_of(*projections((tensor(4, 64) * 2).contiguous()))
    members = [k for k, item in enumerate(plan.items) if item.group >= 0]
    uses = uses_of(plan.items)
    touched = set().union(*(plan.items[k].reads | plan.items[k].writes for k in members))
    assert all(set(uses[k]) == touched for k in members)
    arena = next(iter(plan.arenas.values()))
    places = sorted((arena.offsets[s], int(plan.sizes[s])) for s in touched if s in arena.offsets)
    assert len(places) >= 3 and all(a + n <= b for (a, n), (b, _) in itertools.pairwise(places))
    again = read_plan(write_plan(plan), plan.device)
    assert [item.group for item in again.items] == [item.group for item in plan.items]


def test_a_profile_still_has_every_launch() -> None:
    with minigrad.profile() as p:
        Tensor.realize(*projections((tensor(4, 64) * 2).contiguous()))
    assert len({r.name for r in p.runs}) > 1 and all(r.seconds > 0 for r in p.runs)
    assert len(p.runs) == len(plan_of(*projections((tensor(4, 64) * 2).contiguous())).items)
