"""Plans for GPUs, executed: a table of kernels by groups, sub-groups and matrix units, against NUMPY, on the drivers of
this machine; and that what executes them would find faults of the plans' builder."""
import re
from collections.abc import Iterable, Sequence
from zlib import crc32

import numpy as np
import pytest
from conftest import drivers, each_driver
from support.gpu_device import NAME, AsGpu, as_gpu
from support.gpu_kernels import FAMILIES, Draw, Made, kernel
from support.planted import FAULTS, planted
from support.shuffled_units import FEATURES, shuffled

from minigrad import Tensor, config
from minigrad.codegen.policy import tiles
from minigrad.runtime.opencl_devices import find_device

NEAR = {"bfloat16": 4e-2, "float16": 6e-3, "": 2e-4}
"""How far from the greatest number of a result another one may be, by the narrowest type in a kernel's name."""

SHUFFLES = "cl_khr_subgroup_shuffle"
EVERY = {"products": 4, "attention": 5, "convolutions": 2, "windows": 2, "sums": 3, "norms": 2, "phases": 3}
"""Of families whose kernels take long to compile, every so many is run without --all; others whole."""

ELSEWHERE = 6
"""On drivers without sub-groups, so many times fewer of these are run."""

ALONE = "phases", "places"
"""Families whose kernels have work-items without groups."""


def tensors(made: Made) -> tuple[Tensor, ...]:
    return made if isinstance(made, tuple) else (made,)


def features(driver: str) -> frozenset[str]:
    return find_device(driver.partition(":")[2]).features


def mixed(names: Iterable[str]) -> list[str]:
    """Names in an order that has nothing to do with what they say, so that every n-th of them are of each kind."""
    return sorted(names, key=lambda name: crc32(name.encode()))


def compute(names: Sequence[str]) -> dict[str, list[np.ndarray]]:
    """The results of kernels on the device NAME, in one plan, whose programs are compiled together."""
    made = {name: tensors(kernel(name)(Draw(NAME, name))) for name in names}
    first, *others = (y for results in made.values() for y in results)
    first.realize(*others)
    return {name: [numbers(y) for y in results] for name, results in made.items()}


def numbers(y: Tensor) -> np.ndarray:
    return np.asarray((y.float() if y.dtype.is_float else y).numpy())


def wrong(name: str, found: list[np.ndarray]) -> float:
    """How many times further from NUMPY's than allowed the results of a kernel are, at most; 0 where they equal."""
    near = next(v for kind, v in NEAR.items() if kind in name)
    worst = 0.0
    for got, y in zip(found, tensors(kernel(name)(Draw("NUMPY", name))), strict=True):
        expected = numbers(y)
        assert (got.shape, got.dtype) == (expected.shape, expected.dtype)
        if not y.dtype.is_float:
            worst = max(worst, np.inf if (got != expected).any() else 0.0)
            continue
        apart = np.abs(got.astype(np.float64) - expected) / (near * max(np.abs(expected).max(), 1e-6))
        worst = max(worst, float(np.where(np.isnan(got) == np.isnan(expected), np.nan_to_num(apart), np.inf).max()))
    return worst


def check(names: Sequence[str]) -> None:
    found = compute(names)
    assert {name: far for name in names if (far := wrong(name, found[name])) > 1} == {}


def groups(device: AsGpu) -> int:
    """How many programs have plans with groups and items."""
    return len(device.with_groups())


@each_driver
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("driver", drivers())
def test_kernels_equal_numpy(driver: str, family: str, request: pytest.FixtureRequest) -> None:
    names = mixed(FAMILIES[family])
    if not request.config.getoption("--all"):
        names = names[::EVERY.get(family, 1)][::1 if "sub-groups" in features(driver) else ELSEWHERE]
    with as_gpu(driver) as device:
        check(names)
        print(f"{driver} {family}: {len(names)} kernels, {len(device.programs)} programs, {groups(device)} by groups")
    assert family in ALONE or 2 * groups(device) >= len(names)


# ---- sub-groups and matrix units ----

JOINED = ["sum of rows 3 1031", "mean 9 150", "max 5 77", "min 9 150", "variance 3 1031", "softmax 5 77",
          "softmin 9 150", "log softmax 3 1031", "layer norm 9 150", "normalised 5 77", "sum and max 9 150",
          "whole sum int8", "whole max int32", "whole dequantised int8", "place of the max 9 150",
          "matrix and vector float16", "matrix and vector bfloat16", "cross entropy forward float32",
          "batch norm gradient float32", "log sum gradient float16"]
