"""MINIGRAD_CPU: programs for an older processor than the one we run on."""
import os
import platform
import subprocess
import sys

import pytest
from support.paths import ROOT, TESTS

from minigrad.config import CPU_LEVELS
from minigrad.errors import ConfigError
from minigrad.runtime.cpu import shared_jit
from minigrad.runtime.cpu_level import processor

HOST = {name: True for name in ("avx", "avx2", "fma", "amx-tile", "avx512f")}


def test_native_is_the_host_as_it_is() -> None:
    assert processor("native", "somelake", {"b": False, "a": True}) == ("somelake", {"a": True, "b": False})


@pytest.mark.parametrize("level", CPU_LEVELS[1:])
def test_a_level_has_its_features_alone(level: str) -> None:
    everything = dict.fromkeys(processor("native", "", shared_jit().llvm.get_host_cpu_features())[1], True)
    if platform.machine() != "x86_64":
        pytest.skip("levels are those of x86-64")
    name, features = processor(level, "somelake", everything)
    assert name == level and set(features) == set(everything)
    has = [feature for feature in ("ssse3", "avx2", "avx512f", "avx512vnni", "amx-tile") if features[feature]]
    assert has == ["ssse3", "avx2", "avx512f"][:CPU_LEVELS.index(level)]


def test_a_host_without_them_is_told() -> None:
    with pytest.raises(ConfigError, match=r"expected a processor with .*f16c, .* for x86-64-v3, got somelake without"):
        processor("x86-64-v3", "somelake", HOST)


PRODUCTS = """
import numpy as np
from minigrad import Tensor
from minigrad.runtime.cpu import host_target, shared_jit
target = host_target(shared_jit(), 1)
assert (target.cpu, target.vector_bytes) == ("{level}", {vector_bytes}), target
random = np.random.default_rng(0)
for m, n, k in ((3, 5, 7), (33, 47, 65), (64, 64, 64)):
    a, b = random.integers(-8, 8, (m, k)), random.integers(-8, 8, (k, n))
    for dtype in ("float32", "float16", "bfloat16", "int8"):
        found = (Tensor(a.astype(np.float32)).cast(dtype) @ Tensor(b.astype(np.float32)).cast(dtype)).cast("float32")
        np.testing.assert_allclose(found.numpy(), a @ b, rtol=0.01 if dtype == "bfloat16" else 1e-3)
w, x = random.integers(0, 1 << 32, (2, 400), np.uint32).view(np.int32)
w[:3], x[:3] = (-1, -1, 0x7F7F7F7F), (0x7F7F7F7F, -0x7F7F7F80, -0x7F7F7F80)
for mask in (-1, 0x7F7F7F7F):
    expected = ((w & mask).view(np.uint8).astype(np.int32) * x.view(np.int8)).reshape(-1, 4).sum(1)
    assert ((Tensor(w) & mask).dot_bytes(Tensor(x)).numpy() == expected).all(), mask
"""


def skip_without(level: str) -> None:
    """Skips where this processor lacks what a level has."""
    try:
        processor(level, "", {name: on for name, on in shared_jit().llvm.get_host_cpu_features().items()})
    except ConfigError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("level, vector_bytes", [("x86-64-v2", 16), ("x86-64-v3", 32), ("x86-64-v4", 64)])
def test_a_process_compiles_for_it(level: str, vector_bytes: int) -> None:
    """Whole numbers: what is summed is exact, and halves are rounded once, at the end."""
    skip_without(level)
    environment = {**os.environ, "MINIGRAD_CPU": level, "MINIGRAD_DEVICE": "CPU"}
    done = subprocess.run([sys.executable, "-c", PRODUCTS.format(level=level, vector_bytes=vector_bytes)],
                          env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


CHOSEN = ("test_contractions.py::test_random_contractions_packed", "test_contractions.py::test_random_contractions",
          "policy/test_panels.py::test_sizes_around_those_of_tiles",
          "microkernels/test_microkernels.py::test_tiles_multiply",
          "policy/test_window.py::test_infinities_and_nans_stay_where_they_are",
          "policy/test_narrow.py::test_shapes_and_threads", "transforms/test_budget.py::test_long_sums_per_row",
          "policy/test_stages.py::test_sums_of_several_lengths_in_one_kernel",
          "../state/test_block_formats.py::test_no_part_of_the_weights_is_kept_as_floats")
"""What runs for older processors too whenever the suite runs; `MINIGRAD_CPU=x86-64-v3 make test` runs all of it."""


@pytest.mark.parametrize("level", ["x86-64-v2", "x86-64-v3"])
def test_chosen_tests_pass_for_it(level: str) -> None:
    skip_without(level)
    environment = {name: text for name, text in os.environ.items() if not name.startswith("PYTEST")}
    environment |= {"MINIGRAD_CPU": level, "MINIGRAD_TEST_DEVICES": "CPU,NUMPY"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider",
               *[str(TESTS / "codegen" / test) for test in CHOSEN]]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and " passed" in done.stdout, done.stdout + done.stderr
