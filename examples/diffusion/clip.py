"""CLIP's text encoders, with the names of parameters of transformers (CLIPTextModel, CLIPTextModelWithProjection).

Tokens [N, 77] become a row for each token, of the last layer or of the one before it, and a summary of the text: the
row of its end, projected where the model has a projection.

Source: Radford et al. 2021, https://arxiv.org/abs/2103.00020
"""
from __future__ import annotations

from dataclasses import dataclass

from minigrad import Tensor, nn


@dataclass(frozen=True)
class Config:
    """Sizes; `activation` is quick_gelu (OpenAI's) or gelu (OpenCLIP's), `projection` the summary's width (0: it is not
    projected), `end` the token that ends a text (2, as old files say: the one with the largest number)."""

    width: int = 768
    hidden: int = 3072
    layers: int = 12
    heads: int = 12
    activation: str = "quick_gelu"
    projection: int = 0
    vocabulary: int = 49408
    positions: int = 77
    end: int = 2
    eps: float = 1e-5


class Embeddings(nn.Module):
    def __init__(self, config: Config):
        self.token_embedding = nn.Embedding(config.vocabulary, config.width)
        self.position_embedding = nn.Embedding(config.positions, config.width)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.token_embedding(tokens) + self.position_embedding.weight[:tokens.shape[1]]


class SelfAttention(nn.Module):
    """Attention to the tokens before."""

    def __init__(self, config: Config):
        self.heads = config.heads
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (
            nn.Linear(config.width, config.width) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (to(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
                   for to in (self.q_proj, self.k_proj, self.v_proj))
        return self.out_proj(q.scaled_dot_product_attention(k, v, is_causal=True).transpose(1, 2).flatten(2))


class MLP(nn.Module):
    def __init__(self, config: Config):
        self.quick = config.activation == "quick_gelu"
        self.fc1, self.fc2 = nn.Linear(config.width, config.hidden), nn.Linear(config.hidden, config.width)

    def forward(self, x: Tensor) -> Tensor:
        y = self.fc1(x)
        return self.fc2(y * (1.702 * y).sigmoid() if self.quick else nn.functional.gelu(y))


class EncoderLayer(nn.Module):
    def __init__(self, config: Config):
        self.layer_norm1, self.self_attn = nn.LayerNorm(config.width, config.eps), SelfAttention(config)
        self.layer_norm2, self.mlp = nn.LayerNorm(config.width, config.eps), MLP(config)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.self_attn(self.layer_norm1(x))
        return x + self.mlp(self.layer_norm2(x))


class Encoder(nn.Module):
    def __init__(self, config: Config):
        self.layers = nn.ModuleList([EncoderLayer(config) for _ in range(config.layers)])


class TextTransformer(nn.Module):
    def __init__(self, config: Config):
        self.embeddings, self.encoder = Embeddings(config), Encoder(config)
        self.final_layer_norm = nn.LayerNorm(config.width, config.eps)


class CLIPText(nn.Module):
    """Gives (rows of the last layer after its norm, rows of the layer before the last, the summary)."""

    def __init__(self, config: Config = Config()):
        self.config, self.text_model = config, TextTransformer(config)
        self.text_projection = (nn.Linear(config.width, config.projection, bias=False) if config.projection else None)

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        model, end = self.text_model, self.config.end
        x = before = model.embeddings(tokens)
        for layer in model.encoder.layers:
            before, x = x, layer(x)
        rows = model.final_layer_norm(x)
        place = (tokens if end == 2 else (tokens == end).cast("int32")).argmax(1)
        picked = (Tensor.arange(tokens.shape[1], device=x.device) == place.unsqueeze(1)).unsqueeze(-1)
        summary = picked.where(rows, 0).sum(1)
        return rows, before, summary if self.text_projection is None else self.text_projection(summary)
