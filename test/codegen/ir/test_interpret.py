"""The interpreters of kernels and loop IR: against numpy, on the semantics that machines get wrong, and as oracles."""
import math

import numpy as np
import pytest

from minigrad.codegen.ir.interpret import interpret_function
from minigrad.codegen.ir.nodes import BufferParam, Function, Let, Store
from minigrad.codegen.ir.text import parse_function
from minigrad.codegen.kernel import interpret as kernel_interpret
from minigrad.codegen.kernel.interpret import interpret_kernel
from minigrad.codegen.kernel.nodes import Kernel, Nest, Param
from minigrad.codegen.kernel.nodes import Store as KernelStore
from minigrad.codegen.kernel.text import parse_kernel
from minigrad.codegen.kernel.verify import verify_kernel
from minigrad.codegen.lowering.collapse import collapse
from minigrad.dtype import BY_SHORT, bool_, float32_to_bfloat16
from minigrad.errors import InternalError
from minigrad.value import const, make

rng = np.random.default_rng(0)


def random(*shape):
    return rng.standard_normal(shape).astype(np.float32)


# ---- scalar operations, through both interpreters ----


def scalar(op, dtype, *operands, result=None):
    """`op` on constants of a dtype (short name), through a kernel and through loop IR, which must agree."""
    d = BY_SHORT[dtype]
    args = tuple(const(x, d) for x in operands)
    if op in BY_SHORT:
        value = make("cast", BY_SHORT[op], args)
    elif op.startswith("bits "):
        value = make("bitcast", BY_SHORT[op[5:]], args)
    else:
        value = make(op, bool_ if op in ("lt", "le", "eq", "ne") else d, args)
    first, second = np.zeros(1, value.dtype.np), np.zeros(1, value.dtype.np)
    kernel = Kernel("k", (Param("y", value.dtype, (1,), "out"),), (), (), (Nest((), (KernelStore("y", (0,), value),)),))
    interpret_kernel(kernel, {"y": first})
    function = Function("f", (BufferParam("y", value.dtype, 1, "out"),), (), (), (Store("y", 0, value),))
    interpret_function(function, {"y": second})
    np.testing.assert_array_equal(first, second)
    return first[0]


