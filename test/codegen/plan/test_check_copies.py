"""A copy that lacks what is read of it is found, whatever is read: with taps, steps and rows of any kind."""
import pytest
from support.plan_stage import product

from minigrad.codegen.plan import runs
from minigrad.codegen.plan.box import Box
from minigrad.codegen.plan.check_copies import check_copies
from minigrad.codegen.plan.text import parse_plan
from minigrad.errors import InternalError

PLAN = parse_plan("""plan
  split i1 -> j l by 16, exact
  bind parallel i0
  bind vector l
  order i0 j l r0
  stage p1 at i0 as [r0][j][l]
""")


def check() -> None:
    kernel = product(8, 32, 12)
    check_copies(kernel, kernel.nests[0], PLAN)


def test_whole_copies_pass() -> None:
    check()


def test_copies_that_lack_elements_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "_count", lambda loops, name, here: loops.count(name, here) - (name == "r0"))
    with pytest.raises(InternalError, match="never written"):
        check()


def test_places_outside_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    at = Box.at
    monkeypatch.setattr(Box, "at", lambda self, here: at(self, here) + 16)
    with pytest.raises(InternalError, match="are written"):
        check()
