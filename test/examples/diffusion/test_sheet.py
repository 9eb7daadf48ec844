"""Sheets of the model in the repository, and of files that are none."""
from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from examples.diffusion import sheet
from examples.diffusion.flow import FlowUNet, Sizes, draw, load_flow
from minigrad import Tensor
from minigrad.errors import ConfigError, FormatError
from minigrad.state import get_state_dict, safe_save

Image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")


def test_the_model_in_the_repository_draws_its_classes() -> None:
    """Trousers are narrow, bags fill the picture, sneakers lie at its bottom: as in the set. A picture follows from its
    class, its place and the seed, whatever is drawn beside it."""
    assert sheet.MODEL.stat().st_size < 3_000_000
    model, names = load_flow(sheet.MODEL)
    trouser, bag, sneaker = (names.index(name) for name in ("Trouser", "Bag", "Sneaker"))
    images = draw(model, [trouser] * 2 + [bag] * 2 + [sneaker] * 2, 6, 2.0, 0)
    trousers, bags, sneakers = images.reshape(3, 2, 28, 28).astype(float).mean(1) / 255
    assert trousers[:, 9:19].mean() > 0.25 and trousers[:, :6].mean() < 0.05
    assert bags[14:26, 4:24].mean() > 0.35
    assert sneakers[:6].mean() < 0.05 and sneakers[14:20, 4:24].mean() > 0.3
    others = draw(model, [trouser, *[sneaker] * 5], 6, 2.0, 0)
    np.testing.assert_array_equal(images[0], others[0])
    np.testing.assert_array_equal(images[5], others[5])
    assert all(np.abs(images[k].astype(int) - others[k]).max() > 50 for k in (1, 2))
    assert np.abs(draw(model, [trouser, *[sneaker] * 5], 6, 2.0, 1).astype(int) - others).max() > 50


@pytest.mark.parametrize("arguments, expected", [
    (["--classes", "Sneaker,Car"], r"--classes: expected some of T-shirt/top, Trouser, .*, got 'Car'"),
    (["--count", "0"], "--count: expected 1 or more, got 0"), (["--guidance", "nan"], "expected --guidance from 0 to"),
    (["--output", "sheet.gif"], r"--output: expected a file that ends in \.png")])
def test_bad_options(arguments: list[str], expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=expected):
        sheet.run(arguments)
    assert not list(tmp_path.iterdir())


def test_files_of_other_models(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    facts = '{"sizes": {"classes": 3, "width": 8, "embedded": 128}, "classes": ["a", "b", "c"]}'
    state = {name: tensor.half() for name, tensor in get_state_dict(FlowUNet(Sizes(3, 16))).items()}
    for tensors, metadata, expected in (
            ({"weight": Tensor.zeros(2)}, None, "expected a model of examples/diffusion/train.py, got another file"),
            (state, {"minigrad": facts}, "expected shape"),
            (state, {"minigrad": facts.replace('"a", ', "")}, "expected a model of examples/diffusion/train.py")):
        safe_save(tensors, path, metadata)
        with pytest.raises(FormatError, match=re.escape(str(path)) + f".*{expected}"):
            load_flow(path)
