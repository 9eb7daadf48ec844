"""`python -m minigrad`: its commands, and one line for each mistake."""
import errno
import os
import subprocess
import sys

import pytest
from conftest import needs_device, quick_devices
from support.paths import ROOT

from minigrad import Tensor
from minigrad.cli import devices as devices_command
from minigrad.cli import main
from minigrad.cli.outcome import finish
from minigrad.config import config
from minigrad.errors import DeviceError
from minigrad.runtime import disk_cache
from minigrad.runtime.figures import Figures


def test_help_without_a_command(capsys):
    assert main([]) == 0
    out = capsys.readouterr().out
    assert "usage: minigrad" in out and "devices" in out and "cache" in out


@pytest.mark.parametrize("arguments, word", [(["nope"], "invalid choice: 'nope'"), (["--nope"], "--nope"),
                                             (["cache", "burn"], "invalid choice: 'burn'")])
def test_wrong_usage_is_one_line(capsys, arguments, word):
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == "" and word in err and len(err.splitlines()) == 1


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-m", "minigrad", *arguments], cwd=ROOT, capture_output=True, text=True,
                          env=os.environ | environment)


def test_errors_are_one_line_and_a_traceback_only_on_request():
    short, long = run("devices", MINIGRAD_DEVICE="TPU"), run("--debug", "devices", MINIGRAD_DEVICE="TPU")
    assert short.returncode == 1 and len(short.stderr.splitlines()) == 1
    assert short.stderr.startswith("minigrad: [config] expected") and "MINIGRAD_DEVICE=TPU" in short.stderr
    assert long.returncode == 1 and "Traceback" in long.stderr


@pytest.mark.parametrize("error", [MemoryError(), OSError(errno.ENOMEM, "Cannot allocate memory")])
def test_too_little_memory_is_one_line(capsys, error):
    def fail() -> int:
        raise error

    assert finish("minigrad", False, fail) == 1
    assert capsys.readouterr().err == "minigrad: there is not enough memory\n"


def test_devices_table(capsys):
    with config(device="NUMPY"):
        assert main(["devices"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == list(devices_command.HEADER)
    assert [line.split()[0] for line in lines[1:3]] == ["CPU", "NUMPY*"]
    assert all("LLVM " in line for line in lines[1:2]) and "numpy " in lines[2]
    column = lines[0].index("driver")
    assert all(line[column - 2:column] == "  " for line in lines[:lines.index("")])


@needs_device("CL:pocl")
def test_devices_lists_opencl(capsys):
    assert main(["devices"]) == 0
    row = next(line for line in capsys.readouterr().out.splitlines() if "Portable Computing Language" in line)
    assert row.startswith("CL:") and "GiB" in row and row.split()[-2:][-1] in ("bit", "lanes")


def test_devices_without_opencl(capsys, monkeypatch):
    def missing() -> list[tuple[str, ...]]:
        raise DeviceError("[device] expected the package pyopencl for CL devices, got: nothing")

    monkeypatch.setattr(devices_command, "_opencl_rows", missing)
    assert main(["devices"]) == 0
    out = capsys.readouterr().out
    assert "NUMPY" in out and "expected the package pyopencl" in out


def test_device_that_does_not_exist_is_a_note(capsys):
    with config(device="CL:voodoo2"):
        assert main(["devices"]) == 0
    assert "got 'CL:voodoo2'" in capsys.readouterr().out


def test_cache_lists_and_clears_programs_only(capsys, tmp_path):
    model = tmp_path / "models" / "weights"
    model.parent.mkdir()
    model.write_text("kept")
    with config(cache_dir=tmp_path, disk_cache=True):
        assert main(["cache"]) == 0
        assert "empty" in capsys.readouterr().out
        disk_cache.put("kind-a", "key", b"1234")
        disk_cache.put("kind-b", "key", b"5678")
        assert main(["cache", "list"]) == 0
        out = capsys.readouterr().out
        assert "kind-a  1 entry" in out and "kind-b" in out
        assert main(["cache", "clear"]) == 0
        assert "removed 2 entries" in capsys.readouterr().out
        assert disk_cache.get("kind-a", "key") is None
    assert model.read_text() == "kept"


def test_sizes():
    assert [devices_command.size_text(n) for n in (0, 1023, 1024, 1536, 5 << 30, 1 << 50)] == \
        ["0 B", "1023 B", "1 KiB", "1.5 KiB", "5 GiB", "1024 TiB"]


def test_check_measures_and_keeps_the_figures(capsys, tmp_path, monkeypatch):
    from minigrad.cli import device_check

    for name, value in (("BUDGET_S", 0.001), ("COPY_BYTES", 4096), ("PRODUCT", 32), ("LAUNCHES", 3), ("STEPS", 2)):
        monkeypatch.setattr(device_check, name, value)
    stored = {}
    monkeypatch.setattr(devices_command, "store", stored.__setitem__)
    names = [name for name in quick_devices() if name != "NUMPY"]
    assert main(["devices", "--check", *names]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:2] == ["name", "kernels"] and len(lines) == 1 + len(names)
    assert all("right" in line for line in lines[1:])
    assert len(stored) == sum(name.startswith("CL") for name in names)
    assert all(min(f.gflops, f.half_gflops, f.gb_s, f.launch_us) > 0 for f in stored.values())


def test_check_names_what_is_wrong(capsys, monkeypatch):
    from minigrad.cli import device_check

    real = Tensor.softmax
    monkeypatch.setattr(Tensor, "softmax", lambda self, axis: real(self, axis) * 1.01)
    monkeypatch.setattr(device_check, "measure", lambda device: Figures(1, 2, 3, 4))
    assert main(["devices", "--check", "CPU"]) == 1
    out = capsys.readouterr().out
    assert "CPU: softmax: off by 0.0" in out and "1 wrong" in out
    assert main(["devices", "--check", "AMD:gfx1031"]) == 1
    assert "AMD:gfx1031: [launch] AMD:gfx1031 only compiles" in capsys.readouterr().out


def test_figures_are_kept_by_identity(tmp_path):
    from minigrad.runtime import disk_cache, figures

    with config(cache_dir=tmp_path, disk_cache=True):
        figures.store("one", Figures(123.4, 56.78, 9.1, 0.123))
        assert figures.stored("one") == Figures(120, 57, 9.1, 0.12)
        assert figures.stored("another driver") == Figures()
        for nonsense in (b"", b"[]", b"{", b'{"gflops": "fast"}', b'{"gflops": -1}'):
            disk_cache.put(figures.KIND, "one", nonsense)
            figures.stored.cache_clear()
            assert figures.stored("one") == Figures()
    figures.stored.cache_clear()
