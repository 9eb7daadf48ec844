"""Work on constants alone is done once per capture: the same bits as without, never stale, within a budget."""
import gc
from collections.abc import Iterator

import numpy as np
import pytest
from conftest import devices

from minigrad import Tensor, config, jit, nn
from minigrad.capture.constants import MOST_CHANGES, derived_bytes
from minigrad.engine.stats import stats

rng = np.random.default_rng(8)
COMPILED = [d for d in devices() if d != "NUMPY"]


@pytest.fixture(autouse=True, params=COMPILED)
def _on_a_compiled_device(request: pytest.FixtureRequest) -> Iterator[None]:
    gc.collect()  # captures of tests before, whose constants count
    with config(device=request.param):
        yield


def tensor(*shape: int) -> Tensor:
    return Tensor(rng.standard_normal(shape).astype(np.float32)).realize()


class LowRank:
    """A layer whose weight is a sum: w + a @ b."""

    def __init__(self) -> None:
        self.w, self.a, self.b = tensor(48, 40), tensor(48, 3), tensor(3, 40)

    def __call__(self, x: Tensor) -> Tensor:
        return (x @ (self.w + self.a @ self.b).contiguous()).relu().realize()


def launches(call) -> int:
    before = stats.launches
    call()
    return stats.launches - before


def test_a_product_of_weights_is_made_once() -> None:
    layer, x, before = LowRank(), tensor(32, 48), derived_bytes()
    step = jit(layer)
    expected = layer(x).numpy()
    eager = launches(lambda: layer(x))
    for _ in range(4):
        assert step(x).numpy().tobytes() == expected.tobytes()
    assert launches(lambda: step(x)) == 1 < eager
    assert derived_bytes() - before == 48 * 40 * 4
    assert step.captures == 1


def test_other_arguments_share_what_was_made() -> None:
    layer, before = LowRank(), derived_bytes()
    step = jit(layer)
    inputs = [tensor(32, 48) for _ in range(4)]
    for x in inputs * 2:
        assert step(x).numpy().tobytes() == layer(x).numpy().tobytes()
    assert step.captures == 2 and derived_bytes() - before == 48 * 40 * 4


def test_a_changed_constant_is_seen() -> None:
    layer, x = LowRank(), tensor(32, 48)
    step = jit(layer)
    changes = [lambda: layer.a.assign(layer.a * 0.5).realize(), lambda: layer.w.assign(tensor(48, 40)).realize(),
               lambda: layer.b.assign(layer.b + 1).realize(), lambda: layer.b.assign(layer.b * 2).realize(),
               lambda: layer.a.assign(layer.a + 1).realize()]
    for change in changes:
        for _ in range(3):
            assert step(x).numpy().tobytes() == layer(x).numpy().tobytes()
        change()
        assert step(x).numpy().tobytes() == layer(x).numpy().tobytes()
    assert len(changes) > MOST_CHANGES
    assert launches(lambda: step(x)) == launches(lambda: layer(x))  # it changes too often to be made apart


@pytest.mark.parametrize("rows", [4, 20, 512])
@pytest.mark.parametrize("columns", [4, 16, 520])
def test_stages_of_a_kernel_are_taken_apart(rows: int, columns: int) -> None:
    """A stage that arranges the weights for the next one reads nothing else; it takes all of the kernel's buffers."""
    w, x = tensor(512, columns), tensor(rows, 512)
    step = jit(lambda x: (x @ w).realize())
    for _ in range(4):
        assert step(x).numpy().tobytes() == (x @ w).numpy().tobytes()
    w.assign(w * 2).realize()
    for _ in range(3):
        assert step(x).numpy().tobytes() == (x @ w).numpy().tobytes()