@pytest.mark.parametrize("op, dtype, operands, expected", [
    ("add", "i32", (2 ** 31 - 1, 1), -2 ** 31), ("mul", "u8", (200, 2), 144), ("neg", "i8", (-128,), -128),
    ("sub", "u64", (0, 1), 2 ** 64 - 1), ("idiv", "i32", (-7, 2), -3), ("irem", "i32", (-7, 2), -1),
    ("idiv", "i64", (-2 ** 63, 3), -(2 ** 63 // 3)), ("irem", "i16", (7, -3), 1), ("idiv",
     "u32", (2 ** 32 - 1, 2), 2 ** 31 - 1),
    ("shl", "i32", (1, 31), -2 ** 31), ("shr", "i32", (-8, 1), -4), ("shr", "u32", (2 ** 32 - 8, 1), 2 ** 31 - 4),
    ("pow", "i32", (-2, 3), -8), ("pow", "i32", (2, -1), 0), ("pow", "i32", (-1, -3), -1), ("pow",
     "u8", (3, 6), 729 % 256),
    ("not", "b8", (True,), False), ("not", "u8", (1,), 254), ("xor", "b8", (True, True), False), ("max",
     "b8", (False, True), True),
    ("max", "f32", (math.nan, 1.0), math.nan), ("min", "f32", (1.0, math.nan), math.nan),
    ("ne", "f32", (math.nan, math.nan), True), ("eq", "f32", (0.0, -0.0), True), ("le", "f32", (math.nan, 1.0), False),
    ("round", "f32", (2.5,), 2.0), ("round", "f32", (-3.5,), -4.0), ("trunc", "f64", (-2.7,), -2.0), ("floor",
     "i32", (5,), 5),
    ("div", "f32", (1.0, 0.0), math.inf), ("log", "f32", (-1.0,), math.nan), ("sqrt", "f64", (2.0,), math.sqrt(2)),
    ("erf", "f64", (0.5,), math.erf(0.5)), ("exp", "f32", (1.0,), np.float32(math.e)), ("exp",
     "f32", (100.0,), math.inf),
    ("tanh", "f16", (0.5,), np.float16(math.tanh(0.5))), ("fma", "f32", (3.0, 4.0, 5.0), 17.0), ("fma",
     "i32", (3, 4, 5), 17),
    ("add", "f16", (2048.0, 1.0), 2048.0), ("mul", "f16", (300.0, 300.0), math.inf),
    ("i32", "f32", (3e9,), 2 ** 31 - 1), ("i32", "f32", (-3e9,), -2 ** 31), ("i32", "f32", (math.nan,), 0),
    ("u8", "f32", (-1.5,), 0), ("u8", "f32", (255.9,), 255), ("i64", "f64", (-math.inf,), -2 ** 63),
    ("u64", "f64", (2.0 ** 63,), 2 ** 63), ("i8", "i32", (300,), 44), ("u16", "i32", (-1,), 65535), ("b8",
     "f32", (math.nan,), True),
    ("b8", "i32", (256,), True), ("f32", "b8", (True,), 1.0), ("f32", "i64", (2 ** 24 + 1,), 2.0 ** 24),
    ("f16", "f32", (1e6,), math.inf), ("f16", "f32", (1.0 + 2 ** -11,), 1.0),
    ("bf16", "f32", (1.0 + 3 * 2 ** -8,), 0x3F82), ("f32", "bf16", (1.0 + 2 ** -7,), 1.0 + 2 ** -7),
    ("bits i32", "f32", (1.0,), 0x3F800000), ("bits f32", "u32", (0x80000000,), -0.0), ("bits u16",
     "bf16", (1.5,), 0x3FC0),
    ("bits f16", "i16", (0x3C00,), 1.0),
])
def test_operations(op, dtype, operands, expected):
    found = scalar(op, dtype, *operands)
    np.testing.assert_array_equal(found, expected)
    if isinstance(expected, float) and expected == 0:
        assert math.copysign(1, found) == math.copysign(1, expected)


@pytest.mark.parametrize("op, operands", [
    ("idiv", (1, 0)), ("irem", (1, 0)), ("idiv", (-2 ** 31, -1)), ("shl", (1, 32)), ("shr", (1, -1)),
])
def test_what_must_not_be_reached_is_an_error(op, operands):
    with pytest.raises(InternalError, match=f"{op} of int32 reached a divisor or shift"):
        scalar(op, "i32", *operands)


# ---- kernels ----


def run(text, arrays, scalars=None, dims=None):
    interpret_kernel(parse_kernel(text), arrays, scalars, dims)


CONVOLUTION = """\
kernel conv(out y: f32[n, 5, 7, 7], x: f32[n, 3, 7, 7], w: f32[5, 3, 3, 3], b: f32[5], n: index in 1..9)
  for m<n, o<5, i<7, j<7:
    t = sum(c<3, u<3, v<3: (x[m, c, i+u-1, j+v-1] else 0.0
      if i+u-1 >= 0 and -i-u+7 >= 0 and j+v-1 >= 0 and -j-v+7 >= 0) * w[o, c, u, v])
    y[m, o, i, j] = max(t + b[o], 0.0)
""".replace("0.0\n      if", "0.0 if")


@pytest.mark.parametrize("most", [1 << 22, 500, 1])
def test_convolution_in_one_piece_and_in_many(monkeypatch, most):
    monkeypatch.setattr(kernel_interpret, "MOST_ELEMENTS", most)
    x, w, b = random(2, 3, 7, 7), random(5, 3, 3, 3), random(5)
    y = np.zeros((2, 5, 7, 7), np.float32)
    run(CONVOLUTION, {"x": x, "w": w, "b": b, "y": y.reshape(-1)}, dims={"n": 2})
    windows = np.lib.stride_tricks.sliding_window_view(np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1))), (3, 3), (2, 3))
    expected = np.einsum("ncijuv,ocuv->noij", windows.astype(np.float64), w) + b[:, None, None]
    np.testing.assert_allclose(y, np.maximum(expected, 0), rtol=1e-5, atol=1e-6)


