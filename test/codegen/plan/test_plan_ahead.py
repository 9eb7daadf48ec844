"""Prefetches of plans: what they fetch, a line once, and what may not be said of them."""
# Tests know their dims are ints.
# mypy: disable-error-code="arg-type"
import itertools
from collections.abc import Callable

import pytest
from support.golden_plans import TARGETS
from support.packed import flat_kernel, tensor
from support.panels import AVX512, planned, product

from minigrad import Tensor
from minigrad.codegen.ir.nodes import Loop, Prefetch
from minigrad.codegen.ir.text import parse_function, print_function
from minigrad.codegen.ir.verify import verify_function
from minigrad.codegen.ir.walk import statements
from minigrad.codegen.kernel.nodes import Kernel
from minigrad.codegen.kernel.text import parse_kernel
from minigrad.codegen.lowering.collapse import collapse
from minigrad.codegen.lowering.flatten import flatten
from minigrad.codegen.machines.caches import LINE
from minigrad.codegen.plan.build import build
from minigrad.codegen.plan.steps import Ahead
from minigrad.codegen.plan.text import parse_plan
from minigrad.codegen.policy import contraction
from minigrad.codegen.render.copies import Copies
from minigrad.codegen.render.llvm import render_llvm
from minigrad.errors import PlanError
from minigrad.expr import coefficient, subs, variables

PRODUCT = parse_kernel("""kernel product(out o0: f32[9600], p0: f32[12800], p1: f32[6144])
  for i0<200, i1<48:
    t0 = sum(r0<64: p0[64*i0+r0] * p1[48*r0+i1])
    o0[48*i0+i1] = t0
""")
RESIDUAL = parse_kernel("""kernel residual(out o0: f32[9600], p0: f32[12800], p1: f32[6144], p2: f32[9600])
  for i0<200, i1<48:
    t0 = sum(r0<64: p0[64*i0+r0] * p1[48*r0+i1])
    o0[48*i0+i1] = p2[48*i0+i1] + t0
""")
HEAD = "out o0: f32[9600], out o1: f32[9600], p0: f32[12800], p1: f32[6144], p2: f32[9600]"
DEFINED = parse_kernel(f"""kernel defined({HEAD})
  for i0<200, i1<48:
    t0 = sum(r0<64: p0[64*i0+r0] * p1[48*r0+i1])
    t1 = p2[48*i0+i1] + t0
    o0[48*i0+i1] = t1
    o1[48*i0+i1] = t1 * t1
""")
ROWS = parse_kernel("""kernel rows(out o0: f32[200], p0: f32[200])
  for i0<10:
    t0 = sum(r0<20: p0[20*i0+r0])
    o0[i0] = t0
""")
TILE = """plan
  split i0 -> i u by 4
  split i1 -> j jj by 24
  split jj -> v l by 8
  split r0 -> k t by 2
  bind parallel j
  bind vector l
  bind unroll t u v
  order j i l k t u v
"""


def fetched(step: str, text: str = TILE, kernel: Kernel = PRODUCT) -> list[str]:
    """The places that a step prefetches, as the loops have them; verified, printed and parsed again."""
    plan = parse_plan(f"{text}  {step}\n")
    assert str(plan).endswith(f"  {step}") and parse_plan(str(plan)) == plan
    function = build(kernel, kernel.nests[0], plan, "f")
    verify_function(function)
    printed = print_function(function)
    assert parse_function(printed) == function
    return [line.strip() for line in printed.splitlines() if "prefetch" in line]


