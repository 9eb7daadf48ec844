"""Copies with their border apart, in random windows by random tiles: each plan that is taken gives the kernel's
numbers."""
# mypy: disable-error-code="arg-type"
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.groups import GPU
from support.packed import AVX2, AVX512, NEON, arguments, flat_kernel, tensor

from minigrad import Tensor
from minigrad.codegen.ir.check_accesses import check_accesses
from minigrad.codegen.ir.interpret import interpret_function
from minigrad.codegen.ir.nodes import Loop, Prefetch, Store
from minigrad.codegen.ir.verify import verify_function
from minigrad.codegen.ir.walk import statements
from minigrad.codegen.kernel.interpret import interpret_kernel
from minigrad.codegen.kernel.nodes import Kernel, Nest
from minigrad.codegen.kernel.text import parse_kernel
from minigrad.codegen.plan import rows as module
from minigrad.codegen.plan.build import build
from minigrad.codegen.plan.check_copies import check_copies
from minigrad.codegen.plan.steps import Plan, Sizes, Split
from minigrad.codegen.plan.text import parse_plan
from minigrad.codegen.policy import window, window_groups
from minigrad.errors import InternalError, PlanError
from minigrad.expr import subs
from minigrad.nn import functional as F
from minigrad.target import Target
from minigrad.value import walk


