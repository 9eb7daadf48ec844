"""One record for all families of models: sizes, and what each layer does."""
from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from minigrad.errors import FormatError
from minigrad.state.fields import brief

MAX_HEADS = 16
"""The most times that all heads together can be as wide as the model."""
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


@dataclass(frozen=True)
class LayerKind:
    """The kind of a layer: `window` is how many of the last tokens attention looks at (None: all), `rope` the number of
    its rotary embedding (None: it has none), `sparse` says that its feed-forward network is a mixture of experts."""

    mixer: Literal["attention", "convolution"] = "attention"
    window: int | None = None
    rope: int | None = 0
    sparse: bool = False


@dataclass(frozen=True)
class Experts:
    """A mixture of `count` feed-forward networks of `hidden`, of which each token uses `used`, weighed by the softmax
    of the scores of those it uses (`chosen_only`), or of all of them."""

    count: int
    used: int
    hidden: int
    chosen_only: bool = True


@dataclass(frozen=True)
class Config:
    """Sizes of the model, and how it differs from LLaMA.

    `kinds` has one entry for each layer (none: attention to everything). `besides` are tensors that the layers of the
    family must have besides LLaMA's. `attention_scale` multiplies the products of queries and keys (None:
    1/sqrt(head_size)); a cap c turns a score s into c * tanh(s / c). `activation`: "silu", "gelu" (with tanh), or
    "clamped", gpt-oss's. `convolution`: tokens that a short convolution sees.

    `quantize_activations`: products with quantised matrices round their inputs to signed bytes.
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
    convolution: int = 0
    quantize_activations: bool = False

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
