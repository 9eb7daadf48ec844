"""A GPT of nanoGPT's shape: layer norm before attention and perceptron, learned positions, tied embeddings.

Sources: Radford et al. 2019, "Language Models are Unsupervised Multitask Learners"; nanoGPT's sizes for one processor
are the defaults.
"""
from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from minigrad import Tensor, jit, nn
from minigrad.errors import ShapeError


@dataclass(frozen=True)
class Sizes:
    """Sizes of a GPT: tokens known, tokens seen at once, layers, heads, numbers for each token."""

    vocabulary: int
    block: int = 64
    layers: int = 4
    heads: int = 4
    width: int = 128
    dropout: float = 0.0


class Layer(nn.Module):
    """Attention to the tokens before, then a perceptron, each added to its input."""

    def __init__(self, sizes: Sizes):
        width = sizes.width
        self.heads, self.dropout = sizes.heads, sizes.dropout
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        n, t, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).reshape(n, t, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        seen = q.scaled_dot_product_attention(k, v, is_causal=True).transpose(1, 2).reshape(n, t, width)
        x = x + self.out(seen).dropout(self.dropout)
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x)))).dropout(self.dropout)


class GPT(nn.Module):
    """Maps tokens [N, T], T up to `sizes.block`, to logits [N, T, vocabulary] of the tokens that come next."""

    def __init__(self, sizes: Sizes):
        if sizes.width % sizes.heads:
            raise ShapeError(f"[GPT] expected a width that {sizes.heads} heads share, got {sizes.width}")
        self.sizes = sizes
        self.tokens, self.places = nn.Embedding(sizes.vocabulary, sizes.width), nn.Embedding(sizes.block, sizes.width)
        self.layers = nn.ModuleList([Layer(sizes) for _ in range(sizes.layers)])
        self.norm = nn.LayerNorm(sizes.width)
        self._start()

    def _start(self) -> None:
        """GPT-2's initial values: normal of 0.02, and less for what is added to the residual."""
        for name, p in self.named_parameters():
            if p.ndim == 2:
                inner = name.endswith(("out.weight", "down.weight"))
                deviation = 0.02 / math.sqrt(2 * self.sizes.layers) if inner else 0.02
                p.assign(Tensor.randn(*p.shape, device=p.device) * deviation).realize()

    def forward(self, tokens: Tensor) -> Tensor:
        t = tokens.shape[1]
        if not isinstance(t, int) or t > self.sizes.block:
            raise ShapeError(f"[GPT] expected at most {self.sizes.block} tokens, got {t}")
        x = (self.tokens(tokens) + self.places.weight[:t]).dropout(self.sizes.dropout)
        for layer in self.layers:
            x = layer(x)
        return nn.functional.linear(self.norm(x), self.tokens.weight)


def sample(model: GPT, tokens: list[int], count: int, temperature: float, top: int, seed: int) -> list[int]:
    """`tokens`, and `count` more: each drawn from the `top` likeliest (0: all) at a temperature (0: the likeliest). The
    model is to be in `eval()`."""
    random = np.random.default_rng(seed)
    block = model.sizes.block

    @jit
    def last(window: Tensor, at: Tensor) -> Tensor:
        with Tensor.no_grad():
            return model(window)[0].float().gather(0, at.reshape(1, 1).expand(1, model.sizes.vocabulary))[0]

    for _ in range(count):
        seen = tokens[-block:]
        window = np.zeros((1, block), np.int32)
        window[0, :len(seen)] = seen
        logits = last(Tensor(window), Tensor(np.int64(len(seen) - 1))).numpy().astype(np.float64)
        if temperature == 0:
            tokens = [*tokens, int(logits.argmax())]
            continue
        scaled = logits / temperature
        if top:
            scaled[scaled < np.sort(scaled)[-min(top, len(scaled))]] = -np.inf
        chances = np.exp(scaled - scaled.max())
        tokens = [*tokens, int(random.choice(len(chances), p=chances / chances.sum()))]
    return tokens
