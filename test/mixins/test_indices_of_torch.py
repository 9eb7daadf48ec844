"""Every kind of index, alone and beside others, read and written as PyTorch does."""
from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from conftest import needs_torch

import minigrad
from minigrad import Tensor, config
from minigrad.dtype import ALL
from minigrad.errors import MinigradError, ShapeError

SHAPE = (3, 4, 2, 3)
KINDS = ("int", "int", "slice", "slice", "tensor", "tensor", "scalar", "list", "range", "tuple", "mask", "none", "yes",
         "no", "flag", "...")


def key_of(rng: np.random.Generator) -> list[tuple[str, Any]]:
    """Items by kind, with what each is made of, that together fit `SHAPE`."""
    items: list[tuple[str, Any]] = []
    axis, count = 0, int(rng.integers(1, 4))
    while axis < len(SHAPE) and len(items) < 5 and rng.random() < 0.9:
        kind, n = str(rng.choice(KINDS)), SHAPE[axis]
        if kind == "..." and any(k == "..." for k, _ in items):
            continue
        if kind == "slice":
            start, stop = sorted(rng.integers(0, n + 1, 2).tolist())
            items.append((kind, slice(start if rng.random() < 0.7 else None, stop if rng.random() < 0.7 else None)))
        elif kind in ("int", "scalar"):
            items.append((kind, int(rng.integers(-n, n))))
        elif kind in ("list", "tuple", "range", "tensor"):
            shape = (int(rng.choice([1, count])),) if kind != "tensor" or rng.random() < 0.7 else (2, count)
            values = rng.integers(-n, n, shape)
            items.append((kind, range(min(count, n)) if kind == "range" else values.tolist()))
        elif kind == "mask":
            wide = min(int(rng.integers(1, 3)), len(SHAPE) - axis)
            mask = np.zeros(SHAPE[axis:axis + wide], bool)
            mask.reshape(-1)[rng.choice(mask.size, min(count, mask.size), replace=False)] = True
            items.append((kind, mask.tolist()))
            axis += wide - 1
        else:
            items.append((kind, None))
        axis += kind not in ("none", "yes", "no", "flag", "...")
        if kind == "...":
            axis += int(rng.integers(0, len(SHAPE) - axis + 1))
    return items or [("none", None)]


def built(items: list[tuple[str, Any]], tensor: Any) -> Any:
    made = {"none": None, "yes": True, "no": False, "...": ...}
    key: list[Any] = []
    for kind, value in items:
        if kind in made:
            key.append(made[kind])
        elif kind == "flag":
            key.append(tensor(True))
        elif kind in ("tensor", "scalar", "mask"):
            key.append(tensor(value))
        else:
            key.append(tuple(value) if kind == "tuple" else value)
    return key[0] if len(key) == 1 and not isinstance(key[0], tuple) else tuple(key)


@needs_torch
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("device", ["NUMPY", "CPU"])
def test_reading_and_writing(device: str) -> None:
    import torch

    rng, done = np.random.default_rng(29 if device == "CPU" else 28), 0
    x = np.arange(np.prod(SHAPE), dtype=np.float32).reshape(SHAPE)
    with config(device=device):
        while done < (150 if device == "NUMPY" else 40):
            items = key_of(rng)
            own, other = built(items, Tensor), built(items, torch.tensor)
            try:
                want = torch.tensor(x)[other]
            except (IndexError, RuntimeError, ValueError):
                with pytest.raises(MinigradError):
                    Tensor(x)[own].numpy()
                continue
            got = Tensor(x)[own]
            assert tuple(got.shape) == tuple(want.shape), items
            np.testing.assert_array_equal(got.numpy(), want.numpy(), str(items))
            places = torch.arange(x.size).reshape(SHAPE)[other].unique().numel()
            full = want.numel() == places  # else which of several values an element gets is not said
            for value in (-1.0, -1 - np.arange(want.numel(), dtype=np.float32).reshape(want.shape))[:1 + full]:
                t, u = Tensor(x), torch.tensor(x)
                u[other] = torch.as_tensor(value)
                t[own] = value
                np.testing.assert_array_equal(t.numpy(), u.numpy(), str(items))
            done += 1


@needs_torch
def test_views_as_types_of_other_widths() -> None:
    import torch

    rng = np.random.default_rng(31)
    for device in ("NUMPY", "CPU"):
        with config(device=device):
            for source in [d for d in ALL if d.name != "bool"]:
                raw = rng.integers(0, 100, (2, 3, 8), np.uint8)
                x, y = Tensor(raw).view(source), torch.tensor(raw).view(getattr(torch, source.name))
                for target in [d for d in ALL if d.name != "bool"]:
                    kind = getattr(torch, target.name)
                    try:
                        want = y.view(kind)
                    except RuntimeError:
                        with pytest.raises(ShapeError):
                            x.bitcast(target)
                        continue
                    got = x.bitcast(target)
                    assert got.dtype is target and tuple(got.shape) == tuple(want.shape)
                    same = got.bitcast("uint8").numpy() == want.view(torch.uint8).numpy()
                    assert same.all(), (device, source, target)
            for bad in (Tensor(np.zeros((2, 3), np.uint8)), Tensor(1.0)):
                with pytest.raises(ShapeError, match="expected a last axis"):
                    bad.bitcast(minigrad.float64 if bad.ndim else minigrad.int8)
