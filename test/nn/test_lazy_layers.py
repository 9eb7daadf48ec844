"""Layers without their first argument, buffers, norms of gradients, exponentials of matrices, fractional pooling and
functions in place: as torch does them."""
# mypy: disable-error-code="arg-type,union-attr,misc,call-overload,index,operator"
from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from conftest import needs_torch
from support.beside_torch import normal

from minigrad import Tensor, config, jit, nn
from minigrad.errors import MinigradError, ShapeError
from minigrad.nn import functional as F

try:
    import torch
except ImportError:
    torch = None


pytestmark = pytest.mark.usefixtures("on_numpy")


LAZY: dict[str, tuple[Callable[[Any], Any], tuple[int, ...]]] = {
    "LazyLinear": (lambda n: n.LazyLinear(5, bias=False), (2, 7)),
    "LazyConv1d": (lambda n: n.LazyConv1d(4, 3, padding=1), (2, 3, 6)),
    "LazyConv2d": (lambda n: n.LazyConv2d(6, 3, groups=3, stride=2), (2, 3, 6, 6)),
    "LazyConv3d": (lambda n: n.LazyConv3d(2, 2), (2, 3, 3, 3, 3)),
    "LazyConv2d of one image": (lambda n: n.LazyConv2d(4, 2), (3, 4, 5)),
    "LazyConvTranspose1d": (lambda n: n.LazyConvTranspose1d(4, 3, stride=2), (2, 3, 6)),
    "LazyConvTranspose2d": (lambda n: n.LazyConvTranspose2d(4, 2), (2, 3, 3, 3)),
    "LazyConvTranspose3d": (lambda n: n.LazyConvTranspose3d(4, 2), (2, 3, 2, 2, 2)),
    "LazyBatchNorm1d": (lambda n: n.LazyBatchNorm1d(eps=1e-3), (5, 3)),
    "LazyBatchNorm2d": (lambda n: n.LazyBatchNorm2d(), (2, 3, 4, 4)),
    "LazyBatchNorm3d": (lambda n: n.LazyBatchNorm3d(momentum=None), (2, 3, 2, 2, 2)),
    "LazyInstanceNorm1d": (lambda n: n.LazyInstanceNorm1d(affine=True), (2, 3, 5)),
    "LazyInstanceNorm2d": (lambda n: n.LazyInstanceNorm2d(), (2, 3, 4, 4)),
    "LazyInstanceNorm3d": (lambda n: n.LazyInstanceNorm3d(), (2, 3, 2, 2, 2)),
}


@needs_torch
@pytest.mark.filterwarnings("ignore:Lazy modules")
@pytest.mark.parametrize("name", LAZY)
def test_lazy_layers(name: str) -> None:
    make, shape = LAZY[name]
    x = normal(*shape)
    ours, theirs = make(nn), make(torch.nn)
    assert isinstance(ours, getattr(nn, name.split()[0].removeprefix("Lazy")))
    seen: list[Any] = []
    ours.register_forward_hook(lambda m, args, out: seen.append(type(m)))
    model = nn.Sequential(ours).train()
    with pytest.raises(MinigradError, match="has none before its first call: call the model once"):
        nn.state.get_parameters(model)
    model(Tensor(x))
    theirs(torch.tensor(x))
    plain = getattr(nn, name.split()[0].removeprefix("Lazy"))
    assert type(ours) is plain and seen == [plain] and ours.training is True
    if name.startswith("LazyBatch"):
        assert ours.num_batches_tracked.item() == 1
    assert {k: tuple(v.shape) for k, v in ours.state_dict().items()} == {
        k: tuple(v.shape) for k, v in theirs.state_dict().items()}
    ours.load_state_dict({k: v.numpy() for k, v in theirs.state_dict().items()})
    np.testing.assert_allclose(ours(Tensor(x)).numpy(), theirs(torch.tensor(x)).detach().numpy(), rtol=1e-4, atol=1e-5)


