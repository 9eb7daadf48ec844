"""TAESD, the tiny autoencoder for Stable Diffusion, with the names of parameters of its files (madebyollin/taesd).

Images [N, 3, H, W] in 0..1 become latents [N, 4, H/8, W/8] of about the scale that Stable Diffusion's own decoder
expects, and latents become images. H and W are multiples of 8.
"""
from __future__ import annotations

from pathlib import Path

from minigrad import Tensor, nn
from minigrad.nn.state import load_state_dict, safe_load


def conv(in_channels: int, out_channels: int, stride: int = 1, bias: bool = True) -> nn.Conv2d:
    return nn.Conv2d(in_channels, out_channels, 3, stride, padding=1, bias=bias)


class Block(nn.Module):
    """Three 3x3 convolutions, added to the input."""

    def __init__(self, channels: int):
        self.conv = nn.Sequential(conv(channels, channels), nn.ReLU(), conv(channels, channels), nn.ReLU(),
                                  conv(channels, channels))

    def forward(self, x: Tensor) -> Tensor:
        return (self.conv(x) + x).relu()


class Clamp(nn.Module):
    """Latents between -3 and 3, softly."""

    def forward(self, x: Tensor) -> Tensor:
        return (x / 3).tanh() * 3


def encoder(channels: int = 64, latents: int = 4) -> nn.Sequential:
    """Images to latents."""
    def down() -> list[nn.Module]:
        return [conv(channels, channels, stride=2, bias=False), *(Block(channels) for _ in range(3))]

    return nn.Sequential(conv(3, channels), Block(channels), *down(), *down(), *down(), conv(channels, latents))


def decoder(channels: int = 64, latents: int = 4) -> nn.Sequential:
    """Latents to images."""
    def up() -> list[nn.Module]:
        return [*(Block(channels) for _ in range(3)), nn.Upsample(scale_factor=2),
                conv(channels, channels, bias=False)]

    return nn.Sequential(Clamp(), conv(latents, channels), nn.ReLU(), *up(), *up(), *up(), Block(channels),
                         conv(channels, 3))


class TAESD(nn.Module):
    """Both: `encoder` and `decoder`; a call is a round trip, clamped to 0..1."""

    def __init__(self) -> None:
        self.encoder, self.decoder = encoder(), decoder()

    def forward(self, x: Tensor) -> Tensor:
        return self.decoder(self.encoder(x)).clamp(0, 1)

    def load(self, folder: str | Path) -> TAESD:
        """Loads taesd_encoder.safetensors and taesd_decoder.safetensors. Raises FormatError for other files."""
        for name, part in (("encoder", self.encoder), ("decoder", self.decoder)):
            load_state_dict(part, safe_load(Path(folder) / f"taesd_{name}.safetensors"))
        return self
