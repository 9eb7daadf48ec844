"""docs/plans.md: its loops are those that its plans make. That its blocks run is seen to in test_pages.py."""
from __future__ import annotations

from typing import Any

import pytest
from support.pages import blocks, loops_of


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
