"""Every operation of the table: forward on every device, and that the table covers every primitive."""
import numpy as np
import pytest
from conftest import devices

from minigrad import Tensor
from minigrad.ops import OPS
from ops.batches import forward_on
from ops.cases import CASES, Case, check_forward, ops_of

COVERED_ELSEWHERE = {"copy", "scalar", "random_bits", "detach", "moved", "stepped", "attention_sums",
                     "inverse", "pivots", "cholesky", "qr_q", "qr_r", "eigen", "eliminated", "lu",
                     "pseudo_inverse", "placed", "passed", "det", "log_det", "adjugate"}
"""Tested in the files of tensors, random numbers, gradients, layers, optimizers, of the gradient of attention, and of
decompositions."""


@pytest.mark.parametrize("case", CASES, ids=str)
def test_reference_agrees_with_numpy(case: Case) -> None:
    check_forward(case, forward_on(case, "NUMPY"))


@pytest.mark.parametrize("device", [d for d in devices() if d != "NUMPY"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_device_agrees_with_reference(case: Case, device: str) -> None:
    check_forward(case, forward_on(case, device))


def test_table_covers_every_primitive() -> None:
    covered = set().union(*[ops_of(c) for c in CASES])
    gradients = {name for name in OPS if "_gradient" in name}  # composites that test_autodiff.py has, as all gradients
    assert set(OPS) - covered - COVERED_ELSEWHERE - gradients == set()


def test_names_are_unique() -> None:
    assert len({c.name for c in CASES}) == len(CASES)


def test_gather_clamps_out_of_range() -> None:
    x = Tensor([1.0, 2.0, 3.0], device="NUMPY")
    assert x.gather(0, Tensor([-5, 1, 99], device="NUMPY")).tolist() == [1.0, 2.0, 3.0]


def test_float_to_int_saturates() -> None:
    x = Tensor(np.array([np.nan, np.inf, -np.inf, 3.9, -3.9, 300.0], np.float32), device="NUMPY")
    assert x.cast("int8").tolist() == [0, 127, -128, 3, -3, 127]
    assert x.cast("uint8").tolist() == [0, 255, 0, 3, 0, 255]
    assert x.cast("int64").tolist() == [0, 2**63 - 1, -(2**63), 3, -3, 300]
