"""Embeddings that change their table or share its gradient, as in PyTorch."""
from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from minigrad import Tensor, nn
from minigrad.errors import MinigradError

torch = pytest.importorskip("torch")


@pytest.mark.parametrize("by_frequency", [False, True])
@pytest.mark.parametrize("max_norm, norm_type", [(None, 2.0), (1.0, 2.0), (0.7, 1.0), (100.0, 2.0)])
@pytest.mark.parametrize("kind", ["Embedding", "sum", "mean", "max"])
def test_options_of_embeddings(kind: str, max_norm: float | None, norm_type: float, by_frequency: bool) -> None:
    """Results, the table afterwards and its gradient; a row that is not named stays as it is. PyTorch's embedding_bag
    divides by how often another row is named (2.13), so that bags are held to its embedding there."""
    options: dict[str, Any] = {"max_norm": max_norm, "norm_type": norm_type, "scale_grad_by_freq": by_frequency}
    name, options = ("Embedding", options) if kind == "Embedding" else ("EmbeddingBag", options | {"mode": kind})
    options["padding_idx"] = 3
    model, reference = getattr(nn, name)(6, 4, **options), getattr(torch.nn, name)(6, 4, **options)
    reference.load_state_dict({"weight": torch.tensor(model.weight.numpy())})
    index = np.array([[0, 1, 5], [2, 2, 3], [0, 2, 0]])
    if by_frequency and kind == "max":
        with pytest.raises(MinigradError, match=r"\[embedding_bag\] expected mode 'sum' or 'mean'"):
            model(Tensor(index))
        return
    y, z = model(Tensor(index)), reference(torch.tensor(index))
    if by_frequency and kind != "Embedding":
        rows = torch.nn.functional.embedding(torch.tensor(index), reference.weight, 3, scale_grad_by_freq=True)
        kept = torch.tensor(index != 3)[..., None]
        z = (rows * kept).sum(1) / (kept.sum(1) if kind == "mean" else 1)
    (y * y).sum().backward(), (z * z).sum().backward()
    np.testing.assert_allclose(y.numpy(), z.detach().numpy(), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(model.weight.numpy(), reference.weight.detach().numpy(), rtol=1e-5)
    np.testing.assert_allclose(model.weight.grad.numpy(), reference.weight.grad.numpy(), rtol=1e-5, atol=1e-6)
