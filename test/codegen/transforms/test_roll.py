"""Rolling: long unrolled stores become serial loops, `check(before, after)` on texts, and the meaning stays."""
# Tests know their dims are ints.
# mypy: disable-error-code="arg-type"
import numpy as np
import pytest

from minigrad.codegen.ir.interpret import interpret_function
from minigrad.codegen.ir.nodes import Loop
from minigrad.codegen.ir.text import parse_function, print_function
from minigrad.codegen.ir.verify import verify_function
from minigrad.codegen.ir.walk import statements
from minigrad.codegen.transforms.roll import roll

HEAD = "func f(in a: f32[1024], inout y: f32[1024], n: index in 0..3)\n"
TILE = """\
  for l in 0..8 vector:
    alloc acc: f32[16] register
    for k in 0..16 unroll:
      acc[k] = a[8*k+l]
"""


def check(before: str, after: str) -> None:
    function = parse_function(HEAD + before)
    verify_function(function)
    rolled = roll(function)
    verify_function(rolled)
    assert print_function(rolled) == HEAD + after
    results = []
    for f in (function, rolled):
        y = np.zeros(1024, dtype=np.float32)
        interpret_function(f, {"a": np.linspace(-1, 1, 1024, dtype=np.float32), "y": y}, dims={"n": 2})
        results.append(y)
    np.testing.assert_array_equal(results[0], results[1])


def test_a_long_epilogue_reads_its_tile_from_memory():
    check(TILE + """\
    for u in 0..4 unroll:
      for v in 0..4 unroll:
        y[l+32*u+8*v] = sigmoid(acc[4*u+v])
""", TILE + """\
    alloc tile_acc: f32[16] scratch
    for slot in 0..16 unroll:
      tile_acc[slot] = acc[slot]
    for u in 0..4 serial:
      for v in 0..4 unroll:
        y[l+32*u+8*v] = sigmoid(tile_acc[4*u+v])
""")


def test_a_short_epilogue_stays():
    text = TILE + "    for u in 0..16 unroll:\n      y[l+8*u] = acc[u] * 2.0 + 1.0\n"
    check(text, text)


def test_what_only_happens_at_an_edge_is_rolled_early():
    check(TILE + "    for u in 0..16 unroll:\n      y[l+8*u] if 4*n-u >= 0 = acc[u]\n",
          TILE + """\
    alloc tile_acc: f32[16] scratch
    for slot in 0..16 unroll:
      tile_acc[slot] = acc[slot]
    for u in 0..16 serial:
      y[l+8*u] if 4*n-u >= 0 = tile_acc[u]
""")


@pytest.mark.parametrize("apart", ["9*l", "n*l"])
def test_stores_whose_lanes_are_far_apart_are_long(apart: str) -> None:
    """By a number, or by an argument: each lane is a store of its own."""
    store = "  for u in 0..16 unroll:\n    y[{}+16*u] = a[l+8*u] * 2.0\n".replace("  ", "    ")
    head = "  for l in 0..8 vector:\n"
    before = parse_function(HEAD + head + store.format(apart))
    kinds = [s.kind for s in statements(roll(before)) if isinstance(s, Loop)]
    assert kinds == ["vector", "serial"]
    assert roll(close := parse_function(HEAD + head + store.format("l"))) == close


def test_sums_in_registers_stay():
    text = TILE + "    for u in 0..16 unroll:\n      acc[u] = exp(acc[u])\n" \
        "    for u in 0..16 unroll:\n      y[l+8*u] = acc[u]\n"
    check(text, text)


def test_a_square_is_transposed_first():
    check("""\
  for l in 0..8 vector:
    for u in 0..16 unroll:
      y[l+8*u] = exp(a[32*l+u])
""", """\
  for l in 0..8 vector:
    alloc columns: f32[16] scratch
    for u in 0..16 unroll:
      columns[u] = a[32*l+u]
    for u in 0..16 serial:
      y[l+8*u] = exp(columns[u])
""")


def test_a_language_without_squares_gathers_in_a_loop():
    function = parse_function(HEAD + "  for l in 0..8 vector:\n    for u in 0..8 unroll:\n      y[8*u+l] = a[64*l+u]\n")
    kinds = [[s.kind for s in statements(roll(function, transposing=transposing)) if isinstance(s, Loop)]
             for transposing in (True, False)]
    assert kinds == [["vector", "unroll"], ["vector", "serial"]]


def test_a_masked_square_is_transposed_under_its_mask():
    check("""\
  for l in 0..8 vector:
    for u in 0..16 unroll:
      y[l+8*u] = (exp(a[32*l+u]) else 0.0 if -l+5 >= 0)
""", """\
  for l in 0..8 vector:
    alloc columns: f32[16] scratch
    for u in 0..16 unroll:
      columns[u] = (a[32*l+u] else 0.0 if -l+5 >= 0)
    for u in 0..16 serial:
      y[l+8*u] = (exp(columns[u]) else 0.0 if -l+5 >= 0)
""")


@pytest.mark.parametrize("column", ["8*u", "n*u"])
def test_copies_that_are_no_columns_of_a_square_are_gathered_in_a_loop(column: str) -> None:
    """Elements far apart, by a number or by an argument, share no rows to load."""
    store = f"      y[l+8*u] = exp(a[32*l+{column}])\n"
    check("  for l in 0..8 vector:\n    for u in 0..16 unroll:\n" + store,
          "  for l in 0..8 vector:\n    for u in 0..16 serial:\n" + store)


def test_what_is_stored_under_a_condition_is_read_under_it():
    check("""\
  for l in 0..8 vector:
    for u in 0..16 unroll:
      y[l+8*u] if -l+5 >= 0 = exp(a[32*l+u])
""", """\
  for l in 0..8 vector:
    alloc columns: f32[16] scratch
    for u in 0..16 unroll:
      columns[u] = (a[32*l+u] else 0.0 if -l+5 >= 0)
    for u in 0..16 serial:
      y[l+8*u] if -l+5 >= 0 = exp(columns[u])
""")


@pytest.mark.parametrize("condition", ["-l-u+9 >= 0", "-u+9 >= 0"])
def test_a_square_whose_mask_differs_by_column_is_gathered_in_a_loop(condition: str):
    check(f"""\
  for l in 0..8 vector:
    for u in 0..16 unroll:
      y[l+8*u] = (exp(a[32*l+u]) else 0.0 if {condition})
""", f"""\
  for l in 0..8 vector:
    for u in 0..16 serial:
      y[l+8*u] = (exp(a[32*l+u]) else 0.0 if {condition})
""")


def test_two_stores_share_one_copy_of_the_tile():
    check(TILE + """\
    for u in 0..16 unroll:
      y[l+8*u] = exp(acc[u])
      y[l+8*u+512] = acc[u] * acc[u]
""", TILE + """\
    alloc tile_acc: f32[16] scratch
    for slot in 0..16 unroll:
      tile_acc[slot] = acc[slot]
    for u in 0..16 serial:
      y[l+8*u] = exp(tile_acc[u])
      y[l+8*u+512] = tile_acc[u] * tile_acc[u]
""")
