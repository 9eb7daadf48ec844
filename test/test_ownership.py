"""References are counted in one place, which knows what it counts."""
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from minigrad import Tensor, jit, ownership
from minigrad.engine.donation import outside_references
from minigrad.scheduler.graph import build_graph

PACKAGE = Path(ownership.__file__).parent


def test_nobody_else_counts() -> None:
    found = [str(path.relative_to(PACKAGE)) for path in PACKAGE.rglob("*.py") if "getrefcount" in path.read_text()]
    assert found == ["ownership.py"]


def test_holders() -> None:
    holder = SimpleNamespace(value=object())
    seen = ownership.holders([object(), holder.value, holder])
    alone = [ownership.held_by_at_most(k, [holder.value]) for k in (0, 1)]
    other = holder.value
    shared = [ownership.held_by_at_most(k, [object(), other]) for k in (1, 2)]
    assert seen == [0, 1, 1] and alone == shared == [False, True]


def test_a_tensor_of_a_graph_is_a_reference_from_outside() -> None:
    x = Tensor(np.ones(3, np.float32)).realize()
    y = x.detach() + x
    graph = build_graph([y.node])
    outside = outside_references(graph)
    held = [n for n in (*graph.nodes, *graph.aliases) if outside[id(n)]]
    assert set(outside.values()) == {0, 1} and set(map(id, held)) == {id(x.node), id(y.node)}


@pytest.mark.parametrize("count", [lambda x: 7, lambda x: sys.getrefcount(x) // 2, None])
def test_an_interpreter_that_counts_otherwise_is_told_of(count, monkeypatch) -> None:
    monkeypatch.setattr(ownership, "_count", count)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        assert ownership._calibrate() is None
    assert [w.category for w in seen] == [RuntimeWarning] * (count is not None)


def test_memory_comes_back_only_where_references_can_be_counted(monkeypatch) -> None:
    f, x = jit(lambda x: x * 2), Tensor(np.ones(5, np.float32)).realize()
    for _ in range(6):
        f(x)
    assert len({id(f(x).node) for _ in range(5)}) == 1
    monkeypatch.setattr(ownership, "_own", None)
    held = [f(x).node for _ in range(5)]
    assert len(set(held)) == 5 and all(n.storage is not m.storage for n in held for m in held if n is not m)
