"""Sums of positive numbers, however long and whatever they are fused with, are as good as pairwise summation
(docs/decisions/0042-long-sums.md)."""
from collections.abc import Callable
from dataclasses import dataclass
from math import log2, prod
from typing import Any

import numpy as np
import pytest
from conftest import CPU_DRIVERS, devices, one_in
from numpy.lib.stride_tricks import sliding_window_view

import minigrad.nn.functional as F
from minigrad import Tensor
from minigrad.config import config

UNIT = 2.0**-24


@dataclass(frozen=True)
class Form:
    """What is computed of positive numbers of these shapes, the same in float64, and the terms of each sum."""

    shapes: tuple[tuple[int, ...], ...]
    made: Callable[..., Any]
    expected: Callable[..., Any]
    terms: int


def gradient(made: Callable[..., Any]) -> Callable[..., Any]:
    """The gradient of the sum of `made(x, w)` times the other operands, by w."""
    def found(x: Tensor, w: Tensor, *others: Tensor) -> Tensor:
        w = w.detach()
        w.requires_grad = True
        y = made(x, w)
        for other in others:
            y = y * other
        return y.sum().gradient(w)[0]
    return found


def windows(x: np.ndarray, *size: int) -> np.ndarray:
    return sliding_window_view(x, size, tuple(range(2, 2 + len(size))))


