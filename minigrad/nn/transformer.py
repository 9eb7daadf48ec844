"""Transformers with PyTorch's parameters and conventions (Vaswani et al. 2017, https://arxiv.org/abs/1706.03762).

Sequences are [L, N, E], or [N, L, E] with `batch_first`, or [L, E]; masks are those of `MultiheadAttention`.
"""
from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

from minigrad.errors import DTypeError
from minigrad.mixins.base import as_count
from minigrad.nn.attention import MultiheadAttention
from minigrad.nn.init import xavier_uniform_
from minigrad.nn.linear import Dropout, Linear
from minigrad.nn.module import Layer
from minigrad.nn.norm import LayerNorm
from minigrad.tensor import Tensor

Activation = str | Callable[[Tensor], Tensor]


def _activation(name: str, given: Activation) -> Callable[[Tensor], Tensor]:
    if given == "relu":
        return Tensor.relu
    if given == "gelu":
        return _gelu
    if not callable(given):
        raise DTypeError(f"[{name}] expected activation 'relu', 'gelu' or a function, got {given!r}")
    return given


def _gelu(x: Tensor) -> Tensor:
    return x.gelu("none")


class _Layer(Layer):
    """Attention `self_attn`, and `linear2(activation(linear1(x)))` of `dim_feedforward` features between, each added to
    its input and normalised after that, or with `norm_first` normalised before. While training, `dropout` is the share
    that is left out of each sum, of the attention's weights, and of the features between."""

    def __init__(self, d_model: int, nhead: int, dim_feedforward: int = 2048, dropout: float = 0.1,
                 activation: Activation = "relu", layer_norm_eps: float = 1e-5, batch_first: bool = False,
                 norm_first: bool = False, bias: bool = True):
        self.self_attn = MultiheadAttention(d_model, nhead, dropout, bias, batch_first=batch_first)
        self._attend(d_model, nhead, dropout, bias, batch_first)
        self.linear1, self.linear2 = Linear(d_model, dim_feedforward, bias), Linear(dim_feedforward, d_model, bias)
        self.activation, self.norm_first = _activation(type(self).__name__, activation), norm_first
        self.norm1, self.norm2 = (LayerNorm(d_model, layer_norm_eps, bias=bias) for _ in range(2))
        self._normalise(d_model, layer_norm_eps, bias)
        self.dropout = Dropout(dropout)

    def _attend(self, d_model: int, nhead: int, dropout: float, bias: bool, batch_first: bool) -> None:
        """Makes further attentions, which stand before the linear layers in state names."""

    def _normalise(self, d_model: int, eps: float, bias: bool) -> None:
        """Makes further norms."""

    def _feed(self, x: Tensor) -> Tensor:
        return self.dropout(self.linear2(self.dropout(self.activation(self.linear1(x)))))

    def _added(self, x: Tensor, norm: LayerNorm, block: Callable[[Tensor], Tensor]) -> Tensor:
        return x + block(norm(x)) if self.norm_first else norm(x + block(x))


class TransformerEncoderLayer(_Layer):
    __doc__ = _Layer.__doc__

    def forward(self, src: Tensor, src_mask: Tensor | None = None, src_key_padding_mask: Tensor | None = None,
                 is_causal: bool = False) -> Tensor:
        def attend(x: Tensor) -> Tensor:
            return self.dropout(self.self_attn(x, x, x, src_key_padding_mask, False, src_mask, is_causal=is_causal)[0])

        return self._added(self._added(src, self.norm1, attend), self.norm2, self._feed)


class TransformerDecoderLayer(_Layer):
    __doc__ = (_Layer.__doc__ or "") + """ Between both stands `multihead_attn` over `memory`, what an encoder gave."""

    def _attend(self, d_model: int, nhead: int, dropout: float, bias: bool, batch_first: bool) -> None:
        self.multihead_attn = MultiheadAttention(d_model, nhead, dropout, bias, batch_first=batch_first)

    def _normalise(self, d_model: int, eps: float, bias: bool) -> None:
        self.norm3 = LayerNorm(d_model, eps, bias=bias)

    def forward(self, tgt: Tensor, memory: Tensor, tgt_mask: Tensor | None = None, memory_mask: Tensor | None = None,
                 tgt_key_padding_mask: Tensor | None = None, memory_key_padding_mask: Tensor | None = None,
                 tgt_is_causal: bool = False, memory_is_causal: bool = False) -> Tensor:
        def attend(x: Tensor) -> Tensor:
            return self.dropout(self.self_attn(x, x, x, tgt_key_padding_mask, False, tgt_mask,
                                               is_causal=tgt_is_causal)[0])

        def look(x: Tensor) -> Tensor:
            return self.dropout(self.multihead_attn(x, memory, memory, memory_key_padding_mask, False, memory_mask,
                                                    is_causal=memory_is_causal)[0])

        x = self._added(self._added(tgt, self.norm1, attend), self.norm2, look)
        return self._added(x, self.norm3, self._feed)


