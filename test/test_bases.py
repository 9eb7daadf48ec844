"""Offsets and numbers of steps as arguments: texts, equal results, loops over time that compile no program a step."""
# Tests know their dims are ints.
# mypy: disable-error-code="arg-type"
from collections.abc import Callable

import numpy as np
import pytest

from minigrad import Tensor, nn
from minigrad.codegen.ir.interpret import interpret_function
from minigrad.codegen.ir.text import print_function
from minigrad.codegen.ir.verify import verify_function
from minigrad.codegen.kernel_interpret import interpret_kernel
from minigrad.codegen.kernel_text import parse_kernel, print_kernel
from minigrad.codegen.lowering.bases import take_bases
from minigrad.codegen.stages import stages_of
from minigrad.engine.stats import stats
from minigrad.target import Target

AVX512 = Target("avx512", "llvm", "x86-64-v4", 64, 32, 2, 48 << 10, 1 << 20, features=frozenset({"avx512f", "fma"}))

GATHERS = """\
kernel k(inout o0: f32[{size}], p0: f32[12], p1: i64[{numbers}])
  for i0<12:
    o0[{place}] = p0[i0] * o0[{place}] + f32(p1[{first} + {{p1[{second}] in 0..1}}])
"""


def test_the_least_offset_is_taken_off():
    kernel, bases = take_bases(parse_kernel(GATHERS.format(size=60, numbers=9, place="i0+24", first=3, second=4)))
    assert bases == {"o0": 24, "p1": 3}
    expected = parse_kernel(GATHERS.format(size=12, numbers=2, place="i0", first=0, second=1))
    assert print_kernel(kernel) == print_kernel(expected)
    assert take_bases(kernel) == (kernel, {})


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
        verify_function(stage.function)
        functions[stage.function] = print_function(stage.function)
        arrays = {p.name: random.integers(0, 2, p.shape).astype(p.dtype.np) for p in kernel.params}
        ours, theirs = ({name: a.copy() for name, a in arrays.items()} for _ in range(2))
        interpret_kernel(kernel, theirs)
        interpret_function(stage.function, ours,
                           dims={d.name: int(n) for d, n in zip(stage.function.dims, stage.dims, strict=True)})
        np.testing.assert_array_equal(ours["o0"], theirs["o0"])
    assert len(functions) == 1, "\n".join(functions.values())


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