def test_rows_with_nested_domains_and_layouts():
    x = random(3, 5)
    y = np.zeros((3, 5), np.float32)
    run("""\
kernel softmax(out y: f32[3, 5], x: f32[3, 5] order (1, 0))
  for r<3:
    m = max(c<5: x[r, c])
    s = sum(c<5: exp(x[r, c] - m))
    for c<5:
      y[r, c] = exp(x[r, c] - m) / s
""", {"x": np.ascontiguousarray(x.T).reshape(-1), "y": y})
    e = np.exp(x.astype(np.float64) - x.max(1, keepdims=True))
    np.testing.assert_allclose(y, e / e.sum(1, keepdims=True), rtol=1e-6)


def test_a_variable_of_a_reduction_and_of_a_domain_are_renamed_apart():
    kernel = parse_kernel("""\
kernel k(out y: f32[3, 5], x: f32[3, 5])
  for r<3:
    s = sum(c<5: x[r, c] * x[r, c])
    for c<5:
      y[r, c] = x[r, c] * x[r, c] / s
""")
    x, found = random(3, 5), np.zeros((3, 5), np.float32)
    renamed = collapse(kernel)
    verify_kernel(renamed)
    interpret_kernel(renamed, {"x": x, "y": found})
    np.testing.assert_allclose(found, x * x / (x * x).sum(1, keepdims=True), rtol=1e-6)


def test_definitions_of_one_name_in_two_nests_are_two():
    y = np.zeros(4, np.float32)
    run("""\
kernel two(out y: f32[4])
  for i<2:
    t = 1.0
    y[2*i] = t
  for i<2:
    t = 2.0
    y[2*i+1] = t
""", {"y": y})
    assert y.tolist() == [1, 2, 1, 2]


def test_reductions_inside_reductions_and_over_nothing():
    x, y, z = random(4, 5), np.zeros(4, np.float32), np.zeros(4, np.float32)
    run("""\
kernel deep(out y: f32[4], out z: f32[4], x: f32[4, 5], none: f32[0])
  for i<4:
    y[i] = sum(j<5: x[i, j] * max(k<4: x[k, j] - x[i, j]))
    z[i] = sum(j<0: none[j]) + prod(j<0: none[j]) + max(j<0: none[j])
""", {"x": x, "y": y, "z": z, "none": np.zeros(0, np.float32)})
    np.testing.assert_allclose(y, (x * (x.max(0) - x)).sum(1), rtol=1e-5)
    assert np.all(z == -np.inf)


@pytest.mark.parametrize("combine, expected", [
    ("sum", [0.5 + 1 + 3, 0, 2]), ("max", [3, 0, 2]), ("set", [3, 0, 2]), ("prod", [1.5, 0, 0])])
def test_scatter_in_index_order(combine, expected):
    for dtype in ("f32", "f16", "f64"):
        y = np.array([0.5, 0, 0], BY_SHORT[dtype].np)
        run(f"kernel s(inout y: {dtype}[3], at: i32[3], x: f32[3])\n  for i<3:\n"
            f"    y[{{at[i] in 0..2}}] {combine}= {dtype}(x[i])\n",
            {"y": y, "at": np.array([0, 2, 0], np.int32), "x": np.array([1, 2, 3], np.float32)})
        assert y.tolist() == expected


def test_half_scatter_rounds_each_step():
    y = np.zeros(1, np.float16)
    run("kernel s(inout y: f16[1], x: f16[3])\n  for i<3:\n    y[0] sum= x[i]\n",
        {"y": y, "x": np.array([2048, 1, 1], np.float16)})
    assert y[0] == 2048


def test_bfloat16_storage_and_scalars():
    x = random(6)
    y = np.zeros(6, np.uint16)
    run("kernel b(out y: bf16[6], x: bf16[6], s: f32)\n  for i<6:\n    y[i] = bf16(f32(x[i]) * s)\n",
        {"x": float32_to_bfloat16(x), "y": y}, {"s": 2.0})
    np.testing.assert_array_equal(y, float32_to_bfloat16(x) + (1 << 7))


