"""Guards out of elementwise loops: one nest per part of what is put together."""
# mypy: disable-error-code="misc, arg-type"
import re
from collections.abc import Callable
from functools import reduce

import numpy as np
import pytest
from conftest import CPU_DRIVERS, devices, one_in

from minigrad import Tensor
from minigrad.codegen.kernel.interpret import interpret_kernel
from minigrad.codegen.kernel.text import parse_kernel, print_kernel
from minigrad.codegen.kernel.verify import verify_kernel
from minigrad.codegen.lowering.borders import FEW_ELEMENTS, split_borders
from minigrad.codegen.passes import stages_of
from minigrad.codegen.plan.several import JoinedPlan
from minigrad.codegen.render.opencl import render_opencl
from minigrad.config import config
from minigrad.nn import functional as F
from minigrad.target import Target

GPU = Target("gpu", "opencl", "none", 4, 64, 8, local_memory=32 << 10, max_group=256)

BEFORE = """\
kernel k_add(out o0: f32[2, 4100], p0: f32[2, 4096])
  for i0<2, i1<4100:
    o0[i0, i1] = (p0[i0, -i1+2] else -0.0 if -i1+1 >= 0) + (p0[i0, i1-2] else -0.0 if i1-2 >= 0 and -i1+4097 >= 0) + \
(p0[i0, -i1+8192] else -0.0 if i1-4098 >= 0)
"""
AFTER = """\
kernel k_add(out o0: f32[2, 4100], p0: f32[2, 4096])
  for i0<2, i1<4096:
    o0[i0, i1+2] = p0[i0, i1]
  for i0<2, i1<2:
    o0[i0, i1] = p0[i0, -i1+2]
  for i0<2, i1<2:
    o0[i0, i1+4098] = p0[i0, -i1+4094]
"""


def test_parts_are_nests_without_guards():
    kernel = parse_kernel(BEFORE)
    split = split_borders(kernel)
    assert split == parse_kernel(AFTER), print_kernel(split)
    verify_kernel(split)
    x = np.random.default_rng(0).standard_normal((2, 4096)).astype(np.float32)
    found = []
    for k in (kernel, split):
        y = np.zeros((2, 4100), np.float32)
        interpret_kernel(k, {"p0": x, "o0": y})
        found.append(y)
    np.testing.assert_array_equal(*found)
    np.testing.assert_array_equal(found[0], np.pad(x, ((0, 0), (2, 2)), mode="reflect"))


FEW = (("4100", "20"), ("4096", "16"), ("4097", "17"), ("8192", "32"), ("4098", "18"))


@pytest.mark.parametrize("text", [
    reduce(lambda text, pair: text.replace(*pair), FEW, BEFORE),
    "kernel pad(out o0: f32[8192], p0: f32[8190])\n  for i0<8192:\n"
    "    o0[i0] = (p0[i0-1] else 0.0 if i0-1 >= 0 and -i0+8190 >= 0)\n",
    "kernel s(out o0: f32[8192], p0: f32[8192])\n  for i0<8192:\n"
    "    t0 = sum(r0<3: (p0[i0-r0] else 0.0 if i0-r0 >= 0) + (p0[r0] else 0.0 if i0-4 >= 0) + "
    "(p0[i0] else 0.0 if i0-9 >= 0))\n    o0[i0] = t0\n",
], ids=["few elements", "one guard", "a sum"])
def test_others_stay(text: str):
    kernel = parse_kernel(text)
    assert split_borders(kernel) == kernel


PUT_TOGETHER: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[np.ndarray], np.ndarray]]] = {
    **{mode: (lambda x, mode=mode: F.pad(x, (3, 5, 2, 4), mode=mode),
              lambda x, np_mode=np_mode: np.pad(x, ((0, 0), (0, 0), (2, 4), (3, 5)), mode=np_mode))
       for mode, np_mode in (("reflect", "reflect"), ("replicate", "edge"), ("circular", "wrap"))},
    "joined": (lambda x: Tensor.cat(x, x * 2, x + 1, -x, dim=2),
               lambda x: np.concatenate([x, x * 2, x + 1, -x], 2)),
    "rolled": (lambda x: x.roll((7, 3), (2, 3)), lambda x: np.roll(x, (7, 3), (2, 3))),
    "padded, then rolled": (lambda x: F.pad(x, (1, 2, 3, 4), value=7.0).roll(5, 3),
                            lambda x: np.roll(np.pad(x, ((0, 0), (0, 0), (3, 4), (1, 2)), constant_values=7), 5, 3)),
    "stacked and exchanged": (lambda x: Tensor.stack(x, x * 3, x - 2, dim=3).transpose(2, 4),
                              lambda x: np.stack([x, x * 3, x - 2], 3).transpose(0, 1, 4, 3, 2)),
}


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("name", PUT_TOGETHER)
@one_in(3, CPU_DRIVERS)
def test_what_is_put_together_is_numpys_with_its_gradient(name: str, device: str):
    ours, theirs = PUT_TOGETHER[name]
    x = np.random.default_rng(0).standard_normal((2, 3, 41, 37)).astype(np.float32)
    x[0, 0, :3, :3] = [[np.nan, np.inf, -0.0], [-np.inf, 0.0, -0.0], [1, -0.0, 2]]
    assert theirs(x).size > FEW_ELEMENTS
    with config(device=device):
        t = Tensor(x, requires_grad=True)
        y = ours(t)
        np.testing.assert_array_equal(y.numpy(), theirs(x))
        np.testing.assert_array_equal(np.signbit(y.numpy()), np.signbit(theirs(x)))
        x = np.nan_to_num(x, nan=0.0, posinf=0.0, neginf=0.0)
        seed = np.random.default_rng(1).standard_normal(y.shape).astype(np.float32)
        t = Tensor(x, requires_grad=True)
        gradient, = (ours(t) * Tensor(seed)).sum().gradient(t)
        # what it is put together from is linear: a step along the gradient changes the sum by its square
        step = gradient.numpy()
        change = ((theirs(x + step).astype(np.float64) - theirs(x)) * seed).sum()
        np.testing.assert_allclose(change, (step.astype(np.float64) ** 2).sum(), rtol=1e-5)


def test_parts_in_one_launch_read_in_their_own_branch():
    """The variable of a part keeps its bounds in that part only: elsewhere p0[q] is past the end."""
    kernel = parse_kernel(AFTER)
    stage, = stages_of(kernel, GPU).stages
    assert isinstance(stage.plan, JoinedPlan)
    before, *branches = re.split(r"\n *(?:if \(c_\d+\) \{|\} else \{)\n", render_opencl(stage.function, GPU).source)
    assert "p0[" not in before
    assert [branch.count("p0[") for branch in branches] == [1, 0, 1, 1]
