"""Layers against PyTorch: the same state names, outputs and gradients."""
from __future__ import annotations

import numpy as np
import pytest
from support.nn import assert_close, check_layer, torch

from minigrad import Tensor, jit, nn
from minigrad.errors import ShapeError
from minigrad.nn.state import get_parameters, get_state_dict

LAYERS = {
    "linear": (lambda n: n.Linear(5, 3), (4, 5)),
    "linear 3d without bias": (lambda n: n.Linear(5, 3, bias=False), (2, 3, 5)),
    "conv": (lambda n: n.Conv2d(3, 4, 3), (2, 3, 7, 6)),
    "conv stride padding": (lambda n: n.Conv2d(3, 4, 3, stride=2, padding=1), (2, 3, 7, 6)),
    "conv pairs": (lambda n: n.Conv2d(2, 3, (3, 2), stride=(1, 2), padding=(2, 1), dilation=(2, 1)), (1, 2, 8, 7)),
    "conv same": (lambda n: n.Conv2d(2, 3, (3, 5), padding="same", bias=False), (1, 2, 6, 7)),
    "conv depthwise": (lambda n: n.Conv2d(4, 4, 5, stride=2, padding=2, groups=4), (2, 4, 9, 9)),
    "conv grouped": (lambda n: n.Conv2d(4, 6, 3, groups=2), (1, 4, 5, 5)),
    "transposed": (lambda n: n.ConvTranspose2d(3, 4, 3), (2, 3, 4, 5)),
    "transposed stride": (lambda n: n.ConvTranspose2d(4, 6, 3, 2, 1, 1, groups=2), (1, 4, 4, 3)),
    "conv mirrored": (lambda n: n.Conv2d(2, 3, 3, padding=(1, 2), padding_mode="reflect"), (1, 2, 6, 7)),
    "conv circular": (lambda n: n.Conv1d(2, 3, 3, padding="same", padding_mode="circular"), (1, 2, 6)),
    "conv 1d": (lambda n: n.Conv1d(3, 4, 5, stride=2, padding=2, dilation=2), (2, 3, 17)),
    "conv 1d same": (lambda n: n.Conv1d(4, 6, 5, padding="same", groups=2, bias=False), (1, 4, 9)),
    "conv 3d": (lambda n: n.Conv3d(2, 3, (1, 2, 3), padding=(0, 1, 1)), (1, 2, 3, 4, 5)),
    "conv 3d same": (lambda n: n.Conv3d(2, 2, (1, 3, 5), padding="same"), (1, 2, 3, 4, 5)),
    "transposed 1d": (lambda n: n.ConvTranspose1d(4, 6, 3, 2, 1, 1, groups=2, dilation=2), (2, 4, 5)),
    "layernorm": (lambda n: n.LayerNorm(6), (3, 4, 6)),
    "layernorm 2 axes": (lambda n: n.LayerNorm((4, 6), eps=1e-3), (3, 4, 6)),
    "layernorm without bias": (lambda n: n.LayerNorm(6, bias=False), (3, 6)),
    "layernorm plain": (lambda n: n.LayerNorm(6, elementwise_affine=False), (3, 6)),
    "rmsnorm": (lambda n: n.RMSNorm(6, eps=1e-6), (3, 4, 6)),
    "groupnorm": (lambda n: n.GroupNorm(2, 6), (2, 6, 3, 4)),
    "groupnorm plain": (lambda n: n.GroupNorm(3, 6, affine=False), (2, 6, 5)),
    "batchnorm eval": (lambda n: n.BatchNorm2d(4), (2, 4, 3, 3)),
    "batchnorm plain": (lambda n: n.BatchNorm2d(4, affine=False, track_running_stats=False), (2, 4, 3, 3)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_layer(name: str) -> None:
    make, shape = LAYERS[name]
    torch.manual_seed(0)
    check_layer(make(nn), make(torch.nn), np.random.default_rng(0).standard_normal(shape, np.float32))


def test_embedding() -> None:
    indices = np.array([[1, 0, 6], [6, 6, 2]], np.int32)
    check_layer(nn.Embedding(7, 3), torch.nn.Embedding(7, 3), indices)


def test_layernorm2d_is_layernorm_over_channels() -> None:
    x = np.random.default_rng(0).standard_normal((2, 5, 3, 4), np.float32)
    expected = torch.nn.LayerNorm(5)(torch.tensor(x).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
    assert_close(nn.LayerNorm2d(5)(Tensor(x)).numpy(), expected, "output")


@pytest.mark.parametrize("shape", [(5, 3), (4, 3, 7), (2, 3, 5, 4)])
def test_batchnorm_training(shape: tuple[int, ...]) -> None:
    theirs_by_rank = {2: torch.nn.BatchNorm1d, 3: torch.nn.BatchNorm1d, 4: torch.nn.BatchNorm2d}
    ours, theirs = nn.BatchNorm(3, momentum=0.3), theirs_by_rank[len(shape)](3, momentum=0.3)
    x = np.random.default_rng(0).standard_normal(shape, np.float32) * 2 + 1
    check_layer(ours, theirs, x, training=True)
    for name, value in theirs.state_dict().items():
        assert_close(get_state_dict(ours)[name].numpy(), value, name)


def moved_statistics(ours: nn.BatchNorm, step, theirs, batches: int) -> np.ndarray:
    """The last of some batches that both have trained with: `step` is `ours`, or calls it. The statistics are alike."""
    random = np.random.default_rng(0)
    for _ in range(batches):
        x = random.standard_normal((4, 3, 2, 2), np.float32) * 3 - 1
        with Tensor.train():
            step(Tensor(x))
        theirs(torch.tensor(x))
    assert_close(ours.running_mean.numpy(), theirs.running_mean, "mean")
    assert_close(ours.running_var.numpy(), theirs.running_var, "variance")
    return x


def test_batchnorm_running_statistics_move_and_are_used() -> None:
    ours, theirs = nn.BatchNorm(3), torch.nn.BatchNorm2d(3)
    x = moved_statistics(ours, ours, theirs, 3)
    assert ours.num_batches_tracked.item() == 3
    theirs.eval()
    assert_close(ours(Tensor(x)).numpy(), theirs(torch.tensor(x)), "evaluation")
    assert ours.num_batches_tracked.item() == 3


def test_running_statistics_without_momentum_are_means_of_all_batches() -> None:
    ours, theirs = nn.BatchNorm(3, momentum=None), torch.nn.BatchNorm2d(3, momentum=None)
    moved_statistics(ours, jit(lambda x: ours(x)), theirs, 4)


def test_running_statistics_have_no_gradient() -> None:
    """As a layer in evaluation after one in training, or a penalty: statistics meet what has gradients."""
    x, scale = Tensor.randn(4, 3).requires_grad_(), Tensor.ones(3, requires_grad=True)
    layer = nn.BatchNorm(3)
    with Tensor.train():
        layer(x)
    (layer.running_mean * layer.running_var * scale).sum().backward()
    assert x.grad is None and scale.grad is not None


def test_dropout() -> None:
    x = Tensor.ones(1000)
    layer = nn.Dropout(0.25)
    assert (layer(x).numpy() == 1).all()
    with Tensor.train():
        y = layer(x).numpy()
    assert set(np.unique(y)) == {np.float32(0), np.float32(1 / 0.75)}
    assert 180 <= (y == 0).sum() <= 320


def test_initial_weights_have_torchs_range() -> None:
    Tensor.manual_seed(0)
    layers = ((nn.Linear(16, 40), 16), (nn.Conv2d(8, 20, 3, groups=4), 18), (nn.ConvTranspose2d(3, 8, 2), 32))
    for layer, fan_in in layers:
        for p in get_parameters(layer):
            values = p.numpy()
            assert np.abs(values).max() <= fan_in**-0.5 and values.std() > 0.3 * fan_in**-0.5


ERRORS = {
    "groups": (lambda: nn.Conv2d(3, 4, 3, groups=2), r"\[Conv2d\] expected channels divisible by groups, got in_c"),
    "same stride": (lambda: nn.Conv2d(3, 4, 3, stride=2, padding="same"), r'\[Conv2d\] expected .*"same" with stri'),
    "channels": (lambda: nn.BatchNorm(4)(Tensor.ones(2, 3, 5, 5)), r"\[BatchNorm\] expected \[N, 4, ...\], got \[2, 3"),
    "one value": (lambda: train_batchnorm(Tensor.ones(1, 3)), r"\[BatchNorm\] expected more than one value"),
    "layernorm": (lambda: nn.LayerNorm(4)(Tensor.ones(2, 3)), r"\[LayerNorm\] expected \[..., 4\], got \[2, 3\]"),
    "rmsnorm": (lambda: nn.RMSNorm(4)(Tensor.ones(2, 3)), r"\[RMSNorm\] expected \[..., 4\], got \[2, 3\]"),
    "group count": (lambda: nn.GroupNorm(4, 6), r"\[GroupNorm\] expected num_channels divisible by num_groups"),
    "group channels": (lambda: nn.GroupNorm(2, 6)(Tensor.ones(2, 4)), r"\[GroupNorm\] expected \[N, 6, ...\], got"),
}


def train_batchnorm(x: Tensor) -> Tensor:
    with Tensor.train():
        return nn.BatchNorm(3)(x)


@pytest.mark.parametrize("name", ERRORS)
def test_errors(name: str) -> None:
    make, message = ERRORS[name]
    with pytest.raises(ShapeError, match=message):
        make()
