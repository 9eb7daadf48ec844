"""Cases computed a group at a time: a driver compiles the kernels of one realize in one build.

forward_on(case, device)      the result of a case, computed with those of its neighbours in the table
gradients_on(case, device)    likewise its gradients
"""
from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import cache

import pytest

from minigrad import Tensor, dtypes
from minigrad.ops.composite import expanded
from minigrad.runtime.registry import get_device
from ops.case import Case
from ops.cases import CASES, float_inputs, gradients, inputs_of, tensors_of

GROUP = 32
_POSITION = {case.name: k for k, case in enumerate(CASES)}


def forward_on(case: Case, device: str) -> Tensor:
    """The case's result on a device; skips where the device lacks one of its types."""
    return _group(_result, _POSITION[case.name] // GROUP, device)[case.name][0]


def gradients_on(case: Case, device: str) -> list[Tensor]:
    """Gradients of the case's float inputs; skips where the device lacks one of its types."""
    return _group(_gradients, _POSITION[case.name] // GROUP, device)[case.name]


def _result(case: Case, device: str) -> list[Tensor]:
    return [case.run(*tensors_of(case, inputs_of(case), device))]


def _gradients(case: Case, device: str) -> list[Tensor]:
    if not case.grad or not float_inputs(case):
        return []
    tensors = tensors_of(case, inputs_of(case), device)
    return gradients(case, tensors, [tensors[k] for k in float_inputs(case)])


class _Results(dict[str, list[Tensor]]):
    """Results by the case's name. One that needs a type which the device lacks skips the test that asks for it."""

    def __getitem__(self, name: str) -> list[Tensor]:
        if name not in self:
            pytest.skip("the device has no float64")
        return super().__getitem__(name)


@cache
def _group(run: Callable[[Case, str], list[Tensor]], group: int, device: str) -> _Results:
    doubles = "fp64" in get_device(device).target.features
    found = _Results()
    for case in CASES[group * GROUP:(group + 1) * GROUP]:
        results = run(case, device)
        if doubles or not any(_has_doubles(r) for r in results):
            found[case.name] = results
    everything = [r for results in found.values() for r in results]
    with suppress(Exception):
        everything[0].realize(*everything[1:])
    return found


def _has_doubles(result: Tensor) -> bool:
    return any(n.dtype is dtypes.float64 for n in expanded([result.node]))


