"""Plans that policies choose fit their nests, whatever networks are made of: what the check or a builder refuses is
no user's mistake. Each class is planned and verified for processors, for OpenCL and for GPUs; a few are computed, too.
"""
# Tests know their dims are ints.
# mypy: disable-error-code="arg-type"
from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest
from support.golden_plans import TARGETS
from support.packed import equal_the_kernel
from support.scheduler import ready
from support.stages import kernels

from minigrad import Tensor, Variable, manual_seed, nn
from minigrad.codegen import passes
from minigrad.codegen.kernel.text import parse_kernel
from minigrad.codegen.plan.build import build
from minigrad.codegen.plan.steps import Bind, Plan
from minigrad.codegen.policy.choose import choose_plan, choose_plans
from minigrad.config import config
from minigrad.errors import InternalError, PlanError
from minigrad.nn import functional as F

KINDS = ("avx2", "avx512", "neon", "pocl", "gpu", "units", "raster")
"""Of targets, those between whose plans there are differences in kind."""


def trained(x: Tensor, *layers: Callable[[Tensor], Tensor]) -> list[Tensor]:
    """The output of layers, and the gradients of all that they have and of their input."""
    y = x
    for layer in layers:
        y = layer(y)
    weights = [p.realize() for layer in layers for p in nn.state.get_parameters(layer) if p.dtype.is_float]
    wanted = [x, *weights] if x.requires_grad else weights
    return [y, *(y * ready(*y.shape, seed=1)).sum().gradient(*wanted)] if wanted else [y]


def first_bias(x: Tensor, *layers: Callable[[Tensor], Tensor]) -> list[Tensor]:
    """The gradient of the first layer's bias alone, which is computed with what it is the sum of."""
    return trained(x, *layers)[3:4]


def image(*shape: int) -> Tensor:
    return ready(*shape, requires_grad=True)


def numbered(*shape: int) -> Tensor:
    return (Tensor.arange(int(np.prod(shape))).reshape(*shape) % 7).cast("float32")


def of_height(n: int, most: int, *shape: int) -> Tensor:
    """An image whose height is known at run time only."""
    return ready(*shape[:2], most, shape[3])[:, :, :Variable("n", 8, most).bind(n)]


CLASSES: dict[str, Callable[[], list[Tensor]]] = {
    # A gradient that is one long sum of products, in parts that are cut again.
    "a transposed convolution, then one": lambda: first_bias(
        image(1, 4, 24, 31), nn.ConvTranspose2d(4, 16, 3, stride=2), nn.Conv2d(16, 32, 3, padding=1)),
    "a transposed one of 2x2": lambda: first_bias(
        image(1, 4, 24, 31), nn.ConvTranspose2d(4, 16, 2, stride=2), nn.Conv2d(16, 32, 3, padding=1)),
    "a dilated one, larger": lambda: first_bias(
        image(4, 4, 7, 32), nn.Conv2d(4, 16, 3, padding=2, dilation=2), nn.Upsample(scale_factor=2),
        nn.Conv2d(16, 48, 3, padding=1)),
    "two transposed ones": lambda: first_bias(
        image(1, 4, 24, 31), nn.ConvTranspose2d(4, 16, 3, stride=2), nn.ConvTranspose2d(16, 32, 3, stride=2)),
    "a depthwise one, then a dense one": lambda: first_bias(
        image(1, 16, 16, 28), nn.Conv2d(16, 16, 3, padding=1, groups=16), nn.Conv2d(16, 16, 3, padding=1)),
    "parts of one size": lambda: first_bias(
        image(2, 4, 8, 64), nn.Conv2d(4, 16, 3, padding=1), nn.Conv2d(16, 64, 3, padding=1)),
    # Operands that are computed from nothing in memory.
    "of random numbers": lambda: trained(Tensor.rand(1, 3, 32, 32), nn.Conv2d(3, 16, 3)),
    "of normal ones": lambda: trained(Tensor.randn(2, 5, 17, 30), nn.Conv2d(5, 24, 4, stride=2)),
    "of numbers in turn": lambda: trained(numbered(1, 3, 32, 32), nn.Conv2d(3, 16, 3, padding=1)),
    "of planes of numbers": lambda: trained(numbered(1, 3, 12, 12, 12), nn.Conv3d(3, 16, 3)),
    "of marks": lambda: trained((numbered(1, 4, 40, 33) == 3).cast("float32"), nn.Conv2d(4, 32, 3)),
    "by random weights": lambda: [F.conv2d(image(1, 8, 20, 20), Tensor.rand(32, 8, 3, 3))],
    "of one buffer on both sides": lambda: [F.conv2d(x, x[:, :, :3, :3]) for x in (ready(16, 16, 24, 24),)],
    "a product of random numbers": lambda: [ready(256, 256) @ Tensor.rand(256, 256)],
    # Windows over long rows, of few channels.
    "signals to 8 channels": lambda: trained(image(1, 1, 4000), nn.Conv1d(1, 8, 3, padding=1)),
    "signals to 16 channels": lambda: trained(image(1, 2, 6400), nn.Conv1d(2, 16, 5, padding=2), nn.ReLU()),
    "depthwise, then few channels": lambda: trained(
        image(3, 12, 4800), nn.Conv1d(12, 12, 3, stride=2, padding=1, groups=12), nn.Conv1d(12, 4, 3, padding=2)),
    # Heights that are known at run time only.
    "of any height": lambda: [F.conv2d(of_height(64, 80, 1, 8, 0, 50), ready(32, 8, 3, 3))],
    "of any height, in steps": lambda: [F.conv2d(of_height(50, 90, 1, 3, 0, 50), ready(8, 3, 3, 3), stride=2)],
    # Sums of one length that are written over other variables.
    "a norm of what is padded": lambda: trained(
        image(4, 4, 41, 52), lambda x: F.pad(x, (1, 1, 1, 1)), nn.GroupNorm(2, 4)),
    "a norm of a batch": lambda: trained(image(1, 1, 19, 15), lambda x: F.pad(x, (2, 2, 2, 2)).flip(-1),
                                         nn.BatchNorm2d(1)),
    "a norm of what is put together": lambda: trained(
        image(2, 20, 4000), lambda x: Tensor.cat(x, x[:, :2] * 2, dim=1), nn.GroupNorm(1, 22)),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", CLASSES)
def test_every_nest_gets_a_plan_that_fits(name: str, kind: str) -> None:
    target = TARGETS[kind]
    for kernel in kernels(CLASSES[name](), target):
        passes.stages_of(kernel, target)


def computed(name: str, device: str) -> list[np.ndarray]:
    with config(device=device):
        manual_seed(0)
        return [t.numpy() for t in CLASSES[name]()]


@pytest.mark.parametrize("name", ["parts of one size", "two transposed ones", "of numbers in turn",
                                  "signals to 16 channels", "of any height", "a norm of what is padded"])
def test_their_numbers_are_right(name: str) -> None:
    for found, expected in zip(computed(name, "CPU"), computed(name, "NUMPY"), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())


REFUSED = Plan("reduction", (Bind("parallel", ("no_loop",)),))


def mistaken(*_: object) -> list:
    raise StopIteration


def interrupted(*_: object) -> list:
    raise TimeoutError


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., passes.Staged]]:
    """The stages of a sum over rows, with another choice of plans."""
    kernel, = kernels(ready(5, 70).sum(1), TARGETS["avx2"])

    def made(choose: Callable, *given: str) -> passes.Staged:
        passes.forget_stages()
        monkeypatch.setattr(passes, "choose_plans", choose)
        target = replace(TARGETS["avx2"], plans=tuple([(kernel.name, text) for text in given]))
        return passes.stages_of(kernel, target)

    yield made
    passes.forget_stages()


