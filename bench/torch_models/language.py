"""Models of text and sound."""
from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from bench.torch_models.case import Build, Case, classes, mean_square


class Bert(nn.Module):
    """Embeddings and a stack of post-norm layers, with a mask of padding, written out."""

    def __init__(self, words: int, dim: int, depth: int, heads: int, longest: int):
        super().__init__()
        self.words, self.places, self.kinds = (nn.Embedding(n, dim) for n in (words, longest, 2))
        self.norm = nn.LayerNorm(dim, eps=1e-12)
        layers = [nn.ModuleDict({
            "q": nn.Linear(dim, dim), "k": nn.Linear(dim, dim), "v": nn.Linear(dim, dim), "out": nn.Linear(dim, dim),
            "norm1": nn.LayerNorm(dim), "up": nn.Linear(dim, 4 * dim), "down": nn.Linear(4 * dim, dim),
            "norm2": nn.LayerNorm(dim)}) for _ in range(depth)]
        self.layers, self.heads, self.pooler = nn.ModuleList(layers), heads, nn.Linear(dim, dim)

    def forward(self, ids: Any, mask: Any) -> Any:
        B, T = ids.shape
        x = self.norm(self.words(ids) + self.places(torch.arange(T)) + self.kinds(torch.zeros_like(ids)))
        bias = (1.0 - mask[:, None, None, :].to(x.dtype)) * torch.finfo(x.dtype).min
        for layer in self.layers:
            q, k, v = (layer[n](x).view(B, T, self.heads, -1).transpose(1, 2) for n in "qkv")
            scores = torch.matmul(q, k.transpose(-1, -2)) / q.shape[-1] ** 0.5 + bias
            y = torch.matmul(F.softmax(scores, -1), v).transpose(1, 2).contiguous().view(B, T, -1)
            x = layer["norm1"](layer["out"](y) + x)
            x = layer["norm2"](layer["down"](F.gelu(layer["up"](x))) + x)
        return x, torch.tanh(self.pooler(x[:, 0]))


class GPT(nn.Module):
    def __init__(self, words: int, dim: int, depth: int, heads: int, longest: int):
        super().__init__()
        self.words, self.places, self.heads = nn.Embedding(words, dim), nn.Embedding(longest, dim), heads
        self.blocks = nn.ModuleList([nn.ModuleDict({
            "norm1": nn.LayerNorm(dim), "qkv": nn.Linear(dim, 3 * dim), "out": nn.Linear(dim, dim),
            "norm2": nn.LayerNorm(dim), "up": nn.Linear(dim, 4 * dim), "down": nn.Linear(4 * dim, dim)})
            for _ in range(depth)])
        self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, words, bias=False)
        self.head.weight = self.words.weight

    def forward(self, ids: Any) -> Any:
        B, T = ids.shape
        x = self.words(ids) + self.places(torch.arange(T))
        for b in self.blocks:
            q, k, v = (t.view(B, T, self.heads, -1).transpose(1, 2) for t in b["qkv"](b["norm1"](x)).split(
                x.shape[-1], 2))
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + b["out"](y.transpose(1, 2).reshape(B, T, -1))
            x = x + b["down"](F.gelu(b["up"](b["norm2"](x)), approximate="tanh"))
        return self.head(self.norm(x))


