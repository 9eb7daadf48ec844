"""Shapes of convolution layers, as data.

MobileNet's 1x1 layers and ResNet-18's layers are those of TVM's benchmarks (apache/tvm #1276), one entry per distinct
shape, with the networks' strides. EfficientNet-B0's are derived from its table of stages (Tan & Le 2019).
"""
from __future__ import annotations

from dataclasses import dataclass

from examples.efficientnet.model import STAGES


@dataclass(frozen=True)
class ConvLayer:
    """A square convolution whose padding keeps the size at stride 1; depthwise where `groups` is not 1."""

    in_channels: int
    size: int
    out_channels: int
    kernel: int
    stride: int = 1
    groups: int = 1

    @property
    def padding(self) -> int:
        return (self.kernel - 1) // 2

    @property
    def out_size(self) -> int:
        return (self.size + 2 * self.padding - self.kernel) // self.stride + 1

    @property
    def depth(self) -> int:
        """Input channels that one output channel reads."""
        return self.in_channels // self.groups

    @property
    def flop(self) -> int:
        """Operations of the forward pass of one image; each gradient has as many."""
        return 2 * self.depth * self.kernel**2 * self.out_channels * self.out_size**2

    def __str__(self) -> str:
        depthwise = " depthwise" if self.groups > 1 else ""
        return (f"{self.in_channels}x{self.size}x{self.size}->{self.out_channels} k{self.kernel} s{self.stride}"
                f"{depthwise}")


def _layers(*rows: tuple[int, ...]) -> tuple[ConvLayer, ...]:
    return tuple(ConvLayer(*row) for row in rows)


# Input channels, size, output channels, kernel, stride.
MOBILENET = _layers(
    (512, 7, 1024, 1), (1024, 7, 1024, 1), (32, 112, 64, 1), (64, 56, 128, 1), (128, 56, 128, 1), (128, 28, 256, 1),
    (256, 28, 256, 1), (256, 14, 512, 1), (512, 14, 512, 1))
RESNET_18 = _layers(
    (3, 224, 64, 7, 2), (64, 56, 64, 3), (64, 56, 64, 1), (64, 56, 128, 3, 2), (64, 56, 128, 1, 2), (128, 28, 128, 3),
    (128, 28, 256, 3, 2), (128, 28, 256, 1, 2), (256, 14, 256, 3), (256, 14, 512, 3, 2), (256, 14, 512, 1, 2),
    (512, 7, 512, 3))


def efficientnet_b0(image_size: int = 224) -> tuple[ConvLayer, ...]:
    """The distinct convolutions in order, without those inside squeeze-and-excitation."""
    layers = [ConvLayer(3, image_size, 32, 3, 2)]
    size, channels = layers[0].out_size, 32
    for stage in STAGES:
        for repeat in range(stage.repeats):
            hidden = channels * stage.expansion
            if hidden != channels:
                layers.append(ConvLayer(channels, size, hidden, 1))
            layers.append(ConvLayer(hidden, size, hidden, stage.kernel, stage.stride if repeat == 0 else 1, hidden))
            size, channels = layers[-1].out_size, stage.out_channels
            layers.append(ConvLayer(hidden, size, channels, 1))
    layers.append(ConvLayer(channels, size, 1280, 1))
    return tuple(dict.fromkeys(layers))


POINTWISE = tuple(layer for layer in efficientnet_b0() if layer.kernel == 1)
DEPTHWISE = tuple(layer for layer in efficientnet_b0() if layer.groups > 1)
NETWORKS = {
    "mobilenet": MOBILENET,
    "resnet18": RESNET_18,
    "efficientnet_b0_pointwise": POINTWISE,
    "efficientnet_b0_depthwise": DEPTHWISE,
}
QUICK_LAYERS = _layers((4, 8, 6, 3, 2), (8, 6, 5, 1))
QUICK_DEPTHWISE = _layers((4, 8, 4, 3, 1, 4), (4, 9, 4, 5, 2, 4))
