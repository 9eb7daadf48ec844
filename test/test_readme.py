"""The README's example runs as it is printed, and learns."""
from __future__ import annotations

import re
from pathlib import Path

import pytest

from minigrad import Tensor


def test_the_example_learns(capsys: pytest.CaptureFixture[str]) -> None:
    text = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
    example = re.search(r"```python\n(.*?)```", text, re.DOTALL)
    assert example is not None
    Tensor.manual_seed(0)
    exec(compile(example[1], "README.md", "exec"), {})
    assert float(capsys.readouterr().out) < 0.5