@pytest.mark.parametrize("choose", [mistaken, lambda nests, target: [((nest,), REFUSED) for nest in nests]],
                         ids=["mistaken", "refused"])
def test_general_plans_take_the_place_of_mistaken_ones(
        choose: Callable, planned: Callable, capsys: pytest.CaptureFixture) -> None:
    with config(verify=True), pytest.raises((PlanError, InternalError)):
        planned(choose)
    with config(verify=False, debug=1):
        assert [s.plan.pattern for s in planned(choose).stages] == ["reduction"]
    assert "gets general plans" in capsys.readouterr().err


def test_nothing_takes_the_place_of_a_plan_that_is_given(planned: Callable) -> None:
    with config(verify=False), pytest.raises(PlanError, match="no_loop"):
        planned(choose_plans, "plan\n  bind parallel no_loop")


def test_interruptions_are_no_mistakes(planned: Callable) -> None:
    with config(verify=False), pytest.raises(InternalError, match="TimeoutError"):
        planned(interrupted)


@pytest.mark.parametrize("target", ["avx2", "avx512", "neon", "pocl"])
@pytest.mark.parametrize("lanes", [(3, 7), (20, 9), (2, 40)])
def test_nests_of_a_row_share_the_loops_of_variables_they_have_in_common(lanes: tuple[int, int], target: str) -> None:
    """As gradients of pools in pools, a part of the plane in each: the sums of some have one variable more."""
    m, n = lanes
    sums = [(f"r1<{n}", "p0[r1]"), (f"r1<{n}", "(p0[r1] + 1.0)"), (f"r1<{n}, r2<{n}", "p0[r1] * p0[r2]")]
    parts = [f"    for i1<{m}:\n      t0 = sum({over}: p1[i1] * {term})\n      o0[i1+{m * k}] = t0 / t1\n"
             for k, (over, term) in enumerate(sums)]
    kernel = parse_kernel(f"kernel row(out o0: f32[{3 * m}], p0: f32[{n}], p1: f32[{m}])\n  for :\n"
                          f"    t1 = sum(r0<3: 2.0)\n" + "".join(parts))
    nest, plan = choose_plan(kernel.nests[0], TARGETS[target])
    assert isinstance(plan, Plan) and plan.pattern == "rows"
    equal_the_kernel(kernel, [build(kernel, nest, plan, "row")])
