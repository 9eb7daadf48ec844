"""Sizes, offsets and numbers as arguments: texts, equal results, programs that are shared."""
# Tests know their dims are ints.
# mypy: disable-error-code="arg-type"
from collections.abc import Callable

import numpy as np
import pytest
from support.stages import AVX512, CASES, arguments, kernels

from minigrad import Tensor, config, nn
from minigrad.codegen.ir.interpret import interpret_function
from minigrad.codegen.ir.nodes import Function
from minigrad.codegen.ir.text import print_function
from minigrad.codegen.kernel.interpret import interpret_kernel
from minigrad.codegen.kernel.text import parse_kernel, print_kernel
from minigrad.codegen.lowering.arguments import from_first, of_any_length, plain_variables, with_arguments
from minigrad.codegen.lowering.collapse import collapse
from minigrad.codegen.lowering.flatten import flatten
from minigrad.codegen.lowering.split import split_divisions, split_phases
from minigrad.codegen.passes import stages_of
from minigrad.engine.stats import stats

GATHERS = """\
kernel k(inout o0: f32[{size}], p0: f32[12], p1: i64[{numbers}])
  for i0<12:
    o0[{place}] = p0[i0] * o0[{place}] + f32(p1[{first} + {{p1[{second}] in 0..1}}])
"""


def test_the_least_offset_is_taken_off():
    kernel, begins = from_first(parse_kernel(GATHERS.format(size=60, numbers=9, place="i0+24", first=3, second=4)))
    assert begins == {"o0": 24, "p1": 3}
    expected = parse_kernel(GATHERS.format(size=12, numbers=2, place="i0", first=0, second=1))
    assert print_kernel(kernel) == print_kernel(expected)
    assert from_first(kernel) == (kernel, {})


LONG = """\
kernel k(out o0: f32[{n}], p0: f32[{n}], p1: f32[{more}])
  for i0<{n}:
    o0[i0] = (p0[i0] + f32(index(i0, i32))) * p1[i0]
"""


def test_a_kernel_of_any_length() -> None:
    kernel, values = of_any_length(parse_kernel(LONG.format(n=7, more=9)))
    text = LONG.replace("p1: f32[{more}]", "p1: f32[m0], e0: index in 1..2147483647, m0: index in 1..2147483647")
    assert print_kernel(kernel) == print_kernel(parse_kernel(text.format(n="e0")))
    assert {v.name: n for v, n in values.items()} == {"e0": 7, "m0": 9}
    assert of_any_length(kernel) == (kernel, {})


def test_a_place_that_shorter_ones_lack_keeps_the_length() -> None:
    """Such as a count behind sums that processes exchanged."""
    kernel = parse_kernel("kernel k(out o0: f32[5], p0: f32[6])\n  for i0<5:\n    o0[i0] = p0[i0] / p0[5]\n")
    assert of_any_length(kernel) == (kernel, {})
    with config(verify=True):
        stages_of(kernel, AVX512)


ROWS = """\
kernel k(out o0: f32[{rows}], p0: f32[{length}], p1: f32[{size}]{dims})
  for i0<{n}, i1<{m}:
    t0 = sum(r0<3, r1<{k}: p0[{at}] * p1[{step}*i0+r1])
    o0[{m}*i0+i1] = where(p1[{step}*i0] < 7.0, t0, 0.0)
"""
WHOLE = {"n": 4, "m": 5, "k": 6, "rows": 20, "length": 90, "at": "18*i1+6*r0+r1", "step": 11, "size": 50, "dims": ""}


def dims(*names: str) -> str:
    return "".join([f", {name}: index in {least}..2147483647" for name, least in (n.split(">") for n in names)])


