"""The vision transformer ViT-S/16, with the names of parameters of timm (`vit_small_patch16_224`).

Images [N, 3, size, size] become logits [N, classes]: a row per patch and one for the class go through layers of
attention and perceptrons, each after a layer norm.

Source: Dosovitskiy et al. 2020, https://arxiv.org/abs/2010.11929; sizes of S: Touvron et al. 2020, arXiv 2012.12877
"""
from __future__ import annotations

from minigrad import Tensor, nn


class PatchEmbed(nn.Module):
    """A row of `dim` numbers for each square of `patch` pixels."""

    def __init__(self, patch: int, dim: int):
        self.proj = nn.Conv2d(3, dim, patch, patch)

    def forward(self, x: Tensor) -> Tensor:
        return self.proj(x).flatten(2).transpose(1, 2)


class Attention(nn.Module):
    def __init__(self, dim: int, heads: int):
        self.heads = heads
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        batch, rows, dim = x.shape
        q, k, v = self.qkv(x).reshape(batch, rows, 3, self.heads, dim // self.heads).permute(2, 0, 3, 1, 4)
        return self.proj(q.scaled_dot_product_attention(k, v).transpose(1, 2).reshape(batch, rows, dim))


class Mlp(nn.Module):
    def __init__(self, dim: int, hidden: int):
        self.fc1, self.fc2 = nn.Linear(dim, hidden), nn.Linear(hidden, dim)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(nn.functional.gelu(self.fc1(x)))


class Block(nn.Module):
    def __init__(self, dim: int, heads: int):
        self.norm1, self.attn = nn.LayerNorm(dim, eps=1e-6), Attention(dim, heads)
        self.norm2, self.mlp = nn.LayerNorm(dim, eps=1e-6), Mlp(dim, 4 * dim)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class VisionTransformer(nn.Module):
    def __init__(self, size: int = 224, patch: int = 16, dim: int = 384, depth: int = 12, heads: int = 6,
                 classes: int = 1000):
        self.cls_token = Tensor.zeros(1, 1, dim, requires_grad=True)
        self.pos_embed = Tensor.randn(1, (size // patch) ** 2 + 1, dim, requires_grad=True)
        self.patch_embed = PatchEmbed(patch, dim)
        self.blocks = nn.ModuleList([Block(dim, heads) for _ in range(depth)])
        self.norm = nn.LayerNorm(dim, eps=1e-6)
        self.head = nn.Linear(dim, classes)

    def forward(self, x: Tensor) -> Tensor:
        rows = self.patch_embed(x)
        x = Tensor.cat(self.cls_token.expand(rows.shape[0], -1, -1), rows, dim=1) + self.pos_embed
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)[:, 0])
