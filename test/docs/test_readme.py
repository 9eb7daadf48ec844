"""The README's example runs as it is printed, and learns."""
from __future__ import annotations

import re

import pytest
from support.paths import ROOT

from minigrad import Tensor


def test_the_example_learns(capsys: pytest.CaptureFixture[str]) -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    example = re.search(r"```python\n(.*?)```", text, re.DOTALL)
    assert example is not None
    Tensor.manual_seed(0)
    exec(compile(example[1], "README.md", "exec"), {})
    assert float(capsys.readouterr().out) < 0.5
