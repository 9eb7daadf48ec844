"""The cost of plans: what it says of loops by themselves, and a policy of its own in a few lines."""
from collections.abc import Iterator
from dataclasses import replace

import pytest
from support.golden_plans import TARGETS
from support.packed import flat_kernel, tensor
from support.plan_reading import equals
from support.plan_stage import product

from minigrad.codegen.cost.counts import Counts, counts
from minigrad.codegen.cost.plans import Estimate, estimate
from minigrad.codegen.kernel.access import extent
from minigrad.codegen.kernel.nodes import Kernel, Nest
from minigrad.codegen.kernel.text import parse_kernel
from minigrad.codegen.lowering.collapse import collapse
from minigrad.codegen.lowering.flatten import flatten
from minigrad.codegen.machines.machine import machine
from minigrad.codegen.patterns.recognise import Contraction, recognise
from minigrad.codegen.plan.steps import Bind, Order, Plan, Split, Stage, resolve
from minigrad.codegen.plan.text import parse_plan
from minigrad.codegen.policy import packed
from minigrad.target import Target

TARGET = Target("avx2", "llvm", "znver3", 32, 16, 1, 32 << 10, 512 << 10, features=frozenset({"avx2", "fma"}))
TILE = """plan
  split i0 -> i0b u by 4, back
  split i1 -> i1b l by 8, back
  bind parallel i0b i1b
  bind vector l
  bind unroll u
  order i0b i1b l r0 u
"""


STEP = machine(TARGET).plans.latency * machine(TARGET).declared.fma_latency
"""Cycles from one multiply-add to the next of the same sum."""


def of(kernel: Kernel, text: str, target: Target = TARGET) -> Estimate:
    return estimate(kernel.nests[0], parse_plan(text), target)


def test_what_bounds_a_plan() -> None:
    kernel = product(64, 64, 64)
    tile, one = of(kernel, TILE), of(kernel, TILE.replace("by 4", "by 1"))
    scalar = of(kernel, "plan\n  bind parallel i0 i1\n  order i0 i1 r0\n")
    assert tile.cycles < one.cycles < scalar.cycles
    assert tile.arithmetic == pytest.approx((64 ** 3 + 64 ** 2) / 8 / 2)  # multiply-adds, and an addition at the end
    assert scalar.arithmetic == pytest.approx((64 ** 3 + 64 ** 2) / 2)
    assert tile.ports < one.ports and tile.latency == pytest.approx(64 ** 3 / 32 * STEP)  # a chain for each copy
    assert one.latency == pytest.approx(4 * tile.latency) and "latency" in str(scalar)


def test_parts_hide_latency_and_lanes_apart_are_loads() -> None:
    kernel = product(64, 64, 64, b="i1, r0")
    along = """plan
  split r0 -> r0b r0l by 8, rest
  split r0b -> k c by 4, rest
  bind parallel i0 i1
  bind vector r0l
  bind unroll c
  order i0 i1 r0l k c
  parts c
"""
    parts, one = of(kernel, along), of(kernel, along.replace("  parts c\n", ""))
    assert parts.latency == pytest.approx(one.latency / 4) and parts.arithmetic == one.arithmetic
    assert of(kernel, TILE).ports > 2 * of(product(64, 64, 64), TILE).ports


def test_edges_memory_and_workers() -> None:
    assert of(product(64, 65, 64), TILE).arithmetic > 1.1 * of(product(64, 64, 64), TILE).arithmetic
    rest = TILE.replace("l by 8, back", "l by 8, rest")
    assert of(product(64, 71, 64), rest).arithmetic > of(product(64, 71, 64), TILE).arithmetic
    near, far = (of(product(64, 64, k), TILE).memory / k for k in (64, 1 << 14))
    assert far > 2 * near
    two = replace(TARGET, units=2)
    assert of(product(64, 64, 64), TILE, two).cycles == pytest.approx(of(product(64, 64, 64), TILE).cycles / 2)


# ---- a policy: lanes along M, for operands that lie along it ----


