"""Microkernels that run a tile, `call tile_... at i`: of any panels, over any sizes, as the kernel says, or refused."""
# Tests know their dims are ints.
# mypy: disable-error-code="arg-type"
import numpy as np
import pytest
from conftest import one_in
from support.plan_reading import equals
from support.random_plans import mutated

from minigrad.codegen.kernel.nodes import Kernel
from minigrad.codegen.kernel.text import parse_kernel
from minigrad.codegen.plan.build import build
from minigrad.codegen.plan.text import parse_plan
from minigrad.errors import PlanError

TILE = """plan
  split r0 -> w t by {group}
  split i1 -> i1b c by 20, short
  split w -> kb k by 3, short
  split i0 -> i u by 3, guard
  split c -> j l by 8, guard
  bind parallel i1b
  bind vector l
  bind unroll u
  order i1b kb j i l k t u
  stage p0 at kb as {a}{t}
  stage p1 at kb as [k][c]{t}
  results at i1b as [i0][c]
  call tile_{kind}_3x8_{along} at i
"""


def product(m: int, n: int, k: int, a: str, b: str, total: str) -> Kernel:
    """A product of narrow or other operands, widened to the type of the sum."""
    x, y = (f"{load}" if dtype == total else f"{total}({load})"
            for load, dtype in ((f"p0[{k}*i0+r0]", a), (f"p1[{n}*r0+i1]", b)))
    return parse_kernel(f"kernel product(out o0: {total}[{m * n}], p0: {a}[{m * k}], p1: {b}[{n * k}])\n"
                        f"  for i0<{m}, i1<{n}:\n    t0 = sum(r0<{k}: {x} * {y})\n    o0[{n}*i0+i1] = t0 + t0\n")


def tile(kind: str, group: int, along: str) -> str:
    """The plan of a tile of 3 rows and 8 columns."""
    text = TILE.format(kind=kind, along=along, group=group, t="[t]", a="[i0][k]" if along == "k" else "[k][i0]")
    return text if group > 1 else text.replace("r0 -> w t by 1", "r0 -> kb k by 3, short").replace(
        "  split w -> kb k by 3, short\n", "").replace("[t]", "").replace(" k t u", " k u")


KINDS = {"f32": ("f32", "f32", "f32", 1), "f64": ("f64", "f64", "f64", 1), "i16x2": ("i8", "u8", "i32", 2),
         "i8x4": ("i8", "i8", "i32", 4), "u8x4": ("u8", "i8", "i32", 4), "signed": ("i8", "i8", "i32", 4),
         "wraps": ("i16", "i16", "u32", 2), "bf16x2": ("bf16", "bf16", "f32", 2)}
NAMES = {"signed": "u8x4", "wraps": "i16x2"}


@pytest.mark.parametrize("sizes", [(3, 8, 1), (12, 40, 8), (7, 21, 5), (10, 20, 3), (2, 45, 6)], ids=str)
@pytest.mark.parametrize("along", ["k", "m"])
@pytest.mark.parametrize("kind", KINDS)
@one_in(3)
def test_a_tile_is_what_the_kernel_says(kind: str, along: str, sizes: tuple[int, int, int]) -> None:
    a, b, total, group = KINDS[kind]
    m, n, words = sizes
    equals(product(m, n, words * group, a, b, total), tile(NAMES.get(kind, kind), group, along))


@pytest.mark.parametrize("kind", ["f32", "signed"])
def test_a_changed_call_is_refused_or_right(kind: str) -> None:
    a, b, total, group = KINDS[kind]
    kernel, text = product(7, 21, 5 * group, a, b, total), tile(NAMES.get(kind, kind), group, "k")
    rng, accepted = np.random.default_rng(7), 0
    for _ in range(200):
        changed = mutated(rng, text)
        try:
            build(kernel, kernel.nests[0], parse_plan(changed), "changed")
        except PlanError as error:
            assert "expected" in str(error)
            continue
        equals(kernel, changed)
        accepted += 1
    assert accepted >= 3


@pytest.mark.parametrize("old, new, message", [
    ("tile_u8x4_3x8_k", "tile_u8x4_4x8_k", "expected 4 neighbours of i0, 8 of c and loops of the sum inside i, got"),
    ("tile_u8x4_3x8_k", "tile_i8x4_3x8_m", r"expected a copy as \[steps\]\[i0\] of all steps inside i, evenly apart"),
    ("tile_u8x4_3x8_k", "tile_f32_3x8_k", "expected operands of float32, and of float32, got others"),
    ("tile_u8x4_3x8_k", "tile_i16x2_3x8_k", "expected copies whose last coordinate are the 2 neighbours of a word"),
    ("tile_u8x4_3x8_k", "some_tile", "expected a microkernel of a matrix unit, of sub-groups, of blocks or of a tile"),
    ("  stage p1 at kb as [k][c][t]\n", "", "expected copies|expected a copy"),
    ("  results at i1b as [i0][c]\n", "", r"expected results by way of memory, as \[rows\]\[columns\], got others"),
    ("at i\n", "at i\n  ahead p1 at k by 1 of k\n", "expected a loop around the sum that tile_u8x4_3x8_k runs, got k"),
    ("[k][c][t]", "[c][k][t]", r"expected a copy as \[steps\]\[c\] of all steps inside i, evenly apart, got none"),
])
def test_a_wrong_call_says_what_was_expected(old: str, new: str, message: str) -> None:
    text = tile("u8x4", 4, "k")
    assert old in text
    kernel = product(7, 21, 20, "i8", "i8", "i32")
    with pytest.raises(PlanError, match=message):
        build(kernel, kernel.nests[0], parse_plan(text.replace(old, new)), "wrong")


def test_a_signed_operand_needs_room_for_a_row_below() -> None:
    kernel = product(6, 21, 20, "i8", "i8", "i32")
    text = tile("u8x4", 4, "k").replace("by 3, guard", "by 3")
    with pytest.raises(PlanError, match="expected `split i0` by 3, guard, as there is a row below"):
        build(kernel, kernel.nests[0], parse_plan(text), "wrong")
