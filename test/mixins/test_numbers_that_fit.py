"""Python's numbers beside types that hold them and types that do not: exact, widened as PyTorch's int64 holds them, or
refused; never wrapped where lower bits alone do not say what is right."""
from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from conftest import needs_torch

import minigrad
from minigrad import Tensor, config
from minigrad.dtype import ALL, DType, int32
from minigrad.errors import DTypeError
from minigrad.nn import functional as F
from minigrad.nn import init

INTEGERS = [d for d in ALL if d.is_int]
NUMBERS = sorted({sign * (1 << bits) + step for bits in (0, 7, 8, 15, 16, 31, 32, 63, 64, 70) for sign in (-1, 1)
                  for step in (-1, 0, 1)})
COMPARISONS = (operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne)
WRAPPING = (operator.add, operator.sub, operator.mul, operator.and_, operator.or_, operator.xor)
DIVISIONS: tuple[Callable[..., Any], ...] = (operator.floordiv, operator.mod)


def wrapped(value: int, dtype: DType) -> int:
    value &= (1 << dtype.bits) - 1
    return value - (1 << dtype.bits) if dtype.kind == "i" and value >> (dtype.bits - 1) else value


def holds(dtype: DType, number: int) -> bool:
    return int(dtype.min) <= number <= int(dtype.max)


def elements(dtype: DType) -> list[int]:
    return [n for n in NUMBERS if holds(dtype, n)]


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_operations_with_a_number(dtype: DType) -> None:
    """Comparisons are those of the integers; sums, products and bits are the integers' lower bits, in int64 for int32
    and a number beyond it; quotients are exact or refused."""
    values = elements(dtype)
    with config(device="NUMPY"):
        x = Tensor(values, dtype=dtype)
        assert x.tolist() == values
        for n in NUMBERS:
            wide = dtype if holds(dtype, n) or dtype is not int32 else next(d for d in ALL if d.name == "int64")
            for compare in COMPARISONS:
                assert compare(x, n).tolist() == [compare(v, n) for v in values], (compare, n)
                assert compare(n, x).tolist() == [compare(n, v) for v in values], (compare, n)
            for f in WRAPPING:
                if -1 << 63 <= n < 1 << 64:
                    got = f(x, n)
                    assert got.dtype is wide and got.tolist() == [wrapped(f(v, n), wide) for v in values], (f, n)
                    assert f(n, x).tolist() == [wrapped(f(n, v), wide) for v in values], (f, n)
                else:
                    with pytest.raises(DTypeError, match="can hold"):
                        f(x, n)
            for f in DIVISIONS if n else ():
                if holds(wide, n):
                    assert f(x, n).tolist() == [wrapped(f(v, n), wide) for v in values], (f, n)
                else:
                    with pytest.raises(DTypeError, match="can hold"):
                        f(x, n)
            if n >= 0:
                assert (x >> n).tolist() == [v >> n for v in values], n


def put(x: Tensor, n: Any) -> Tensor:
    x = x.clone()
    x[0] = n
    return x


def init_constant(x: Tensor, n: Any) -> Tensor:
    return init.constant_(x.clone(), n)


YES, ZERO = [True, False], [0]
FILLS: dict[str, Callable[[Tensor, Any], Tensor]] = {
    "full": lambda x, n: Tensor.full((2,), n, dtype=x.dtype), "Tensor": lambda x, n: Tensor(n, dtype=x.dtype),
    "list": lambda x, n: Tensor([n, 1], dtype=x.dtype), "full_like": lambda x, n: x.full_like(n),
    "new_full": lambda x, n: x.new_full((2,), n), "new_tensor": lambda x, n: x.new_tensor([n]),
    "fill_": lambda x, n: x.clone().fill_(n), "constant_": init_constant, "setitem": put,
    "assign": lambda x, n: x.clone().assign(n), "masked_fill": lambda x, n: x.masked_fill(Tensor(YES), n),
    "masked_fill_": lambda x, n: x.clone().masked_fill_(Tensor(YES), n),
    "index_fill": lambda x, n: x.index_fill(0, Tensor(ZERO), n), "scatter": lambda x, n: x.scatter(0, Tensor(ZERO), n),
    "pad": lambda x, n: F.pad(x, (1, 0), value=n), "linspace": lambda x, n: Tensor.linspace(n, n, 2, dtype=x.dtype),
    "fill_diagonal_": lambda x, n: x.reshape(1, 2).clone().fill_diagonal_(n).flatten(),
    "randint": lambda x, n: Tensor.randint(2, low=n, high=n + 1, dtype=x.dtype),
}


