"""Kernel texts: canonical, exact both ways, linear in the number of Values; errors name the line."""
import random

import pytest

from minigrad.codegen.kernel.nodes import Define, Kernel, Nest, Param, Scalar, Store
from minigrad.codegen.kernel.text import parse_kernel, print_kernel
from minigrad.codegen.kernel.verify import verify_kernel
from minigrad.dtype import bfloat16, bool_, float32, float64, int32, int64, uint8
from minigrad.errors import FormatError, InternalError
from minigrad.expr import Var, dim, emax, emin
from minigrad.value import ValueIndex, binary, cast, const, guard, index, load, local, make, reduce, unary, where

CANONICAL = [
    """\
kernel conv_bn_silu(out y: f32[N, 64, 56, 56], x: f32[N, 32, 56, 56], w: f32[64, 32, 3], a: f32[64], N: index in 1..64)
  for n<N, o<64, i<56, j<56:
    t = sum(c<32, u<3: (x[n, c, i+u-1, j] else 0.0 if i+u-1 >= 0 and -i-u+56 >= 0) * w[o, c, u])
    s = t * a[o]
    y[n, o, i, j] = s / (1.0 + exp(-s))
""", """\
kernel softmax(out y: f32[R, C], x: f32[R, C] order (1, 0), R: index in 1..4, C: index in 0..64)
  for r<R:
    m = max(c<C: x[r, c])
    s = sum(c<C: exp(x[r, c] - m))
    for c<C:
      y[r, c] = exp(x[r, c] - m) / s
""", """\
kernel scatter(inout y: bf16[100, 4], at: i64[8], g: f32[8, 4], s: f32)
  for i<8, j<4:
    y[{at[i] in 0..99}, j] sum= bf16(g[i, j] * s)
""", """\
kernel pick(inout y: u8[9], at: i32[3])
  for i<3:
    y[{at[i] in 0..8}] set= 7:u8
""", """\
kernel phases(out y: f64[9], g: f64[5])
  for p<5:
    y[2*p] = g[p] * 0.5:f64
  for p<4:
    y[2*p+1] = (g[p+1] else -inf:f64 if -p+2 >= 0)
""", """\
kernel shared(out y: f32[8], g: f32[8, 4])
  for i<8:
    $0 for j<4 = exp(g[i, j]) * 2.0 + g[i, 0]
    y[i] = sum(j<4: $0 * $0) + max(j<4: $0)
""", """\
kernel scalar(out y: b8[], x: i64[])
  for :
    y[] = (x[] <= 3:i64) | ~(x[] != -5:i64)
""", """\
kernel cache(inout y: f32[1024, 64], x: f32[n, 64], p: index in 0..1000, n: index in 1..24)
  for i<n, j<64:
    y[i+p, j] = x[i, j]
"""]


@pytest.mark.parametrize("text", CANONICAL, ids=lambda t: t.split("(")[0][7:])
def test_canonical_texts(text):
    kernel = parse_kernel(text)
    assert print_kernel(kernel) == text
    assert parse_kernel(print_kernel(kernel)) == kernel
    verify_kernel(kernel)


def test_freely_written_texts_print_in_canonical_form():
    kernel = parse_kernel("""
        # comments, blank lines and any indentation are read

        kernel k(x: f32[4,8], out y: f32[4,8])
            for i<4,j<2*4:
                    a = (((x[i,j]+1.0)))
                    y[i,j+0*i]=where((a<0.0),a,(a else 0.0 if i>=1))""")
    assert print_kernel(kernel) == """\
kernel k(x: f32[4, 8], out y: f32[4, 8])
  for i<4, j<8:
    a = x[i, j] + 1.0
    y[i, j] = where(a < 0.0, a, (a else 0.0 if i-1 >= 0))
"""


