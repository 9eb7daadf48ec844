"""The zoo as data: each model by either framework, full-sized or tiny, and what it is given."""
from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from examples.efficientnet.model import STAGES, ConvNorm, EfficientNet
from examples.zoo import bert, mobilenet, resnet, taesd, unet, vae, vit, whisper
from minigrad import nn

Inputs = list[np.ndarray]


class Entry(NamedTuple):
    """`ours` and `torch` make the model, `tiny` ones for --quick if told; so does `draw` what it takes. `shared`: both
    have the same names in their state. `long`: a call takes seconds."""

    ours: Callable[[bool], Any]
    torch: Callable[[bool], Any]
    draw: Callable[[bool, np.random.Generator], Inputs]
    shared: bool = True
    long: bool = False


def images(size: int, tiny_size: int, tiny: bool, rng: np.random.Generator, channels: int = 3) -> Inputs:
    side = tiny_size if tiny else size
    return [rng.standard_normal((1, channels, side, side), np.float32)]


TINY_STAGES = mobilenet.STAGES[:2]
TINY_BERT = bert.Config(vocabulary=50, hidden=24, layers=2, heads=2, intermediate=40, positions=12)
TINY_WHISPER = whisper.Config(mels=8, vocabulary=50, hidden=24, layers=2, heads=2, positions=10, text_positions=8)
TINY_CHANNELS = (8, 16)


def _efficientnet(tiny: bool) -> EfficientNet:
    model = EfficientNet(0)
    if tiny:
        model.blocks, model.head, model.classifier = model.blocks[:1], ConvNorm(16, 8, 1), nn.Linear(8, 10)
    return model


def _torch_efficientnet(tiny: bool) -> Any:
    import torch

    from bench.efficientnet_peers import Shape, network

    return network(torch, Shape(STAGES[:1], 8, 10) if tiny else Shape(STAGES, 1280, 1000))


def _torch_resnet(wide: bool, repeats: tuple[int, ...], tiny: bool) -> Any:
    from bench.zoo.torch_images import ResNet

    return ResNet(wide, (1, 1, 1, 1), 10, 8) if tiny else ResNet(wide, repeats)


def _resnet(wide: bool, tiny: bool) -> Any:
    if tiny:
        return resnet.ResNet(resnet.Bottleneck if wide else resnet.BasicBlock, (1, 1, 1, 1), 10, 8)
    return resnet.resnet50() if wide else resnet.resnet18()


def _torch_mobilenet(tiny: bool) -> Any:
    from bench.zoo.torch_images import MobileNetV2

    return MobileNetV2(TINY_STAGES, 10) if tiny else MobileNetV2(mobilenet.STAGES)


def _torch_unet(tiny: bool) -> Any:
    from bench.zoo.torch_images import UNet

    return UNet(width=4) if tiny else UNet()


def _torch_vit(tiny: bool) -> Any:
    from bench.zoo.torch_transformers import ViT

    return ViT(32, 8, 24, 2, 2, 10) if tiny else ViT()


def _torch_bert(tiny: bool) -> Any:
    from bench.zoo.torch_transformers import Bert

    return Bert(*(TINY_BERT if tiny else bert.Config()))


def _tokens(length: int, tiny: bool, rng: np.random.Generator) -> Inputs:
    return [rng.integers(0, 50, (1, 8 if tiny else length))]


def _torch_whisper(tiny: bool) -> Any:
    from bench.zoo.torch_transformers import Whisper

    return Whisper(*(TINY_WHISPER if tiny else whisper.Config()))


def _speech(tiny: bool, rng: np.random.Generator) -> Inputs:
    mel = rng.standard_normal((1, 8, 20) if tiny else (1, 80, 3000), np.float32)
    return [mel, rng.integers(0, 50, (1, 5 if tiny else 32))]


def _torch_taesd(tiny: bool) -> Any:
    from bench.zoo.torch_autoencoders import TAESD

    return TAESD()


def _torch_vae(tiny: bool) -> Any:
    from bench.zoo.torch_autoencoders import Decoder

    return Decoder(TINY_CHANNELS, 1) if tiny else Decoder(vae.CHANNELS)


def _vae(tiny: bool) -> Any:
    return vae.AutoencoderKLDecoder(TINY_CHANNELS, 1) if tiny else vae.AutoencoderKLDecoder()


MODELS = {
    "mobilenetv2": Entry(lambda tiny: mobilenet.MobileNetV2(10, TINY_STAGES) if tiny else mobilenet.MobileNetV2(),
                         _torch_mobilenet, partial(images, 224, 32)),
    "resnet18": Entry(partial(_resnet, False), partial(_torch_resnet, False, (2, 2, 2, 2)), partial(images, 224, 32)),
    "resnet50": Entry(partial(_resnet, True), partial(_torch_resnet, True, (3, 4, 6, 3)), partial(images, 224, 32)),
    "efficientnet-b0": Entry(_efficientnet, _torch_efficientnet, partial(images, 224, 16), shared=False),
    "vit-s": Entry(lambda tiny: vit.VisionTransformer(32, 8, 24, 2, 2, 10) if tiny else vit.VisionTransformer(),
                   _torch_vit, partial(images, 224, 32)),
    "unet": Entry(lambda tiny: unet.UNet(width=4) if tiny else unet.UNet(), _torch_unet, partial(images, 256, 32)),
    "bert-base": Entry(lambda tiny: bert.Bert(TINY_BERT if tiny else None), _torch_bert, partial(_tokens, 128)),
    "whisper-tiny": Entry(lambda tiny: whisper.Whisper(TINY_WHISPER if tiny else None), _torch_whisper, _speech),
    "taesd": Entry(lambda tiny: taesd.TAESD(), _torch_taesd, partial(images, 256, 16)),
    "sd-vae-256": Entry(_vae, _torch_vae, partial(images, 32, 4, channels=4), long=True),
    "sd-vae-512": Entry(_vae, _torch_vae, partial(images, 64, 4, channels=4), long=True),
}
"""By name; those of the autoencoder are decoders to images of 256 and 512 pixels a side."""
