"""Docstrings say what comes back or what is done, in a phrase that can be read by itself."""
from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.paths import ROOT

FOLDERS = sorted({str(path.parent.relative_to(ROOT)) for top in ("minigrad", "bench", "examples")
                  for path in (ROOT / top).rglob("*.py")})
QUESTION = re.compile(r"(What|Whether|Where|How|Why|If|When)\b")


def docstrings(path: Path) -> Iterator[tuple[int, str]]:
    """(line, text) of every docstring of a file: of the module, its classes and functions, and strings that stand by
    themselves, which describe the attribute or constant before them."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, node.value.value.strip()


def questions(folder: str) -> list[str]:
    """A line for each docstring of the files of a folder that begins with a question's word."""
    return [f"{path.relative_to(ROOT)}:{line}: {text.splitlines()[0]}" for path in sorted((ROOT / folder).glob("*.py"))
            for line, text in docstrings(path) if QUESTION.match(text)]


@pytest.mark.parametrize("folder", FOLDERS)
def test_docstrings_begin_with_a_verb_or_with_what_comes_back(folder: str) -> None:
    """'True where ...', 'The number of ...', 'Computes ...', not 'Whether ...', 'How many ...', 'What computes ...'."""
    assert not questions(folder)


def test_questions_are_found(tmp_path: Path) -> None:
    file = tmp_path / "module.py"
    file.write_text('"""Whatever."""\nX = 1\n"""How many."""\ndef f():\n    """Whether."""\n')
    found = [text for _, text in docstrings(file) if QUESTION.match(text)]
    assert sorted(found) == ["How many.", "Whether."]