@pytest.mark.parametrize("name", FILLS)
def test_numbers_that_become_elements(name: str) -> None:
    """Each is there as it is, negative ones counted from the end of an unsigned type, or refused."""
    with config(device="NUMPY"):
        for dtype in INTEGERS:
            x = Tensor([1, 1], dtype=dtype)
            for n in NUMBERS:
                counts = dtype.kind == "u" and name != "randint"
                if (-int(dtype.max) if counts else int(dtype.min)) <= n <= int(dtype.max):
                    got = FILLS[name](x, n)
                    assert got.dtype is dtype
                    if name != "linspace":  # which counts in float64
                        assert got.reshape(-1)[0].item() == wrapped(n, dtype), (dtype, n)
                else:
                    with pytest.raises(DTypeError, match="expected a number"):
                        FILLS[name](x, n)
            for number in (math.nan, math.inf, -math.inf, 1e30) if name != "randint" else ():
                with pytest.raises(DTypeError, match="expected a number"):
                    FILLS[name](x, number)


@needs_torch
def test_floats_that_become_infinite_are_refused_where_pytorch_refuses_them() -> None:
    import torch

    makes: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
        "masked_fill": (lambda x, n: x.masked_fill(Tensor(YES), n), lambda x, n: x.masked_fill(torch.tensor(YES), n)),
        "index_fill": (lambda x, n: x.index_fill(0, Tensor(ZERO), n), lambda x, n: x.index_fill(
            0, torch.tensor(ZERO), n)),
        "scatter": (lambda x, n: x.scatter(0, Tensor(ZERO), n), lambda x, n: x.scatter(0, torch.tensor(ZERO), n)),
        "pad": (lambda x, n: F.pad(x, (1, 0), value=n), lambda x, n: torch.nn.functional.pad(x, (1, 0), value=n)),
        "full_like": (lambda x, n: x.full_like(n), lambda x, n: torch.full_like(x, n))}
    with config(device="NUMPY"):
        for name, (own, other) in makes.items():
            for kind in ("float16", "bfloat16", "float32", "float64"):
                x, y = Tensor([1.0, 2.0], dtype=kind), torch.tensor([1.0, 2.0], dtype=getattr(torch, kind))
                for n in (1e4, -1e6, 1e38, -3.41e38, 1e40, math.inf, -math.inf, math.nan):
                    try:
                        expected = other(y, n).double().numpy()
                    except RuntimeError:
                        with pytest.raises(DTypeError, match="can hold"):
                            own(x, n)
                    else:
                        np.testing.assert_array_equal(own(x, n).double().numpy(), expected, f"{name} {kind} {n}")


@needs_torch
@pytest.mark.parametrize("make", [
    lambda m, t: m.arange(2 ** 31, 2 ** 31 + 2), lambda m, t: m.arange(2 ** 31 - 1, 2 ** 31 + 2),
    lambda m, t: m.arange(2 ** 31, 2 ** 33, 2 ** 32), lambda m, t: m.arange(0, 3 * 2 ** 31, 2 ** 31),
    lambda m, t: m.arange(0, -3 * 2 ** 31, -2 ** 31), lambda m, t: m.arange(-2 ** 31, 2 ** 31, 2 ** 30),
    lambda m, t: m.arange(5, 0, -2 ** 40), lambda m, t: m.arange(2 ** 62, 2 ** 62 + 3),
    lambda m, t: m.full((2,), 2 ** 31), lambda m, t: m.full((1,), -2 ** 31 - 1),
    lambda m, t: m.full((1,), np.int64(2 ** 40)),
    lambda m, t: t([1]) + 2 ** 31, lambda m, t: 2 ** 31 - t([1]), lambda m, t: t([3]) * 2 ** 40,
    lambda m, t: t([5]) // 2 ** 31, lambda m, t: t([5]) % -2 ** 33, lambda m, t: t([-1]) & 0xFFFFFFFF,
    lambda m, t: t([5]).clamp(max=2 ** 31), lambda m, t: t([5]).clamp(min=2 ** 31, max=2 ** 33),
    lambda m, t: t([5]).div(2 ** 31, rounding_mode="trunc"), lambda m, t: t([-5]).fmod(2 ** 31),
    lambda m, t: m.where(t([True, False]), t([5, 6]), 2 ** 31), lambda m, t: m.where(t([False]), 1, -2 ** 40),
    lambda m, t: m.where(t([True]), 2 ** 40, t([1])), lambda m, t: m.maximum(t([5]), t(2 ** 31)),
    lambda m, t: m.searchsorted(t([1, 2, 3]), 2 ** 31), lambda m, t: m.randint(2 ** 33, 2 ** 33 + 1, (2,)),
    lambda m, t: t([1, 2 ** 40]), lambda m, t: t([[True, 2 ** 31]]), lambda m, t: m.isin(t([5, 0]), 2 ** 32 + 5),
    lambda m, t: t([7]).add(t([1]), alpha=2 ** 31), lambda m, t: m.addcmul(t([5]), t([2]), t([3]), value=2 ** 31),
])
def test_what_pytorchs_int64_holds(make: Callable[..., Any]) -> None:
    """int32, the usual type here, becomes int64 where PyTorch's usual int64 is needed."""
    import torch

    expected = make(torch, torch.tensor)
    with config(device="CPU"):
        got = make(minigrad, Tensor)
        assert got.tolist() == expected.tolist()