class RMSNorm(nn.Module):
    def __init__(self, dim: int):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x: Any) -> Any:
        y = x.float()
        return self.weight * (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


def rotated(x: Any, places: Any) -> Any:
    """Rotary embedding of x [B, H, T, E], halves as pairs."""
    half = x.shape[-1] // 2
    angles = places[:, None].float() * 10000.0 ** (-torch.arange(half).float() / half)
    cos, sin = torch.cat([angles.cos()] * 2, -1), torch.cat([angles.sin()] * 2, -1)
    return x * cos + torch.cat([-x[..., half:], x[..., :half]], -1) * sin


class Llama(nn.Module):
    """Grouped queries, rotary embedding, SwiGLU, and keys and values in a cache that each call writes into."""

    def __init__(self, words: int, dim: int, depth: int, heads: int, groups: int, longest: int):
        super().__init__()
        self.words, self.heads, self.groups, self.each = nn.Embedding(words, dim), heads, groups, dim // heads
        small = groups * self.each
        self.layers = nn.ModuleList([nn.ModuleDict({
            "norm1": RMSNorm(dim), "q": nn.Linear(dim, dim, bias=False), "k": nn.Linear(dim, small, bias=False),
            "v": nn.Linear(dim, small, bias=False), "o": nn.Linear(dim, dim, bias=False), "norm2": RMSNorm(dim),
            "gate": nn.Linear(dim, 3 * dim, bias=False), "up": nn.Linear(dim, 3 * dim, bias=False),
            "down": nn.Linear(3 * dim, dim, bias=False)}) for _ in range(depth)])
        self.norm, self.head = RMSNorm(dim), nn.Linear(dim, words, bias=False)
        self.register_buffer("keys", torch.zeros(depth, 1, groups, longest, self.each))
        self.register_buffer("values", torch.zeros(depth, 1, groups, longest, self.each))

    def forward(self, ids: Any, places: Any) -> Any:
        T, longest = ids.shape[1], self.keys.shape[3]
        x, mask = self.words(ids), torch.arange(longest)[None, :] <= places[:, None]
        for k, layer in enumerate(self.layers):
            y = layer["norm1"](x)
            q = rotated(layer["q"](y).view(1, T, self.heads, self.each).transpose(1, 2), places)
            new = rotated(layer["k"](y).view(1, T, self.groups, self.each).transpose(1, 2), places)
            v = layer["v"](y).view(1, T, self.groups, self.each).transpose(1, 2)
            if torch.is_grad_enabled():
                keys, values = new, v
                seen = mask[:, :T]
            else:
                self.keys[k, :, :, places] = new
                self.values[k].index_copy_(2, places, v)
                keys, values, seen = self.keys[k], self.values[k], mask
            repeat = self.heads // self.groups
            keys, values = keys.repeat_interleave(repeat, 1), values.repeat_interleave(repeat, 1)
            y = F.scaled_dot_product_attention(q, keys, values, attn_mask=seen[None, None])
            x = x + layer["o"](y.transpose(1, 2).reshape(1, T, -1))
            y = layer["norm2"](x)
            x = x + layer["down"](F.silu(layer["gate"](y)) * layer["up"](y))
        return self.head(self.norm(x))


class T5Attention(nn.Module):
    def __init__(self, dim: int, heads: int, biased: bool):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(dim, dim, bias=False) for _ in range(4))
        self.heads, self.bias = heads, nn.Embedding(8, heads) if biased else None

    def places(self, T: int, S: int) -> Any:
        """Buckets of distances: exact to 4, logarithmic beyond."""
        distance = torch.arange(S)[None, :] - torch.arange(T)[:, None]
        away = distance.abs()
        far = 2 + (torch.log(away.float().clamp(min=1) / 2) / 3.0 * 2).to(torch.long)
        return (distance > 0).long() * 4 + torch.where(away < 2, away, torch.clamp(far, max=3))

    def forward(self, x: Any, memory: Any, causal: bool = False) -> Any:
        B, T, D = x.shape
        q, k, v = (f(y).view(B, -1, self.heads, D // self.heads).transpose(1, 2)
                   for f, y in ((self.q, x), (self.k, memory), (self.v, memory)))
        scores = torch.einsum("bhqd,bhkd->bhqk", q, k)
        if self.bias is not None:
            scores = scores + self.bias(self.places(T, k.shape[2])).permute(2, 0, 1).unsqueeze(0)
        if causal:
            scores = scores.masked_fill(torch.triu(torch.ones(T, T, dtype=torch.bool), 1), float("-inf"))
        y = torch.softmax(scores.float(), -1).type_as(scores) @ v
        return self.o(y.transpose(1, 2).reshape(B, T, D))


class T5(nn.Module):
    """One layer of an encoder and one of a decoder."""

    def __init__(self, words: int, dim: int, heads: int):
        super().__init__()
        self.words, self.head = nn.Embedding(words, dim), nn.Linear(dim, words, bias=False)
        self.encode, self.decode = T5Attention(dim, heads, True), T5Attention(dim, heads, True)
        self.cross = T5Attention(dim, heads, False)
        self.norms = nn.ModuleList([RMSNorm(dim) for _ in range(6)])
        self.wide = nn.ModuleList([nn.Sequential(nn.Linear(dim, 4 * dim), nn.ReLU(), nn.Linear(4 * dim, dim))
                                   for _ in range(2)])

    def forward(self, source: Any, target: Any) -> Any:
        x, n = self.words(source), self.norms
        y = n[0](x)
        x = x + self.encode(y, y)
        x = n[2](x + self.wide[0](n[1](x)))
        t = self.words(target)
        y = n[3](t)
        t = t + self.decode(y, y, causal=True)
        t = t + self.cross(n[4](t), x)
        return self.head(n[5](t + self.wide[1](t)))


class Whisper(nn.Module):
    """An encoder of mel spectrograms [B, 80, T]: two convolutions over time, sinusoids, a transformer."""

    def __init__(self, mels: int, dim: int, depth: int, heads: int):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv1d(mels, dim, 3, padding=1), nn.Conv1d(dim, dim, 3, 2, 1)
        layer = nn.TransformerEncoderLayer(dim, heads, 4 * dim, 0.0, F.gelu, batch_first=True, norm_first=True)
        self.encoder, self.norm = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False), nn.LayerNorm(dim)

    def forward(self, mel: Any) -> Any:
        x = F.gelu(self.conv2(F.gelu(self.conv1(mel)))).permute(0, 2, 1)
        half = x.shape[2] // 2
        angles = torch.arange(x.shape[1])[:, None] * torch.exp(-9.2 / (half - 1) * torch.arange(half))[None, :]
        return self.norm(self.encoder(x + torch.cat([angles.sin(), angles.cos()], 1)))


