"""Stable Diffusion's U-Net with cross attention, with the names of parameters of diffusers (UNet2DConditionModel).

Latents [N, 4, H, W], times [N] and rows of a text [N, L, text width] become what the sampler asks for, of the shape of
the latents. XL takes the text's summary and sizes besides. `Config` says what differs between 1.x, 2.x and XL.

Sources: Rombach et al. 2022, https://arxiv.org/abs/2112.10752; Podell et al. 2023, https://arxiv.org/abs/2307.01952
"""
from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from examples.zoo.vae import Upsample2D
from minigrad import Tensor, nn


@dataclass(frozen=True)
class Config:
    """Channels of the levels, residual blocks of each, blocks of a transformer in each (0: none) and in the middle,
    heads of attention in each, the width of a text's rows, and whether transformers project by linear layers.

    XL: `size_width` numbers for each of six sizes, which with the text's summary are `added` numbers (0: neither).
    `guided` is the width of an embedded guidance, of models that were distilled with it (0: none).
    """

    channels: tuple[int, ...] = (320, 640, 1280, 1280)
    layers: int = 2
    depths: tuple[int, ...] = (1, 1, 1, 0)
    middle: int = 1
    heads: tuple[int, ...] = (8, 8, 8, 8)
    text: int = 768
    linear: bool = False
    size_width: int = 0
    added: int = 0
    guided: int = 0
    groups: int = 32
    eps: float = 1e-5
    latents: int = 4


def waves(times: Tensor, count: int) -> Tensor:
    """Cosines and sines [..., count] of times [...], of periods from 2 pi to 10,000 times as long."""
    half = count // 2
    rates = Tensor(np.exp(np.arange(half) * (-math.log(10000) / half)).astype(np.float32), device=times.device)
    angles = times.unsqueeze(-1) * rates
    return Tensor.cat(angles.cos(), angles.sin(), dim=-1)


def guidance_waves(guidance: float, count: int) -> np.ndarray:
    """Sines and cosines [1, count] of a guidance, as models that were distilled with it take it."""
    half = count // 2
    angles = (guidance - 1) * 1000 * np.exp(np.arange(half) * (-math.log(10000) / (half - 1)))
    return np.concatenate([np.sin(angles), np.cos(angles)])[None].astype(np.float32)


class Embedding(nn.Module):
    """Two linear layers with SiLU between; `condition` is added to what they take."""

    def __init__(self, inputs: int, outputs: int, condition: int = 0):
        self.linear_1, self.linear_2 = nn.Linear(inputs, outputs), nn.Linear(outputs, outputs)
        self.cond_proj = nn.Linear(condition, inputs, bias=False) if condition else None

    def forward(self, x: Tensor, condition: Tensor | None = None) -> Tensor:
        if self.cond_proj is not None and condition is not None:
            x = x + self.cond_proj(condition)
        return self.linear_2(self.linear_1(x).silu())


class ResnetBlock2D(nn.Module):
    """Two 3x3 convolutions, each after group norm and SiLU, with the time added between; added to the input, or to a
    1x1 convolution of it where channels change."""

    def __init__(self, inputs: int, outputs: int, config: Config):
        self.norm1 = nn.GroupNorm(config.groups, inputs, config.eps)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, padding=1)
        self.time_emb_proj = nn.Linear(4 * config.channels[0], outputs)
        self.norm2 = nn.GroupNorm(config.groups, outputs, config.eps)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1)
        self.conv_shortcut = None if inputs == outputs else nn.Conv2d(inputs, outputs, 1)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        y = self.conv1(self.norm1(x).silu()) + self.time_emb_proj(time.silu())[:, :, None, None]
        y = self.conv2(self.norm2(y).silu())
        return (x if self.conv_shortcut is None else self.conv_shortcut(x)) + y