def random_kernel(seed: int) -> Kernel:
    """Any mixture of everything that a kernel may hold; meaningless, but typed."""
    def over_k(v):
        return reduce("sum", (k,), v)

    r = random.Random(seed)
    n = Var("n", 1, 9)
    i, j, k = Var("i", 0, 7), Var("j", 0, n - 1), Var("k", 0, 2)
    number = const(r.choice([-0.0, 1.5, float("nan"), 1e-7]), float32)
    floats = [load("x", (i, j), float32), local("s", float32), number]
    position = index(i * 3 + j // 2 - k % 2 + emin(i, j) * n, int64)
    ints = [load("at", (i,), int64), position, const(r.randrange(-9, 9), int64)]
    bools = [const(r.random() < 0.5, bool_), binary("lt", *floats[:2])]
    indices = [i * 2 + j, (i + j) // 3, i % 4 + emax(j, k) * 2, dim(n + i) * 2 + 1, j - 1]
    for _ in range(r.randrange(10, 60)):
        x, y, z = (r.choice(floats) for _ in range(3))
        a, b = r.choice(ints), r.choice(ints)
        e, f = r.choice(indices), r.choice(indices)
        choice = r.randrange(10)
        if choice == 0:
            floats.append(unary(r.choice(["neg", "exp", "sqrt", "erf"]), x))
        elif choice == 1:
            floats.append(binary(r.choice(["add", "sub", "mul", "div", "max", "pow"]), x, y))
        elif choice == 2:
            floats.append(where(r.choice(bools), x, y))
        elif choice == 3:
            ints.append(binary(r.choice(["add", "sub", "idiv", "irem", "shl", "xor", "or", "and", "min"]), a, b))
        elif choice == 4:
            floats.append(guard(x, y, (e - 3, f - 2)))
        elif choice == 5:
            floats.append(make("fma", float32, (x, y, z)))
            bools.append(binary(r.choice(["le", "eq", "ne"]), a, b))
        elif choice == 6:
            floats.append(load("x", (ValueIndex(a, -3, 7) + e, f), float32))
        elif choice == 7:
            floats.append(reduce(r.choice(["sum", "max"]), (Var(f"r{len(floats)}", 0, n + 1), k), x))
        elif choice == 8:
            floats.append(cast(cast(a, r.choice([uint8, int32, bfloat16, float64])), float32))
        else:
            bools.append(binary(r.choice(["and", "or", "xor"]), r.choice(bools), unary("not", r.choice(bools))))
    stored = over_k(binary("add", floats[-2], local("t", float32)))
    body = (Define("t", over_k(floats[-1])), Store("y", (i, j), stored))
    last = Var("l", 0, 3)
    inner = Nest((last,), (Store("z", (i, j, last), over_k(floats[-3])), Define("u", over_k(ints[-1]))))
    params = (Param("x", float32, (8, n)), Param("at", int64, (8,)), Param("y", float32, (8, n), "out"),
              Param("z", float32, (8, n, 4), "out", (2, 0, 1)))
    return Kernel("k", params, (Scalar("s", float32),), (n,), (Nest((i, j), (*body, inner)), Nest((i, j), body)))


@pytest.mark.parametrize("seed", range(60))
def test_random_kernels_round_trip(seed):
    kernel = random_kernel(seed)
    text = print_kernel(kernel)
    assert parse_kernel(text) == kernel, text
    assert print_kernel(parse_kernel(text)) == text


def test_texts_are_linear_and_never_deeply_nested():
    i = Var("i", 0, 9)
    v = start = load("x", (i,), float32)
    for _ in range(2000):
        v = binary("mul", unary("exp", v), binary("add", v, start))
    params = (Param("x", float32, (10,)), Param("y", float32, (10,), "out"))
    kernel = Kernel("k", params, (), (), (Nest((i,), (Store("y", (i,), v),)),))
    text = print_kernel(kernel)
    assert len(text) < 200_000 and parse_kernel(text) == kernel
    for _ in range(2000):
        v = unary("exp", v)
    kernel = Kernel("k", params, (), (), (Nest((i,), (Store("y", (i,), v),)),))
    assert parse_kernel(print_kernel(kernel)) == kernel


def test_dims_of_different_bounds_and_bound_values():
    def build(v):
        i = Var("i", 0, v - 1)
        return Kernel("k", (Param("y", float32, (v,), "out"),), (), (v,),
                      (Nest((i,), (Store("y", (i,), const(1, float32)),)),))
    assert print_kernel(build(Var("n", 1, 9))) != print_kernel(build(Var("n", 1, 8)))
    with pytest.raises(InternalError, match="a domain starts at 0"):
        print_kernel(Kernel("k", (), (), (), (Nest((Var("i", 1, 2),), ()),)))


@pytest.mark.parametrize("text, message", [
    ("func k()\n", "line 1: expected 'kernel'"),
    ("kernel k(x f32[3])\n", "line 1: expected ':'"),
    ("kernel k(x: f32[3], out y: f32[m])\n", "line 1: expected an index over no variables"),
    ("kernel k(x: f32[3])\n  for i<3\n    t = 1.0\n", "line 2: expected ':'"),
    ("kernel k(x: f32[3])\n  for i<3:\n    t = u\n", "line 3: expected a value"),
    ("kernel k(x: f32[3])\n  for i<3:\n    t = $0\n", "line 3: expected"),
    ("kernel k(x: f32[3])\n  for i<3:\n    x[j] = 1.0\n", "line 3: expected an index over i"),
    ("kernel k(x: f32[3])\n  for i<3:\n    x[i] all= 1.0\n", "one of set, sum, prod, max, min"),
    ("kernel k(x: f32[3])\n  for i<3:\n    t = (x[i] else 0.0)\n", "expected 'if'"),
    ("kernel k(x: f32[3])\n  for i<3:\n    t = 1.0:f99\n", "expected"),
    ("kernel k(x: f32[3])\n  for i<3:\n    t = across(mean, x[i])\n", "one of sum, prod, max, min"),
])
def test_errors_name_the_line(text, message):
    with pytest.raises(FormatError, match=message):
        parse_kernel(text)
