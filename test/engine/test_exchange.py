"""Exchanges in plans: where their calls stand, what they are given, and what becomes of errors."""
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from conftest import needs_device

from minigrad import Tensor, jit, nn
from minigrad.autograd import result_of
from minigrad.config import config
from minigrad.engine.compiled import forget_plans, plans
from minigrad.engine.stats import stats
from minigrad.errors import DeviceError
from minigrad.ops.exchange import exchanged
from minigrad.runtime.host_calls import exchangers
from minigrad.scheduler.order import lean_order


class Doubling:
    """Stands for other processes that have the same values: doubles them, when somebody waits."""

    def __init__(self) -> None:
        self.begun: list[tuple[int, str, str, list[tuple[int, ...]]]] = []
        self.fails = False

    def begin(self, arrays: Sequence[np.ndarray], dtype: str, how: str, channel: int) -> Callable[[], None]:
        self.begun.append((channel, dtype, how, [a.shape for a in arrays]))

        def wait() -> None:
            if self.fails:
                raise KeyError("lost")
            for a in arrays:
                a *= 2

        return wait


@pytest.fixture
def others() -> Iterator[Doubling]:
    forget_plans()
    exchangers.append(made := Doubling())
    yield made
    exchangers.clear()
    forget_plans()


def both(*tensors: Tensor, channel: int = 0) -> list[Tensor]:
    return [result_of(n, t) for n, t in zip(exchanged([t.node for t in tensors], "sum", channel), tensors, strict=True)]


def test_values_are_exchanged_once_they_are_there(others: Doubling) -> None:
    x = Tensor(np.arange(6, dtype=np.float32).reshape(2, 3)).realize()
    a, b = both(x + 1, x.sum(0))
    assert (a + b).tolist() == [[8.0, 14.0, 20.0], [14.0, 20.0, 26.0]] and x.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert others.begun == [(0, "float32", "sum", [(2, 3), (3,)])]


def test_equal_values_have_memory_of_their_own(others: Doubling) -> None:
    x = Tensor([1.0, 2.0]).realize()
    a, b = both(x * 3, x * 3)
    Tensor.realize(a, b)
    assert a.tolist() == b.tolist() == [6.0, 12.0]
    zero, = both(x[:0])
    assert zero.tolist() == []


def step_of(layers: int) -> tuple[Callable[[Tensor], Tensor], list[Tensor]]:
    weights = [Tensor(np.full((8, 8), 0.1 + 0.01 * k, np.float32), requires_grad=True) for k in range(layers)]
    optimizer = nn.optim.SGD(weights, lr=0.1)

    def step(x: Tensor) -> Tensor:
        for w in weights:
            x = (x @ w).tanh()
        loss = x.square().sum()
        loss.backward()
        for number, w in enumerate(reversed(weights)):
            assert w.grad is not None
            w.grad, = both(w.grad, channel=8 + 2 * number)
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step, weights


def test_launches_go_on_between_the_calls(others: Doubling) -> None:
    step, _ = step_of(4)
    step(Tensor(np.ones((5, 8), np.float32))).realize()
    plan = next(p for p in plans.values() if p.schedule.exchanges)
    names = [item.name for item in plan.items]
    begins = [k for k, name in enumerate(names) if name == "begin_exchange"]
    ends = [k for k, name in enumerate(names) if name == "end_exchange"]
    assert len(begins) == len(ends) == 4 and max(begins) < min(ends)
    assert begins[-1] - begins[0] > 3  # the backward pass goes on after the first one was begun
    for exchange in plan.schedule.exchanges:
        slots = set(exchange.slots)
        touched = [k for k, item in enumerate(plan.items) if slots & (item.reads | item.writes)]
        kinds = [names[k] for k in touched]
        first, last = kinds.index("begin_exchange"), kinds.index("end_exchange")
        assert last == first + 1 and all(not slots & plan.items[k].writes for k in touched[last + 1:])


def test_replays_and_plans_on_disk_exchange_too(others: Doubling, tmp_path: Path) -> None:
    x = Tensor(np.linspace(-1, 1, 40, dtype=np.float32).reshape(5, 8))

    def run(captured: bool) -> list[np.ndarray]:
        step, weights = step_of(2)
        function = jit(step) if captured else step
        for _ in range(5):
            function(x).realize()
        return [w.numpy() for w in weights]

    with config(cache_dir=tmp_path, verify=False):
        eager = run(False)
        forget_plans()
        loads = stats.plan_loads
        captured = run(True)
    assert all(a.tobytes() == b.tobytes() for a, b in zip(eager, captured, strict=True))
    assert len(others.begun) == 20 and stats.plan_loads > loads


def test_an_error_comes_out_of_the_run(others: Doubling) -> None:
    others.fails = True
    x = Tensor([1.0, 2.0]).realize()
    with pytest.raises(KeyError, match="lost"):
        both(x * 3)[0].realize()
    others.fails = False
    assert both(x * 5)[0].tolist() == [10.0, 20.0] and (x * 7).tolist() == [7.0, 14.0]


@needs_device("CL:pocl")
def test_other_devices_are_refused() -> None:
    x = Tensor([1.0], device="CL:pocl").realize()
    with pytest.raises(DeviceError, match="expected values on the device CPU, got CL"):
        (both(x * 2)[0] + 1).realize()


def test_what_needs_a_slow_group_comes_last() -> None:
    # 0 -> 1 (slow) -> 2, and 0 -> 3 -> 4: 2 frees most, and waits all the same
    needs: list[set[int]] = [set(), {0}, {1}, {0}, {3}]
    makes = {0: 8.0, 1: 0.0, 2: -100.0, 3: 50.0, 4: 50.0}
    order = lean_order(needs, [0, 1, 2, 3, 4], makes, {g: needs[g] for g in range(5)}, {1})
    assert order[0] == 0 and order[-1] == 2 and order.index(1) < order.index(3)
    assert lean_order(needs, [0, 1, 2, 3, 4], makes, {g: needs[g] for g in range(5)})[-1] != 2
