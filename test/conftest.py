"""Helpers of the whole suite: the data folder, the devices found here, and the environment that drivers read.

    from conftest import devices, needs_device

    @pytest.mark.parametrize("device", devices())     every device of this machine
    @needs_device("CL:pocl")                          skipped, with the reason, where it is missing
    @one_in(5, "CL:pocl")                             of a test's cases on PoCL every fifth, with --all each
"""
import gc
import os
import tempfile
from collections import Counter
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path

# Read once, at the first use of OpenCL or of the settings: they must be there before any test is imported.
_pocl_cache = tempfile.TemporaryDirectory(prefix="minigrad-pocl-")
os.environ["POCL_CACHE_DIR"] = _pocl_cache.name
os.environ.setdefault("RUSTICL_ENABLE", "llvmpipe")
os.environ.setdefault("MINIGRAD_VERIFY", "1")

import pytest  # noqa: E402
from support.paths import ROOT  # noqa: E402

from minigrad.config import config, current  # noqa: E402

OPENCL = {"Portable Computing Language": "CL:pocl", "rusticl": "CL:rusticl"}


@cache
def devices() -> tuple[str, ...]:
    """Names of the minigrad devices of this machine, fewer where MINIGRAD_TEST_DEVICES says so."""
    found = ["CPU", "NUMPY", *_opencl_devices()]
    wanted = current().test_devices
    return tuple(name for name in found if not wanted or name in wanted)


def _opencl_devices() -> list[str]:
    from minigrad.runtime.opencl_devices import devices as usable

    platforms = {device.platform for device in usable()}
    return sorted(name for platform, name in OPENCL.items() if platform in platforms)


def needs_device(name: str) -> pytest.MarkDecorator:
    """Skips a test where the device is missing or not wanted."""
    return pytest.mark.skipif(name not in devices(), reason=f"no device {name} here (found {', '.join(devices())})")


needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed: nothing to compare with")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="keep what test_golden.py finds")
    parser.addoption("--all", action="store_true", help="every case of what one_in thins, every model, for an hour")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "one_in(n, name=''): every n-th of a test's cases (whose ids have `name`)")


def one_in(n: int, name: str = "") -> pytest.MarkDecorator:
    """Every n-th of the cases of a test, the first among them; with a name only the cases with it in their ids are
    thinned. `--all` runs each. For cases that differ by what other tests have in full, on PoCL above all, whose
    builds and kernels take the longest by far. An `n` without a divisor in common with the lengths of the other axes
    keeps each of their values."""
    return pytest.mark.one_in(n, name)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--all") or any("::" in argument for argument in config.args):
        return
    seen: Counter[tuple[str, str]] = Counter()
    left_out = []
    for item in items:
        for mark in item.iter_markers("one_in"):
            n, name = mark.args
            if name in item.name:
                key = item.nodeid.partition("[")[0], name
                if seen[key] % n:
                    left_out.append(item)
                seen[key] += 1
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        gone = set(left_out)
        items[:] = [item for item in items if item not in gone]


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