@pytest.mark.parametrize("step, places", [
    # One vector for a line of two.
    ("ahead p1 at k by 1 of k", ["prefetch p1[24*j+96*k+16*v+96]"]),
    ("ahead p1 at k by 192 bytes", ["prefetch p1[24*j+96*k+16*v+48]"]),
    # Rows of tiles share the next panel out: each its lines of a row in turn.
    ("ahead p1 at k by 1 of j", ["prefetch p1[24*j+96*k+16*(i%2)+24]"]),
    ("ahead p1 at t by 1 of j, far", ["prefetch_far p1[24*j+96*k+48*t+16*(i%2)+24]"]),
    # The next rows of A are one run of memory: 8 elements with each iteration of two steps of the sum.
    ("ahead p0 at k by 1 of i", ["prefetch p0[256*i+8*k+256]"]),
    ("ahead p0 at k by 1 of k", ["prefetch p0[256*i+2*k+64*u+2]"]),
    # What this tile stores, or the next one.
    ("ahead o0 at i by 0 of i", ["prefetch o0[192*i+24*j+48*u+16*v]"]),
    ("ahead o0 at i by 1 of i", ["prefetch o0[192*i+24*j+48*u+16*v+192]"]),
    ("ahead o0 at j by 0 of j", ["prefetch o0[24*j+48*u+16*v]"]),
])
def test_what_a_step_prefetches(step: str, places: list[str]) -> None:
    assert fetched(step) == places


def test_what_is_read_beside_the_output_is_prefetched_like_it() -> None:
    for kernel in (RESIDUAL, DEFINED):
        assert fetched("ahead p2 at i by 0 of i", TILE, kernel) == ["prefetch p2[192*i+24*j+48*u+16*v]"]
    kernel = flat_kernel(tensor(128, 64) @ tensor(64, 128) + tensor(128, 128), AVX512)
    read = next(p.name for p in kernel.params if p.mode == "in" and p.shape == (128 * 128,))
    steps = [str(s) for s in planned(kernel, AVX512)[1].steps if isinstance(s, Ahead)]
    assert f"ahead {read} at j by 0 of j" in steps and "ahead o0 at j by 0 of j" in steps


def test_only_what_moves_is_prefetched() -> None:
    """Of a matrix that both factors read, the one that goes on with the loop."""
    both = parse_kernel("""kernel square(out o0: f32[4096], p0: f32[4096])
  for i0<64, i1<64:
    t0 = sum(r0<64: p0[64*i0+r0] * p0[64*r0+i1])
    o0[64*i0+i1] = t0
""")
    assert fetched("ahead p0 at r0 by 1 of i0", "plan\n", both) == ["prefetch p0[64*i0+r0+64]"]
    assert fetched("ahead p0 at r0 by 1 of i1", "plan\n", both) == ["prefetch p0[i1+64*r0+1]"]


def test_lines_of_another_level_are_their_own() -> None:
    function = build(PRODUCT, PRODUCT.nests[0], parse_plan(TILE + "  ahead p1 at k by 1 of j, far\n"), "f")
    assert {s.far for s in statements(function) if isinstance(s, Prefetch)} == {True}
    assert "i32 0, i32 2, i32 1" in render_llvm(function, AVX512).source


@pytest.mark.parametrize("kernel, step, message", [
    (PRODUCT, "ahead o0 at r0 by 0 of i0",
     "ahead o0 at r0 by 0 of i0: expected a loop around all sums, as o0 is stored after them, got r0"),
    (PRODUCT, "ahead p0 at i0 by 1 of i0", "ahead p0 at i0 by 1 of i0: expected a loop of a sum, got i0 of i0"),
    (PRODUCT, "ahead p7 at r0 by 1 of r0, far",
     "ahead p7 at r0 by 1 of r0, far: expected a buffer of the kernel, got p7"),
    (PRODUCT, "ahead p0 at r0 by 1 of x", "ahead p0 at r0 by 1 of x: expected a loop among i0 i1 r0, got x"),
    (PRODUCT, "ahead p0 at r0 by 1 of r0, near",
     "expected 'ahead BUFFER at LOOP by NUMBER of LOOP|bytes, far', got 'ahead p0 at r0 by 1 of r0, near'"),
    (ROWS, "ahead o0 at r0 by 0 of r0",
     "ahead o0 at r0 by 0 of r0: expected a loop around all sums, as o0 is stored after them, got r0"),
])
def test_a_wrong_step_says_why(kernel: Kernel, step: str, message: str) -> None:
    with pytest.raises(PlanError) as caught:
        build(kernel, kernel.nests[0], parse_plan(f"plan\n  {step}"), "k")
    assert str(caught.value) == f"[plan] {message}"


# ---- those of panels ----


