"""`python -m minigrad reduce`: what it prints, its status, and its words for mistakes."""
from pathlib import Path

import pytest

from minigrad.cli import main
from minigrad.errors import present
from minigrad.ops import build as B
from minigrad.ops.elementwise import TANH

SCRIPT = """
import sys
from minigrad import Tensor
x = Tensor.randn(4, 3).realize().requires_grad_()
(x.exp().tanh() * 2).sum().backward()
print("said", sys.argv[1:], x.grad.shape)
"""


@pytest.fixture(autouse=True)
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(SCRIPT)


def test_what_is_right_has_status_0(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reduce", "mine.py", "--lr", "1"]) == 0
    out, err = capsys.readouterr()
    assert out == "" and "said ['--lr', '1']" in err and "nothing differs: " in err and "1 gradient compared" in err


def test_what_is_wrong_is_a_test_on_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    right = TANH.vjp
    assert right is not None
    object.__setattr__(TANH, "vjp", lambda node, g: (B.neg(present(right(node, g)[0], "")),))
    try:
        assert main(["reduce", "mine.py"]) == 1
        out, err = capsys.readouterr()
        assert "def test_reduced() -> None:" in out and "reduced to 1 operation" in err
        compile(out, "test_reduced.py", "exec")
        assert main(["reduce", "--no-gradients", "mine.py"]) == 0
    finally:
        object.__setattr__(TANH, "vjp", right)


@pytest.mark.parametrize("name, words", [
    ("nowhere.py", "expected a file of Python, got 'nowhere.py'"),
    ("ends.py", "expected a script that ends well, got 3"),
    ("fails.py", "got ValueError: invalid literal for int() with base 10: 'x' at fails.py:2"),
    ("empty.py", "expected a script that computes on a device with kernels")])
def test_mistakes_are_one_line(name: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("ends.py").write_text("raise SystemExit(3)")
    Path("empty.py").write_text("1 + 1")
    Path("fails.py").write_text("\nint('x')")
    assert main(["reduce", name]) == 1
    err = capsys.readouterr().err
    assert words in err and len(err.splitlines()) == 1
