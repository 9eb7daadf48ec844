"""Helpers of the whole suite: the data folder, the devices found here, and the environment that drivers read.

    from conftest import devices, needs_device

    @pytest.mark.parametrize("device", devices())     every device of this machine; drivers() are those of OpenCL
    @needs_device("CL:pocl")                          skipped, with the reason, where it is missing
    @one_in(5, CPU_DRIVERS)                           of a test's cases on such drivers every fifth, with --all each
"""
from __future__ import annotations

import gc
import os
import tempfile
from collections import Counter
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING
from zlib import crc32

# Read once, at the first use of OpenCL or of the settings: they must be there before any test is imported.
_pocl_cache = tempfile.TemporaryDirectory(prefix="minigrad-pocl-")
os.environ["POCL_CACHE_DIR"] = _pocl_cache.name
os.environ.setdefault("RUSTICL_ENABLE", "llvmpipe")
os.environ.setdefault("MINIGRAD_VERIFY", "1")
os.environ.setdefault("MINIGRAD_TUNED", "0")  # what somebody has searched here is no part of a test

import pytest  # noqa: E402
from support.paths import ROOT  # noqa: E402

from minigrad.codegen.machines import measured  # noqa: E402
from minigrad.config import config, current  # noqa: E402
from minigrad.runtime.opencl_quirks import INTERPRETER, SOFTWARE, short_name  # noqa: E402

if TYPE_CHECKING:
    from minigrad.runtime.opencl_devices import DeviceInfo

measured.NAME = "machines of tests"  # plans are those of the records of the package, whatever was measured here

CPU_DRIVERS = "CL:<cpu>"
"""Stands in the names of cases for the OpenCL drivers that compile for a processor."""


@cache
def devices() -> tuple[str, ...]:
    """Names of the minigrad devices of this machine, fewer where MINIGRAD_TEST_DEVICES says so: CPU, NUMPY, and one for
    each OpenCL platform that runs kernels, as CL:pocl, CL:rusticl, CL:intel."""
    found = ["CPU", "NUMPY", *_opencl()]
    wanted = current().test_devices
    return tuple(name for name in found if not wanted or name in wanted)


def drivers() -> tuple[str, ...]:
    """The names of OpenCL devices among them."""
    return tuple(name for name in devices() if name in _opencl())


def quirks(name: str) -> frozenset[str]:
    """What the driver that a name means does differently (`runtime/opencl_quirks.py`); nothing where it is not one."""
    return _opencl()[name].quirks if name in _opencl() else frozenset()


def quick_devices() -> tuple[str, ...]:
    """Names of the devices that are no rasterisers."""
    return tuple(name for name in devices() if SOFTWARE not in quirks(name))


@cache
def _opencl() -> dict[str, DeviceInfo]:
    """The OpenCL devices by their names."""
    from minigrad.runtime.opencl_devices import devices as usable
    from minigrad.runtime.opencl_devices import find_device

    words = {short_name(device.platform) for device in usable() if INTERPRETER not in device.quirks}
    return {f"CL:{word}": find_device(word) for word in sorted(words)}


def needs_device(name: str) -> pytest.MarkDecorator:
    """Skips a test where the device is missing or not wanted."""
    return pytest.mark.skipif(name not in devices(), reason=f"no device {name} here (found {', '.join(devices())})")


needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed: nothing to compare with")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="keep what test_golden.py finds")
    parser.addoption("--all", action="store_true", help="every case of what one_in thins, every model, for an hour")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "one_in(n, name=''): every n-th of a test's cases (whose ids have `name`)")
    config.addinivalue_line("markers", "each_driver: a case runs on every driver that compiles, not on one of them")


def one_in(n: int, name: str = "") -> pytest.MarkDecorator:
    """Every n-th of the cases of a test, the first among them; with a name only the cases with it in their ids are
    thinned, with CPU_DRIVERS those on drivers that compile for a processor. `--all` runs each. For cases that differ by
    what other tests have in full, on those drivers above all, whose compilers take the longest by far. An `n` without a
    divisor in common with the lengths of the other axes keeps each of their values."""
    return pytest.mark.one_in(n, name)


each_driver = pytest.mark.each_driver
"""Marks tests of drivers themselves: each case runs on all of them, where otherwise one of those that compile for a
processor has it."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--all") or any("::" in argument for argument in config.args):
        return
    turns: dict[tuple[str, str], list[str]] = {}
    for item in items:
        if (driver := _cpu_driver(item.name)) and not any(item.iter_markers("each_driver")):
            turns.setdefault(_case(item), []).append(driver)
    seen: Counter[tuple[str, str]] = Counter()
    left_out = []
    for item in items:
        test, case = _case(item)
        # What is written for these drivers is the same, and compiling it is what takes long: a case runs on one.
        here = turns.get((test, case))
        if here and _cpu_driver(item.name) != here[crc32(f"{test}{case}".encode()) % len(here)]:
            left_out.append(item)
            continue
        for mark in item.iter_markers("one_in"):
            n, name = mark.args
            if name in case:
                if seen[test, name] % n:
                    left_out.append(item)
                seen[test, name] += 1
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        gone = set(left_out)
        items[:] = [item for item in items if item not in gone]


def _case(item: pytest.Item) -> tuple[str, str]:
    """A test, and its case with CPU_DRIVERS in place of such a driver's name."""
    return item.nodeid.partition("[")[0], item.name.replace(_cpu_driver(item.name) or CPU_DRIVERS, CPU_DRIVERS)


def _cpu_driver(case: str) -> str:
    """The driver that compiles for a processor in the name of a case, "" where there is none."""
    return next((name for name, info in _opencl().items()
                 if name in case and info.kind == "CPU" and SOFTWARE not in info.quirks), "")


def pytest_collection_finish() -> None:
    gc.freeze()  # collections of what a test made need not walk over all tests and imported libraries


def pytest_report_header() -> str:
    return f"minigrad devices: {', '.join(devices())}"


@pytest.fixture(scope="module", autouse=True)
def _collected() -> Iterator[None]:
    """After a file of tests, what it made and left is gone; what stays, as caches of kernels, is not walked over by
    each later collection, which would take seconds at the end."""
    yield
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder of test data, named by MINIGRAD_TEST_DATA; tests that use it are skipped where there is none."""
    folder = current().test_data
    folder = folder if folder.is_absolute() else ROOT / folder
    if not folder.is_dir():
        pytest.skip(f"no test data at {folder}; MINIGRAD_TEST_DATA names the folder")
    return folder


@pytest.fixture
def on_numpy() -> Iterator[None]:
    """Tensors are on the device NUMPY where a test names none: `pytestmark = pytest.mark.usefixtures("on_numpy")`."""
    with config(device="NUMPY"):
        yield


@pytest.fixture
def on_cpu() -> Iterator[None]:
    """As `on_numpy`, on the device CPU."""
    with config(device="CPU"):
        yield