def test_gather_from_a_gathered_index():
    x, a, b = random(9), np.array([3, 1, 2, 0], np.int64), np.array([8, 7, 6, 5], np.int32)
    y = np.zeros(4, np.float32)
    run("kernel g(out y: f32[4], x: f32[9], a: i64[4], b: i32[4])\n  for i<4:\n"
        "    y[i] = x[{b[{a[i] in 0..3}] in 0..8}] + f32(index({a[i] in 0..3}*2+i))\n",
        {"x": x, "a": a, "b": b, "y": y})
    np.testing.assert_allclose(y, x[b[a]] + (a * 2 + np.arange(4)), rtol=1e-6)


def test_guards_drop_faults_and_where_does_not():
    y = np.zeros(4, np.float32)
    guarded = "kernel k(out y: f32[4], x: f32[4])\n  for i<4:\n    y[i] = (x[i+1] * 2.0 else -1.0 if -i+2 >= 0)\n"
    run(guarded, {"x": np.arange(4, dtype=np.float32), "y": y})
    assert y.tolist() == [2, 4, 6, -1]
    with pytest.raises(InternalError, match=r"load x\[i\+1\] has i\+1 outside 0..3"):
        run("kernel k(out y: f32[4], x: f32[4])\n  for i<4:\n    y[i] = where(index(i) < 3, x[i+1], 0.0)\n",
         {"x": y, "y": y})
    with pytest.raises(InternalError, match=r"load x\[c\] has c outside 0..3"):
        run("kernel k(out y: f32[4], x: f32[4])\n  for i<4:\n    y[i] = sum(c<5: x[c])\n", {"x": y, "y": y})


@pytest.mark.parametrize("text, arrays, message", [
    ("kernel k(out y: f32[3])\n  for i<3:\n    y[i+1] = 1.0\n",
     {"y": np.zeros(3, np.float32)}, "store y at i\\+1: outside 0..2"),
    ("kernel k(out y: f32[3])\n  for i<3:\n    y[i] = 1.0\n", {}, "expected arguments y"),
    ("kernel k(out y: f32[3])\n  for i<3:\n    y[i] = 1.0\n", {"y": np.zeros(3)}, "expected y as float32 of shape"),
    ("kernel k(out y: f32[3])\n  for i<3:\n    y[i] = 1.0\n", {"y": np.zeros((1, 3), np.float32)}, "or flat"),
])
def test_kernel_errors(text, arrays, message):
    with pytest.raises(InternalError, match=message):
        run(text, arrays)


# ---- loop IR ----

MATMUL = """\
func matmul(in a: f32[48], in b: f32[128], out y: f32[96])
  for p in 0..3 parallel:
    for v in 0..8 vector:
      alloc acc: f32[4] register
      for i in 0..2 unroll:
        for j in 0..2 unroll:
          acc[2*i+j] = 0.0
      for k in 0..8 serial:
        for i in 0..2 unroll:
          for j in 0..2 unroll:
            acc[2*i+j] = fma(a[16*p+8*i+k], b[16*k+8*j+v], acc[2*i+j])
      for i in 0..2 unroll:
        for j in 0..2 unroll:
          y[32*p+16*i+8*j+v] = acc[2*i+j]
"""


def loops(text, arrays, scalars=None, dims=None, **ends):
    interpret_function(parse_function(text), arrays, scalars, dims, **ends)


def test_register_tile_and_ranges_of_the_parallel_loop():
    a, b, y = random(6, 8), random(8, 16), np.zeros((6, 16), np.float32)
    arrays = {"a": a.reshape(-1), "b": b.reshape(-1), "y": y.reshape(-1)}
    loops(MATMUL, arrays, begin=1, end=2)
    assert not y[:2].any() and not y[4:].any()
    np.testing.assert_allclose(y[2:4], (a @ b)[2:4], rtol=1e-5, atol=1e-5)
    loops(MATMUL, arrays)
    np.testing.assert_allclose(y, a @ b, rtol=1e-5, atol=1e-5)


