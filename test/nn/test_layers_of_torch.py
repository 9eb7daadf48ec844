"""Containers, activations, pooling, attention and recurrent layers: torch's checkpoints load, and give the same
outputs and gradients."""
# Mistakes are made on purpose.
# mypy: disable-error-code="arg-type,misc"
from __future__ import annotations

from collections import OrderedDict
from typing import Any

import numpy as np
import pytest
from conftest import devices
from support.beside_torch import normal
from support.nn import assert_close, check_layer

from minigrad import Tensor, config, nn, profile
from minigrad.errors import ShapeError
from minigrad.nn.state import get_state_dict, load_state_dict

torch = pytest.importorskip("torch", reason="torch is not installed: nothing to compare with")


PLAIN: dict[str, tuple[Any, tuple[int, ...]]] = {
    "relu": (lambda n: n.ReLU(), (3, 5)),
    "relu6": (lambda n: n.ReLU6(), (3, 5)),
    "leaky": (lambda n: n.LeakyReLU(0.2), (3, 5)),
    "elu": (lambda n: n.ELU(0.7), (3, 5)),
    "gelu": (lambda n: n.GELU(), (3, 5)),
    "gelu tanh": (lambda n: n.GELU("tanh"), (3, 5)),
    "silu": (lambda n: n.SiLU(), (3, 5)),
    "mish": (lambda n: n.Mish(), (3, 5)),
    "hardswish": (lambda n: n.Hardswish(), (3, 5)),
    "softplus": (lambda n: n.Softplus(2), (3, 5)),
    "sigmoid": (lambda n: n.Sigmoid(), (3, 5)),
    "tanh": (lambda n: n.Tanh(), (3, 5)),
    "softmax": (lambda n: n.Softmax(dim=0), (3, 5)),
    "log softmax": (lambda n: n.LogSoftmax(-1), (3, 5)),
    "flatten": (lambda n: n.Flatten(), (2, 3, 5)),
    "flatten all": (lambda n: n.Flatten(0), (2, 3, 5)),
    "unflatten": (lambda n: n.Unflatten(1, (2, 3)), (2, 6, 5)),
    "identity": (lambda n: n.Identity(3, unused=1), (2, 6)),
    "max pool": (lambda n: n.MaxPool2d(2), (2, 3, 7, 6)),
    "max pool padded": (lambda n: n.MaxPool2d((3, 2), (2, 1), (1, 0), dilation=(1, 2)), (1, 2, 7, 6)),
    "max pool 1d": (lambda n: n.MaxPool1d(3, 2, 1), (2, 3, 9)),
    "avg pool": (lambda n: n.AvgPool2d(3, 2, padding=1), (1, 2, 7, 6)),
    "avg pool inside": (lambda n: n.AvgPool2d(3, 2, padding=1, count_include_pad=False), (1, 2, 7, 6)),
    "avg pool 1d": (lambda n: n.AvgPool1d(4), (2, 3, 9)),
    "adaptive to one": (lambda n: n.AdaptiveAvgPool2d(1), (2, 3, 7, 5)),
    "adaptive dividing": (lambda n: n.AdaptiveAvgPool2d((2, 3)), (2, 3, 8, 9)),
    "adaptive overlapping": (lambda n: n.AdaptiveAvgPool2d((3, None)), (2, 3, 7, 5)),
    "adaptive growing": (lambda n: n.AdaptiveAvgPool2d(6), (1, 2, 4, 5)),
    "max pool 3d": (lambda n: n.MaxPool3d(2, padding=(0, 1, 1)), (1, 2, 4, 5, 6)),
    "max pool ceiled": (lambda n: n.MaxPool2d(3, 2, ceil_mode=True), (1, 2, 8, 7)),
    "max pool ceiled and padded": (lambda n: n.MaxPool2d((3, 2), (3, 2), 1, ceil_mode=True), (1, 2, 8, 7)),
    "avg pool 3d": (lambda n: n.AvgPool3d(2, 1, (0, 1, 0)), (1, 2, 4, 5, 6)),
    "avg pool ceiled": (lambda n: n.AvgPool2d(3, 2, ceil_mode=True), (1, 2, 8, 7)),
    "avg pool ceiled and padded": (lambda n: n.AvgPool2d((3, 2), (3, 2), 1, ceil_mode=True), (1, 2, 8, 7)),
    "avg pool ceiled inside": (lambda n: n.AvgPool1d(3, 2, 1, ceil_mode=True, count_include_pad=False), (1, 2, 8)),
    "adaptive 1d": (lambda n: n.AdaptiveAvgPool1d(3), (2, 3, 7)),
    "adaptive 3d": (lambda n: n.AdaptiveAvgPool3d((2, None, 3)), (1, 2, 4, 3, 7)),
    "adaptive max": (lambda n: n.AdaptiveMaxPool2d((3, 2)), (2, 3, 7, 6)),
    "adaptive max 1d": (lambda n: n.AdaptiveMaxPool1d(3), (2, 3, 7)),
    "sequential": (lambda n: n.Sequential(n.Conv1d(2, 3, 2), n.ReLU(), n.Flatten(), n.Linear(9, 4)), (2, 2, 4)),
    "named": (lambda n: n.Sequential(OrderedDict(first=n.Linear(4, 3), act=n.GELU(), last=n.Linear(3, 2))), (5, 4)),
    "nested": (lambda n: n.Sequential(n.Sequential(n.Linear(4, 3), n.Tanh()), n.Linear(3, 2)), (5, 4)),
    "batchnorm 1d": (lambda n: n.Sequential(n.Linear(4, 3), n.BatchNorm1d(3)), (5, 4)),
}


