"""Padding, resampling, gates, instance norms, RNNs, transformers and `Module`: torch's checkpoints load, and give the
same outputs and gradients; and by hand where torch is missing."""
# Mistakes are made on purpose.
# mypy: disable-error-code="arg-type,misc"
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from conftest import needs_torch
from support.beside_torch import normal

from minigrad import Tensor, config, dtypes, jit, manual_seed, nn
from minigrad.errors import MinigradError
from minigrad.nn.state import get_state_dict, load_state_dict

try:
    import torch
except ImportError:
    torch = None


pytestmark = pytest.mark.usefixtures("on_numpy")


IMAGE, SIGNAL, VOLUME = (2, 4, 6, 5), (2, 4, 7), (1, 4, 3, 4, 5)
LAYERS: dict[str, tuple[Callable[[Any], Any], tuple[int, ...]]] = {
    "zeros": (lambda n: n.ZeroPad2d((1, 0, 2, -1)), IMAGE), "zeros 1d": (lambda n: n.ZeroPad1d(2), SIGNAL),
    "constant": (lambda n: n.ConstantPad3d(1, 2.5), VOLUME),
    "constant 1d": (lambda n: n.ConstantPad1d((1, 2), -1), SIGNAL),
    "mirrored": (lambda n: n.ReflectionPad2d((1, 2, 3, 0)), IMAGE), "edges": (lambda n: n.ReplicationPad3d(1), VOLUME),
    "mirrored 1d": (lambda n: n.ReflectionPad1d(2), SIGNAL), "around": (lambda n: n.CircularPad2d((1, 2, 0, 3)), IMAGE),
    "upsample": (lambda n: n.Upsample(scale_factor=2), IMAGE),
    "corners": (lambda n: n.UpsamplingBilinear2d((9, 4)), IMAGE),
    "upsample 1d": (lambda n: n.Upsample(9, mode="linear"), SIGNAL),
    "shuffle": (lambda n: n.PixelShuffle(2), IMAGE), "unshuffle": (lambda n: n.PixelUnshuffle(1), IMAGE),
    "channels": (lambda n: n.ChannelShuffle(2), IMAGE), "columns": (lambda n: n.Unfold((2, 3), padding=1), IMAGE),
    "from columns": (lambda n: n.Fold((3, 4), (2, 2)), (2, 8, 6)),
    "selu": (lambda n: n.SELU(), IMAGE), "celu": (lambda n: n.CELU(0.8), IMAGE), "prelu": (lambda n: n.PReLU(), IMAGE),
    "prelu by channel": (lambda n: n.PReLU(4, 0.1), IMAGE), "glu": (lambda n: n.GLU(1), IMAGE),
    "hardtanh": (lambda n: n.Hardtanh(-0.5, 0.7), IMAGE), "hardsigmoid": (lambda n: n.Hardsigmoid(), IMAGE),
    "hardshrink": (lambda n: n.Hardshrink(0.4), IMAGE), "softshrink": (lambda n: n.Softshrink(0.4), IMAGE),
    "tanhshrink": (lambda n: n.Tanhshrink(), IMAGE), "softsign": (lambda n: n.Softsign(), IMAGE),
    "logsigmoid": (lambda n: n.LogSigmoid(), IMAGE), "threshold": (lambda n: n.Threshold(0.1, -2), IMAGE),
    "softmin": (lambda n: n.Softmin(1), IMAGE), "softmax 2d": (lambda n: n.Softmax2d(), IMAGE),
    "instance norm": (lambda n: n.InstanceNorm2d(4), IMAGE),
    "instance norm affine": (lambda n: n.InstanceNorm1d(4, affine=True), SIGNAL),
    "instance norm tracked": (lambda n: n.InstanceNorm2d(4, affine=True, track_running_stats=True), IMAGE),
    "local response": (lambda n: n.LocalResponseNorm(3, alpha=0.5), IMAGE),
    "local response of 2": (lambda n: n.LocalResponseNorm(2, 0.3, 0.6, 2.0), SIGNAL),
    "transposed 3d": (lambda n: n.ConvTranspose3d(4, 2, 3, 2, 1), VOLUME),
    "encoder layer": (lambda n: n.TransformerEncoderLayer(8, 2, 16, 0.0), (5, 3, 8)),
    "encoder": (lambda n: n.TransformerEncoder(n.TransformerEncoderLayer(8, 2, 16, 0.0, "gelu", batch_first=True), 2,
                                               n.LayerNorm(8)), (3, 5, 8)),
}