def test_lanes_across_conditions_scratch_and_dims():
    x, y = random(19), np.zeros(2, np.float32)
    loops("""\
func sums(in x: f32[n], out y: f32[2], s: f32, n: index in 1..99)
  alloc room: f32[8] scratch
  for v in 0..8 vector:
    alloc acc: f32[2] register
    acc[0] = 0.0
    acc[1] = -inf
    for k[0..12] in 0..(n+7)//8 serial:
      let t = (x[8*k+v] else 0.0 if -8*k-v+n-1 >= 0)
      acc[0] = acc[0] + t
      acc[1] = max(acc[1], t)
    room[v] = acc[0]
    y[1] = across(max, acc[1])
  let total = room[0] + room[1] + room[2] + room[3] + room[4] + room[5] + room[6] + room[7]
  if n-19 >= 0:
    y[0] = total * s
  else:
    y[0] = 0.0
""", {"x": x, "y": y}, {"s": 0.5}, {"n": 19})
    np.testing.assert_allclose(y, [x.sum() / 2, max(x.max(), 0)], rtol=1e-5)


def test_conditional_stores_and_lane_dependent_offsets():
    y = np.zeros(8, np.float32)
    loops("func f(in at: i32[4], out y: f32[8])\n  for v in 0..4 vector:\n"
          "    y[{at[v] in 0..7}] if v-1 >= 0 = f32(index(v))\n", {"at": np.array([9, 7, 0, 3], np.int32), "y": y})
    assert y.tolist() == [2, 0, 0, 3, 0, 0, 0, 1]


def test_registers_start_undefined():
    y = np.zeros(1, np.float32)
    loops("func f(out y: f32[1])\n  alloc r: f32[1] register\n  y[0] = r[0]\n", {"y": y})
    assert np.isnan(y[0])


HEAD = "func f(in x: f32[4], inout y: f32[4])\n"


@pytest.mark.parametrize("body, message", [
    ("  y[0] = x[4]\n", r"load x\[4\] at 4: outside 0..3"),
    ("  for i in 0..4 serial:\n    let t = x[i-1]\n", r"load x\[i-1\] at -1: outside 0..3"),
    ("  for v in 0..4 vector:\n    y[v] if -v+2 >= 0 = x[v+2]\n", r"load x\[v\+2\]"),
    ("  for v in 0..4 vector:\n    y[v+1] = x[v]\n", r"store y\[v\+1\] at .*: outside 0..3"),
    ("  x[0] = 1.0\n", "store to the input x"),
    ("  for p in 0..4 parallel:\n    y[p//2] = x[p]\n", "iterations 0 and 1 of the parallel loop store different"),
    ("  for p in 0..4 parallel:\n    y[p] = (y[p-1] else 0.0 if p-1 >= 0)\n", "another iteration stores it"),
    ("  for v in 0..4 vector:\n    y[0] = x[v]\n", "lanes store different values"),
    ("  for v in 0..4 vector:\n    if v-1 >= 0:\n      y[v] = 1.0\n", "expected a condition equal for all lanes"),
    ("  y[0] = across(sum, x[0])\n", "outside a vector loop"),
])
def test_the_oracle_finds(body, message):
    with pytest.raises(InternalError, match=message):
        loops(HEAD + body, {"x": np.arange(4, dtype=np.float32), "y": np.zeros(4, np.float32)})


def test_faults_under_guards_and_false_conditions_are_fine():
    x, y = np.arange(4, dtype=np.float32), np.zeros(4, np.float32)
    loops(HEAD + "  for v in 0..4 vector:\n    y[v] = (x[v+2] else -1.0 if -v+1 >= 0)\n"
                 "  y[0] if 0-1 >= 0 = x[9]\n", {"x": x, "y": y})
    assert y.tolist() == [2, 3, -1, -1]


def test_iterations_may_store_the_same_value_to_the_same_place():
    x, y = np.array([np.nan, np.nan, 2, 2], np.float32), np.zeros(4, np.float32)
    loops(HEAD + "  for p in 0..4 parallel:\n    y[p//2] = x[p]\n", {"x": x, "y": y})
    assert np.isnan(y[0]) and y[1:].tolist() == [2, 0, 0]


def test_arguments_must_fit():
    with pytest.raises(InternalError, match="expected y as 4 flat elements of float32"):
        loops(HEAD + "  barrier\n", {"x": np.zeros(4, np.float32), "y": np.zeros(3, np.float32)})
    function = Function("f", (), (), (), (Let("t", make("local", BY_SHORT["f32"], (), "u")),))
    with pytest.raises(InternalError, match="u is read before it is bound"):
        interpret_function(function, {})