@pytest.mark.parametrize("name", PLAIN)
def test_layer(name: str) -> None:
    make, shape = PLAIN[name]
    torch.manual_seed(0)
    check_layer(make(nn), make(torch.nn), normal(*shape))


def test_sequential_is_a_list_of_layers() -> None:
    model = nn.Sequential(nn.Linear(2, 3), Tensor.relu).append(nn.Linear(3, 1))
    assert len(model) == 3 and list(model)[2] is model[-1]
    assert list(get_state_dict(model[1:])) == ["1.weight", "1.bias"] and len(model[:2]) == 2
    x = Tensor(normal(4, 2))
    np.testing.assert_array_equal(model(x).numpy(), x.sequential(list(model)).numpy())
    assert nn.Sequential()(x) is x


@pytest.mark.parametrize("device", devices())
def test_adaptive_means_do_not_mix_windows(device: str) -> None:
    x = normal(1, 1, 5, 4)
    x[0, 0, 0, 0], x[0, 0, 4, 3] = np.inf, np.nan
    got = Tensor(x, device=device).adaptive_avg_pool2d(3).numpy()
    expected = torch.nn.functional.adaptive_avg_pool2d(torch.tensor(x), 3).numpy()
    np.testing.assert_allclose(got, expected, rtol=1e-5)
    assert Tensor.zeros(2, 0, 5, 4, device=device).adaptive_avg_pool2d(2).shape == (2, 0, 2, 2)


