"""The zoo's models of images once more, in torch: their state has the same names, so that weights go either way."""
from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def norm_conv(inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1) -> list[nn.Module]:
    return [nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False),
            nn.BatchNorm2d(outputs)]


class Residual(nn.Module):
    """ResNet's block of two convolutions, or of three with `wide`."""

    def __init__(self, inputs: int, channels: int, stride: int, wide: bool):
        super().__init__()
        outputs = 4 * channels if wide else channels
        kernels = [(inputs, channels, 1, 1), (channels, channels, 3, stride), (channels, outputs, 1, 1)] if wide else [
            (inputs, channels, 3, stride), (channels, channels, 3, 1)]
        self.count = len(kernels)
        for k, sizes in enumerate(kernels, 1):
            convolution, norm = norm_conv(*sizes)
            self.add_module(f"conv{k}", convolution)
            self.add_module(f"bn{k}", norm)
        self.downsample = nn.Sequential(*norm_conv(inputs, outputs, 1, stride)) if stride > 1 or inputs != outputs \
            else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        y = x
        for k in range(1, self.count + 1):
            y = self.get_submodule(f"bn{k}")(self.get_submodule(f"conv{k}")(y))
            y = y if k == self.count else F.relu(y)
        return F.relu(y + self.downsample(x))


class ResNet(nn.Module):
    def __init__(self, wide: bool, repeats: tuple[int, ...], classes: int = 1000, width: int = 64):
        super().__init__()
        self.conv1, self.bn1 = norm_conv(3, width, 7, 2)
        channels = width
        for level, repeat in enumerate(repeats):
            blocks = []
            for k in range(repeat):
                blocks.append(Residual(channels, width << level, 2 if level and not k else 1, wide))
                channels = (width << level) * (4 if wide else 1)
            self.add_module(f"layer{level + 1}", nn.Sequential(*blocks))
        self.fc = nn.Linear(channels, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(x))), 3, 2, 1)
        for level in range(1, 5):
            x = self.get_submodule(f"layer{level}")(x)
        return self.fc(x.mean((2, 3)))


class Inverted(nn.Module):
    """MobileNetV2's block."""

    def __init__(self, inputs: int, outputs: int, stride: int, expansion: int):
        super().__init__()
        hidden = inputs * expansion
        expand = [nn.Sequential(*norm_conv(inputs, hidden, 1), nn.ReLU6())] if expansion > 1 else []
        self.conv = nn.Sequential(*expand, nn.Sequential(*norm_conv(hidden, hidden, 3, stride, hidden), nn.ReLU6()),
                                  *norm_conv(hidden, outputs, 1))
        self.adds = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv(x) if self.adds else self.conv(x)


class MobileNetV2(nn.Module):
    def __init__(self, stages: tuple[tuple[int, int, int, int], ...], classes: int = 1000):
        super().__init__()
        layers: list[nn.Module] = [nn.Sequential(*norm_conv(3, 32, 3, 2), nn.ReLU6())]
        channels = 32
        for expansion, outputs, repeats, stride in stages:
            for k in range(repeats):
                layers.append(Inverted(channels, outputs, 1 if k else stride, expansion))
                channels = outputs
        self.features = nn.Sequential(*layers, nn.Sequential(*norm_conv(channels, 1280, 1), nn.ReLU6()))
        self.classifier = nn.Sequential(nn.Dropout(), nn.Linear(1280, classes))

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(F.adaptive_avg_pool2d(self.features(x), 1).flatten(1))


class Twice(nn.Module):
    """U-Net's two convolutions, after whatever `before` does."""

    def __init__(self, inputs: int, outputs: int):
        super().__init__()
        self.double_conv = nn.Sequential(*norm_conv(inputs, outputs, 3), nn.ReLU(),
                                         *norm_conv(outputs, outputs, 3), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        return self.double_conv(x)


class UNet(nn.Module):
    def __init__(self, channels: int = 3, classes: int = 2, width: int = 64):
        super().__init__()
        self.inc = Twice(channels, width)
        for level in range(1, 5):
            wide = width << level
            self.add_module(f"down{level}", nn.ModuleDict({
                "maxpool_conv": nn.Sequential(nn.MaxPool2d(2), Twice(wide // 2, wide))}))
            inputs = width << (5 - level)
            self.add_module(f"up{level}", nn.ModuleDict({
                "up": nn.ConvTranspose2d(inputs, inputs // 2, 2, 2), "conv": Twice(inputs, inputs // 2)}))
        self.outc = nn.ModuleDict({"conv": nn.Conv2d(width, classes, 1)})

    def forward(self, x: Tensor) -> Tensor:
        skips = [self.inc(x)]
        for level in range(1, 5):
            skips.append(self.get_submodule(f"down{level}.maxpool_conv")(skips[-1]))
        x = skips.pop()
        for level in range(1, 5):
            up = self.get_submodule(f"up{level}.up")(x)
            x = self.get_submodule(f"up{level}.conv")(torch.cat([skips.pop(), up], 1))
        return self.get_submodule("outc.conv")(x)
