"""Budgets of memory: values are computed again until a plan fits, with the same bits; errors where it cannot."""
import numpy as np
import pytest

import minigrad
from minigrad import Tensor, config, jit, nn
from minigrad.config import bytes_of
from minigrad.errors import BudgetError, ConfigError
from minigrad.nn.state import get_parameters
from minigrad.scheduler.order import timed_order


class Chain:
    """Products with an activation after each, a residual connection and dropout."""

    def __init__(self, layers: int, width: int):
        self.layers = [(nn.Linear(width, 2 * width), nn.Linear(2 * width, width)) for _ in range(layers)]

    def __call__(self, x: Tensor) -> Tensor:
        for up, down in self.layers:
            x = x + down(up(x).gelu().dropout(0.1))
        return x


class Convolutions:
    """Convolutions with batch norm and squeeze-excite."""

    def __init__(self) -> None:
        self.convs = [nn.Conv2d(3 if k == 0 else 8, 8, 3, padding=1) for k in range(3)]
        self.norms = [nn.BatchNorm2d(8) for _ in range(3)]
        self.gate = nn.Linear(8, 8)

    def __call__(self, x: Tensor) -> Tensor:
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = norm(conv(x)).silu()
            x = x * self.gate(x.mean((2, 3))).sigmoid().reshape(x.shape[0], 8, 1, 1)
        return x.mean((2, 3))


def trained(make, shape, share, steps=3, captured=True):
    """(losses, parameters, the captured step, its peak without a budget) after some steps within a share of that."""
    minigrad.manual_seed(5)
    model = make()
    optimizer = nn.optim.SGD(get_parameters(model), lr=0.1, momentum=0.9)
    x = Tensor(np.random.default_rng(1).standard_normal(shape).astype(np.float32)).realize()

    def step(x):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        Tensor.realize(loss, *optimizer.schedule_step())
        return loss

    with Tensor.train():
        peak = minigrad.plan(step, x).peak_bytes
        run = jit(step, memory=None if share is None else int(peak * share)) if captured else step
        losses = [run(x).item() for _ in range(steps)]
    return losses, [t.numpy() for t in get_parameters(model)], run, peak


CASES = {"chain": (lambda: Chain(4, 16), (2048, 16), 0.7), "convolutions": (Convolutions, (4, 3, 32, 32), 0.75)}


@pytest.mark.parametrize("case", CASES)
def test_a_budget_is_kept_with_the_same_bits(case, capsys):
    make, shape, share = CASES[case]
    expected, weights, plain, peak = trained(make, shape, None)
    losses, found, run, _ = trained(make, shape, share)
    assert losses == expected and plain.memory is None
    assert all(np.array_equal(a, b) for a, b in zip(weights, found, strict=True))
    lines = [line for line in capsys.readouterr().err.splitlines() if "computed again" in line]
    assert len(lines) == 1 and lines[0].endswith(run.memory) and run.replays
    assert float(run.memory.split(" MB")[0]) <= peak * share / 1e6 + 0.1


def test_the_peak_is_known_before_the_first_step():
    model = Chain(4, 16)
    x = Tensor.randn(2048, 16).realize()

    def step(x):
        return Tensor.stack(*[g.sum() for g in model(x).square().mean().gradient(*get_parameters(model))])

    Tensor.realize(*get_parameters(model))
    with Tensor.train():
        plain = minigrad.plan(step, x)
        less = minigrad.plan(jit(step, memory=int(plain.peak_bytes * 0.7)), x)
    assert less.peak_bytes <= plain.peak_bytes * 0.7 and plain.flops < less.flops < 1.4 * plain.flops


def test_what_fits_is_left_as_it_is(capsys):
    _, _, run, _ = trained(*CASES["chain"][:2], 2.0)
    assert "computed again" not in run.memory and "within" in run.memory
    assert not capsys.readouterr().err


def test_what_cannot_fit_is_refused_before_anything_runs():
    weight = Tensor.ones(256, 256, requires_grad=True).contiguous().realize()
    step = jit(lambda x: (x @ weight).relu().sum(), memory="100 kB")
    with pytest.raises(BudgetError, match=r"can do with 0\.1 MB, got one that takes 0\.\d MB, .* what it reads and "
                                          r"returns.* smaller batches"):
        step(Tensor.ones(64, 256).realize())
    assert isinstance(BudgetError(""), MemoryError)


def test_plans_with_a_budget_are_plans_of_their_own(tmp_path):
    make, shape, share = CASES["chain"]
    with config(cache_dir=tmp_path):
        first = trained(make, shape, share)
        minigrad.engine.compiled.forget_plans()
        again = trained(make, shape, share)
    assert first[0] == again[0] and first[2].memory == again[2].memory


def test_amounts_of_memory():
    assert bytes_of("jit", "2GB") == 2_000_000_000 and bytes_of("jit", "1.5 MiB") == 3 << 19
    assert bytes_of("jit", 7) == 7 and bytes_of("jit", "12kb") == 12_000
    for wrong in ("", "GB", "2 pounds", "-1MB", 0, 1.5, "1.2.3MB", ".", ".GB"):
        with pytest.raises(ConfigError, match="expected an amount of memory such as '2GB'"):
            jit(lambda x: x, memory=wrong)


def test_groups_come_after_what_they_need_and_else_by_time():
    assert timed_order([set(), {0}, set(), {2}], {0: 5.0, 1: 1.0, 2: 2.0, 3: 9.0}) == [2, 0, 1, 3]
