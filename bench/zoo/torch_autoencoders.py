"""The zoo's autoencoders once more, in torch, with the same names in their state."""
from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F


def conv3(inputs: int, outputs: int, stride: int = 1, bias: bool = True) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, 3, stride, 1, bias=bias)


class Resnet(nn.Module):
    def __init__(self, inputs: int, outputs: int):
        super().__init__()
        self.norm1, self.conv1 = group_norm(inputs), conv3(inputs, outputs)
        self.norm2, self.conv2 = group_norm(outputs), conv3(outputs, outputs)
        if inputs != outputs:
            self.conv_shortcut = nn.Conv2d(inputs, outputs, 1)
        self.changes = inputs != outputs

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv1(F.silu(self.norm1(x)))
        y = self.conv2(F.silu(self.norm2(y)))
        return (self.conv_shortcut(x) if self.changes else x) + y


def group_norm(channels: int) -> nn.GroupNorm:
    return nn.GroupNorm(min(32, channels), channels, 1e-6)


class Attention(nn.Module):
    def __init__(self, channels: int):
        super().__init__()
        self.group_norm = group_norm(channels)
        self.to_q, self.to_k, self.to_v = [nn.Linear(channels, channels) for _ in range(3)]
        self.to_out = nn.ModuleList([nn.Linear(channels, channels)])

    def forward(self, x: Tensor) -> Tensor:
        n, c, h, w = x.shape
        rows = self.group_norm(x).view(n, c, h * w).transpose(1, 2)
        y = F.scaled_dot_product_attention(self.to_q(rows)[:, None], self.to_k(rows)[:, None],
                                           self.to_v(rows)[:, None])[:, 0]
        return x + self.to_out[0](y).transpose(1, 2).reshape(n, c, h, w)


class Doubled(nn.Module):
    def __init__(self, channels: int):
        super().__init__()
        self.conv = conv3(channels, channels)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(F.interpolate(x, scale_factor=2.0, mode="nearest"))


class Decoder(nn.Module):
    """Stable Diffusion's, `post_quant_conv` included."""

    def __init__(self, channels: tuple[int, ...], layers: int = 2, latents: int = 4):
        super().__init__()
        self.post_quant_conv = nn.Conv2d(latents, latents, 1)
        deepest, blocks = channels[-1], []
        inputs = deepest
        for level, outputs in enumerate(reversed(channels)):
            resnets = [Resnet(inputs if k == 0 else outputs, outputs) for k in range(layers + 1)]
            last = level == len(channels) - 1
            blocks.append(nn.ModuleDict({"resnets": nn.ModuleList(resnets),
                                         "upsamplers": nn.ModuleList([] if last else [Doubled(outputs)])}))
            inputs = outputs
        self.decoder = nn.ModuleDict({
            "conv_in": conv3(latents, deepest),
            "mid_block": nn.ModuleDict({"attentions": nn.ModuleList([Attention(deepest)]),
                                        "resnets": nn.ModuleList([Resnet(deepest, deepest) for _ in range(2)])}),
            "up_blocks": nn.ModuleList(blocks), "conv_norm_out": group_norm(inputs), "conv_out": conv3(inputs, 3)})
        middle = self.decoder["mid_block"]
        self.steps = [self.decoder["conv_in"], middle["resnets"][0], middle["attentions"][0], middle["resnets"][1],
                      *[step for block in blocks for step in (*block["resnets"], *block["upsamplers"])]]

    def forward(self, z: Tensor) -> Tensor:
        x = self.post_quant_conv(z)
        for step in self.steps:
            x = step(x)
        return self.decoder["conv_out"](F.silu(self.decoder["conv_norm_out"](x)))


class TinyBlock(nn.Module):
    def __init__(self, channels: int):
        super().__init__()
        self.conv = nn.Sequential(conv3(channels, channels), nn.ReLU(), conv3(channels, channels), nn.ReLU(),
                                  conv3(channels, channels))

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x + self.conv(x))


class Clamp(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return 3 * (x / 3).tanh()


class TAESD(nn.Module):
    def __init__(self, width: int = 64) -> None:
        super().__init__()
        down, up = [conv3(3, width), TinyBlock(width)], [Clamp(), conv3(4, width), nn.ReLU()]
        for _ in range(3):
            down += [conv3(width, width, 2, bias=False), *[TinyBlock(width) for _ in range(3)]]
            up += [*[TinyBlock(width) for _ in range(3)], nn.Upsample(scale_factor=2), conv3(width, width, bias=False)]
        self.encoder = nn.Sequential(*down, conv3(width, 4))
        self.decoder = nn.Sequential(*up, TinyBlock(width), conv3(width, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.decoder(self.encoder(x)).clamp(0, 1)
