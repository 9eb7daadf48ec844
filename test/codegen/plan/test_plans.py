"""Plans of steps: each that is accepted gives what the kernel says, each other one is a PlanError that teaches."""
from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support.plan_reading import built
from support.random_plans import NESTS, Case, mutated, random_case, random_plan

from minigrad.codegen.ir.interpret import interpret_function
from minigrad.codegen.ir.nodes import Store
from minigrad.codegen.ir.verify import verify_function
from minigrad.codegen.ir.walk import statements
from minigrad.codegen.kernel.interpret import interpret_kernel
from minigrad.codegen.kernel.nodes import Kernel
from minigrad.codegen.kernel.text import parse_kernel, print_kernel
from minigrad.codegen.plan.build import build
from minigrad.codegen.plan.steps import Fuse, Plan, Split, resolve
from minigrad.codegen.plan.text import parse_plan
from minigrad.errors import PlanError


def expected(case: Case) -> dict[str, np.ndarray]:
    """What the kernel itself makes of a case."""
    arrays = {name: a.copy() for name, a in case.arrays.items()}
    interpret_kernel(case.kernel, arrays, {}, case.dims)
    return arrays


def is_right(case: Case, plan: Plan, want: dict[str, np.ndarray]) -> bool:
    """Whether a plan is accepted. Fails where its loops break a rule, or compute anything else."""
    try:
        function, sizes = built(case.kernel, plan)
    except PlanError as error:
        assert str(error).startswith("[plan] ") and "expected" in str(error)
        return False
    verify_function(function)
    found = {name: a.copy() for name, a in case.arrays.items()}
    interpret_function(function, found, {}, {**case.dims, **sizes})
    for name, a in want.items():
        if a.dtype.kind == "f":
            np.testing.assert_allclose(found[name], a, rtol=1e-11, atol=1e-13, err_msg=f"{name} under\n{plan}")
        else:
            np.testing.assert_array_equal(found[name], a, err_msg=f"{name} under\n{plan}")
    return True


@pytest.mark.parametrize("name, groups", [*((n, False) for n in NESTS), *((n, True) for n in NESTS if n != "scatter")])
def test_random_plans_compute_what_the_kernel_says(name: str, groups: bool) -> None:
    rng = np.random.default_rng(list(NESTS).index(name) + 50 * groups)
    accepted, enough = 0, 5 if groups else 9
    for _ in range(300):
        case = random_case(rng, name)
        want = expected(case)
        for _ in range(3):
            plan = random_plan(rng, case.kernel, groups)
            assert parse_plan(str(plan)) == plan
            accepted += is_right(case, plan, want)
        if accepted >= enough:
            break
    assert accepted >= enough


@pytest.mark.parametrize("steps", [
    ["split i0 -> a b by 4, back", "bind parallel a", "bind unroll b", "order a i1 r0 b"],
    ["split i1 -> a b by 4, back", "bind vector b", "order i0 a b r0"],
    ["split i0 -> a b into 3, back", "split i1 -> c d by 2, back", "bind unroll a d", "order b c r0 a d"]],
    ids=["rows", "columns", "parts"])
@pytest.mark.parametrize("param, value, masked", [
    ("out", "t0 + 1.0", False), ("inout", "t0 + 1.0", True), ("inout", "t0 + o0[7*i0+i1]", True)])
def test_blocks_that_reach_back_store_again_what_no_one_reads(param: str, value: str, masked: bool, steps: list[str]
                                                              ) -> None:
    kernel = parse_kernel(f"""kernel k({param} o0: f32[70], p0: f32[50], p1: f32[35])
  for i0<10, i1<7:
    t0 = sum(r0<5: p0[5*i0+r0] * p1[7*r0+i1])
    o0[7*i0+i1] = {value}
""")
    function, _ = built(kernel, parse_plan("\n".join(["plan", *steps])))
    stores = [s for s in statements(function) if isinstance(s, Store) and s.buffer == "o0"]
    assert [bool(s.conditions) for s in stores] == ([False, True] if masked else [False])
    rng = np.random.default_rng(0)
    arrays = {name: rng.integers(-8, 9, size).astype(np.float32) for name, size in (("o0", 70), ("p0", 50), ("p1", 35))}
    case = Case(kernel, arrays, {})
    assert is_right(case, parse_plan("\n".join(["plan", *steps])), expected(case))


