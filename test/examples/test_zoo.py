"""The zoo: each tiny model beside torch's with the same weights by name, published counts of parameters, and TAESD's
round trip of a photo."""
from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.zoo import sides
from bench.zoo.models import MODELS
from examples.zoo import bert, mobilenet, resnet, unet, vae, vit, whisper
from examples.zoo.taesd import TAESD
from minigrad import Tensor
from minigrad.errors import FormatError
from minigrad.nn.state import get_state_dict, load_state_dict

BESIDE_TORCH = sorted({entry.torch: name for name, entry in MODELS.items() if entry.shared}.values())

PUBLISHED: dict[str, tuple[Callable[[], Any], int]] = {
    "resnet18": (resnet.resnet18, 11_689_512),
    "resnet50": (resnet.resnet50, 25_557_032),
    "mobilenetv2": (mobilenet.MobileNetV2, 3_504_872),
    "vit-s": (vit.VisionTransformer, 22_050_664),
    "unet": (unet.UNet, 31_037_698),
    "bert-base": (bert.Bert, 109_482_240),
    "whisper-tiny": (whisper.Whisper, 37_760_640),
    "sd-vae-decoder": (vae.AutoencoderKLDecoder, 49_490_199),
    "taesd": (TAESD, 2_445_063),
}
"""torchvision's, timm's, transformers' and diffusers' numbers, those of Whisper with its fixed positions."""
STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_are_as_many_as_published(name: str) -> None:
    make, count = PUBLISHED[name]
    parameters = [value for key, value in get_state_dict(make()).items() if not key.endswith(STATISTICS)]
    assert sum(math.prod(map(int, p.shape)) for p in parameters) == count


@pytest.mark.parametrize("name", BESIDE_TORCH)
def test_equals_torch_with_the_same_state(name: str) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed: nothing to compare with")
    torch.manual_seed(0)
    entry = MODELS[name]
    theirs = entry.torch(True).eval()
    state = {key: value.numpy() for key, value in theirs.state_dict().items()}
    assert set(state) == set(get_state_dict(entry.ours(True)))
    arrays = entry.draw(True, np.random.default_rng(0))
    ours = sides.Model(entry, True, state, arrays, "float32")
    expected = sides.torch_call(theirs, sides.torch_inputs(arrays, "float32"))()
    assert sides.relative_error(ours(), expected) < 1e-4


@pytest.mark.parametrize("name, dtype, allowed", [
    ("bert-base", "float16", 1e-2), ("sd-vae-256", "float16", 1e-2), ("mobilenetv2", "bfloat16", 8e-2),
    ("taesd", "bfloat16", 8e-2)])
def test_half_types_are_near_float32(name: str, dtype: str, allowed: float) -> None:
    entry = MODELS[name]
    arrays, state = entry.draw(True, np.random.default_rng(0)), sides.drawn_state(entry, True)
    exact, half = (sides.Model(entry, True, state, arrays, d) for d in ("float32", dtype))
    assert all(y.dtype.name == dtype for y in half())
    assert sides.relative_error(half(), exact()) < allowed


def test_bert_leaves_out_padding_and_tells_texts_apart() -> None:
    model = bert.Bert(bert.Config(50, 24, 2, 2, 40, 12)).eval()
    tokens = np.array([[3, 4, 5, 6, 7]])
    whole, _ = model(Tensor(tokens[:, :3]))
    masked, _ = model(Tensor(tokens), Tensor(np.array([[1, 1, 1, 0, 0]])))
    np.testing.assert_allclose(masked.numpy()[:, :3], whole.numpy(), atol=1e-5)
    other, _ = model(Tensor(tokens[:, :3]), None, Tensor(np.array([[0, 0, 1]])))
    assert np.abs(other.numpy() - whole.numpy()).max() > 1e-2


def test_whispers_decoder_sees_earlier_tokens_only() -> None:
    model = whisper.Whisper(whisper.Config(8, 50, 24, 2, 2, 10, 8)).eval()
    rows = model.encoder(Tensor(np.random.default_rng(0).standard_normal((1, 8, 20), np.float32)))
    logits = [model.decoder(Tensor(np.array([ids])), rows).numpy() for ids in ([1, 2, 3, 4], [1, 2, 9, 9])]
    np.testing.assert_allclose(logits[0][:, :2], logits[1][:, :2], atol=1e-6)


def test_a_state_of_another_model_is_refused() -> None:
    state = get_state_dict(resnet.ResNet(resnet.BasicBlock, (1, 1, 1, 1), 10, 8))
    with pytest.raises(FormatError, match=r"expected the \d+ tensors of the model"):
        load_state_dict(resnet.ResNet(resnet.Bottleneck, (1, 1, 1, 1), 10, 8), state)


def test_taesd_gives_photos_back(data_dir: Path) -> None:
    """Of 256x256: a PSNR of about 29 dB, which depends on the photo: 24 to 31 dB for these."""
    image = pytest.importorskip("PIL.Image", reason="pillow is not installed: it reads the photo")
    paths = sorted((data_dir / "clothing128" / "test").rglob("*.jpg"))[:3]
    if not paths or not (data_dir / "taesd").is_dir():
        pytest.skip("the data folder has no taesd or clothing128")
    model = TAESD().load(data_dir / "taesd").eval()
    photos = [np.asarray(image.open(path).convert("RGB").resize((256, 256), image.BICUBIC)) for path in paths]
    batch = np.stack(photos).transpose(0, 3, 1, 2).astype(np.float32) / 255
    latents = model.encoder(Tensor(batch)).realize()
    assert latents.shape == (3, 4, 32, 32)
    found = model.decoder(latents).clamp(0, 1).numpy()
    psnr = -10 * np.log10(((found - batch) ** 2).mean((1, 2, 3)))
    assert (psnr > 23).all() and (psnr < 33).all() and psnr.max() > 29, psnr
