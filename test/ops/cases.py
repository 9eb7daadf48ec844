"""One table of operations, usable for every device: what to run, on which inputs, and its numpy twin.

check_forward(case, result)          a result on a device against the NUMPY device, and against the twin
check_gradient(case)                 against finite differences in float64 along random directions, second order too
check_device_gradient(case, grads)   gradients on a device against those on NUMPY
"""

from __future__ import annotations

import numpy as np

from minigrad import Tensor
from minigrad.ops import toposort
from minigrad.ops.composite import expanded
from minigrad.ops.node import Node
from ops.case import Case
from ops.elementwise import cast_cases, elementwise_cases
from ops.movement import indexed_cases, movement_cases, ordered_cases, reduces_cases
from ops.networks import convolutions_cases, empty_cases, linear_cases, networks_cases

TOLERANCE = {"float64": 1e-10, "float32": 2e-5, "float16": 4e-3, "bfloat16": 2e-2}
"""Relative to the largest magnitude of the result; rounding of different orders of summation."""

CASES: list[Case] = [
    *elementwise_cases(),
    *cast_cases(),
    *reduces_cases(),
    *movement_cases(),
    *indexed_cases(),
    *ordered_cases(),
    *linear_cases(),
    *convolutions_cases(),
    *networks_cases(),
    *empty_cases(),
]


def inputs_of(case: Case, seed: int = 0, wide: bool = False) -> list[np.ndarray]:
    rng = np.random.default_rng([seed, *case.name.encode()])
    return [i.make(rng, wide) for i in case.inputs]


def tensors_of(case: Case, arrays: list[np.ndarray], device: str, wide: bool = False) -> list[Tensor]:
    kinds = [None if wide and "float" in i.dtype else i.dtype for i in case.inputs]
    return [Tensor(a, dtype=k, device=device) for a, k in zip(arrays, kinds, strict=True)]


def ops_of(case: Case) -> set[str]:
    """Names of the operations in the case's graph, and in what its composites are made of."""
    result = case.run(*tensors_of(case, inputs_of(case), "NUMPY"))
    names = {n.op.name for n in toposort(result.node, through_storage=True)}

    def noted(node: Node) -> bool:
        """Composites inside Blocks too, none of which is kept as it is."""
        names.add(node.op.name)
        return False

    made = expanded([result.node], keep=noted)
    return names | {n.op.name for n in made.values()}


def close(got: np.ndarray, want: np.ndarray, kind: str, factor: float = 1.0, what: str = "") -> None:
    """Equal integers; floats with equal NaNs and infinities, near relative to each element and to the largest."""
    assert got.shape == want.shape, f"{what}: expected shape {want.shape}, got {got.shape}"
    if "float" not in kind:
        np.testing.assert_array_equal(got, want, err_msg=what)
        return
    x, y = got.astype(np.float64), want.astype(np.float64)
    np.testing.assert_array_equal(np.isnan(x), np.isnan(y), err_msg=what)
    finite = np.isfinite(y)
    np.testing.assert_array_equal(x[~finite & ~np.isnan(y)], y[~finite & ~np.isnan(y)], err_msg=what)
    tolerance = TOLERANCE[kind] * factor
    scale = max(1.0, float(np.abs(y[finite]).max(initial=0.0))) if finite.all() else 1.0
    np.testing.assert_allclose(x[finite], y[finite], rtol=tolerance, atol=tolerance * min(scale, 1e4), err_msg=what)


def check_forward(case: Case, result: Tensor) -> None:
    """The result on a device against NUMPY's, and NUMPY's against the twin."""
    arrays = inputs_of(case)
    expected = case.run(*tensors_of(case, arrays, "NUMPY"))
    want, kind = expected.numpy(), expected.dtype.name
    if case.twin is not None:
        with np.errstate(all="ignore"):
            twin = np.asarray(case.twin(*arrays))
        close(want, twin.astype(want.dtype), kind, case.tolerance, f"{case.name} against its twin")
    assert result.dtype.name == kind
    close(result.numpy(), want, kind, case.tolerance, f"{case.name} on {result.device}")


def float_inputs(case: Case) -> list[int]:
    return [k for k, i in enumerate(case.inputs) if "float" in i.dtype]


def gradients(case: Case, tensors: list[Tensor], targets: list[Tensor]) -> list[Tensor]:
    """Gradients of a fixed weighted sum of the result, by the elements of `targets`."""
    y = case.run(*tensors)
    weight = np.asarray(np.random.default_rng(7).standard_normal(y.shape))
    return _weighted(y, weight, targets)


def _weighted(y: Tensor, weight: np.ndarray, targets: list[Tensor]) -> list[Tensor]:
    total = (y * Tensor(weight, dtype=y.dtype, device=y.device)).sum()
    return total.gradient(*targets, materialize_grads=True)


def check_gradient(case: Case, second: bool = False) -> None:
    """Central differences of sum(weight * f) along a random direction in float64; of its gradient if `second`."""
    rng = np.random.default_rng(7)
    arrays = inputs_of(case, wide=True)
    floats = [k for k, i in enumerate(case.inputs) if "float" in i.dtype]
    directions = {k: np.asarray(rng.standard_normal(arrays[k].shape)) for k in floats}
    weight = np.asarray(rng.standard_normal(case.run(*tensors_of(case, arrays, "NUMPY", wide=True)).shape))
    step = 1e-5

    def value(shift: float) -> tuple[float, list[np.ndarray]]:
        moved = [a + shift * directions[k] if k in directions else a for k, a in enumerate(arrays)]
        tensors = tensors_of(case, moved, "NUMPY", wide=True)
        if not second:
            y = float((case.run(*tensors).numpy().astype(np.float64) * weight).sum())
            return y, [g.numpy() for g in _weighted(case.run(*tensors), weight, [tensors[k] for k in floats])]
        targets = [tensors[k] for k in floats]
        total = None
        for k, g in zip(floats, _weighted(case.run(*tensors), weight, targets), strict=True):
            term = (g * Tensor(np.cos(np.arange(arrays[k].size)).reshape(arrays[k].shape), device="NUMPY")).sum()
            total = term if total is None else total + term
        assert total is not None
        grads = [g.numpy() for g in total.gradient(*targets, materialize_grads=True)]
        return float(total.item()), grads

    slope = (value(step)[0] - value(-step)[0]) / (2 * step)
    along = sum(float((g * directions[k]).sum()) for k, g in zip(floats, value(0.0)[1], strict=True))
    assert abs(slope - along) <= 1e-5 * max(1.0, abs(slope), abs(along)), (
        f"{case.name}: slope {slope}, gradient {along}"
    )


def check_device_gradient(case: Case, results: list[Tensor]) -> None:
    """Gradients on a device against those on NUMPY."""
    tensors = tensors_of(case, inputs_of(case), "NUMPY")
    expected = gradients(case, tensors, [tensors[k] for k in float_inputs(case)])
    for want, got in zip(expected, results, strict=True):
        close(got.numpy(), want.numpy(), "float32", 4 * case.tolerance, f"gradient of {case.name} on {got.device}")
