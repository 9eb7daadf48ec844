"""Constants that a capture packs: the same bits as without, never stale, within a budget."""
import gc

import numpy as np
import pytest

from minigrad import Tensor, config, jit, nn
from minigrad.capture.constants import MOST_CHANGES, derived_bytes
from minigrad.engine import compiled
from minigrad.engine.stats import stats
from minigrad.errors import ConfigError

rng = np.random.default_rng(4)
NBYTES = 256 * 320 * 4


def tensor(*shape: int) -> Tensor:
    return Tensor(rng.standard_normal(shape).astype(np.float32), device="CPU").realize()


def product(x: Tensor, w: Tensor) -> Tensor:
    return (x @ w).relu() + 1.0


@pytest.fixture(autouse=True)
def _on_the_cpu():
    gc.collect()
    with config(device="CPU", disk_cache=False):
        yield


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 8, 16, 20])
def test_replays_equal_eager_bit_for_bit(rows: int) -> None:
    w, before = tensor(256, 320), derived_bytes()
    step = jit(lambda x: product(x, w).contiguous().realize())
    for _ in range(4):
        x = tensor(rows, 256)
        assert step(x).numpy().tobytes() == product(x, w).numpy().tobytes()
    assert derived_bytes() - before in (0, NBYTES) and (rows not in (2, 4, 8) or derived_bytes() - before == NBYTES)


@pytest.mark.parametrize("rows", [1, 5, 16, 17, 24, 33, 64, 197])
def test_weights_of_linear_layers_equal_eager_bit_for_bit(rows: int) -> None:
    """They lie along the sum. How many rows have them packed is the processor's affair (test_constant_panels.py)."""
    layer, before = nn.Linear(256, 320), derived_bytes()
    step = jit(lambda x: layer(x).gelu().realize())
    for again in range(3):
        for _ in range(3):
            x = tensor(rows, 256)
            assert step(x).numpy().tobytes() == layer(x).gelu().numpy().tobytes()
        nn.state.load_state_dict(layer, {"weight": tensor(320, 256), "bias": tensor(320) + again})
    assert derived_bytes() - before in (0, NBYTES)


def packed_bytes(w: Tensor, x: Tensor) -> int:
    """What a new capture of a product by `w` packs; its replays equal what is computed without it."""
    before, expected = derived_bytes(), product(x, w).numpy()
    step = jit(lambda x: product(x, w).contiguous().realize())
    for _ in range(4):
        assert step(x).numpy().tobytes() == expected.tobytes()
    return derived_bytes() - before


def test_plans_from_disk_are_packed_too(tmp_path) -> None:
    """They have no kernels: a capture has those made again, once; without one such plans are loaded."""
    w, x = tensor(256, 320), tensor(4, 256)
    with config(disk_cache=True, verify=False, cache_dir=tmp_path):
        for again in (False, True, True):
            compiled.forget_plans()
            before = stats.snapshot()
            product(x, w).contiguous().realize()
            first = stats.snapshot() - before
            assert (first.schedules, first.plan_loads) == ((0, 1) if again else (1, 0))
            gc.collect()
            assert packed_bytes(w, x) == NBYTES
            gc.collect()
        compiled.forget_plans()
        before = stats.snapshot()
        with config(packed_mb=0):
            assert packed_bytes(w, x) == 0
        assert (stats.snapshot() - before).schedules == 0


def test_a_constant_that_changes_is_packed_again() -> None:
    w = tensor(256, 320)
    held = [w]
    step = jit(lambda x: product(x, held[0]).contiguous().realize())
    overwrite = jit(lambda y: w.assign(w * 0.5 + y).realize())
    changes = [lambda: w.assign(w * 0.5).realize(), lambda: overwrite(tensor(256, 320)),
               lambda: w.assign(tensor(256, 320)), lambda: overwrite(tensor(256, 320)),
               lambda: overwrite(tensor(256, 320))]
    x, before = tensor(4, 256), derived_bytes()
    for change in changes:
        for _ in range(3):
            assert step(x).numpy().tobytes() == product(x, w).numpy().tobytes()
        change()
        assert step(x).numpy().tobytes() == product(x, w).numpy().tobytes()
    assert len(changes) > MOST_CHANGES and derived_bytes() <= before + NBYTES


def test_what_a_capture_changes_is_no_constant() -> None:
    w, before = tensor(256, 320), derived_bytes()

    @jit
    def step(x: Tensor) -> Tensor:
        y = product(x, w).contiguous()
        w.assign(w * 0.5)
        Tensor.realize(y, w)
        return y

    expected = w.numpy()
    for _ in range(4):
        x = tensor(4, 256)
        np.testing.assert_allclose(step(x).numpy(), np.maximum(x.numpy() @ expected, 0) + 1, rtol=1e-4, atol=1e-4)
        expected = expected * 0.5
    assert derived_bytes() == before


def test_captures_share_and_let_go() -> None:
    w, before = tensor(256, 320), derived_bytes()
    first, second = (jit(lambda x: product(x, w).contiguous().realize()) for _ in range(2))
    for step in (first, second):
        for rows in (2, 4):
            step(tensor(rows, 256))
    assert derived_bytes() == before + NBYTES
    del first, second, step
    gc.collect()
    assert derived_bytes() == before


def test_budget_and_switch() -> None:
    before = derived_bytes()
    for budget in (0, (before >> 20) + 1):
        with config(packed_mb=budget):
            weights = [tensor(256, 320) for _ in range(8)]
            step = jit(lambda x, weights=weights: [product(x, w).contiguous().realize() for w in weights])
            x = tensor(4, 256)
            for _ in range(2):
                for y, w in zip(step(x), weights, strict=True):
                    assert y.numpy().tobytes() == product(x, w).numpy().tobytes()
            assert derived_bytes() <= max(before, budget << 20) and (derived_bytes() > before) == (budget > 0)
            del step
            gc.collect()
    with pytest.raises(ConfigError, match="packed_mb"):
        config(packed_mb=-1)
