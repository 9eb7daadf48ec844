"""Random contractions on the CPU against numpy in float64: products in all layouts, convolutions, both gradients.

Each seed is one case: shapes, layouts, broadcasting, strides, dilations, paddings, groups, a prologue of each operand
and an epilogue. Small shapes are packed or done in panels as large ones are, each seed another way. A failure names it:
`check(seed)` runs it again; `python test/codegen/test_contractions.py 0 3000` runs a range.
"""
# Tests know their dims are ints.
# mypy: disable-error-code="arg-type,operator,type-var,misc"
from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import product

import numpy as np
import pytest

from minigrad import Tensor
from minigrad.codegen import passes
from minigrad.codegen.kernel.nodes import Nest
from minigrad.codegen.policy import choose, packed, panels, split_k
from minigrad.codegen.policy.product import Way
from minigrad.config import config
from minigrad.target import Target

LENGTHS = (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 24, 31, 33, 40, 48, 50)
FUNCTIONS: dict[str, tuple[Callable, Callable]] = {
    "relu": (lambda t: t.relu(), lambda x: np.maximum(x, 0)),
    "scale": (lambda t: t * 1.5, lambda x: x * 1.5),
    "shift": (lambda t: t + 0.25, lambda x: x + 0.25),
    "square": (lambda t: t * t, lambda x: x * x),
    "negative": (lambda t: -t, lambda x: -x),
    "clamp": (lambda t: t.maximum(-0.5), lambda x: np.maximum(x, -0.5)),
}
"""As a Tensor computes it and as numpy does."""

ALL_SIZES = ((packed, "MIN_WORK", 1), (packed, "LEAST_K", 1), (panels, "MIN_WORK", 1), (split_k, "MIN_WORK", 1),
             (split_k, "MIN_PART", 8))


def one_way(turn: int) -> tuple:
    """The thresholds under which every product is computed in one of the ways that copy operands or read them in
    panels, each turn in another, as far as there are any."""
    usual = choose.product_ways

    def ways(nest: Nest, target: Target) -> list[Way]:
        found = [way for way in (*packed.ways(nest, target), *panels.ways(nest, target)) if way.choices]
        return [found[turn % len(found)]] if found else list(usual(nest, target))

    return (*ALL_SIZES, (choose, "product_ways", ways))


@contextmanager
def thresholds(values: tuple) -> Iterator[None]:
    """Other thresholds of policies, and no stages made with them afterwards."""
    before = [getattr(module, name) for module, name, _ in values]
    passes.forget_stages()
    for module, name, value in values:
        setattr(module, name, value)
    try:
        yield
    finally:
        for (module, name, _), value in zip(values, before, strict=True):
            setattr(module, name, value)
        passes.forget_stages()


