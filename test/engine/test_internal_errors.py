"""What is minigrad's own mistake says so, with the kernel and how to report it; nothing is left to `assert`."""
from __future__ import annotations

import ast
import pickle
from collections.abc import Callable
from typing import Any, NoReturn

import pytest
from support.paths import ROOT

from minigrad import Tensor, config, jit, show
from minigrad.codegen import passes
from minigrad.codegen.policy import general
from minigrad.codegen.render import llvm
from minigrad.errors import InternalError, ShapeError, present, reporting

PACKAGE = ROOT / "minigrad"


WAYS = "_stages_of", "render_llvm", "render_llvm_gpu", "render_opencl", "_render"
"""What plans, builds and writes kernels: only the list of passes calls it, where failures are reported."""


def test_nothing_is_left_to_assert_and_nothing_compiles_by_another_way() -> None:
    called = set()
    for file in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            assert not isinstance(node, ast.Assert), f"{file}:{node.lineno}"
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in WAYS:
                assert file == PACKAGE / "codegen" / "passes.py", f"{file}:{node.lineno}"
                called.add(node.func.id)
    assert called == set(WAYS)


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


def broken_by(error: Exception) -> Callable[..., NoReturn]:
    def broken(*_: object) -> NoReturn:
        raise error

    return broken


def steps(count: int) -> Tensor:
    """A kernel of its own: nothing of it is in a cache."""
    return (Tensor.arange(count, device="CPU").realize() * 3 + 1).exp()


@pytest.mark.parametrize("error, text", [(KeyError, "KeyError: 'm'"), (AssertionError, "AssertionError: m"),
                                         (InternalError, "^m\n")])
@pytest.mark.parametrize("stage", ["plan", "build_nests", "render"])
def test_errors_of_the_compiler_carry_the_kernel(stage: str, error: type[Exception], text: str,
                                                 monkeypatch: pytest.MonkeyPatch) -> None:
    """A policy that fails, loops that cannot be built, text that cannot be written."""
    places: dict[str, Any] = {"plan": general, "build_nests": passes, "render": llvm.LlvmProgram}
    monkeypatch.setattr(places[stage], stage, broken_by(error("m")))
    with config(disk_cache=False), pytest.raises(InternalError, match=text) as caught:
        steps(1000 + len(stage)).realize()
    found = str(caught.value)
    assert "report it" in found and ("func " if stage == "render" else "kernel ") in found.split("The kernel:")[1]


ENTRIES: dict[str, Callable[[], object]] = {
    "realize": lambda: steps(101).realize(),
    "numpy": lambda: steps(102).numpy(),
    "several": lambda: Tensor.realize(steps(103), steps(104)),
    "jit": lambda: jit(lambda x: (x * 7).exp())(Tensor.arange(106.0, device="CPU").realize()),
    "show": lambda: show(steps(107), stage="loops"),
    "dry run": lambda: show(steps(108), stage="source"),
}


@pytest.mark.parametrize("entry", ENTRIES)
def test_every_entry_reports_a_broken_strategy(entry: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(general, "plan", broken_by(AssertionError()))
    passes.forget_stages()
    with config(disk_cache=False), pytest.raises(InternalError, match=r"(?s)AssertionError.*report it.*kernel "):
        ENTRIES[entry]()


def test_a_replay_that_compiles_reports_it_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """A captured step that is called with another type is lowered again."""
    step = jit(lambda x: (x * 11).exp())
    with config(disk_cache=False):
        for _ in range(3):
            step(Tensor.arange(109.0, device="CPU").realize())
        monkeypatch.setattr(general, "plan", broken_by(AssertionError()))
        with pytest.raises(InternalError, match=r"(?s)report it.*kernel "):
            step(Tensor.arange(110, device="CPU").realize())


def test_mistakes_of_users_stay_what_they_are() -> None:
    with pytest.raises(ShapeError), reporting(lambda: "kernel"):
        raise ShapeError("[add] expected shapes that broadcast")