class TransformerEncoder(Layer):
    """`num_layers` copies of a TransformerEncoderLayer, one after another, and then `norm`, if there is one. The copies
    start equal, as in PyTorch, whose last two options say how it computes and change nothing here."""

    def __init__(self, encoder_layer: TransformerEncoderLayer, num_layers: int, norm: Any = None,
                 enable_nested_tensor: bool = True, mask_check: bool = True):
        count = as_count("TransformerEncoder", "num_layers", num_layers)
        self.layers = [deepcopy(encoder_layer) for _ in range(count)]
        self.norm = norm

    def forward(self, src: Tensor, mask: Tensor | None = None, src_key_padding_mask: Tensor | None = None,
                 is_causal: bool = False) -> Tensor:
        x = src
        for layer in self.layers:
            x = layer(x, mask, src_key_padding_mask, is_causal)
        return x if self.norm is None else self.norm(x)


class TransformerDecoder(Layer):
    """`num_layers` copies of a TransformerDecoderLayer, one after another, and then `norm`, if there is one."""

    def __init__(self, decoder_layer: TransformerDecoderLayer, num_layers: int, norm: Any = None):
        count = as_count("TransformerDecoder", "num_layers", num_layers)
        self.layers = [deepcopy(decoder_layer) for _ in range(count)]
        self.norm = norm

    def forward(self, tgt: Tensor, memory: Tensor, *masks: Any, **named: Any) -> Tensor:
        """`masks` are the arguments of TransformerDecoderLayer behind `memory`."""
        x = tgt
        for layer in self.layers:
            x = layer(x, memory, *masks, **named)
        return x if self.norm is None else self.norm(x)


class Transformer(Layer):
    """An encoder of `src` and a decoder of `tgt`, which reads what the encoder gave; see TransformerEncoderLayer."""

    def __init__(self, d_model: int = 512, nhead: int = 8, num_encoder_layers: int = 6, num_decoder_layers: int = 6,
                 dim_feedforward: int = 2048, dropout: float = 0.1, activation: Activation = "relu",
                 custom_encoder: Any = None, custom_decoder: Any = None, layer_norm_eps: float = 1e-5,
                 batch_first: bool = False, norm_first: bool = False, bias: bool = True):
        for name, given in (("custom_encoder", custom_encoder), ("custom_decoder", custom_decoder)):
            if given is not None and not callable(given):
                raise DTypeError(f"[Transformer] expected {name} as a layer or None, got {given!r}")
        options: dict[str, Any] = {
            "d_model": d_model, "nhead": nhead, "dim_feedforward": dim_feedforward, "dropout": dropout,
            "activation": activation, "layer_norm_eps": layer_norm_eps, "batch_first": batch_first,
            "norm_first": norm_first, "bias": bias}
        norms = [LayerNorm(d_model, layer_norm_eps, bias=bias) for _ in range(2)]
        self.encoder = custom_encoder or TransformerEncoder(
            TransformerEncoderLayer(**options), num_encoder_layers, norms[0])
        self.decoder = custom_decoder or TransformerDecoder(
            TransformerDecoderLayer(**options), num_decoder_layers, norms[1])
        for p in self.parameters():
            if p.ndim > 1:
                xavier_uniform_(p)

    def forward(self, src: Tensor, tgt: Tensor, src_mask: Tensor | None = None, tgt_mask: Tensor | None = None,
                 memory_mask: Tensor | None = None, src_key_padding_mask: Tensor | None = None,
                 tgt_key_padding_mask: Tensor | None = None, memory_key_padding_mask: Tensor | None = None,
                 src_is_causal: bool | None = None, tgt_is_causal: bool | None = None,
                 memory_is_causal: bool = False) -> Tensor:
        memory = self.encoder(src, src_mask, src_key_padding_mask, bool(src_is_causal))
        return self.decoder(tgt, memory, tgt_mask, memory_mask, tgt_key_padding_mask, memory_key_padding_mask,
                            bool(tgt_is_causal), memory_is_causal)

    @staticmethod
    def generate_square_subsequent_mask(size: int, device: str | None = None) -> Tensor:
        """A mask to add to scores [size, size] so that no place sees those behind it: 0, and -inf above the
        diagonal."""
        later = Tensor.ones(size, size, device=device).triu(1) > 0
        return later.where(float("-inf"), 0.0)
