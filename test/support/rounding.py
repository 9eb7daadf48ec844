"""Random programs under rounding: how far their results are determined by the types that they are computed in.

The sine of 1e12 in float32, the sign of a difference of nearly equal numbers: two right evaluations may give anything.
A tolerance that covers this would hide mistakes everywhere else. So an element that is off is compared with what the
reference itself gives when every operation that rounds has a random error of the size of a rounding (Monte Carlo
arithmetic). Results that are exact get no error: comparisons of equal numbers, ties and bounds stay what they are.
"""
from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np

from minigrad.dtype import bfloat16, float16, float32, float64
from minigrad.engine import reference
from minigrad.ops.convert import convert
from minigrad.ops.node import Node

try:
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_map
except ImportError:
    torch, TorchDispatchMode = None, object

RUNS = 256
"""At most: what another rounding makes of one evaluation in fifty is then missed once in 170 times."""
WIDER = 4
"""By how much another evaluation may lie outside what these runs show."""
UNIT = {float16: 2.0 ** -10, bfloat16: 2.0 ** -7, float32: 2.0 ** -23, float64: 2.0 ** -52}
ADDING = ("sum", "unwindow", "scatter")
ROUNDING = (*ADDING, "add", "sub", "mul", "div", "mod", "pow", "sqrt", "exp", "log", "sin", "cos", "tanh", "sigmoid",
            "erf", "prod")
ADDING_IN_TORCH = ("sum", "mean", "mm", "mv", "dot", "bmm", "addmm", "cumsum", "index_add_", "scatter_add_",
                   "index_add", "scatter_add", "_index_put_impl_")
EITHER_ZERO = ("sum", "unwindow", "maximum", "minimum", "max", "min")
EITHER_ZERO_IN_TORCH = (*ADDING_IN_TORCH, "relu", "maximum", "minimum", "max", "min", "amax", "amin")
"""Operations whose zeros are -0.0 or 0.0 as the operands come; those of PyTorch, as the number of operands decides."""


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
        spread = np.maximum(spread, _distance(other, want))
        if alike:
            off &= _distance(got, want) / WIDER > spread
            if not off.any():
                return
    assert alike, f"{name}: shape {got.shape}, expected {want.shape}"
    found = np.where(off, got, want)
    if floats:
        np.testing.assert_allclose(found, want, rtol=limit, atol=allowed, err_msg=name)
    else:
        np.testing.assert_array_equal(found, want, err_msg=name)


def _distance(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """|x - y|, 0 for the same infinities and NaN, infinity for others."""
    x, y = x.astype(np.float64), y.astype(np.float64)
    same = (x == y) | np.isnan(x) & np.isnan(y)
    with np.errstate(all="ignore"):
        return np.where(same, 0, np.nan_to_num(np.abs(x - y), nan=np.inf))


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


# ---- the NUMPY device ----


@contextmanager
def numpy_errors(seed: int) -> Iterator[None]:
    """NUMPY evaluates with an error of up to one unit of rounding wherever a result is not exact."""
    rng = np.random.default_rng(seed)
    evaluate: Callable[..., np.ndarray] = reference._evaluate

    def disturbed(node: Node, operands: list[Any], rounds: bool) -> np.ndarray:
        y = evaluate(node, operands, rounds)
        if not node.dtype.is_float or not operands:
            return y
        adds = node.op.name in ADDING
        if node.op.name == "attention":  # its scores are rounded too, which its result does not show
            unit = UNIT[node.dtype.compute]
            return evaluate(node, _each(lambda a: a * (1 + unit * rng.uniform(-1, 1, a.shape)), operands), rounds)
        parts = evaluate(node, _each(np.abs, operands), rounds) if adds else None
        if node.dtype is float64:
            exact = np.full(y.shape, node.op.name not in ROUNDING)
        elif node.op.name == "cast":
            exact = operands[0].astype(np.float64) == y
        else:
            wide: Any = SimpleNamespace(op=node.op, shape=node.shape, dtype=float64, params=node.params)
            exact = evaluate(wide, _each(_to_float64, operands), rounds) == y
            if adds:  # else a sum may be exact and its parts not
                exact &= evaluate(wide, _each(lambda a: np.abs(_to_float64(a)), operands), rounds) == parts
        if node.op.name in EITHER_ZERO:
            y = _any_zero(y, rng)
        dtype = node.dtype if rounds or node.dtype is not bfloat16 else float32  # inside a composite
        return convert(_moved(y, parts, exact, UNIT[dtype], rng), dtype)

    with mock.patch.object(reference, "_evaluate", disturbed):
        yield


def _each(change: Callable[[np.ndarray], np.ndarray], operands: Any) -> list[Any]:
    """`change` of every operand that is of floats; the factors of a sum of products are a tuple of two."""
    return [tuple(_each(change, a)) if isinstance(a, tuple) else change(a) if a.dtype.kind == "f" else a
            for a in operands]


def _to_float64(a: np.ndarray) -> np.ndarray:
    return a.astype(np.float64)


def _moved(y: np.ndarray, parts: np.ndarray | None, exact: np.ndarray, unit: float,
           rng: np.random.Generator) -> np.ndarray:
    """y with errors of up to one `unit` of its own size. A sum, of `parts` without their signs, has also errors of what
    it was added up in, float32 at least, and is a multiple of the spacing of these, which depends on the order: parts
    that nearly cancel may cancel."""
    moved = y * (1 + unit * rng.uniform(-1, 1, y.shape))
    if parts is not None:
        size = np.abs(np.where(np.isfinite(parts), parts, y)).astype(np.float64) * min(unit, UNIT[float32])
        spacing = size * 2.0 ** -np.maximum(rng.integers(-6, 9, y.shape), 0)
        moved = moved + size * rng.uniform(-1, 1, y.shape)
        moved = np.rint(np.divide(moved, spacing, out=np.zeros(y.shape), where=spacing > 0)) * spacing
    return np.where(exact | ~np.isfinite(y), y, moved).astype(y.dtype)


def _any_zero(y: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return np.where(y == 0, np.where(rng.random(y.shape) < 0.5, -0.0, 0.0), y).astype(y.dtype)


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
            found = _any_zero(found, self.rng)
        if name in EITHER_ZERO_IN_TORCH or not exact.all():
            parts = small.detach().numpy() if adds else None
            y.copy_(torch.from_numpy(_moved(found, parts, exact.numpy(), UNIT[float32], self.rng)))
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
