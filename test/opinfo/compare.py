"""The comparison of minigrad's results with PyTorch's: shape, type, and values within PyTorch's own tolerances."""
from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch.testing._internal.common_device_type import toleranceOverride

from minigrad import Tensor

from .convert import to_torch
from .counterparts import BESIDE_VALUES

_RELATIVE = {torch.float16: 1e-3, torch.bfloat16: 1.6e-2, torch.float32: 1.3e-6, torch.float64: 1e-7}
_ABSOLUTE = {torch.float64: 1e-7}
_SUITES = ("TestCommon", "TestUnaryUfuncs", "TestBinaryUfuncs", "TestReductions", None)


def tolerances(entry: Any, dtype: torch.dtype) -> tuple[float, float]:
    """(relative, absolute): those of `torch.testing.assert_close`, or what the entry's own tests allow on a CPU."""
    return max([(_RELATIVE.get(dtype, 0.0), _ABSOLUTE.get(dtype, 1e-5)), *[
        (t.rtol, t.atol) for t in _allowed(entry, dtype)]], key=sum)


def _allowed(entry: Any, dtype: torch.dtype) -> list[Any]:
    found = []
    for decorated in entry.decorators or ():
        of_cpu = getattr(decorated, "device_type", None) in (None, "cpu")
        if of_cpu and getattr(decorated, "cls_name", None) in _SUITES:
            for d in getattr(decorated, "decorators", [decorated]):
                if isinstance(d, toleranceOverride) and dtype in d.d:
                    found.append(d.d[dtype])
    return found


def difference(got: Any, expected: Any, precise: Any, tolerance: tuple[float, float], narrow: bool,
               values: bool = True) -> str | None:
    """None where `got` is right, else what is wrong with it. An element is right that is close to PyTorch's, or to
    `precise`, PyTorch's in float64, if there is one. `narrow`: int32 stands for int64."""
    if not isinstance(expected, torch.Tensor):
        same = got == expected or (got != got and expected != expected)
        if isinstance(expected, float) and isinstance(got, float):
            same = same or abs(got - expected) <= tolerance[1] + tolerance[0] * abs(expected)
        return None if (same and type(got) is type(expected)) or tuple_of(got) == tuple_of(expected) else \
            f"expected {expected!r}, got {got!r}"
    if not isinstance(got, Tensor):
        return f"expected a tensor {list(expected.shape)}, got {got!r}"[:200]
    if tuple(got.shape) != tuple(expected.shape):
        return f"expected shape {list(expected.shape)}, got {list(got.shape)}"
    name = str(expected.dtype).removeprefix("torch.")
    if got.dtype.name != name and not (narrow and (got.dtype.name, name) in _NARROW):
        return f"expected {name}, got {got.dtype.name}"
    if not values:
        to_torch(got)
        return None
    return _values(to_torch(got), expected, precise, tolerance)


_NARROW = (("int32", "int64"), ("uint32", "int64"))


def tuple_of(value: Any) -> Any:
    return tuple(value) if isinstance(value, (list, tuple)) else object()


def _values(got: torch.Tensor, expected: torch.Tensor, precise: Any, tolerance: tuple[float, float]) -> str | None:
    if not expected.dtype.is_floating_point:
        wrong = got.to(expected.dtype) != expected
    else:
        wrong = ~_close(got, expected, tolerance)
        if isinstance(precise, torch.Tensor) and precise.shape == got.shape and precise.dtype.is_floating_point:
            wrong &= ~_close(got, precise, tolerance)
    count = int(wrong.sum())
    if not count:
        return None
    place = tuple(wrong.nonzero()[0].tolist())
    return (f"{count} of {wrong.numel()} values of {list(wrong.shape)} are wrong, at {list(place)} expected "
            f"{expected[place].item()!r}, got {got[place].item()!r}")


def _close(got: torch.Tensor, expected: torch.Tensor, tolerance: tuple[float, float]) -> torch.Tensor:
    return torch.isclose(got.double(), expected.double(), tolerance[0], tolerance[1], equal_nan=True)


@cache
def _seeded(shape: tuple[int, ...], seed: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).bfloat16()


def cotangent(t: torch.Tensor, seed: int) -> torch.Tensor:
    """Random numbers of a result's shape and type, the same each time and in every type: bfloat16 holds them."""
    return _seeded(tuple(t.shape), seed).to(t.dtype)


def other_equals(entry: Any, sample: Any, got: list[Any], expected: list[Any]) -> bool:
    """True where results, indices or values with indices, name other elements than PyTorch's, which are equal to
    them."""
    if entry.name not in BESIDE_VALUES or len(got) > 2 or len(got) != len(expected) or not sample.input.ndim:
        return False
    place = BESIDE_VALUES[entry.name]
    dim = sample.kwargs.get("dim", sample.args[place] if len(sample.args) > place else -1)
    mine, theirs = got[-1], expected[-1]
    if mine.dtype.name != "int32" or tuple(mine.shape) != theirs.shape or theirs.dtype is not torch.int64:
        return False
    kept = theirs.ndim == sample.input.ndim
    found = [sample.input.gather(dim, i if kept else i.unsqueeze(dim)) for i in (to_torch(mine).long(), theirs)]
    return not to_torch(mine).equal(theirs.int()) and found[0].equal(found[1])