WITH_SUB_GROUPS = [d for d in drivers() if "sub-groups" in features(d)]


@each_driver
@pytest.mark.parametrize("driver", WITH_SUB_GROUPS)
def test_sub_groups_join_sums(driver: str) -> None:
    """What would run in place of sub-groups that are not as planned gives nothing here."""
    names = [next(n for made in FAMILIES.values() for n in made if n.startswith(stem)) for stem in JOINED]
    with as_gpu(driver, lambda text: re.sub(r"\*sum = total;", "*sum = 77;", text)) as device, \
            config(sub_groups=True):
        check(names)
    joined = [p for p in device.programs if "sub_group_reduce" in p.source]
    print(f"{driver}: {len(joined)} programs by sub-groups")
    assert len(joined) >= len(JOINED)


IN_UNITS = ["product 33 65 47 float32 nt", "product 129 20 77 bfloat16 nn", "product 17 250 31 float16 tn",
            "convolution plain weights float16", "convolution of 1 forward float16", "batched bfloat16",
            "epilogue float16"]
IN_UNITS_ALL = 3
"""With --all, every so many products and convolutions."""

TINY_TILES = (32, 16, 2, 1), (16, 32, 1, 2)
WITH_UNITS = [d for d in WITH_SUB_GROUPS if SHUFFLES in find_device(d[3:]).handle.extensions]
"""Drivers that can stand in for matrix units."""


@each_driver
@pytest.mark.parametrize("small", [True, False], ids=["tiny tiles", "tiles of GPUs"])
@pytest.mark.parametrize("driver", WITH_UNITS)
def test_matrix_units_multiply(driver: str, small: bool, request: pytest.FixtureRequest,
                               monkeypatch: pytest.MonkeyPatch) -> None:
    """By a stand-in that exchanges fragments as the units do."""
    names = IN_UNITS if small else IN_UNITS[-1:]
    if small and request.config.getoption("--all"):
        names = [n for n in mixed([*FAMILIES["products"], *FAMILIES["convolutions"]])
                 if not any(word in n for word in ("int8", "vector", "outer"))][::IN_UNITS_ALL]
    if small:
        monkeypatch.setattr(tiles, "IN_UNITS", TINY_TILES)
    with as_gpu(driver, shuffled, features=features(driver) | FEATURES) as device, config(allow_tf32=True):
        found = compute(names)
    # Operands of float32 are rounded to 10 bits of mantissa.
    assert {name: far for name in names if (far := wrong(name, found[name])) > (1 if "float16" in name else 20)} == {}
    multiplied = [p for p in device.programs if "mma.sync" in p.source]
    print(f"{driver}: {len(names)} kernels, {len(multiplied)} programs of matrix units")
    assert multiplied and len(multiplied) >= len(names) // 2


# ---- faults ----


@each_driver
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("driver", WITH_SUB_GROUPS)
def test_a_planted_fault_is_found(driver: str, fault: str) -> None:
    name = FAULTS[fault].kernel
    with as_gpu(driver), planted(FAULTS[fault]) as where:
        found = compute([name])
    assert where and wrong(name, found[name]) > 1


WRONG_TEXTS = {
    "a fragment of a neighbour": ("product 129 20 77 bfloat16 nn", r"k = lane % 4 \* 2", "k = lane % 4"),
    "a row of another work-item": ("product 129 20 77 bfloat16 nn", r"g = lane / 4", "g = lane % 8"),
    "an element of another work-item": (
        "sum of rows 3 1031 float16", r"part\[get_sub_group_local_id\(\)\]", "part[get_sub_group_local_id() / 2]"),
}


@each_driver
@pytest.mark.parametrize("fault", WRONG_TEXTS)
@pytest.mark.parametrize("driver", WITH_UNITS)
def test_a_fault_in_the_text_of_a_unit_is_found(driver: str, fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiles, "IN_UNITS", TINY_TILES)
    name, found, instead = WRONG_TEXTS[fault]
    with as_gpu(driver, lambda text: shuffled(re.sub(found, instead, text)), features=features(driver) | FEATURES
                ) as device, config(sub_groups=True):
        results = compute([name])
    assert any(re.search(found, p.source) for p in device.programs) and wrong(name, results[name]) > 1
