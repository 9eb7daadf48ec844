"""The verifier of loop IR: each rule, with the smallest function that breaks it."""
import pytest

from minigrad.codegen.ir.nodes import BufferParam, Function, Let, Loop, Store
from minigrad.codegen.ir.text import parse_function
from minigrad.codegen.ir.verify import verify_function
from minigrad.dtype import float32, int32
from minigrad.errors import InternalError
from minigrad.expr import Var
from minigrad.value import binary, const, load, local, make

HEAD = "func f(in a: f32[64], inout y: f32[64], s: f32, n: index in 0..3)\n"
ROW = Var("i", 0, 3)


def build(*body):
    return Function("f", (BufferParam("a", float32, 64), BufferParam("y", float32, 64, "out")), (), (), body)


def loop(var, *body, kind="serial"):
    return Loop(var, 0, 4, kind, body)


@pytest.mark.parametrize("text", [
    "  for p in 0..n+1 parallel:\n    for v in 0..8 vector:\n"
    "      let t = a[8*p+v]\n      y[8*p+v] = across(sum, t) + t\n",
    "  for v in 0..8 vector:\n    y[3] = across(max, a[v])\n    y[v+8] if n-1 >= 0 = (a[v-1] else s if v-1 >= 0)\n",
    "  for i in 0..2 serial:\n    let t = a[i]\n    y[i] = t\n"
    "  for i in 0..2 serial:\n    let t = a[i]\n    y[i] = t\n",
    "  for i in 0..2 unroll:\n    alloc r: f32[3] register\n    r[i] = a[i]\n    y[i] = r[i]\n",
    "  if n-1 >= 0:\n    let t = a[0]\n    y[0] = t\n  else:\n    let t = a[1]\n    y[0] = t\n",
    "  for v in 0..4 vector:\n    for k in 0..n serial:\n      if k-1 >= 0:\n"
    "        y[4*k+v] = f32(index(v))\n",
])
def test_right_functions_pass(text):
    verify_function(parse_function(HEAD + text))


@pytest.mark.parametrize("text, rule", [
    ("  a[0] = 1.0\n", "an input is never stored to"),
    ("  y[0] = 1\n", "expected a value of float32, got int32"),
    ("  let s = a[0]\n", "'s' is bound twice"),
    ("  for n in 0..3 serial:\n    y[0] = 1.0\n", "'n' is bound twice"),
    ("  let t = exp(1)\n", "exp: expected floats, got int32"),
    ("  let t = shl(1.0, 2.0)\n".replace("shl(1.0, 2.0)", "1.0 << 2.0"), "shl: expected integers, got float32"),
    ("  let t = 1.0 & 2.0\n", "and: expected integers or bools"),
    ("  let t = where(1, 2.0, 3.0)\n", "where: expected a bool"),
    ("  let t = bitcast(1.0, i64)\n", "bitcast: expected equal widths"),
    ("  let t = sum(c<4: a[c])\n", "a whole reduction belongs to kernels"),
    ("  let t = across(sum, a[0])\n", "outside a vector loop"),
    ("  for p in 0..2 parallel:\n    y[p] = 1.0\n  for q in 0..2 parallel:\n    y[q] = 1.0\n",
     "at most one parallel or group loop"),
    ("  for q in 0..2 serial:\n    for p in 0..2 parallel:\n      y[p] = 1.0\n", "a parallel loop is outermost"),
    ("  for p in 1..2 parallel:\n    y[p] = 1.0\n", "runs from 0"),
    ("  for v in 0..n vector:\n    y[v] = 1.0\n", "expected a loop .vector. from 0 to a constant"),
    ("  for v in 0..4 vector:\n    for w in 0..4 vector:\n      y[v+w] = 1.0\n", "may not stand inside another"),
    ("  for v in 0..4 vector:\n    for k[0..3] in 0..v serial:\n      y[v] = 1.0\n", "may not depend on the lane"),
    ("  for v in 0..4 vector:\n    let t = a[v]\n    y[0] = t\n", "stored with a value that depends on the lane"),
    ("  for v in 0..4 vector:\n    if v-1 >= 0:\n      y[v] = 1.0\n", "an if may not depend on the lane"),
    ("  for v in 0..4 vector:\n    barrier\n", "a barrier may not stand outside an item loop"),
    ("  for i in 0..n unroll:\n    y[i] = 1.0\n", "may depend only on unrolled loops"),
    ("  alloc r: f32[2] register\n  for i in 0..2 serial:\n    r[i] = 1.0\n",
     "a register offset is a constant below 2"),
    ("  alloc r: f32[2] register\n  for i in 0..2 serial:\n    for u in 0..2 unroll:\n      r[i] = 1.0\n",
     "a register offset is a constant below 2"),
    ("  alloc r: f32[2] register\n  r[2] = 1.0\n", "a register offset is a constant below 2"),
    ("  alloc r: f32[2] register\n  let t = r[-1]\n", "a register offset is a constant below 2"),
    ("  for i[0..2] in 0..4 serial:\n    y[i] = 1.0\n", "the variable is bounded by 0..2, but runs 0..4"),
    ("  let true1 = a[0]\n  let index = a[0]\n", "not a keyword"),
])
def test_broken_functions(text, rule):
    with pytest.raises(InternalError, match=r"\[verify\] f.*" + rule):
        verify_function(parse_function(HEAD + text))


@pytest.mark.parametrize("function, rule", [
    (build(Store("y", ROW, const(1, float32))), "index variables i are not bound"),
    (build(loop(ROW, Store("y", Var("i", 0, 9), const(1, float32)))), "index variables i are not bound"),
    (build(loop(ROW), Store("y", 0, load("a", (ROW,), float32))), "index variables i are not bound"),
    (build(Let("t", local("u", float32))), "u is read as float32 and is not bound"),
    (build(loop(ROW, Let("t", const(1, float32))), Store("y", 0, local("t", float32))), "t is read as float32"),
    (build(Let("t", const(1, int32)), Store("y", 0, local("t", float32))), "and is int32 here"),
    (build(Store("y", 0, load("a", (0,), int32))), "load of a as int32 at 1 offsets; it is float32"),
    (build(Store("y", 0, load("a", (0, 1), float32))), "at 2 offsets"),
    (build(Store("y", 0, load("b", (0,), float32))), "not known here"),
    (build(Store("z", 0, const(1, float32))), "the buffer is not known here"),
    (build(Store("y", 0, make("add", float32, (const(1, float32), const(1, int32))))), "2 operands of one type"),
    (build(Let("t", make("lt", float32, (const(1, float32), const(1, float32))))), "got the result type float32"),
    (build(Let("t", make("tan", float32, (const(1, float32),)))), "tan: unknown operation"),
    (build(Let("t", make("const", float32, (), 1))), "expected a float32, got 1"),
    (build(Let("t", make("const", int32, (), 2 ** 31))), "expected a int32, got 2147483648"),
    (build(loop(ROW, kind="sideways")), "expected a kind of serial"),
    (build(Let("a b", binary("add", const(1, int32), const(1, int32)))), "expected an identifier"),
    (Function("f", (BufferParam("y", float32, 4, "both"),), (), (), ()), "expected a mode of in, out, inout"),
    (Function("f", (BufferParam("y", float32, ROW),), (), (), ()), "parameter y: index variables i are not bound"),
    (Function("f", (), (), (Var("n", 0, 4).bind(2),), ()), "dim n has a run-time value"),
])
def test_broken_objects(function, rule):
    with pytest.raises(InternalError, match=rule):
        verify_function(function)