@pytest.mark.parametrize("steps", [
    ["split i1 -> a b by 4", "split b -> c d into 5, back"],
    ["split i1 -> a b by 3, short", "split b -> c d by 4, back"],
    ["split i1 -> a b by 2, back", "split b -> c d by 2, back", "split c -> e f by 2, rest"],
    ["split i1 -> a b by 5, back", "split a -> c d by 4, rest", "bind vector d", "order i0 c d b"],
    ["split i1 -> a b by 5, back", "split a -> c d by 2, back", "split b -> e f by 3, rest", "bind unroll d"],
    ["fuse i0 i1 -> c", "split c -> a b by 7, rest", "split b -> d e by 4, back", "bind unroll e"],
    ["split i1 -> a b by 5, rest", "split a -> c d into 3, back"],
    ["split i1 -> a b by 6, back", "split b -> c d by 4, back", "bind vector d", "bind unroll c", "order i0 a d c"]],
    ids=lambda steps: "; ".join(steps))
@pytest.mark.parametrize("size", [8, 9, 13])
def test_updates_happen_once(size: int, steps: list[str]) -> None:
    """Also where blocks that reach back are parts of blocks, or are run as a rest."""
    kernel = parse_kernel(f"""kernel k(inout o0: i64[{3 * size}])
  for i0<3, i1<{size}:
    o0[{size}*i0+i1] = o0[{size}*i0+i1] * 3:i64
""")
    case = Case(kernel, {"o0": np.arange(3 * size)}, {})
    is_right(case, parse_plan("\n".join(["plan", *steps])), expected(case))


def test_a_guard_of_a_sum_does_not_hide_what_is_stored() -> None:
    case = Case(parse_kernel("""kernel k(out o0: i64[3], p0: i64[192])
  for i0<3:
    t0 = max(r0<64: p0[64*i0+r0])
    o0[i0] = t0
"""), {"o0": np.zeros(3, np.int64), "p0": np.random.default_rng(0).integers(-99, 99, 192)}, {})
    plan = "plan\n  split r0 -> a b by 2\n  split b -> c d by 4, guard\n  order d a c i0"
    assert is_right(case, parse_plan(plan), expected(case))


def adds_in_order(kernel: Kernel, plan: Plan) -> bool:
    """Whether a plan leaves the terms of each sum in their order."""
    nest, = kernel.nests
    loops = resolve(nest, plan)
    plain = resolve(nest, replace(plan, steps=tuple([s for s in plan.steps if isinstance(s, Fuse | Split)])))
    if any(isinstance(s, Fuse) and loops.space[s.loop] for s in plan.steps):
        return False
    along = [x for x in loops.order if loops.space[x]]
    return not loops.parts and along == [x for x in plain.order if loops.space[x]] and not any(
        loops.kind[x] == "vector" for x in along)


@pytest.mark.parametrize("name", ["product", "reduction", "sums in a value", "nested sums"])
def test_sums_in_their_order_keep_their_bits(name: str) -> None:
    rng = np.random.default_rng(8)
    checked = 0
    for _ in range(100):
        case = random_case(rng, name)
        case.kernel = parse_kernel(print_kernel(case.kernel).replace("i64", "f64"))
        case.arrays = {k: rng.standard_normal(a.shape) for k, a in case.arrays.items()}
        found = []
        for plan in (Plan("", ()), random_plan(rng, case.kernel)):
            try:
                function = build(case.kernel, case.kernel.nests[0], plan, "k")
            except PlanError:
                break
            if not adds_in_order(case.kernel, plan):
                break
            arrays = {k: a.copy() for k, a in case.arrays.items()}
            interpret_function(function, arrays, {}, case.dims)
            found.append(arrays)
        if len(found) == 2:
            checked += 1
            for k, a in found[0].items():
                np.testing.assert_array_equal(a, found[1][k], err_msg=f"{k} under\n{plan}")
        if checked == 6:
            break
    assert checked == 6


