"""The verifier of kernels: each rule with the smallest kernel that breaks it, and proofs of coverage."""
import pytest

from minigrad.codegen.kernel.coverage import Placed, Progression, progression, uncovered
from minigrad.codegen.kernel.nodes import Kernel, Nest, Param, Store
from minigrad.codegen.kernel.text import parse_kernel
from minigrad.codegen.kernel.verify import verify_kernel
from minigrad.dtype import float32, int32
from minigrad.errors import InternalError
from minigrad.expr import Var
from minigrad.value import binary, cast, const, load, make, reduce

HEAD = "kernel k(x: f32[8, 4], at: i32[8], out y: f32[8, 4], s: f32, n: index in 1..8)\n"


def check(text: str) -> None:
    verify_kernel(parse_kernel(text))


@pytest.mark.parametrize("text", [
    HEAD + "  for i<8, j<4:\n    y[i, j] = x[i, j] * s\n",
    HEAD + "  for i<8, j<4:\n    y[-i+7, -j+3] = (x[i+1, j] else s if -i+6 >= 0)\n",
    HEAD + "  for i<8:\n    m = max(c<4: x[i, c])\n    for j<4:\n      y[i, j] = x[i, j] - m\n",
    "kernel k(x: f32[8, 4], out y: f32[8, 4], out z: f32[8])\n  for i<8:\n    for j<4:\n      y[i, j] = x[i, j] * 2.0\n"
    "    t = sum(c<4: y[i, c])\n    z[i] = t\n",
    HEAD + "  for i<4, j<4:\n    y[2*i, j] = 1.0\n  for i<4, j<4:\n    y[2*i+1, j] = x[{at[2*i] in 0..7}, j]\n",
    HEAD + "  for i<3, j<4:\n    y[i, j] = 1.0\n  for i<5, j<2:\n    y[i+3, j] = 1.0\n"
           "  for i<5, j<2:\n    y[i+3, j+2] = 1.0\n",
    "kernel k(out y: f32[12])\n  for i<3, j<4:\n    y[4*i+j] = 1.0\n",
    "kernel k(out y: f32[4*n], n: index in 1..9)\n  for i<n, j<4:\n    y[4*i+j] = 1.0\n",
    "kernel k(out y: f32[4*n], n: index in 1..9)\n  for j<4, i<n:\n    y[n*j+i] = 1.0\n",
    "kernel k(out y: f32[n], n: index in 1..9)\n  for i<(n+1)//2:\n    y[2*i] = 1.0\n"
    "  for i<n//2:\n    y[2*i+1] = 1.0\n",
    "kernel k(out y: f32[2])\n  for i<1:\n    y[3*i] = 1.0\n  for i<1:\n    y[3*i+1] = 1.0\n",
    "kernel k(out y: f32[4, 4])\n  for i<4:\n    y[i, i] = 1.0\n  for i<4, j<3:\n    y[i, j+1] = 1.0\n".replace(
        "    y[i, i] = 1.0", "    y[i, 0] = 1.0"),
    "kernel k(inout y: f32[9])\n  for i<4:\n    y[2*i] = y[2*i] + 1.0\n  for i<3:\n    y[2*i+1] = 1.0\n",
    "kernel k(inout y: f32[64, 4], x: f32[n, 4], p: index in 0..60, n: index in 1..9)\n"
    "  for i<n, j<4:\n    y[i+p, j] = x[i, j]\n",
    "kernel k(inout y: f32[9], at: i32[8])\n  for i<8:\n    y[{at[i] in 0..8}] max= 1.0\n",
    "kernel k(out y: f32[0, 4], x: f32[0, 4])\n  for i<0, j<4:\n    y[i, j] = x[i, j]\n",
    "kernel k(out y: f32[])\n  for :\n    y[] = 1.0\n",
    "kernel k(out y: f32[5], x: f32[3])\n  for i<5:\n    y[i] = sum(t<3: (x[(i-t)//2] else 0.0"
    " if i-t >= 0 and -i+t+4 >= 0 and -((i-t)%2) >= 0))\n",
])
def test_right_kernels_pass(text):
    check(text)


