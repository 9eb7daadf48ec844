"""Random programs of assigns, slices and reads over a few buffers, against numpy: eager with values asked for at random
moments, and captured. Values are small integers, so that every result is exact."""
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from minigrad import Tensor, jit

ROWS, COLUMNS = 3, 4
Step = tuple[str, int, int, int]
KINDS = ("add", "flip", "sum", "assign", "assign", "row", "column", "part", "sliced", "other", "keep")


def program(seed: int) -> list[Step]:
    rng = np.random.default_rng(seed)
    steps = []
    for _ in range(int(rng.integers(3, 12))):
        a, b, c = rng.integers(0, 3, 3)
        steps.append((str(rng.choice(KINDS)), int(a), int(b), int(c)))
    return steps


def run(steps: list[Step], state: list[Any], flip: Callable[[Any], Any], assign: Callable[[Any, Any], Any],
        pause: Callable[[list[Any]], None]) -> list[Any]:
    """The program over arrays of either kind; `assign` replaces a whole value. Returns every value that it held."""
    held = [s + 0 for s in state]
    for kind, a, b, c in steps:
        x, y, w = held[-1 - a], state[b], state[c]
        if kind == "add":
            held.append(x + y - w)
        elif kind == "flip":
            held.append(flip(y) + x)
        elif kind == "sum":
            held.append(x * 0 + w.sum(axis=0))
        elif kind == "assign":
            assign(w, y - x)
        elif kind == "row":
            w[a] = x[b] + y[c]
        elif kind == "column":
            w[:, a] = y[:, b] - x[:, c]
        elif kind == "part":
            w[:2] = x[1:] + w[1:]
        elif kind == "sliced":
            held.append(x + flip(w[0]))
        elif kind == "other":
            assign(w, flip(w) + y)
        else:
            held.append(w + 0)
        pause(held)
    return held


def starts(seed: int) -> list[np.ndarray]:
    rng = np.random.default_rng([seed, 7])
    return [rng.integers(-3, 4, (ROWS, COLUMNS)).astype(np.float32) for _ in range(3)]


def expected(steps: list[Step], state: list[np.ndarray]) -> list[np.ndarray]:
    def assign(w: np.ndarray, value: np.ndarray) -> None:
        w[...] = value.copy()

    return run(steps, state, lambda v: v[::-1].copy(), assign, lambda held: None)


def ours(steps: list[Step], state: list[Tensor], pause: Callable[[list[Tensor]], None]) -> list[Tensor]:
    return run(steps, state, lambda v: v.flip(0), lambda w, value: w.assign(value), pause)


def pausing(seed: int, state: list[Tensor]) -> Callable[[list[Tensor]], None]:
    """Computes some of the values that are held, now and then."""
    rng = np.random.default_rng([seed, 8])

    def pause(held: list[Tensor]) -> None:
        if rng.random() < 0.3:
            picked = [t for t in (*held, *state) if rng.random() < 0.3]
            if picked:
                Tensor.realize(*picked)

    return pause


@pytest.mark.parametrize("lazy", [False, True], ids=["realized", "lazy"])
@pytest.mark.parametrize("seed", range(30))
def test_programs_of_assigns(seed: int, lazy: bool) -> None:
    steps, arrays = program(seed), starts(seed)
    state = [Tensor(a, device="CPU").realize() for a in arrays]
    if lazy:
        state, arrays = [t * 2 for t in state], [a * 2 for a in arrays]
    held = ours(steps, state, pausing(seed, state))
    want = expected(steps, arrays)
    for t, a in zip((*held, *state), (*want, *arrays), strict=True):
        np.testing.assert_array_equal(t.numpy(), a)


@pytest.mark.parametrize("seed", [*range(200, 220), 20100, 20308])
def test_gradients_of_programs_of_assigns(seed: int) -> None:
    """They are the same whether values were computed on the way or not."""
    steps, arrays, found = program(seed), starts(seed), []
    for pauses in (False, True):
        leaves = [Tensor(a, device="CPU", requires_grad=True) for a in arrays]
        state = [t * 2 for t in leaves]
        held = ours(steps, state, pausing(seed, state) if pauses else lambda held: None)
        loss = Tensor(0.0, device="CPU")
        for t in (*held, *state):
            loss = loss + (t * t).sum()
        loss.backward()
        found.append([t.grad.numpy() for t in leaves if t.grad is not None])
    for got, want in zip(*found, strict=True):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("seed", range(100, 115))
def test_captured_programs_of_assigns(seed: int) -> None:
    steps, arrays = program(seed), starts(seed)
    state = [Tensor(a, device="CPU").realize() for a in arrays]
    f = jit(lambda: ours(steps, state, lambda held: None))
    for _ in range(3):
        # Values grow with each call: kept small, so that they stay exact.
        for t, a in zip(state, arrays, strict=True):
            a %= 5
            t.assign(Tensor(a, device="CPU")).realize()
        held = f()
        want = expected(steps, arrays)
        for t, a in zip((*held, *state), (*want, *arrays), strict=True):
            np.testing.assert_array_equal(t.numpy(), a)
        del held, t
    assert f.replays >= 1
