"""Systems that lack what Linux has: what minigrad does without, as far as that shows here."""
from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.paths import ROOT

from minigrad import platforms
from minigrad.runtime import arm_features

ELSEWHERE = """
import multiprocessing.connection, os, pyopencl, subprocess, sys
for name in ("fork", "register_at_fork", "sched_getaffinity", "sched_setaffinity", "memfd_create", "posix_fallocate",
             "geteuid", "getloadavg", "sysconf"):
    if hasattr(os, name):
        delattr(os, name)
for name in ("fcntl", "resource", "pwd", "grp", "termios", "torch"):
    sys.modules[name] = None
import importlib, pathlib
import numpy as np
import minigrad
from minigrad.runtime.registry import get_device
package = pathlib.Path(minigrad.__file__).parent
for path in sorted(package.rglob("*.py")):
    first, *others = path.relative_to(package).with_suffix("").parts
    if first not in ("__main__", "onnx", "torch_compile") and not {"templates", "onnx_files"} & {*others}:
        importlib.import_module(".".join(["minigrad", first, *others]).removesuffix(".__init__"))
from minigrad.runtime.own_files import is_own, problem_of
assert is_own("/") and problem_of("/nowhere") is None is problem_of("/tmp")
x = np.arange(12, dtype=np.float32).reshape(3, 4)
for device in DEVICES:
    y = minigrad.Tensor(x, device=device)
    for _ in range(3):
        assert ((y @ y.transpose(0, 1)).numpy() == x @ x.T).all()
"""


def test_every_module_does_without_what_linux_alone_has() -> None:
    from conftest import devices

    ours = [name for name in ("CPU", "CL:pocl") if name in devices()]
    done = subprocess.run([sys.executable, "-c", ELSEWHERE.replace("DEVICES", repr(ours))], cwd=ROOT,
                          env={**os.environ, "MINIGRAD_THREADS": "2"}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_cores_are_all_where_the_system_does_not_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    assert 1 <= platforms.usable_cores() <= (os.cpu_count() or 1)
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 7)
    assert platforms.usable_cores() == 7
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert platforms.usable_cores() == 1


# Features of ARM processors

PLAIN = "fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm lrcpc dcpop asimddp ssbs"
NEW = PLAIN + " sve asimdfhm dit i8mm bf16 svei8mm svebf16"
EXPECTED = {"": "", "fp asimd": "neon", PLAIN: "neon dotprod fullfp16", NEW: "neon dotprod fullfp16 i8mm bf16"}


@pytest.mark.parametrize("words", EXPECTED, ids=["none", "Cortex-A72", "Neoverse N1", "Neoverse V1"])
def test_linux_has_words_for_features(words: str, tmp_path: Path) -> None:
    info = tmp_path / "cpuinfo"
    cores = [f"processor\t: {k}\nBogoMIPS\t: 50.00\nFeatures\t: {words}\nCPU part\t: 0xd40\n" for k in range(3)]
    info.write_text("\n".join(cores))
    assert {name for name, on in arm_features.arm_features(info).items() if on} == set(EXPECTED[words].split())
    info.write_text("\n".join([*cores, cores[0].replace(words, "fp asimd")]))  # cores that differ
    assert {name for name, on in arm_features.arm_features(info).items() if on} <= {"neon"}
    assert arm_features.arm_features(tmp_path / "missing") == {}


def test_macos_has_names_for_features(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    class System:
        """What libc has there."""

        @staticmethod
        def sysctlbyname(name: bytes, value: Any, size: Any, new: Any, length: int) -> int:
            asked.append(name.decode())
            if b"BF16" in name:
                return -1  # an older system does not know it
            value._obj.value = int(b"I8MM" not in name)
            return 0

    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(ctypes, "CDLL", lambda name: System)
    found = arm_features.arm_features()
    assert {name for name, on in found.items() if on} == {"neon", "dotprod", "fullfp16"}
    assert set(found) == set(arm_features.WORDS) and "hw.optional.arm.FEAT_DotProd" in asked
