"""Tensors and models as text: PyTorch's, of what is computed already."""
from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from conftest import needs_torch

import minigrad
from minigrad import Tensor, config, jit, nn
from minigrad.engine.stats import stats
from minigrad.errors import ShapeError

RANDOM = np.random.default_rng(0)
FLOATS = [0.0, -0.0, 1.0, -1.0, 0.5, 1e-5, 1e-4, 12345.678, 1e8, 1.5e8, 1e9, -3.25, math.nan, math.inf, -math.inf, 7.0]
SHAPES: list[tuple[int, ...]] = [
    (), (1,), (5,), (40,), (2, 3), (1, 1), (2, 1, 3), (2, 2, 2, 2), (0,), (0, 3), (2, 0), (1001,), (1000,), (100, 30),
    (7, 200), (3, 8, 50), (20, 2, 30), (1, 1, 1200), (11, 11, 11)]
KINDS = ["float32", "float64", "float16", "bool", "int8", "uint8", "int32", "int64"]


@pytest.fixture(autouse=True)
def on_numpy() -> Iterator[None]:
    with config(device="NUMPY"):
        yield
    minigrad.set_printoptions(profile="default")


def arrays() -> Iterator[np.ndarray]:
    for shape, kind in itertools.product(SHAPES, KINDS):
        yield (RANDOM.standard_normal(shape) * 10.0 ** RANDOM.integers(-3, 4)).astype(kind)
    for k in range(200):  # mixtures in which every rule about exponents and points is met
        size = int(RANDOM.integers(1, 6))
        yield RANDOM.choice(FLOATS, size).astype(["float32", "float64"][k % 2])
    yield RANDOM.integers(-5, 5, (30, 50)).astype(np.float32)
    yield np.full((3, 3), np.nan, np.float32)


def ours_and_torchs(array: np.ndarray) -> tuple[str, str]:
    """Both texts; int32 is the usual type of integers here, and int64 there."""
    import torch

    theirs = torch.from_numpy(np.ascontiguousarray(array).reshape(array.shape))
    usual = {"int32": torch.int64, "int64": torch.int32}.get(str(array.dtype))
    text = repr(theirs if usual is None or not array.size else theirs.to(usual))
    text = text.replace("torch.int32", "int64" if array.size else "int32").replace("torch.", "")
    return _in_one_line(repr(Tensor(array))), _in_one_line(text)


def _in_one_line(text: str) -> str:
    """With the type behind the last row, whether it fits there or not: the names are shorter here."""
    return re.sub(r",\n +dtype", ", dtype", text)


@needs_torch
def test_values_are_shown_as_pytorch_shows_them() -> None:
    for array in arrays():
        ours, theirs = ours_and_torchs(array)
        assert ours == theirs, f"{array!r}:\n{ours}\n{theirs}"


@needs_torch
@pytest.mark.parametrize("options", [
    {"precision": 2}, {"threshold": 10}, {"threshold": 10, "edgeitems": 2}, {"linewidth": 40}, {"sci_mode": True},
    {"sci_mode": False}, {"profile": "short"}, {"profile": "full"}, {"profile": "short", "precision": 3},
    {"threshold": 3, "edgeitems": 1}, {"precision": 0}])
def test_options_are_pytorchs(options: dict[str, Any]) -> None:
    import torch

    try:
        torch.set_printoptions(**options)
        minigrad.set_printoptions(**options)
        for shape in [(), (5,), (40,), (4, 5), (3, 8, 50), (1200,)]:
            for array in (RANDOM.standard_normal(shape) * 100, RANDOM.integers(-9, 99, shape)):
                ours, theirs = ours_and_torchs(np.asarray(array, np.float32 if array.dtype.kind == "f" else np.int32))
                assert ours == theirs
    finally:
        torch.set_printoptions(profile="default")


def test_wrong_options() -> None:
    for wrong in ({"profile": "long"}, {"precision": -1}, {"edgeitems": "3"}):
        with pytest.raises(ShapeError, match="set_printoptions"):
            minigrad.set_printoptions(**wrong)


def test_facts_besides_values() -> None:
    x = Tensor([1.0, 2.0], requires_grad=True)
    assert repr(x) == "tensor([1., 2.], requires_grad=True)"
    assert repr(x * 2) == "tensor(..., device='NUMPY', size=(2,), dtype=float32, lazy, grad_fn=<mul>)"
    assert repr((x * 2).realize()) == "tensor([2., 4.], grad_fn=<mul>)"
    assert repr(Tensor([1.5]).cast("bfloat16").realize()) == "tensor([1.5000], dtype=bfloat16)"
    assert repr(Tensor([1], device="CPU")) == "tensor([1], device='CPU')"
    assert str(Tensor([True])) == "tensor([True])" and f"{Tensor([1, 2])}" == "tensor([1, 2])"
    assert f"{Tensor(2.5)}" == "2.5" and f"{Tensor(2.5) * 2:.2f}" == "5.00"


