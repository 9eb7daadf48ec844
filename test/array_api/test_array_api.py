"""minigrad.array_api beside array_api_strict: a part of the cases, which `python test/array_api` runs all of."""
from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest

import minigrad.array_api as xp
from minigrad import Tensor, errors

strict = pytest.importorskip("array_api_strict", reason="array-api-strict, of the extra test, is the oracle")
from array_api.cases import Case, cases  # noqa: E402
from array_api.compared import EXCEPTIONS, difference  # noqa: E402

pytestmark = pytest.mark.usefixtures("on_numpy")


def some() -> list[Case]:
    """Two cases of each name, and each 60th."""
    by_name: dict[str, list[Case]] = {}
    for case in cases():
        by_name.setdefault(case.name, []).append(case)
    return [case for found in by_name.values() for k, case in enumerate(found) if k % 60 == 0 or k == len(found) - 1]


def test_a_part_of_the_cases() -> None:
    strict.set_array_api_strict_flags(api_version="2024.12")
    found = {str(case): difference(case) for case in some()}
    wrong = {name: words for name, words in found.items() if words and name not in EXCEPTIONS}
    assert len(found) > 300 and not wrong, wrong


def test_exceptions_are_cases_and_differ() -> None:
    by_text = {str(case): case for case in cases()}
    assert EXCEPTIONS.keys() <= by_text.keys()
    assert [name for name in EXCEPTIONS if difference(by_text[name]) is None] == []


@pytest.mark.parametrize("part", ["", "linalg", "fft"])
def test_signatures(part: str) -> None:
    mine, theirs = (getattr(m, part) if part else m for m in (xp, strict))
    later, own = {"isin"}, {"__array_api_version__", "Device", "ArrayAPIStrictFlags"}
    names = [n for n in theirs.__all__ if "flags" not in n and n not in later | own and not n.startswith("__version")]
    assert set(names) <= set(mine.__all__)
    for name in names:
        if inspect.isfunction(getattr(theirs, name)):
            found, expected = ([(p.name, p.kind) for p in inspect.signature(getattr(m, name)).parameters.values()]
                               for m in (mine, theirs))
            assert found == expected, name


def test_namespace() -> None:
    x = xp.asarray([1.0, 2.0])
    assert x.__array_namespace__() is xp and x.__array_namespace__(api_version="2024.12") is xp
    assert xp.__array_api_version__ == "2024.12" and (xp.pi, xp.e, xp.newaxis) == (np.pi, np.e, None)
    with pytest.raises(ValueError, match=r"2024\.12"):
        x.__array_namespace__(api_version="2031.12")
    info = xp.__array_namespace_info__()
    assert info.capabilities()["boolean indexing"] and info.default_device() == "NUMPY" and "CPU" in info.devices()
    defaults = info.default_dtypes()
    assert defaults["integral"] is xp.asarray([1]).dtype and defaults["real floating"] is x.dtype
    assert list(info.dtypes(kind="complex floating")) == ["complex64", "complex128"] and len(info.dtypes()) == 13
    assert set(info.dtypes(kind=("bool", "unsigned integer"))) == {"bool", "uint8", "uint16", "uint32", "uint64"}


def test_types() -> None:
    names = [*xp.__array_namespace_info__().dtypes()]
    for a in names:
        for b in names:
            try:
                expected = str(strict.result_type(getattr(strict, a), getattr(strict, b))).rpartition(".")[2]
            except TypeError:
                with pytest.raises(errors.DTypeError):
                    xp.result_type(getattr(xp, a), getattr(xp, b))
            else:
                assert xp.result_type(getattr(xp, a), getattr(xp, b)).name == expected, (a, b)
        for kind in ("bool", "signed integer", "unsigned integer", "integral", "real floating", "complex floating",
                     "numeric"):
            assert xp.isdtype(getattr(xp, a), kind) == strict.isdtype(getattr(strict, a), kind)
        if a in ("float32", "float64", "complex64", "complex128"):
            mine, theirs = xp.finfo(getattr(xp, a)), strict.finfo(getattr(strict, a))
            assert [getattr(mine, f) for f in ("eps", "max", "min", "smallest_normal")] == [
                getattr(theirs, f) for f in ("eps", "max", "min", "smallest_normal")]
        elif a != "bool":
            limits = xp.iinfo(getattr(xp, a)), strict.iinfo(getattr(strict, a))
            assert (limits[0].bits, limits[0].max, limits[0].min) == (limits[1].bits, limits[1].max, limits[1].min)
    assert xp.can_cast(xp.int8, xp.int16) and not xp.can_cast(xp.int16, xp.int8)
    assert not xp.can_cast(xp.int8, xp.float32)
    assert xp.result_type(xp.float32, 1j) is xp.complex64 and xp.result_type(xp.int8, 3, xp.int16) is xp.int16
    with pytest.raises(ValueError, match="isdtype"):
        xp.isdtype(xp.int8, "number")


