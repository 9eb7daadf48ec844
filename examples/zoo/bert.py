"""BERT, base-sized by default, with the names of parameters of transformers (`BertModel`).

Tokens [N, L] become rows [N, L, hidden] and a summary [N, hidden] of the first token's row. Dropout is left out.

Source: Devlin et al. 2018, https://arxiv.org/abs/1810.04805
"""
from __future__ import annotations

from typing import NamedTuple

from minigrad import Tensor, nn


class Config(NamedTuple):
    """Sizes, those of bert-base-uncased by default."""

    vocabulary: int = 30522
    hidden: int = 768
    layers: int = 12
    heads: int = 12
    intermediate: int = 3072
    positions: int = 512
    types: int = 2
    eps: float = 1e-12


class Embeddings(nn.Module):
    def __init__(self, config: Config):
        self.word_embeddings = nn.Embedding(config.vocabulary, config.hidden)
        self.position_embeddings = nn.Embedding(config.positions, config.hidden)
        self.token_type_embeddings = nn.Embedding(config.types, config.hidden)
        self.LayerNorm = nn.LayerNorm(config.hidden, config.eps)

    def forward(self, tokens: Tensor, types: Tensor | None) -> Tensor:
        kinds = self.token_type_embeddings.weight[0] if types is None else self.token_type_embeddings(types)
        return self.LayerNorm(self.word_embeddings(tokens) + kinds
                              + self.position_embeddings.weight[:tokens.shape[1]])


class SelfAttention(nn.Module):
    def __init__(self, config: Config):
        self.heads = config.heads
        self.query, self.key, self.value = (nn.Linear(config.hidden, config.hidden) for _ in range(3))

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        q, k, v = (layer(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
                   for layer in (self.query, self.key, self.value))
        return q.scaled_dot_product_attention(k, v, mask).transpose(1, 2).flatten(2)


class Output(nn.Module):
    """A linear layer whose result is added to `residual`, then layer norm."""

    def __init__(self, inputs: int, config: Config):
        self.dense, self.LayerNorm = nn.Linear(inputs, config.hidden), nn.LayerNorm(config.hidden, config.eps)

    def forward(self, x: Tensor, residual: Tensor) -> Tensor:
        return self.LayerNorm(self.dense(x) + residual)


class Attention(nn.Module):
    def __init__(self, config: Config):
        self.self, self.output = SelfAttention(config), Output(config.hidden, config)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        return self.output(self.self(x, mask), x)


class Dense(nn.Module):
    """A linear layer by the name that BERT's files have for it."""

    def __init__(self, inputs: int, outputs: int):
        self.dense = nn.Linear(inputs, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.dense(x)


class Layer(nn.Module):
    def __init__(self, config: Config):
        self.attention = Attention(config)
        self.intermediate = Dense(config.hidden, config.intermediate)
        self.output = Output(config.intermediate, config)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        x = self.attention(x, mask)
        return self.output(nn.functional.gelu(self.intermediate(x)), x)


class Encoder(nn.Module):
    def __init__(self, config: Config):
        self.layer = nn.ModuleList([Layer(config) for _ in range(config.layers)])

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        for layer in self.layer:
            x = layer(x, mask)
        return x


class Bert(nn.Module):
    """A call gives (rows [N, L, hidden], summary [N, hidden]). `mask` [N, L] is 1 or True for tokens, 0 for padding;
    `types` [N, L] tells the first text (0) from the second (1), all 0 by default."""

    def __init__(self, config: Config | None = None):
        config = Config() if config is None else config
        self.embeddings, self.encoder = Embeddings(config), Encoder(config)
        self.pooler = Dense(config.hidden, config.hidden)

    def forward(self, tokens: Tensor, mask: Tensor | None = None, types: Tensor | None = None,
                ) -> tuple[Tensor, Tensor]:
        kept = None if mask is None else mask.bool().reshape(mask.shape[0], 1, 1, mask.shape[1])
        rows = self.encoder(self.embeddings(tokens, types), kept)
        return rows, self.pooler(rows[:, 0]).tanh()
