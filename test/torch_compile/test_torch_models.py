"""Models in torch code under torch.compile with minigrad, beside eager torch: inference, loss and gradients.

Dynamo and AOTAutograd take seconds for each, so that some stand for all; `--all` runs every one of them.
"""
from __future__ import annotations

import copy
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: nothing to compile")

from bench.torch_models import MODELS  # noqa: E402
from minigrad.torch_compile import backend  # noqa: E402

QUICK = {"vae", "resnet"}
pytestmark = [
    pytest.mark.filterwarnings("ignore:Online softmax is disabled:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*isinstance.treespec, LeafSpec.:FutureWarning"),
]


@pytest.fixture(autouse=True)
def _nothing_compiled_before() -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)


def test_there_are_twenty_models() -> None:
    assert len(MODELS) >= 20 and set(MODELS) >= QUICK


@pytest.mark.parametrize("name", MODELS)
def test_models_give_what_eager_torch_gives(name: str, request: pytest.FixtureRequest) -> None:
    if name not in QUICK and not request.config.getoption("--all"):
        pytest.skip("takes seconds: --all runs it")
    case = MODELS[name](False)
    model, theirs = case.model, copy.deepcopy(case.model)
    strict: Any = {"backend": backend, "options": {"strict": True}}
    with torch.no_grad():
        found = torch.compile(model.eval(), **strict)(*case.inputs)
        close(found, theirs.eval()(*case.inputs))
    model.train(), theirs.train()
    loss = torch.compile(lambda *inputs: case.loss(model, *inputs), **strict)(*case.inputs)
    loss.backward()
    expected = case.loss(theirs, *case.inputs)
    expected.backward()
    close(loss, expected)
    close(dict(model.named_buffers()), dict(theirs.named_buffers()))
    gradients = {n: p.grad for n, p in theirs.named_parameters() if p.grad is not None}
    largest = max(float(g.abs().max()) for g in gradients.values())
    for parameter, gradient in gradients.items():  # some are 0 but for rounding
        found = model.get_parameter(parameter).grad
        assert float((found - gradient).abs().max()) <= 2e-5 * largest, parameter


def close(found: Any, expected: Any) -> None:
    torch.testing.assert_close(found, expected, rtol=2e-5, atol=2e-5)
