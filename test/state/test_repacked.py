"""Repacked weights that are kept on disk (minigrad/state/repacked.py)."""
import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support import file_samples
from support.model_files import write_gguf
from support.paths import ROOT

from examples.llama.gguf_files import load_gguf
from minigrad import Tensor, config
from minigrad.state import repacked
from minigrad.state.quantized import QuantizedTensor

ROWS, COLUMNS = 48, 256


def blocks(seed: int = 0, rows: int = ROWS) -> np.ndarray:
    """The bytes of a matrix in Q4_0 whose scales are numbers, uint8."""
    rng = np.random.default_rng(seed)
    found = rng.integers(0, 256, (rows * COLUMNS // 32, 18), np.uint8)
    found[:, :2] = np.full((len(found), 1), 0.01, np.float16).view(np.uint8)
    return found.reshape(-1)


def weight(seed: int = 0) -> QuantizedTensor:
    return QuantizedTensor.from_blocks("Q4_0", (ROWS, COLUMNS), blocks(seed))


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A model file beside an empty cache, in which the smallest weights are kept."""
    monkeypatch.setattr(repacked, "LEAST", 1)
    path = tmp_path / "model.gguf"
    path.write_bytes(b"model" * 1000)
    with config(cache_dir=tmp_path / "cache", disk_cache=True, weights_mb=8192):
        yield path


def same(found: QuantizedTensor, expected: QuantizedTensor) -> bool:
    assert (found.kind, found.shape) == (expected.kind, expected.shape)
    return bool((found.dequantize().numpy() == expected.dequantize().numpy()).all())


def test_what_is_kept_is_found_again(source: Path) -> None:
    assert repacked.load(source) == {}
    experts = QuantizedTensor.from_blocks("Q8_0", (2, 16, 32), np.random.default_rng(1).integers(
        0, 100, 2 * 16 * 34, np.uint8))
    repacked.keep(source, {"layers.0.up": weight(), "experts": experts, "norm": Tensor.ones(4)})
    found = repacked.load(source)
    assert set(found) == {"layers.0.up", "experts"}
    assert same(found["layers.0.up"], weight())
    assert same(found["experts"], experts)
    x = np.random.default_rng(2).standard_normal((3, COLUMNS), np.float32)
    np.testing.assert_array_equal(found["layers.0.up"].linear(Tensor(x)).numpy(), weight().linear(Tensor(x)).numpy())


@pytest.mark.parametrize("change", ["longer", "other bytes", "later"])
def test_a_changed_model_file_is_repacked(source: Path, change: str) -> None:
    repacked.keep(source, {"w": weight()})
    assert repacked.load(source)
    status, content = source.stat(), source.read_bytes()
    source.write_bytes(content + b"." if change == "longer" else b"?" + content[1:])
    os.utime(source, ns=(status.st_atime_ns, status.st_mtime_ns + (change == "later")))
    assert repacked.load(source) == {}


@pytest.mark.parametrize("damage", [lambda b: b[:-1], lambda b: b[:100], lambda b: b"", lambda b: b"\xff" * 64 + b[64:],
                                    lambda b: b.replace(b"Q4_0", b"Q9_0"), lambda b: b.replace(b"48x256", b"48x2q6"),
                                    lambda b: b.replace(b"w Q4_0", b"w_Q4_0"), lambda b: b.replace(b"256 1", b"256 7")])
def test_a_damaged_file_is_removed(source: Path, damage: Any) -> None:
    repacked.keep(source, {"w": weight()})
    kept, = repacked.files()
    kept.write_bytes(damage(kept.read_bytes()))
    assert repacked.load(source) == {}
    assert repacked.files() == []
    repacked.keep(source, {"w": weight()})
    assert same(repacked.load(source)["w"], weight())


def test_a_full_disk_leaves_nothing(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> bytes:
        raise OSError(errno.ENOSPC, "No space left on device")
    with monkeypatch.context() as patch:
        patch.setattr("minigrad.state.safe.elements", full)
        repacked.keep(source, {"w": weight()})
    assert repacked.files() == []
    with monkeypatch.context() as patch:
        patch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=1000))
        repacked.keep(source, {"w": weight()})
    assert repacked.files() == []


def test_the_longest_unused_goes_first(source: Path, tmp_path: Path) -> None:
    others = [tmp_path / f"{k}.gguf" for k in range(3)]
    size = 0
    for k, path in enumerate(others):
        path.write_bytes(bytes([k]))
        repacked.keep(path, {"w": weight(k)})
        size = max(size, *[file.stat().st_size for file in repacked.files()])
        os.utime(repacked.files()[-1], (k, k))
    assert repacked.load(others[0])  # is used now
    repacked.evict(2 * size)
    assert [bool(repacked.load(path)) for path in others] == [True, False, True]
    assert repacked.evict(0) > 0
    assert repacked.files() == []


def test_nothing_is_kept_where_nothing_is_to_be(source: Path) -> None:
    for settings in ({"disk_cache": False}, {"weights_mb": 0}):
        with config(**settings):
            repacked.keep(source, {"w": weight()})
            assert repacked.load(source) == {}
    repacked.keep(source, {"norm": Tensor.ones(4)})
    assert repacked.files() == []


MEASURED = """
import re, sys
from pathlib import Path
import numpy as np
from minigrad import Tensor, jit
from minigrad.state import gguf_load
def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) << 10
Tensor(np.ones(3, np.float32)).exp().numpy()
before = peak()
_, tensors = gguf_load(sys.argv[1])
weights = [tensor.stored() for tensor in tensors.values()]
run = jit(lambda x: sum([w.linear(x).contiguous() for w in weights]))
for _ in range(3):
    run(Tensor(np.ones((1, 256), np.float32))).numpy()
print(peak() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="bytes in memory are asked of Linux")
def test_memory_is_little_more_than_the_file(tmp_path: Path) -> None:
    """Its programs come from the cache that the first run fills: a compiler in the process takes what it likes."""
    rows = 1 << 16  # 9.4 MB each, and 24 MB for programs beside them
    path = tmp_path / "large.gguf"
    write_gguf(path, [], [(f"w{k}", (rows, COLUMNS), 2, blocks(k, rows).tobytes()) for k in range(12)])
    environment = {**os.environ, "MINIGRAD_DEVICE": "CPU", "MINIGRAD_CACHE": str(tmp_path / "cache")}
    _, run = [subprocess.run([sys.executable, "-c", MEASURED, str(path)], capture_output=True, text=True, cwd=ROOT,
                             env=environment, check=True) for _ in range(2)]
    assert int(run.stdout) < 1.15 * path.stat().st_size + (24 << 20)


def test_a_model_is_the_same_when_its_weights_are_kept(source: Path) -> None:
    """Rows of queries and keys are in our order then, and quantised weights come from the kept file."""
    model = file_samples.gguf_model()["model.gguf"]
    source.write_bytes(model.encode(model.content))
    first = load_gguf(source).tensors
    assert len(repacked.files()) == 1
    again = load_gguf(source).tensors
    assert set(first) == set(again)
    for name, weight in again.items():
        expected = first[name]
        if isinstance(weight, QuantizedTensor):
            assert isinstance(expected, QuantizedTensor)
            assert same(weight, expected)
        else:
            assert isinstance(expected, Tensor)
            np.testing.assert_array_equal(weight.numpy(), expected.numpy())
