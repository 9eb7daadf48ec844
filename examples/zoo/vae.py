"""Stable Diffusion's autoencoder (AutoencoderKL), with the names of parameters of diffusers.

Latents [N, 4, H, W] become images [N, 3, 8H, 8W] in about -1..1: a middle with one attention over all positions, then
four levels of three residual blocks each, all but the last of which double height and width. Images become latents the
other way, by two residual blocks in each level.

Source: Rombach et al. 2022, https://arxiv.org/abs/2112.10752
"""
from __future__ import annotations

from minigrad import Tensor, nn

CHANNELS = (128, 256, 512, 512)
"""Of the levels, from the image's size to the latents'."""
SCALING = 0.18215
"""The factor of latents that the diffusion model saw: divide by it before decoding."""


def norm(channels: int) -> nn.GroupNorm:
    return nn.GroupNorm(min(32, channels), channels, eps=1e-6)


class ResnetBlock2D(nn.Module):
    """Two 3x3 convolutions, each after group norm and SiLU, added to the input, or to a 1x1 convolution of it where
    channels change."""

    def __init__(self, in_channels: int, out_channels: int):
        self.norm1, self.conv1 = norm(in_channels), nn.Conv2d(in_channels, out_channels, 3, padding=1)
        self.norm2, self.conv2 = norm(out_channels), nn.Conv2d(out_channels, out_channels, 3, padding=1)
        self.conv_shortcut = None if in_channels == out_channels else nn.Conv2d(in_channels, out_channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv1(self.norm1(x).silu())
        y = self.conv2(self.norm2(y).silu())
        return (x if self.conv_shortcut is None else self.conv_shortcut(x)) + y


class Attention(nn.Module):
    """Self-attention of one head over all positions [N, C, H, W], added to the input."""

    def __init__(self, channels: int):
        self.group_norm = norm(channels)
        self.to_q, self.to_k, self.to_v = (nn.Linear(channels, channels) for _ in range(3))
        self.to_out = nn.ModuleList([nn.Linear(channels, channels)])

    def forward(self, x: Tensor) -> Tensor:
        rows = self.group_norm(x).flatten(2).transpose(1, 2)
        q, k, v = (to(rows).unsqueeze(1) for to in (self.to_q, self.to_k, self.to_v))
        mixed = self.to_out[0](q.scaled_dot_product_attention(k, v).squeeze(1))
        return x + mixed.transpose(1, 2).reshape(*x.shape)


class UNetMidBlock2D(nn.Module):
    def __init__(self, channels: int):
        self.attentions = nn.ModuleList([Attention(channels)])
        self.resnets = nn.ModuleList([ResnetBlock2D(channels, channels) for _ in range(2)])

    def forward(self, x: Tensor) -> Tensor:
        return self.resnets[1](self.attentions[0](self.resnets[0](x)))


class Upsample2D(nn.Module):
    """Twice the height and width by repeating pixels, then a 3x3 convolution."""

    def __init__(self, channels: int):
        self.conv = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(nn.functional.interpolate(x, scale_factor=2.0, mode="nearest"))


class UpDecoderBlock2D(nn.Module):
    def __init__(self, in_channels: int, out_channels: int, layers: int, last: bool):
        self.resnets = nn.ModuleList([ResnetBlock2D(out_channels if i else in_channels, out_channels)
                                      for i in range(layers)])
        self.upsamplers = nn.ModuleList([] if last else [Upsample2D(out_channels)])

    def forward(self, x: Tensor) -> Tensor:
        for layer in (*self.resnets, *self.upsamplers):
            x = layer(x)
        return x


class Decoder(nn.Module):
    """`channels` of the levels, and the residual blocks of each but one (`layers`)."""

    def __init__(self, channels: tuple[int, ...] = CHANNELS, layers: int = 2, latents: int = 4):
        levels = channels[::-1]
        self.conv_in = nn.Conv2d(latents, levels[0], 3, padding=1)
        self.mid_block = UNetMidBlock2D(levels[0])
        self.up_blocks = nn.ModuleList([
            UpDecoderBlock2D(levels[max(i - 1, 0)], width, layers + 1, last=i == len(levels) - 1)
            for i, width in enumerate(levels)])
        self.conv_norm_out = norm(levels[-1])
        self.conv_out = nn.Conv2d(levels[-1], 3, 3, padding=1)

    def forward(self, z: Tensor) -> Tensor:
        x = self.mid_block(self.conv_in(z))
        for block in self.up_blocks:
            x = block(x)
        return self.conv_out(self.conv_norm_out(x).silu())


class Downsample2D(nn.Module):
    """Half the height and width by a 3x3 convolution that sees one more row below and one more column at the right."""

    def __init__(self, channels: int):
        self.conv = nn.Conv2d(channels, channels, 3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x.pad((0, 1, 0, 1)))


class DownEncoderBlock2D(nn.Module):
    def __init__(self, in_channels: int, out_channels: int, layers: int, last: bool):
        self.resnets = nn.ModuleList([ResnetBlock2D(out_channels if i else in_channels, out_channels)
                                      for i in range(layers)])
        self.downsamplers = nn.ModuleList([] if last else [Downsample2D(out_channels)])

    def forward(self, x: Tensor) -> Tensor:
        for layer in (*self.resnets, *self.downsamplers):
            x = layer(x)
        return x


class Encoder(nn.Module):
    """Gives means and logarithms of variances, [N, 2 latents, H / 8, W / 8]."""

    def __init__(self, channels: tuple[int, ...] = CHANNELS, layers: int = 2, latents: int = 4):
        self.conv_in = nn.Conv2d(3, channels[0], 3, padding=1)
        self.down_blocks = nn.ModuleList([
            DownEncoderBlock2D(channels[max(i - 1, 0)], width, layers, last=i == len(channels) - 1)
            for i, width in enumerate(channels)])
        self.mid_block = UNetMidBlock2D(channels[-1])
        self.conv_norm_out = norm(channels[-1])
        self.conv_out = nn.Conv2d(channels[-1], 2 * latents, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv_in(x)
        for block in self.down_blocks:
            x = block(x)
        return self.conv_out(self.conv_norm_out(self.mid_block(x)).silu())


class AutoencoderKLEncoder(nn.Module):
    """Computes the mean of `AutoencoderKL.encode`: its state is that of diffusers' file without `decoder.` and
    `post_quant_conv.`."""

    def __init__(self, channels: tuple[int, ...] = CHANNELS, layers: int = 2, latents: int = 4):
        self.encoder = Encoder(channels, layers, latents)
        self.quant_conv = nn.Conv2d(2 * latents, 2 * latents, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.quant_conv(self.encoder(x)).chunk(2, dim=1)[0]


class AutoencoderKLDecoder(nn.Module):
    """Computes `AutoencoderKL.decode`: its state is that of diffusers' file without `encoder.` and
    `quant_conv.`."""

    def __init__(self, channels: tuple[int, ...] = CHANNELS, layers: int = 2, latents: int = 4):
        self.post_quant_conv = nn.Conv2d(latents, latents, 1)
        self.decoder = Decoder(channels, layers, latents)

    def forward(self, z: Tensor) -> Tensor:
        return self.decoder(self.post_quant_conv(z))