def test_lazy_layers_inside_jit() -> None:
    """A dry run first, as in PyTorch; then training."""
    with config(device="CPU"):
        model = nn.Sequential(nn.LazyConv2d(4, 3), nn.LazyBatchNorm2d(), nn.Flatten(), nn.LazyLinear(2))
        x = Tensor(normal(3, 2, 5, 5))
        model(x)
        optimizer = nn.optim.SGD(nn.state.get_parameters(model), lr=0.01)

        @jit
        def step(x: Tensor) -> Tensor:
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss

        losses = [step(x).item() for _ in range(5)]
        assert losses[-1] < losses[0]


def test_mistakes_of_lazy_layers() -> None:
    with pytest.raises(TypeError, match="missing a required argument: 'out_features'"):
        nn.LazyLinear()
    with pytest.raises(TypeError, match="unexpected keyword argument 'kernel'"):
        nn.LazyConv2d(3, 3, kernel=3)
    with pytest.raises(ShapeError, match=r"\[LazyConv2d\] expected an input with an axis -3 of channels, got \[2, 3\]"):
        nn.LazyConv2d(3, 3)(Tensor.ones(2, 3))


@needs_torch
def test_buffers() -> None:
    def model(m: Any, tensor: Any) -> Any:
        class Model(m.Module):
            def __init__(self) -> None:
                super().__init__()
                self.mask = m.Buffer(tensor(np.ones(3, np.float32)))
                self.seen = m.Buffer(tensor(np.zeros(2, np.float32)), persistent=False)
                self.register_buffer("steps", tensor(np.zeros(1, np.float32)), persistent=False)
                self.inner = m.Linear(3, 2)
                self.scale = m.Parameter(tensor(np.ones(2, np.float32)))
                self.inner.table = m.Buffer(tensor(np.ones(1, np.float32)))

        return Model()

    ours, theirs = model(nn, Tensor), model(torch.nn, torch.tensor)
    asked: list[Callable[[Any], Any]] = [
        lambda m: m.named_buffers(), lambda m: m.named_buffers("a"), lambda m: m.named_buffers(recurse=False),
        lambda m: m.named_parameters(), lambda m: m.named_parameters("a.b"),
        lambda m: m.named_parameters(recurse=False), lambda m: m.state_dict().items(),
        lambda m: m.state_dict(prefix="net.").items(), lambda m: m.inner.named_buffers()]
    for ask in asked:
        assert {n: tuple(t.shape) for n, t in ask(ours)} == {n: tuple(t.shape) for n, t in ask(theirs)}
    assert len([*ours.buffers()]) == 4 and len([*ours.buffers(recurse=False)]) == 3
    assert len([*ours.parameters(recurse=False)]) == 1
    ours.half()
    assert ours.seen.dtype.name == ours.mask.dtype.name == "float16" and not ours.mask.requires_grad
    ours.load_state_dict({k: v for k, v in ours.state_dict().items()})


@needs_torch
def test_norms_of_gradients() -> None:
    a, b = normal(3, 4), normal(5, seed=1)
    for p in (2.0, 1.0, 3.0, math.inf):
        np.testing.assert_allclose(nn.utils.get_total_norm([Tensor(a), Tensor(b)], p).numpy(),
                                   torch.nn.utils.get_total_norm([torch.tensor(a), torch.tensor(b)], p).numpy(),
                                   rtol=1e-6)
    found = []
    for make, m in ((Tensor, nn), (torch.tensor, torch.nn)):
        x, y = make(a, requires_grad=True), make(b, requires_grad=True)
        (x * x).sum().backward()
        m.utils.clip_grads_with_norm_([x, y], 0.5, m.utils.get_total_norm([x.grad]))
        found.append(x.grad.numpy())
        assert y.grad is None
    np.testing.assert_allclose(found[0], found[1], rtol=1e-5)
    many = [normal(40 + 17 * k, seed=k) for k in range(12)]  # sums of unlike lengths in one kernel
    np.testing.assert_allclose(nn.utils.get_total_norm([Tensor(v, device="CPU") for v in many]).item(),
                               math.sqrt(sum(float((v.astype(np.float64) ** 2).sum()) for v in many)), rtol=1e-6)
    assert nn.utils.get_total_norm([]).item() == 0
    x = Tensor([1.0, math.inf], requires_grad=True)
    (x * x).sum().backward()
    for run in (lambda: nn.utils.clip_grad_norm_(x, 1.0, error_if_nonfinite=True),
                lambda: nn.utils.get_total_norm(x.grad, error_if_nonfinite=True)):
        with pytest.raises(MinigradError, match="expected a finite norm, got inf"):
            run()
    with pytest.raises(MinigradError, match=r"\[get_total_norm\] expected a norm_type above 0, got 0"):
        nn.utils.get_total_norm([x], 0)


