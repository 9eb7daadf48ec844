"""docs/plans.md and docs/tutorial-plans.md: their blocks run, and their loops are those that their plans make."""
from __future__ import annotations

from typing import Any

import pytest
from pages import blocks, body_of, loops_of


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


@pytest.mark.parametrize("page", ["plans.md", "tutorial-plans.md"])
def test_blocks_run_and_say_what_is_printed(page: str) -> None:
    names: dict[str, Any] = {}
    for language, text in blocks(page):
        if language == "python":
            exec(compile(text, page, "exec"), names)
        elif language == "loops" and "loops" in names:
            assert body_of(names["loops"]) == text


def test_a_message_on_the_page_is_the_one_that_comes(capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {}
    codes = [text for language, text in blocks("plans.md") if language == "python"]
    for code in codes:
        exec(compile(code, "plans.md", "exec"), names)
    assert f"# {capsys.readouterr().out.splitlines()[-1]}" in codes[-1]