GOOD = {
    "product": """plan
  sizes i0 r0
  split i0 -> i u by 2, back
  split i1 -> j l by 4, back
  split r0 -> k t by 2, rest
  bind parallel j i
  bind vector l
  bind unroll u t
  order j i l k t u
  parts t
  ahead p1 at k by 1 of k
""",
    "rows": """plan rows
  split r0 -> a b by 4, rest
  split a -> c d by 2, rest
  split r1 -> e f by 4, rest
  split i1 -> g h by 2, rest
  bind parallel i0
  bind vector b f h
  bind unroll d
  order i0 b c d f e g h
  parts d
""",
    "nested sums": """plan
  split i1 -> j l by 4, rest
  split r0 -> k t by 3, rest
  bind parallel i0 j
  bind vector l
  bind unroll t
  order i0 j l k t r1
""",
    "window": """plan
  split i1 -> t u by 2, guard
  split i2 -> j l by 4, guard
  bind parallel i0
  bind vector l
  bind unroll u
  order i0 t j l r0 r1 r2 u
  stage p0 at i0 as [r0][i1+r1][i2+r2], border
""",
    "transposed product": """plan
  split i0 -> b i by 4, short
  split i -> x u by 2, guard
  split i1 -> j l by 4, guard
  bind parallel b
  bind vector l
  bind unroll u
  order b j x l r0 u
  stage p1 at b as [r0][i1]
  results at b as [i][i1]
""",
    "updates": """plan
  split i0 -> g m by 2, guard
  split i1 -> h n by 4, guard
  split r0 -> k t by 2, guard
  bind group g h
  bind item m n
  order g h m n k t
  stage p1 at k as [t][n], by items, double
  stage p0 at k as [m][t], by items
""",
}


@pytest.mark.parametrize("name", GOOD)
def test_a_changed_text_is_refused_or_right(name: str) -> None:
    rng = np.random.default_rng(5)
    while True:
        case = random_case(rng, name)
        want = expected(case)
        if is_right(case, parse_plan(GOOD[name]), want):
            break
    accepted = 0
    for _ in range(140):
        text = mutated(rng, GOOD[name])
        try:
            plan = parse_plan(text)
        except PlanError as error:
            assert "expected" in str(error)
            continue
        assert parse_plan(str(plan)) == plan
        accepted += is_right(case, plan, want)
    assert accepted >= 3


