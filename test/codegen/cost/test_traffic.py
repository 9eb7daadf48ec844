"""Counts of launches on GPUs: equal to what the interpreter executes, and what they say of the memory's parts."""
from collections import Counter

import numpy as np
import pytest
from support.gpu_kernels import FAMILIES, Draw, kernel

from minigrad import Tensor, config
from minigrad.codegen.cost import points
from minigrad.codegen.cost.issue import Work
from minigrad.codegen.cost.traffic import work_of
from minigrad.codegen.ir.interpret import interpret_function
from minigrad.codegen.ir.nodes import Call, Function
from minigrad.codegen.ir.walk import accesses, statements
from minigrad.engine.plan import Item
from minigrad.errors import present
from minigrad.expr import evaluate
from minigrad.report.dry import running_dry

MOST = 8_000
"""Work-items of a launch that the interpreter runs in a second, and a twentieth of loads of local memory."""


def items_of(make) -> list[Item]:
    """The launches of what a function makes, planned for a GPU that is not here."""
    with config(device="AMD:gfx1031"), running_dry() as dry:
        made = make()
        tensors = made if isinstance(made, tuple) else (made,)
        before = len(dry.plans)
        Tensor.realize(*tensors)
        found = [item for plan in dry.plans[before:] for item in plan.items]
        dry.forget()
    return found


def counts(item: Item, wave: int = 32, sector: int = 32) -> Work:
    return work_of(present(item.function, "a function"), dims_of(item), wave, sector)


def dims_of(item: Item) -> dict[str, int]:
    assert item.function is not None
    return {v.name: int(n) for v, n in zip(item.function.dims, item.rows[0].dims, strict=True)}


def interpreted(function: Function, dims: dict[str, int]) -> Counter:
    """Loads and stores of elements, by (buffer, 'load' or 'store')."""
    buffers = {p.name: np.ones(evaluate(p.size, dims), p.dtype.np) for p in function.buffers}
    found: Counter = Counter()
    interpret_function(function, buffers, {s.name: 1 for s in function.scalars}, dims, counted=found)
    return found


def is_plain(function: Function) -> bool:
    """True where no index is loaded: what is loaded decides which elements are."""
    return not any(isinstance(s, Call) for s in statements(function)) and \
        not any(not isinstance(at, int) and "{" in str(at) + repr(at) for _, at, _ in accesses(function))


SMALL = [name for family in ("sums", "norms", "windows", "convolutions", "products") for name in FAMILIES[family]][::17]


def own(name: str):
    """Kernels that are small whatever their plan: products, transposes, rows."""
    a, b = (Tensor.randn(*shape).realize() for shape in ((21, 19), (19, 34)))
    return {"product": lambda: a @ b, "transposed product": lambda: b.T @ a.T, "transposed": lambda: a.T.contiguous(),
            "rows": lambda: a.softmax(1), "shifted": lambda: a.pad((1, 2, 0, 3)) + 1,
            "triangle": lambda: a[:, :19].tril() @ b}[name]()


OWN = ["product", "transposed product", "transposed", "rows", "shifted", "triangle"]


@pytest.mark.parametrize("name", [*SMALL, *OWN])
def test_counts_are_those_of_the_interpreter(name, monkeypatch):
    """Where all points of the launch are looked at."""
    monkeypatch.setattr(points, "MOST_POINTS", 1 << 24)
    checked = 0
    for item in items_of(lambda: own(name) if name in OWN else kernel(name)(Draw("AMD:gfx1031", name))):
        function, dims = present(item.function, "a function"), dims_of(item)
        work = counts(item)
        if work.groups * work.items > MOST or work.local_loads > 20 * MOST or not is_plain(function):
            continue
        checked += 1
        found = interpreted(function, dims)
        for buffer, moved in work.buffers.items():
            assert (moved.loads, moved.stores) == (found[buffer, "load"], found[buffer, "store"]), buffer
        local = Counter()
        for s in statements(function):
            if type(s).__name__ == "Alloc" and s.scope == "local":
                local["load"] += found[s.name, "load"]
                local["store"] += found[s.name, "store"]
        assert (work.local_loads, work.local_stores) == (local["load"], local["store"])
    print(name, checked)
