"""Plans for work-groups: products by tiles and in matrix units, whole and with edges; what is refused, and why."""
# Tests know their dims are ints.
# mypy: disable-error-code="arg-type,type-var"
import numpy as np
import pytest
from support.plan_reading import equals

from minigrad.codegen.ir.interpret import interpret_function
from minigrad.codegen.ir.text import print_function
from minigrad.codegen.kernel.interpret import interpret_kernel
from minigrad.codegen.kernel.nodes import Kernel
from minigrad.codegen.kernel.text import parse_kernel
from minigrad.codegen.lowering.collapse import collapse
from minigrad.codegen.lowering.flatten import flatten
from minigrad.codegen.plan.build import build
from minigrad.codegen.plan.text import parse_plan
from minigrad.errors import PlanError

TILES = """plan
  split i0 -> gm mm by 8, guard
  split mm -> tm u by 2, exact
  split i1 -> gn nn by 12, guard
  split nn -> tn v by 3, exact
  split r0 -> kb k by 5, guard
  bind group gm gn
  bind item tm tn
  bind unroll u v
  order gm gn tm tn kb k u v
  stage p0 at kb as [k][mm], transposed k, by items, double
  stage p1 at kb as [k][nn], by items, double
"""
UNITS = """plan
  split i0 -> gm mm by 32, guard
  split mm -> tm i by 16, exact
  split i1 -> gn nn by 16, guard
  split nn -> v j by 8, exact
  split r0 -> kb k by 32, guard
  split k -> ks kk by 16, exact
  bind group gm gn
  bind item tm
  bind unroll v
  order gm gn tm kb ks v i j kk
  stage p0 at kb as [mm][k], by items, double
  stage p1 at kb as [nn][k], transposed nn, by items
  call mma_f16_opencl at v
"""
PLANS = {
    "tiles": TILES,
    "copies of one block": TILES.replace(", double", ""),
    "one operand copied": TILES.replace("  stage p1 at kb as [k][nn], by items, double\n", ""),
    "nothing copied": "".join(line for line in TILES.splitlines(True) if "stage" not in line),
    "the sum in no blocks": TILES.replace("  split r0 -> kb k by 5, guard\n", "").replace("kb k u", "r0 u").replace(
        "at kb as [k]", "at r0 as ").replace("transposed k, ", ""),
    "the sum's rest": TILES.replace("by 5, guard", "by 5, rest").split("  stage")[0],
    "rows apart": TILES.replace("mm -> tm u by 2", "mm -> u tm by 4"),
}


def product(m: int, n: int, k: int, dtype: str = "f32") -> Kernel:
    load = {"f32": "p{}[{}]", "f16": "f32(p{}[{}])"}[dtype]
    a, b = load.format(0, "i0, r0"), load.format(1, "r0, i1")
    return collapse(flatten(parse_kernel(
        f"kernel sum_mul(out o0: f32[{m}, {n}], p0: {dtype}[{m}, {k}], p1: {dtype}[{k}, {n}], p2: f32[{n}])\n"
        f"  for i0<{m}, i1<{n}:\n    t0 = sum(r0<{k}: {a} * {b})\n    t1 = t0 + p2[i1]\n    o0[i0, i1] = t1\n")))


@pytest.mark.parametrize("sizes", [(8, 12, 5), (16, 24, 10), (19, 31, 13), (3, 4, 2), (33, 1, 1)], ids=str)
@pytest.mark.parametrize("plan", PLANS)
def test_products_equal_the_kernel(plan: str, sizes: tuple[int, int, int]) -> None:
    equals(product(*sizes), PLANS[plan])


@pytest.mark.parametrize("sizes", [(32, 16, 32), (40, 21, 50), (5, 3, 7)], ids=str)
def test_matrix_units_equal_the_kernel(sizes: tuple[int, int, int]) -> None:
    equals(product(*sizes, dtype="f16"), UNITS)