PRODUCT = parse_kernel("""kernel sum_mul(out o0: f32[200], p0: f32[70], p1: f32[140])
  for i0<10, i1<20:
    t0 = sum(r0<7: p0[7*i0+r0] * p1[20*r0+i1])
    o0[20*i0+i1] = t0
""")
ROWS = parse_kernel("""kernel rows(out o0: f32[200], p0: f32[200])
  for i0<10:
    t0 = sum(r0<20: p0[20*i0+r0])
    for i1<20:
      o0[20*i0+i1] = p0[20*i0+i1] / t0
""")
ONE = parse_kernel("""kernel sum(out o0: f32[9], p0: f32[63])
  for i0<1, i1<9:
    t0 = sum(r0<7: p0[7*i1+r0])
    o0[i1] = t0
""")
EMPTY = parse_kernel("""kernel sum_mul(out o0: f32[200], p0: f32[0], p1: f32[0])
  for i0<10, i1<20:
    t0 = sum(r0<0: p0[r0] * p1[20*r0+i1])
    o0[20*i0+i1] = t0
""")
SCATTER = parse_kernel("""kernel scatter(inout o0: f32[5], p0: i64[9], p1: f32[9])
  for i0<9:
    o0[{p0[i0] in 0..4}] sum= p1[i0]
""")
WRONG = [
    (PRODUCT, ["tile i0 i1 4 4"],
     "expected a step among split, sizes, fuse, order, bind, parts, stage, results, call, compute, ahead, got "
     "'tile i0 i1 4 4'"),
    (PRODUCT, ["split i0 -> a by 4"],
     "expected 'split LOOP -> OUTER INNER by SIZE, exact|back|guard|rest|short', got 'split i0 -> a by 4'"),
    (PRODUCT, ["split i2 -> a b by 4, rest"],
     "split i2 -> a b by 4, rest: expected a loop among i0 i1 r0, got i2"),
    (PRODUCT, ["split i0 -> a b by 4"],
     "split i0 by 4: expected an edge, back, guard, rest or short, as 4 does not divide the extent 10"),
    (PRODUCT, ["split i0 -> a b by 4, mask"],
     "split i0 -> a b by 4, mask: expected an edge among exact, back, guard, rest, short, got mask"),
    (PRODUCT, ["split i0 -> a b by 0"], "split i0 -> a b by 0, exact: expected a size from 1 on, got 0"),
    (PRODUCT, ["split i0 -> a a by 5"], "split i0 -> a a by 5, exact: expected names that no loop has or had, got a"),
    (PRODUCT, ["split i0 -> p0 a by 5"],
     "split i0 -> p0 a by 5, exact: expected names that no argument of the kernel has, got p0"),
    (PRODUCT, ["split i0 -> a b by 16, back"],
     "split i0 by 16, back: expected an extent of 16 at least to reach back over, got 10"),
    (PRODUCT, ["split r0 -> a b by 4, back"],
     "split r0 by 4, back: expected guard or rest, as a sum would add some terms twice"),
    (PRODUCT, ["split i0 -> a b by 4, short", "split b -> c d by 1", "split c -> e f into 4, rest"],
     "split c into 4, rest: expected back, as runs of c may be shorter"),
    (PRODUCT, ["split i0 -> a b by 4, guard", "split b -> c d by 3, back"],
     "split b by 3, back: expected guard, as the last block of i0 is not whole"),
    (PRODUCT, ["split r0 -> a b by 8, short", "split a -> c d by 2, guard"],
     "split a by 2, guard: expected rest or short, as blocks beyond the end have no length"),
    (PRODUCT, ["split i0 -> a b into 5, short"],
     "split i0 -> a b into 5, short: expected by, as blocks `into` are equally long but for the edge back, got into"),
    (PRODUCT, ["split i0 -> a b into 4, rest"],
     "split i0 into 4, rest: expected back, as `into` leaves no whole blocks"),
    (PRODUCT, ["split i0 -> a b by 4, rest", "order b a i1 r0"],
     "order: expected a outside b, whose last block is not whole"),
    (ROWS, ["split i1 -> a b by 8, rest", "bind vector b", "order i0 r0 b a"],
     "order: expected a outside b, whose last block is not whole"),
    (PRODUCT, ["split i0 -> a b by 4, rest", "bind unroll a b", "order i1 r0 a b"],
     "order: expected a outside all sums, as its last block is not whole, or the edge back"),
    (PRODUCT, ["split i1 -> a b by 8, rest", "bind vector b", "order i0 a r0 b"],
     "order: expected b outside all sums, as the last block is not whole, or the edge back"),
    (PRODUCT, ["split i0 -> a b by 2", "split b -> c d by 4, short", "split d -> e f by 4"],
     "split d by 4: expected an edge, back, guard, rest or short, as 4 does not divide the extent 10"),
    (PRODUCT, ["order i0 i1 i0"], "order i0 i1 i0: expected each loop once, in one step, got a loop twice"),
    (PRODUCT, ["order i1 i0 r0", "split i0 -> a b by 5"],
     "split i0 -> a b by 5, exact: expected splits before order, bind and parts, got one after them"),
    (PRODUCT, ["split i0 -> a b by 4, short", "order b a i1 r0"],
     "order: expected a outside b, whose last run is shorter"),
    (PRODUCT, ["split i0 -> a b by 4, short", "bind unroll b"],
     "split i0 by 4, short: expected b to be serial, as its last run is shorter"),
    (PRODUCT, ["split i0 -> a b by 4, short", "split b -> e f by 3, rest"],
     "split b by 3, rest: expected back, as runs of b may be shorter"),
    (PRODUCT, ["split i0 -> a b by 4, short", "bind parallel a b"],
     "bind parallel b: expected a loop that runs equally often in every block"),
    (PRODUCT, ["split r0 -> a b by 4, rest", "order i0 a i1 b"],
     "split r0, rest: expected back or short, as i1 stands inside a loop of the sum"),
    (ROWS, ["split r0 -> a b by 4", "split i0 -> c d by 5", "order c a d b i1"],
     "order: expected d unrolled or outside all sums, as there are several that do not share loops"),
    (EMPTY, ["order r0 i0 i1"], "order: expected r0 inside i1, as it may not run at all"),
    (PRODUCT, ["bind parallel i1"], "order: expected the parallel loop i1 before all others"),
    (PRODUCT, ["bind parallel r0"],
     "bind parallel r0: expected a loop of the domain, got one of r0: workers share no sums"),
    (PRODUCT, ["bind simd i1"],
     "bind simd i1: expected a kind among parallel, group, item, vector, unroll, serial, got simd"),
    (PRODUCT, ["bind unroll i1", "bind vector i1"],
     "bind vector i1: expected one kind for each loop, got i1, which is bound unroll"),
    (PRODUCT, ["bind vector i1"], "bind vector i1: expected 2, 4, 8 or 16 lanes, got 20"),
    (PRODUCT, ["split i0 -> a b by 2", "split i1 -> c d by 4", "bind vector b d"],
     "bind vector b: expected one loop across lanes at a time, got d around it"),
    (PRODUCT, ["split i0 -> a b by 3, rest", "split a -> c d by 2, rest", "bind vector d"],
     "bind vector d: expected lanes inside b, as the last block of a is not whole"),
    (PRODUCT, ["split r0 -> k t by 4, rest", "split t -> x y by 2", "bind vector y"],
     "bind vector y: expected lanes that `split r0 -> k t by 4, rest` makes itself, as they add what it leaves"),
    (PRODUCT, ["split r0 -> k t by 2, guard", "bind vector t", "order k i0 i1 t"],
     "order: expected i0 unrolled or outside all sums, as lanes along one are added up once"),
    (ONE, ["split i0 -> a b by 4, guard", "bind vector b"],
     "bind vector b: expected lanes along several elements, got i0, which has one"),
    (PRODUCT, ["sizes i0 k0"], "sizes i0 k0: expected a loop among i0 i1 r0, got k0"),
    (PRODUCT, ["split i0 -> a b by 5", "sizes i1"],
     "sizes i1: expected sizes before all other steps, got them after some"),
    (PRODUCT, ["sizes i0 r0", "bind unroll r0"],
     "sizes i0 r0: expected variables whose loops are not written out, got r0"),
    (PRODUCT, ["sizes i0", "split i0 -> a b by 3"],
     "split i0 by 3: expected an edge, back, guard, rest or short, as 3 does not divide the extent e0"),
    (SCATTER, ["sizes i0"],
     "sizes i0: expected variables that indices are sums of multiples of, and no more, got i0"),
    (PRODUCT, ["parts r0"], "parts r0: expected an unrolled loop of a sum, got a serial one of r0"),
    (PRODUCT, ["ahead p7 at r0 by 1 of r0"], "ahead p7 at r0 by 1 of r0: expected a buffer of the kernel, got p7"),
    (PRODUCT, ["ahead p0 at i0 by 1 of r0"], "ahead p0 at i0 by 1 of r0: expected a loop of a sum, got i0 of i0"),
    (PRODUCT, ["stage p1 at i0 as [r0]"],
     "stage p1 at i0 as [r0]: expected one part of a sum's terms that reads p1 and depends on its coordinates and "
     "loops outside i0 alone, got 0"),
    (PRODUCT, ["stage p1 at r0 as [i1]"], "stage p1 at r0 as [i1]: expected coordinates inside r0, got i1"),
    (PRODUCT, ["split r0 -> k t by 4, rest", "stage p1 at k as [t]"],
     "stage p1 at k as [t]: expected loops without a rest, got some of `split r0 -> k t by 4, rest`"),
    (PRODUCT, ["split r0 -> a b by 4, short", "order i0 i1 a b", "stage p1 at i1 as [a][b], transposed b by 2"],
     "stage p1 at i1 as [a][b], transposed b by 2: expected r0 among the coordinates, as the extent of b depends on a"),
    (PRODUCT, ["split r0 -> a b by 4, short", "split b -> c d by 2, short", "order i0 i1 a c d",
               "stage p0 at i0 as [d][c][a]"],
     "stage p0 at i0 as [d][c][a]: expected b among the coordinates, as the extent of d depends on c"),
    (PRODUCT, ["split i1 -> a b by 8, short", "results at i0 as [b][a]"],
     "results at i0 as [b][a]: expected i1 among the coordinates, as the extent of b depends on a"),
    (PRODUCT, ["split i1 -> j l by 8, rest", "results at j as [l]"],
     "split i1 -> j l by 8, rest: expected guard, as results go by way of memory inside j"),
    (PRODUCT, ["split r0 -> k t by 4, guard", "bind vector t", "stage p0 at k as [i0]", "order i1 k i0 t"],
     "stage p0 at k as [i0]: expected a loop outside lanes, got k inside t"),
    (PRODUCT, ["split r0 -> a b by 8, short", "split b -> k t by 8, rest", "stage p1 at k as [t]"],
     "stage p1 at k as [t]: expected loops without a rest, got some of `split b -> k t by 8, rest`"),
    (PRODUCT, ["split i0 -> a b by 5", "bind unroll b", "order i1 a r0 b", "stage p1 at i1 as [r0][b]"],
     "stage p1 at i1 as [r0][b]: expected coordinates that p1 is read along, got b"),
    (ROWS, ["split r0 -> a b by 4", "stage p0 at a as [b]"],
     "stage p0 at a as [b]: expected a kernel whose sums share their loops, and that has no others"),
    (PRODUCT, ["split i1 -> j l by 4", "bind vector l", "order i0 j l r0", "stage p1 at l as [r0]"],
     "stage p1 at l as [r0]: expected a serial or parallel loop, got l, which is bound vector"),
    (PRODUCT, ["sizes i1 r0 x", "split x -> y x by 4, short"],
     "split x -> y x by 4, short: expected names that no loop has or had, got x"),
    (PRODUCT, ["sizes x", "split x -> y z by 4, short", "split y -> a x by 4, short"],
     "split y -> a x by 4, short: expected names that no loop has or had, got x"),
    (PRODUCT, ["split i0 -> a b by 5", "fuse i0 b -> c"],
     "fuse i0 b -> c: expected parts of a loop that is split, a and b, got i0"),
    (PRODUCT, ["split i0 -> a b by 4, rest", "split b -> c d by 2", "bind parallel a c"],
     "bind parallel c: expected a loop that runs equally often in every block"),
    (EMPTY, ["bind group i0 i1", "bind item r0"], "bind item r0: expected two work-items of a group at least, got 0"),
    (PRODUCT, ["split i0 -> a b by 8, rest", "split b -> c d by 4", "split i1 -> e m by 4", "split m -> j l by 2",
               "bind vector l", "bind unroll d", "order a e c j l r0 d", "stage p1 at e as [j][r0][l]"],
     "stage p1 at e as [j][r0][l]: expected loops without a rest between e and j, got some of "
     "`split i0 -> a b by 8, rest`"),
    (PRODUCT, ["bind parallel i0 i1", "stage p1 at i0 as [r0][i1]"],
     "stage p1 at i0 as [r0][i1]: expected coordinates that one worker goes over, got i1, which is bound parallel"),
    (PRODUCT, ["split i1 -> j l by 4", "stage p1 at i0 as [r0][i1][l]"],
     "stage p1 at i0 as [r0][i1][l]: expected each loop once among the coordinates, got l again"),
    (PRODUCT, ["split r0 -> k t by 4, guard", "bind vector t", "order i0 i1 k t", "stage p1 at i1 as [k][t], border"],
     "stage p1 at i1 as [k][t], border: expected no lanes of a sum among the coordinates, got t"),
    (PRODUCT, ["bind parallel i0 i1", "results at i0 as [i1]"],
     "results at i0 as [i1]: expected coordinates that one worker goes over, got i1, which is bound parallel"),
    (PRODUCT, ["split i1 -> j jj by 5", "split jj -> v l by 4, guard", "results at i0 as [i1]"],
     "split jj -> v l by 4, guard: expected a size that divides 5, as results of the next block of i1 follow"),
    (PRODUCT, ["split i1 -> j l by 8, guard", "results at i0 as [j][l]"],
     "results at i0 as [j][l]: expected i1 among the coordinates, whose last block is not whole, got j"),
    (SCATTER, ["bind parallel i0"],
     "bind parallel i0: expected serial, as elements that meet are combined in order"),
    (SCATTER, ["split i0 -> a b by 2, back"],
     "split i0, back: expected rest, as elements outside would be looked up, or combined twice"),
]


