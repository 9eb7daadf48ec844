"""`python -m minigrad explain`: what it writes and prints, and its words for mistakes."""
import json
from pathlib import Path

import pytest

from minigrad.cli import main

SCRIPT = """
import sys
from minigrad import Tensor
x = Tensor.randn(64, 64).realize()
for _ in range(9):
    x = (x @ x).tanh().realize()
print("said", sys.argv[1:])

def product():
    return lambda: x @ x
"""


@pytest.fixture(autouse=True)
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "mine.py"
    path.write_text(SCRIPT)
    return path


def test_a_page_is_written_and_the_summary_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "mine.py", "3", "--lr", "0.1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "said ['3', '--lr', '0.1']" and lines[1].startswith("a step of mine.py: ")
    assert lines[-1] == "report.html" and Path("report.html").read_text().startswith("<!DOCTYPE html>")


def test_json_is_all_that_is_printed_and_what_follows_two_dashes_is_the_script_s(capsys: pytest.CaptureFixture[str]
                                                                                ) -> None:
    assert main(["explain", "mine.py", "--json", "--", "--out", "x"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["what"] == "a step of mine.py" and "said ['--out', 'x']" in err
    assert not Path("x").exists() and not Path("report.html").exists()


def test_a_function_of_a_file_gives_the_step(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "mine.py:product", "--json", "--out", "found.json"]) == 0
    assert len(json.loads(Path("found.json").read_text())["rows"]) == 1 and capsys.readouterr().out == ""


@pytest.mark.parametrize("arguments, words", [
    (["nowhere.py"], "expected a file of Python, got 'nowhere.py'"),
    (["mine.py:nothing"], "expected a function of mine.py, got 'nothing'"),
    (["mine.py", "--out", "nowhere/report.html"], "No such file or directory"),
    (["ends.py"], "expected a script that ends well, got 3 from ends.py"),
    (["fails.py"], "got ValueError: invalid literal for int() with base 10: 'x' at fails.py:2"),
    (["empty.py"], "expected a script that runs kernels, got none from empty.py")])
def test_mistakes_are_one_line(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("ends.py").write_text("raise SystemExit(3)")
    Path("empty.py").write_text("1 + 1")
    Path("fails.py").write_text("\nint('x')")
    assert main(["explain", *arguments]) == 1
    err = capsys.readouterr().err
    assert words in err and len(err.splitlines()) == 1
