"""Which shapes layers and indexing take: as many axes as PyTorch does, and errors that name what was expected."""
# mypy: disable-error-code="arg-type,union-attr"
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from conftest import needs_torch

from minigrad import Tensor, config, jit, nn
from minigrad.errors import ShapeError

try:
    import torch
except ImportError:
    torch = None


def numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32)


def layer(kind: str, *args: Any, **options: Any) -> Callable[[Any], Any]:
    """What makes that layer of a module, ours or torch's."""
    return lambda m: getattr(m, kind)(*args, **options)


LAYERS: dict[str, Callable[[Any], Any]] = {
    **{f"{kind}{n}d": layer(f"{kind}{n}d", 3, affine=True)
       for kind in ("BatchNorm", "InstanceNorm") for n in (1, 2, 3)},
    **{f"{kind}{n}d": layer(f"{kind}{n}d", 3, 2, 2) for kind in ("Conv", "ConvTranspose") for n in (1, 2, 3)},
}


@needs_torch
@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("shape", [(3,), (2, 3), (3, 4), (2, 3, 4), (3, 4, 4), (2, 3, 4, 4), (3, 4, 4, 4),
                                   (2, 3, 4, 4, 4), (2, 3, 4, 4, 4, 4)])
def test_the_same_shapes_as_torch(name: str, shape: tuple[int, ...]) -> None:
    with config(device="NUMPY"):
        ours, theirs = LAYERS[name](nn), LAYERS[name](torch.nn)
        nn.state.load_state_dict(ours, {k: v.numpy() for k, v in theirs.state_dict().items()})
        x = numbers(*shape)
        try:
            expected = theirs(torch.tensor(x)).detach().numpy()
        except (RuntimeError, ValueError):
            with pytest.raises(ShapeError) as caught, Tensor.train():
                ours(Tensor(x))
            assert str(caught.value).startswith(f"[{name}] expected ") and str(list(shape)) in str(caught.value)
            return
        with Tensor.train():
            np.testing.assert_allclose(ours(Tensor(x)).numpy(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("run, message", [
    (lambda x: nn.BatchNorm2d(3)(x), "[BatchNorm2d] expected [N, 3, H, W], got [2, 3]"),
    (lambda x: nn.BatchNorm1d(4)(x), "[BatchNorm1d] expected [N, 4] or [N, 4, L], got [2, 3]"),
    (lambda x: nn.BatchNorm(4)(x), "[BatchNorm] expected [N, 4, ...], got [2, 3]"),
    (lambda x: nn.InstanceNorm(3)(x), "[InstanceNorm] expected [N, 3, ...] with positions, got [2, 3]"),
    (lambda x: nn.InstanceNorm3d(3)(x), "[InstanceNorm3d] expected [N, 3, D, H, W], got [2, 3]"),
    (lambda x: nn.ConvTranspose1d(2, 1, 2)(x, [4, 4, 4]),
     "[ConvTranspose1d] expected an output_size of the last 1 axes or of all 2, got [4, 4, 4] for [2, 3]"),
    (lambda x: nn.ConvTranspose2d(2, 1, 2)(x.reshape(2, 3, 1), [4]), "the last 2 axes or of all 3, got [4]"),
    (lambda x: nn.ConvTranspose2d(2, 1, 2)(x.reshape(2, 3, 1), [1, 2, 4, 2]), "or of all 3, got [1, 2, 4, 2]"),
    (lambda x: nn.ConvTranspose1d(2, 1, 2)(x, [5]), "expected an output_size from [4] to [4], got [5]"),
    (lambda x: x.max_unpool2d(x.int(), (2,), output_size=(2, 2, 6)),
     "[max_unpool2d] expected an output_size of the last 1 axes or of all 2, less than a stride of [2] from [6], got "
     "[2, 2, 6]"),
    (lambda x: x.max_unpool2d(x.int(), (2,), output_size=(4,)), "less than a stride of [2] from [6], got [4]"),
    (lambda x: x.max_unpool2d(x.int(), (2, 2), output_size=(4,)), "of the last 2 axes or of all 2"),
    (lambda x: x.sum().index_select(0, Tensor([0, 0])),
     "[index_select] expected one index for a tensor without axes, got [2]"),
    (lambda x: x.index_select(0, Tensor([[0]])), "[index_select] expected an index of one axis, got [1, 1]"),
    (lambda x: x.sum().gather(1, Tensor(0)), "[gather] expected an axis in -1..0, got 1"),
    (lambda x: x.gather(0, Tensor(0)), "[gather] expected an index of rank 2"),
])
def test_mistakes(run: Callable[[Tensor], object], message: str) -> None:
    with config(device="NUMPY"), pytest.raises(ShapeError) as caught:
        run(Tensor.ones(2, 3))
    assert message in str(caught.value)


@needs_torch
def test_sizes_of_outputs() -> None:
    """Of the last axes, or of all."""
    x = numbers(2, 3, 5)
    with config(device="NUMPY"):
        ours, theirs = nn.ConvTranspose1d(3, 4, 3, stride=3), torch.nn.ConvTranspose1d(3, 4, 3, stride=3)
        nn.state.load_state_dict(ours, {k: v.numpy() for k, v in theirs.state_dict().items()})
        for size in ([15], [17], [2, 4, 16]):
            np.testing.assert_allclose(ours(Tensor(x), size).numpy(),
                                       theirs(torch.tensor(x), size).detach().numpy(), rtol=1e-4, atol=1e-5)
        y, places = nn.MaxPool1d(2, return_indices=True)(Tensor(x))
        v, where = torch.nn.MaxPool1d(2, return_indices=True)(torch.tensor(x))
        for sizes in ((5,), (2, 3, 5), (4,), None):
            np.testing.assert_array_equal(nn.MaxUnpool1d(2)(y, places, sizes).numpy(),
                                          torch.nn.MaxUnpool1d(2)(v, where, sizes).numpy())


ROWS: list[Callable[[Any, Any, Any], Any]] = [
    # of a number x, a function that makes indices, and a vector
    lambda x, i, v: x.gather(0, i(0)), lambda x, i, v: x.gather(-1, i([0, 0])), lambda x, i, v: v.gather(0, i(1)),
    lambda x, i, v: x.index_select(0, i(0)), lambda x, i, v: x.index_select(0, i([0])),
    lambda x, i, v: v.index_select(0, i(1)), lambda x, i, v: v.reshape(1, 3).index_select(1, i(1)),
    lambda x, i, v: x.scatter(0, i(0), x * 2), lambda x, i, v: x.scatter(0, i(0), 7.0),
    lambda x, i, v: x.scatter_add(0, i(0), x), lambda x, i, v: x.scatter_add(0, i([0, 0]), v[:2]),
    lambda x, i, v: x.scatter_reduce(0, i(0), x, "sum"), lambda x, i, v: v.scatter(0, i(1), x),
    lambda x, i, v: x.index_add(0, i(0), x), lambda x, i, v: x.index_add(0, i([0]), x),
    lambda x, i, v: x.index_copy(0, i(0), x * 3), lambda x, i, v: x.index_fill(0, i(0), 3.0),
    lambda x, i, v: v.index_copy(0, i(1), x), lambda x, i, v: v.index_fill(0, i(1), 3.0),
    lambda x, i, v: x.unfold(0, 1, 1), lambda x, i, v: x.quantile(0.5, dim=0),
]


@needs_torch
@pytest.mark.parametrize("k", range(len(ROWS)))
def test_numbers_are_vectors_of_one_element(k: int) -> None:
    """With gradients, also inside `jit`."""
    for device in ("NUMPY", "CPU"):
        with config(device=device):
            def run(x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
                y = ROWS[k](x, Tensor, v)
                return y, (y * y).sum().gradient(x, materialize_grads=True)[0]

            t = torch.tensor(5.0, requires_grad=True)
            expected = ROWS[k](t, torch.tensor, torch.arange(3.0))
            of_t = torch.autograd.grad((expected * expected).sum(), t, materialize_grads=True)[0] if (
                expected.requires_grad) else torch.zeros(())
            captured = jit(run)
            for _ in range(3):
                for f in [run] if device == "NUMPY" else [run, captured]:
                    y, g = f(Tensor(5.0, requires_grad=True), Tensor([0.0, 1.0, 2.0]))
                    assert y.shape == tuple(expected.shape) and g.shape == ()
                    np.testing.assert_allclose(y.numpy(), expected.detach().numpy())
                    np.testing.assert_allclose(g.numpy(), of_t.numpy())
