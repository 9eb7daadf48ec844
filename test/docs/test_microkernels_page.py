"""The examples of docs/microkernels.md run as they are printed, on vectors of both widths."""
from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from conftest import needs_device
from support.machine_code import assembly, vectors_on_the_stack
from support.paths import ROOT

import minigrad
from minigrad import microkernels
from minigrad.runtime.registry import get_device

PAGE = (ROOT / "docs" / "microkernels.md").read_text(encoding="utf-8")


@pytest.fixture(autouse=True)
def _added_are_taken_out() -> Iterator[None]:
    yield
    for kernel in microkernels.registered():
        microkernels.unregister(kernel.name)


def narrow_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The CPU device plans as if it had no AVX-512, which its programs then run without."""
    device = get_device("CPU")
    features = frozenset(f for f in device.target.features if not f.startswith("avx512"))
    monkeypatch.setattr(device, "target", replace(device.target, vector_bytes=32, registers=16, features=features))


@pytest.mark.parametrize("width", ["as it is", "AVX2"])
@pytest.mark.skipif("avx2" not in microkernels.features(), reason="the example is for x86 with AVX2")
def test_the_example_is_chosen(width: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if width == "AVX2":
        narrow_cpu(monkeypatch)
    code = re.search(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert code is not None
    exec(compile(code[1], "docs/microkernels.md", "exec"), {})
    (mine,) = microkernels.registered()
    wide = "avx512f" in microkernels.features()
    assert mine.name == ("my_8x48" if wide else "my_4x24")
    text = assembly(str(mine.implementation), "icelake-server" if wide else "znver3")
    assert not vectors_on_the_stack(text) and text.count("vfmadd") == (24 if wide else 12)


@needs_device("CL:pocl")
def test_the_example_in_opencl_c_is_chosen() -> None:
    _, code = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(code, "docs/microkernels.md", "exec"), names)
    (mine,) = microkernels.registered()
    source = minigrad.show(names["a"] @ names["b"], stage="source")
    assert source.count(f"void {mine.name}_") == 1 and source.count(f"{mine.name}_") > 1 and "SPACE_" not in source