@pytest.mark.parametrize("text, rule", [
    (HEAD + "  for i<8, j<4:\n    x[i, j] = 1.0\n", "an input is never stored to"),
    (HEAD + "  for i<8, j<4:\n    y[i, j] = 1\n", "expected float32 at 2 indices, got int32 at 2"),
    (HEAD + "  for i<8:\n    y[i] = 1.0\n", "got float32 at 1"),
    (HEAD + "  for i<8, j<4:\n    y[i, j] = y[i, j]\n", "the output y is read"),
    ("kernel k(out y: f32[8, 4], out z: f32[8])\n  for i<8:\n    t = sum(c<4: y[i, c])\n    z[i] = t\n"
     "    for j<4:\n      y[i, j] = 2.0\n", "the output y is read before an inner domain has stored it"),
    ("kernel k(out y: f32[8, 4], out z: f32[8])\n  for i<8:\n    for j<4:\n      y[i, j] = 2.0\n"
     "    t = sum(c<4: y[-i+7, c])\n    z[i] = t\n", "the output y is read before an inner domain has stored it"),
    (HEAD + "  for i<8, j<4:\n    y[i, j] = across(sum, s)\n", "belongs to loop IR"),
    (HEAD + "  for i<8, j<4:\n    y[i, j] = sum(i<4: x[i, j])\n", "fresh variables, got i"),
    (HEAD + "  for i<8, j<4:\n    y[i, j] = sum(c<2: max(c<4: x[i, c]))\n", "fresh variables, got c"),
    (HEAD + "  for i<8, j<4:\n    s = 1.0\n    y[i, j] = s\n", "'s' is bound twice"),
    (HEAD + "  for i<8, i<4:\n    y[i, i] = 1.0\n", "'i' is bound twice"),
    (HEAD + "  for i<8, j<3:\n    y[i, j] = 1.0\n", r"element \[0, 3\] is stored 0 times"),
    (HEAD + "  for i<8, j<4, k<2:\n    y[i, j] = 1.0\n", "it is stored once for each k"),
    (HEAD + "  for i<8, j<4:\n    y[i, j] = 1.0\n  for :\n    y[2, 1] = 1.0\n", r"\[2, 1\] is stored 2 times"),
    (HEAD + "  for i<8, j<4:\n    y[i, j+1] = 1.0\n", r"y\[i, j\+1\]: index j\+1 reaches 4, outside 0..3"),
    (HEAD + "  for i<32, j<4:\n    y[i//4, j] = 1.0\n", "a store takes affine indices, got i//4"),
    (HEAD + "  for i<8, j<4:\n    y[i, j] = x[i+1, j]\n", r"load x\[i\+1, j\]: index i\+1 reaches 8, outside 0..7"),
    (HEAD + "  for i<8, j<4:\n    y[i, j] = (x[i-1, j] else 0.0 if i >= 0 and j-1 >= 0)\n", "index i-1 reaches -1"),
    (HEAD + "  for i<8, j<4:\n    y[i, j] = sum(u<3: (x[i+u-1, j] else 0.0 if i+u-1 >= 0))\n",
     "reaches 8, outside 0..7"),
    (HEAD + "  for i<8, j<4:\n    y[i, j] = (0.0 else x[i+1, j] if i-7 >= 0) + (0.0 else x[i+1, j] if i-6 >= 0)"
            " + (0.0 else x[i+2, j] if i-7 >= 0)\n", r"index i\+2 reaches 8"),
    ("kernel k(out y: f32[3])\n", r"element \[0\] is stored 0 times"),
    ("kernel k(out y: f32[n], n: index in 1..9)\n  for i<n-1:\n    y[i] = 1.0\n", "cannot prove"),
    ("kernel k(out y: f32[n], n: index in 1..9)\n  for i<n//2:\n    y[2*i] = 1.0\n  for i<n//2:\n    y[2*i+1] = 1.0\n",
     "cannot prove"),
    ("kernel k(out y: f32[4, 4])\n  for i<4:\n    y[i, i] = 1.0\n", "is stored 0 times"),
    ("kernel k(inout y: f32[9])\n  for i<4:\n    y[2*i] = 1.0\n  for i<4:\n    y[i+4] = 1.0\n", "at most once"),
    ("kernel k(inout y: f32[9])\n  for i<4:\n    y[i] = y[i+1]\n", r"y is read at \[i\+1\], where it is not stored"),
    ("kernel k(out y: f32[9], at: i32[8])\n  for i<8:\n    y[{at[i] in 0..8}] max= 1.0\n", "expected mode inout"),
    ("kernel k(out y: f32[9], x: f32[9] order (1))\n  for i<9:\n    y[i] = 1.0\n", "a layout that orders 1 axes"),
    ("kernel k(out y: f32[9])\n  for i<9:\n    y[i] = f32(exp(1))\n", "exp: expected floats, got int32"),
])
def test_broken_kernels(text, rule):
    with pytest.raises(InternalError, match=r"\[verify\] k.*" + rule):
        check(text)


