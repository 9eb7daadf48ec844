"""Random small networks, by seed: images, signals, volumes, words and rows, with the layers of `nn`.

Layers are drawn one after the other for the shape that the last one gives (minigrad's own, computed lazily), so that
every network is valid; one whose result or work would be large is drawn again.
"""
from __future__ import annotations

import math
from collections.abc import Callable
from random import Random

from bench.descriptions import Layer, Network, around, build_layer, layer
from bench.frameworks import Ours
from minigrad import Tensor

ELEMENTS, PRODUCTS = 300_000, 40_000_000
"""The most that the result of a layer may have, and the multiply-adds of a layer."""
Shape = tuple[int, ...]
ACTIVATIONS = ("ReLU", "ReLU6", "LeakyReLU", "ELU", "SELU", "CELU", "GELU", "SiLU", "Mish", "Tanh", "Sigmoid",
               "Hardswish", "Hardsigmoid", "Softplus", "Softsign", "LogSigmoid", "Hardtanh", "PReLU", "Tanhshrink")
PAD_MODES = ("zeros", "reflect", "replicate", "circular")
PADS = ("ReflectionPad", "ReplicationPad", "CircularPad", "ZeroPad")


def network(seed: int) -> Network:
    """The network of a seed; its name says its kind."""
    r = Random(seed)
    kind = r.choice(list(KINDS))
    return KINDS[kind](r, f"network {seed} {kind}")


def kind_of(seed: int) -> str:
    return Random(seed).choice(list(KINDS))


def after(part: Layer, shape: Shape) -> Shape:
    """The shape that a layer makes of another."""
    return tuple(build_layer(Ours, part)(Tensor.zeros(*shape)).shape)


def _grow(r: Random, shape: Shape, depth: int, draws: tuple[Callable[[Random, Shape], Layer | None], ...],
          ) -> tuple[list[Layer], Shape]:
    """Layers by any of the draws, which return None where they have nothing for a shape."""
    found: list[Layer] = []
    while len(found) < depth:
        part = r.choice(draws)(r, shape)
        if part is None:
            continue
        out = after(part, shape)
        if math.prod(out) <= ELEMENTS and min(out) > 0:
            found.append(part)
            shape = out
    return found, shape


# Images, signals and volumes


def _channels(r: Random, most: int = 64) -> int:
    return r.choice([c for c in (1, 3, 6, 8, 12, 13, 16, 16, 24, 31, 32, 32, 48, 64) if c <= most])


