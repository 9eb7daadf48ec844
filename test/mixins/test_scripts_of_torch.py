"""Training scripts as people have them, of eleven kinds, run with minigrad in place of torch and give torch's losses.

The scripts are in test/programs and import torch. Each is run as it is, and once more with its imports alone changed,
from equal weights; what both draw at random comes from one generator of numpy's.
"""
# mypy: ignore-errors
from __future__ import annotations

import re
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from conftest import one_in
from support.paths import TESTS

import minigrad

torch = pytest.importorskip("torch", reason="torch is the second opinion here")
SCRIPTS = TESTS / "programs"
TOLERANCE = {"gan": 1e-9}
"""Two networks against each other let rounding grow from step to step, so that this script is one in float64, which is
held to more than the others."""
QUICK = ("graph_network", "transformer")
"""The scripts that run by default, and of the others, which compile for half a minute, the first."""

pytestmark = [pytest.mark.usefixtures("on_cpu"),
              pytest.mark.filterwarnings("ignore:enable_nested_tensor is True:UserWarning"),
              pytest.mark.filterwarnings("ignore:Support for mismatched key_padding_mask:UserWarning")]


def script(name: str, ours: bool) -> ModuleType:
    """A script as a module, with minigrad in place of torch if it is to be ours."""
    text = (SCRIPTS / f"{name}.py").read_text(encoding="utf-8")
    if ours:
        text = re.sub(r"^import torch$", "import minigrad as torch", text, flags=re.MULTILINE)
        text = re.sub(r"^(import|from) torch\b", r"\1 minigrad", text, flags=re.MULTILINE)
    module = ModuleType(f"{name}_{'minigrad' if ours else 'torch'}")
    sys.modules[module.__name__] = module  # dataclasses look their module up
    exec(compile(text, str(SCRIPTS / f"{name}.py"), "exec"), vars(module))
    return module


class Draws:
    """Random numbers of one generator in place of a framework's own."""

    def __init__(self, framework: Any, tensor: Callable[[np.ndarray], Any]):
        self.framework, self.tensor, self.rng = framework, tensor, np.random.default_rng(0)

    def _as(self, values: np.ndarray, like: Any = None, dtype: Any = None, device: Any = None) -> Any:
        made = self.tensor(values)
        return made.to(like.dtype if like is not None else dtype or self.framework.float32)

    def randn(self, *shape: Any, **options: Any) -> Any:
        return self._as(self.rng.standard_normal(_flat(shape)), **options)

    def rand(self, *shape: Any, **options: Any) -> Any:
        return self._as(self.rng.random(_flat(shape)), **options)

    def randn_like(self, x: Any) -> Any:
        return self._as(self.rng.standard_normal(tuple(x.shape)), like=x)

    def randint(self, *args: Any, **options: Any) -> Any:
        *bounds, shape = args
        return self.tensor(self.rng.integers(*bounds, size=tuple(shape)))

    def multinomial(self, probs: Any, num_samples: int = 1) -> Any:
        assert num_samples == 1
        total = np.cumsum(probs.detach().numpy().astype(np.float64), -1)
        at = self.rng.random((*total.shape[:-1], 1)) * total[..., -1:]
        return self.tensor((total < at).sum(-1, keepdims=True))

    def sample(self, distribution: Any) -> Any:
        return self.multinomial(distribution.probs).squeeze(-1)

    def dropout(self, x: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
        if not training or not p:
            return x
        return x * self._as((self.rng.random(tuple(x.shape)) >= p) / (1 - p), like=x)

    def order(self, count: int) -> list[int]:
        return self.rng.permutation(count).tolist()


def _flat(shape: tuple[Any, ...]) -> tuple[int, ...]:
    return tuple(shape[0]) if len(shape) == 1 and not isinstance(shape[0], int) else shape


def install(draws: Draws, patch: pytest.MonkeyPatch) -> None:
    """What the scripts draw, and the layers and loaders that they use."""
    for name in ("randn", "rand", "randn_like", "randint", "multinomial"):
        patch.setattr(draws.framework, name, getattr(draws, name))
    patch.setattr(draws.framework.distributions.Categorical, "sample", lambda self: draws.sample(self))
    if draws.framework is torch:
        patch.setattr(torch.nn.functional, "dropout", draws.dropout)
        patch.setattr(torch.utils.data.RandomSampler, "__iter__", lambda self: iter(draws.order(len(self.data_source))))
        patch.setattr("torch.utils.data.dataset.randperm", lambda n, **_: torch.tensor(draws.order(n)))
    else:
        patch.setattr(minigrad.Tensor, "dropout", lambda x, p=0.5: draws.dropout(x, p, minigrad.Tensor.training))
        patch.setattr(minigrad.data.RandomSampler, "_drawn",
                      lambda self, _: np.array(draws.order(len(self.data_source)), np.int64))
        patch.setattr("minigrad.data.dataset.permutation", lambda seed, epoch, n, *_: np.array(draws.order(n)))


def losses(module: ModuleType, framework: Any, tensor: Any, start: list[Any]) -> tuple[list[float], list[Any]]:
    """What a script's `train` returns, and the weights that it began with, which are `start` unless that is empty."""
    built = module.build()
    models = built if isinstance(built, tuple) else (built,)
    for model, state in zip(models, start, strict=False):
        model.load_state_dict({k: tensor(v) for k, v in state.items()})
    weights = [{k: v.detach().numpy().copy() for k, v in m.state_dict().items()} for m in models]
    with pytest.MonkeyPatch.context() as patch:
        install(Draws(framework, tensor), patch)
        return module.train(*models), weights


@pytest.mark.parametrize("name", [pytest.param(name, marks=() if name in QUICK else one_in(99)) for name in sorted(
    path.stem for path in SCRIPTS.glob("*.py"))])
def test_a_script_gives_the_losses_of_torch(name: str) -> None:
    torch.manual_seed(0)  # with some weights torch's own losses part by 1% when the weights move by a rounding
    want, start = losses(script(name, False), torch, torch.from_numpy, [])
    got, _ = losses(script(name, True), minigrad, minigrad.Tensor, start)
    assert len(want) >= 50 and np.isfinite(want).all() and len(set(want)) > 40
    np.testing.assert_allclose(got, want, rtol=TOLERANCE.get(name, 1e-3))
