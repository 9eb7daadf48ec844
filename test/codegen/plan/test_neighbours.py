"""What a search tries differs from a plan in one thing, fits or is refused, and gives the same bits."""
from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from minigrad import Tensor, config
from minigrad.codegen.passes import drafted
from minigrad.codegen.plan.neighbours import neighbours
from minigrad.codegen.plan.several import parse_plan
from minigrad.engine.observe import observing
from minigrad.engine.scene import Clock, Scene, Watch
from minigrad.engine.search import kernels_of
from minigrad.engine.trial import Trial
from minigrad.runtime.device import Device, Launch

RUN = 10
"""Neighbours of each plan that run."""

OTHER_ORDER = "window"
"""The kernel whose copies share what is loaded for taps, which follow in another order in other tiles."""


def values(*shape: int) -> Tensor:
    return Tensor(np.random.default_rng(sum(shape)).standard_normal(shape, np.float32)).realize()


KERNELS: dict[str, Callable[[], Tensor]] = {
    "product": lambda: values(37, 90) @ values(90, 51),
    "product of transposed": lambda: values(5, 90) @ values(51, 90).transpose(0, 1),
    "rows": lambda: values(29, 83).softmax(),
    "norm": lambda: (values(12, 7, 33) - values(12, 7, 33).mean((0, 2), keepdim=True)) * 2,
    "reduction": lambda: values(9, 17, 21).sum(1),
    "pointwise": lambda: values(6, 11, 40) * values(6, 11, 1) + 1,
    "window": lambda: values(2, 6, 15, 17).conv2d(values(6, 1, 3, 3), padding=1, groups=6),
    "convolution": lambda: values(2, 4, 11, 13).conv2d(values(5, 4, 3, 3), padding=1),
    "strided gradient": lambda: values(2, 5, 6, 7).conv_transpose2d(values(5, 4, 3, 3), stride=2),
    "attention": lambda: values(2, 2, 20, 8).scaled_dot_product_attention(values(2, 2, 20, 8), values(2, 2, 20, 8)),
}


class Same(Clock):
    """All launches take as long."""

    def work(self, device: Device, before: list[Launch], launch: Launch) -> float:
        device.launch([launch])
        return 1.0


class Noted(Trial):
    """Notes whether each plan gives the same bits; the first call is about the plan in force."""

    checked: list[bool]

    def _same(self, launch: Launch) -> bool:
        same = super()._same(launch)
        self.checked = [*self.checked, same] if hasattr(self, "checked") else []
        return same


@pytest.mark.parametrize("name", KERNELS)
def test_neighbours_fit_and_give_the_same_bits(name: str) -> None:
    random = np.random.default_rng(0)
    with config(device="CPU", tuned=False), observing(Watch()) as watch:
        keep = KERNELS[name]().realize()
    del keep
    fitting = 0
    for work in watch.works:
        scene = Scene(work)
        for found in kernels_of([scene]):
            units, _, _ = drafted(found.kernel, scene.device.target)
            plan = units[found.stage][1]
            trial = Noted(found, Same(), False)
            every = list(neighbours(trial.form, plan))
            assert len({*map(str, every)}) == len(every) and str(plan) not in map(str, every)
            assert all(parse_plan(str(p)) == p for p in every)
            trial.round([every[k] for k in random.permutation(len(every))[:RUN]])
            assert all(trial.checked) or name == OTHER_ORDER
            fitting += sum(trial.checked)
            trial.free()
        scene.free()
    assert fitting >= 2