@pytest.mark.parametrize("kind", ["avg", "max"])
@pytest.mark.parametrize("length, count", [(1, 1), (1, 4), (5, 7), (7, 5), (12, 8), (17, 16), (16, 17), (40, 3)])
def test_adaptive_windows_of_any_number(kind: str, length: int, count: int) -> None:
    """Lengths that the number of windows divides, that share a factor with it, or none."""
    x, weights = normal(2, 3, length), normal(2, 3, count, seed=1)
    ours, theirs = Tensor(x, device="NUMPY", requires_grad=True), torch.tensor(x, requires_grad=True)
    got, expected = (getattr(F, f"adaptive_{kind}_pool1d") for F in (nn.functional, torch.nn.functional))
    y, z = got(ours, count), expected(theirs, count)
    np.testing.assert_allclose(y.numpy(), z.detach().numpy(), rtol=1e-5, atol=1e-6)
    (y * Tensor(weights, device="NUMPY")).sum().backward()
    (z * torch.tensor(weights)).sum().backward()
    assert ours.grad is not None and theirs.grad is not None
    np.testing.assert_allclose(ours.grad.numpy(), theirs.grad.numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", ["avg", "max"])
def test_adaptive_windows_look_at_what_is_in_them(kind: str) -> None:
    """Their work grows with the number of elements, not with that times the number of windows."""
    x = Tensor(normal(2, 3, 331), device="CPU", requires_grad=True)
    with profile() as profiled, config(device="CPU"):
        y = getattr(nn.functional, f"adaptive_{kind}_pool1d")(x, 227)
        y.sum().backward()
        Tensor.realize(y, x.grad)
    assert sum(run.flops for run in profiled.runs) < 60 * (x.numel() + y.numel())
    with pytest.raises(ShapeError, match=r"adaptive_pool.* expected elements along axis 2"):
        getattr(nn.functional, f"adaptive_{kind}_pool1d")(Tensor.zeros(2, 3, 0), 4)
    assert getattr(nn.functional, f"adaptive_{kind}_pool1d")(x, 0).numpy().shape == (2, 3, 0)


ATTENTIONS: dict[str, dict[str, Any]] = {
    "self": {"same": True},
    "cross": {},
    "without bias": {"layer": {"bias": False}},
    "batch first": {"layer": {"batch_first": True}, "same": True},
    "bool mask": {"mask": "bool"},
    "added mask": {"mask": "float"},
    "mask by heads": {"mask": "heads"},
    "padding": {"padding": "bool"},
    "padding and mask": {"padding": "bool", "mask": "bool"},
    "by heads": {"call": {"average_attn_weights": False}},
    "unbatched": {"batched": False, "mask": "bool", "padding": "bool"},
}


@pytest.mark.parametrize("name", ATTENTIONS)
def test_multihead_attention(name: str) -> None:
    with config(device="NUMPY"):
        check_attention(ATTENTIONS[name])


def check_attention(case: dict[str, Any]) -> None:
    torch.manual_seed(0)
    options = case.get("layer", {})
    theirs = torch.nn.MultiheadAttention(8, 2, **options)
    for p in theirs.parameters():
        torch.nn.init.normal_(p)
    ours = nn.MultiheadAttention(8, 2, **options)
    assert set(get_state_dict(ours)) == set(theirs.state_dict())
    load_state_dict(ours, {n: Tensor(v.numpy()) for n, v in theirs.state_dict().items()})
    rng, batched = np.random.default_rng(3), case.get("batched", True)
    batch, rows, keys = 3, 5, 5 if case.get("same") else 7
    shapes = [(rows, batch, 8), (keys, batch, 8), (keys, batch, 8)]
    arrays = [normal(*(s if batched else (s[0], 8)), seed=i) for i, s in enumerate(shapes)]
    if options.get("batch_first"):
        arrays = [a.swapaxes(0, 1).copy() for a in arrays]
    arrays = arrays[:1] * 3 if case.get("same") else arrays
    masks: dict[str, np.ndarray] = {}
    kind = case.get("mask")
    if kind:
        out = rng.random((batch * 2, rows, keys) if kind == "heads" else (rows, keys)) < 0.3
        out[..., 0] = False
        masks["attn_mask"] = normal(rows, keys) if kind == "float" else out
    if "padding" in case:
        masks["key_padding_mask"] = np.arange(keys) >= np.array([[5], [7], [3]])
        if not batched:
            masks["key_padding_mask"] = masks["key_padding_mask"][0]
    ins, outs = [torch.tensor(a, requires_grad=True) for a in arrays], [Tensor(a, requires_grad=True) for a in arrays]
    ins, outs = (ins[:1] * 3, outs[:1] * 3) if case.get("same") else (ins, outs)
    call = case.get("call", {})
    yt, wt = theirs(*ins, **{k: torch.tensor(v) for k, v in masks.items()}, **call)
    yo, wo = ours(*outs, **{k: Tensor(v) for k, v in masks.items()}, **call)
    assert_close(yo.numpy(), yt, "output")
    assert wo is not None
    assert_close(wo.numpy(), wt, "weights")
    weight = normal(*yt.shape, seed=9)
    (yt * torch.tensor(weight)).sum().backward()
    (yo * Tensor(weight)).sum().backward()
    for i, (o, t) in enumerate(zip(outs, ins, strict=True)):
        assert o.grad is not None
        assert_close(o.grad.numpy(), t.grad, f"gradient of input {i}")
    state = get_state_dict(ours)
    for n, p in theirs.named_parameters():
        grad = state[n].grad
        assert grad is not None
        assert_close(grad.numpy(), p.grad, f"gradient of {n}")


def test_multihead_attention_is_causal_on_its_own() -> None:
    ours, x = nn.MultiheadAttention(4, 2, batch_first=True), Tensor(normal(2, 6, 4))
    out, weights = ours(x, x, x, is_causal=True, need_weights=False)
    mask = Tensor(np.triu(np.ones((6, 6), bool), 1))
    np.testing.assert_allclose(out.numpy(), ours(x, x, x, attn_mask=mask)[0].numpy(), rtol=1e-5, atol=1e-6)
    assert weights is None
    padding, added = Tensor([[False] * 4 + [True] * 2] * 2), Tensor(normal(6, 6))
    both = ours(x, x, x, key_padding_mask=padding, attn_mask=added)[0]
    numbers = padding.where(-np.inf, 0.0)
    np.testing.assert_array_equal(both.numpy(), ours(x, x, x, numbers, attn_mask=added)[0].numpy())


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("batch", [(), (3,)])
@pytest.mark.parametrize("name", ["LSTMCell", "GRUCell"])
def test_recurrent_cells_over_three_steps(name: str, batch: tuple[int, ...], bias: bool) -> None:
    with config(device="NUMPY"):
        check_cell(name, batch, bias)


def check_cell(name: str, batch: tuple[int, ...], bias: bool) -> None:
    torch.manual_seed(0)
    theirs, ours = getattr(torch.nn, name)(4, 6, bias=bias), getattr(nn, name)(4, 6, bias=bias)
    assert set(get_state_dict(ours)) == set(theirs.state_dict())
    load_state_dict(ours, {n: Tensor(v.numpy()) for n, v in theirs.state_dict().items()})
    xs = normal(3, *batch, 4)
    state, expected = None, None
    for x in xs:
        state, expected = ours(Tensor(x), state), theirs(torch.tensor(x), expected)
    assert state is not None and expected is not None
    pairs = list(zip(state, expected, strict=True)) if name == "LSTMCell" else [(state, expected)]
    for o, t in pairs:
        assert_close(o.numpy(), t, "state")
    pairs[0][0].square().sum().backward()
    pairs[0][1].square().sum().backward()
    named = get_state_dict(ours)
    for n, p in theirs.named_parameters():
        grad = named[n].grad
        assert grad is not None
        assert_close(grad.numpy(), p.grad, f"gradient of {n}")


OPTIONS = [{}, {"num_layers": 2, "bidirectional": True}, {"batch_first": True, "bias": False}]


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("batch", [(), (3,)])
@pytest.mark.parametrize("name", ["LSTM", "GRU"])
def test_recurrent_layers(name: str, batch: tuple[int, ...], options: dict[str, Any]) -> None:
    with config(device="NUMPY"):
        check_recurrent(name, batch, options)


def test_recurrent_layers_in_kernels() -> None:
    check_recurrent("LSTM", (3,), {})


def check_recurrent(name: str, batch: tuple[int, ...], options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    theirs, ours = getattr(torch.nn, name)(4, 5, **options), getattr(nn, name)(4, 5, **options)
    assert set(get_state_dict(ours)) == set(theirs.state_dict())
    load_state_dict(ours, {n: Tensor(v.numpy()) for n, v in theirs.state_dict().items()})
    x = normal(*batch, 6, 4) if "batch_first" in options else normal(6, *batch, 4)
    rows = 4 if "num_layers" in options else 1
    before = [normal(rows, *batch, 5, seed=i) for i in range(2 if name == "LSTM" else 1)]
    given = [tuple(map(make, before)) if name == "LSTM" else make(before[0]) for make in (Tensor, torch.tensor)]
    for states in ([None, None], given):
        (output, state), (wanted, expected) = ours(Tensor(x), states[0]), theirs(torch.tensor(x), states[1])
        pairs = list(zip(state, expected, strict=True)) if name == "LSTM" else [(state, expected)]
        for o, t in [(output, wanted), *pairs]:
            assert_close(o.numpy(), t, "output or state")
    (output.square().sum() + pairs[-1][0].sum()).backward()
    (wanted.square().sum() + pairs[-1][1].sum()).backward()
    named = get_state_dict(ours)
    for n, p in theirs.named_parameters():
        grad = named[n].grad
        assert grad is not None
        assert_close(grad.numpy(), p.grad, f"gradient of {n}")