@pytest.mark.parametrize("m, n, k, steps", [
    (64, 64, 64, ["p0 at k by 1 of i", "o0 at j by 0 of j"]),
    (64, 256, 128, ["p0 at k by 1 of i", "o0 at i by 0 of i"]), (256, 256, 256, ["p0 at k by 1 of i"]),
    (24, 2048, 2048, ["p1 at t by 1 of j, far", "p0 at k by 1 of i"]),
    (1024, 1024, 1024, ["p0 at k by 1 of i"]), (8, 2048, 2048, ["p1 at t by 1 of kb, far"]), (1, 2048, 2048, []),
    (128, 512, 4096, []),
])
def test_what_is_prefetched(m: int, n: int, k: int, steps: list[str]) -> None:
    """The next rows of A; a large B; the output of short sums."""
    text = str(planned(product(m, n, k), AVX512)[1])
    assert [line.removeprefix("  ahead ") for line in text.splitlines() if line.startswith("  ahead ")] == steps


@pytest.mark.parametrize("target", ["avx2", "avx512", "half", "neon"])
@pytest.mark.parametrize("size", [(64, 64, 64), (130, 128, 128), (50, 560, 512), (8, 2048, 2048)], ids=str)
def test_a_line_is_prefetched_once(size: tuple[int, int, int], target: str) -> None:
    """Those of one iteration are a line apart at least, however many copies read it."""
    kernel = product(*size, TARGETS[target])
    function = build(kernel, *planned(kernel, TARGETS[target]), "panels")
    found, copies = 0, Copies(function)
    for loop in copies.everywhere(function.body):
        fetched = [(s.buffer, copies.at(s.offset)) for s in copies.straight(loop.body if isinstance(loop, Loop) else ())
                   if isinstance(s, Prefetch)]
        found += len(fetched)
        for name in {buffer for buffer, _ in fetched}:
            places = sorted([int(subs(offset, dict.fromkeys(variables(offset), 0)))
                             for buffer, offset in fetched if buffer == name])
            assert all(b - a >= LINE // 4 for a, b in itertools.pairwise(places)), places
    assert found


@pytest.mark.parametrize("a, b, step", [
    (lambda: tensor(96, 96), 64, 12), (lambda: tensor(96, 128)[:, :96], 64, 0), (lambda: tensor(96, 97), 64, 12),
], ids=["rows after one another", "a part of a matrix", "an odd sum"])
def test_the_next_rows_of_a_come_in_runs(a: Callable[[], Tensor], b: int, step: int) -> None:
    """A piece with each iteration, where rows lie one after another: of a part of a matrix others are between them."""
    left = a()
    kernel = flat_kernel(left @ tensor(left.shape[1], b), AVX512)
    function = build(kernel, *planned(kernel, AVX512), "panels")
    runs = [coefficient(s.offset, loop.var) for loop in statements(function) if isinstance(loop, Loop)
            for s in loop.body if isinstance(s, Prefetch) and s.buffer != "o0"]
    assert runs == ([step] if step else [])


GATHERED = """kernel k(out o0: f32[32, 7], p0: bf16[32, {n}], p1: i32[32], p2: bf16[71, {m}])
  for i0<32, i1<7:
    t0 = sum(r0<{n}: f32(p0[i0, r0]) * f32(p2[{{min(max(i64(p1[i0]), 0:i64), 70:i64) in 0..70}}, i1+r0]))
    o0[i0, i1] = t0
"""


@pytest.mark.parametrize("n", [62, 200, 1000])
@pytest.mark.parametrize("target", ["avx2", "half", "amx", "pocl"])
def test_no_index_is_read_ahead(target: str, n: int) -> None:
    """By no tile: the last iteration would read it beyond the end of its buffer, which the checks of accesses find."""
    kernel = collapse(flatten(parse_kernel(GATHERED.format(n=n, m=n + 6))))
    found, sums = set[str](), contraction.reuse(kernel.nests[0], TARGETS[target])
    assert sums is not None
    for tile in [((a, m), (b, n)) for a, b, pairs in contraction.tiles(sums, TARGETS[target]) for m, n in pairs]:
        function = build(kernel, kernel.nests[0], contraction.with_tile(sums, tile, True, TARGETS[target]), "k")
        verify_function(function)
        found |= {s.buffer for s in statements(function) if isinstance(s, Prefetch)}
    assert found == {"p0"}