class Clip(nn.Module):
    """Two towers, and the scores of all pairs of what they say."""

    def __init__(self, words: int, dim: int):
        super().__init__()
        self.image = nn.Sequential(nn.Conv2d(3, dim, 4, 4), nn.GELU(), nn.Flatten(2))
        self.words, self.text = nn.Embedding(words, dim, padding_idx=0), nn.Linear(dim, dim)
        self.temperature = nn.Parameter(torch.tensor(2.0))

    def forward(self, image: Any, ids: Any) -> Any:
        a = F.normalize(self.image(image).amax(-1), dim=-1)
        ends = ids.argmax(-1)
        b = self.text(self.words(ids).cumsum(1))[torch.arange(ids.shape[0]), ends]
        return self.temperature.exp() * a @ (b / b.norm(dim=-1, keepdim=True)).t()


def pairs(model: Any, image: Any, ids: Any) -> Any:
    scores = model(image, ids)
    own = torch.arange(scores.shape[0])
    return (F.cross_entropy(scores, own) + F.cross_entropy(scores.t(), own)) / 2


def bert(large: bool) -> Case:
    B, T = (1, 128) if large else (2, 7)
    ids, mask = torch.randint(0, 50, (B, T)), (torch.arange(T) < torch.tensor([[T], [T - 2]])[:B]).long()
    return Case(Bert(50, 768, 4, 12, T) if large else Bert(50, 16, 2, 2, T), (ids, mask), mean_square)


def gpt(large: bool) -> Case:
    model = GPT(1000, 384, 6, 6, 128) if large else GPT(40, 16, 2, 2, 8)
    return Case(model, (torch.randint(0, 40, (1, 128) if large else (2, 6)),), classes)


def llama(large: bool) -> Case:
    T, model = (64, Llama(1000, 576, 6, 9, 3, 128)) if large else (5, Llama(40, 16, 2, 4, 2, 8))
    return Case(model, (torch.randint(0, 40, (1, T)), torch.arange(T)), classes)


def t5(large: bool) -> Case:
    T, model = (128, T5(1000, 512, 8)) if large else (6, T5(40, 16, 2))
    return Case(model, (torch.randint(0, 40, (2, T)), torch.randint(0, 40, (2, T - 1))), classes)


def whisper(large: bool) -> Case:
    model, shape = (Whisper(80, 384, 2, 6), (1, 80, 500)) if large else (Whisper(8, 16, 1, 2), (2, 8, 12))
    return Case(model, (torch.randn(*shape),), classes)


def clip(large: bool) -> Case:
    N, dim, size, T = (8, 512, 64, 32) if large else (3, 8, 8, 5)
    return Case(Clip(30, dim), (torch.randn(N, 3, size, size), torch.randint(0, 30, (N, T))), pairs)


MODELS: dict[str, Build] = {
    "bert": bert, "gpt": gpt, "llama": llama, "t5": t5, "whisper": whisper, "clip": clip}