class Attention(nn.Module):
    """Attention of rows [N, L, width] to themselves, or to other rows."""

    def __init__(self, width: int, heads: int, others: int):
        self.heads = heads
        self.to_q = nn.Linear(width, width, bias=False)
        self.to_k, self.to_v = nn.Linear(others, width, bias=False), nn.Linear(others, width, bias=False)
        self.to_out = nn.ModuleList([nn.Linear(width, width)])

    def forward(self, x: Tensor, others: Tensor) -> Tensor:
        q, k, v = (rows.unflatten(-1, (self.heads, -1)).transpose(1, 2)
                   for rows in (self.to_q(x), self.to_k(others), self.to_v(others)))
        return self.to_out[0](q.scaled_dot_product_attention(k, v).transpose(1, 2).flatten(2))


class GEGLU(nn.Module):
    """The first half of a linear layer's results times the GELU of the second."""

    def __init__(self, inputs: int, outputs: int):
        self.proj = nn.Linear(inputs, 2 * outputs)

    def forward(self, x: Tensor) -> Tensor:
        value, gate = self.proj(x).chunk(2, dim=-1)
        return value * nn.functional.gelu(gate)


class FeedForward(nn.Module):
    def __init__(self, width: int):
        self.net = nn.ModuleList([GEGLU(width, 4 * width), nn.Identity(), nn.Linear(4 * width, width)])

    def forward(self, x: Tensor) -> Tensor:
        return self.net[2](self.net[0](x))


class BasicTransformerBlock(nn.Module):
    """Attention to the image, to the text, and a perceptron, each after layer norm and added to its input."""

    def __init__(self, width: int, heads: int, text: int):
        self.norm1, self.attn1 = nn.LayerNorm(width), Attention(width, heads, width)
        self.norm2, self.attn2 = nn.LayerNorm(width), Attention(width, heads, text)
        self.norm3, self.ff = nn.LayerNorm(width), FeedForward(width)

    def forward(self, x: Tensor, text: Tensor) -> Tensor:
        rows = self.norm1(x)
        x = x + self.attn1(rows, rows)
        x = x + self.attn2(self.norm2(x), text)
        return x + self.ff(self.norm3(x))


class Transformer2DModel(nn.Module):
    """Transformer blocks over the places of [N, C, H, W], added to it."""

    def __init__(self, channels: int, heads: int, depth: int, config: Config):
        self.linear = config.linear
        self.norm = nn.GroupNorm(config.groups, channels, 1e-6)
        self.proj_in, self.proj_out = (
            nn.Linear(channels, channels) if config.linear else nn.Conv2d(channels, channels, 1) for _ in range(2))
        self.transformer_blocks = nn.ModuleList([BasicTransformerBlock(channels, heads, config.text)
                                                 for _ in range(depth)])

    def forward(self, x: Tensor, text: Tensor) -> Tensor:
        y = self.norm(x)
        y = self.proj_in(y.flatten(2).transpose(1, 2)) if self.linear else self.proj_in(y).flatten(2).transpose(1, 2)
        for block in self.transformer_blocks:
            y = block(y, text)
        if self.linear:
            return x + self.proj_out(y).transpose(1, 2).reshape(*x.shape)
        return x + self.proj_out(y.transpose(1, 2).reshape(*x.shape))


class Downsample2D(nn.Module):
    """Half the height and width by a 3x3 convolution."""

    def __init__(self, channels: int):
        self.conv = nn.Conv2d(channels, channels, 3, 2, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x)


class Level(nn.Module):
    """Residual blocks with a transformer behind each where `depth` says so."""

    def __init__(self, inputs: list[int], outputs: int, depth: int, heads: int, config: Config):
        self.resnets = nn.ModuleList([ResnetBlock2D(width, outputs, config) for width in inputs])
        self.attentions = nn.ModuleList([Transformer2DModel(outputs, heads, depth, config)
                                         for _ in inputs if depth])

    def layer(self, number: int, x: Tensor, time: Tensor, text: Tensor) -> Tensor:
        """One residual block, and its transformer."""
        x = self.resnets[number](x, time)
        return self.attentions[number](x, text) if len(self.attentions) else x


