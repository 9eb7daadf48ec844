"""Loop IR texts: what is printed reads back as the same function, and errors name the line."""
import pytest

from minigrad.codegen.ir.nodes import BufferParam, Function, If, Let, Loop, ScalarParam, Store
from minigrad.codegen.ir.text import parse_function, print_function
from minigrad.dtype import ALL, bfloat16, bool_, float16, float32, float64, int8, int32, int64, uint64
from minigrad.errors import FormatError
from minigrad.expr import Var, emax, emin
from minigrad.value import (
    Value,
    ValueIndex,
    across,
    binary,
    bitcast,
    cast,
    const,
    guard,
    index,
    load,
    local,
    make,
    unary,
    where,
)

EVERYTHING = """\
func kinds(in a: f32[64*n], in b: bf16[256] from n, inout y: f32[4*n], s: f32, t: i64, n: index in 1..9)
  for i in 0..n parallel:
    alloc acc: f32[4] register
    alloc room: u8[1024] scratch
    for v in 0..4 vector:
      acc[0] = 0.0
      for k in 0..64 serial:
        acc[0] = fma(a[64*i+k], f32(b[4*k+v]), acc[0])
      let t1 = across(max, acc[0]) * s
      y[4*i+v] if -v+3 >= 0 = (exp(t1) else -1.0 if i-1 >= 0 and -v+2 >= 0)
    for j[0..12] in i..n+3 unroll:
      room[j] = bitcast(3:i8, u8)
    if i-1 >= 0 and -(i%2) >= 0:
      barrier
    else:
      let q = where(a[i] < 2.0, a[i] + 1.0, -a[i])
      y[i] = q * q - f32(index(i//4+3, i64))
"""


def round_trip(value: Value) -> str:
    """The printed text of one value in a function that has what it may mention; checked to read back."""
    i, j = Var("i", 0, 15), Var("j", 0, 7)
    body = Loop(i, 0, 16, "serial", (Loop(j, 0, 8, "serial", (Let("r", value),)),))
    buffers = (*(BufferParam(d.short + "_", d, 16) for d in ALL), BufferParam("y", value.dtype, 16, "out"))
    function = Function("f", buffers, (ScalarParam("s", float32), ScalarParam("k", int32)), (), (body,))
    text = print_function(function)
    assert parse_function(text) == function, text
    return text[text.index("serial:\n      ") + 14:].strip().removeprefix("let r = ")


ROW, COLUMN = Var("i", 0, 15), Var("j", 0, 7)
X, Y = load("f32_", (ROW,), float32), load("f32_", (COLUMN,), float32)


def test_every_statement_round_trips():
    text = EVERYTHING
    function = parse_function(text)
    assert print_function(function) == text
    assert parse_function(print_function(function)) == function


