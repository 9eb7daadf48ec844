"""A policy that minigrad does not have, from the pattern to a plan, in less than 40 lines: lanes along M."""
# Tests know their dims are ints.
# mypy: disable-error-code="arg-type"
import inspect

import numpy as np
import pytest
from support.golden_plans import TARGETS
from support.packed import equal_the_kernel, flat_kernel

from minigrad import Tensor, config, plans
from minigrad.codegen.kernel.access import extent, value_accesses
from minigrad.codegen.kernel.nodes import Nest
from minigrad.codegen.patterns.recognise import recognise
from minigrad.codegen.plan.build import build
from minigrad.codegen.plan.steps import Bind, Order, Plan, Split
from minigrad.codegen.plan.text import parse_plan
from minigrad.target import Target


def lanes_along_rows(nest: Nest, target: Target) -> Plan | str:
    """Few columns of a product whose first operand is contiguous along M: vectors of rows, all columns in registers."""
    c = recognise(nest)
    if isinstance(c, str):
        return c
    if not len(c.m) == len(c.n) == len(c.k) == 1 or c.batch:
        return "expected one variable of M, of N and of K"
    (m,), (n,), (k,) = c.m, c.n, c.k
    width, columns = target.lanes(c.a.dtype.bits), extent(n)
    if any(a.step(m) != 1 for a in value_accesses(c.a, ())) or extent(m) < width:
        return f"expected the first operand contiguous along {m}, a vector of it at least"
    vectors = max(1, min((target.registers - 2) // (columns + 1), extent(m) // width))
    if columns * vectors + vectors + 1 > target.registers:
        return f"expected columns that registers hold, got {columns}"
    return Plan("lanes_along_rows", (
        Split(m.name, "i", "ii", vectors * width, "back"), Split("ii", "u", "l", width),
        Split(k.name, "kb", "t", 2, "rest"),
        Bind("parallel", ("i",)), Bind("vector", ("l",)), Bind("unroll", ("t", "u", n.name)),
        Order(("i", "l", "kb", "t", "u", n.name))))


def product(m: int, k: int, n: int) -> Tensor:
    r = np.random.default_rng(m * k * n)
    a, b = (Tensor(r.integers(-8, 9, shape).astype(np.float32), device="CPU").realize() for shape in ((k, m), (k, n)))
    return a.transpose(0, 1) @ b


def test_it_is_short() -> None:
    assert len(inspect.getsource(lanes_along_rows).splitlines()) < 40


@pytest.mark.parametrize("target", [TARGETS[name] for name in ("avx2", "avx512", "neon")], ids=lambda t: t.name)
@pytest.mark.parametrize("m, k, n", [(32, 8, 3), (50, 7, 5), (17, 9, 4)])
def test_its_loops_are_the_product(m: int, k: int, n: int, target: Target) -> None:
    kernel = flat_kernel(product(m, k, n), target)
    made = lanes_along_rows(kernel.nests[0], target)
    assert isinstance(made, Plan), made
    assert parse_plan(str(made)) == made and made.bound("vector") == ("l",)
    equal_the_kernel(kernel, [build(kernel, kernel.nests[0], made, "f")])


def test_it_runs() -> None:
    """As a user gives it; the numbers are those of the plan that it replaces."""
    with config(device="CPU"):
        x = product(1000, 64, 4)
        kernel, = [n for n in plans.of(x) if "sum" in n]
        made = lanes_along_rows(flat_kernel(x, TARGETS["avx2"]).nests[0], TARGETS["avx2"])
        expected = product(1000, 64, 4).numpy()
        with plans({kernel: str(made)}):
            found = product(1000, 64, 4).numpy()
    np.testing.assert_array_equal(found, expected)