def lanes_along_m(nest: Nest, target: Target) -> Iterator[Plan]:
    """Products whose rows are few and whose first operand is transposed: A is staged with its rows across lanes."""
    found = recognise(nest)
    if not isinstance(found, Contraction) or len(found.m) != 1 or len(found.n) != 1 or len(found.k) != 1:
        return
    m, n, k = found.m[0], found.n[0], found.k[0]
    width = target.lanes(found.a.dtype.bits)
    reads = [v.buffer for v in found.a.args or (found.a,) if v.op == "load"]
    for vectors in (1, 2, 3):
        for columns in (2, 4, 6):
            if vectors * width <= extent(m) and columns <= extent(n) and reads:
                yield Plan("lanes along m", (
                    Split(m.name, "mb", "mm", vectors * width, "back"), Split("mm", "v", "l", width),
                    Split(n.name, "nb", "w", columns, "back"),
                    Bind("parallel", ("mb",)), Bind("vector", ("l",)), Bind("unroll", ("v", "w")),
                    Order(("mb", "nb", "l", k.name, "v", "w")), Stage(str(reads[0]), "mb", (k.name, "v", "l"))))


@pytest.mark.parametrize("sizes", [(16, 8, 8), (19, 7, 21), (33, 70, 11)], ids=str)
def test_a_strategy_is_a_pattern_and_its_steps(sizes: tuple[int, int, int]) -> None:
    kernel = product(*sizes)
    plans = sorted(lanes_along_m(kernel.nests[0], TARGET), key=lambda p: estimate(kernel.nests[0], p, TARGET).cycles)
    assert len(plans) >= 2
    for plan in plans:
        equals(kernel, str(plan).replace("lanes along m", ""))
    costs = [estimate(kernel.nests[0], plan, TARGET).cycles for plan in plans]
    assert costs[0] < costs[-1]


# ---- counts ----

STAGED = """plan
  split i0 -> i0b u by 4, exact
  split i1 -> j l by 8, exact
  bind parallel i0b
  bind vector l
  bind unroll u
  order i0b j l r0 u
  stage p1 at i0b as [j][r0][l]
"""


def counted(kernel: Kernel, text: str) -> Counts:
    return counts(resolve(kernel.nests[0], parse_plan(text)), TARGET)


def test_copies_count_by_the_way_in_which_they_are_read() -> None:
    """In whole vectors, transposed in square blocks, and one by one; the sum reads whole vectors of the copy."""
    elements, across = 16 * 64 * 64, product(64, 64, 64, b="i1, r0")
    along, single = counted(product(64, 64, 64), STAGED), counted(across, STAGED)
    transposed = counted(across, STAGED.rstrip().replace("[l]", "[l], transposed r0 by 8"))
    assert along.copied == elements / 8 and not along.transposed and not along.single
    assert transposed.transposed == single.single == elements and not transposed.copied and not single.copied
    assert along.loads == single.loads == transposed.loads and not single.gathers
    assert counted(across, TILE).gathers == elements * 8 / 8 * 8 / 8


def test_rows_that_lie_a_power_of_two_apart_take_room() -> None:
    """Of 1,024 columns each row is a page after the last, so that a column of tiles stays in no cache."""
    near, far = [counted(product(64, n, 128), TILE).near / n for n in (1016, 1024)]
    assert far > 1.4 * near


def test_what_rows_and_taps_share_is_read_once() -> None:
    """Four rows and three taps of a window meet in six rows of positions."""
    kernel = collapse(flatten(parse_kernel(
        "kernel window(out o0: f32[64, 64], p0: f32[66, 70], p1: f32[3])\n"
        "  for i0<64, i1<64:\n    t0 = sum(r0<3: p0[i0+r0, i1] * p1[r0])\n    o0[i0, i1] = t0\n")))
    written, loop = (counted(kernel, TILE.replace("unroll u", kinds)) for kinds in ("unroll u r0", "unroll u"))
    tiles = 16 * 8
    assert loop.loads - written.loads == tiles * (12 - 6)


