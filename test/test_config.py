"""Settings: defaults, the environment, overrides, and messages that list what is allowed."""
import threading
from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest

from minigrad import Tensor
from minigrad.config import CPU_LEVELS, Config, config, current, from_environment
from minigrad.errors import ConfigError


def test_defaults_come_from_the_machine() -> None:
    c = from_environment({"HOME": "/home/u"})
    assert c.device == "CPU" and c.threads >= 1 and c.cache_dir == Path("/home/u/.cache/minigrad")
    assert from_environment({"XDG_CACHE_HOME": "/c"}).cache_dir == Path("/c/minigrad")
    assert not c.verify and c.disk_cache and c.debug == 0


def test_environment() -> None:
    c = from_environment({
        "MINIGRAD_DEVICE": "CL:pocl", "MINIGRAD_THREADS": "3", "MINIGRAD_CACHE": "/x", "MINIGRAD_VERIFY": "yes",
        "MINIGRAD_DISK_CACHE": "0", "MINIGRAD_TEST_DEVICES": "CPU, CL:pocl", "MINIGRAD_DEBUG": "",
        "MINIGRAD_CHECK_INDICES": "1"})
    assert c.device == "CL:pocl" and c.threads == 3 and c.cache_dir == Path("/x") and c.verify and not c.disk_cache
    assert c.check_indices and not Config().check_indices
    assert c.test_devices == ("CPU", "CL:pocl") and c.debug == 0


def test_names_of_devices_in_any_case() -> None:
    assert from_environment({"HOME": "/home/u", "MINIGRAD_DEVICE": "cl:pocl"}).device == "cl:pocl"
    with config(device="numpy"):
        assert Tensor([1.0]).device == "NUMPY"


@pytest.mark.parametrize("variable, value, message", [
    ("MINIGRAD_DEVICE", "GPU", r"expected a device CPU, NUMPY, CL or CL:<.*>, got 'GPU' \(MINIGRAD_DEVICE=GPU from"),
    ("MINIGRAD_THREADS", "0", r"expected threads to be an integer in 1..1024, got 0 \(MINIGRAD_THREADS=0 from"),
    ("MINIGRAD_THREADS", "two", "expected MINIGRAD_THREADS to be an integer, got 'two'"),
    ("MINIGRAD_VERIFY", "maybe", "expected MINIGRAD_VERIFY to be one of 1, true, yes, on, 0, .*, off, got 'maybe'"),
    ("MINIGRAD_DEBUG", "9", "expected debug to be an integer in 0..4"),
])
def test_bad_environment(variable: str, value: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        from_environment({"HOME": "/home/u", variable: value})


def test_override_nests_and_ends() -> None:
    before = current()
    with config(device="NUMPY", threads=2) as outer:
        assert current() is outer and outer.device == "NUMPY"
        with config(threads=1):
            assert current().device == "NUMPY" and current().threads == 1
        assert current().threads == 2
    assert current() is before


def test_override_is_of_one_thread() -> None:
    seen: list[Config] = []
    with config(cache_limit_mb=7):
        thread = threading.Thread(target=lambda: seen.append(current()))
        thread.start()
        thread.join()
        assert current().cache_limit_mb == 7
    assert seen[0].cache_limit_mb != 7


def test_bad_override() -> None:
    with pytest.raises(ConfigError, match=r"expected one of device, threads, .*, got 'colour'"):
        config(colour=1)
    with pytest.raises(ConfigError, match="expected verify to be True or False, got 1"):
        config(verify=1)


def test_the_processor_is_the_whole_processs() -> None:
    """Programs that were compiled for one are loaded: there is no other from then on."""
    level = next(name for name in CPU_LEVELS if name != current().cpu)
    with pytest.raises(ConfigError, match=f"expected cpu to be set for the whole process.* got '{level}' where it is"):
        config(cpu=level)
    with config(cpu=current().cpu):
        pass


def test_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        current().threads = 2  # type: ignore[misc]