@pytest.mark.parametrize("name, extents, steps", [
    ("sums of two spaces", "1844", ["split i1 -> a b by 2", "bind group i0", "bind item a", "bind unroll b",
                                    "order i0 a r0 b", "stage p1 at i0 as [r0][a][b], by items"]),
    ("product", "4401", ["split i1 -> a b by 2", "split r0 -> c d by 2, guard", "bind group i0 a", "bind item b",
                         "order i0 a b c d", "stage p0 at c as [d], by items, double"]),
    ("transposed product", "4901", ["stage p1 at i0 as [i1][r0]"]),
    ("product", "9171", ["split i1 -> a b by 4, guard", "order i0 b a r0", "stage p1 at a as [r0], border"]),
    ("transposed product", "3351", ["split r0 -> a b by 1, short", "split b -> c d by 2, rest", "bind unroll d",
                                    "order a i0 i1 c d"]),
    ("product", "9751", ["split i1 -> a b by 4, rest", "bind vector b", "order a b r0 i0"]),
    ("product", "9111", ["stage p0 at i0 as [r0], border"]),
    ("product", "1411", ["split r0 -> a b by 1", "split b -> e f by 1", "split i1 -> c d by 2",
                         "bind group i0 c", "bind item d", "order i0 c d a e f", "stage p0 at a as [f], by items"]),
    ("updates", "3471", ["bind unroll i1", "results at i0 as [i1]"])],
    ids=["one of two sums", "nothing, ahead", "nothing", "beyond the end", "no whole block", "sums kept beside lanes",
         "one element with a border", "a sum of one term", "results written out"])
