"""Decoder-only transformers of many families, written with Tensors and caches that live on the device.

Read it from the bottom up: `Llama.__call__` takes token ids and gives logits. Shapes are in brackets; n is the number
of new tokens, T = position + n that of all tokens so far, both symbolic where they change from call to call, so that
every program is compiled once however long the conversation gets. LLaMA is the plain case; what other families do
besides is asked of the `Config`, or is there because the checkpoint has a tensor for it (families.py).
"""
from __future__ import annotations

import numpy as np

from examples.llama.caches import Conversation, Memory, Position, Rows, Step
from examples.llama.checkpoint import Weight
from examples.llama.config import Config, LayerKind, Mixer, Recurrence, Rope
from examples.llama.experts import blocks_of
from minigrad import Tensor, Variable
from minigrad.errors import FormatError
from minigrad.expr import evaluate
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
    rotated = x if size == whole else x[:, :, :size]
    swapped = rotated.reshape(heads, n, 2, size // 2).flip(2).reshape(heads, n, size)
    rotated = rotated * cosines + swapped * sines
    return rotated if size == whole else rotated.cat(x[:, :, size:], dim=2)


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

    def __init__(self, config: Config, kind: LayerKind, weights: Weights, capacity: int, memory: Memory):
        self.config = config
        self.window = None if kind.window is None or kind.window >= capacity else kind.window
        size, width = config.head_size, config.width
        queries, keys = config.heads * size, config.kv_heads * size
        self.out = weights.matrix("attention_out", width, queries)
        self.fused = weights.has("qkv")
        queries *= 2 if config.gated_attention else 1
        names = {"qkv": queries + 2 * keys} if self.fused else {"query": queries, "key": keys, "value": keys}
        self.projections = [(weights.matrix(name, rows, width), weights.extra(f"{name}_bias", rows))
                            for name, rows in names.items()]
        self.out_bias = weights.extra("attention_out_bias", width)
        self.query_norm, self.key_norm = weights.extra("query_norm", size), weights.extra("key_norm", size)
        self.sinks = weights.extra("sinks", config.heads)
        self.cache = memory.key_values(config, self.window)

    def __call__(self, x: Tensor, tables: Tables, position: Position) -> Tensor:
        """x [n, width] -> [n, width]."""
        config, n = self.config, x.shape[0]
        query, key, value, gate = self.project(x)
        if self.query_norm is not None:
            query = rms_norm(query, self.query_norm, config.epsilon)
        if self.key_norm is not None:
            key = rms_norm(key, self.key_norm, config.epsilon)
        query, key = rotate(query, tables), rotate(key, tables)
        mixed = self.cache.attend(query, key, value, position, self.sinks)
        mixed = mixed if gate is None else mixed * gate.sigmoid()
        return biased(linear(mixed.transpose(0, 1).reshape(n, -1), self.out, config), self.out_bias)

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """x [n, width] -> queries [heads, n, head_size], keys and values [kv_heads, n, head_size], and a gate, if there
        is one, of the shape of the queries."""
        config, n = self.config, x.shape[0]
        parts = [biased(linear(x, matrix, config), bias) for matrix, bias in self.projections]
        if self.fused:
            queries, keys = config.heads * config.head_size, config.kv_heads * config.head_size
            parts = [parts[0][:, :queries], parts[0][:, queries:queries + keys], parts[0][:, queries + keys:]]
        query, key, value = [part.reshape(n, heads, -1).transpose(0, 1) for part, heads in
                             zip(parts, (config.heads, config.kv_heads, config.kv_heads), strict=True)]
        if not config.gated_attention:
            return query, key, value, None
        return query[:, :, :config.head_size], key, value, query[:, :, config.head_size:]

    def caches(self) -> list[Tensor]:
        return self.cache.tensors()


def biased(x: Tensor, bias: Tensor | None) -> Tensor:
    return x if bias is None else x + bias


class ShortConvolution:
    """c * (convolution over the last tokens of b * u), with b, c and u from x: LFM2's layers without attention.

    https://www.liquid.ai/blog/liquid-foundation-models-v2-our-second-series-of-generative-ai-models
    """

    def __init__(self, config: Config, kind: LayerKind, weights: Weights, capacity: int, memory: Memory):
        self.config, self.before = config, config.convolution - 1
        self.into = weights.matrix("convolution_in", 3 * config.width, config.width)
        self.filter = weights.table("convolution", config.width, config.convolution)
        self.out = weights.matrix("convolution_out", config.width, config.width)
        self.inputs = memory.inputs(self.before, config.width, whole=True)  # b * u

    def __call__(self, x: Tensor, tables: Tables, position: Position) -> Tensor:
        """x [n, width] -> [n, width]."""
        width = self.config.width
        three = linear(x, self.into, self.config)
        b, c, u = three[:, :width], three[:, width:2 * width], three[:, 2 * width:]
        mixed = convolved(self.inputs.taps(b * u, position), self.filter)
        return linear(c * mixed, self.out, self.config)

    def caches(self) -> list[Tensor]:
        return self.inputs.tensors()


def convolved(taps: list[Tensor], weights: Tensor) -> Tensor:
    """The sum of what a window sees, [n, channels] for each of its places, times the weights [channels, places]."""
    return sum([tap * weights[:, k] for k, tap in enumerate(taps[1:], 1)], taps[0] * weights[:, 0])


class State:
    """The state of a recurrent layer after all tokens so far: the last inputs of its convolution [kernel - 1, channels]
    and the matrices of its heads [heads, key, value]. It cannot go back.
    """

    def __init__(self, sizes: Recurrence, weights: Weights, memory: Memory):
        self.sizes = sizes
        self.filter = weights.table("convolution", sizes.channels, sizes.kernel)
        self.bias = weights.extra("convolution_bias", sizes.channels)
        self.inputs = memory.inputs(sizes.kernel - 1, sizes.channels, whole=False)
        self.matrices = memory.matrices(sizes)

    def convolved(self, x: Tensor, position: Position) -> Tensor:
        """x [n, channels] -> silu of the convolution of each channel over tokens, [n, channels]."""
        return biased(convolved(self.inputs.taps(x, position), self.filter), self.bias).silu()

    def scanned(self, step: Step, tokens: tuple[Tensor, ...], position: Position) -> Tensor:
        """The results of the step of each token, [n, heads, value]."""
        return self.matrices.scanned(step, tokens, position)

    def tensors(self) -> list[Tensor]:
        """The Tensors that a call changes."""
        return [*self.inputs.tensors(), *self.matrices.tensors()]

    def of_heads(self, keys: Tensor) -> Tensor:
        """Keys [n, groups * key] as they are shared by heads, [n, heads, key]."""
        sizes, n = self.sizes, keys.shape[0]
        each = sizes.heads // sizes.groups
        axis, whole = (1, (n, each, sizes.groups, -1)) if sizes.tiled else (2, (n, sizes.groups, each, -1))
        split = keys.reshape(n, sizes.groups, sizes.key).unsqueeze(axis)
        return split.expand(*whole).reshape(n, sizes.heads, sizes.key)


def recurrence_of(config: Config) -> Recurrence:
    """The sizes of the state. Raises FormatError where there are none."""
    if config.recurrence is None:
        raise FormatError("expected the sizes of a recurrent layer; download the model again")
    return config.recurrence


class GatedDelta:
    """A memory of values by keys, which decays, and in which what a key stands for is corrected, not added to: the
    layers without attention of Qwen3-Next and Qwen3.5.

    https://arxiv.org/abs/2412.06464
    """

    def __init__(self, config: Config, kind: LayerKind, weights: Weights, capacity: int, memory: Memory):
        self.config, sizes, width = config, recurrence_of(config), config.width
        heads, values = sizes.heads, sizes.heads * sizes.value
        self.state = State(sizes, weights, memory)
        self.into = weights.matrix("delta_qkv", sizes.channels, width)
        self.gate = weights.matrix("delta_gate", values, width)
        self.correction, self.decay = (weights.matrix(f"delta_{name}", heads, width) for name in ("beta", "alpha"))
        self.rate, self.time_step = weights.vector("rate", heads), weights.vector("time_step", heads)
        self.scale = weights.vector("state_scale", sizes.value)
        self.out = weights.matrix("state_out", width, values)

    def __call__(self, x: Tensor, tables: Tables, position: Position) -> Tensor:
        """x [n, width] -> [n, width]."""
        config, state, n = self.config, self.state, x.shape[0]
        sizes = state.sizes
        mixed = state.convolved(linear(x, self.into, config), position)
        keys = sizes.groups * sizes.key
        query, key = [unit(state.of_heads(mixed[:, start:start + keys])) for start in (0, keys)]
        value = mixed[:, 2 * keys:].reshape(n, sizes.heads, sizes.value)
        correction = linear(x, self.correction, config).sigmoid()
        decay = (self.rate * (linear(x, self.decay, config) + self.time_step).softplus()).exp()

        def step(memory: Tensor, token: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
            query, key, value, correction, decay = token
            memory = memory * decay.reshape(-1, 1, 1)
            wrong = value - (memory * key.unsqueeze(2)).sum(1)
            memory = memory + key.unsqueeze(2) * (wrong * correction.unsqueeze(1)).unsqueeze(1)
            return memory, (memory * query.unsqueeze(2)).sum(1)

        found = state.scanned(step, (query * sizes.key ** -0.5, key, value, correction, decay), position)
        gate = linear(x, self.gate, config).reshape(n, sizes.heads, sizes.value)
        return linear((rms_norm(found, self.scale, config.epsilon) * gate.silu()).reshape(n, -1), self.out, config)

    def caches(self) -> list[Tensor]:
        return self.state.tensors()


def unit(x: Tensor) -> Tensor:
    """Vectors of length 1."""
    return x * ((x * x).sum(-1, keepdim=True) + 1e-6).rsqrt()


class StateSpace:
    """A state that decays as fast as each token says: the layers of Mamba 2, which have nothing else.

    https://arxiv.org/abs/2405.21060
    """

    def __init__(self, config: Config, kind: LayerKind, weights: Weights, capacity: int, memory: Memory):
        self.config, sizes = config, recurrence_of(config)
        heads, self.values = sizes.heads, sizes.heads * sizes.value
        self.state = State(sizes, weights, memory)
        self.into = weights.matrix("state_in", self.values + sizes.channels + heads, config.width)
        self.rate, self.time_step = weights.vector("rate", heads), weights.vector("time_step", heads)
        self.skip = weights.vector("skip", heads)
        self.scale = weights.vector("state_scale", self.values)
        self.out = weights.matrix("state_out", config.width, self.values)

    def __call__(self, x: Tensor, tables: Tables, position: Position) -> Tensor:
        """x [n, width] -> [n, width]."""
        config, state, values, n = self.config, self.state, self.values, x.shape[0]
        sizes = state.sizes
        parts = linear(x, self.into, config)
        gate, time = parts[:, :values], (parts[:, values + sizes.channels:] + self.time_step).softplus()
        mixed = state.convolved(parts[:, values:values + sizes.channels], position)
        keys = sizes.groups * sizes.key
        value = mixed[:, :values].reshape(n, sizes.heads, sizes.value)
        key, query = [state.of_heads(mixed[:, start:start + keys]) for start in (values, values + keys)]

        def step(memory: Tensor, token: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
            query, key, value, decay = token
            memory = memory * decay.reshape(-1, 1, 1) + key.unsqueeze(2) * value.unsqueeze(1)
            return memory, (memory * query.unsqueeze(2)).sum(1)

        found = state.scanned(step, (query, key, value * time.unsqueeze(2), (self.rate * time).exp()), position)
        found = (found + self.skip.unsqueeze(1) * value).reshape(n, values) * gate.silu()
        normed = found.reshape(n, sizes.groups, -1).rmsnorm(eps=config.epsilon).reshape(n, values) * self.scale
        return linear(normed, self.out, config)

    def caches(self) -> list[Tensor]:
        return self.state.tensors()


MIXERS: dict[Mixer, type[Attention | ShortConvolution | GatedDelta | StateSpace]] = {
    "attention": Attention, "convolution": ShortConvolution, "gated delta": GatedDelta, "state space": StateSpace}


def activated(gate: Tensor, up: Tensor, activation: str) -> Tensor:
    """The inner results of a feed-forward network as one, e.g. silu(gate) * up."""
    if activation == "clamped":
        gate, up = gate.minimum(CLAMP), up.clamp(-CLAMP, CLAMP)
        return gate * (SLOPE * gate).sigmoid() * (up + 1)
    return (gate.silu() if activation == "silu" else gate.gelu(approximate="tanh")) * up


class FeedForward:
    """SwiGLU: (silu(x gate) * x up) down. https://arxiv.org/abs/2002.05202"""

    def __init__(self, config: Config, weights: Weights, hidden: int, prefix: str = ""):
        self.config, self.hidden = config, hidden
        self.fused = weights.matrix("gate_up", 2 * hidden, config.width) if weights.has("gate_up") else None
        if self.fused is None:
            self.gate = weights.matrix(f"{prefix}gate", hidden, config.width)
            self.up = weights.matrix(f"{prefix}up", hidden, config.width)
        self.down = weights.matrix(f"{prefix}down", config.width, hidden)

    def __call__(self, x: Tensor) -> Tensor:
        config = self.config
        if self.fused is not None:
            both = linear(x, self.fused, config)
            gate, up = both[:, :self.hidden], both[:, self.hidden:]
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
        self.shared = FeedForward(config, weights, experts.shared, "shared_") if experts.shared else None
        self.shared_scale = weights.vector("shared_scale", config.width) if experts.shared else None

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
        blocks = blocks_of(chosen, self.experts.count)
        each = x[blocks.tokens]
        inner = activated(self.product(each, self.gate, blocks.experts), self.product(each, self.up, blocks.experts),
                          self.config.activation)
        found = self.product(inner, self.down, blocks.experts).reshape(-1, x.shape[1])[blocks.places]
        mixed = (found * shares.unsqueeze(-1)).sum(1)
        if self.shared is None or self.shared_scale is None:
            return mixed
        return mixed + self.shared(x) * (x * self.shared_scale).sum(1, keepdim=True).sigmoid()

    def product(self, x: Tensor, part: tuple[Weight, Tensor | None], experts: Tensor) -> Tensor:
        """x [blocks, rows, columns] times the matrices of `experts` [blocks]: [blocks, rows, outputs]."""
        weight, biases = part
        if isinstance(weight, QuantizedTensor):
            found = weight.pick(experts).linear(x)
        else:
            found = x.matmul(weight[experts].transpose(1, 2))
        return biased(found, None if biases is None else biases[experts].unsqueeze(1))

    def unread(self) -> float:
        """Bytes of weights that one token does not read."""
        total = sum([evaluate(part[0].nbytes(), {}) for part in (self.gate, self.up, self.down)])
        return total * (1 - self.experts.used / self.experts.count)


class Layer:
    """x + attention(norm(x)), then x + feed_forward(norm(x)); Gemma normalises what is added, too."""

    def __init__(self, config: Config, kind: LayerKind, weights: Weights, capacity: int,
                 memory: Memory):
        self.epsilon, self.rope = config.epsilon, kind.rope
        self.attention_norm = weights.vector("attention_norm", config.width)
        self.mixer = MIXERS[kind.mixer](config, kind, weights, capacity, memory)
        self.post_attention_norm = weights.extra("post_attention_norm", config.width)
        self.feed_forward: FeedForward | MixtureOfExperts | None = None
        if kind.feeds:
            self.feed_norm = weights.vector("feed_norm", config.width)
            self.feed_forward = MixtureOfExperts(config, weights) if kind.sparse else FeedForward(
                config, weights, config.hidden)
            self.post_feed_norm = weights.extra("post_feed_norm", config.width)

    def __call__(self, x: Tensor, tables: list[tuple[Tensor, Tensor]], position: Position) -> Tensor:
        rope = None if self.rope is None else tables[self.rope]
        mixed = self.mixer(rms_norm(x, self.attention_norm, self.epsilon), rope, position)
        x = x + self.after(mixed, self.post_attention_norm)
        if self.feed_forward is None:
            return x
        fed = self.feed_forward(rms_norm(x, self.feed_norm, self.epsilon))
        return x + self.after(fed, self.post_feed_norm)

    def after(self, x: Tensor, weight: Tensor | None) -> Tensor:
        return x if weight is None else rms_norm(x, weight, self.epsilon)


class Llama:
    """The whole model. `capacity` is the longest conversation that the cache holds, at most the model's own context;
    `memory` is where layers keep what they do of the tokens so far, by default those of one conversation."""

    def __init__(self, config: Config, tensors: dict[str, Weight], capacity: int = DEFAULT_CONTEXT,
                 memory: Memory | None = None):
        self.config, self.tensors = config, tensors
        self.capacity = min(config.context, capacity)
        memory = memory or Conversation(self.capacity)
        self.read: list[Weight] = []
        weights = Weights(tensors, self.read)
        self.embedding = weights.matrix("embedding", config.vocabulary, config.width)
        self.output = self.embedding
        if "output" in tensors:
            self.read.clear()  # of the embedding a token reads a row
            self.output = weights.matrix("output", config.vocabulary, config.width)
        self.layers = [Layer(config, config.kind(layer), Weights(tensors, self.read, f"layers.{layer}.",
                                                                 config.besides), self.capacity, memory)
                       for layer in range(config.layers)]
        self.norm = weights.vector("norm", config.width)
        self.tables = [rotary_table(rope, config.head_size, self.capacity) for rope in config.ropes]
        self.recurrent = any([isinstance(layer.mixer, GatedDelta | StateSpace) for layer in self.layers])
        self.position = Variable("position", 0, self.capacity - 1)
        self.length = Variable("length", 2, max(2, self.capacity))

    def hidden(self, tokens: Tensor, position: Position) -> Tensor:
        """Token ids [n], the first of them at `position`, or each at its own -> the last layer's normalised output
        [n, width]."""
        embedding = self.embedding
        x = embedding.rows(tokens) if isinstance(embedding, QuantizedTensor) else embedding[tokens].float()
        if self.config.embedding_scale != 1:
            x = x * self.config.embedding_scale
        if isinstance(position, Rows):
            x = x.contiguous()  # read as any other layer's input, sums over a row are in one order for one row and many
        at = position.positions if isinstance(position, Rows) else slice(position, position + tokens.shape[0])
        tables = [(cosines[at], sines[at]) for cosines, sines in self.tables]
        for layer in self.layers:
            x = layer(x, tables, position)
        return rms_norm(x, self.norm, self.config.epsilon)

    def __call__(self, tokens: Tensor, position: Position) -> Tensor:
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