def build(value, indices=None):
    indices = indices or (Var("i", 0, 3),)
    params = (Param("x", float32, (4,)), Param("y", float32, (4,), "out"))
    return Kernel("k", params, (), (), (Nest((Var("i", 0, 3),), (Store("y", indices, value),)),))


@pytest.mark.parametrize("kernel, rule", [
    (build(load("x", (Var("j", 0, 3),), float32)), "index variables j are not bound"),
    (build(load("x", (Var("i", 0, 2),), float32)), "index variables i are not bound"),
    (build(cast(load("x", (0,), int32), float32)), "load of x as int32 at 1 indices"),
    (build(load("z", (0,), float32)), "not known here"),
    (build(binary("add", const(1, float32), make("local", float32, (), "t"))), "t is read as float32 and is not bound"),
    (build(const(1, float32), (Var("i", 0, 9),)), "index variables i are not bound"),
    (build(reduce("sum", (Var("c", 1, 3),), load("x", (Var("c", 1, 3),), float32))), "a reduction runs from 0"),
    (Kernel("k", (), (), (Var("n", 0, 4).bind(3),), ()), "dim n has a run-time value"),
    (Kernel("k", (Param("x", float32, (Var("n", 0, 4),)),), (), (), ()), "index variables n are not bound"),
    (Kernel("k", (Param("x", float32, (2,), "both"),), (), (), ()), "expected a mode of in, out, inout"),
])
def test_broken_objects(kernel, rule):
    with pytest.raises(InternalError, match=rule):
        verify_kernel(kernel)


def test_progressions():
    i, j, n = Var("i", 0, 3), Var("j", 0, 4), Var("n", 1, 9)
    m = Var("m", 0, n - 1)
    domain = (i, j, m)
    assert progression(5 * i + j + 2, domain) == (Progression(2, 1, 20), frozenset((i, j)))
    assert progression(4 * j + i, domain)[0] == Progression(0, 1, 20)
    assert progression(3 - i, domain)[0] == Progression(0, 1, 4)
    assert progression(4 * i + j, domain) is None
    assert progression(n * i + m, domain)[0] == Progression(0, 1, 4 * n)
    assert progression(i * i, domain) is None and progression((i + j) // 2, domain) is None
    assert progression(6, domain) == (Progression(6, 1, 1), frozenset())


def test_phases_in_two_dimensions_are_proven_with_symbolic_extents():
    n = Var("n", 1, 99)
    stores = []
    for r in range(2):
        for q in range(3):
            i, j = Var("i", 0, (n + 1 - r) // 2 - 1), Var("j", 0, (n + 2 - q) // 3 - 1)
            stores.append(Placed((2 * i + r, 3 * j + q), (i, j)))
    assert uncovered(stores, (n, n), True) is None
    assert uncovered(stores[1:], (n, n), True) is not None
    assert uncovered(stores[1:], (n, n), False) is None
    assert uncovered([*stores, stores[0]], (n, n), False) is not None