@pytest.mark.parametrize("extents, expected, values", [
    ({"i0": 1, "i1": 4, "r0": 0, "r1": 1}, {
        "n": "e0", "m": "e1", "k": "e2", "rows": "e0*e1", "length": "3*e1*e2", "at": "3*e2*i1+e2*r0+r1", "step": "s0",
        "size": "m0", "dims": dims("e0>1", "e1>4", "e2>1", "s0>1", "m0>1")}, (4, 5, 6, 11, 50)),
    ({"i0": 1, "r0": 0}, {"n": "e0", "rows": "m0", "length": "m1", "size": "m2",
                          "dims": dims("e0>1", "m0>1", "m1>1", "m2>1")}, (4, 20, 90, 50)),
], ids=["all", "some"])
def test_sizes_become_dims(extents: dict[str, int], expected: dict[str, object], values: tuple[int, ...]) -> None:
    """All but r0, which is written out; and one variable, beside others that stay."""
    kernel = parse_kernel(ROWS.format(**WHOLE))
    general, found = with_arguments(kernel, kernel.nests, extents, False)
    assert print_kernel(general) == print_kernel(parse_kernel(ROWS.format(**WHOLE | expected)))
    assert found == values


@pytest.mark.parametrize("case", CASES)
def test_arguments_keep_the_meaning(case: str) -> None:
    """Any variables that accesses step with, with blocks of any size."""
    for kernel in kernels(CASES[case](), AVX512):
        arrays, scalars = arguments(kernel), {s.name: 0.75 for s in kernel.scalars}
        expected = {name: a.copy() for name, a in arrays.items()}
        interpret_kernel(kernel, expected, scalars)
        flat = collapse(flatten(split_divisions(split_phases(kernel))))
        plain = plain_variables(flat.nests)
        for seed in range(4):
            random = np.random.default_rng(seed)
            extents = {x: int(random.integers(0, 9)) for x in plain if seed == 0 or random.random() < 0.6}
            general, values = with_arguments(flat, flat.nests, extents, bool(seed % 2))
            made = {name: a.copy().reshape(-1) for name, a in arrays.items()}
            interpret_kernel(general, made, scalars, {d.name: n for d, n in zip(general.dims, values, strict=True)})
            for p in kernel.params:
                np.testing.assert_array_equal(made[p.name], expected[p.name].reshape(-1))


def gathers(t: int) -> str:
    return GATHERS.format(size=60, numbers=9, place=f"i0+{12 * t}", first=t, second=t + 1)


def numbers(t: int) -> str:
    """Bounds of padding with what is read there, masks of positions, comparisons with loaded integers."""
    return ("kernel k(out o0: f32[36], p0: f32[36], p1: i32[36])\n  for i0<36:\n"
            f"    o0[i0] = (p0[i0-{t}] else 0.5 if i0-{t} >= 0 and -i0+{t + 20} >= 0) + "
            f"where((p1[i0] < {t + 1}) & (index(i0, i32) == {t}), 1.0, 0.0)\n")


def pairs(t: int) -> str:
    """Parts of one buffer that keep their distance, in a sum."""
    return ("kernel k(out o0: f32[6], p0: f32[60])\n  for i0<6:\n"
            f"    t0 = sum(r0<4: p0[4*i0+r0+{4 * t + 6}] * p0[4*i0+r0+{4 * t}])\n    o0[i0] = t0\n")


@pytest.mark.parametrize("text", [gathers, numbers, pairs])
def test_steps_share_a_function(text: Callable[[int], str]):
    random = np.random.default_rng(0)
    functions = {}
    for t in (2, 3, 4):
        kernel = parse_kernel(text(t))
        stage, = stages_of(kernel, AVX512).stages
        functions[stage.function] = print_function(stage.function)
        arrays = {p.name: random.integers(0, 2, p.shape).astype(p.dtype.np) for p in kernel.params}
        ours, theirs = ({name: a.copy() for name, a in arrays.items()} for _ in range(2))
        interpret_kernel(kernel, theirs)
        interpret_function(stage.function, ours,
                           dims={d.name: int(n) for d, n in zip(stage.function.dims, stage.dims, strict=True)})
        np.testing.assert_array_equal(ours["o0"], theirs["o0"])
    assert len(functions) == 1, "\n".join(functions.values())


