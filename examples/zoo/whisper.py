"""Whisper, tiny by default, with the names of parameters of transformers (`WhisperModel`).

The encoder takes a log-mel spectrogram [N, mels, 3000] of 30 seconds to rows [N, 1500, hidden], the decoder tokens
[N, L] and those rows to logits [N, L, vocabulary].

Source: Radford et al. 2022, https://arxiv.org/abs/2212.04356
"""
from __future__ import annotations

import math
from typing import NamedTuple

from minigrad import Tensor, nn


class Config(NamedTuple):
    """Sizes, those of whisper-tiny by default."""

    mels: int = 80
    vocabulary: int = 51865
    hidden: int = 384
    layers: int = 4
    heads: int = 6
    positions: int = 1500
    text_positions: int = 448


class Attention(nn.Module):
    """Of the rows of x to `source`, or to themselves."""

    def __init__(self, hidden: int, heads: int):
        self.heads = heads
        self.k_proj = nn.Linear(hidden, hidden, bias=False)
        self.v_proj, self.q_proj, self.out_proj = (nn.Linear(hidden, hidden) for _ in range(3))

    def forward(self, x: Tensor, source: Tensor | None = None, causal: bool = False) -> Tensor:
        source = x if source is None else source
        q, k, v = (projected.unflatten(-1, (self.heads, -1)).transpose(1, 2)
                   for projected in (self.q_proj(x), self.k_proj(source), self.v_proj(source)))
        return self.out_proj(q.scaled_dot_product_attention(k, v, is_causal=causal).transpose(1, 2).flatten(2))


class EncoderLayer(nn.Module):
    def __init__(self, hidden: int, heads: int):
        self.self_attn, self.self_attn_layer_norm = Attention(hidden, heads), nn.LayerNorm(hidden)
        self.fc1, self.fc2 = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)
        self.final_layer_norm = nn.LayerNorm(hidden)

    def forward(self, x: Tensor, rows: Tensor | None = None) -> Tensor:
        x = x + self.self_attn(self.self_attn_layer_norm(x))
        return self.perceptron(x)

    def perceptron(self, x: Tensor) -> Tensor:
        return x + self.fc2(nn.functional.gelu(self.fc1(self.final_layer_norm(x))))


class DecoderLayer(EncoderLayer):
    """As the encoder's, with attention to earlier tokens only, and to the encoder's rows after it."""

    def __init__(self, hidden: int, heads: int):
        super().__init__(hidden, heads)
        self.encoder_attn, self.encoder_attn_layer_norm = Attention(hidden, heads), nn.LayerNorm(hidden)

    def forward(self, x: Tensor, rows: Tensor | None = None) -> Tensor:
        x = x + self.self_attn(self.self_attn_layer_norm(x), causal=True)
        x = x + self.encoder_attn(self.encoder_attn_layer_norm(x), rows)
        return self.perceptron(x)


class Encoder(nn.Module):
    def __init__(self, config: Config):
        self.conv1 = nn.Conv1d(config.mels, config.hidden, 3, padding=1)
        self.conv2 = nn.Conv1d(config.hidden, config.hidden, 3, stride=2, padding=1)
        self.embed_positions = nn.Embedding(config.positions, config.hidden)
        self.embed_positions.weight = sinusoids(config.positions, config.hidden)
        self.layers = nn.ModuleList([EncoderLayer(config.hidden, config.heads) for _ in range(config.layers)])
        self.layer_norm = nn.LayerNorm(config.hidden)

    def forward(self, mel: Tensor) -> Tensor:
        gelu = nn.functional.gelu
        x = gelu(self.conv2(gelu(self.conv1(mel)))).transpose(1, 2) + self.embed_positions.weight
        for layer in self.layers:
            x = layer(x)
        return self.layer_norm(x)


class Decoder(nn.Module):
    def __init__(self, config: Config):
        self.embed_tokens = nn.Embedding(config.vocabulary, config.hidden)
        self.embed_positions = nn.Embedding(config.text_positions, config.hidden)
        self.layers = nn.ModuleList([DecoderLayer(config.hidden, config.heads) for _ in range(config.layers)])
        self.layer_norm = nn.LayerNorm(config.hidden)

    def forward(self, tokens: Tensor, rows: Tensor) -> Tensor:
        x = self.embed_tokens(tokens) + self.embed_positions.weight[:tokens.shape[1]]
        for layer in self.layers:
            x = layer(x, rows)
        return self.layer_norm(x) @ self.embed_tokens.weight.T


class Whisper(nn.Module):
    def __init__(self, config: Config | None = None):
        config = Config() if config is None else config
        self.encoder, self.decoder = Encoder(config), Decoder(config)

    def forward(self, mel: Tensor, tokens: Tensor) -> Tensor:
        return self.decoder(tokens, self.encoder(mel))


def sinusoids(length: int, channels: int) -> Tensor:
    """Positions [length, channels]: sines, then cosines, of wavelengths from 2 pi to 10,000 * 2 pi. They are not
    trained."""
    steps = math.log(10000) / (channels // 2 - 1)
    angles = Tensor.arange(length).float().reshape(length, 1) * (Tensor.arange(channels // 2).float() * -steps).exp()
    return Tensor.cat(angles.sin(), angles.cos(), dim=1)