@pytest.mark.parametrize("dtype, kind, group", [("int8", "u8x4", 4), ("bfloat16", "bf16x2", 2)])
def test_words_are_counted_as_one(dtype: str, kind: str, group: int) -> None:
    """Of each microkernel's tile: one product for all elements of words, loads of whole vectors, no lanes apart."""
    target, m, k, n = replace(TARGETS["vnni"], units=1), 48, 128, 64
    a, b = (tensor(*shape).cast(dtype).realize() for shape in ((m, k), (k, n)))
    kernel = flat_kernel(a.matmul(b, dtype="int32" if dtype == "int8" else "float32"), target)
    way = next(packed.ways(kernel.nests[0], target))
    nest, plan = way.made(way.choices[0][1], target)
    found = counts(resolve(nest, plan), target)
    assert f"tile_{kind}_" in str(plan) and found.gathers == found.single == 0
    products = m * n * k // group // 16 * (machine(target).costs.dot_step if dtype == "bfloat16" else 1)
    assert products <= found.arithmetic <= 1.2 * products
    assert found.loads < products and 1 <= found.copied_near * group / (4 * k * (m + n)) <= 1.05


COMPUTED = """kernel k(out o0: f32[96, 64], p0: f32[96, 80], p1: f32[80, 64], p2: f32[96, 80], p3: f32[80])
  for i0<96, i1<64:
    t0 = sum(r0<80: {a} * p1[r0, i1])
    o0[i0, i1] = t0
"""
COPIED = """plan packed
  split i0 -> i u by 4, guard
  split i1 -> j l by 8, guard
  bind parallel part
  bind vector l
  bind unroll u
  order j i l r0 u
  stage p0 at part as [i0][r0]
  results at part as [i0][i1]
"""


@pytest.mark.parametrize("a", ["(p0[i0, r0] + p2[i0, r0])", "(p0[i0, r0] * p3[r0])",
                               "(p0[i0, r0] + (p2[i0, r0] else 0.0 if i0-3 >= 0))"])
def test_what_a_copy_stands_for_is_one_read(a: str) -> None:
    """Of however many buffers it is computed; without the copy each product computes it anew."""
    def own(value: str, copied: bool) -> Counts:
        kernel = parse_kernel(COMPUTED.format(a=value).replace("for i0<96", "for part<1, i0<96"))
        text = COPIED if copied else COPIED.replace("  stage p0 at part as [i0][r0]\n", "")
        return counted(kernel, text)
    plain, whole, again = own("p0[i0, r0]", True), own(a, True), own(a, False)
    assert (whole.loads, whole.tests, whole.arithmetic) == (plain.loads, plain.tests, plain.arithmetic)
    assert whole.near == plain.near and again.loads > whole.loads and again.arithmetic > whole.arithmetic


def test_quotients_and_remainders_of_a_loop_move_as_their_neighbours_do() -> None:
    """Of planes that a pool repeats: lines are read once, not for each element; unless memory says where."""
    def near(index: str) -> float:
        kernel = parse_kernel(f"""kernel k(out o0: f32[65536], p0: f32[65536], p1: i32[65536])
  for i0<65536:
    o0[i0] = p0[{index}] * 2.0
""")
        return counted(kernel, "plan\n  order i0\n").near
    straight = near("i0")
    assert near("128*(i0//256)+i0%256//2") <= straight < near("256*(i0%256)+i0//256") / 8


def test_what_memory_decides_is_read_from_anywhere() -> None:
    """Lanes of a table are gathered, and the indices that say where are not what is read."""
    def own(at: str) -> Counts:
        kernel = parse_kernel(f"""kernel k(out o0: f32[4096], p0: f32[64], p1: i32[4096])
  for i0<4096:
    o0[i0] = p0[{at}] * 2.0
""")
        return counted(kernel, "plan\n  split i0 -> i0b l by 8, exact\n  bind vector l\n  order i0b l\n")
    assert own("{min(max(i64(p1[i0]), 0:i64), 63:i64) in 0..63}").gathers == 4096 and not own("i0").gathers


def test_lines_that_do_not_stay_are_read_whole() -> None:
    """Lanes that lie a page apart leave the cache before the next element of their lines is read."""
    text = """kernel k(out o0: f32[128, {n}], p0: f32[128, {n}])
  for i0<{n}, i1<128:
    o0[i1, i0] = p0[i1, i0] * 2.0
"""
    plan = "plan\n  split i1 -> i1b l by 8, back\n  bind vector l\n  bind unroll i1b\n  order i0 l i1b\n"
    apart, beside = (counted(flatten(parse_kernel(text.format(n=n))), plan).near / n for n in (4096, 4096 + 16))
    assert apart >= 8 * beside
