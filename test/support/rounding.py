"""Random programs under rounding, compared with evaluations of NUMPY or of PyTorch that have its errors.

The idea, and NUMPY's errors, are in `minigrad/report/reduced/rounding.py`.
"""
from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from minigrad.dtype import float32
from minigrad.report.reduced.rounding import UNIT, WIDER, any_zero, distance, moved

try:
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_map
except ImportError:
    torch, TorchDispatchMode = None, object

RUNS = 256
"""At most: what another rounding makes of one evaluation in fifty is then missed once in 170 times."""
ADDING_IN_TORCH = ("sum", "mean", "mm", "mv", "dot", "bmm", "addmm", "cumsum", "index_add_", "scatter_add_",
                   "index_add", "scatter_add", "_index_put_impl_")
EITHER_ZERO_IN_TORCH = (*ADDING_IN_TORCH, "relu", "maximum", "minimum", "max", "min", "amax", "amin")
"""Those of PyTorch whose zeros are -0.0 or 0.0 as the number of operands decides."""


def assert_close(got: np.ndarray, want: np.ndarray, limit: float, allowed: float, name: str,
                 others: Callable[[], Iterable[np.ndarray]]) -> None:
    """Fails unless floats are within `limit` of `want` times their size and `allowed`, other numbers are equal, or
    `others`, which are evaluations of the same with errors of rounding, are as far from `want` at that element."""
    alike, floats = got.shape == want.shape, want.dtype.kind == "f"
    off = np.ones(want.shape, bool)
    if alike:
        off = ~np.isclose(got, want, limit, allowed, equal_nan=True) if floats else got != want
        if not off.any():
            return
    spread = np.zeros(want.shape)
    for other in others():
        if other.shape != want.shape:  # how many elements there are is decided by rounding
            return
        spread = np.maximum(spread, distance(other, want))
        if alike:
            off &= distance(got, want) / WIDER > spread
            if not off.any():
                return
    assert alike, f"{name}: shape {got.shape}, expected {want.shape}"
    found = np.where(off, got, want)
    if floats:
        np.testing.assert_allclose(found, want, rtol=limit, atol=allowed, err_msg=name)
    else:
        np.testing.assert_array_equal(found, want, err_msg=name)


def rounded_runs(evaluate: Callable[[], list[np.ndarray]],
                 errors: Callable[[int], Any]) -> Callable[[int], Iterator[np.ndarray]]:
    """`rounded_runs(f, errors)(k)`: the k-th results of f evaluated under `errors(seed)` of each seed. Nothing is
    evaluated before it is asked for: hardly any program needs it, and most of those need it once."""
    found: list[list[np.ndarray]] = []

    def results(k: int) -> Iterator[np.ndarray]:
        for seed in range(RUNS):
            if seed == len(found):
                with errors(seed), np.errstate(all="ignore"):
                    found.append(evaluate())
            yield found[seed][k]

    return results


# ---- PyTorch ----


class TorchErrors(TorchDispatchMode):
    """The same in PyTorch for results in float32, of gradients too."""

    def __init__(self, seed: int):
        super().__init__()
        self.rng = np.random.default_rng(seed)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = args, kwargs or {}
        copies = [tree_map(change, given) for change in (_wide, _absolute, lambda a: _absolute(_wide(a)))]
        y = func(*args, **given[1])
        if not isinstance(y, torch.Tensor) or y.dtype is not torch.float32 or not y.numel():
            return y
        with _default_float64():
            better, small, large = [func(*args, **kwargs) for args, kwargs in copies]
        name, exact, found = func.overloadpacket.__name__, better == y, y.detach().numpy()
        adds = name in ADDING_IN_TORCH
        if adds:
            exact &= small == large
        if name in EITHER_ZERO_IN_TORCH:
            found = any_zero(found, self.rng)
        if name in EITHER_ZERO_IN_TORCH or not exact.all():
            parts = small.detach().numpy() if adds else None
            y.copy_(torch.from_numpy(moved(found, parts, exact.numpy(), UNIT[float32], self.rng)))
        return y


@contextmanager
def _default_float64() -> Iterator[None]:
    """float64 is what integers are divided in, and what else has no type of its own."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _wide(a: Any) -> Any:
    """A copy of an operand, and a type, with float64 for float32."""
    if isinstance(a, torch.Tensor):
        return a.double() if a.dtype is torch.float32 else a.clone()
    return torch.float64 if a is torch.float32 else a


def _absolute(a: Any) -> Any:
    """A copy of an operand, without signs if it is of floats."""
    if isinstance(a, torch.Tensor):
        return a.abs() if a.is_floating_point() else a.clone()
    return a
