"""Decoder-only transformers of many families, written with Tensors and caches that live on the device.

Read it from the bottom up: `Llama.__call__` takes token ids and gives logits. Shapes are in brackets; n is the number
of new tokens, T = position + n that of all tokens so far, both symbolic where they change from call to call, so that
every program is compiled once however long the conversation gets. LLaMA is the plain case; what other families do
besides is asked of the `Config`, or is there because the checkpoint has a tensor for it (families.py).
"""
from __future__ import annotations

import numpy as np

from examples.llama.checkpoint import Weight
from examples.llama.config import Config, LayerKind, Rope
from minigrad import Tensor, Variable
from minigrad.errors import FormatError
from minigrad.expr import Index, emax, evaluate
from minigrad.state import QuantizedTensor

DEFAULT_CONTEXT = 2048
"""Tokens that the cache holds, where the model allows as many: some claim millions."""

CLAMP, SLOPE = 7.0, 1.702
"""Of the "clamped" activation: the largest magnitude of what goes in, and the factor inside of the sigmoid."""

Tables = tuple[Tensor, Tensor] | None
"""Cosines and sines of the new positions, [n, size] each; None in a layer without a rotary embedding."""


def rotary_table(rope: Rope, head_size: int, capacity: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines [capacity, size] of the angles by which position p rotates pair i of a head: its elements i and
    i + size/2. The sine's sign for the first of the two is in the table.

    https://arxiv.org/abs/2104.09864
    """
    size = rope.size or head_size
    pairs = size // 2
    factors = rope.long_factors if rope.long_factors and capacity > rope.original else rope.factors
    frequencies = rope.base ** (-np.arange(pairs) / pairs) / np.array(factors or [1.0] * pairs)
    angles = np.arange(capacity)[:, None] * frequencies
    cosines, sines = rope.scale * np.cos(angles), rope.scale * np.sin(angles)
    return (Tensor(np.concatenate([cosines, cosines], axis=1).astype(np.float32)),
            Tensor(np.concatenate([-sines, sines], axis=1).astype(np.float32)))


def rotate(x: Tensor, tables: Tables) -> Tensor:
    """Rotates every pair of x [heads, n, head_size] by its position's angle; elements beyond the tables' stay."""
    if tables is None:
        return x
    cosines, sines = tables
    heads, n, whole = x.shape
    size = cosines.shape[1]
    turned = x if size == whole else x[:, :, :size]
    swapped = turned.reshape(heads, n, 2, size // 2).flip(2).reshape(heads, n, size)
    turned = turned * cosines + swapped * sines
    return turned if size == whole else turned.cat(x[:, :, size:], dim=2)


def rms_norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """x / sqrt(mean(x*x) + epsilon) * weight, over the last axis. https://arxiv.org/abs/1910.07467"""
    return x.rmsnorm(eps=epsilon) * weight


def linear(x: Tensor, weight: Weight, config: Config) -> Tensor:
    """x [..., K] times the transposed matrix [N, K]: [..., N]."""
    if isinstance(weight, QuantizedTensor):
        return weight.linear(x, quantize_activations=config.quantize_activations)
    return x.linear(weight.transpose())


def capped(scores: Tensor, cap: float | None) -> Tensor:
    """Scores that stay between -cap and cap."""
    return scores if cap is None else cap * (scores / cap).tanh()


class Weights:
    """Takes tensors out of a checkpoint by name, each checked against the shape that the configuration asks for.
    `read` collects them all."""

    def __init__(self, tensors: dict[str, Weight], read: list[Weight], prefix: str = "",
                 besides: frozenset[str] = frozenset()):
        self.tensors, self.read, self.prefix, self.besides = tensors, read, prefix, besides

    def has(self, name: str) -> bool:
        return self.prefix + name in self.tensors

    def matrix(self, name: str, rows: int, columns: int) -> Weight:
        return self._take(name, (rows, columns))

    def matrices(self, name: str, count: int, rows: int, columns: int) -> Weight:
        return self._take(name, (count, rows, columns))

    def vector(self, name: str, size: int) -> Tensor:
        return self._plain(name, (size,))

    def table(self, name: str, rows: int, columns: int) -> Tensor:
        """A small matrix as a Tensor."""
        return self._plain(name, (rows, columns))

    def extra(self, name: str, *shape: int) -> Tensor | None:
        """A tensor that the family, or this one model of it, has besides; None where it does not."""
        return self._plain(name, shape) if self.has(name) or name in self.besides else None

    def _plain(self, name: str, shape: tuple[int, ...]) -> Tensor:
        weight = self._take(name, shape)
        return weight if isinstance(weight, Tensor) else weight.dequantize().reshape(*shape)

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
        self.read.append(tensor)
        return tensor


class Attention:
    """Self-attention of new tokens to all tokens so far, or to the last of them; several query heads share a key and
    value head.

    https://arxiv.org/abs/2305.13245
    """

    def __init__(self, config: Config, kind: LayerKind, weights: Weights, capacity: int):
        self.config = config
        self.window = None if kind.window is None or kind.window >= capacity else kind.window
        size, width = config.head_size, config.width
        queries, keys = config.heads * size, config.kv_heads * size
        self.fused = weights.has("qkv")
        names = {"qkv": queries + 2 * keys} if self.fused else {"query": queries, "key": keys, "value": keys}
        self.projections = [(weights.matrix(name, rows, width), weights.extra(f"{name}_bias", rows))
                            for name, rows in names.items()]
        self.out = weights.matrix("attention_out", width, queries)
        self.out_bias = weights.extra("attention_out_bias", width)
        self.query_norm, self.key_norm = weights.extra("query_norm", size), weights.extra("key_norm", size)
        self.sinks = weights.extra("sinks", config.heads)
        # Keys and values of all tokens so far, [kv_heads, capacity, head_size]; from T on they are not yet written.
        self.cached_keys = Tensor.zeros(config.kv_heads, capacity, size).contiguous()
        self.cached_values = Tensor.zeros(config.kv_heads, capacity, size).contiguous()

    def __call__(self, x: Tensor, tables: Tables, position: Index) -> Tensor:
        """x [n, width] -> [n, width]."""
        config, n = self.config, x.shape[0]
        query, key, value = self.project(x)
        if self.query_norm is not None:
            query = rms_norm(query, self.query_norm, config.epsilon)
        if self.key_norm is not None:
            key = rms_norm(key, self.key_norm, config.epsilon)
        query, key = rotate(query, tables), rotate(key, tables)

        end = position + n
        self.cached_keys[:, position:end] = key
        self.cached_values[:, position:end] = value

        # Token i may look at positions 0 to position + i, or at the last `window` of them.
        start = 0 if self.window is None else emax(position + 1 - self.window, 0)
        keys, values = self.cached_keys[:, start:end], self.cached_values[:, start:end]
        mixed = query.scaled_dot_product_attention(
            keys, values, is_causal=True, causal_offset=position - start, enable_gqa=True, window=self.window,
            scale=config.attention_scale, softcap=config.attention_cap, sinks=self.sinks)
        return biased(linear(mixed.transpose(0, 1).reshape(n, -1), self.out, config), self.out_bias)

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """x [n, width] -> queries [heads, n, head_size], keys and values [kv_heads, n, head_size]."""
        config, n = self.config, x.shape[0]
        parts = [biased(linear(x, matrix, config), bias) for matrix, bias in self.projections]
        if self.fused:
            queries, keys = config.heads * config.head_size, config.kv_heads * config.head_size
            parts = [parts[0][:, :queries], parts[0][:, queries:queries + keys], parts[0][:, queries + keys:]]
        query, key, value = [part.reshape(n, heads, config.head_size).transpose(0, 1) for part, heads in
                             zip(parts, (config.heads, config.kv_heads, config.kv_heads), strict=True)]
        return query, key, value

    def caches(self) -> list[Tensor]:
        return [self.cached_keys, self.cached_values]


def biased(x: Tensor, bias: Tensor | None) -> Tensor:
    return x if bias is None else x + bias


class ShortConvolution:
    """c * (convolution over the last tokens of b * u), with b, c and u from x: LFM2's layers without attention.

    https://www.liquid.ai/blog/liquid-foundation-models-v2-our-second-series-of-generative-ai-models
    """

    def __init__(self, config: Config, kind: LayerKind, weights: Weights, capacity: int):
        self.config, self.before = config, config.convolution - 1
        self.into = weights.matrix("convolution_in", 3 * config.width, config.width)
        self.filter = weights.table("convolution", config.width, config.convolution)
        self.out = weights.matrix("convolution_out", config.width, config.width)
        # b * u of all tokens so far behind zeros, so that a conversation can go back; [before + capacity, width].
        self.cached = Tensor.zeros(self.before + capacity, config.width).contiguous()

    def __call__(self, x: Tensor, tables: Tables, position: Index) -> Tensor:
        """x [n, width] -> [n, width]."""
        width, n = self.config.width, x.shape[0]
        three = linear(x, self.into, self.config)
        b, c, u = three[:, :width], three[:, width:2 * width], three[:, 2 * width:]
        first = position + self.before
        self.cached[first:first + n] = b * u
        mixed = sum([self.cached[position + k:position + k + n] * self.filter[:, k]
                     for k in range(1, self.before + 1)], self.cached[position:position + n] * self.filter[:, 0])
        return linear(c * mixed, self.out, self.config)

    def caches(self) -> list[Tensor]:
        return [self.cached]


def activated(gate: Tensor, up: Tensor, activation: str) -> Tensor:
    """The inner results of a feed-forward network as one, e.g. silu(gate) * up."""
    if activation == "clamped":
        gate, up = gate.minimum(CLAMP), up.clamp(-CLAMP, CLAMP)
        return gate * (SLOPE * gate).sigmoid() * (up + 1)
    return (gate.silu() if activation == "silu" else gate.gelu(approximate="tanh")) * up


class FeedForward:
    """SwiGLU: (silu(x gate) * x up) down. https://arxiv.org/abs/2002.05202"""

    def __init__(self, config: Config, weights: Weights):
        self.config = config
        self.fused = weights.matrix("gate_up", 2 * config.hidden, config.width) if weights.has("gate_up") else None
        if self.fused is None:
            self.gate = weights.matrix("gate", config.hidden, config.width)
            self.up = weights.matrix("up", config.hidden, config.width)
        self.down = weights.matrix("down", config.width, config.hidden)

    def __call__(self, x: Tensor) -> Tensor:
        config = self.config
        if self.fused is not None:
            both = linear(x, self.fused, config)
            gate, up = both[:, :config.hidden], both[:, config.hidden:]
        else:
            gate, up = linear(x, self.gate, config), linear(x, self.up, config)
        return linear(activated(gate, up, config.activation), self.down, config)


class MixtureOfExperts:
    """Of many feed-forward networks the few that a token's scores choose. https://arxiv.org/abs/1701.06538

    The matrices of a kind are one tensor, [count, rows, columns], of which only those of the chosen experts are read.
    """

    def __init__(self, config: Config, weights: Weights):
        experts = config.experts
        if experts is None:
            raise FormatError("expected the number of experts; download the model again")
        self.config, self.experts, count = config, experts, experts.count
        self.router = weights.table("router", count, config.width)
        self.router_bias = weights.extra("router_bias", count)
        self.gate = self.part(weights, "gate", experts.hidden, config.width)
        self.up = self.part(weights, "up", experts.hidden, config.width)
        self.down = self.part(weights, "down", config.width, experts.hidden)

    def part(self, weights: Weights, name: str, rows: int, columns: int) -> tuple[Weight, Tensor | None]:
        """The matrices, and biases if there are any, of one product of all experts."""
        count = self.experts.count
        return (weights.matrices(f"experts_{name}", count, rows, columns),
                weights.extra(f"experts_{name}_bias", count, rows))

    def __call__(self, x: Tensor) -> Tensor:
        """x [n, width] -> [n, width]."""
        scores = biased(x.linear(self.router.float().transpose()), self.router_bias)
        best, chosen = scores.topk(self.experts.used, dim=-1)
        shares = best.softmax(-1) if self.experts.chosen_only else (best - scores.logsumexp(-1, keepdim=True)).exp()
        each = x.unsqueeze(1)
        inner = activated(self.product(each, self.gate, chosen), self.product(each, self.up, chosen),
                          self.config.activation)
        return (self.product(inner, self.down, chosen) * shares.unsqueeze(-1)).sum(1)

    def product(self, x: Tensor, part: tuple[Weight, Tensor | None], chosen: Tensor) -> Tensor:
        """x [n, 1 or used, columns] times the matrices of the experts `chosen` [n, used]: [n, used, rows]."""
        weight, biases = part
        values = weight.dequantize() if isinstance(weight, QuantizedTensor) else weight
        return biased((values[chosen] * x.unsqueeze(2)).sum(-1), None if biases is None else biases[chosen])

    def unread(self) -> float:
        """Bytes of weights that one token does not read."""
        total = sum([evaluate(part[0].nbytes(), {}) for part in (self.gate, self.up, self.down)])
        return total * (1 - self.experts.used / self.experts.count)


class Layer:
    """x + attention(norm(x)), then x + feed_forward(norm(x)); Gemma normalises what is added, too."""

    def __init__(self, config: Config, kind: LayerKind, weights: Weights, capacity: int):
        self.epsilon, self.rope = config.epsilon, kind.rope
        self.attention_norm = weights.vector("attention_norm", config.width)
        mixer = Attention if kind.mixer == "attention" else ShortConvolution
        self.mixer = mixer(config, kind, weights, capacity)
        self.post_attention_norm = weights.extra("post_attention_norm", config.width)
        self.feed_norm = weights.vector("feed_norm", config.width)
        self.feed_forward = MixtureOfExperts(config, weights) if kind.sparse else FeedForward(config, weights)
        self.post_feed_norm = weights.extra("post_feed_norm", config.width)

    def __call__(self, x: Tensor, tables: list[tuple[Tensor, Tensor]], position: Index) -> Tensor:
        rope = None if self.rope is None else tables[self.rope]
        mixed = self.mixer(rms_norm(x, self.attention_norm, self.epsilon), rope, position)
        x = x + self.after(mixed, self.post_attention_norm)
        fed = self.feed_forward(rms_norm(x, self.feed_norm, self.epsilon))
        return x + self.after(fed, self.post_feed_norm)

    def after(self, x: Tensor, weight: Tensor | None) -> Tensor:
        return x if weight is None else rms_norm(x, weight, self.epsilon)


class Llama:
    """The whole model. `capacity` is the longest conversation that the cache holds, at most the model's own context."""

    def __init__(self, config: Config, tensors: dict[str, Weight], capacity: int = DEFAULT_CONTEXT):
        self.config = config
        self.capacity = min(config.context, capacity)
        self.read: list[Weight] = []
        weights = Weights(tensors, self.read)
        self.embedding = weights.matrix("embedding", config.vocabulary, config.width)
        self.output = self.embedding
        if "output" in tensors:
            self.read.clear()  # of the embedding a token reads a row
            self.output = weights.matrix("output", config.vocabulary, config.width)
        self.layers = [Layer(config, config.kind(layer), Weights(tensors, self.read, f"layers.{layer}.",
                                                                 config.besides), self.capacity)
                       for layer in range(config.layers)]
        self.norm = weights.vector("norm", config.width)
        self.tables = [rotary_table(rope, config.head_size, self.capacity) for rope in config.ropes]
        self.position = Variable("position", 0, self.capacity - 1)
        self.length = Variable("length", 2, max(2, self.capacity))

    def hidden(self, tokens: Tensor, position: Index) -> Tensor:
        """Token ids [n], the first of them at `position` -> the last layer's normalised output [n, width]."""
        n = tokens.shape[0]
        end = position + n
        embedding = self.embedding
        x = embedding.rows(tokens) if isinstance(embedding, QuantizedTensor) else embedding[tokens].float()
        if self.config.embedding_scale != 1:
            x = x * self.config.embedding_scale
        tables = [(cosines[position:end], sines[position:end]) for cosines, sines in self.tables]
        for layer in self.layers:
            x = layer(x, tables, position)
        return rms_norm(x, self.norm, self.config.epsilon)

    def __call__(self, tokens: Tensor, position: Index) -> Tensor:
        """Token ids [n], the first of them at `position` -> logits of what follows the last one, [vocabulary]."""
        last = self.hidden(tokens, position)[tokens.shape[0] - 1]
        return self.logits(last)

    def logits(self, hidden: Tensor) -> Tensor:
        """[..., width] -> [..., vocabulary]."""
        return capped(linear(hidden, self.output, self.config), self.config.output_cap)

    def caches(self) -> list[Tensor]:
        """The keys, values and what else a call changes."""
        return [cache for layer in self.layers for cache in layer.mixer.caches()]

    def weight_bytes(self) -> int:
        """Bytes of weights that one decoded token reads: all but the embedding, of which it reads a row, and but the
        experts that it does not use."""
        unread = sum([layer.feed_forward.unread() for layer in self.layers
                      if isinstance(layer.feed_forward, MixtureOfExperts)])
        return round(sum([evaluate(tensor.nbytes(), {}) for tensor in self.read]) - unread)