class DownLevel(Level):
    """Gives what each layer found, the last one halved unless this is the lowest level."""

    def __init__(self, place: int, config: Config):
        outputs = config.channels[place]
        inputs = [config.channels[max(place - 1, 0)], *[outputs] * (config.layers - 1)]
        super().__init__(inputs, outputs, config.depths[place], config.heads[place], config)
        last = place == len(config.channels) - 1
        self.downsamplers = nn.ModuleList([] if last else [Downsample2D(outputs)])

    def forward(self, x: Tensor, time: Tensor, text: Tensor) -> list[Tensor]:
        found = []
        for number in range(len(self.resnets)):
            x = self.layer(number, x, time, text)
            found.append(x)
        return [*found, *[down(x) for down in self.downsamplers]]


class UpLevel(Level):
    """Takes what the level found on the way down beside its input, layer by layer, the last found first."""

    def __init__(self, place: int, config: Config):
        channels = config.channels
        outputs, above = channels[place], channels[max(place - 1, 0)]
        below = channels[min(place + 1, len(channels) - 1)]
        skips = [*[outputs] * config.layers, above]
        inputs = [skip + (outputs if number else below) for number, skip in enumerate(skips)]
        super().__init__(inputs, outputs, config.depths[place], config.heads[place], config)
        self.upsamplers = nn.ModuleList([Upsample2D(outputs)] if place else [])

    def forward(self, x: Tensor, skips: list[Tensor], time: Tensor, text: Tensor) -> Tensor:
        for number in range(len(self.resnets)):
            x = self.layer(number, Tensor.cat(x, skips.pop(), dim=1), time, text)
        for up in self.upsamplers:
            x = up(x)
        return x


class Middle(Level):
    """A residual block, a transformer, and a residual block."""

    def __init__(self, config: Config):
        width = config.channels[-1]
        super().__init__([width, width], width, 0, 0, config)
        self.attentions = nn.ModuleList([Transformer2DModel(width, config.heads[-1], config.middle, config)])

    def forward(self, x: Tensor, time: Tensor, text: Tensor) -> Tensor:
        return self.resnets[1](self.attentions[0](self.resnets[0](x, time), text), time)


class UNet2DConditionModel(nn.Module):
    """Latents, times and a text to what the sampler asks for. Heights and widths are multiples of 2 for each level but
    the lowest."""

    def __init__(self, config: Config = Config()):
        self.config, channels = config, config.channels
        embedded = 4 * channels[0]
        self.conv_in = nn.Conv2d(config.latents, channels[0], 3, padding=1)
        self.time_embedding = Embedding(channels[0], embedded, config.guided)
        self.add_embedding = Embedding(config.added, embedded) if config.added else None
        self.down_blocks = nn.ModuleList([DownLevel(place, config) for place in range(len(channels))])
        self.mid_block = Middle(config)
        self.up_blocks = nn.ModuleList([UpLevel(place, config) for place in reversed(range(len(channels)))])
        self.conv_norm_out = nn.GroupNorm(config.groups, channels[0], config.eps)
        self.conv_out = nn.Conv2d(channels[0], config.latents, 3, padding=1)

    def forward(self, x: Tensor, times: Tensor, text: Tensor, summary: Tensor | None = None,
                sizes: Tensor | None = None, guidance: Tensor | None = None) -> Tensor:
        """`summary` [N, M] and `sizes` [N, 6] are XL's: of the text, and (height, width) before, cut off and wanted.
        `guidance` [N, guided] is `guidance_waves`, for models that were distilled with it."""
        config = self.config
        time = self.time_embedding(waves(times, config.channels[0]).cast(x.dtype), guidance)
        if self.add_embedding is not None and summary is not None and sizes is not None:
            added = Tensor.cat(summary, waves(sizes, config.size_width).flatten(1).cast(x.dtype), dim=1)
            time = time + self.add_embedding(added)
        x = self.conv_in(x)
        skips = [x]
        for block in self.down_blocks:
            skips += block(skips[-1], time, text)
        x = self.mid_block(skips[-1], time, text)
        for block in self.up_blocks:
            x = block(x, skips, time, text)
        return self.conv_out(self.conv_norm_out(x).silu())
