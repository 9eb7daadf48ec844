"""Layers beside what numpy says."""
from __future__ import annotations

import numpy as np
import pytest

from minigrad import Tensor
from minigrad.nn.state import get_state_dict, load_state_dict

torch = pytest.importorskip("torch", reason="torch is not installed: nothing to compare with")


def assert_close(ours: np.ndarray, theirs, what: str) -> None:
    """Within 1e-4 of the reference's largest magnitude: sums of float32 products in another order."""
    theirs = theirs.detach().numpy()
    assert ours.shape == theirs.shape, what
    assert np.abs(ours - theirs).max(initial=0) <= 1e-4 * max(1e-2, np.abs(theirs).max(initial=0)), what


def check_layer(ours, theirs, x: np.ndarray, training: bool = False) -> None:
    """Loads torch's weights into ours, and compares the output and every gradient for one random output gradient."""
    state = get_state_dict(ours)
    assert set(state) == set(theirs.state_dict())
    load_state_dict(ours, {name: Tensor(value.numpy()) for name, value in theirs.state_dict().items()})
    theirs.train(training)
    if ours.training is not None:
        ours.train(training)
    floats = x.dtype.kind == "f"
    xt = torch.tensor(x, requires_grad=floats)
    xo = Tensor(x, requires_grad=floats)
    with Tensor.train(training):
        yt, yo = theirs(xt), ours(xo)
    weights = np.random.default_rng(1).standard_normal(yt.shape, np.float32)
    (yt * torch.tensor(weights)).sum().backward()
    (yo * Tensor(weights)).sum().backward()
    assert_close(yo.numpy(), yt, "output")
    if floats:
        assert xo.grad is not None
        assert_close(xo.grad.numpy(), xt.grad, "gradient of the input")
    named = dict(theirs.named_parameters())
    for name, p in get_state_dict(ours).items():
        assert p.requires_grad == (name in named), name
        if name in named:
            assert p.grad is not None
            assert_close(p.grad.numpy(), named[name].grad, f"gradient of {name}")
