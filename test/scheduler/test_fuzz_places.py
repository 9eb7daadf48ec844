"""Random graphs of elementwise, reducing, moving and contracting operations (`support.random_graphs`), assignments,
scatters, orders, running values, all integers, attention. Networks of layers are in `fuzz/`.

Values on the CPU are compared with those on NUMPY, gradients too, and replays of a captured graph with itself.
"""
# Tests know their dims are ints.
# mypy: disable-error-code="arg-type,operator,var-annotated"
import warnings
from functools import partial
from typing import Any

import numpy as np
import pytest
from support.random_graphs import MOST, OPERATIONS, TOLERANCE, Graph, close
from support.rounding import rounded_runs

from minigrad import Tensor, config, jit
from minigrad.dtype import ALL, bool_, float32
from minigrad.report.reduced.rounding import numpy_errors


class Places(Graph):
    """`differentiable`: leaves are float32 and have gradients."""

    def __init__(self, seed: int, device: str, differentiable: bool = False):
        self.leaves: list[Tensor] = []
        self.differentiable = differentiable
        super().__init__(seed, device)

    def leaf(self, shape: Any, dtype: Any = None) -> Tensor:
        made = super().leaf(shape, dtype or (float32 if self.differentiable else self.pick((float32, float32, *ALL))))
        if self.differentiable and made.dtype is float32:
            made.requires_grad = True
        self.leaves.append(made)
        return made

    def grown(self, operations: tuple) -> list[Tensor]:
        for _ in range(int(self.rng.integers(2, 11))):
            made = self.pick(operations)(self, self.some())
            if np.prod(made.shape) <= MOST:
                self.values.append(made)
        last = (self.values[-1], self.values[len(self.values) // 2], self.values[-2:][0])
        return list({id(v): v for v in last}.values())

    def axis(self, x: Tensor) -> int:
        return int(self.rng.integers(x.ndim))

    def copied(self, x: Tensor) -> Tensor:
        return (x.int() if x.dtype is bool_ else x) * 1

    def positions(self, shape: Any, n: int) -> Tensor:
        return Tensor(self.rng.integers(0, n, shape).astype(np.int32), device=self.device)

    # ---- operations ----

    def put(self, x: Tensor) -> Tensor:
        y, at = self.copied(x), []
        for n in y.shape:
            start, stop = sorted(int(v) for v in self.rng.integers(0, n + 1, 2))
            at.append(start if start < n and self.rng.random() < 0.3 else slice(start, stop, int(self.pick((1, 1, 2)))))
        if not at:
            return y.assign(y + 1)
        part = y[tuple(at)]
        y[tuple(at)] = self.pick((2, part + 1, self.leaf(part.shape, y.dtype)))
        return y

    def replaced(self, x: Tensor) -> Tensor:
        y = self.copied(x)
        kept = y + 0 if self.rng.random() < 0.5 else None
        y.assign(self.pick((y + 1, y.flip(0) * 2 if y.ndim else y * 2, self.leaf(y.shape, y.dtype))))
        if self.rng.random() < 0.3:
            y.realize()
        return y if kept is None else y - kept

    def masked(self, x: Tensor) -> Tensor:
        y = self.copied(x)
        if y.ndim:
            y[y > 0] = 1
        return y

    def scattered(self, x: Tensor) -> Tensor:
        if not x.ndim or 0 in x.shape:
            return x
        a = self.axis(x)
        shape = [int(self.rng.integers(1, 6 if k == a else d + 1)) for k, d in enumerate(x.shape)]
        index, value = self.positions(shape, x.shape[a]), self.leaf(tuple(shape), x.dtype)
        if x.dtype.is_float and self.rng.random() < 0.5:  # computed row by row
            value = self.pick((Tensor.softmax, Tensor.layernorm))(value, int(self.rng.integers(x.ndim)))
        kind = self.pick(("set", "sum", "amax", "amin", "prod"))
        return x.scatter(a, index, value) if kind == "set" else x.scatter_reduce(a, index, value, kind)

    def gathered(self, x: Tensor) -> Tensor:
        if x.ndim < 2 or 0 in x.shape:
            return x
        if self.rng.random() < 0.5:
            return x[self.positions((3,), x.shape[0]), self.positions((2, 1), x.shape[1])]
        a = self.axis(x)
        return x.gather(a, self.positions([3 if k == a else d for k, d in enumerate(x.shape)], x.shape[a]))

    def ordered(self, x: Tensor) -> Tensor:
        if not x.ndim or 0 in x.shape:
            return x
        if x.dtype.is_float:  # else rounding decides
            x = (x.clip(-100, 100) * 8).round()
        a = self.axis(x)
        descending, k = bool(self.rng.random() < 0.5), int(self.rng.integers(1, x.shape[a] + 1))
        return self.pick((lambda: x.sort(a, descending)[0], lambda: x.argsort(a), lambda: x.argmax(a),
                          lambda: x.topk(k, a)[0], lambda: x.argmin(a)))()

    def embedded(self, x: Tensor) -> Tensor:
        """Rows of a table many times, normalised: their gradients are added up."""
        if x.ndim != 2 or 0 in x.shape:
            return x
        found = x.float().embedding(self.positions((int(self.pick((3, 40))),), x.shape[0]))
        return self.pick((Tensor.layernorm, Tensor.softmax, Tensor.log_softmax))(found, self.axis(found))

    def resized(self, x: Tensor) -> Tensor:
        if x.ndim != 4 or 0 in x.shape or not x.dtype.is_float:
            return x
        size = int(self.pick((1, 3, 6))), int(self.pick((2, 5)))
        return x.interpolate(size, self.pick(("nearest", "bilinear", "bicubic", "area")))

    def summed(self, x: Tensor) -> Tensor:
        if x.ndim != 2 or not x.dtype.is_float:
            return x
        x = x.clip(-2, 2)
        square = self.leaf((x.shape[0], x.shape[0]), x.dtype)
        return Tensor.einsum(self.pick(("ij,ii->ij", "ij,ki->kj", "ij,ik->j")), x, square)

    def running(self, x: Tensor) -> Tensor:
        if not x.ndim or 0 in x.shape:
            return x
        x = self.copied(x).clip(0, 2)
        name = self.pick(("cumsum", "cumprod", "cummax", "cummin", "diff", "prod"))
        found = getattr(x, name)(self.axis(x))
        return found[0] if isinstance(found, tuple) else found

    def whole(self, x: Tensor) -> Tensor:
        if not x.dtype.is_int:
            x = (x.int() if x.dtype is bool_ else x * 4).cast(self.pick([d for d in ALL if d.is_int]))
        y = self.leaf(tuple(n if self.rng.random() < 0.6 else 1 for n in x.shape), x.dtype)
        return self.pick((lambda: x // y, lambda: x % y, lambda: x << (y & 7), lambda: x >> (y & 7), lambda: x & y,
                          lambda: x ^ y, lambda: ~x, lambda: -x, lambda: x // 3))()

    def moved(self, x: Tensor) -> Tensor:
        if not x.ndim or 0 in x.shape:
            return x
        a, k = self.axis(x), int(self.rng.integers(-4, 5))
        size = int(self.rng.integers(1, x.shape[a] + 1))
        return self.pick((lambda: x.roll(k, a), lambda: x.repeat_interleave(2, a), lambda: x.unfold(a, size, 2),
                          lambda: x.tril(k) if x.ndim > 1 else x, lambda: x.stack(x.flip(0), dim=a),
                          lambda: x.pad((1, 2), mode="replicate"), lambda: x.chunk(2, a)[0]))()

    def attended(self, x: Tensor) -> Tensor:
        if x.ndim < 2 or 0 in x.shape:
            return x
        k = self.leaf((*x.shape[:-2], int(self.pick((1, 5, 17))), x.shape[-1]), float32)
        v = self.leaf((*k.shape[:-1], int(self.pick((1, 8)))), float32)
        return x.float().clip(-3, 3).scaled_dot_product_attention(k, v, is_causal=bool(self.rng.random() < 0.4))


PLACES = (Places.put, Places.put, Places.replaced, Places.masked, Places.scattered, Places.gathered, Places.ordered,
          Places.running, Places.whole, Places.moved, Places.moved, Places.attended, Places.embedded, Places.resized,
          Places.summed)
SMOOTH = (*[o for o in OPERATIONS if o not in (Graph.cast, Graph.window_gradient)], Places.put, Places.replaced,
          Places.scattered, Places.gathered, Places.running, Places.moved, Places.attended,
          Places.embedded, Places.embedded, Places.resized, Places.summed)


def run(seed: int, device: str) -> tuple[list[np.ndarray], float]:
    with config(device=device):
        graph = Places(seed, device)
        wanted = graph.grown((*OPERATIONS, *PLACES, *PLACES))
        Tensor.realize(*wanted)
        tolerance = max([TOLERANCE.get(v.dtype, 0.0) for v in (*graph.values, *graph.leaves)])
        return [v.numpy() for v in wanted], tolerance


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's own, on overflow and NaN
@pytest.mark.parametrize("seed", range(40))
def test_values(seed: int) -> None:
    want, tolerance = run(seed, "NUMPY")
    others = rounded_runs(lambda: run(seed, "NUMPY")[0], numpy_errors)
    for k, (got, expected) in enumerate(zip(run(seed, "CPU")[0], want, strict=True)):
        close(got, expected, tolerance, f"value {k} of seed {seed}", partial(others, k))


def gradients(seed: int, device: str) -> list[np.ndarray]:
    with config(device=device):
        graph = Places(seed, device, differentiable=True)
        wanted = [v for v in graph.grown(SMOOTH) if v.dtype.is_float and v.requires_grad]
        loss = Tensor(0.0, device=device)
        for v in wanted:
            loss = loss + (v.clip(-8, 8).square().mean() if v.numel() else v.sum())
        if wanted:
            loss.backward()
        return [loss.numpy(), *[t.grad.numpy() for t in graph.leaves if t.grad is not None]]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("seed", range(100, 116))
def test_gradients(seed: int) -> None:
    others = rounded_runs(lambda: gradients(seed, "NUMPY"), numpy_errors)
    for k, (got, want) in enumerate(zip(gradients(seed, "CPU"), gradients(seed, "NUMPY"), strict=True)):
        close(got, want, 2e-3, f"gradient {k} of seed {seed}", partial(others, k))


@pytest.mark.parametrize("seed", range(200, 210))
def test_replays(seed: int) -> None:
    """The graph is the function, so that all its leaves are constants of the capture."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        want = run(seed, "CPU")[0]
    with config(device="CPU"):
        f = jit(lambda: Places(seed, "CPU").grown((*OPERATIONS, *PLACES, *PLACES)))
        for _ in range(3):
            assert [v.numpy().tobytes() for v in f()] == [v.tobytes() for v in want]