def random_window(rng: np.random.Generator) -> Tensor:
    """A depthwise convolution, perhaps of several outputs a plane, a gradient or a pool, of few small planes."""
    def number(low: int, high: int) -> int:
        return int(rng.integers(low, high + 1))

    rows, columns = number(1, 4), number(1, 5)
    stride, dilation = (number(1, 3), 1) if rng.random() < 0.6 else (1, number(1, 3))
    height, width = number(dilation * rows + 1, 24), number(dilation * columns + 5, 40)
    channels, padding = number(1, 3), (number(0, rows - 1), number(0, columns - 1))
    x = tensor(number(1, 2), channels, height, width)
    kind = rng.choice(["forward", "data", "weight", "pool", "mean"])
    if kind in ("forward", "pool", "mean"):  # borders of constants around borders of others
        for _ in range(number(0, 2)):
            x = F.pad(x, (number(0, 3), number(0, 3), number(0, 2), number(0, 2)), value=number(-2, 2))
    if kind in ("pool", "mean"):
        half = (number(0, rows // 2), number(0, columns // 2))
        return (x.max_pool2d if kind == "pool" else x.avg_pool2d)((rows, columns), stride=stride, padding=half)
    w = tensor(channels * number(1, 2), 1, rows, columns)
    x.requires_grad = w.requires_grad = True
    y = x.conv2d(w, groups=channels, stride=stride, dilation=dilation, padding=padding)
    if kind == "forward":
        return y
    return (y * tensor(*y.shape)).sum().gradient(x if kind == "data" else w)[0]


def with_other_sizes(made: Plan, rng: np.random.Generator) -> Plan:
    """The plan with tiles of other sizes, lanes apart."""
    edges = ["guard"] if made.bound("item") else ["exact", "back", "guard", "rest"]
    steps = [replace(s, size=int(rng.integers(1, 12)), edge=str(rng.choice(edges)))
             if isinstance(s, Split) and s.inner in ("y", "u", "x", "d") and rng.random() < 0.7 else s
             for s in made.steps if not isinstance(s, Sizes)]
    return replace(made, steps=tuple(steps))


@pytest.mark.parametrize("seed", range(80))
def test_random_windows_by_random_tiles(seed: int) -> None:
    rng = np.random.default_rng(seed)
    target = (AVX512, AVX2, NEON, GPU)[seed % 4]
    plan = window_groups.plan if target is GPU else window.plan
    kernel = flat_kernel(random_window(rng), target)
    taken = 0
    for nest in kernel.nests if len(kernel.nests) == 1 else ():
        found = plan(nest, target)
        if isinstance(found, str):
            continue
        product, first = found
        own = replace(kernel, nests=(product,))
        for chosen in [first, *[with_other_sizes(first, rng) for _ in range(4)]]:
            try:
                function = build(own, product, replace(chosen, steps=tuple(
                    s for s in chosen.steps if not isinstance(s, Sizes))), "window")
            except PlanError:
                assert chosen is not first
                continue
            taken += 1
            verify_function(function)
            check_accesses(function, {})
            check_copies(own, product, chosen)
            arrays = arguments(kernel)
            expected = {name: a.copy() for name, a in arrays.items()}
            scalars = {s.name: 3.0 for s in kernel.scalars}
            interpret_kernel(kernel, expected, scalars)
            interpret_function(function, arrays, scalars)
            np.testing.assert_allclose(arrays["o0"], expected["o0"], rtol=3e-5, atol=3e-5)
    assert taken or len(kernel.nests) > 1 or isinstance(plan(kernel.nests[0], target), str)


PHASES = """kernel phases(out o0: f32[{total}], p0: f32[900], p1: f32[16])
  for i0<2, i1<2, i2<8, i3<{columns}:
    t0 = sum(r0<4, r1<4: (p0[30*i0+2*i3+i1+60*i2+2*r1+60*r0-93] else 0.0 if i0+2*i2+2*r0-3 >= 0 and \
-i0-2*i2-2*r0+16 >= 0 and i1+2*i3+2*r1-3 >= 0 and -i1-2*i3-2*r1+32 >= 0) * p1[4*r0+r1])
    o0[{plane}*i0+{half}*i1+{columns}*i2+i3] = t0
"""


@pytest.mark.parametrize("columns", [9, 12, 13, 15])
@pytest.mark.parametrize("target", [AVX512, AVX2, NEON], ids=lambda t: t.name)
def test_a_border_that_is_told_by_no_constants_leaves_room_for_lanes(target: Target, columns: int) -> None:
    kernel = parse_kernel(PHASES.format(columns=columns, half=8 * columns, plane=16 * columns, total=32 * columns))
    found = window.plan(kernel.nests[0], target)
    assert not isinstance(found, str)
    own = replace(kernel, nests=(found[0],))
    function = build(own, *found, "phases")
    check_accesses(function, {})
    check_copies(own, *found)


def layer() -> tuple[Kernel, Nest, Plan]:
    """A depthwise convolution with rows longer than a few vectors, and its plan."""
    kernel = flat_kernel(tensor(1, 2, 7, 90).conv2d(tensor(2, 1, 3, 3), groups=2, padding=1), AVX2)
    found = window.plan(kernel.nests[0], AVX2)
    assert not isinstance(found, str)
    return replace(kernel, nests=(found[0],)), *found


@pytest.mark.parametrize("shift", [(1, 0), (0, -1)])
def test_borders_in_wrong_places_are_found(shift: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    check_copies(*layer())
    span = module._span

    def wrong(*told: Any) -> tuple[int, int] | None:
        found = span(*told)
        return None if found is None else (found[0] + shift[0], found[1] + shift[1])

    monkeypatch.setattr(module, "_span", wrong)
    with pytest.raises(InternalError, match="written as another one"):
        check_copies(*layer())


@pytest.mark.parametrize("step", [1, 2, 5, 16, 17, 40, 390])
def test_what_is_prefetched_of_a_row_is_near_what_is_read(step: int) -> None:
    """Not what lies between, where elements of the row are far apart."""
    kernel = parse_kernel(f"""kernel window(out o0: f32[96], p0: f32[{12 * step + 12}])
  for i0<8, i1<12:
    t0 = sum(r0<5: (p0[{step}*i1+{step}*r0+i0-{2 * step}] else 0.0 if i1+r0-2 >= 0 and -i1-r0+13 >= 0))
    o0[12*i0+i1] = t0
""")
    function = build(kernel, kernel.nests[0], parse_plan(
        "plan\n  split i0 -> b y by 8\n  split i1 -> j l by 8, guard\n  bind parallel b\n  bind vector l\n"
        "  order b y j l r0\n  stage p0 at b as [y][i1+r0], border\n  ahead p0 at b by 4096 bytes\n"), "window")
    lane = next(s.var for s in statements(function) if isinstance(s, Loop) and s.kind == "vector")
    body = [s for s in statements(function) if isinstance(s, Store) and s.buffer == "p0_staged"]
    reads = [subs(v.indices[0], {lane: k}) for s in body for v in walk(s.value) if v.op == "load" for k in range(8)]
    ahead = [s.offset for s in statements(function) if isinstance(s, Prefetch)]
    assert bool(ahead) == (step <= 16) and reads
    for e in ahead:
        assert min([abs(d) for d in (e - 1024 - x for x in reads) if isinstance(d, int)]) < 16