def compare(ours: Any, theirs: Any, *shapes: tuple[int, ...], options: Any = None, training: bool = False) -> None:
    """Torch's weights in both, and then outputs and gradients of inputs and weights."""
    load_state_dict(ours, {name: Tensor(value.numpy()) for name, value in theirs.state_dict().items()})
    theirs.train(training)
    arrays = [normal(*s, seed=i) for i, s in enumerate(shapes)]
    a, b = [Tensor(v, requires_grad=True) for v in arrays], [torch.tensor(v, requires_grad=True) for v in arrays]
    given = options or {}
    with Tensor.train(training):
        got, expected = (f(*v, **{n: k(o) if isinstance(o, np.ndarray) else o for n, o in given.items()})
                         for f, v, k in ((ours, a, Tensor), (theirs, b, torch.tensor)))
    got, expected = (y[0] if isinstance(y, tuple) else y for y in (got, expected))
    np.testing.assert_allclose(got.numpy(), expected.detach().numpy(), rtol=1e-4, atol=2e-5)
    seed = normal(*expected.shape, seed=7)
    (got * Tensor(seed)).sum().backward()
    (expected * torch.tensor(seed)).sum().backward()
    state = get_state_dict(ours)
    pairs = [(x, y) for x, y in zip(a, b, strict=True)] + [(state[n], p) for n, p in theirs.named_parameters()]
    for x, y in pairs:
        assert x.grad is not None
        np.testing.assert_allclose(x.grad.numpy(), y.grad.numpy(), rtol=1e-3, atol=1e-4)
    for name, value in theirs.state_dict().items():
        np.testing.assert_allclose(state[name].numpy(), value.numpy(), rtol=1e-5, atol=1e-6, err_msg=name)


@needs_torch
@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
@pytest.mark.parametrize("name", LAYERS)
def test_as_torch(name: str) -> None:
    make, shape = LAYERS[name]
    torch.manual_seed(0)
    compare(make(nn), make(torch.nn), shape)


@needs_torch
def test_statistics_of_instances_move_while_training() -> None:
    compare(nn.InstanceNorm2d(4, track_running_stats=True), torch.nn.InstanceNorm2d(4, track_running_stats=True), IMAGE,
            training=True)


