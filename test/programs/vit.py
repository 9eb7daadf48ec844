"""Classifies small pictures by a vision transformer: AdamW with groups, warm-up, mixup, and averaged weights."""
import math
from copy import deepcopy
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.lr_scheduler import LambdaLR


class PatchEmbed(nn.Module):
    def __init__(self, img_size=16, patch_size=4, in_chans=3, embed_dim=32):
        super().__init__()
        self.num_patches = (img_size // patch_size) ** 2
        self.proj = nn.Conv2d(in_chans, embed_dim, kernel_size=patch_size, stride=patch_size)

    def forward(self, x):
        B, C, H, W = x.shape
        assert H == W, f"expected square pictures, got {H}x{W}"
        return self.proj(x).flatten(2).transpose(1, 2)


class Attention(nn.Module):
    def __init__(self, dim, num_heads=4, qkv_bias=True):
        super().__init__()
        self.num_heads = num_heads
        self.scale = (dim // num_heads) ** -0.5
        self.qkv = nn.Linear(dim, dim * 3, bias=qkv_bias)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x):
        B, N, C = x.shape
        qkv = self.qkv(x).reshape(B, N, 3, self.num_heads, C // self.num_heads).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0)
        attn = (q @ k.transpose(-2, -1)) * self.scale
        attn = attn.softmax(dim=-1)
        x = (attn @ v).transpose(1, 2).reshape(B, N, C)
        return self.proj(x)


class LayerScale(nn.Module):
    def __init__(self, dim, init_values=1e-1):
        super().__init__()
        self.gamma = nn.Parameter(init_values * torch.ones(dim))

    def forward(self, x):
        return x * self.gamma


class DropPath(nn.Module):
    def __init__(self, drop_prob=0.0):
        super().__init__()
        self.drop_prob = drop_prob

    def forward(self, x):
        if self.drop_prob == 0.0 or not self.training:
            return x
        keep_prob = 1 - self.drop_prob
        random_tensor = keep_prob + torch.rand((x.shape[0],) + (1,) * (x.ndim - 1), dtype=x.dtype, device=x.device)
        return x.div(keep_prob) * random_tensor.floor_()


class Block(nn.Module):
    def __init__(self, dim, num_heads, mlp_ratio=2.0, drop_path=0.0, norm_layer=nn.LayerNorm, act_layer=nn.GELU):
        super().__init__()
        self.norm1, self.norm2 = norm_layer(dim), norm_layer(dim)
        self.attn = Attention(dim, num_heads)
        self.ls1, self.ls2 = LayerScale(dim), LayerScale(dim)
        self.drop_path = DropPath(drop_path) if drop_path > 0.0 else nn.Identity()
        hidden = int(dim * mlp_ratio)
        self.mlp = nn.Sequential(nn.Linear(dim, hidden), act_layer(), nn.Linear(hidden, dim))

    def forward(self, x):
        x = x + self.drop_path(self.ls1(self.attn(self.norm1(x))))
        return x + self.drop_path(self.ls2(self.mlp(self.norm2(x))))


class VisionTransformer(nn.Module):
    def __init__(self, num_classes=10, embed_dim=32, depth=2, num_heads=4, drop_path_rate=0.2):
        super().__init__()
        self.patch_embed = PatchEmbed(embed_dim=embed_dim)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, embed_dim))
        self.pos_embed = nn.Parameter(torch.randn(1, self.patch_embed.num_patches + 1, embed_dim) * 0.02)
        rates = [x.item() for x in torch.linspace(0, drop_path_rate, depth)]
        norm = partial(nn.LayerNorm, eps=1e-6)
        self.blocks = nn.Sequential(*[Block(embed_dim, num_heads, drop_path=rates[i], norm_layer=norm)
                                      for i in range(depth)])
        self.norm, self.head = norm(embed_dim), nn.Linear(embed_dim, num_classes)
        nn.init.trunc_normal_(self.pos_embed, std=0.02)
        nn.init.normal_(self.cls_token, std=1e-6)
        self.apply(self._init_weights)

    def _init_weights(self, m):
        if isinstance(m, nn.Linear):
            nn.init.trunc_normal_(m.weight, std=0.02)
            if m.bias is not None:
                nn.init.zeros_(m.bias)

    def forward(self, x):
        x = self.patch_embed(x)
        x = torch.cat((self.cls_token.expand(x.shape[0], -1, -1), x), dim=1)
        x = self.blocks(x + self.pos_embed)
        return self.head(self.norm(x)[:, 0])


class ModelEma:
    def __init__(self, model, decay):
        self.module, self.decay = deepcopy(model).eval(), decay
        for p in self.module.parameters():
            p.requires_grad = False

    @torch.no_grad()
    def update(self, model):
        for ema_v, model_v in zip(self.module.state_dict().values(), model.state_dict().values()):
            ema_v.copy_(self.decay * ema_v + (1.0 - self.decay) * model_v)


def build():
    return VisionTransformer()


def train(model, steps=50):
    rng = np.random.default_rng(1)
    decay = [p for n, p in model.named_parameters() if p.ndim > 1 and not n.endswith(("pos_embed", "cls_token"))]
    no_decay = [p for n, p in model.named_parameters() if p.ndim <= 1 or n.endswith(("pos_embed", "cls_token"))]
    optimizer = torch.optim.AdamW([{"params": decay, "weight_decay": 0.05}, {"params": no_decay, "weight_decay": 0.0}],
                                  lr=2e-3, betas=(0.9, 0.95))
    scheduler = LambdaLR(optimizer, lambda s: min((s + 1) / 10, 0.5 * (1 + math.cos(math.pi * s / steps))))
    ema, losses = ModelEma(model, 0.9), []
    print("parameters:", sum(p.numel() for p in model.parameters() if p.requires_grad))
    model.train()
    for step in range(steps):
        labels = rng.integers(0, 10, 16)
        x = torch.tensor(rng.normal(labels[:, None, None, None] / 5, 1, (16, 3, 16, 16)), dtype=torch.float32)
        y = F.one_hot(torch.as_tensor(labels, dtype=torch.int64), num_classes=10).float()
        lam = float(rng.beta(0.8, 0.8))
        x = x.mul(lam).add_(x.flip(0).mul(1.0 - lam))
        y = y * lam + y.flip(0) * (1.0 - lam)
        loss = torch.sum(-y * F.log_softmax(model(x), dim=-1), dim=-1).mean()
        optimizer.zero_grad()
        loss.backward()
        grad_norm = nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
        optimizer.step()
        scheduler.step()
        ema.update(model)
        losses.append(loss.item())
        if step % 10 == 0:
            lr = scheduler.get_last_lr()[0]
            print(f"step {step:3d} loss {losses[-1]:.4f} norm {grad_norm.item():.3f} lr {lr:.2e}")
    with torch.inference_mode():
        losses.append(F.cross_entropy(ema.module(x), y).item())
    return losses


if __name__ == "__main__":
    train(build())
