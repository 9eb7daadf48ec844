"""docs/plans.md: its loops are those that its plans make, and docs/tutorial-plans.md is about the kernel that it shows.
That their blocks run is seen to in test_pages.py."""
from __future__ import annotations

from typing import Any

import pytest
from support.pages import blocks, loops_of

from minigrad import Tensor, plans


def test_loops_on_the_page_are_those_of_its_plans() -> None:
    kernel = plan = ""
    found = 0
    for language, text in blocks("plans.md"):
        if language == "kernel":
            kernel = text
        elif language == "plan":
            plan = text
        elif language == "loops":
            assert loops_of(kernel, plan) == text
            found += 1
    assert found >= 9


def test_a_message_on_the_page_is_the_one_that_comes(capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {}
    codes = [text for language, text in blocks("plans.md") if language == "python"]
    for code in codes:
        exec(compile(code, "plans.md", "exec"), names)
    assert f"# {capsys.readouterr().out.splitlines()[-1]}" in codes[-1]


def test_the_kernel_of_the_tutorial_is_that_of_its_product() -> None:
    (kernel,) = [text for language, text in blocks("tutorial-plans.md") if language == "kernel"]
    x, y = (Tensor.empty(512, 512, device="CPU").realize() for _ in "xy")
    assert "".join([f"  # {line}\n" for line in kernel.splitlines()]) in plans.of(x @ y)["sum_mul"]
