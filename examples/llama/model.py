"""LLaMA: a decoder-only transformer, written with Tensors and a cache of keys and values that lives on the device.

Read it from the bottom up: `Llama.__call__` takes token ids and gives logits. Shapes are in brackets; n is the number
of new tokens, T = position + n that of all tokens so far, both symbolic where they change from call to call, so that
every program is compiled once however long the conversation gets.
"""
from __future__ import annotations

import numpy as np

from examples.llama.checkpoint import Config, Weight
from minigrad import Tensor, Variable
from minigrad.errors import FormatError
from minigrad.expr import Index, evaluate
from minigrad.state import QuantizedTensor

DEFAULT_CONTEXT = 2048
"""Tokens that the cache holds, where the model allows as many: some claim millions."""


def rotary_table(config: Config, capacity: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines [capacity, head_size] of the angles p / base^(2i / head_size), in radians, by which position p
    rotates pair i of a head: its elements i and i + head_size/2. The sine's sign for the first of the two is in the
    table.

    https://arxiv.org/abs/2104.09864
    """
    pairs = config.head_size // 2
    frequencies = config.rope_base ** (-np.arange(pairs) / pairs) / np.array(config.rope_factors or [1.0] * pairs)
    angles = np.arange(capacity)[:, None] * frequencies
    cosines, sines = np.cos(angles), np.sin(angles)
    return (Tensor(np.concatenate([cosines, cosines], axis=1).astype(np.float32)),
            Tensor(np.concatenate([-sines, sines], axis=1).astype(np.float32)))


def rotate(x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Rotates every pair of x [heads, n, head_size] by its position's angle; the tables are [n, head_size]."""
    heads, n, size = x.shape
    swapped = x.reshape(heads, n, 2, size // 2).flip(2).reshape(heads, n, size)
    return x * cosines + swapped * sines


def rms_norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """x / sqrt(mean(x*x) + epsilon) * weight, over the last axis. https://arxiv.org/abs/1910.07467"""
    return x.rmsnorm(eps=epsilon) * weight


def linear(x: Tensor, weight: Weight, config: Config) -> Tensor:
    """x [..., K] times the transposed matrix [N, K]: [..., N]."""
    if isinstance(weight, QuantizedTensor):
        return weight.linear(x, quantize_activations=config.quantize_activations)
    return x.linear(weight.transpose())


class Weights:
    """Takes tensors out of a checkpoint by name, each checked against the shape that the configuration asks for."""

    def __init__(self, tensors: dict[str, Weight], prefix: str = ""):
        self.tensors, self.prefix = tensors, prefix

    def matrix(self, name: str, rows: int, columns: int) -> Weight:
        return self._take(name, (rows, columns))

    def vector(self, name: str, size: int) -> Tensor:
        weight = self._take(name, (size,))
        return weight if isinstance(weight, Tensor) else weight.dequantize().reshape(size)

    def _take(self, name: str, shape: tuple[int, ...]) -> Weight:
        full = self.prefix + name
        if full not in self.tensors:
            raise FormatError(f"the model has no tensor for {full}; expected one of shape {list(shape)}; "
                              "download the model again")
        tensor = self.tensors[full]
        if tensor.shape != shape:
            raise FormatError(f"the model's {full} has shape {list(tensor.shape)}; expected {list(shape)} by its own "
                              "description; download the model again")
        if isinstance(tensor, Tensor) and not tensor.dtype.is_float:
            raise FormatError(f"the model's {full} has elements of {tensor.dtype}; expected floats; download the model "
                              "again")
        return tensor


class Attention:
    """Self-attention of new tokens to all tokens so far; several query heads share a key and value head.

    https://arxiv.org/abs/2305.13245
    """

    def __init__(self, config: Config, weights: Weights, capacity: int):
        self.config = config
        queries, keys = config.heads * config.head_size, config.kv_heads * config.head_size
        self.query = weights.matrix("query", queries, config.width)
        self.key = weights.matrix("key", keys, config.width)
        self.value = weights.matrix("value", keys, config.width)
        self.out = weights.matrix("attention_out", config.width, queries)
        # Keys and values of all tokens so far, [kv_heads, capacity, head_size]; from T on they are not yet written.
        self.cached_keys = Tensor.zeros(config.kv_heads, capacity, config.head_size).contiguous()
        self.cached_values = Tensor.zeros(config.kv_heads, capacity, config.head_size).contiguous()

    def __call__(self, x: Tensor, cosines: Tensor, sines: Tensor, position: Index) -> Tensor:
        """x [n, width], tables [n, head_size] -> [n, width]."""
        config, n = self.config, x.shape[0]
        query = linear(x, self.query, config).reshape(n, config.heads, config.head_size).transpose(0, 1)
        key = linear(x, self.key, config).reshape(n, config.kv_heads, config.head_size).transpose(0, 1)
        value = linear(x, self.value, config).reshape(n, config.kv_heads, config.head_size).transpose(0, 1)
        query, key = rotate(query, cosines, sines), rotate(key, cosines, sines)

        end = position + n
        self.cached_keys[:, position:end] = key
        self.cached_values[:, position:end] = value

        keys, values = self.cached_keys[:, :end], self.cached_values[:, :end]
        # Token i may look at positions 0 to position + i.
        mixed = query.scaled_dot_product_attention(keys, values, is_causal=True, causal_offset=position,
                                                   enable_gqa=True)
        return linear(mixed.transpose(0, 1).reshape(n, -1), self.out, config)


class FeedForward:
    """SwiGLU: (silu(x gate) * x up) down. https://arxiv.org/abs/2002.05202"""

    def __init__(self, config: Config, weights: Weights):
        self.config = config
        self.gate = weights.matrix("gate", config.hidden, config.width)
        self.up = weights.matrix("up", config.hidden, config.width)
        self.down = weights.matrix("down", config.width, config.hidden)

    def __call__(self, x: Tensor) -> Tensor:
        gated = linear(x, self.gate, self.config).silu() * linear(x, self.up, self.config)
        return linear(gated, self.down, self.config)


class Layer:
    """x + attention(norm(x)), then x + feed_forward(norm(x))."""

    def __init__(self, config: Config, weights: Weights, capacity: int):
        self.epsilon = config.epsilon
        self.attention_norm = weights.vector("attention_norm", config.width)
        self.attention = Attention(config, weights, capacity)
        self.feed_norm = weights.vector("feed_norm", config.width)
        self.feed_forward = FeedForward(config, weights)

    def __call__(self, x: Tensor, cosines: Tensor, sines: Tensor, position: Index) -> Tensor:
        x = x + self.attention(rms_norm(x, self.attention_norm, self.epsilon), cosines, sines, position)
        return x + self.feed_forward(rms_norm(x, self.feed_norm, self.epsilon))


class Llama:
    """The whole model. `capacity` is the longest conversation that the cache holds, at most the model's own context."""

    def __init__(self, config: Config, tensors: dict[str, Weight], capacity: int = DEFAULT_CONTEXT):
        self.config = config
        self.capacity = min(config.context, capacity)
        weights = Weights(tensors)
        self.embedding = weights.matrix("embedding", config.vocabulary, config.width)
        self.layers = [Layer(config, Weights(tensors, f"layers.{layer}."), self.capacity)
                       for layer in range(config.layers)]
        self.norm = weights.vector("norm", config.width)
        tied = "output" not in tensors
        self.output = self.embedding if tied else weights.matrix("output", config.vocabulary, config.width)
        self.cosines, self.sines = rotary_table(config, self.capacity)
        self.position = Variable("position", 0, self.capacity - 1)
        self.length = Variable("length", 2, max(2, self.capacity))

    def hidden(self, tokens: Tensor, position: Index) -> Tensor:
        """Token ids [n], the first of them at `position` -> the last layer's normalised output [n, width]."""
        n = tokens.shape[0]
        end = position + n
        embedding = self.embedding
        x = embedding.rows(tokens) if isinstance(embedding, QuantizedTensor) else embedding[tokens].float()
        for layer in self.layers:
            x = layer(x, self.cosines[position:end], self.sines[position:end], position)
        return rms_norm(x, self.norm, self.config.epsilon)

    def __call__(self, tokens: Tensor, position: Index) -> Tensor:
        """Token ids [n], the first of them at `position` -> logits of what follows the last one, [vocabulary]."""
        last = self.hidden(tokens, position)[tokens.shape[0] - 1]
        return self.logits(last)

    def logits(self, hidden: Tensor) -> Tensor:
        """[..., width] -> [..., vocabulary]."""
        return linear(hidden, self.output, self.config)

    def caches(self) -> list[Tensor]:
        """The keys and values, which a call changes."""
        attentions = [layer.attention for layer in self.layers]
        return [cache for attention in attentions for cache in (attention.cached_keys, attention.cached_values)]

    def weight_bytes(self) -> int:
        """Bytes of weights that one decoded token reads: all but the embedding, of which it reads a row."""
        read: list[Weight] = [self.norm, self.output]
        for layer in self.layers:
            attention, feed = layer.attention, layer.feed_forward
            read += [layer.attention_norm, layer.feed_norm, attention.query, attention.key, attention.value,
                     attention.out, feed.gate, feed.up, feed.down]
        return sum([evaluate(tensor.nbytes(), {}) for tensor in read])
