"""Every block of Python in the documentation runs, and prints what stands below it."""
from __future__ import annotations

import random
import re
from collections.abc import Iterator
from dataclasses import fields
from importlib.util import find_spec
from itertools import takewhile
from pathlib import Path

import numpy as np
import pytest
from conftest import devices as found
from support.pages import Block, blocks_of, matches, run_page
from support.paths import DOCS, ROOT

from examples.llama.assistant import default_model
from minigrad import Tensor, config, devices, microkernels
from minigrad.config import Config
from minigrad.errors import MinigradError

PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *DOCS.rglob("*.md")])
NOT_RUN = 0
"""Blocks of Python that are marked as not run, each with its reason."""


@pytest.fixture(autouse=True)
def _as_it_was(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Numbers that pages draw are the same in every run, files that they write go to a folder of their own, and what
    they add to minigrad is taken out again."""
    monkeypatch.chdir(tmp_path)
    Tensor.manual_seed(0)
    np.random.seed(0)
    random.seed(0)
    with config(device="CPU"):
        yield
    for kernel in microkernels.registered():
        microkernels.unregister(kernel.name)
    for name in devices.registered():
        devices.unregister(name)


def python_blocks(page: Path) -> list[Block]:
    return [b for b in blocks_of(page) if b.language == "python"]


def has(name: str) -> bool:
    """Says whether this machine has what a block needs."""
    if name == "SmolLM2 and openai":
        return bool(find_spec("openai") and find_spec("uvicorn")) and fetched()
    return name in {*found(), *microkernels.features(), *(["torch"] if find_spec("torch") else [])}


def fetched() -> bool:
    """Fetches SmolLM2, where it is not here yet; says whether it could be."""
    try:
        default_model()
    except (MinigradError, OSError):
        return False
    return True


@pytest.mark.parametrize("page", [pytest.param(p, id=str(p.relative_to(ROOT))) for p in PAGES if python_blocks(p)])
def test_blocks_run_and_print_what_the_page_says(page: Path, request: pytest.FixtureRequest) -> None:
    """`--update-golden` writes what they print now into the page."""
    run_page(page, has, request.config.getoption("--update-golden"))


def test_few_blocks_are_not_run_and_say_why() -> None:
    marked = [b for page in PAGES for b in python_blocks(page) if b.marker == "not run"]
    assert len(marked) == NOT_RUN and all(len(b.what.split()) > 2 for b in marked)


SEEN_TO = {
    "python": PAGES,
    "text": PAGES,
    "kernel": [DOCS / "plans.md", DOCS / "tutorial-plans.md", DOCS / "architecture.md"],
    "plan": [DOCS / "plans.md"],
    "loops": [DOCS / "plans.md", DOCS / "tutorial-plans.md"],
    "sh": [ROOT / "README.md", ROOT / "CONTRIBUTING.md"],
    "c": [DOCS / "microkernels.md"],
}
"""The pages on which some test sees to blocks of a language: Python runs here, and prints the text after it; kernels,
plans and loops are those of test_plans_pages.py and test_docs.py, or what Python before them called `loops`; commands
are looked at below; C is a signature."""


def test_every_block_is_seen_to() -> None:
    for page in PAGES:
        before = ""
        for b in blocks_of(page):
            where = f"{page.relative_to(ROOT)}:{b.line}"
            assert page in SEEN_TO.get(b.language, ()), f"{where}: no test sees to a block of {b.language}"
            assert b.language != "text" or before == "python", f"{where}: expected the text after Python that prints it"
            before = b.language
    assert sum([len(python_blocks(page)) for page in PAGES]) >= 88


def test_commands_of_pages_exist() -> None:
    targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    found = [line.split("#")[0].split() for page in PAGES for b in blocks_of(page) if b.language == "sh"
             for line in b.text.splitlines()]
    assert len(found) >= 9
    for words in found:
        settings = [w.partition("=")[0] for w in takewhile(lambda w: "=" in w, words)]
        assert {s.removeprefix("MINIGRAD_").lower() for s in settings} <= {f.name for f in fields(Config)}
        program, *rest = words[len(settings):]
        assert {"make": rest[0] in targets, "pip": rest == ["install", "."],
                ".venv/bin/python": rest[:2] == ["-m", "pytest"] and (ROOT / rest[-1]).exists()}.get(
                    program, (ROOT / program).is_file()), words


def test_blocks_name_their_language() -> None:
    """A fence without one is text or shell that nobody runs, never Python."""
    for page in PAGES:
        fences = [line for line in page.read_text(encoding="utf-8").splitlines() if line.startswith("```")]
        for k, fence in enumerate(fences):
            assert k % 2 == 0 or fence == "```", f"{page.relative_to(ROOT)}: expected the end of a block, got {fence}"
        opened = [f for f in fences if f != "```"]
        assert len(fences) % 2 == 0 and {"py", "python3", "pycon"}.isdisjoint(f[3:] for f in opened)


def test_how_to_pages_are_short() -> None:
    lengths = {page.stem: len(page.read_text(encoding="utf-8").splitlines()) for page in (DOCS / "howto").glob("*.md")}
    assert len(lengths) == 20 and max(lengths.values()) <= 80, lengths


def test_text_with_an_ellipsis_matches_what_it_leaves_out() -> None:
    assert matches("a\nb ... d\n", "a  \nb c d\n") and matches("a\n...\nz\n", "a\nb\nc\nz")
    assert not matches("a\n", "b\n") and not matches("a ... c\n", "a b\n") and not matches("a.c\n", "abc\n")


def test_a_page_that_prints_something_else_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("support.pages.ROOT", tmp_path)
    page = tmp_path / "page.md"
    for code, text, ends in (("print(1)", "1", False), ("print(1)", "2", True), (">>> 1 + 1\n2", "", False),
                             (">>> 1 + 1\n3", "", True), ("import nothing_of_that_name", "", True)):
        page.write_text(f"# Page\n\n```python\n{code}\n```\n```text\n{text}\n```\n", encoding="utf-8")
        if ends:
            with pytest.raises((AssertionError, ImportError)):
                run_page(page)
        else:
            run_page(page)


def test_a_page_is_updated_in_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("support.pages.ROOT", tmp_path)
    page = tmp_path / "page.md"
    text = "```python\nprint(34)\n```\n```text\n{}\n```\n```python\nprint(1)\n```\n```text\n{}\n```\nEnd\n"
    page.write_text(text.format("5", "a\nb"), encoding="utf-8")
    run_page(page, update=True)
    assert page.read_text(encoding="utf-8") == text.format("34", "1")


def test_the_site_has_every_page() -> None:
    """What `nav` does not name is left out of the site; of the folders in it `docs/make_site.py` takes all pages."""
    nav = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").split("\nnav:\n")[1].split("\ntheme:")[0]
    pages = {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")}
    named = {line.split()[-1] for line in nav.splitlines() if not line.endswith(":")} - {"index.md", "reference/"}
    assert {f"{page.partition('/')[0]}/" if "/" in page else page for page in pages} == named