class Case:
    """One random contraction: `make()` is its lazy result, `expected` the same in float64. `narrow`: operands are
    bfloat16, widened in the contraction."""

    def __init__(self, seed: int, narrow: bool = False):
        self.rng, self.narrow = np.random.default_rng(seed), narrow
        self.words: list[str] = []
        kinds = (self.matmul, self.matmul, self.batched, self.einsum, self.conv, self.conv, self.data_gradient,
                 self.weight_gradient, self.weight_gradient)
        self.make, self.expected = self.pick(kinds)()

    def pick(self, options):
        return options[int(self.rng.integers(len(options)))]

    def length(self, most: int = 50) -> int:
        return int(self.pick([n for n in LENGTHS if n <= most]))

    def array(self, *shape: int) -> np.ndarray:
        x = self.rng.standard_normal(shape).astype(np.float32)
        return (x.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32) if self.narrow else x

    def tensor(self, x: np.ndarray) -> Tensor:
        made = Tensor(x, device="CPU")
        return made.cast("bfloat16").realize().float() if self.narrow else made

    def function(self, likely: float = 0.4):
        """A random elementwise function, mostly none."""
        if self.rng.random() >= likely:
            return (lambda t: t), (lambda x: x)
        name = self.pick(list(FUNCTIONS))
        self.words.append(name)
        return FUNCTIONS[name]

    def laid_out(self, *shape: int):
        """A value of this shape as (make, numpy): a view of another layout, then perhaps a function of it."""
        how = self.pick(("plain", "plain", "permuted", "sliced", "stepped", "flipped", "broadcast"))
        self.words.append(how)
        if how == "permuted":
            order = self.rng.permutation(len(shape))
            base = self.array(*(shape[i] for i in order))
            back = tuple(int(i) for i in np.argsort(order))
            view = lambda t: t.permute(*back) if isinstance(t, Tensor) else t.transpose(back)  # noqa: E731
        elif how == "sliced":
            base = self.array(*(n + 2 for n in shape))
            view = lambda t: t[tuple(slice(1, n + 1) for n in shape)]  # noqa: E731
        elif how == "stepped":
            base = self.array(*shape[:-1], 2 * shape[-1])
            view = lambda t: t[..., ::2]  # noqa: E731
        elif how == "flipped":
            base = self.array(*shape)
            view = lambda t: t.flip(-1) if isinstance(t, Tensor) else np.flip(t, -1)  # noqa: E731
        elif how == "broadcast":
            base = self.array(*(1 if self.rng.random() < 0.3 else n for n in shape))
            view = lambda t: t.expand(*shape) if isinstance(t, Tensor) else np.broadcast_to(t, shape)  # noqa: E731
        else:
            base, view = self.array(*shape), lambda t: t
        ours, theirs = self.function()
        return lambda: ours(view(self.tensor(base))), theirs(view(base.astype(np.float64)))

    def finish(self, make: Callable[[], Tensor], expected: np.ndarray):
        """An epilogue: a bias along one axis, a residual, a function."""
        steps = []
        if self.rng.random() < 0.4:
            axis = int(self.rng.integers(expected.ndim))
            bias = self.array(*(n if k == axis else 1 for k, n in enumerate(expected.shape)))
            steps.append(bias)
            self.words.append(f"bias {axis}")
        if self.rng.random() < 0.3:
            steps.append(self.array(*expected.shape))
            self.words.append("residual")
        ours, theirs = self.function()

        def result() -> Tensor:
            total = make()
            for s in steps:
                total = total + Tensor(s, device="CPU")
            return ours(total)

        return result, theirs(expected + sum((s.astype(np.float64) for s in steps), 0.0))

    # ---- kinds ----

    def matmul(self):
        m, n, k = self.length(), self.length(), self.length()
        if self.rng.random() < 0.1:
            k *= 13
        self.words.append(f"matmul {m} {n} {k}")
        (a, x), (b, y) = self.laid_out(m, k), self.laid_out(k, n)
        return self.finish(lambda: a() @ b(), x @ y)

    def batched(self):
        m, n, k, p, q = (self.length(most) for most in (33, 33, 33, 5, 4))
        one, other = ((p, q), (p, q)) if self.rng.random() < 0.5 else ((p, 1), (q,))
        self.words.append(f"batched {one} {other} {m} {n} {k}")
        (a, x), (b, y) = self.laid_out(*one, m, k), self.laid_out(*other, k, n)
        return self.finish(lambda: a() @ b(), x @ y)

    def einsum(self):
        formula = self.pick(("ij,jk->ik", "ij,kj->ki", "aij,ajk->aik", "bihd,bjhd->bhij", "bhij,bjhd->bihd",
                             "ijk,jkl->il", "ijk,lkj->il", "aib,acb->cia"))
        sizes = {c: self.length(17 if formula.count(c) > 1 else 9) for c in "abcdhijkl"}
        inputs, _ = formula.split("->")
        self.words.append(f"einsum {formula} {sizes}")
        (a, x), (b, y) = (self.laid_out(*(sizes[c] for c in word)) for word in inputs.split(","))
        return self.finish(lambda: Tensor.einsum(formula, a(), b()), np.einsum(formula, x, y))

    def geometry(self):
        """(batch, groups, in, out, size, kernel, stride, dilation, padding) of a convolution with an output."""
        rank = self.pick((1, 2, 2, 2, 2, 3))
        most = {1: 50, 2: 17, 3: 7}[rank]
        while True:
            size = tuple(self.length(most) for _ in range(rank))
            kernel = tuple(int(self.pick((1, 2, 3, 3, 5))) for _ in range(rank))
            stride, dilation = int(self.pick((1, 1, 1, 2, 3))), int(self.pick((1, 1, 1, 2)))
            padding = int(self.pick((0, 1, 1, 2)))
            if all(n + 2 * padding >= dilation * (k - 1) + 1 for n, k in zip(size, kernel, strict=True)):
                break
        groups = int(self.pick((1, 1, 1, 2, 3)))
        depth, out = groups * self.length(9), groups * self.length(17)
        found = (int(self.pick((1, 1, 2, 3, 5))), groups, depth, out, size, kernel, stride, dilation, padding)
        self.words.append(f"convolution {found}")
        return found

    def conv(self):
        batch, groups, depth, out, size, kernel, stride, dilation, padding = self.geometry()
        (a, x), (b, w) = self.laid_out(batch, depth, *size), self.laid_out(out, depth // groups, *kernel)
        options = {"groups": groups, "stride": stride, "dilation": dilation, "padding": padding}
        return self.finish(lambda: a().conv2d(b(), **options), conv(x, w, **options))

    def data_gradient(self):
        return self.gradient("data")

    def weight_gradient(self):
        return self.gradient("weight")

    def gradient(self, of: str):
        batch, groups, depth, out, size, kernel, stride, dilation, padding = self.geometry()
        options = {"groups": groups, "stride": stride, "dilation": dilation, "padding": padding}
        x, w = self.array(batch, depth, *size), self.array(out, depth // groups, *kernel)
        shape = conv(x, w, **options).shape
        g, gradient = self.laid_out(*shape)
        self.words.insert(0, f"gradient of {of}")

        def make() -> Tensor:
            data, weight = self.tensor(x), self.tensor(w)
            data.requires_grad = weight.requires_grad = True
            y = data.conv2d(weight, **options)
            return y.gradient(data if of == "data" else weight, gradient=g())[0]

        both = conv_gradients(x.astype(np.float64), w.astype(np.float64), gradient, **options)
        return self.finish(make, both[0] if of == "data" else both[1])


def taps(x: np.ndarray, w: np.ndarray, stride: int, dilation: int, padding: int):
    """The padded input, and for each tap the part of it that the tap reads."""
    rank = w.ndim - 2
    wide = np.pad(x, [(0, 0), (0, 0)] + [(padding, padding)] * rank)
    counts = [(n - dilation * (k - 1) - 1) // stride + 1 for n, k in zip(wide.shape[2:], w.shape[2:], strict=True)]
    places = [(tap, (..., *(slice(t * dilation, t * dilation + stride * (n - 1) + 1, stride)
                            for t, n in zip(tap, counts, strict=True)))) for tap in product(*map(range, w.shape[2:]))]
    return wide, places


def conv(x: np.ndarray, w: np.ndarray, groups: int, stride: int, dilation: int, padding: int) -> np.ndarray:
    wide, places = taps(x, w, stride, dilation, padding)
    split = w.reshape(groups, -1, *w.shape[1:])
    terms = []
    for tap, part in places:
        piece = wide[part]
        piece = piece.reshape(x.shape[0], groups, -1, *piece.shape[2:])
        terms.append(np.einsum("ngc...,goc->ngo...", piece, split[(..., *tap)]))
    total = np.sum(terms, axis=0)
    return total.reshape(x.shape[0], w.shape[0], *total.shape[3:])


def conv_gradients(x: np.ndarray, w: np.ndarray, g: np.ndarray, groups: int, stride: int, dilation: int, padding: int
                   ) -> tuple[np.ndarray, np.ndarray]:
    wide, places = taps(x, w, stride, dilation, padding)
    split = w.reshape(groups, -1, *w.shape[1:])
    grad = g.reshape(g.shape[0], groups, -1, *g.shape[2:])
    dx, dw = np.zeros_like(wide), np.zeros_like(split)
    for tap, part in places:
        piece = wide[part]
        shape = piece.shape
        piece = piece.reshape(x.shape[0], groups, -1, *shape[2:])
        dx[part] += np.einsum("ngo...,goc->ngc...", grad, split[(..., *tap)]).reshape(shape)
        flat = grad.reshape(*grad.shape[:3], -1), piece.reshape(*piece.shape[:3], -1)
        dw[(..., *tap)] = np.einsum("ngop,ngcp->goc", *flat)
    inner = tuple(slice(padding, padding + n) for n in x.shape[2:])
    return dx[(..., *inner)], dw.reshape(w.shape)


def check(seed: int, narrow: bool = False) -> None:
    """Runs one case with 1 and 2 threads. Raises AssertionError with the seed and the case."""
    case = Case(seed, narrow)
    found = []
    for threads in (1, 2):
        with config(threads=threads):
            found.append(case.make().numpy())
    words = f"seed {seed}: {', '.join(case.words)}"
    assert found[0].tobytes() == found[1].tobytes(), f"{words}: 1 and 2 threads differ"
    scale = max(1.0, float(np.abs(case.expected).max(initial=0.0)))
    np.testing.assert_allclose(found[0], case.expected, rtol=1e-4, atol=2e-5 * scale, err_msg=words)


@pytest.mark.parametrize("start", range(0, 40, 10))
def test_random_contractions_packed(start: int) -> None:
    for seed in range(start, start + 10):
        with thresholds(one_way(seed)):
            check(seed)


@pytest.mark.parametrize("start", range(0, 20, 10))
def test_random_contractions_of_bfloat16(start: int) -> None:
    for seed in range(start, start + 10):
        with thresholds(one_way(seed)):
            check(seed, narrow=True)


@pytest.mark.parametrize("seed", [1851, 2022, 100603, 101353, 101729, 102437])
def test_cases_that_once_failed(seed: int) -> None:
    """Two taps along one variable; a factor read where the other's condition fails; an operand contiguous along
    a tap, which is no coordinate of its copy."""
    for turn in range(2):
        with thresholds(one_way(turn)):
            check(seed)


@pytest.mark.parametrize("start", [0, 10])
def test_random_contractions(start: int) -> None:
    for seed in range(start, start + 10):
        check(seed)


def main(first: int, last: int) -> int:
    """Runs seeds first..last-1, each packed in one of the ways, every fourth as it comes; the number of failures."""
    failed = 0
    for seed in range(first, last):
        try:
            with thresholds(one_way(seed // 4) if seed % 4 else ()):
                check(seed)
        except Exception as error:
            failed += 1
            print(f"seed {seed} {type(error).__name__}: {str(error)[:600]}", flush=True)
    print(f"{last - first} cases, {failed} failed", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(min(main(int(sys.argv[1]), int(sys.argv[2])), 1))