def test_a_norm_by_running_statistics_is_one_multiply_add() -> None:
    """Before: (y - mean) * (1 / sqrt(var + eps) * weight) + bias at each call. After: y * scale + shift, both made
    once, and again when statistics or weights are others."""
    convolution, norm, x = nn.Conv2d(3, 5, 3, bias=False), nn.BatchNorm2d(5), tensor(2, 3, 9, 9)
    state = {"weight": tensor(5), "bias": tensor(5), "running_mean": tensor(5), "running_var": tensor(5).exp()}
    nn.state.load_state_dict(norm, state, strict=False)

    def network(x: Tensor) -> Tensor:
        return norm(convolution(x)).relu().realize()

    def expected() -> np.ndarray:
        mean, var, weight, bias = (nn.state.get_state_dict(norm)[name].numpy().astype(np.float64).reshape(-1, 1, 1)
                                   for name in ("running_mean", "running_var", "weight", "bias"))
        y = convolution(x).numpy().astype(np.float64)
        return np.maximum((y - mean) / np.sqrt(var + norm.eps) * weight + bias, 0)

    step = jit(network)
    changes = [lambda: nn.state.load_state_dict(norm, {**state, "running_mean": tensor(5)}, strict=False),
               lambda: norm.running_var.assign(norm.running_var * 3).realize(), lambda: None]
    with Tensor.no_grad():
        for change in changes:
            for _ in range(3):
                got = step(x).numpy()
                assert got.tobytes() == network(x).numpy().tobytes()
                np.testing.assert_allclose(got, expected(), rtol=1e-4, atol=1e-5)
            change()
        bare = jit(lambda x: convolution(x).relu().realize())
        for _ in range(3):
            bare(x)
        assert launches(lambda: step(x)) == launches(lambda: bare(x)) < launches(lambda: network(x))


def test_positions_need_no_constant() -> None:
    x = tensor(16, 16)

    def masked(x: Tensor) -> Tensor:
        mask = (Tensor.arange(16).reshape(16, 1) >= Tensor.arange(16)).float().contiguous()
        return (x @ mask + x).realize()

    step = jit(masked)
    for _ in range(3):
        assert step(x).numpy().tobytes() == masked(x).numpy().tobytes()
    assert launches(lambda: step(x)) < launches(lambda: masked(x))


def test_random_numbers_and_results_are_made_anew() -> None:
    w, x = tensor(8, 8), tensor(8, 8)

    @jit
    def both(x: Tensor) -> tuple[Tensor, Tensor]:
        noisy, doubled = x @ (w + Tensor.rand(8, 8)).contiguous(), (w * 2).contiguous()
        Tensor.realize(noisy, doubled)
        return noisy, doubled

    seen = [both(x) for _ in range(4)]
    assert len({noisy.numpy().tobytes() for noisy, _ in seen}) == 4
    seen[0][1].assign(seen[0][1] * 0).realize()
    assert all(np.array_equal(doubled.numpy(), 2 * w.numpy()) for _, doubled in seen[1:])


@pytest.mark.parametrize("megabytes", [0, 1])
def test_a_budget_is_kept(megabytes: int) -> None:
    w, x, before = tensor(700, 700), tensor(2, 700), derived_bytes()  # 1.96 MB

    def scaled(x: Tensor) -> Tensor:
        return (x @ (w * w.sum(axis=0)).contiguous()).realize()

    with config(packed_mb=(before >> 20) + megabytes):
        step = jit(scaled)
        for _ in range(3):
            assert step(x).numpy().tobytes() == scaled(x).numpy().tobytes()
    assert derived_bytes() - before < megabytes << 20 or (not megabytes and derived_bytes() == before)


def test_a_check_knows_that_a_replay_does_less() -> None:
    layer, x = LowRank(), tensor(32, 48)
    step = jit(layer)
    with config(jit_check=True):
        for _ in range(3):
            step(x)
    assert step.replays == 2


def test_what_is_read_before_an_assignment_to_it_is_the_old_value() -> None:
    """An output reads a sum of constants, which an assignment in place changes afterwards for another output."""
    def twice(x: Tensor) -> tuple[Tensor, Tensor]:
        changed = (constant * 2).contiguous()
        before = changed.pad((2, 1)) + changed.flip(0).pad((1, 2))
        changed[-1] = 0
        return before, changed.pad((2, 1)) * x

    constant, step = tensor(4), jit(twice)
    for _ in range(4):
        x = tensor(7)
        for got, want in zip(step(x), twice(x), strict=True):
            assert got.numpy().tobytes() == want.numpy().tobytes()