@pytest.mark.parametrize("value, text", [
    (binary("sub", X, binary("sub", Y, X)), "f32_[i] - (f32_[j] - f32_[i])"),
    (binary("mul", binary("add", X, Y), X), "(f32_[i] + f32_[j]) * f32_[i]"),
    (binary("lt", X, Y), "f32_[i] < f32_[j]"),
    (where(binary("ne", X, Y), X, Y), "where(f32_[i] != f32_[j], f32_[i], f32_[j])"),
    (binary("max", binary("lt", X, Y), binary("le", X, Y)), "max((f32_[i] < f32_[j]), (f32_[i] <= f32_[j]))"),
    (unary("neg", const(1.0, float32)), "neg(1.0)"),
    (unary("neg", X), "-f32_[i]"),
    (unary("neg", binary("mul", X, Y)), "-(f32_[i] * f32_[j])"),
    (binary("mul", unary("neg", X), Y), "-f32_[i] * f32_[j]"),
    (unary("not", const(True, bool_)), "not(true)"),
    (cast(X, int8), "i8(f32_[i])"),
    (bitcast(X, int32), "bitcast(f32_[i], i32)"),
    (binary("shl", local("k", int32), const(3, int32)), "k << 3"),
    (binary("idiv", local("k", int32), const(-3, int32)), "idiv(k, -3)"),
    (binary("sub", local("k", int32), const(-3, int32)), "k - -3"),
    (index(ROW * 4 + COLUMN, int64), "index(4*i+j, i64)"),
    (index(emin(ROW, COLUMN) + emax(ROW, 3) - ROW // 3 * (COLUMN % 5), int32), None),
    (guard(X, const(0, float32), (ROW + COLUMN - 3, 6 - COLUMN)), "(f32_[i] else 0.0 if i+j-3 >= 0 and -j+6 >= 0)"),
    (make("fma", float32, (X, Y, const(-0.0, float32))), "fma(f32_[i], f32_[j], -0.0)"),
    (across("sum", X), "across(sum, f32_[i])"),
    (load("f32_", (ValueIndex(load("i64_", (ROW,), int64), 0, 15) + COLUMN - 2,), float32), None),
    (load("f32_", (4 * ValueIndex(load("i32_", (ValueIndex(load("i32_", (ROW,), int32), 0, 9),), int32), -1, 15),),
          float32),
     "f32_[4*{i32_[{i32_[i] in 0..9}] in -1..15}]"),
])
def test_values(value, text):
    printed = round_trip(value)
    assert text is None or printed == text


@pytest.mark.parametrize("value, dtype, text", [
    (float("nan"), float32, "nan"), (float("inf"), float64, "inf:f64"), (float("-inf"), float16, "-inf:f16"),
    (-0.0, float32, "-0.0"), (0.1, float32, "0.1"), (1e-45, float32, "1e-45"), (1.7976931348623157e308, float64, None),
    (2.5, bfloat16, "2.5:bf16"), (-(2 ** 31), int32, "-2147483648"), (2 ** 64 - 1, uint64, "18446744073709551615:u64"),
    (False, bool_, "false"), (-128, int8, "-128:i8"), (1e16, float32, "1e+16"),
])
def test_constants(value, dtype, text):
    printed = round_trip(const(value, dtype))
    assert text is None or printed == text


def test_shared_values_are_named_once_and_texts_stay_linear():
    v = X
    for _ in range(200):
        v = binary("mul", unary("exp", v), binary("add", v, Y))
    printed = round_trip(v)
    assert len(printed) < 20_000 and printed.count("$7 =") == 1


def test_deep_values_are_cut_into_lines():
    v = X
    for _ in range(3000):
        v = unary("exp", v)
    assert max(map(len, round_trip(v).splitlines())) < 200


def test_equal_texts_for_functions_built_apart():
    def build():
        i = Var("i", 0, 15)
        value = binary("add", load("x", (i,), float32), const(1, float32))
        return Function("f", (BufferParam("x", float32, 16, "inout"),), (), (), (Store("x", 3, value, (i - 2,)),))
    assert print_function(build()) == print_function(build())


def test_empty_branches_and_defined_names_leave_with_their_block():
    shared = binary("mul", binary("add", X, Y), Y)
    body = (Let("p", binary("add", shared, shared)),)
    twice = (Loop(COLUMN, 0, 8, "serial", body), Loop(COLUMN, 0, 8, "serial", (If((ROW - 1,), body),)))
    function = Function("f", (BufferParam("f32_", float32, 16),), (), (), (Loop(ROW, 0, 16, "parallel", twice),))
    text = print_function(function)
    assert parse_function(text) == function and "$0" in text and "$1" in text


@pytest.mark.parametrize("text, message", [
    ("func f(", "line 1: expected"),
    ("func f(in x: f99[3])\n  barrier\n", "expected one of b8, "),
    ("func f(in x: f32[3])\n", "an indented block"),
    ("func f(in x: f32[3])\n  let t = y[0]\n", "line 2: expected a buffer \\(x\\)"),
    ("func f(in x: f32[3])\n  let t = x[i]\n", "line 2: expected an index over no variables"),
    ("func f(in x: f32[3])\n  let t = x[0] + 1\n", "equal types on both sides of add"),
    ("func f(in x: f32[3])\n  let t = x[0] 1.0\n", "the end of the line"),
    ("func f(in x: f32[3])\n  let t = tan(x[0])\n", "a known operation"),
    ("func f(in x: f32[3])\n  let t = pow(x[0])\n", "2 operands of pow"),
    ("func f(in x: f32[3])\n  let t = x[0]\n    let u = t\n", "indentation of 2, got 4"),
    ("func f(in x: f32[3])\n  let t = x[0] ? 2\n", "a token at"),
    ("func f(in x: f32[3])\n  for i in 0..3 sideways:\n    barrier\n",
     "one of serial, parallel, group, item, vector, unroll"),
    ("func f(in x: f32[3] from 2*n, n: index in 0..3)\n  barrier\n", "line 1: expected a dim"),
    ("func f(in x: f32[3])\n  barrier\nbarrier\n", "line 3: expected the end of the text"),
    ("func f(in x: f32[3])\n  let t = x[3//0]\n", "a divisor that is not 0"),
])
def test_errors_name_the_line(text, message):
    with pytest.raises(FormatError, match=message):
        parse_function(text)