def convolved(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """What `F.conv2d` gives."""
    return np.einsum("nchwij,ocij->nohw", windows(x, *w.shape[2:]), w, optimize=True)


def of_weights(x: np.ndarray, w: np.ndarray, c: np.ndarray) -> np.ndarray:
    """The gradient of a convolution by its weights."""
    names = "hwd"[:x.ndim - 2]
    taps = "ijk"[:x.ndim - 2]
    return np.einsum(f"nc{names}{taps},no{names}->oc{taps}", windows(x, *w.shape[2:]), c, optimize=True)


def placed(rows: int, index: np.ndarray, x: np.ndarray) -> np.ndarray:
    total = np.zeros((rows, *x.shape[1:]))
    np.add.at(total, index, x)
    return total


def own(made: Callable[..., Any], terms: int, *shapes: tuple[int, ...]) -> Form:
    return Form(shapes, made, made, terms)


def product(size: int, made: Callable[..., Any], expected: Callable[..., Any], terms: int) -> Form:
    return Form(((size, size), (size, size)), made, expected, terms)


INDEX = np.random.default_rng(1).integers(0, 7, 1 << 19).astype(np.int32)
ONE_ROW = np.full(1 << 16, 3, np.int32)


def scattered(index: np.ndarray, rows: int, width: tuple[int, ...] = ()) -> Form:
    return Form(((len(index), *width),), lambda x: Tensor.zeros(rows, *width, dtype=x.dtype).scatter_add(
        0, Tensor(index).reshape(-1, *[1] * len(width)).expand(len(index), *width), x),
        lambda x: placed(rows, index, x), len(index))


FORMS = {
    **{f"sum of {n}": own(lambda x: x.sum(), n, (n,)) for n in (300, 5000, 99_991, 1 << 20, 1 << 23)},
    "mean": own(lambda x: x.mean(), 1 << 21, (1 << 21,)),
    "of rows": own(lambda x: x.sum(1), 1 << 19, (3, 1 << 19)),
    "of long columns": own(lambda x: x.sum(0), 1 << 18, (1 << 18, 7)),
    "of columns": own(lambda x: x.sum(0), 1 << 16, (1 << 16, 64)),
    "of odd columns": own(lambda x: x.sum(0), 12_345, (12_345, 130)),
    "of the middle": own(lambda x: x.sum(1), 8191, (8, 8191, 24)),
    "around the middle": own(lambda x: x.sum((0, 2)), 1 << 19, (128, 5, 4096)),
    "norm": own(lambda x: (x * x).sum() ** .5, 1 << 21, (1 << 21,)),
    "mean of differences": own(lambda x, y: abs(x - y).mean(), 1 << 20, (1 << 20,), (1 << 20,)),
    "variance": Form(((1 << 20,),), lambda x: x.var(), lambda x: x.var(ddof=1), 1 << 20),
    "variance of columns": Form(((20_000, 50),), lambda x: x.var(0), lambda x: x.var(0, ddof=1), 20_000),
    "log of exponentials": Form(((1 << 19,),), lambda x: x.logsumexp(0), lambda x: np.log(np.exp(x).sum()), 1 << 19),
    "softmax": Form(((2, 1 << 17),), lambda x: x.softmax(1), lambda x: np.exp(x) / np.exp(x).sum(1, keepdims=True),
                    1 << 17),
    "running total": own(lambda x: x.cumsum(0), 1 << 18, (1 << 18,)),
    "of running totals": own(lambda x: x.cumsum(0).sum(), 1 << 21, (2000,)),
    "of means": own(lambda x: x.mean(1).sum(), 1 << 20, (1024, 1024)),
    "of gathered numbers": Form(((7,),), lambda x: x[Tensor(INDEX)].sum(), lambda x: x[INDEX].sum(), len(INDEX)),
    "outer sum": Form(((9000, 1), (1, 9000)), lambda x, y: (x + y).sum(), lambda x, y: 9000 * (x.sum() + y.sum()),
                      9000**2),
    "outer product": Form(((9000, 1), (1, 9000)), lambda x, y: (x * y).sum(), lambda x, y: x.sum() * y.sum(), 9000**2),
    "repeated 10^10 times": Form(((100_000, 1),), lambda x: x.expand(100_000, 100_000).sum(),
                                 lambda x: 100_000 * x.sum(), 10**10),
    "distances": Form(((500, 1, 64), (1, 500, 64)), lambda x, y: (x - y).abs().sum(),
                      lambda x, y: np.abs(x - y).sum(), 500 * 500 * 64),
    **{f"all of a product of {n}": product(n, lambda a, b: (a @ b).sum(), lambda a, b: a.sum(0) @ b.sum(1), n**3)
       for n in (300, 511, 1000)},
    "all of a scaled product": product(600, lambda a, b: ((a @ b) * 3).sum(), lambda a, b: 3 * a.sum(0) @ b.sum(1),
                                       600**3),
    "einsum ij,jk->": product(700, lambda a, b: Tensor.einsum("ij,jk->", a, b), lambda a, b: a.sum(0) @ b.sum(1),
                              700**3),
    "einsum ij,jk->k": product(700, lambda a, b: Tensor.einsum("ij,jk->k", a, b), lambda a, b: a.sum(0) @ b, 700**2),
    "einsum bij,bjk->ik": Form(((300, 40, 100), (300, 100, 50)), lambda a, b: Tensor.einsum("bij,bjk->ik", a, b),
                               lambda a, b: np.tensordot(a, b, ((0, 2), (0, 1))), 30_000),
    "einsum ij,ij->i": Form(((9, 1 << 17), (9, 1 << 17)), lambda a, b: Tensor.einsum("ij,ij->i", a, b),
                            lambda a, b: (a * b).sum(1), 1 << 17),
    "mean of a product's rows": product(900, lambda a, b: (a @ b).mean(0), lambda a, b: a.mean(0) @ b, 900**2),
    "mean of a product's columns": product(900, lambda a, b: (a @ b).mean(1), lambda a, b: a @ b.mean(1), 900**2),
    "dot": own(lambda a, b: a @ b, 1 << 21, (1 << 21,), (1 << 21,)),
    "matrix times vector": own(lambda a, b: a @ b, 1 << 17, (33, 1 << 17), (1 << 17,)),
    "vector times matrix": own(lambda a, b: a @ b, 1 << 17, (1 << 17,), (1 << 17, 33)),
    "few rows, long": own(lambda a, b: a @ b, 1 << 18, (8, 1 << 18), (1 << 18, 8)),
    "long product": own(lambda a, b: a @ b, 1 << 15, (64, 1 << 15), (1 << 15, 64)),
    "long product of columns": own(lambda a, b: a.T @ b, 33_333, (33_333, 96), (33_333, 96)),
    "wide long product": own(lambda a, b: a @ b, 9001, (130, 9001), (9001, 300)),
    "pool of a plane": Form(((1, 2, 1000, 999),), lambda x: F.avg_pool2d(x, (1000, 999)),
                            lambda x: x.mean((2, 3), keepdims=True), 999_000),
    "mean of pools": Form(((8, 4, 128, 128),), lambda x: F.avg_pool2d(x, 3, 1).mean((0, 2, 3)),
                          lambda x: windows(x, 3, 3).mean((0, 2, 3, 4, 5)), 8 * 126 * 126 * 9),
    "mean of a convolution": Form(((8, 8, 64, 64), (8, 8, 3, 3)), lambda x, w: F.conv2d(x, w).mean(),
                                  lambda x, w: convolved(x, w).mean(), 8 * 8 * 62 * 62 * 72),
    "convolution's mean over the batch": Form(((200, 16, 12, 12), (16, 16, 3, 3)), lambda x, w: F.conv2d(x, w).mean(0),
                                              lambda x, w: convolved(x, w).mean(0), 200 * 144),
    "convolution's mean over planes": Form(((2, 8, 96, 96), (8, 8, 3, 3)), lambda x, w: F.conv2d(x, w).mean((2, 3)),
                                           lambda x, w: convolved(x, w).mean((2, 3)), 94 * 94 * 72),
    "convolution's sum of channels": Form(((2, 64, 20, 20), (64, 64, 3, 3)), lambda x, w: F.conv2d(x, w).sum(1),
                                          lambda x, w: convolved(x, w).sum(1), 64 * 576),
    "large kernel": Form(((1, 16, 100, 100), (2, 16, 99, 99)), lambda x, w: F.conv2d(x, w), convolved, 16 * 99 * 99),
    "weights of a convolution": Form(((64, 3, 64, 64), (8, 3, 3, 3), (64, 8, 62, 62)), gradient(F.conv2d), of_weights,
                                     64 * 62 * 62),
    "weights of a wide convolution": Form(((16, 16, 40, 40), (16, 16, 3, 3), (16, 16, 38, 38)), gradient(F.conv2d),
                                          of_weights, 16 * 38 * 38),
    "weights of a 1x1 convolution": Form(((16, 16, 40, 40), (24, 16, 1, 1), (16, 24, 40, 40)), gradient(F.conv2d),
                                         of_weights, 16 * 40 * 40),
    "weights of a long convolution": Form(((8, 4, 8192), (4, 4, 5), (8, 4, 8188)), gradient(F.conv1d), of_weights,
                                          8 * 8188),
    "weights of a solid convolution": Form(((2, 4, 20, 20, 20), (4, 4, 3, 3, 3), (2, 4, 18, 18, 18)),
                                           gradient(F.conv3d), of_weights, 2 * 18**3),
    "weights of a linear layer": Form(((1 << 15, 64), (48, 64), (1 << 15, 48)), gradient(F.linear),
                                      lambda x, w, c: c.T @ x, 1 << 15),
    "a bias": Form(((1 << 16, 48), (48,), (1 << 16, 48)), gradient(lambda x, b: x + b), lambda x, b, c: c.sum(0),
                   1 << 16),
    "a scale of channels": Form(((32, 16, 48, 48), (16, 1, 1)), gradient(lambda x, w: x * w),
                                lambda x, w: x.sum((0, 2, 3))[:, None, None], 32 * 48 * 48),
    "weights of many products": Form(((1 << 13, 8, 16), (16, 8)), gradient(lambda x, w: x @ w),
                                     lambda x, w: np.repeat(x.sum((0, 1))[:, None], 8, 1), 1 << 16),
    "an embedding of one row": Form(((1, 1), (10, 8), (len(ONE_ROW), 8)), gradient(
        lambda _, w: F.embedding(Tensor(ONE_ROW), w)), lambda _, w, c: placed(10, ONE_ROW, c), len(ONE_ROW)),
    "an embedding": Form(((1, 1), (7, 8), (len(INDEX), 8)), gradient(lambda _, w: F.embedding(Tensor(INDEX), w)),
                         lambda _, w, c: placed(7, INDEX, c), len(INDEX)),
    "scattered": scattered(INDEX, 7),
    "scattered rows": scattered(INDEX[:100_003], 7, (5,)),
    "added by index": Form(((7, 4), (len(INDEX), 4)), lambda x, y: x.index_add(0, Tensor(INDEX), y),
                           lambda x, y: x + placed(7, INDEX, y), len(INDEX)),
    "losses": Form(((1 << 15, 10),), lambda x: F.cross_entropy(x, Tensor(INDEX[:1 << 15])), lambda x: (np.log(
        np.exp(x).sum(1)) - x[np.arange(1 << 15), INDEX[:1 << 15]]).mean(), 1 << 15),
    "attention": Form(((1, 2, 32, 16), (1, 2, 1 << 14, 16)), lambda q, k: F.scaled_dot_product_attention(q, k, k),
                      lambda q, k: attended(q, k), 1 << 14),
    "attention of one row": Form(((1, 2, 1, 16), (1, 2, 1 << 16, 16)), lambda q, k: F.scaled_dot_product_attention(
        q, k, k), lambda q, k: attended(q, k), 1 << 16),
}


def attended(q: np.ndarray, k: np.ndarray) -> np.ndarray:
    weights = np.exp(q @ k.swapaxes(2, 3) / 4)
    return weights / weights.sum(-1, keepdims=True) @ k


def check(form: Form, device: str, dtype: str = "float32", equal: bool = False) -> None:
    """`equal`: all numbers of an operand are the same, so that all roundings go in one direction."""
    own = np.random.default_rng(prod(form.shapes[0]))
    arrays = [np.full(s, 0.1 + 0.8 * own.random(), np.float32) if equal
              else own.random(s, dtype=np.float32) + np.float32(0.1) for s in form.shapes]
    with config(device=device):
        tensors = [Tensor(a).cast(dtype) for a in arrays]
        given = [t.cast("float32").numpy().astype(np.float64) for t in tensors]
        got = form.made(*tensors).cast("float32").numpy().astype(np.float64)
    expected = np.asarray(form.expected(*given))
    assert got.shape == expected.shape
    unit = {"float32": UNIT, "float16": 2.0**-11, "bfloat16": 2.0**-8}[dtype]
    bound = 10 * log2(form.terms) * UNIT + (unit if dtype != "float32" else 0)
    np.testing.assert_array_less(np.abs(got - expected), bound * np.abs(expected) + 1e-30)


@one_in(6, CPU_DRIVERS)
@one_in(5, "CL:rusticl")
@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("device", [d for d in devices() if d != "NUMPY"])
def test_long_sums_keep_their_digits(device: str, name: str) -> None:
    check(FORMS[name], device)


SOME = ("of columns", "mean", "all of a product of 511", "mean of a product's rows", "vector times matrix",
        "long product of columns", "weights of a convolution", "an embedding of one row", "scattered rows")


@pytest.mark.parametrize("name", SOME)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("device", [d for d in devices() if d == "CPU"])
def test_halves_add_up_in_float32(device: str, dtype: str, name: str) -> None:
    check(FORMS[name], device, dtype)


@pytest.mark.parametrize("name", [*SOME, "sum of 99991", "long product", "wide long product"])
@pytest.mark.parametrize("device", [d for d in devices() if d == "CPU"])
def test_sums_of_equal_numbers(device: str, name: str) -> None:
    """All additions round in one direction, so that errors add up."""
    check(FORMS[name], device, equal=True)