@needs_torch
@pytest.mark.parametrize("device", ["NUMPY", "CPU"])
@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_exponentials_of_matrices(kind: Any, device: str) -> None:
    with config(device=device):
        for scale, shape in [(0.0, (3, 3)), (0.1, (4, 4)), (1.0, (2, 5, 5)), (4.0, (3, 3)), (1.0, (1, 1)),
                             (1.0, (0, 0)), (1.0, (0, 2, 2))]:
            a = (normal(*shape) * scale).astype(kind)
            x, t = Tensor(a, requires_grad=True), torch.tensor(a, requires_grad=True)
            y, expected = x.matrix_exp(), t.matrix_exp()
            rtol = 1e-12 if kind is np.float64 else 2e-5
            largest = max(float(expected.detach().abs().max()), 1.0) if a.size else 1.0
            np.testing.assert_allclose(y.numpy(), expected.detach().numpy(), atol=rtol * largest)
            if a.size and scale < 4:
                g = (y * y).sum().gradient(x)[0]
                of_t, = torch.autograd.grad((expected * expected).sum(), t)
                np.testing.assert_allclose(g.numpy(), of_t.numpy(), atol=rtol * 10 * max(float(of_t.abs().max()), 1.0))
        turn = Tensor(np.array([[0, 1000], [-1000, 0]], kind)).matrix_exp().numpy()
        np.testing.assert_allclose(turn, [[math.cos(1000), math.sin(1000)], [-math.sin(1000), math.cos(1000)]],
                                   atol=1e-3 if kind is np.float32 else 1e-11)
        run = jit(lambda x: x.matrix_exp())
        for k in range(4):
            x = Tensor(np.diag([k, -k, 0.5]).astype(kind))
            np.testing.assert_allclose(run(x).numpy(), np.diag(np.exp([k, -k, 0.5])), rtol=1e-5, atol=1e-6)
    with pytest.raises(ShapeError, match=r"\[matrix_exp\] expected square matrices, got \[2, 3\]"):
        Tensor.ones(2, 3).matrix_exp()