@needs_torch
@pytest.mark.parametrize("options", [{}, {"nonlinearity": "relu", "num_layers": 2, "bidirectional": True}], ids=str)
def test_simple_recurrence(options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    compare(nn.RNN(3, 4, **options), torch.nn.RNN(3, 4, **options), (5, 2, 3))
    compare(nn.RNNCell(3, 4), torch.nn.RNNCell(3, 4), (2, 3), (2, 4))


@needs_torch
@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
@pytest.mark.parametrize("norm_first", [False, True])
def test_decoders_and_whole_transformers(norm_first: bool) -> None:
    torch.manual_seed(0)
    layers = [n.TransformerDecoderLayer(8, 2, 16, 0.0, norm_first=norm_first) for n in (nn, torch.nn)]
    mask = np.triu(np.full((4, 4), -np.inf, np.float32), 1)
    np.testing.assert_array_equal(nn.Transformer.generate_square_subsequent_mask(4).numpy(), mask)
    padding = np.zeros((3, 5), bool)
    padding[1, 3:] = True
    compare(*layers, (4, 3, 8), (5, 3, 8), options={"tgt_mask": mask, "memory_key_padding_mask": padding})
    if norm_first:
        return
    whole = [n.Transformer(8, 2, 1, 1, 16, 0.0, batch_first=True) for n in (nn, torch.nn)]
    compare(*whole, (3, 5, 8), (3, 4, 8), options={"tgt_mask": mask})
    masks = [None, mask < 0, None, padding, padding[:, :4], padding]
    src, tgt = normal(3, 5, 8), normal(3, 4, 8)
    got = whole[0](Tensor(src), Tensor(tgt), *[None if m is None else Tensor(m) for m in masks])
    want = whole[1](torch.tensor(src), torch.tensor(tgt), *[None if m is None else torch.tensor(m) for m in masks])
    np.testing.assert_allclose(got.numpy(), want.detach().numpy(), rtol=1e-4, atol=1e-5)
    widest = whole[0].encoder.layers[0].linear1.weight.abs().max().item()
    assert widest <= (6 / 24) ** 0.5  # matrices start by xavier_uniform_


@needs_torch
def test_pairs_and_padding_index() -> None:
    torch.manual_seed(0)
    compare(nn.Bilinear(3, 4, 5), torch.nn.Bilinear(3, 4, 5), (2, 6, 3), (2, 6, 4))
    compare(nn.CosineSimilarity(-1), torch.nn.CosineSimilarity(-1), (3, 4), (3, 4))
    compare(nn.PairwiseDistance(1), torch.nn.PairwiseDistance(1), (3, 4), (3, 4))
    ours, theirs = nn.Embedding(5, 3, padding_idx=-2), torch.nn.Embedding(5, 3, padding_idx=-2)
    assert ours.weight.numpy()[3].tolist() == [0, 0, 0] and ours.weight.requires_grad
    load_state_dict(ours, {"weight": Tensor(theirs.weight.detach().numpy())})
    index = np.array([[0, 3, 3], [1, 0, 4]])
    (ours(Tensor(index)) ** 2 + ours(Tensor(index))).sum().backward()
    (theirs(torch.tensor(index)) ** 2 + theirs(torch.tensor(index))).sum().backward()
    assert ours.weight.grad is not None and theirs.weight.grad is not None
    np.testing.assert_allclose(ours.weight.grad.numpy(), theirs.weight.grad.numpy(), rtol=1e-6)


def test_by_hand() -> None:
    x = Tensor([[[1.0, 2.0, 3.0]]])
    assert nn.ReflectionPad1d(2)(x).tolist() == [[[3, 2, 1, 2, 3, 2, 1]]]
    assert nn.CircularPad1d(1)(x).tolist() == [[[3, 1, 2, 3, 1]]] and nn.ConstantPad1d(1, 9)(x).tolist()[0][0][0] == 9
    assert nn.Upsample(scale_factor=2)(x).tolist() == [[[1, 1, 2, 2, 3, 3]]]
    np.testing.assert_allclose(nn.InstanceNorm1d(1)(x).numpy()[0, 0], [-1.224745, 0, 1.224745], atol=1e-4)
    assert nn.PReLU()(Tensor([[-4.0, 4.0]])).tolist() == [[-1, 4]]
    with Tensor.train():
        planes = nn.Dropout2d(0.5)(Tensor.ones(40, 5, 2, 3)).numpy().reshape(200, 6)
    assert set(np.unique(planes)) == {0, 2} and (planes.min(1) == planes.max(1)).all()
    cell = nn.RNNCell(2, 3)
    assert cell(Tensor.ones(4, 2)).shape == (4, 3) and cell(Tensor.ones(2)).shape == (3,)
    assert nn.TransformerEncoderLayer(4, 2)(Tensor.ones(3, 4)).shape == (3, 4)


class Net(nn.Module):
    """A model as it is written for PyTorch."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU())
        self.blocks = nn.ModuleList([nn.Linear(6, 6) for _ in range(2)])
        self.drop = nn.Dropout(0.5)
        self.head = Head()
        self.scale = nn.Parameter(Tensor([1.0]))
        self.shift: Tensor
        self.scratch: Tensor
        self.register_buffer("shift", Tensor([0.5]))
        self.register_buffer("scratch", Tensor([7.0]), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        x = self.features(x)
        for block in self.blocks:
            x = block(x).relu()
        return self.head(self.drop(x)) * self.scale + self.shift


class Head(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x)


def test_a_module_as_in_torch() -> None:
    manual_seed(0)  # dropout may leave the same elements twice
    model = Net()
    names = [n for n, _ in model.named_parameters()]
    assert names[:2] == ["features.0.weight", "features.0.bias"] and "head.linear.bias" in names and "scale" in names
    assert [n for n, _ in model.named_buffers()] == ["features.1.running_mean", "features.1.running_var",
                                                     "features.1.num_batches_tracked", "shift",
                                                     "scratch"]
    assert "scratch" not in model.state_dict() and model.scratch.item() == 7
    x = Tensor(normal(8, 4))
    assert model.training and not np.array_equal(model(x).numpy(), model(x).numpy())  # dropout
    model.eval()
    assert not model.training and not model.head.training
    np.testing.assert_array_equal(model(x).numpy(), model(x).numpy())
    with Tensor.train():
        np.testing.assert_array_equal(model(x).numpy(), model(x).numpy())
    model.train().head.eval()
    assert model.training and not model.head.training
    other = Net().eval()
    other.load_state_dict(model.eval().state_dict())
    np.testing.assert_array_equal(other(x).numpy(), model(x).numpy())
    assert "(head): Head(" in repr(model)
    assert [name for name, _ in model.named_children()] == ["features", "blocks", "drop", "head"]


def test_a_module_is_initialised_moved_and_trained() -> None:
    model = Net()

    def fill(layer: Any) -> None:
        if isinstance(layer, nn.Linear):
            with Tensor.no_grad():
                layer.weight.fill_(0.25)
                assert layer.bias is not None
                layer.bias.zero_()

    model.apply(fill)
    assert model.head.linear.weight.numpy().min() == 0.25 == model.blocks[1].weight.numpy().max()
    model.half()
    assert model.scale.dtype is dtypes.float16 and model.scale.requires_grad
    assert model.features[1].num_batches_tracked.dtype is dtypes.int64
    model.float().requires_grad_(False)
    assert not any(p.requires_grad for p in model.parameters())
    model.requires_grad_()
    optimizer = nn.optim.SGD(model.parameters(), lr=0.1)
    x, y = Tensor(normal(16, 4)), Tensor(normal(16, 2, seed=1))
    losses = []
    for _ in range(12):
        model.zero_grad()
        loss = nn.MSELoss()(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] and model.features[1].num_batches_tracked.item() == 12


def test_parts_of_a_module_by_their_paths() -> None:
    model = Net()
    assert model.get_submodule("blocks.1") is model.blocks[1] and model.get_submodule("") is model
    assert model.get_parameter("head.linear.weight") is model.head.linear.weight
    assert model.get_buffer("features.1.running_mean") is model.features[1].running_mean
    for path in ("blocks.2", "scale", "nothing"):
        with pytest.raises(MinigradError, match="expected a path to a part of Net"):
            model.get_submodule(path)
    with pytest.raises(MinigradError, match=r"\[get_parameter\] expected a path to a Tensor of Net, got 'head'"):
        model.get_parameter("head")
    assert model.double().scale.dtype is dtypes.float64 and model.bfloat16().scale.dtype is dtypes.bfloat16
    assert model.cpu().scale.device == "CPU"


def test_a_module_inside_jit() -> None:
    with config(device="CPU"):
        model = Net().eval()
        run = jit(lambda x: model(x))
        for seed in range(4):
            x = Tensor(normal(3, 4, seed=seed)).realize()
            np.testing.assert_allclose(run(x).numpy(), model(x).numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("run, message", [
    (lambda: nn.ZeroPad2d((1, 2)), "[ZeroPad2d] expected one integer or 4 of them, got (1, 2)"),
    (lambda: nn.Upsample(), "[Upsample] expected size or scale_factor, got None and None"),
    (lambda: nn.Embedding(3, 2, 3), "[Embedding] expected a padding_idx in -3..2, got 3"),
    (lambda: nn.InstanceNorm1d(3)(Tensor.ones(2, 4, 5)), "[InstanceNorm1d] expected [N, 3, L], got [2, 4, 5]"),
    (lambda: nn.Dropout2d()(Tensor.ones(4)), "[dropout2d] expected [N, C, ...] with 2 further axes, or [C, ...], got "),
    (lambda: nn.RNN(2, 3, nonlinearity="sin"), "[RNN] expected nonlinearity 'tanh' or 'relu', got 'sin'"),
    (lambda: nn.Bilinear(2, 3, 4)(Tensor.ones(2, 2), Tensor.ones(2, 2)), "[Bilinear] expected [..., 2] and [..., 3]"),
    (lambda: nn.TransformerEncoderLayer(4, 2, activation="swish"), "expected activation 'relu', 'gelu' or a function"),
    (lambda: nn.Module()(1), "[Module] expected a method forward"),
    (lambda: nn.Parameter(Tensor([1])), "[Parameter] expected a float tensor, got int32"),
    (lambda: Tensor([1.0], requires_grad=True).to_(dtypes.int32), "[to_] expected a float type for a leaf"),
])
def test_mistakes(run: Callable[[], object], message: str) -> None:
    with pytest.raises(MinigradError) as caught:
        run()
    assert message in str(caught.value)
