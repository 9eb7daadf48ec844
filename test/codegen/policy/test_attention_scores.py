"""Attention with windows, capped scores and sinks: results and gradients on every device, against torch's autograd."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from conftest import devices, needs_torch, quick_devices

from minigrad import Tensor, Variable, config, jit
from minigrad.dtype import float16
from minigrad.errors import MinigradError
from minigrad.expr import emax

SIZES = [(4, 2, 1, 7), (2, 1, 1, 300), (8, 4, 17, 17), (2, 2, 40, 200)]
"""Heads, heads of keys, rows, keys."""
KINDS = [(1, None, False), (150, None, False), (None, 2.0, False), (None, None, True), (3, 2.0, True)]
"""Windows, caps, and whether there are sinks."""


def operands(size: tuple[int, int, int, int], with_sinks: bool) -> list[np.ndarray]:
    heads, groups, rows, keys = size
    random = np.random.default_rng(sum(size))
    made = [3 * random.standard_normal((heads, rows, 8)), random.standard_normal((groups, keys, 8)),
            random.standard_normal((groups, keys, 6)), 3 * random.standard_normal(heads)]
    return [a.astype(np.float32) for a in made[:4 if with_sinks else 3]]


def by_hand(lib: Any, arrays: Sequence[Any], window: int | None, cap: float | None) -> Any:
    """The same with a table of scores, in numpy's or torch's words."""
    q, k, v, *sinks = arrays
    heads, rows, depth = q.shape
    k, v = (x[lib.arange(heads) // (heads // len(x))] for x in (k, v))
    scores = (q @ k.swapaxes(-1, -2)) / depth ** 0.5
    scores = scores if cap is None else cap * lib.tanh(scores / cap)
    keys = k.shape[1]
    behind = lib.arange(rows)[:, None] + (keys - rows) - lib.arange(keys)[None, :]
    kept = (behind >= 0) & (behind < (keys if window is None else window))
    e = lib.where(kept, lib.exp(scores), 0.0)
    total = e.sum(-1)
    total = total + lib.exp(sinks[0])[:, None] if sinks else total
    return (e / total[..., None]) @ v


def ours(tensors: list[Tensor], window: int | None, cap: float | None) -> Tensor:
    q, k, v, *sinks = tensors
    offset = k.shape[-2] - q.shape[-2]
    return q.scaled_dot_product_attention(k, v, is_causal=True, causal_offset=offset, enable_gqa=True, window=window,
                                          softcap=cap, sinks=sinks[0] if sinks else None)


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("size", SIZES)
def test_results(device: str, size: tuple[int, int, int, int]) -> None:
    with config(device=device):
        for window, cap, with_sinks in KINDS:
            arrays = operands(size, with_sinks)
            expected = by_hand(np, [a.astype(np.float64) for a in arrays], window, cap)
            np.testing.assert_allclose(ours([Tensor(a) for a in arrays], window, cap).numpy(), expected, atol=2e-5,
                                       err_msg=str((window, cap, with_sinks)))


@needs_torch
@pytest.mark.parametrize("device", quick_devices())
@pytest.mark.parametrize("size", [(4, 2, 5, 9), (2, 1, 24, 40)])
def test_gradients(device: str, size: tuple[int, int, int, int]) -> None:
    import torch

    with config(device=device):
        for window, cap, with_sinks in [k for k in KINDS if k[0] != 150]:
            arrays = operands(size, with_sinks)
            theirs = [torch.tensor(a, dtype=torch.float64, requires_grad=True) for a in arrays]
            out = by_hand(torch, theirs, window, cap)
            weights = np.random.default_rng(1).standard_normal(out.shape).astype(np.float32)
            (out * torch.tensor(weights)).sum().backward()
            mine = [Tensor(a, requires_grad=True) for a in arrays]
            (ours(mine, window, cap) * Tensor(weights)).sum().backward()
            for found, expected in zip(mine, theirs, strict=True):
                assert found.grad is not None and expected.grad is not None
                np.testing.assert_allclose(found.grad.numpy(), expected.grad.numpy(), atol=1e-4,
                                           err_msg=str((window, cap, with_sinks)))


def test_with_other_types_and_masks() -> None:
    """What goes through a table - different types - gives the same; a mask may be added to capped scores."""
    arrays = operands((4, 2, 5, 9), True)
    tensors = [Tensor(a) for a in arrays]
    for window, cap in ((3, None), (None, 2.0), (3, 2.0)):
        mixed = ours([tensors[0].cast(float16).cast("float64"), *tensors[1:]], window, cap).numpy()
        same = ours([tensors[0].cast(float16).float(), *tensors[1:]], window, cap).numpy()
        np.testing.assert_allclose(mixed, same, atol=1e-5)
    q, k, v, sinks = tensors
    mask = Tensor(np.tril(np.ones((5, 9), bool), 4))
    masked = q.scaled_dot_product_attention(k, v, mask, enable_gqa=True, softcap=2.0, sinks=sinks).numpy()
    np.testing.assert_allclose(masked, ours(tensors, None, 2.0).numpy(), atol=1e-6)


@pytest.mark.parametrize("device", quick_devices())
def test_a_window_of_a_cache_with_symbolic_lengths(device: str) -> None:
    """The slice of the last keys, as decoding reads it, for any position without compiling again."""
    arrays = operands((4, 2, 1, 40), True)
    position = Variable("position", 0, 39)
    with config(device=device):
        cache = [Tensor(a).realize() for a in arrays[1:3]]

        @jit
        def step(q: Tensor, sinks: Tensor, at: Any) -> Tensor:
            start = emax(at - 6, 0)
            keys, values = (x[:, start:at + 1] for x in cache)
            return q.scaled_dot_product_attention(keys, values, is_causal=True, causal_offset=at - start,
                                                  enable_gqa=True, window=7, sinks=sinks).realize()

        for at in (0, 3, 6, 7, 20, 39):
            found = step(Tensor(arrays[0]), Tensor(arrays[3]), position.bind(at)).numpy()
            start = max(at - 6, 0)
            seen = [arrays[0], arrays[1][:, start:at + 1], arrays[2][:, start:at + 1], arrays[3]]
            expected = by_hand(np, seen, None, None)
            np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("options, message", [
    ({"window": 3}, "a window of 1 or more keys with is_causal"),
    ({"window": 0, "is_causal": True}, "a window of 1 or more keys"),
    ({"softcap": 0.0}, "a softcap above 0"), ({"softcap": "x"}, "softcap"),
    ({"sinks": Tensor.zeros(3)}, r"sinks of floats for each of \[4\] heads, got float32 \[3\]"),
    ({"sinks": Tensor.zeros(4).cast("int32")}, "sinks of floats"), ({"sinks": 1.0}, "expected")])
def test_errors(options: dict[str, Any], message: str) -> None:
    x = Tensor.zeros(4, 5, 8)
    with pytest.raises(MinigradError, match=message):
        x.scaled_dot_product_attention(x, x, **options)