@needs_torch
@pytest.mark.parametrize("device", ["NUMPY", "CPU"])
def test_fractional_pooling(device: str) -> None:
    with config(device=device):
        for axes, shape, options in [
                (2, (2, 3, 7, 9), {"output_size": (3, 4)}), (2, (3, 8, 8), {"output_ratio": 0.6}),
                (2, (2, 3, 6, 5), {"output_size": (1, 3)}), (3, (2, 2, 6, 5, 7), {"output_size": (3, 2, 4)}),
                (3, (2, 5, 6, 5), {"output_ratio": (0.5, 0.4, 0.5)})]:
            x = normal(*shape)
            u = np.random.default_rng(1).random((shape[0] if len(shape) == axes + 2 else 1, shape[-axes - 1], axes),
                                                np.float32)
            name = f"FractionalMaxPool{axes}d"
            ours = getattr(nn, name)(2, return_indices=True, _random_samples=Tensor(u), **options)
            theirs = getattr(torch.nn, name)(2, return_indices=True, _random_samples=torch.tensor(u), **options)
            a, t = Tensor(x, requires_grad=True), torch.tensor(x, requires_grad=True)
            (y, where), (v, places) = ours(a), theirs(t)
            np.testing.assert_array_equal(y.numpy(), v.detach().numpy())
            np.testing.assert_array_equal(where.numpy(), places.numpy())
            (y * y).sum().backward()
            (v * v).sum().backward()
            np.testing.assert_allclose(a.grad.numpy(), t.grad.numpy(), rtol=1e-6)
            assert nn.state.get_parameters(ours) == []
        drawn = jit(lambda x: F.fractional_max_pool2d(x, 2, 5))
        image = Tensor(normal(1, 1, 16, 16))
        assert len({drawn(image).numpy().tobytes() for _ in range(8)}) > 1
    for run, message in [
            (lambda x: F.fractional_max_pool2d(x, 2), "expected either an output_size or an output_ratio, got None"),
            (lambda x: nn.FractionalMaxPool2d(2, 3, 0.5), "[FractionalMaxPool2d] expected either"),
            (lambda x: F.fractional_max_pool2d(x, 2, 4), "expected windows [2, 2] of which [4, 4] fit into [4, 4]"),
            (lambda x: F.fractional_max_pool2d(x, 2, output_ratio=1.5), "expected an output_ratio between 0 and 1"),
            (lambda x: F.fractional_max_pool3d(x[0, 0], 2, 2), "with 3 further axes, got [4, 4]"),
            (lambda x: F.fractional_max_pool2d(x, 2, 2, _random_samples=x), "expected random samples [1, 1, 2]")]:
        with pytest.raises(ShapeError) as caught:
            run(Tensor.ones(1, 1, 4, 4))
        assert message in str(caught.value)


@needs_torch
def test_functions_in_place() -> None:
    for name, arguments in [("relu_", ()), ("selu_", ()), ("elu_", (0.5,)), ("celu_", (0.7,)), ("leaky_relu_", (0.1,)),
                            ("hardtanh_", (-0.5, 0.25)), ("threshold_", (0.1, -3.0)), ("rrelu_", (0.2, 0.2))]:
        a, t = Tensor(normal(3, 4)), torch.tensor(normal(3, 4))
        result = getattr(F, name)(a, *arguments)
        getattr(torch.nn.functional, name)(t, *arguments)
        assert result is a and getattr(F, name).__name__ == name
        np.testing.assert_allclose(a.numpy(), t.numpy(), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("make", [lambda **o: nn.Linear(3, 4, **o), lambda **o: nn.Conv2d(2, 4, 3, **o),
                                  lambda **o: nn.Embedding(5, 4, padding_idx=1, **o),
                                  lambda **o: nn.LSTM(3, 4, 2, **o), lambda **o: nn.BatchNorm2d(3, **o)])
def test_layers_are_made_in_a_type_and_start_again(make: Any) -> None:
    layer = make(device="numpy", dtype="float64")
    before = {name: t.numpy().copy() for name, t in layer.state_dict().items()}
    assert all(t.dtype.name == "float64" and t.device == "NUMPY" and t.requires_grad for t in layer.parameters())
    for t in layer.parameters():
        t.data.add_(7.0)
    layer.reset_parameters()
    assert str(layer) == str(make())
    for name, t in layer.state_dict().items():
        found = t.numpy()
        assert found.dtype == before[name].dtype and np.abs(found).max() < 7 and (found == 0).any() == (
            before[name] == 0).any()


def test_layers_of_layers_start_again_each_for_itself() -> None:
    assert list(nn.Conv2d(1, 2, (3, 3)).children()) == []  # sizes are no layers
    with pytest.raises(MinigradError, match="expected a layer without others in it, got MultiheadAttention"):
        nn.MultiheadAttention(8, 2).reset_parameters()
    nn.GRU(2, 3).flatten_parameters()
    assert nn.LazyLinear(3, dtype="float64")(Tensor.ones(2, 5)).dtype.name == "float64"