@pytest.mark.parametrize("call", [
    lambda x, i, b: x + i, lambda x, i, b: i + 1.5, lambda x, i, b: x + True, lambda x, i, b: x & x, lambda x, i, b: ~x,
    lambda x, i, b: b + b, lambda x, i, b: -b, lambda x, i, b: i / i, lambda x, i, b: xp.sin(i), lambda x, i, b: i @ x,
    lambda x, i, b: xp.logical_and(i, i), lambda x, i, b: xp.mean(i), lambda x, i, b: xp.sum(b), lambda x, i, b: x < 1j,
    lambda x, i, b: xp.astype(xp.asarray([1j]), xp.float32), lambda x, i, b: float(x), lambda x, i, b: x.__index__(),
    lambda x, i, b: xp.where(i, x, x), lambda x, i, b: xp.sort(xp.asarray([1j])),
    lambda x, i, b: xp.sin([1.0]),
    lambda x, i, b: xp.add(1, 2), lambda x, i, b: xp.asarray("text"), lambda x, i, b: i.__iadd__(x),
    lambda x, i, b: xp.concat([x, i]), lambda x, i, b: xp.zeros(2, dtype="float32"),
    lambda x, i, b: x.__setitem__(0, 1j),
    lambda x, i, b: x[0.5]])
def test_wrong_types_are_refused(call: Any) -> None:
    with pytest.raises(TypeError):
        call(xp.asarray([1.0, 2.0]), xp.asarray([1, 2]), xp.asarray([True, False]))


@pytest.mark.parametrize("call", [
    lambda x: x[0, 0, 0], lambda x: x[5, 0], lambda x: x[0], lambda x: x + xp.ones(7),
    lambda x: xp.reshape(x, (5,)), lambda x: xp.reshape(x, (6,), copy=False), lambda x: xp.squeeze(x, 0),
    lambda x: x.mT @ x.mT,
    lambda x: xp.sum(x, axis=2), lambda x: xp.permute_dims(x, (0, 0)), lambda x: xp.take(x, xp.asarray([0])),
    lambda x: xp.cumulative_sum(x), lambda x: xp.nonzero(xp.asarray(1)), lambda x: xp.linalg.inv(x),
    lambda x: xp.ones(-1),
    lambda x: xp.asarray([1.0], copy=False), lambda x: xp.asarray(x, dtype=xp.float64, copy=False), lambda x: x[0, :].T,
    lambda x: xp.fft.fft(x, n=0), lambda x: xp.fft.fft(x, norm="other"), lambda x: xp.broadcast_to(x, (3, 2)),
    lambda x: xp.meshgrid(x[0, :], indexing="yx"), lambda x: xp.stack([x, x.mT]), lambda x: xp.expand_dims(x, 4),
    lambda x: xp.searchsorted(x[0, :], x, side="middle"), lambda x: x.to_device("CPU", stream=1)])
def test_wrong_shapes_and_arguments_are_refused(call: Any) -> None:
    with pytest.raises((ValueError, IndexError)):
        call(xp.ones((2, 3)))


def test_arrays_change_alone() -> None:
    x = xp.asarray([1.0, 2.0, 3.0])
    same, copied, alias = +x, xp.asarray(x, copy=True), xp.asarray(x)
    x[1] = 9
    x += 1
    assert alias is x and x.numpy().tolist() == [2, 10, 4]
    assert same.numpy().tolist() == copied.numpy().tolist() == [1, 2, 3]
    z = xp.asarray([1j, 2.0])
    z[0] = 5
    z *= 2j
    assert z.numpy().tolist() == [10j, 4j] and complex(z[1]) == 4j and bool(z[0])
    with pytest.raises(errors.DTypeError, match="in place"):
        x[:1].__iadd__(x)


def test_memory_is_shared() -> None:
    array = np.arange(6.0, dtype=np.float32).reshape(2, 3)
    x = xp.from_dlpack(array)
    assert np.shares_memory(np.from_dlpack(x), array) and np.shares_memory(np.asarray(x), array)
    assert np.shares_memory(np.asarray(xp.asarray(array, copy=False)), array)
    assert not np.shares_memory(np.asarray(xp.asarray(array)), array) and x.__dlpack_device__() == (1, 0)
    z = xp.from_dlpack(np.asarray([1 + 2j]))
    assert z.dtype is xp.complex128 and np.from_dlpack(z).tolist() == [1 + 2j] and np.asarray(z).dtype == np.complex128
    with pytest.raises(errors.DTypeError):
        xp.from_dlpack(np.asarray([1j]), copy=False)
    with pytest.raises(BufferError, match="complex"):
        z.__dlpack__(copy=False)
    assert xp.asarray(Tensor([1, 2])).dtype is xp.int32 and x.to_device("CPU").device == "CPU"


def test_gradients_go_through() -> None:
    w = Tensor([1.0, -2.0, 0.5], requires_grad=True)
    xp.sum(xp.abs(xp.fft.fft(xp.Array(w))) ** 2).re.backward()
    assert w.grad is not None
    np.testing.assert_allclose(w.grad.numpy(), 6 * w.numpy(), rtol=1e-5)


def test_descending_order_is_stable() -> None:
    x = xp.asarray([2, 1, 2, 3, 1])
    assert xp.argsort(x, descending=True).numpy().tolist() == [3, 0, 2, 1, 4]
    assert xp.argsort(x).numpy().tolist() == [1, 4, 0, 2, 3] and "dtype=int64" in repr(x)
