"""The U-Net for segmentation, with the names of parameters of the usual PyTorch one (milesial/Pytorch-UNet).

Images [N, channels, H, W] become logits [N, classes, H, W] per pixel; H and W are multiples of 16. Four levels down by
pooling, four up by transposed convolutions, each beside what was there on the way down.

Source: Ronneberger et al. 2015, https://arxiv.org/abs/1505.04597, with padding and batch norm
"""
from __future__ import annotations

from minigrad import Tensor, nn


class DoubleConv(nn.Module):
    """Twice a 3x3 convolution, batch norm and ReLU."""

    def __init__(self, in_channels: int, out_channels: int):
        self.double_conv = nn.Sequential(
            nn.Conv2d(in_channels, out_channels, 3, padding=1, bias=False), nn.BatchNorm2d(out_channels), nn.ReLU(),
            nn.Conv2d(out_channels, out_channels, 3, padding=1, bias=False), nn.BatchNorm2d(out_channels), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        return self.double_conv(x)


class Down(nn.Module):
    def __init__(self, in_channels: int, out_channels: int):
        self.maxpool_conv = nn.Sequential(nn.MaxPool2d(2), DoubleConv(in_channels, out_channels))

    def forward(self, x: Tensor) -> Tensor:
        return self.maxpool_conv(x)


class Up(nn.Module):
    """Doubles x, and takes it together with `skip` of the same size."""

    def __init__(self, in_channels: int, out_channels: int):
        self.up = nn.ConvTranspose2d(in_channels, in_channels // 2, 2, stride=2)
        self.conv = DoubleConv(in_channels, out_channels)

    def forward(self, x: Tensor, skip: Tensor) -> Tensor:
        return self.conv(Tensor.cat(skip, self.up(x), dim=1))


class OutConv(nn.Module):
    def __init__(self, in_channels: int, classes: int):
        self.conv = nn.Conv2d(in_channels, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x)


class UNet(nn.Module):
    """`width` channels at the image's size, twice as many at each level down."""

    def __init__(self, channels: int = 3, classes: int = 2, width: int = 64):
        self.inc = DoubleConv(channels, width)
        self.down1, self.down2 = Down(width, 2 * width), Down(2 * width, 4 * width)
        self.down3, self.down4 = Down(4 * width, 8 * width), Down(8 * width, 16 * width)
        self.up1, self.up2 = Up(16 * width, 8 * width), Up(8 * width, 4 * width)
        self.up3, self.up4 = Up(4 * width, 2 * width), Up(2 * width, width)
        self.outc = OutConv(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        x1 = self.inc(x)
        x2 = self.down1(x1)
        x3 = self.down2(x2)
        x4 = self.down3(x3)
        x = self.up1(self.down4(x4), x4)
        x = self.up2(x, x3)
        x = self.up3(x, x2)
        return self.outc(self.up4(x, x1))