def test_nothing_is_computed_to_be_shown() -> None:
    with config(device="CPU"):
        x = Tensor([1.0, 2.0]) * 3
        before = stats.kernels, stats.mem_used
        assert "lazy" in repr(x) and "size=(2,)" in repr(x) and "device='CPU'" not in repr(x.realize())
        assert repr(Tensor([1.0, 2.0]) * 3) and before[0] <= stats.kernels
        y = Tensor([1.0, 2.0]) + 5
        kernels = stats.kernels
        repr(y)
        assert stats.kernels == kernels and y.node.storage is None


def test_text_inside_a_captured_function() -> None:
    seen: list[str] = []

    @jit
    def step(x: Tensor) -> Tensor:
        y = x * 2
        seen.extend([repr(x), repr(y)])
        return y

    with config(device="CPU"):
        for k in range(3):
            np.testing.assert_array_equal(step(Tensor([1.0, k]).realize()).numpy(), [2.0, 2.0 * k])
    assert seen and all(text.startswith("tensor(") for text in seen)


OTHER_TEXTS = {"LogSoftmax", "Softmax", "Softmin", "RMSNorm", "Softplus", "TripletMarginWithDistanceLoss"}
"""Layers with another default, which is what they show, and without a layer for what is a function."""


def layers() -> Iterator[tuple[str, Any, tuple[Any, ...], dict[str, Any]]]:
    """Layers of PyTorch that can be made with some arguments: name, layer, arguments."""
    import torch.nn as theirs

    given: list[tuple[Any, ...]] = [(), (2,), (4, 4), (2, 4, 3), (0.5,), (2, 2, 2), (2, 4, 3, 0.5), (2, (2, 2)),
                                    (4, 6, 5, 1)]
    named: list[dict[str, Any]] = [
        {}, {"bias": False}, {"inplace": True}, {"padding": 1, "dilation": 2}, {"num_layers": 2}, {"padding_idx": 1},
        {"bidirectional": True, "batch_first": True}, {"affine": False}, {"reduction": "sum"}, {"scale_factor": 2.0},
        {"size": (3, 4)}, {"elementwise_affine": False}, {"padding": "same"}, {"dim": 1},
        {"groups": 2, "padding_mode": "reflect"}]
    for name in nn.__all__:
        if isinstance(getattr(nn, name), type) and hasattr(theirs, name) and not name.startswith("Transformer"):
            for args, options in itertools.product(given, named):
                if (name.endswith("Cell") and len(args) > 2) or (
                        name[:-2] != "Conv" and options.get("padding") == "same"):
                    continue  # which PyTorch takes there, whatever it is
                try:
                    yield name, getattr(theirs, name)(*args, **options), args, options
                except Exception:
                    continue


@needs_torch
@pytest.mark.filterwarnings("ignore")
def test_layers_are_shown_as_pytorch_shows_them() -> None:
    compared = set()
    for name, theirs, args, options in layers():
        try:
            ours = getattr(nn, name)(*args, **options)
        except Exception:
            continue  # what is refused here is another test's
        wanted = repr(theirs).replace("NonDynamicallyQuantizableLinear", "Linear")
        if name not in OTHER_TEXTS:
            assert repr(ours) == wanted
        compared.add(name)
    assert len(compared) > 100


@needs_torch
def test_models_are_shown_as_pytorch_shows_them() -> None:
    import torch.nn as theirs

    def made(of: Any) -> Any:
        class Block(of.Module):
            def __init__(self, width: int):
                super().__init__()
                self.norm, self.act = of.LayerNorm(width), of.ReLU(inplace=True)
                self.layers = of.ModuleList([of.Linear(width, width) for _ in range(3)] + [of.Dropout(0.1)])
                self.none = of.ModuleList([])
                self.heads = of.ModuleDict({"a": of.Linear(width, 1), "b": of.Identity()})

            def extra_repr(self) -> str:
                return "a block"

        class Odd(of.Module):
            def extra_repr(self) -> str:
                return "first\nsecond"

        return of.Sequential(of.Embedding(5, 4), Block(4), of.Sequential(), Odd(), of.LSTM(4, 4, 2))

    assert repr(made(nn)) == repr(made(theirs))


def test_layers_that_are_no_modules() -> None:
    class Plain:
        def __call__(self, x: Tensor) -> Tensor:
            return x

    class Model(nn.Module):
        def __init__(self) -> None:
            self.blocks = [nn.Linear(2, 3), Plain()]
            self.sizes, self.weight, self.act = (1, 2), Tensor.zeros(2), Tensor.relu

    assert repr(Model()) == ("Model(\n  (blocks): list(\n    (0): Linear(in_features=2, out_features=3, bias=True)\n"
                             "    (1): Plain()\n  )\n)")
    class Square(nn.Linear):
        def __init__(self, size: int):
            super().__init__(size, size, bias=False)

    assert repr(Square(4)) == "Square(in_features=4, out_features=4, bias=False)"
    lazy = nn.LazyLinear(3)
    assert repr(lazy) == "LazyLinear(in_features=0, out_features=3, bias=True)"
    lazy(Tensor.zeros(2, 5))
    assert repr(lazy) == "Linear(in_features=5, out_features=3, bias=True)"