def test_what_is_not_a_number_stays_in_its_row() -> None:
    """What lies outside is 0 in copies of both operands, and nothing else is multiplied by it."""
    kernel = product(9, 13, 6)
    arrays = {p.name: np.ones(p.shape, np.float32) for p in kernel.params}
    arrays["p0"][6 * 8:] = np.inf
    arrays["p1"][13 * 5 + 2] = np.nan
    expected = {name: a.copy() for name, a in arrays.items()}
    interpret_kernel(kernel, expected)
    for name in PLANS:
        found = {name: a.copy() for name, a in arrays.items()}
        interpret_function(build(kernel, kernel.nests[0], parse_plan(PLANS[name]), "f"), found, {})
        np.testing.assert_array_equal(found["o0"], expected["o0"])


@pytest.mark.parametrize("change, message", [
    (("bind group gm gn", "bind parallel gm gn"), "bind parallel gm: expected another kind, as work-"),
    (("bind group gm gn", "bind group gm\n  bind parallel gn"), "bind parallel gn: expected another kind"),
    (("bind item tm tn", "bind unroll tm tn"), "stage p0 at kb .*: expected work-items, `bind item`, that do it"),
    (("bind item tm tn\n", "bind item tm\n  bind vector tn\n"), "bind vector tn: expected another kind"),
    (("gm gn tm tn kb", "gm gn kb tm tn"), "order: expected the item loop tm after those over groups and before all"),
    (("by 8, guard", "by 8, back"), "split i0 -> gm mm by 8, back: expected guard, as all work-items run the same"),
    (("u v\n  order gm gn tm tn kb k u v", "u\n  order gm gn tm tn kb k u v"),
     "order: expected v unrolled or outside all sums, as work-items keep these in registers"),
    ((", by items, double\n  stage p1", "\n  stage p1"), "stage p0 .*: expected by items, as a copy of each work-item"),
    (("at kb as [k][nn]", "at tn as [nn]"), "stage p1 at tn .*: expected a serial loop, got tn, which is bound item"),
    (("by 5, guard\n  bind group gm gn\n  bind item tm tn\n  bind unroll u v\n  order gm gn tm tn kb k",
      "by 5, guard\n  split k -> x y by 2, guard\n  bind group gm gn\n  bind item tm tn\n  bind unroll u v\n"
      "  order gm gn tm tn kb x y"), "stage p0 .*: expected coordinates whose blocks are whole, got k"),
    (("p1 at kb as [k][nn], by items", "p1 at gn as [r0][nn], by items"),
     "stage p1 at gn .*: expected a serial loop, got gn, which is bound group"),
    (("by 5, guard", "by 5, short"), "stage p0 .*: expected coordinates of known lengths, .* got k"),
])
def test_what_groups_cannot_do_is_an_error(change: tuple[str, str], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        equals(product(19, 31, 13), TILES.replace(*change))


@pytest.mark.parametrize("change, message", [
    (("by 16, exact\n  split i1", "by 8, exact\n  split i1"), "call mma_f16_opencl at v: expected serial loops of 16 "
     "rows, 8 columns and 16 steps of the sum, neighbours all, inside v, got i j kk"),
    (("mm -> tm i by 16", "mm -> i tm by 2"), "neighbours all, inside v, got i j kk"),
    (("by 32, guard\n  split k", "by 24, guard\n  split k"), "expected an edge"),
    (("by 32, guard\n  split k -> ks kk by 16, exact", "by 24, guard\n  split k -> ks kk by 16, guard"),
     "stage p0 .*: expected coordinates whose blocks are whole, got k"),
    (("at v", "at ks"), "call .* inside ks, got v i j kk"),
    (("f16_opencl", "bf16_opencl"), "call mma_bf16_opencl at v: expected operands of bfloat16, got float16"),
    (("mma_f16_opencl", "mma_f8_opencl"), "call mma_f8_opencl at v: expected a microkernel of a matrix unit"),
    (("[mm][k]", "[k][mm]"), "call .*: expected one sum of products of two copies, laid out along i, j and then kk"),
])
def test_what_units_cannot_do_is_an_error(change: tuple[str, str], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        equals(product(40, 21, 50, "f16"), UNITS.replace(*change))


FUSED = parse_kernel("""kernel fused(out o0: f32[210], p0: f32[840])
  for i0<5, i1<6:
    t0 = sum(r0<4, r1<7: p0[168*i0+7*i1+42*r0+r1])
    t1 = max(r2<4, r3<7: p0[168*i0+7*i1+42*r2+r3])
    for i2<7:
      o0[42*i0+7*i1+i2] = t0 + t1 * p0[168*i0+7*i1+i2]
""")


@pytest.mark.parametrize("steps", [
    "fuse i0 i1 -> x", "fuse i1 i0 -> x\n  split x -> g l by 4, back\n  bind parallel g\n  bind vector l",
    "fuse r0 r1 -> s\n  split s -> k c by 4, rest\n  bind unroll c\n  parts c",
    "fuse r1 r0 -> s\n  fuse i0 i1 -> x\n  split x -> g t by 8, guard\n  bind group g\n  bind item t",
    "split i1 -> b y by 4, back\n  fuse i0 y -> x\n  split x -> g l by 4, back\n  bind parallel b\n"
    "  bind vector l\n  order b g l",
    "split i0 -> b y into 2, back\n  split i1 -> c z by 3\n  fuse z y -> x\n  fuse c x -> w\n  bind parallel w\n"
    "  order w b",
    "split r1 -> a b by 7\n  split r0 -> c d by 2\n  fuse d b -> s\n  split s -> k l by 4, rest\n  bind vector l",
    "split i2 -> a b by 7\n  fuse b a -> s\n  split s -> k l by 4, guard\n  bind vector l",
])
def test_two_variables_as_one(steps: str) -> None:
    equals(FUSED, f"plan\n  {steps}\n")


@pytest.mark.parametrize("steps", [
    "split i0 -> g l by 4, guard\n  bind parallel g\n  bind vector l", "split r0 -> k l by 8, guard\n  bind vector l",
    "split r0 -> k c by 3, guard\n  bind unroll c\n  parts c", "split i1 -> g u into 4, guard\n  bind unroll u",
])
def test_blocks_as_long_as_others(steps: str) -> None:
    """Workers, lanes and parts of sums have what lies outside masked."""
    equals(FUSED, f"plan\n  {steps}\n")


@pytest.mark.parametrize("steps, message", [
    ("fuse i0 r0 -> x", "fuse i0 r0 -> x: expected two loops of the domain, of one sum or of one inner nest, got i0 "
                        "and r0"),
    ("fuse i0 i0 -> x", "expected two loops of"), ("fuse r2 r3 -> x", "expected a loop among i0 i1 r0 r1 i2, got r2"),
    ("fuse i0 i1 -> i2", "fuse i0 i1 -> i2: expected a name that no loop has or had, got i2"),
    ("fuse i0 i1 -> r3", "fuse i0 i1 -> r3: expected a name that no loop has or had, got r3"),
    ("fuse i0 i1 -> p0", "fuse -> p0: expected names that no argument of the kernel has, got p0"),
    ("fuse r0 r1 -> x by 8", "fuse r0 r1 -> x by 8: expected by 7, the extent of r1, got 8"),
    ("fuse i0 i1 -> x by 8", "expected `results` at a loop around it, as rows are longer than i1"),
    ("split r0 -> a b by 3, back\n  fuse b r1 -> x",
     "split r0 -> a b by 3, back: expected an exact split, as a part of it is fused, got back"),
    ("split r9 -> r9 b by 2\n  fuse b r1 -> x", "split r9 .*: expected names that no loop has or had, got r9"),
    ("split r9 -> a b by 2\n  fuse b r1 -> x", "split r9 .*: expected a loop among i0 i1 r0 r1 i2, got r9"),
    ("fuse b r1 -> x\n  split r0 -> a b by 2", "fuse b r1 -> x: expected a loop among i0 i1 r0 r1 i2, got b"),
    ("bind serial r0\n  fuse i0 i1 -> x", "fuse i0 i1 -> x: expected it before all steps but sizes and splits"),
])
def test_what_cannot_be_one_variable(steps: str, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        equals(FUSED, f"plan\n  {steps}\n")


ROWS = """kernel rows(out o0: f32[{m}, {n}], out o1: f32[{m}], p0: f32[{m}, {n}], p1: f32[{m}, {n}])
  for i0<{m}:
    t0 = max(r0<{n}: p0[i0, r0])
    t1 = sum(r1<{n}: p0[i0, r1] * p1[i0, r1] - t0)
    t2 = sum(r2<{n}: p1[i0, r2])
    t3 = t1 * p0[i0, 0]
    o1[i0] = t2 - t1
    for i1<{n}:
      o0[i0, i1] = p0[i0, i1] + t3 - t2
"""
SHARED = """plan
  split i0 -> g u by 4, guard
  split r0 -> c0 t by 8, guard
  split r1 -> c1 tt by 8, guard
  split i1 -> c2 ttt by 8, guard
  bind group g
  bind item u t tt ttt
  order g u t tt ttt c0 c1 c2
"""
TEAM_PLANS = {
    "neighbours": SHARED,
    "rows beside each other": SHARED.replace("g u t tt ttt", "g t tt ttt u"),
    "six work-items": SHARED.replace("by 8", "by 6"),
    "one row": SHARED.replace("  split i0 -> g u by 4, guard\n", "").replace("item u", "item").replace(
        "g u", "i0").replace("group g", "group i0"),
    "rows by one work-item": SHARED.replace("  split i1 -> c2 ttt by 8, guard\n", "").replace(" ttt", "").replace(
        "c2", "i1"),
    "chains": SHARED.replace("  bind group", "  split c1 -> d1 e1 by 3, guard\n  bind unroll e1\n  bind group").replace(
        "c0 c1", "c0 d1 e1") + "  parts e1\n",
    "sub-groups": SHARED + "  call sub_max_f32_4 at t\n  call sub_sum_f32_8 at tt\n",
}


def rows(m: int, n: int) -> Kernel:
    return collapse(flatten(parse_kernel(ROWS.format(m=m, n=n))))


@pytest.mark.parametrize("sizes", [(8, 32), (7, 29), (1, 3), (5, 8)], ids=str)
@pytest.mark.parametrize("plan", TEAM_PLANS)
def test_teams_equal_the_kernel(plan: str, sizes: tuple[int, int]) -> None:
    equals(rows(*sizes), TEAM_PLANS[plan])


TILE = """kernel tile(out o0: f32[{m}, 4], p0: f32[{m}, {n}, 9], p1: f32[4, 9, {n}])
  for i0<{m}, i1<4:
    t0 = sum(r0<{n}, r1<9: p0[i0, r0, r1] * p1[i1, r1, r0])
    o0[i0, i1] = t0 + 1.0
"""
OF_TILES = """plan
  split i0 -> g u by 2, guard
  split r0 -> c t by 3, guard
  split r1 -> d tt by 8, guard
  bind group g
  bind item u t tt
  bind unroll i1
  order g u t tt c d i1
"""


@pytest.mark.parametrize("sizes", [(4, 6), (3, 7), (1, 1)], ids=str)
@pytest.mark.parametrize("plan", [OF_TILES, OF_TILES.replace("c d i1", "c i1 d"), OF_TILES.replace("u t tt", "t tt u"),
                                  OF_TILES + "  call sub_sum_f32_8 at tt\n",
                                  OF_TILES.replace("unroll i1", "unroll i1 d") + "  parts d\n"])
def test_teams_along_two_loops_have_several_sums(plan: str, sizes: tuple[int, int]) -> None:
    m, n = sizes
    equals(collapse(flatten(parse_kernel(TILE.format(m=m, n=n)))), plan)


def test_sums_that_work_items_join_are_written_out_inside_their_loops() -> None:
    with pytest.raises(PlanError, match="bind unroll i1: expected group or item, as work-items join their sums once"):
        equals(collapse(flatten(parse_kernel(TILE.format(m=3, n=7)))), OF_TILES.replace("c d i1", "i1 c d"))


def test_a_sum_of_everything_is_one_team() -> None:
    kernel = parse_kernel("""kernel total(out o0: f32[1], p0: f32[150])
  for:
    t0 = sum(r0<10, r1<15: p0[15*r0+r1])
    o0[0] = t0
""")
    equals(kernel, "plan\n  fuse r0 r1 -> s\n  split s -> c t by 16, guard\n  bind item t\n  order t c\n")


STORED = parse_kernel("""kernel stored(out o0: f32[63], out o1: f32[7], p0: f32[63])
  for i0<7:
    for i1<9:
      o0[9*i0+i1] = p0[9*i0+i1] * 2.0
    t0 = sum(r0<9: o0[9*i0+r0])
    o1[i0] = t0
""")


def test_what_a_team_stores_it_reads_after_a_barrier() -> None:
    """And nothing of what other groups store, also where it would be dropped."""
    text = ("plan\n  split i0 -> g u by 4, guard\n  split i1 -> c t by 8, guard\n  split r0 -> d tt by 8, guard\n"
            "  bind group g\n  bind item u t tt\n  order g u t tt c d\n")
    equals(STORED, text)
    lines = print_function(build(STORED, STORED.nests[0], parse_plan(text), "f")).splitlines()
    stored = next(k for k, line in enumerate(lines) if line.strip().startswith("o0["))
    assert lines[stored + 1].strip() == "barrier"
    assert any("min(4*g+t_2//8, 6)" in line for line in lines)


@pytest.mark.parametrize("change, message", [
    (("tt by 8", "tt by 4"), "bind item tt: expected 8 iterations as of t, whose work-items these are, got 4"),
    (("g u t tt ttt", "g t u tt ttt"), "order: expected the item loops t tt ttt beside each other"),
    (("split i0 -> g u by 4, guard", "split i0 -> g uu by 4, guard\n  split uu -> u s by 2"),
     "bind serial s: expected group or item, as work-items join their sums once"),
    (("t by 8, guard\n  split r1", "t by 8, rest\n  split r1"), "split r0 -> c0 t by 8, rest: expected guard, as all"),
    (("c0 c1 c2", "c0 c1 c2\n  call sub_sum_f32_8 at c0"), "call .*: expected a sum's loop of neighbours, 8"),
    (("ttt c0 c1 c2", "ttt c0 c1 c2\n  call sub_sum_f32_16 at t"), "call .*: expected a sum's loop of neighbours, 16 "),
    (("g u t tt ttt c0 c1 c2", "g t tt ttt u c0 c1 c2\n  call sub_sum_f32_8 at tt"), "call .*: expected a sum's loop"),
    (("ttt c0 c1 c2", "ttt c0 c1 c2\n  call sub_any_f32_8 at t"), "expected a microkernel of a matrix unit, of sub"),
    (("split i1 -> c2 ttt by 8, guard\n  bind group g\n  bind item u t tt ttt\n  order g u", "split i1 -> c2 s by 64, "
      "guard\n  split s -> ss ttt by 8\n  bind group g\n  bind item u t tt ttt ss\n  order g u ss"),
     "bind item t: expected 2 loops of work-items for each sum and inner nest"),
])
def test_what_teams_cannot_do_is_an_error(change: tuple[str, str], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        equals(rows(7, 29), SHARED.replace(*change))