def test_plans_that_nobody_would_choose_are_right(name: str, extents: str, steps: list[str]) -> None:
    case = random_case(np.random.default_rng(0), name, dict(zip("ABCD", map(int, extents), strict=True)))
    assert is_right(case, parse_plan("\n".join(["plan", *steps])), expected(case))


def test_copies_of_sums_beside_each_other_are_not_multiplied() -> None:
    """Each of seven sums is written out four times: 28 terms, and not 4**7 of one."""
    sums = "\n".join(f"    t{k} = sum(r{k}<{100 + 20 * k}: p{k}[r{k}])" for k in range(7))
    kernel = parse_kernel(f"""kernel sums(out o0: f32[1], {", ".join(f"p{k}: f32[{100 + 20 * k}]" for k in range(7))})
  for :
{sums}
    o0[0] = {" + ".join(f"t{k}" for k in range(7))}
""")
    splits = [f"split r{k} -> a{k} b{k} by 4" for k in range(7)]
    plan = parse_plan("\n".join(["plan", *splits, "bind unroll " + " ".join(f"b{k}" for k in range(7))]))
    function, _ = built(kernel, plan)
    arrays = {f"p{k}": np.arange(100 + 20 * k, dtype=np.float32) for k in range(7)} | {"o0": np.zeros(1, np.float32)}
    interpret_function(function, arrays, {}, {})
    assert arrays["o0"][0] == sum(arrays[f"p{k}"].sum() for k in range(7))


@pytest.mark.parametrize("kernel, steps, message", WRONG, ids=[" ".join(steps) for _, steps, _ in WRONG])
def test_a_wrong_plan_says_which_step_and_why(kernel: Kernel, steps: list[str], message: str) -> None:
    with pytest.raises(PlanError) as caught:
        built(kernel, parse_plan("\n".join(["plan", *steps])))
    assert str(caught.value) == f"[plan] {message}"
