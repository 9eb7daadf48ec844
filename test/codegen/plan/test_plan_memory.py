"""Fused loops, copies that are boxes and results by way of memory give the kernel's values, or say what is wrong."""
# Tests know their dims are ints.
# mypy: disable-error-code="arg-type"
from typing import Any

import pytest
from support.plan_reading import equals

from minigrad.codegen.kernel.nodes import Kernel
from minigrad.codegen.kernel.text import parse_kernel
from minigrad.codegen.lowering.collapse import collapse
from minigrad.codegen.lowering.flatten import flatten
from minigrad.codegen.plan.build import build
from minigrad.codegen.plan.text import parse_plan
from minigrad.errors import PlanError


def conv(height: int = 9, width: int = 11, depth: int = 3, out: int = 4, taps: int = 3, stride: int = 1,
         dilation: int = 1, border: int = 1, sign: str = "+", value: str = "t0") -> Kernel:
    """A convolution, or with the sign '-' a gradient by its image, whose taps step back."""
    reach = dilation * (taps - 1)
    h, w = ((n + 2 * border - reach - 1) // stride + 1 for n in (height, width))
    at = [f"{stride}*i{k + 1} {sign} {dilation}*r{k + 1} {'-' if sign == '+' else '+'} {border}" for k in range(2)]
    inside = " and ".join(f"{e} >= 0 and {n - 1} - ({e}) >= 0" for e, n in zip(at, (height, width), strict=True))
    return collapse(flatten(parse_kernel(
        f"kernel conv(out o0: f32[{out}, {h}, {w}], p0: f32[{depth}, {height}, {width}], "
        f"p1: f32[{out}, {depth}, {taps}, {taps}])\n  for i0<{out}, i1<{h}, i2<{w}:\n"
        f"    t0 = sum(r0<{depth}, r1<{taps}, r2<{taps}: (p0[r0, {at[0]}, {at[1]}] else 0.0 if {inside})"
        f" * p1[i0, r0, r1, r2])\n    o0[i0, i1, i2] = {value}\n")))


COLUMNS = """plan
  split i1 -> i1b y by 5, back
  split r0 -> kb k by 2, short
  fuse y i2 -> c by {row}
  split i0 -> i u by 3, guard
  split c -> j jj by 16, guard
  split jj -> v l by 8
  bind parallel i1b
  bind vector l
  bind unroll u v
  order i1b kb j i l k r1 r2 u v
  stage p0 at kb as {box}
  results at i1b as [i0][c]
"""
CHANNELS = """plan
  split i0 -> i0b n by 5, short
  split n -> j l by 4, guard
  split i2 -> x u by 3, guard
  bind parallel i0b
  bind vector l
  bind unroll u
  order i0b j i1 x l r0 r1 r2 u
  stage p0 at i0b as [r0]{box}
  stage p1 at i0b as [r0][r1][r2][n], transposed r2 by {square}
  results at i0b as [i1][i2][n]{transposed}
"""
CONVOLUTIONS = {
    "padded": (conv(), 13, "[k][y+r1][i2+r2]"),
    "not padded": (conv(border=0), 11, "[k][y+r1][i2+r2]"),
    "epilogue": (conv(value="max(t0, 0.0) + 1.0"), 13, "[k][y+r1][i2+r2]"),
    "dilated": (conv(dilation=2, border=2), 15, "[k][y+2*r1][i2+2*r2]"),
    "stepping back": (conv(sign="-"), 13, "[k][y-r1][i2-r2]"),
    "stride 2": (conv(13, 15, stride=2), 9, "[k][r1%2][r2%2][y+r1//2][i2+r2//2]"),
    "stride 3, 4 taps": (conv(17, 19, taps=4, stride=3), 7, "[k][r1%3][r2%3][y+r1//3][i2+r2//3]"),
    "stride 2, dilated by 3": (conv(17, 19, stride=2, dilation=3, border=3), 13,
                               "[k][r1%2][r2%2][y+3*r1//2][i2+3*r2//2]"),
}


@pytest.mark.parametrize("case", CONVOLUTIONS)
def test_columns_of_images_are_one_loop_over_boxes(case: str) -> None:
    kernel, row, coordinates = CONVOLUTIONS[case]
    equals(kernel, COLUMNS.format(row=row, box=coordinates))
    equals(kernel, COLUMNS.format(row=row, box=coordinates).replace("i u by 3", "i u into 3"))


@pytest.mark.parametrize("square, transposed",
                         [(1, ""), (4, ", transposed i2 by 4"), (9, ", transposed i2 by 3")], ids=str)
@pytest.mark.parametrize("kernel, coordinates", [
    (conv(), "[i1+r1][i2+r2]"), (conv(11, 12, stride=2), "[2*i1+r1][2*i2+r2]"),
    (conv(12, 11, dilation=2, border=0), "[i1+2*r1][i2+2*r2]"),
    (conv(11, 12, stride=2, sign="-", border=2), "[2*i1-r1][2*i2-r2]")], ids=["plain", "stride 2", "dilated", "back"])
def test_lanes_along_channels(kernel: Kernel, coordinates: str, square: int, transposed: str) -> None:
    equals(kernel, CHANNELS.format(box=coordinates, square=square, transposed=transposed))


def test_gradients_by_weights() -> None:
    """Taps are copies; three loops of the output leave through memory, transposed in registers."""
    inside = "r1+i2-1 >= 0 and 9-r1-i2 >= 0 and r2+i3-1 >= 0 and 7-r2-i3 >= 0"
    kernel = collapse(flatten(parse_kernel(
        "kernel weights(out o0: f32[6, 3, 3, 3], p0: f32[2, 3, 9, 7], p1: f32[2, 6, 9, 7])\n"
        "  for i0<6, i1<3, i2<3, i3<3:\n    t0 = sum(r0<2, r1<9, r2<7: p1[r0, i0, r1, r2]"
        f" * (p0[r0, i1, r1+i2-1, r2+i3-1] else 0.0 if {inside}))\n    o0[i0, i1, i2, i3] = t0\n")))
    equals(kernel, """plan
  split r1 -> kb y by 4, short
  split i0 -> j l by 4, guard
  split i1 -> i1b m by 3
  bind parallel i1b
  bind vector l
  bind unroll i2 i3
  order i1b r0 kb j m l y r2 i2 i3
  stage p0 at kb as [m][y+i2][r2+i3]
  stage p1 at kb as [y][r2][i0], transposed r2 by 4
  results at i1b as [m][i2][i3][i0], transposed i3 by 4
""")


BATCHED = """plan
  fuse i2 i3 -> p
  fuse i0 p -> c
  fuse r0 r1 -> k
  split i1 -> i u by 3, guard
  split c -> cb cc by 24, short
  split cc -> j l by 8, guard
  bind parallel cb
  bind vector l
  bind unroll u
  order cb j i l k u
  stage p0 at cb as [k][cc]
  results at cb as [i1][cc]
"""


def batched(n: int, h: int, w: int) -> Kernel:
    """Patches of 2x1 of images, whose rows lie apart."""
    return collapse(flatten(parse_kernel(
        f"kernel patches(out o0: f32[{n}, 5, {h}, {w}], p0: f32[{n}, 3, {2 * h}, {w}], p1: f32[5, 3, 2])\n"
        f"  for i0<{n}, i1<5, i2<{h}, i3<{w}:\n"
        f"    t0 = sum(r0<3, r1<2: p0[i0, r0, 2*i2+r1, i3] * p1[i1, r0, r1])\n    o0[i0, i1, i2, i3] = t0 + 1.0\n")))


@pytest.mark.parametrize("sizes", [(2, 3, 5), (3, 4, 4), (1, 7, 9)], ids=str)
def test_three_loops_of_images_are_one(sizes: tuple[int, int, int]) -> None:
    equals(batched(*sizes), BATCHED)


@pytest.mark.parametrize("kernel", [conv(7, 3), conv(3, 20, depth=1), conv(8, 8, out=2)], ids=["narrow", "low", "two"])
def test_rows_that_are_shorter_than_vectors(kernel: Kernel) -> None:
    columns: Any = kernel.nests[0].domain[-1].hi
    text = COLUMNS.replace("by 5, back", "by 3, back").format(row=columns + 3, box="[k][y+r1][i2+r2]")
    equals(kernel, text)


def test_sums_that_are_updated_in_place_are_stored_once() -> None:
    """The last vector of a row, and the last block of rows, leave what the one before them has stored."""
    kernel = conv(value="o0[i0, i1, i2] + t0")
    out = kernel.params[0]
    kernel = kernel.__class__(kernel.name, (out.__class__(out.name, out.dtype, out.shape, "inout"), *kernel.params[1:]),
                              (), (), kernel.nests)
    equals(kernel, COLUMNS.format(row=13, box="[k][y+r1][i2+r2]"))


def changed(old: str, new: str) -> str:
    text = COLUMNS.format(row=13, box="[k][y+r1][i2+r2]")
    assert old in text
    return text.replace(old, new)


WRONG = [
    ("fuse y i2 -> c by 13", "fuse y r2 -> c",
     "fuse y r2 -> c: expected two loops of the domain, of one sum or of one inner nest, got y and r2"),
    ("fuse y i2 -> c by 13", "fuse y i2 -> c by 10",
     "fuse y i2 -> c by 10: expected by 11 at least, the extent of i2, got 10"),
    ("fuse y i2 -> c by 13", "fuse y i7 -> c", "fuse y i7 -> c: expected a loop among i0 i1b y i2 r0 r1 r2, got i7"),
    ("fuse y i2 -> c by 13", "fuse y i2 -> i0 by 13",
     "fuse y i2 -> i0 by 13: expected a name that no loop has or had, got i0"),
    ("fuse y i2 -> c by 13", "fuse y i2 -> y by 13",
     "fuse y i2 -> y by 13: expected a name that no loop has or had, got y"),
    ("split i1 -> i1b y", "split i1 -> i0 y",
     "split i1 -> i0 y by 5, back: expected names that no loop has or had, got i0"),
    ("split c -> j jj", "split c -> j i2",
     "split c -> j i2 by 16, guard: expected names that no loop has or had, got i2"),
    ("by 5, back", "by 5, short",
     "split i1 -> i1b y by 5, short: expected an exact split, or back, as a part of it is fused, got short"),
    ("fuse y i2 -> c by 13", "fuse y i2 -> c by 12",
     "stage p0 at kb as [k][y+r1][i2+r2]: expected rows as long as those of `fuse y i2`, 12, got 13"),
    ("  stage p0 at kb as [k][y+r1][i2+r2]\n", "",
     "fuse y i2 -> c by 13: expected operands that are staged, as rows are longer, got one that is not"),
    ("[y+r1][i2+r2]", "[y+2*r1][i2+r2]",
     "stage p0 at kb as [k][y+2*r1][i2+r2]: expected an operand that depends on y+2*r1 and in no other way on r1, "
     "got another one"),
    ("[k][y+r1][i2+r2]", "[k][y+r1]", "stage p0 at kb as [k][y+r1]: expected i2 among the coordinates, as y is"),
    ("[k][y+r1]", "[k][r1%2][y+r1]",
     "stage p0 at kb as [k][r1%2][y+r1][i2+r2]: expected r1//2 among the coordinates, as r1%2 is"),
    ("[k][y+r1]", "[k][k][y+r1]",
     "stage p0 at kb as [k][k][y+r1][i2+r2]: expected each loop once among the coordinates, got k again"),
    ("[y+r1]", "[2*y+3*r1]",
     "stage p0 at kb as [k][2*y+3*r1][i2+r2]: expected a loop without a factor in each coordinate, got 2*y+3*r1"),
    ("as [i0][c]", "as [i0]",
     "results at i1b as [i0]: expected coordinates that are all loops of the domain inside i1b, j i l u v, got i u"),
    ("results at i1b", "results at kb",
     "results at kb as [i0][c]: expected a serial or parallel loop outside all sums, got kb"),
    ("as [i0][c]", "as [i0][c+r0]", "expected 'results at LOOP as [LOOP]..., transposed LOOP by NUMBER', got "
     "'results at i1b as [i0][c+r0]'"),
    ("  results at i1b as [i0][c]\n", "  results at i1b as [i0][c]\n" * 2,
     "results at i1b as [i0][c]: expected results by way of one memory, got another one"),
    ("split i0 -> i u by 3, guard", "split i0 -> i u by 3, back",
     "split i0 -> i u by 3, back: expected guard, as results go by way of memory inside i1b"),
    ("bind unroll u v", "bind unroll u v r2\n  parts r2",
     "results at i1b as [i0][c]: expected sums without parts, got r2"),
]


@pytest.mark.parametrize("old, new, message", WRONG, ids=[m[:60] for _, _, m in WRONG])
def test_wrong_memory_says_which_step_and_why(old: str, new: str, message: str) -> None:
    kernel = conv()
    with pytest.raises(PlanError) as caught:
        build(kernel, kernel.nests[0], parse_plan(changed(old, new)), "f")
    assert str(caught.value) == f"[plan] {message}"