def _convolution(r: Random, shape: Shape) -> Layer | None:
    axes, channels = len(shape) - 2, shape[1]
    out, smallest = _channels(r), min(shape[2:])
    kernel = r.choice([k for k in (1, 2, 3, 3, 3, 4, 5, 7, 9) if k <= min(smallest, 9 if axes < 3 else 3)])
    dilation = r.choice([1, 1, 1, 2])
    reach = dilation * (kernel - 1)
    if reach >= smallest:
        return None
    groups = r.choice([g for g in (1, 1, 1, 2, 3, 4, channels) if channels % g == 0])
    out = out if out % groups == 0 else groups * max(1, out // groups)
    padding = r.randint(0, min(reach, smallest - 1))
    mode, stride = r.choice(PAD_MODES), r.choice([1, 1, 2, 3])
    if out * channels // groups * kernel**axes * math.prod(shape[2:]) * shape[0] // stride**axes > PRODUCTS:
        return None
    return layer(f"Conv{axes}d", channels, out, kernel, stride, padding, dilation, groups, r.random() < 0.7,
                 padding_mode=mode)


def _transposed(r: Random, shape: Shape) -> Layer | None:
    axes, channels, out = len(shape) - 2, shape[1], _channels(r, 32)
    kernel, stride = r.choice([2, 3, 4, 5] if axes < 3 else [2, 3]), r.choice([1, 2, 2, 3])
    padding = r.randint(0, min(kernel // 2, min(shape[2:]) // 2))
    groups = r.choice([g for g in (1, 1, 2, 4) if channels % g == 0 and out % g == 0])
    if out * channels // groups * kernel**axes * math.prod(shape[2:]) * shape[0] > PRODUCTS:
        return None
    return layer(f"ConvTranspose{axes}d", channels, out, kernel, stride, padding,
                 r.randint(0, stride - 1), groups)


def _pad(r: Random, shape: Shape) -> Layer:
    axes = len(shape) - 2
    most = min(3, min(shape[2:]) - 1)
    return layer(f"{r.choice(PADS)}{axes}d", tuple(r.randint(0, most) for _ in range(2 * axes)))


def _pool(r: Random, shape: Shape) -> Layer | None:
    axes, smallest = len(shape) - 2, min(shape[2:])
    kind = r.choice(["MaxPool", "MaxPool", "AvgPool", "AvgPool", "AdaptiveAvgPool", "AdaptiveMaxPool", "LPPool"])
    if kind.startswith("Adaptive"):
        return layer(f"{kind}{axes}d", tuple(r.randint(max(1, s // 3), s) for s in shape[2:]))
    if smallest < 4:
        return None
    kernel, stride = r.choice([2, 2, 3]), r.choice([1, 2, 2, 3])
    if kind == "LPPool":
        return layer(f"LPPool{axes}d", 2, kernel, stride)
    return layer(f"{kind}{axes}d", kernel, stride, r.randint(0, kernel // 2), ceil_mode=r.random() < 0.3)


def _resample(r: Random, shape: Shape) -> Layer | None:
    axes = len(shape) - 2
    if axes == 2 and shape[1] % 4 == 0 and r.random() < 0.2:
        return layer("PixelShuffle", 2)
    if axes == 2 and r.random() < 0.1 and shape[2] % 2 == shape[3] % 2 == 0:
        return layer("PixelUnshuffle", 2)
    if axes == 2 and shape[1] % 2 == 0 and r.random() < 0.1:
        return layer("ChannelShuffle", 2)
    mode = r.choice(["nearest", "nearest", *{1: ("linear",), 2: ("bilinear", "bicubic"), 3: ("trilinear",)}[axes]])
    options = {} if mode == "nearest" else {"align_corners": r.random() < 0.5}
    if r.random() < 0.6:
        return layer("Upsample", scale_factor=r.choice([2, 2, 1.5, 3]), mode=mode, **options)
    return layer("Upsample", size=tuple(r.randint(s, 2 * s) for s in shape[2:]), mode=mode, **options)


def _norm(r: Random, shape: Shape) -> Layer | None:
    axes, channels, places = len(shape) - 2, shape[1], math.prod(shape[2:])
    kind = r.choice(["BatchNorm", "BatchNorm", "GroupNorm", "InstanceNorm", "LayerNorm", "LocalResponseNorm"])
    if kind == "BatchNorm":
        return layer(f"BatchNorm{axes}d", channels) if shape[0] * places >= 8 else None
    if kind == "GroupNorm":
        groups = r.choice([g for g in (1, 2, 4, 8) if channels % g == 0])
        return layer("GroupNorm", groups, channels) if channels // groups * places >= 8 else None
    if kind == "InstanceNorm":
        return layer(f"InstanceNorm{axes}d", channels, affine=r.random() < 0.5) if places >= 8 else None
    if kind == "LayerNorm":
        return layer("LayerNorm", shape[1:]) if 8 <= math.prod(shape[1:]) <= 20_000 else None
    return layer("LocalResponseNorm", r.choice([2, 3, 5]))


def _activation(r: Random, shape: Shape) -> Layer:
    if r.random() < 0.05 and shape[1] % 2 == 0:
        return layer("GLU", 1)
    return layer(r.choice(ACTIVATIONS))


def _block(r: Random, shape: Shape) -> Layer | None:
    """Convolutions that keep the size, joined with what they read."""
    axes, channels = len(shape) - 2, shape[1]
    kernel = r.choice([k for k in (1, 3, 5) if k <= min(shape[2:])])
    joined = r.choice(["Residual", "Residual", "Dense", "Gate"])
    out = _channels(r, 32) if joined == "Dense" else channels
    if (out + channels) * channels * kernel**axes * math.prod(shape[2:]) * shape[0] > PRODUCTS:
        return None
    mode = r.choice(PAD_MODES if kernel // 2 < min(shape[2:]) else PAD_MODES[:1])
    parts = [layer(f"Conv{axes}d", channels, channels, kernel, padding=kernel // 2, padding_mode=mode),
             _norm(r, shape), layer(r.choice(ACTIVATIONS)),
             layer(f"Conv{axes}d", channels, out, kernel, padding=kernel // 2, padding_mode=mode)]
    return around(joined, *(part for part in parts if part is not None))


SPATIAL = (_convolution, _convolution, _convolution, _transposed, _pad, _pool, _resample, _norm, _activation,
           _activation, _block)


def _spatial(axes: int, sizes: tuple[int, int]) -> Callable[[Random, str], Network]:
    def draw(r: Random, name: str) -> Network:
        batch, channels = r.choice([1, 2, 3, 4, 8, 8, 16]), r.choice([1, 3, 3, 8, 16, 32])
        shape = (batch, channels, *(r.randint(*sizes) for _ in range(axes)))
        first = layer(f"Conv{axes}d", shape[1], _channels(r, 32), 3, padding=1)
        layers, out = _grow(r, after(first, shape), r.randint(3, 8), SPATIAL)
        layers = [first, *layers]
        classes = r.random() < 0.6
        if classes:
            classes_of = r.choice([2, 10, 37])
            head = [layer(f"AdaptiveAvgPool{axes}d", 1)] if math.prod(out[1:]) > 4096 or r.random() < 0.5 else []
            features = out[1] if head else math.prod(out[1:])
            layers += [*head, layer("Flatten"), layer("Linear", features, classes_of)]
            out = (shape[0], classes_of)
        return Network(name, shape, tuple(layers), out, classes, optimizer=r.choice(["SGD", "Adam"]))

    return draw


# Words and rows


def _mixing(r: Random, shape: Shape) -> Layer | None:
    """Attention, alone or in a layer of a transformer."""
    width = shape[2]
    heads = r.choice([h for h in (1, 2, 4, 8) if width % h == 0])
    if r.random() < 0.5:
        return around("Residual", layer("LayerNorm", width), layer("SelfAttention", width, heads))
    return layer("TransformerEncoderLayer", width, heads, r.choice([2, 4]) * width, 0.0,
                 activation=r.choice(["relu", "gelu"]), batch_first=True, norm_first=r.random() < 0.5)


def _recurrent(r: Random, shape: Shape) -> Layer:
    return around("Outputs", layer(r.choice(["LSTM", "GRU", "RNN"]), shape[2], r.choice([16, 33, 64, 128]),
                                   r.choice([1, 1, 2]), batch_first=True, bidirectional=r.random() < 0.25))


def _along(r: Random, shape: Shape) -> Layer | None:
    """A convolution along the words."""
    conv = _convolution(r, (shape[0], shape[2], shape[1]))
    return None if conv is None else around("Sequential", layer("Transpose"), conv, layer(r.choice(ACTIVATIONS)),
                                            layer("Transpose"))


def _linear(r: Random, shape: Shape) -> Layer:
    return layer("Linear", shape[-1], r.choice([7, 16, 33, 64, 100, 128, 256]), r.random() < 0.8)


def _norm_of_last(r: Random, shape: Shape) -> Layer | None:
    if len(shape) == 2 and shape[0] >= 8 and r.random() < 0.5:
        return layer("BatchNorm1d", shape[1])
    return layer(r.choice(["LayerNorm", "LayerNorm", "RMSNorm"]), shape[-1]) if shape[-1] >= 4 else None


def _plain_activation(r: Random, shape: Shape) -> Layer:
    return layer(r.choice([name for name in ACTIVATIONS if name != "PReLU"]))


def _feed_forward(r: Random, shape: Shape) -> Layer:
    hidden = r.choice([1, 2, 4]) * shape[-1]
    return around("Residual", layer("Linear", shape[-1], hidden), layer(r.choice(ACTIVATIONS[:8])),
                  layer("Linear", hidden, shape[-1]))


WORDS = (_mixing, _mixing, _recurrent, _along, _linear, _norm_of_last, _plain_activation, _feed_forward)
ROWS = (_linear, _linear, _linear, _norm_of_last, _plain_activation, _plain_activation, _feed_forward)


def _words(r: Random, name: str) -> Network:
    shape, vocabulary = (r.choice([1, 4, 8, 16]), r.randint(5, 48)), r.choice([50, 500, 3000])
    width = r.choice([16, 24, 32, 64, 100, 128])
    layers, out = _grow(r, (*shape, width), r.randint(1, 4), WORDS)
    layers = [layer("Embedding", vocabulary, width), *layers]
    classes = r.choice([2, 5, vocabulary])
    if classes == vocabulary:  # one answer for each word
        layers += [layer("Linear", out[2], vocabulary), layer("Transpose")]
        return Network(name, shape, tuple(layers), (out[0], vocabulary, out[1]), True, vocabulary,
                       r.choice(["SGD", "Adam"]))
    layers += [layer(r.choice(["Mean", "Most", "Last"])), layer("Linear", out[2], classes)]
    return Network(name, shape, tuple(layers), (shape[0], classes), True, vocabulary, r.choice(["SGD", "Adam"]))


def _rows(r: Random, name: str) -> Network:
    shape = (r.choice([1, 16, 32, 100, 256]), r.choice([5, 13, 64, 200, 784]))
    layers, out = _grow(r, shape, r.randint(3, 8), ROWS)
    classes = r.choice([2, 10, 100])
    return Network(name, shape, (*layers, layer("Linear", out[1], classes)), (shape[0], classes), True,
                   optimizer=r.choice(["SGD", "Adam"]))


KINDS: dict[str, Callable[[Random, str], Network]] = {
    "images": _spatial(2, (9, 48)), "signals": _spatial(1, (30, 800)), "volumes": _spatial(3, (5, 16)),
    "words": _words, "rows": _rows}
