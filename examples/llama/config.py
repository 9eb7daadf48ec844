"""One record for all families of models: sizes, and what each layer does."""
from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from minigrad.errors import FormatError
from minigrad.state.fields import brief

MAX_HEADS = 16
"""The most times that all heads together can be as wide as the model."""
MAX_STATE = 1 << 20
"""The most elements of the state of a head."""
FACTORS = (1e-6, 1e6)
"""The least and the largest divisor of rotary frequencies."""


@dataclass(frozen=True)
class Rope:
    """A rotary embedding: position p turns pair i of the first `size` elements of a head (0: of all of them) by
    p / (base^(2i / size) * factors[i]) radians; no factors are ones. Cosines and sines are multiplied by `scale`.

    Where the cache is to hold more than `original` tokens, `long_factors`, if there are any, stand for `factors`.
    """

    base: float = 10000.0
    size: int = 0
    factors: tuple[float, ...] | None = None
    long_factors: tuple[float, ...] | None = None
    original: int = 0
    scale: float = 1.0


Mixer = Literal["attention", "convolution", "gated delta", "state space"]
"""The part of a layer that looks at other tokens."""


@dataclass(frozen=True)
class LayerKind:
    """The kind of a layer: `window` is how many of the last tokens attention looks at (None: all), `rope` the number of
    its rotary embedding (None: it has none), `sparse` says that its feed-forward network is a mixture of experts,
    `feeds` that it has one."""

    mixer: Mixer = "attention"
    window: int | None = None
    rope: int | None = 0
    sparse: bool = False
    feeds: bool = True


@dataclass(frozen=True)
class Experts:
    """A mixture of `count` feed-forward networks of `hidden`, of which each token uses `used`, weighed by the softmax
    of the scores of those it uses (`chosen_only`), or of all of them; and of one of `shared` that all tokens use (0:
    there is none)."""

    count: int
    used: int
    hidden: int
    chosen_only: bool = True
    shared: int = 0


@dataclass(frozen=True)
class Recurrence:
    """A state that goes from token to token: for each of `heads` a matrix [key, value]. As many heads share a key as
    there are heads for each of `groups`: those beside each other, or (`tiled`) every `groups`-th. Before it is a
    convolution over the last `kernel` tokens."""

    heads: int
    groups: int
    key: int
    value: int
    kernel: int
    tiled: bool = False

    @property
    def channels(self) -> int:
        """Elements of two kinds of keys and of the values of a token."""
        return 2 * self.groups * self.key + self.heads * self.value


@dataclass(frozen=True)
class Config:
    """Sizes of the model, and how it differs from LLaMA.

    `kinds` has one entry for each layer (none: attention to everything). `besides` are tensors that the layers of the
    family must have besides LLaMA's. `attention_scale` multiplies the products of queries and keys (None:
    1/sqrt(head_size)); a cap c turns a score s into c * tanh(s / c). `activation`: "silu", "gelu" (with tanh), or
    "clamped", gpt-oss's. `gated_attention`: queries come with as many numbers whose sigmoids the result is multiplied
    by. `convolution`: tokens that a short convolution sees.

    `quantize_activations`: products with quantised matrices round their inputs to signed bytes. `cache`: the type in
    which keys and values are kept: float32, float16 or int8.
    """

    width: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    vocabulary: int
    context: int
    head_size: int
    epsilon: float = 1e-5
    ropes: tuple[Rope, ...] = (Rope(),)
    kinds: tuple[LayerKind, ...] = ()
    besides: frozenset[str] = field(default=frozenset())
    experts: Experts | None = None
    activation: str = "silu"
    attention_scale: float | None = None
    attention_cap: float | None = None
    output_cap: float | None = None
    embedding_scale: float = 1.0
    gated_attention: bool = False
    convolution: int = 0
    recurrence: Recurrence | None = None
    quantize_activations: bool = False
    cache: str = "float32"

    def __post_init__(self) -> None:
        if self.heads % self.kv_heads or self.head_size % 2:
            raise FormatError(f"expected heads divisible by key heads and an even head size, got {self.heads}, "
                              f"{self.kv_heads} and {self.head_size}; download the model again")
        if self.heads * self.head_size > MAX_HEADS * self.width:  # the cache would be out of proportion to the file
            raise FormatError(f"expected {self.heads} heads of {self.head_size} to be at most {MAX_HEADS} times as "
                              f"wide as the model, which has {self.width}; download the model again")
        if self.experts is not None and not 1 <= self.experts.used <= self.experts.count:
            raise FormatError(f"expected each token to use 1 to {self.experts.count} experts, got {self.experts.used}; "
                              "download the model again")
        state = self.recurrence
        if state is not None and (state.heads % state.groups or state.key * state.value > MAX_STATE):
            raise FormatError(f"expected heads divisible by groups of keys and states of at most {MAX_STATE} elements, "
                              f"got {state.heads}, {state.groups} and {state.key} x {state.value}; download the model "
                              "again")
        if self.kinds and len(self.kinds) != self.layers:
            raise FormatError(f"expected kinds of {self.layers} layers, got {len(self.kinds)}; download the model "
                              "again")
        for rope in self.ropes:
            self._check(rope)

    def _check(self, rope: Rope) -> None:
        size = rope.size or self.head_size
        if size % 2 or size > self.head_size:
            raise FormatError(f"expected a rotary embedding of an even number of at most {self.head_size} elements, "
                              f"got {size}; download the model again")
        least, most = FACTORS
        for factors in (rope.factors, rope.long_factors):
            if factors is not None and not (
                    len(factors) == size // 2 and all(least <= factor <= most for factor in factors)):
                raise FormatError(f"expected {size // 2} factors of rotary frequencies from {least:g} to {most:g}, got "
                                  f"{brief(factors)}; download the model again")

    def kind(self, layer: int) -> LayerKind:
        """The kind of a layer."""
        return self.kinds[layer] if self.kinds else LayerKind()
