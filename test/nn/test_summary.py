"""`summary`: layers in order, with shapes, parameters, operations and bytes; a model is left as it was."""
import numpy as np
import pytest

import minigrad
from minigrad import Tensor, nn
from minigrad.errors import MinigradError


def test_a_sequential_in_rows():
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(512, 10))
    found = minigrad.summary(model, (4, 3, 8, 8))
    assert [r.name for r in found.rows] == ["0", "1", "2", "3", "4"]
    assert [r.shape for r in found.rows] == [(4, 8, 8, 8), (4, 8, 8, 8), (4, 8, 8, 8), (4, 512), (4, 10)]
    assert [r.parameters for r in found.rows] == [224, 16, 0, 0, 5130] and found.parameters == 5370
    assert [r.flops for r in found.rows] == [2 * 4 * 8 * 64 * 27, 0, 0, 0, 2 * 4 * 512 * 10]
    assert found.rows[0].nbytes == 4 * 8 * 64 * 4 and found.parameter_bytes == 4 * 5370
    text = str(found).splitlines()
    assert text[0].split() == ["layer", "kind", "result", "parameters", "MFLOP", "MB"]
    assert text[-2].startswith("parameters: 5,370")


def test_plain_objects_nested_modules_and_shared_layers():
    class Inner(nn.Module):
        def __init__(self):
            self.first, self.attention = nn.Linear(4, 4), nn.MultiheadAttention(4, 2)

        def forward(self, x):
            return self.attention(self.first(x), x, x)[0]

    class Plain:
        def __init__(self):
            self.parts, self.shared = {"inner": Inner()}, nn.Linear(4, 4)

        def __call__(self, x):
            return self.shared(self.shared(self.parts["inner"](x)))

    found = minigrad.summary(Plain(), Tensor.zeros(2, 5, 4))
    assert [r.name for r in found.rows] == ["parts.inner.first", "parts.inner.attention", "shared", "shared"]
    assert [r.parameters for r in found.rows] == [20, 80, 20, 0] and found.parameters == 120
    # Projections; scores and sums of 5 sequences of length 2; scores again for the weights, which are a result too.
    assert found.rows[1].flops == 2 * 10 * 4 * 16 + 2 * 2 * 5 * 2 * 2 * 4 + 2 * 5 * 2 * 2 * 4


def test_nothing_is_computed_and_nothing_changes():
    model = nn.BatchNorm1d(3)
    before = model.running_mean.numpy()
    model.train()
    minigrad.summary(model, (4, 3))
    assert np.array_equal(model.running_mean.numpy(), before) and not model._hooks
    assert "no layers" not in repr(model)
    with pytest.raises(MinigradError, match="expected a model that can be called, got int"):
        minigrad.summary(3)
