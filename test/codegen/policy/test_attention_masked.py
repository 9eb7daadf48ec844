"""Rows of attention with nothing left in give zeros, and so do their gradients, as in PyTorch: in blocks, in a table of
scores, with few rows, with dropout, and where the gradients are differentiated again."""
from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from conftest import devices, needs_torch

from minigrad import Tensor, config, nn
from minigrad.mixins.attention import softmax_of_kept

try:
    import torch
except ImportError:
    torch = None

SIZES = {"one row": (1, 5), "few rows": (3, 300), "blocks": (70, 40), "small": (4, 6)}


def operands(rows: int, keys: int) -> list[np.ndarray]:
    rng = np.random.default_rng(rows)
    return [rng.standard_normal(s).astype(np.float32)
            for s in ((2, rows, 16), (2, keys, 16), (2, keys, 8), (2, rows, 8))]


def masks_of(rows: int, keys: int) -> list[np.ndarray]:
    """Every second row of the first head, and the last of the second, keep nothing; as bools and as numbers to add."""
    kept = np.random.default_rng(keys).random((2, rows, keys)) < 0.6
    kept[0, ::2] = kept[1, -1] = False
    return [kept, np.where(kept, np.float32(0.5), np.float32(-math.inf))]


def results(attend: Any, q: Any, k: Any, v: Any, g: Any) -> list[np.ndarray]:
    """The result and the gradients."""
    out = attend(q, k, v)
    (out * g).sum().backward()
    return [x.detach().numpy() for x in (out, q.grad, k.grad, v.grad)]


@needs_torch
@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("name", SIZES)
def test_rows_that_keep_nothing(name: str, device: str) -> None:
    rows, keys = SIZES[name]
    arrays = operands(rows, keys)
    with config(device=device):
        for mask in masks_of(rows, keys):
            ours = results(lambda q, k, v: q.scaled_dot_product_attention(k, v, Tensor(mask)),  # noqa: B023
                           *(Tensor(a, requires_grad=True) for a in arrays))
            theirs = results(lambda q, k, v: torch.nn.functional.scaled_dot_product_attention(
                q, k, v, torch.tensor(mask)), *(torch.tensor(a, requires_grad=True) for a in arrays))  # noqa: B023
            assert (theirs[0][0, ::2] == 0).all() and (ours[0][0, ::2] == 0).all() and (ours[1][0, ::2] == 0).all()
            for mine, reference in zip(ours, theirs, strict=True):
                np.testing.assert_allclose(mine, reference, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("device", devices())
def test_rows_before_the_first_key(device: str) -> None:
    """`causal_offset` below 0: the first rows see no key; half types, dropout that drops nothing kept."""
    with config(device=device):
        q, k, v, _ = (Tensor(a) for a in operands(40, 30))
        causal = q.scaled_dot_product_attention(k, v, is_causal=True, causal_offset=-3).numpy()
        assert (causal[:, :3] == 0).all() and not np.isnan(causal).any()
        np.testing.assert_allclose(causal[:, 3], v.numpy()[:, 0], rtol=1e-5)
        half = q.half().scaled_dot_product_attention(k.half(), v.half(), is_causal=True, causal_offset=-3)
        assert (half.numpy()[:, :3] == 0).all() and not np.isnan(half.numpy()).any()
        with Tensor.train():
            dropped = q.scaled_dot_product_attention(k, v, is_causal=True, causal_offset=-3, dropout_p=1e-9).numpy()
        np.testing.assert_allclose(dropped, causal, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("device", [d for d in devices() if d != "NUMPY"])
def test_gradients_of_gradients_and_of_an_added_mask(device: str) -> None:
    rows, keys = 6, 5
    with config(device=device):
        q, k, v, _ = (Tensor(a, requires_grad=True) for a in operands(rows, keys))
        mask = Tensor(masks_of(rows, keys)[1], requires_grad=True)
        out = q.scaled_dot_product_attention(k, v, mask)
        first = out.square().sum().gradient(q, k, v, mask)
        second = first[0].square().sum().gradient(q, k, v)
        for t in (*first, *second):
            assert not np.isnan(t.numpy()).any()
        assert (first[3].numpy()[0, ::2] == 0).all() and (second[0].numpy()[0, ::2] == 0).all()


def test_layers_and_weights() -> None:
    with config(device="CPU"):
        x = Tensor(operands(4, 4)[0], requires_grad=True)
        layer: Any = nn.MultiheadAttention(16, 2, batch_first=True)
        padding = Tensor(np.array([[False] * 4, [True] * 4]))
        out, weights = layer(x, x, x, key_padding_mask=padding)
        assert weights is not None and (weights.numpy()[1] == 0).all()
        np.testing.assert_allclose(weights.numpy()[0].sum(-1), 1, rtol=1e-5)
        (out.square().sum() + weights.square().sum()).backward()
        for t in (x, layer.in_proj_weight):
            assert t.grad is not None and np.isfinite(t.grad.numpy()).all()
        np.testing.assert_allclose(out.numpy()[1], np.broadcast_to(layer.out_proj.bias.numpy(), (4, 16)), atol=1e-6)
        assert softmax_of_kept(Tensor.zeros(2, 0)).shape == (2, 0)
