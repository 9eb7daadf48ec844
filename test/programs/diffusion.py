"""A denoising diffusion model with a small U-Net: embedded times, group norms, linear attention, averaged weights."""
import copy
import math

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import einsum


def exists(x):
    return x is not None


class SinusoidalPosEmb(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.dim = dim

    def forward(self, t):
        half = self.dim // 2
        freqs = torch.exp(torch.arange(half, device=t.device) * -(math.log(10000) / (half - 1)))
        args = t[:, None] * freqs[None, :]
        return torch.cat((args.sin(), args.cos()), dim=-1)


class ResBlock(nn.Module):
    def __init__(self, dim, dim_out, time_dim=None, groups=4):
        super().__init__()
        self.mlp = nn.Sequential(nn.SiLU(), nn.Linear(time_dim, dim_out * 2)) if exists(time_dim) else None
        self.norm1, self.norm2 = nn.GroupNorm(groups, dim), nn.GroupNorm(groups, dim_out)
        self.conv1, self.conv2 = nn.Conv2d(dim, dim_out, 3, padding=1), nn.Conv2d(dim_out, dim_out, 3, padding=1)
        self.res_conv = nn.Conv2d(dim, dim_out, 1) if dim != dim_out else nn.Identity()

    def forward(self, x, time_emb=None):
        h = self.conv1(F.silu(self.norm1(x)))
        if exists(self.mlp) and exists(time_emb):
            scale, shift = self.mlp(time_emb)[..., None, None].chunk(2, dim=1)
            h = self.norm2(h) * (scale + 1) + shift
        h = self.conv2(F.silu(h))
        return h + self.res_conv(x)


class LinearAttention(nn.Module):
    def __init__(self, dim, heads=2, dim_head=4):
        super().__init__()
        self.heads, self.scale = heads, dim_head**-0.5
        self.to_qkv = nn.Conv2d(dim, heads * dim_head * 3, 1, bias=False)
        self.to_out = nn.Sequential(nn.Conv2d(heads * dim_head, dim, 1), nn.GroupNorm(1, dim))

    def forward(self, x):
        b, c, h, w = x.shape
        q, k, v = map(lambda t: t.reshape(b, self.heads, -1, h * w), self.to_qkv(x).chunk(3, dim=1))
        q, k = q.softmax(dim=-2) * self.scale, k.softmax(dim=-1)
        context = einsum("b h d n, b h e n -> b h d e", k, v)
        out = einsum("b h d e, b h d n -> b h e n", context, q)
        return x + self.to_out(out.reshape(b, -1, h, w))


class Unet(nn.Module):
    def __init__(self, dim=8, channels=1):
        super().__init__()
        time_dim = dim * 2
        self.time_mlp = nn.Sequential(SinusoidalPosEmb(dim), nn.Linear(dim, time_dim), nn.GELU(),
                                      nn.Linear(time_dim, time_dim))
        self.init_conv = nn.Conv2d(channels, dim, 5, padding=2)
        self.down, self.attn = ResBlock(dim, dim, time_dim), LinearAttention(dim)
        self.downsample = nn.Conv2d(dim, dim * 2, 4, 2, 1)
        self.mid = ResBlock(dim * 2, dim * 2, time_dim)
        self.upsample = nn.Sequential(nn.Upsample(scale_factor=2, mode="nearest"),
                                      nn.Conv2d(dim * 2, dim, 3, padding=1))
        self.up, self.final_conv = ResBlock(dim * 2, dim, time_dim), nn.Conv2d(dim, channels, 1)

    def forward(self, x, time):
        t = self.time_mlp(time)
        x = self.init_conv(x)
        skip = self.attn(self.down(x, t))
        x = self.upsample(self.mid(self.downsample(skip), t))
        return self.final_conv(self.up(torch.cat((x, skip), dim=1), t))


def extract(a, t, x_shape):
    return a.gather(-1, t).reshape(t.shape[0], *((1,) * (len(x_shape) - 1)))


class Diffusion(nn.Module):
    def __init__(self, model, timesteps=20):
        super().__init__()
        self.model, self.num_timesteps = model, timesteps
        betas = torch.linspace(1e-4, 0.2, timesteps, dtype=torch.float64)
        alphas = 1.0 - betas
        alphas_cumprod = torch.cumprod(alphas, dim=0)
        prev = F.pad(alphas_cumprod[:-1], (1, 0), value=1.0)

        def register(name, value):
            self.register_buffer(name, value.to(torch.float32))

        register("betas", betas)
        register("sqrt_alphas_cumprod", torch.sqrt(alphas_cumprod))
        register("sqrt_one_minus_alphas_cumprod", torch.sqrt(1.0 - alphas_cumprod))
        register("sqrt_recip_alphas", torch.sqrt(1.0 / alphas))
        register("posterior_variance", betas * (1.0 - prev) / (1.0 - alphas_cumprod))

    def q_sample(self, x_start, t, noise):
        return (extract(self.sqrt_alphas_cumprod, t, x_start.shape) * x_start
                + extract(self.sqrt_one_minus_alphas_cumprod, t, x_start.shape) * noise)

    def forward(self, img):
        b, device = img.shape[0], img.device
        t = torch.randint(0, self.num_timesteps, (b,), device=device).long()
        noise = torch.randn_like(img)
        return F.smooth_l1_loss(self.model(self.q_sample(img, t, noise), t), noise)

    @torch.no_grad()
    def sample(self, shape):
        img = torch.randn(shape, device=self.betas.device)
        for i in reversed(range(self.num_timesteps)):
            t = torch.full((shape[0],), i, device=img.device, dtype=torch.long)
            noise = torch.randn_like(img) if i > 0 else 0
            mean = extract(self.sqrt_recip_alphas, t, shape) * (
                img - extract(self.betas, t, shape) * self.model(img, t)
                / extract(self.sqrt_one_minus_alphas_cumprod, t, shape))
            img = mean + torch.sqrt(extract(self.posterior_variance, t, shape)) * noise
        return img.clamp(-1, 1)


class EMA:
    def __init__(self, beta):
        self.beta = beta

    def update_model_average(self, ma_model, current_model):
        for current_params, ma_params in zip(current_model.parameters(), ma_model.parameters()):
            old_weight, up_weight = ma_params.data, current_params.data
            ma_params.data = old_weight * self.beta + (1 - self.beta) * up_weight


def build():
    return Diffusion(Unet())


def train(diffusion, steps=50):
    torch.manual_seed(0)
    images = np.random.RandomState(1).uniform(-1, 1, (64, 1, 8, 8)).astype(np.float32).cumsum(-1).clip(-1, 1)
    ema, ema_model, losses = EMA(0.95), copy.deepcopy(diffusion), []
    optimizer = torch.optim.AdamW(diffusion.parameters(), lr=1e-3, eps=1e-8)
    for step in range(steps):
        batch = torch.Tensor(images[step * 8 % 64:step * 8 % 64 + 8])
        loss = diffusion(batch)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(diffusion.parameters(), 1.0)
        optimizer.step()
        if step % 5 == 0:
            ema.update_model_average(ema_model, diffusion)
        losses.append(loss.item())
    sampled = ema_model.sample((2, 1, 8, 8))
    print(f"last loss {losses[-1]:.4f}, samples of mean {sampled.mean().item():.4f}")
    losses.append(sampled.std().item())
    return losses


if __name__ == "__main__":
    train(build())
