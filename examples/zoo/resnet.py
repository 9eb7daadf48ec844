"""ResNet-18 and ResNet-50, with the names of parameters of torchvision (and timm).

Images [N, 3, H, W] become logits [N, classes]. The stride of a bottleneck is in its 3x3 convolution, as in the weights
of torchvision ("ResNet V1.5").

Source: He et al. 2015, https://arxiv.org/abs/1512.03385
"""
from __future__ import annotations

from minigrad import Tensor, nn


class BasicBlock(nn.Module):
    """Two 3x3 convolutions, added to the input, or to `downsample` of it."""

    expansion = 1

    def __init__(self, in_channels: int, channels: int, stride: int, downsample: nn.Sequential | None):
        self.conv1 = nn.Conv2d(in_channels, channels, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.downsample = downsample

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(self.bn1(self.conv1(x)).relu()))
        return (y + (x if self.downsample is None else self.downsample(x))).relu()


class Bottleneck(nn.Module):
    """1x1 to fewer channels, 3x3, 1x1 to four times as many; added as in a BasicBlock."""

    expansion = 4

    def __init__(self, in_channels: int, channels: int, stride: int, downsample: nn.Sequential | None):
        self.conv1 = nn.Conv2d(in_channels, channels, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.conv3 = nn.Conv2d(channels, channels * self.expansion, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(channels * self.expansion)
        self.downsample = downsample

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn1(self.conv1(x)).relu()
        y = self.bn3(self.conv3(self.bn2(self.conv2(y)).relu()))
        return (y + (x if self.downsample is None else self.downsample(x))).relu()


class ResNet(nn.Module):
    """`repeats` of the four layers' blocks, whose channels are `width` times 1, 2, 4 and 8."""

    def __init__(self, block: type[BasicBlock] | type[Bottleneck], repeats: tuple[int, int, int, int],
                 classes: int = 1000, width: int = 64):
        self.conv1 = nn.Conv2d(3, width, 7, 2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.maxpool = nn.MaxPool2d(3, 2, padding=1)
        outputs = width * block.expansion
        self.layer1 = _layer(block, width, width, repeats[0], 1)
        self.layer2 = _layer(block, outputs, 2 * width, repeats[1], 2)
        self.layer3 = _layer(block, 2 * outputs, 4 * width, repeats[2], 2)
        self.layer4 = _layer(block, 4 * outputs, 8 * width, repeats[3], 2)
        self.fc = nn.Linear(8 * outputs, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(self.bn1(self.conv1(x)).relu())
        for layer in (self.layer1, self.layer2, self.layer3, self.layer4):
            x = layer(x)
        return self.fc(x.mean((2, 3)))


def _layer(block: type[BasicBlock] | type[Bottleneck], in_channels: int, channels: int, repeats: int,
           stride: int) -> nn.Sequential:
    out_channels = channels * block.expansion
    downsample = None
    if stride != 1 or in_channels != out_channels:
        downsample = nn.Sequential(nn.Conv2d(in_channels, out_channels, 1, stride, bias=False),
                                   nn.BatchNorm2d(out_channels))
    first = block(in_channels, channels, stride, downsample)
    return nn.Sequential(first, *(block(out_channels, channels, 1, None) for _ in range(repeats - 1)))


def resnet18(classes: int = 1000) -> ResNet:
    return ResNet(BasicBlock, (2, 2, 2, 2), classes)


def resnet50(classes: int = 1000) -> ResNet:
    return ResNet(Bottleneck, (3, 4, 6, 3), classes)
