"""MobileNetV2, with the names of parameters of torchvision.

Images [N, 3, H, W] become logits [N, classes]. Dropout is left out.

Source: Sandler et al. 2018, https://arxiv.org/abs/1801.04381
"""
from __future__ import annotations

from typing import NamedTuple

from minigrad import Tensor, nn


class Stage(NamedTuple):
    """A row of the paper's table 2: `repeats` blocks, of which the first has the stride."""

    expansion: int
    channels: int
    repeats: int
    stride: int


STAGES = (
    Stage(1, 16, 1, 1),
    Stage(6, 24, 2, 2),
    Stage(6, 32, 3, 2),
    Stage(6, 64, 4, 2),
    Stage(6, 96, 3, 1),
    Stage(6, 160, 3, 2),
    Stage(6, 320, 1, 1),
)


def conv_norm_relu6(in_channels: int, out_channels: int, kernel: int, stride: int = 1, groups: int = 1,
                    ) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(in_channels, out_channels, kernel, stride, (kernel - 1) // 2, groups=groups, bias=False),
        nn.BatchNorm2d(out_channels), nn.ReLU6())


class InvertedResidual(nn.Module):
    """1x1 to `expansion` times the channels, 3x3 of each channel by itself, 1x1 to the output's channels without an
    activation; the input is added where shapes allow."""

    def __init__(self, in_channels: int, out_channels: int, stride: int, expansion: int):
        hidden = in_channels * expansion
        expand = [] if expansion == 1 else [conv_norm_relu6(in_channels, hidden, 1)]
        self.conv = nn.Sequential(
            *expand, conv_norm_relu6(hidden, hidden, 3, stride, groups=hidden),
            nn.Conv2d(hidden, out_channels, 1, bias=False), nn.BatchNorm2d(out_channels))
        self.residual = stride == 1 and in_channels == out_channels

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv(x) if self.residual else self.conv(x)


class MobileNetV2(nn.Module):
    def __init__(self, classes: int = 1000, stages: tuple[Stage, ...] = STAGES):
        channels, head = 32, 1280
        layers: list[nn.Module] = [conv_norm_relu6(3, channels, 3, 2)]
        for stage in stages:
            for repeat in range(stage.repeats):
                stride = stage.stride if repeat == 0 else 1
                layers.append(InvertedResidual(channels, stage.channels, stride, stage.expansion))
                channels = stage.channels
        self.features = nn.Sequential(*layers, conv_norm_relu6(channels, head, 1))
        self.classifier = nn.Sequential(nn.Identity(), nn.Linear(head, classes))  # 0 is dropout in torchvision

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.features(x).mean((2, 3)))
