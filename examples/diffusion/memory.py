"""The memory that a picture takes, from the headers of a checkpoint, and what to do with less of it."""
from __future__ import annotations

import math
from dataclasses import dataclass

from examples.diffusion.checkpoint import Checkpoint, text_part
from examples.llama.memory import TooLarge, size

DTYPES = {"float32": 4, "float16": 2, "bfloat16": 2}
"""Types of weights, and their bytes."""
TILES = (0, 96, 64, 48, 32)
"""Sides of the decoder's tiles, in latents, in the order in which they are tried; 0: all at once."""
BESIDE = 600 << 20
"""Bytes for Python, compiled programs and packed weights."""
NET_VALUES, DECODER_VALUES, ENCODER_VALUES = 26, 3.3, 2.0
"""Values that live at once, for each place and channel: of the U-Net in its first level, of the autoencoder in its
second channels at the picture's size (`minigrad.plan` says 17 to 26 for 512x512 and more, and 2 to 3 for the decoder).
"""


@dataclass(frozen=True)
class Choice:
    """The type of weights, the side of tiles, and the bytes that this takes."""

    dtype: str
    tile: int
    total: int


def choose(checkpoint: Checkpoint, height: int, width: int, rows: int, budget: int | None, dtype: str | None,
           tile: int | None, image: bool = False) -> Choice:
    """The widest type of weights and the largest tile that keep a budget (None: any), or those that are given; `rows`
    are the latents of a step, 2 with guidance; `image`: there is one to begin with, which is encoded as a whole. Raises
    TooLarge where nothing does, before a weight is read."""
    nets = {each: net_bytes(checkpoint, height, width, rows, each)
            for each in ([dtype] if dtype else ["float32", "float16"])}
    decoders = {each: decoder_bytes(checkpoint, height, width, each)
                for each in ([tile] if tile is not None else TILES) if each < max(height, width) // 8}
    encoder = {0: _autoencoder_bytes(checkpoint, height * width, ENCODER_VALUES, height * width) if image else 0}
    for name, costs in (("U-Net", nets), ("decoder", decoders), ("encoder", encoder)):
        needs = min(costs.values())
        if budget is None or needs <= budget:
            continue
        raise TooLarge(f"{checkpoint.path}: does not fit: the {name} takes {size(needs)} at {width}x{height}, "
                       f"and {size(budget)} may be taken; what may help: a smaller --size, "
                       f"{'--guidance 1, ' if rows == 2 else ''}--weights float16, --tile 32, or a smaller model")
    kind, net = next((each, cost) for each, cost in nets.items() if budget is None or cost <= budget)
    side, decoder = next((each, cost) for each, cost in decoders.items() if budget is None or cost <= budget)
    return Choice(kind, side, max(net, decoder, encoder[0]))


def net_bytes(checkpoint: Checkpoint, height: int, width: int, rows: int, dtype: str) -> int:
    """Bytes at once of the U-Net or of the largest encoder of texts."""
    each, config = DTYPES[dtype], checkpoint.unet
    texts = max(elements(checkpoint, text_part(number)) for number in range(len(checkpoint.texts)))
    values = rows * (height // 8) * (width // 8) * config.channels[0] * NET_VALUES
    return BESIDE + each * max(texts, elements(checkpoint, "unet") + values)


def decoder_bytes(checkpoint: Checkpoint, height: int, width: int, tile: int) -> int:
    """Bytes of the decoder, which is in float32, and of the picture."""
    pixels = min(tile or height, height // 8) * min(tile or width, width // 8) * 64
    return _autoencoder_bytes(checkpoint, pixels, DECODER_VALUES, height * width)


def _autoencoder_bytes(checkpoint: Checkpoint, pixels: int, each: float, picture: int) -> int:
    channels = checkpoint.vae.channels
    values = pixels * channels[min(1, len(channels) - 1)] * each
    return BESIDE + int(4 * (elements(checkpoint, "vae") + values + 8 * picture))


def elements(checkpoint: Checkpoint, part: str) -> int:
    """Numbers in a part's weights."""
    return sum(math.prod(map(int, tensor.shape)) for tensor in checkpoint.state(part).values())
