"""Unrolling: `check(before, after)` on texts, and the meaning stays."""
# Tests know their dims are ints.
# mypy: disable-error-code="arg-type"
import numpy as np
import pytest

from minigrad.codegen.ir.interpret import interpret_function
from minigrad.codegen.ir.text import parse_function, print_function
from minigrad.codegen.ir.verify import verify_function
from minigrad.codegen.transforms.unroll import unroll
from minigrad.errors import InternalError

HEAD = "func f(in a: f32[64], inout y: f32[64], n: index in 0..3)\n"


def check(before: str, after: str) -> None:
    function = parse_function(HEAD + before)
    verify_function(function)
    unrolled = unroll(function)
    verify_function(unrolled)
    assert print_function(unrolled) == HEAD + after
    results = []
    for f in (function, unrolled):
        y = np.arange(64, dtype=np.float32)
        interpret_function(f, {"a": np.linspace(-1, 1, 64, dtype=np.float32), "y": y}, dims={"n": 2})
        results.append(y)
    np.testing.assert_array_equal(*results)


def test_lets_are_renamed_per_copy():
    check("  for i in 0..2 unroll:\n    let t = a[i]\n    y[8*i+1] = t * t\n",
          "  let t_0 = a[0]\n  y[1] = t_0 * t_0\n  let t_1 = a[1]\n  y[9] = t_1 * t_1\n")


def test_nested_and_dependent_bounds():
    check("  for i in 1..3 unroll:\n    for j[0..2] in 0..i unroll:\n      y[8*i+j] = a[j]\n",
          "  y[8] = a[0]\n  y[16] = a[0]\n  y[17] = a[1]\n")


def test_conditions_are_resolved():
    check("  for i in 0..3 unroll:\n    y[i] if i-1 >= 0 and -i+n >= 0 = (a[i] else 7.0 if i-2 >= 0)\n",
          "  y[1] if n-1 >= 0 = 7.0\n  y[2] if n-2 >= 0 = a[2]\n")


def test_branches_are_chosen():
    check("  for i in 0..2 unroll:\n    if i-1 >= 0:\n      let t = a[3]\n      y[i] = t\n"
          "    else:\n      y[i] = 2.0\n",
          "  y[0] = 2.0\n  let t_1 = a[3]\n  y[1] = t_1\n")


def test_undecided_branches_stay():
    check("  for i in 0..1 unroll:\n    if -i+n-1 >= 0:\n      y[i] = 1.0\n    else:\n      y[i+1] = 2.0\n",
          "  if n-1 >= 0:\n    y[0] = 1.0\n  else:\n    y[1] = 2.0\n")


def test_other_loops_stay_and_registers_become_constant():
    check("""\
  for v in 0..8 vector:
    alloc acc: f32[2] register
    for i in 0..2 unroll:
      acc[i] = 0.0
    for k in 0..4 serial:
      for i in 0..2 unroll:
        let t = a[8*k+v]
        acc[i] = acc[i] + t
    for i in 0..2 unroll:
      y[8*i+v] = acc[i]
""", """\
  for v in 0..8 vector:
    alloc acc: f32[2] register
    acc[0] = 0.0
    acc[1] = 0.0
    for k in 0..4 serial:
      let t_0 = a[8*k+v]
      acc[0] = acc[0] + t_0
      let t_1 = a[8*k+v]
      acc[1] = acc[1] + t_1
    y[v] = acc[0]
    y[v+8] = acc[1]
""")


def test_allocations_and_serial_loops_inside_are_copied():
    check("""\
  for i in 0..2 unroll:
    alloc acc: f32[1] register
    acc[0] = 0.0
    for k[0..3] in i..4 serial:
      let t = a[k]
      acc[0] = acc[0] + t
    for k[0..3] in 0..i serial:
      let t = a[k] * 2.0
      acc[0] = acc[0] + t
    y[i] = acc[0]
""", """\
  alloc acc_0: f32[1] register
  acc_0[0] = 0.0
  for k in 0..4 serial:
    let t_0 = a[k]
    acc_0[0] = acc_0[0] + t_0
  for k[0..3] in 0..0 serial:
    let t_0_ = a[k] * 2.0
    acc_0[0] = acc_0[0] + t_0_
  y[0] = acc_0[0]
  alloc acc_1: f32[1] register
  acc_1[0] = 0.0
  for k[0..3] in 1..4 serial:
    let t_1 = a[k]
    acc_1[0] = acc_1[0] + t_1
  for k[0..3] in 0..1 serial:
    let t_1_ = a[k] * 2.0
    acc_1[0] = acc_1[0] + t_1_
  y[1] = acc_1[0]
""")


def test_names_in_use_are_avoided():
    check("  let t_0 = a[5]\n  for i in 0..1 unroll:\n    let t = t_0 * a[i]\n    y[i] = t\n",
          "  let t_0 = a[5]\n  let t_0_ = t_0 * a[0]\n  y[0] = t_0_\n")


def test_values_used_as_indices_are_rewritten():
    head = "func f(in a: f32[64], in at: i32[8], inout y: f32[64])\n"
    before = "  for i in 0..2 unroll:\n    let t = at[i]\n    y[i] = a[{t in 0..9}+{at[i+1] in 0..9}]\n"
    after = ("  let t_0 = at[0]\n  y[0] = a[{at[1] in 0..9}+{t_0 in 0..9}]\n"
             "  let t_1 = at[1]\n  y[1] = a[{at[2] in 0..9}+{t_1 in 0..9}]\n")
    assert unroll(parse_function(head + before)) == parse_function(head + after)


def test_nothing_to_do_is_the_same_object():
    function = parse_function(HEAD + "  for i in 0..2 serial:\n    y[i] = a[i]\n")
    assert unroll(function) is function


def test_symbolic_bounds_are_refused():
    with pytest.raises(InternalError, match=r"\[unroll\] expected constant bounds of i, got 0..n"):
        unroll(parse_function(HEAD + "  for i in 0..n unroll:\n    y[i] = a[i]\n"))