@pytest.mark.parametrize("gradient", [False, True])
def test_windows_over_other_numbers_of_planes_share_a_function(gradient: bool) -> None:
    def function(n: int, channels: int) -> Function:
        image, weights = leaf(n, channels, 18, 20), leaf(channels, 1, 3, 3)
        y = image.conv2d(weights, groups=channels, padding=1)
        made = (y * leaf(*y.shape)).sum().gradient(weights)[0] if gradient else y
        kernel, = kernels(made, AVX512)
        stage, = stages_of(kernel, AVX512).stages
        assert stage.plan.pattern == "window"
        return stage.function

    assert function(2, 6) == function(2, 10) and (gradient or function(3, 6) == function(2, 6))


def test_stages_that_begin_elsewhere_share_a_function() -> None:
    """Columns that are cut off begin at one place of operands that other stages read from another one."""
    def functions(m: int, k: int, n: int) -> list[Function]:
        kernel, = kernels(leaf(m, k) @ leaf(k, n) + leaf(n), AVX512)
        staged = stages_of(kernel, AVX512)
        assert len(staged.stages) == 3 and not any(s.begins for s in staged.stages)
        return [s.function for s in staged.stages[1:]]

    assert functions(640, 160, 49) == functions(768, 224, 97)


@pytest.mark.parametrize("first", [0, 5])
def test_stages_that_begin_elsewhere_on_the_cpu(first: int) -> None:
    random = np.random.default_rng(0)
    a, b = (random.standard_normal(shape).astype(np.float32) for shape in ((640, 160), (160, 49 + first)))
    result = (Tensor(a, device="CPU") @ Tensor(b, device="CPU").realize()[:, first:]).numpy()
    np.testing.assert_allclose(result, a.astype(np.float64) @ b[:, first:], rtol=1e-4, atol=1e-4)


def leaf(*shape: int) -> Tensor:
    return Tensor(np.random.default_rng(1).standard_normal(shape).astype(np.float32), requires_grad=True, device="CPU")


def rows(steps: int) -> Tensor:
    x, total = leaf(steps, 5, 23), leaf(5, 23)
    for t in range(steps):
        total = (x[t].softmax(-1) + total * 0.5).realize()
    return total


def windows(steps: int) -> Tensor:
    x, total = leaf(3, steps + 4), leaf(3, 6)
    padded = x.pad((1, 1))
    for t in range(steps):
        total = (padded[:, t:t + 6] - total * 0.5).realize()
    return total


def written(steps: int) -> Tensor:
    x, state = leaf(steps, 29), Tensor.zeros(steps, 29, device="CPU")
    for t in range(steps):
        state[t] = (x[t] * 0.25).realize()
        state.realize()
    return state


def moved(steps: int) -> Tensor:
    x = leaf(7, 90)
    for t in range(steps):
        x = (x.roll(t + 3, 1) * 0.5 + x).realize()
    return x


def counted(steps: int) -> Tensor:
    labels, found = Tensor(np.arange(77) % 31, device="CPU"), []
    for t in range(steps):
        found.append(labels.eq(t + 2).sum().realize())
    return Tensor.stack(*found)


def products(steps: int) -> Tensor:
    x, weight = leaf(6, steps, 21), leaf(21, 37)
    for t in range(steps):
        last = (x[:, t] @ weight).relu().realize()
    return last


@pytest.mark.parametrize("loop", [rows, windows, written, moved, counted, products])
def test_loops_compile_no_program_a_step(loop: Callable[[int], Tensor]):
    loop(8)
    before = stats.programs
    result = loop(24)
    assert stats.programs - before <= 4  # of two kernels a step at most, at offset 0 and at others
    assert np.isfinite(result.numpy()).all()


def test_recurrent_layers_and_their_gradients_compile_no_program_a_step():
    def train(steps: int) -> int:
        before = stats.programs
        x = leaf(steps, 2, 3)
        model(x)[0].square().sum().backward()
        assert x.grad is not None
        x.grad.numpy()
        return stats.programs - before

    model = nn.RNN(3, 5)
    train(24)
    assert train(48) <= 24
