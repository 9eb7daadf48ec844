"""What is minigrad's own mistake says so, with the kernel and how to report it; nothing is left to `assert`."""
from __future__ import annotations

import ast
import pickle
from pathlib import Path

import pytest

from minigrad import Tensor, config
from minigrad.engine import compile as compiling
from minigrad.errors import InternalError, ShapeError, present, reporting

PACKAGE = Path(__file__).parents[1] / "minigrad"
FREE_OF_ASSERTS = ["autograd.py", "capture", "distributions.py", "engine", "graph", "handles.py", "mixins", "nn",
                   "optim", "random.py", "state", "tensor.py"]


@pytest.mark.parametrize("part", FREE_OF_ASSERTS)
def test_no_assert_stands_where_public_calls_lead(part: str) -> None:
    files = sorted((PACKAGE / part).rglob("*.py")) if (PACKAGE / part).is_dir() else [PACKAGE / part]
    assert files
    for file in files:
        found = [n.lineno for n in ast.walk(ast.parse(file.read_text(encoding="utf-8"))) if isinstance(n, ast.Assert)]
        assert not found, f"{file}: lines {found}"


def test_the_text_says_whose_error_it_is() -> None:
    error = InternalError("[plan] expected x, got y", "kernel k")
    for e in (error, pickle.loads(pickle.dumps(error))):
        lines = str(e).splitlines()
        assert lines[0] == "[plan] expected x, got y" and lines[-2:] == ["The kernel:", "kernel k"]
        assert "error of minigrad itself" in lines[1] and "report it" in lines[1]
    assert "The kernel" not in str(InternalError("[plan] expected x, got y"))
    assert present(0, "[plan] expected a number") == 0
    with pytest.raises(InternalError, match=r"\[plan\] expected a number, got None"):
        present(None, "[plan] expected a number")


@pytest.mark.parametrize("error, text", [(KeyError("m"), "KeyError: 'm'"), (AssertionError(), "AssertionError"),
                                         (InternalError("[build] expected a window"), "expected a window")])
def test_errors_of_the_compiler_carry_the_kernel(error: Exception, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise error

    monkeypatch.setattr(compiling, "stages_of", broken)
    broken.cache_info = lambda: type("Info", (), {"misses": 0})  # type: ignore[attr-defined]
    with config(device="CPU"), pytest.raises(InternalError, match=text) as caught:
        (Tensor.arange(5).realize() * 3 + 1).exp().realize()
    assert "kernel " in caught.value.kernel and "i32[5]" in str(caught.value)


def test_mistakes_of_users_stay_what_they_are() -> None:
    with pytest.raises(ShapeError), reporting(lambda: "kernel"):
        raise ShapeError("[add] expected shapes that broadcast")