@pytest.mark.parametrize("change", [
    lambda x: x.add_(2 ** 31), lambda x: operator.imul(x, -2 ** 40), lambda x: x.clamp_(min=2 ** 31),
    lambda x: x.masked_fill_(x > 0, 2 ** 31), lambda x: x.fill_(2 ** 31), lambda x: x.random_(0, 2 ** 32),
    lambda x: x.index_fill_(0, Tensor([0]), 2 ** 31)])
def test_a_tensor_does_not_widen_in_place(change: Callable[[Tensor], Any]) -> None:
    x = Tensor([5, 6])
    with pytest.raises(DTypeError, match="expected a number"):
        change(x)
    assert x.tolist() == [5, 6]


def test_large_integers_beside_others_lose_no_digit() -> None:
    """numpy takes lists of integers of which one is 2**63 or more, or a float, for floats."""
    large = 2 ** 63 + 1
    for device in ("NUMPY", "CPU"):
        with config(device=device):
            assert Tensor([large, 3]).tolist() == [large, 3] and Tensor([large, 3]).dtype.name == "uint64"
            assert Tensor([[large], [True]], dtype="uint64").tolist() == [[large], [1]]
            assert Tensor([large, -1], dtype="uint64").tolist() == [large, 2 ** 64 - 1]
            assert Tensor([2 ** 53 + 1, 0.5], dtype="int64").tolist() == [2 ** 53 + 1, 0]
            assert Tensor([2 ** 70, 0.5]).tolist() == [float(2 ** 70), 0.5]
            assert Tensor([2 ** 70], dtype="float64").tolist() == [float(2 ** 70)]
            x = Tensor([large, 3, 2 ** 64 - 1])
            assert [x.max().item(), x.min().item(), x.argmax().item()] == [2 ** 64 - 1, 3, 2]
            assert (x // 3).tolist() == [large // 3, 1, (2 ** 64 - 1) // 3]
            assert (x % large).tolist() == [0, 3, 2 ** 63 - 2]
            assert (x + 2 ** 63).tolist() == [1, 2 ** 63 + 3, 2 ** 63 - 1]
            assert x.sort()[0].tolist() == [3, large, 2 ** 64 - 1] and x.clip(5, large).tolist() == [large, 5, large]
            assert x.eq(large).tolist() == [True, False, False]
            assert Tensor.full((2,), large).tolist() == [large, large]
    for values in ([2 ** 64, 1], [2 ** 63, -1]):
        with pytest.raises(DTypeError):
            Tensor(values)


def test_positions_that_int32_does_not_hold() -> None:
    """Ranges, positions and places in more than 2**31 elements, of which few are computed."""
    n = 2 ** 31 + 5
    with config(device="CPU"):
        line = Tensor.arange(n)
        assert line.dtype.name == "int64" and line[-2:].tolist() == [n - 2, n - 1]
        assert line[Tensor([-2, 3])].tolist() == [n - 2, 3] and line.take(Tensor([n - 1])).tolist() == [n - 1]
        assert Tensor.eye(2, n)[1, :3].tolist() == [0, 1, 0]
        plane = Tensor.arange(70000).reshape(1, 70000).expand(70000, 70000)
        assert plane[Tensor([69999, 3]), Tensor([69999, 7])].tolist() == [69999, 7]
        assert Tensor.ones(1, dtype="bool").expand(2 ** 32).any().item()
        for f in (Tensor.argmax, Tensor.argmin, lambda x: x.max(dim=0)[1], lambda x: x.min(dim=0).indices):
            assert f(Tensor.zeros(1).expand(n)).dtype.name == "int64" and f(Tensor.zeros(4)).dtype is int32
