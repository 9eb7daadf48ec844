"""A small U-Net for flow matching: images of a class from noise, [N, 1, 28, 28] in -1..1.

Along a straight line from noise to an image, x = (1 - t) noise + t image, the model says the velocity image - noise;
from noise, small steps along it lead to an image. Pixels are taken two by two as channels, so that the widest layers
see 14x14 and 7x7 places.

Sources: Lipman et al. 2022, https://arxiv.org/abs/2210.02747; Ho and Salimans 2022, https://arxiv.org/abs/2207.12598
"""
from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from examples.diffusion.unet import waves
from minigrad import Tensor, jit, nn
from minigrad.errors import FormatError, MinigradError, ShapeError
from minigrad.state import get_state_dict, load_state_dict, safe_load, safe_save
from minigrad.state.safe import safe_metadata


@dataclass(frozen=True)
class Sizes:
    """Classes known, channels at 14x14 (twice as many at 7x7), numbers that describe the time and the class."""

    classes: int = 10
    width: int = 64
    embedded: int = 128


def norm(channels: int) -> nn.GroupNorm:
    return nn.GroupNorm(8, channels)


class Residual(nn.Module):
    """Two 3x3 convolutions, each after group norm and SiLU, added to the input; time and class scale and shift what is
    between them."""

    def __init__(self, inputs: int, outputs: int, embedded: int):
        self.norm1, self.conv1 = norm(inputs), nn.Conv2d(inputs, outputs, 3, padding=1)
        self.embed = nn.Linear(embedded, 2 * outputs)
        self.norm2, self.conv2 = norm(outputs), nn.Conv2d(outputs, outputs, 3, padding=1)
        self.skip = None if inputs == outputs else nn.Conv2d(inputs, outputs, 1)

    def forward(self, x: Tensor, embedded: Tensor) -> Tensor:
        scale, shift = self.embed(embedded)[:, :, None, None].chunk(2, dim=1)
        y = self.conv1(self.norm1(x).silu())
        y = self.conv2((self.norm2(y) * (1 + scale) + shift).silu())
        return (x if self.skip is None else self.skip(x)) + y


class Attention(nn.Module):
    """Self-attention of four heads over all places, added to the input."""

    def __init__(self, channels: int):
        self.norm, self.qkv, self.out = norm(channels), nn.Linear(channels, 3 * channels), nn.Linear(channels, channels)

    def forward(self, x: Tensor) -> Tensor:
        n, channels, height, width = x.shape
        rows = self.norm(x).flatten(2).transpose(1, 2)
        q, k, v = self.qkv(rows).reshape(n, height * width, 3, 4, channels // 4).permute(2, 0, 3, 1, 4)
        seen = q.scaled_dot_product_attention(k, v).transpose(1, 2).reshape(n, height * width, channels)
        return x + self.out(seen).transpose(1, 2).reshape(n, channels, height, width)


class FlowUNet(nn.Module):
    """Maps x [N, 1, 28, 28], times [N] in 0..1 and classes [N] to velocities of the shape of x. The class after the
    last one is that of any image."""

    def __init__(self, sizes: Sizes):
        wide, deep, embedded = sizes.width, 2 * sizes.width, sizes.embedded
        self.sizes = sizes
        self.time = nn.Sequential(nn.Linear(64, embedded), nn.SiLU(), nn.Linear(embedded, embedded))
        self.classes = nn.Embedding(sizes.classes + 1, embedded)
        self.conv_in = nn.Conv2d(4, wide, 3, padding=1)
        self.down1, self.halve = Residual(wide, wide, embedded), nn.Conv2d(wide, deep, 3, 2, padding=1)
        self.middle1, self.attention = Residual(deep, deep, embedded), Attention(deep)
        self.middle2, self.narrow = Residual(deep, deep, embedded), nn.Conv2d(deep, wide, 1)
        self.up1 = Residual(2 * wide, wide, embedded)
        self.norm_out, self.conv_out = norm(wide), nn.Conv2d(wide, 4, 3, padding=1)

    def forward(self, x: Tensor, times: Tensor, classes: Tensor) -> Tensor:
        embedded = (self.time(waves(times * 1000, 64)) + self.classes(classes)).silu()
        wide = self.down1(self.conv_in(nn.functional.pixel_unshuffle(x, 2)), embedded)
        deep = self.attention(self.middle1(self.halve(wide), embedded))
        deep = self.narrow(self.middle2(deep, embedded))
        raised = nn.functional.interpolate(deep, scale_factor=2.0, mode="nearest")
        y = self.up1(Tensor.cat(raised, wide, dim=1), embedded)
        return nn.functional.pixel_shuffle(self.conv_out(self.norm_out(y).silu()), 2)


def draw(model: FlowUNet, classes: list[int], steps: int, guidance: float, seed: int) -> np.ndarray:
    """Images uint8 [N, 28, 28] of the classes, by so many steps of Euler's method from normal noise.

    Each step goes `guidance` times as far from the velocity of any image as that of the class is (1: it goes by the
    class alone). An image depends on the seed and on its place in the list, not on what else is drawn.
    """
    @jit
    def step(x: Tensor, time: Tensor, labels: Tensor) -> Tensor:
        with Tensor.no_grad():
            both, times = Tensor.cat(x, x, dim=0), time.expand(2 * len(classes))
            free, wanted = model(both, times, labels).chunk(2, dim=0)
            return x + (free + guidance * (wanted - free)) / steps

    noise = [np.random.default_rng([seed, place]).standard_normal((1, 28, 28)) for place in range(len(classes))]
    x = Tensor(np.stack(noise).astype(np.float32))
    labels = Tensor(np.array([model.sizes.classes] * len(classes) + classes, np.int64))
    model.eval()
    for number in range(steps):
        x = step(x, Tensor(np.float32(number / steps)), labels)
    return ((x.squeeze(1) + 1) * 127.5).round().clip(0, 255).cast("uint8").numpy()


# Files


def save_flow(model: FlowUNet, names: list[str], path: Path) -> None:
    """Writes the weights in float16, with the sizes and the names of classes."""
    facts = {"sizes": asdict(model.sizes), "classes": names}
    tensors = {name: tensor.half() for name, tensor in get_state_dict(model).items()}
    safe_save(tensors, path, {"minigrad": json.dumps(facts)}, durable=True)


def load_flow(path: Path) -> tuple[FlowUNet, list[str]]:
    """The model in a file of `save_flow`, and the names of its classes. Raises FormatError for another file."""
    try:
        facts = json.loads(safe_metadata(path)["minigrad"])
        model, names = FlowUNet(Sizes(**facts["sizes"])), [str(name) for name in facts["classes"]]
        if len(names) != model.sizes.classes:
            raise ValueError
    except (KeyError, TypeError, ValueError, MinigradError):
        raise FormatError(f"{path}: expected a model of examples/diffusion/train.py, got another file") from None
    try:
        load_state_dict(model, safe_load(path))
    except (FormatError, ShapeError) as error:
        raise FormatError(f"{path}: expected the weights of the model that it describes: {error}") from None
    return model.eval(), names
