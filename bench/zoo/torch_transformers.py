"""The zoo's transformers once more, in torch, with the same names in their state."""
from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def heads(x: Tensor, count: int) -> Tensor:
    """[N, L, E] -> [N, count, L, E / count]."""
    return x.view(x.shape[0], x.shape[1], count, -1).transpose(1, 2)


def joined(x: Tensor) -> Tensor:
    return x.transpose(1, 2).flatten(2)


class ViTBlock(nn.Module):
    def __init__(self, dim: int, count: int):
        super().__init__()
        self.norm1, self.norm2, self.count = nn.LayerNorm(dim, 1e-6), nn.LayerNorm(dim, 1e-6), count
        self.attn = nn.ModuleDict({"qkv": nn.Linear(dim, 3 * dim), "proj": nn.Linear(dim, dim)})
        self.mlp = nn.ModuleDict({"fc1": nn.Linear(dim, 4 * dim), "fc2": nn.Linear(4 * dim, dim)})

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = [heads(t, self.count) for t in self.attn["qkv"](self.norm1(x)).chunk(3, -1)]
        x = x + self.attn["proj"](joined(F.scaled_dot_product_attention(q, k, v)))
        return x + self.mlp["fc2"](F.gelu(self.mlp["fc1"](self.norm2(x))))


class ViT(nn.Module):
    def __init__(self, size: int = 224, patch: int = 16, dim: int = 384, depth: int = 12, count: int = 6,
                 classes: int = 1000):
        super().__init__()
        self.cls_token = nn.Parameter(torch.zeros(1, 1, dim))
        self.pos_embed = nn.Parameter(torch.randn(1, (size // patch) ** 2 + 1, dim))
        self.patch_embed = nn.ModuleDict({"proj": nn.Conv2d(3, dim, patch, patch)})
        self.blocks = nn.ModuleList([ViTBlock(dim, count) for _ in range(depth)])
        self.norm, self.head = nn.LayerNorm(dim, 1e-6), nn.Linear(dim, classes)

    def forward(self, x: Tensor) -> Tensor:
        rows = self.patch_embed["proj"](x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls_token.expand(len(rows), -1, -1), rows], 1) + self.pos_embed
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)[:, 0])


class Added(nn.Module):
    """BERT's linear layer with a residual and a layer norm after it."""

    def __init__(self, inputs: int, hidden: int, eps: float):
        super().__init__()
        self.dense, self.LayerNorm = nn.Linear(inputs, hidden), nn.LayerNorm(hidden, eps)

    def forward(self, x: Tensor, residual: Tensor) -> Tensor:
        return self.LayerNorm(self.dense(x) + residual)


class BertLayer(nn.Module):
    def __init__(self, hidden: int, count: int, wide: int, eps: float):
        super().__init__()
        self.count = count
        of_self = nn.ModuleDict({name: nn.Linear(hidden, hidden) for name in ("query", "key", "value")})
        self.attention = nn.ModuleDict({"self": of_self, "output": Added(hidden, hidden, eps)})
        self.intermediate = nn.ModuleDict({"dense": nn.Linear(hidden, wide)})
        self.output = Added(wide, hidden, eps)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        q, k, v = [heads(self.attention["self"][name](x), self.count) for name in ("query", "key", "value")]
        x = self.attention["output"](joined(F.scaled_dot_product_attention(q, k, v, mask)), x)
        return self.output(F.gelu(self.intermediate["dense"](x)), x)


