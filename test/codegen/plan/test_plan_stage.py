"""Products whose operands are staged and whose sums are kept equal their kernel, for whole and odd sizes."""
# Tests know their dims are ints.
# mypy: disable-error-code="arg-type"
import pytest
from conftest import one_in
from support.plan_reading import equals
from support.plan_stage import product

from minigrad.errors import PlanError

SPLITS = """plan
  split i0 -> um mm by 16, short
  split i1 -> un nn by 32, short
  split mm -> i u by 4, back
  split nn -> j jj by 16, back
  split jj -> v l by 8, exact
  split r0 -> kb kk by 8, short
  split kk -> k t by 2, rest
  bind parallel um un
  bind vector l
  bind unroll u v t
"""
PANELS = SPLITS + "  order um un kb j i l k t u v\n  stage p1 at kb as [j][kk][v][l]\n"
PLANS = {
    "in place, kept": SPLITS + "  order um un kb j i l k t u v\n",
    "panels of B": PANELS,
    "panels of B, one at a time": PANELS.replace("at kb as [j]", "at j as "),
    "B for all rows first": PANELS.replace("order um un kb j i", "order um un kb i j"),
    "both": PANELS + "  stage p0 at kb as [i][kk][u]\n",
    "no blocks of the sum": PANELS.replace("  split r0 -> kb kk by 8, short\n", "").replace("kk", "r0").replace(
        "un kb j", "un j").replace("at kb", "at un"),
}


@pytest.mark.parametrize("sizes", [(16, 32, 8), (32, 64, 16), (19, 37, 21), (33, 70, 11), (5, 17, 3)], ids=str)
@pytest.mark.parametrize("plan", PLANS)
@one_in(2)
def test_products_equal_the_kernel(plan: str, sizes: tuple[int, int, int]) -> None:
    equals(product(*sizes), PLANS[plan])


@pytest.mark.parametrize("layout", ["[k]", "[u][k]", "[k][u]"])
@pytest.mark.parametrize("sizes", [(8, 5, 16), (7, 5, 21)], ids=str)
def test_copies_of_blocks_as_long_as_others_are_zero_outside(sizes: tuple[int, int, int], layout: str) -> None:
    equals(product(*sizes), f"""plan
  split i0 -> i u by 4, guard
  split r0 -> kb k by 8, guard
  order {"i kb u" if "u" in layout else "i u kb"} i1 k
  stage p0 at kb as {layout}
""")


@pytest.mark.parametrize("sizes", [(16, 32, 8), (19, 37, 20), (33, 70, 13), (16, 32, 11)], ids=str)
def test_operands_are_transposed_in_registers(sizes: tuple[int, int, int]) -> None:
    """And one by one where the last block is shorter than a square."""
    equals(product(*sizes, b="i1, r0"), PANELS.rstrip() + ", transposed kk by 4\n")


def test_what_is_staged_has_its_casts_factors_and_guards() -> None:
    both = "(p0[i0, r0] * p2[r0] else 0.0 if r0 - 2 >= 0) * p1[{}]"
    text = PANELS + "  stage p0 at kb as [i][kk][u]\n"
    equals(product(19, 37, 21, value=both), text)
    outside = "((p0[i0, r0] * p1[{}]) * p2[r0] else 0.0 if r0 - 2 >= 0)"
    equals(product(19, 37, 21, value=outside), text)


@pytest.mark.parametrize("change, message", [
    (("[j][kk][v][l]", "[j][kk][v]"), "one part of a sum's terms that reads p1 and depends on its coordinates"),
    (("stage p1", "stage p7"), "one part of a sum's terms that reads p7"),
    (("at kb as [j][kk][v][l]", "at um as [j][kk][v][l]"), "one part of a sum's terms that reads p1"),
    (("at kb as [j]", "at kb as [jx]"), "expected coordinates among .*, got jx"),
    (("[j][kk][v][l]", "[nn][kk]"), "expected coordinates whose blocks do not reach back, got nn"),
    (("by 8, short\n  split kk", "by 8, rest\n  split kk"), "split r0, rest: expected back or short, as l stands"),
    (("mm by 16, short", "mm by 16, exact"), "expected an edge, back, guard, rest or short, as 16 does not divide"),
    (("u by 4, back", "u by 4, rest"), "split mm by 4, rest: expected back"),
])
def test_what_cannot_be_staged_or_kept_is_an_error(change: tuple[str, str], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        equals(product(19, 37, 21), PANELS.replace(*change))
