"""Models of images."""
from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from bench.torch_models.case import Build, Case, classes, mean_square


def norm_conv(before: int, after: int, kernel: int = 3, stride: int = 1, groups: int = 1, act: Any = nn.ReLU6) -> Any:
    conv = nn.Conv2d(before, after, kernel, stride, kernel // 2, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(after), *([act()] if act else []))


class InvertedResidual(nn.Module):
    """MobileNetV2's block: expand, depthwise, project; with squeeze and excitation EfficientNet's."""

    def __init__(self, before: int, after: int, stride: int, expand: int, act: Any = nn.ReLU6, squeeze: bool = False):
        super().__init__()
        wide = before * expand
        self.expand = norm_conv(before, wide, 1, act=act) if expand > 1 else nn.Identity()
        self.depthwise = norm_conv(wide, wide, 3, stride, wide, act=act)
        self.squeeze = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(wide, max(before // 4, 1), 1), nn.SiLU(),
                                     nn.Conv2d(max(before // 4, 1), wide, 1), nn.Sigmoid()) if squeeze else None
        self.project = norm_conv(wide, after, 1, act=None)
        self.adds = stride == 1 and before == after

    def forward(self, x: Any) -> Any:
        y = self.depthwise(self.expand(x))
        y = self.project(y if self.squeeze is None else y * self.squeeze(y))
        return x + y if self.adds else y


class Mobile(nn.Module):
    def __init__(self, rows: list[tuple[int, int, int, int]], first: int, last: int, act: Any, squeeze: bool):
        super().__init__()
        blocks, width = [norm_conv(3, first, 3, 2, act=act)], first
        for expand, after, count, stride in rows:
            for k in range(count):
                blocks.append(InvertedResidual(width, after, stride if k == 0 else 1, expand, act, squeeze))
                width = after
        self.features = nn.Sequential(*blocks, norm_conv(width, last, 1, act=act))
        self.classifier = nn.Sequential(nn.Dropout(0.0), nn.Linear(last, 10))

    def forward(self, x: Any) -> Any:
        return self.classifier(self.features(x).mean([2, 3]))


class BasicBlock(nn.Module):
    def __init__(self, before: int, after: int, stride: int):
        super().__init__()
        self.conv1, self.conv2 = norm_conv(before, after, 3, stride, act=None), norm_conv(after, after, act=None)
        self.relu = nn.ReLU(inplace=True)
        changes = stride != 1 or before != after
        self.downsample = norm_conv(before, after, 1, stride, act=None) if changes else None

    def forward(self, x: Any) -> Any:
        y = self.conv2(self.relu(self.conv1(x)))
        y += x if self.downsample is None else self.downsample(x)
        return self.relu(y)


class ResNet(nn.Module):
    def __init__(self, width: int, layers: list[int]):
        super().__init__()
        stem = nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width), nn.ReLU(True), nn.MaxPool2d(3, 2, 1)
        blocks: list[Any] = []
        for k, count in enumerate(layers):
            for j in range(count):
                before = width << max(k - (j == 0), 0)
                blocks.append(BasicBlock(before, width << k, 2 if k and j == 0 else 1))
        self.body = nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d((1, 1)))
        self.fc = nn.Linear(width << (len(layers) - 1), 10)

    def forward(self, x: Any) -> Any:
        return self.fc(torch.flatten(self.body(x), 1))


class UNet(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.down1, self.down2 = self.double(3, width), self.double(width, 2 * width)
        self.middle = self.double(2 * width, 4 * width)
        self.up2, self.up1 = nn.ConvTranspose2d(4 * width, 2 * width, 2, 2), nn.Upsample(
            scale_factor=2, mode="bilinear", align_corners=True)
        self.dec2, self.dec1 = self.double(4 * width, 2 * width), self.double(3 * width, width)
        self.out = nn.Conv2d(width, 2, 1)

    @staticmethod
    def double(before: int, after: int) -> Any:
        return nn.Sequential(norm_conv(before, after, act=nn.ReLU), norm_conv(after, after, act=nn.ReLU))

    def forward(self, x: Any) -> Any:
        a = self.down1(x)
        b = self.down2(F.max_pool2d(a, 2))
        y = self.up2(self.middle(F.max_pool2d(b, 2)))
        y = self.up1(self.dec2(torch.cat([y, b], 1)))
        return self.out(self.dec1(torch.cat([y, a], 1)))


class ViT(nn.Module):
    def __init__(self, size: int, patch: int, dim: int, depth: int, heads: int):
        super().__init__()
        self.patches = nn.Conv2d(3, dim, patch, patch)
        self.token = nn.Parameter(torch.randn(1, 1, dim) * 0.02)
        self.places = nn.Parameter(torch.randn(1, (size // patch) ** 2 + 1, dim) * 0.02)
        layer = nn.TransformerEncoderLayer(dim, heads, 4 * dim, 0.0, "gelu", batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, 10)

    def forward(self, x: Any) -> Any:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.places
        return self.head(self.norm(self.encoder(x)[:, 0]))


class ConvNeXtBlock(nn.Module):
    def __init__(self, dim: int):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(dim, dim, 7, padding=3, groups=dim), nn.LayerNorm(dim, eps=1e-6)
        self.up, self.down = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)
        self.scale = nn.Parameter(torch.full((dim,), 0.1))

    def forward(self, x: Any) -> Any:
        y = self.norm(self.conv(x).permute(0, 2, 3, 1))
        return x + (self.scale * self.down(F.gelu(self.up(y)))).permute(0, 3, 1, 2)


class ConvNeXt(nn.Module):
    def __init__(self, dim: int, depth: int):
        super().__init__()
        self.stem = nn.Conv2d(3, dim, 4, 4)
        self.first = nn.Sequential(*[ConvNeXtBlock(dim) for _ in range(depth)])
        self.reduce = nn.Conv2d(dim, 2 * dim, 2, 2)
        self.second = nn.Sequential(*[ConvNeXtBlock(2 * dim) for _ in range(depth)])
        self.head = nn.Linear(2 * dim, 10)

    def forward(self, x: Any) -> Any:
        return self.head(self.second(self.reduce(self.first(self.stem(x)))).mean((-2, -1)))


class MixerLayer(nn.Module):
    def __init__(self, tokens: int, dim: int):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.tokens = nn.Sequential(nn.Linear(tokens, 2 * tokens), nn.GELU(), nn.Linear(2 * tokens, tokens))
        self.channels = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU("tanh"), nn.Linear(2 * dim, dim))

    def forward(self, x: Any) -> Any:
        x = x + self.tokens(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.channels(self.norm2(x))


class Mixer(nn.Module):
    def __init__(self, size: int, patch: int, dim: int, depth: int):
        super().__init__()
        self.patches = nn.Conv2d(3, dim, patch, patch)
        self.layers = nn.Sequential(*[MixerLayer((size // patch) ** 2, dim) for _ in range(depth)])
        self.head = nn.Linear(dim, 10)

    def forward(self, x: Any) -> Any:
        return self.head(self.layers(self.patches(x).flatten(2).transpose(1, 2)).mean(1))


class DiffusionBlock(nn.Module):
    """A block of a diffusion U-Net: group norm, SiLU, convolutions, a time step, attention over places, resampling."""

    def __init__(self, dim: int, heads: int):
        super().__init__()
        self.time = nn.Sequential(nn.Linear(dim, dim), nn.SiLU(), nn.Linear(dim, 2 * dim))
        self.norm1, self.norm2, self.norm3 = (nn.GroupNorm(4, dim) for _ in range(3))
        self.conv1, self.conv2 = nn.Conv2d(dim, dim, 3, padding=1), nn.Conv2d(dim, dim, 3, padding=1)
        self.qkv, self.out, self.heads = nn.Conv1d(dim, 3 * dim, 1), nn.Conv1d(dim, dim, 1), heads
        self.down = nn.Conv2d(dim, dim, 3, 2, 1)

    def forward(self, x: Any, step: Any) -> Any:
        half = x.shape[1] // 2
        rates = torch.exp(-9.2 * torch.arange(half, device=x.device) / half)
        angles = step[:, None].float() * rates
        scale, shift = self.time(torch.cat([angles.sin(), angles.cos()], -1))[:, :, None, None].chunk(2, 1)
        y = self.conv1(F.silu(self.norm1(x)))
        y = x + self.conv2(F.silu(self.norm2(y) * (1 + scale) + shift))
        N, C, H, W = y.shape
        q, k, v = (t.reshape(N, self.heads, C // self.heads, H * W).transpose(2, 3)
                   for t in self.qkv(self.norm3(y).flatten(2)).chunk(3, 1))
        y = y + self.out(F.scaled_dot_product_attention(q, k, v).transpose(2, 3).reshape(N, C, H * W)).view(N, C, H, W)
        return y + F.interpolate(self.down(y), scale_factor=2, mode="nearest")


def image(count: int, size: int) -> Any:
    return torch.randn(count, 3, size, size)


def mobilenet(large: bool) -> Case:
    rows = [(1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)]
    if not large:
        rows = [(1, 8, 1, 1), (3, 12, 2, 2)]
    model = Mobile(rows, 32 if large else 8, 1280 if large else 16, nn.ReLU6, False)
    return Case(model, (image(*(1, 224) if large else (2, 24)),), classes)


def efficientnet(large: bool) -> Case:
    rows = [(1, 16, 1, 1), (6, 24, 2, 2), (6, 40, 2, 2), (6, 80, 3, 2), (6, 112, 3, 1)] if large else [(4, 8, 2, 1)]
    model = Mobile(rows, 32 if large else 8, 1280 if large else 16, nn.SiLU, True)
    return Case(model, (image(*(1, 224) if large else (2, 20)),), classes)


def resnet(large: bool) -> Case:
    return Case(ResNet(64, [2, 2, 2, 2]) if large else ResNet(8, [1, 1]), (image(*(1, 224) if large else (2, 32)),),
                classes)


def unet(large: bool) -> Case:
    return Case(UNet(32 if large else 4), (image(*(1, 128) if large else (2, 16)),), mean_square)


def vit(large: bool) -> Case:
    model = ViT(224, 16, 384, 6, 6) if large else ViT(16, 8, 16, 1, 2)
    return Case(model, (image(*(1, 224) if large else (2, 16)),), classes)


def convnext(large: bool) -> Case:
    return Case(ConvNeXt(96, 3) if large else ConvNeXt(8, 1), (image(*(1, 224) if large else (2, 32)),), classes)


def mixer(large: bool) -> Case:
    model = Mixer(224, 16, 256, 6) if large else Mixer(16, 8, 16, 1)
    return Case(model, (image(*(1, 224) if large else (2, 16)),), classes)


def diffusion(large: bool) -> Case:
    N, dim, size = (1, 128, 32) if large else (2, 16, 8)
    return Case(DiffusionBlock(dim, 4), (torch.randn(N, dim, size, size), torch.arange(N) * 50 + 3), mean_square)


MODELS: dict[str, Build] = {
    "mobilenet": mobilenet, "efficientnet": efficientnet, "resnet": resnet, "unet": unet, "vit": vit,
    "convnext": convnext, "mixer": mixer, "diffusion": diffusion}