class Bert(nn.Module):
    def __init__(self, vocabulary: int, hidden: int, layers: int, count: int, wide: int, positions: int, types: int,
                 eps: float):
        super().__init__()
        self.embeddings = nn.ModuleDict({
            "word_embeddings": nn.Embedding(vocabulary, hidden), "position_embeddings": nn.Embedding(positions, hidden),
            "token_type_embeddings": nn.Embedding(types, hidden), "LayerNorm": nn.LayerNorm(hidden, eps)})
        self.encoder = nn.ModuleDict({
            "layer": nn.ModuleList([BertLayer(hidden, count, wide, eps) for _ in range(layers)])})
        self.pooler = nn.ModuleDict({"dense": nn.Linear(hidden, hidden)})

    def forward(self, tokens: Tensor, mask: Tensor | None = None, types: Tensor | None = None
                ) -> tuple[Tensor, Tensor]:
        places = torch.arange(tokens.shape[1])
        x = self.embeddings["word_embeddings"](tokens) + self.embeddings["position_embeddings"](places)
        x = x + self.embeddings["token_type_embeddings"](torch.zeros_like(tokens) if types is None else types)
        x = self.embeddings["LayerNorm"](x)
        kept = None if mask is None else mask.bool()[:, None, None]
        for layer in self.encoder["layer"]:
            x = layer(x, kept)
        return x, torch.tanh(self.pooler["dense"](x[:, 0]))


class WhisperLayer(nn.Module):
    """Of the encoder, or with `crosses` of the decoder."""

    def __init__(self, hidden: int, count: int, crosses: bool):
        super().__init__()
        self.count, self.crosses = count, crosses
        for name in ("self_attn", "encoder_attn") if crosses else ("self_attn",):
            self.add_module(name, nn.ModuleDict({part: nn.Linear(hidden, hidden, bias=part != "k_proj")
                                                 for part in ("k_proj", "v_proj", "q_proj", "out_proj")}))
            self.add_module(name + "_layer_norm", nn.LayerNorm(hidden))
        self.fc1, self.fc2 = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)
        self.final_layer_norm = nn.LayerNorm(hidden)

    def attend(self, name: str, x: Tensor, source: Tensor | None) -> Tensor:
        y = self.get_submodule(name + "_layer_norm")(x)
        rows = y if source is None else source
        q, k, v = [heads(self.get_submodule(f"{name}.{part}_proj")(t), self.count)
                   for part, t in (("q", y), ("k", rows), ("v", rows))]
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=self.crosses and source is None)
        return x + self.get_submodule(f"{name}.out_proj")(joined(mixed))

    def forward(self, x: Tensor, rows: Tensor | None = None) -> Tensor:
        x = self.attend("self_attn", x, None)
        x = self.attend("encoder_attn", x, rows) if self.crosses else x
        return x + self.fc2(F.gelu(self.fc1(self.final_layer_norm(x))))


class Whisper(nn.Module):
    def __init__(self, mels: int, vocabulary: int, hidden: int, layers: int, count: int, positions: int, texts: int):
        super().__init__()
        self.encoder = nn.ModuleDict({
            "conv1": nn.Conv1d(mels, hidden, 3, padding=1), "conv2": nn.Conv1d(hidden, hidden, 3, 2, 1),
            "embed_positions": nn.Embedding(positions, hidden), "layer_norm": nn.LayerNorm(hidden),
            "layers": nn.ModuleList([WhisperLayer(hidden, count, False) for _ in range(layers)])})
        self.decoder = nn.ModuleDict({
            "embed_tokens": nn.Embedding(vocabulary, hidden), "embed_positions": nn.Embedding(texts, hidden),
            "layer_norm": nn.LayerNorm(hidden),
            "layers": nn.ModuleList([WhisperLayer(hidden, count, True) for _ in range(layers)])})

    def forward(self, mel: Tensor, tokens: Tensor) -> Tensor:
        rows = F.gelu(self.encoder["conv2"](F.gelu(self.encoder["conv1"](mel)))).transpose(1, 2)
        rows = rows + self.encoder["embed_positions"].weight
        for layer in self.encoder["layers"]:
            rows = layer(rows)
        rows = self.encoder["layer_norm"](rows)
        words = self.decoder["embed_tokens"]
        x = words(tokens) + self.decoder["embed_positions"].weight[:tokens.shape[1]]
        for layer in self.decoder["layers"]:
            x = layer(x, rows)
        return self.decoder["layer_norm"](x) @ words.weight.T
