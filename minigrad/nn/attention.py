"""Multi-head attention with PyTorch's parameters and conventions."""
from __future__ import annotations

import math

from minigrad.dtype import bool_
from minigrad.errors import DTypeError, MinigradError, ShapeError
from minigrad.mixins.attention import softmax_of_kept
from minigrad.mixins.base import as_count, as_tensor
from minigrad.mixins.blocks import as_one_node
from minigrad.mixins.linalg import projected
from minigrad.mixins.modes import modes
from minigrad.nn.linear import Linear
from minigrad.nn.module import Layer
from minigrad.tensor import Tensor


class MultiheadAttention(Layer):
    """Attention of `num_heads` heads between projections of query [L, N, E], key [S, N, E] and value [S, N, E], or
    [N, L, E] and [N, S, E] with `batch_first`, or without N; E is `embed_dim`.

    `in_proj_weight` [3E, E] and `in_proj_bias` [3E] are those of query, key and value, one after another, `out_proj` is
    a Linear. Weights start uniform in +-sqrt(6 / (4E)), biases at 0. While training, weights of attention are dropped
    with the probability `dropout`. Raises MinigradError for PyTorch's options about keys and values of other sizes, and
    further ones.

    Source: Vaswani et al. 2017, https://arxiv.org/abs/1706.03762
    """

    def __init__(self, embed_dim: int, num_heads: int, dropout: float = 0.0, bias: bool = True,
                 add_bias_kv: bool = False, add_zero_attn: bool = False, kdim: int | None = None,
                 vdim: int | None = None, batch_first: bool = False):
        if add_bias_kv or add_zero_attn or {kdim, vdim} - {None, embed_dim}:
            raise MinigradError("[MultiheadAttention] expected add_bias_kv=False, add_zero_attn=False, kdim and vdim "
                                f"as None or embed_dim, got {add_bias_kv}, {add_zero_attn}, {kdim} and {vdim}")
        embed_dim = as_count("MultiheadAttention", "embed_dim", embed_dim, 1)
        num_heads = as_count("MultiheadAttention", "num_heads", num_heads, 1)
        if embed_dim % num_heads:
            raise ShapeError(f"[MultiheadAttention] expected embed_dim divisible by num_heads, got {embed_dim} and "
                             f"{num_heads}")
        self.embed_dim, self.num_heads, self.dropout, self.batch_first = embed_dim, num_heads, dropout, batch_first
        bound = math.sqrt(6 / (4 * embed_dim))
        self.in_proj_weight = Tensor.uniform(3 * embed_dim, embed_dim, low=-bound, high=bound, requires_grad=True)
        self.in_proj_bias = Tensor.zeros(3 * embed_dim, requires_grad=True) if bias else None
        self.out_proj = Linear(embed_dim, embed_dim, bias)
        if bias:
            self.out_proj.bias = Tensor.zeros(embed_dim, requires_grad=True)

    def forward(self, query: Tensor, key: Tensor, value: Tensor, key_padding_mask: Tensor | None = None,
                 need_weights: bool = True, attn_mask: Tensor | None = None, average_attn_weights: bool = True,
                 is_causal: bool = False) -> tuple[Tensor, Tensor | None]:
        """(output of the query's shape, weights [N, L, S] or None without `need_weights`).

        As in PyTorch, masks are True where a key is left out, or are added: `key_padding_mask` [N, S] and `attn_mask`
        [L, S] or [N * num_heads, L, S]. `is_causal` leaves out keys behind a query's place where no `attn_mask` says
        so. The weights, before dropout, are means over heads or, without `average_attn_weights`, [N, num_heads, L, S];
        they cost nothing unless they are read, and are 0 where everything is left out. Raises ShapeError for other
        shapes.
        """
        batched = as_tensor("MultiheadAttention", query).ndim == 3
        alike = query.lazydata is key.lazydata is value.lazydata
        wanted = [t if batched else t.unsqueeze(0) for t in ((query,) if alike else (query, key, value))]
        if batched and not self.batch_first:
            wanted = [t.transpose(0, 1) for t in wanted]
        q, k, v = wanted * 3 if alike else wanted
        self._check(query, key, value, [q, k, v])
        mask = self._mask(q, k, key_padding_mask, attn_mask, is_causal)
        given = (q, None if alike else k, None if alike else v, self.in_proj_weight, self.in_proj_bias, mask,
                 self.num_heads)
        drops = self.dropout > 0 and modes.now.training
        attend = _attended.__wrapped__ if drops else _attended  # type: ignore[attr-defined]
        out = attend(*given, self.out_proj.weight, self.out_proj.bias, self.dropout)
        out = out.squeeze(0) if not batched else out if self.batch_first else out.transpose(0, 1)
        if not need_weights:
            return out, None
        weights = _weights(*given)
        weights = weights.mean(1) if average_attn_weights else weights
        return out, weights if batched else weights.squeeze(0)

    def _check(self, query: Tensor, key: Tensor, value: Tensor, wanted: list[Tensor]) -> None:
        q, k, v = wanted
        if any(t.ndim != 3 or t.shape[-1] != self.embed_dim or t.shape[0] != q.shape[0] for t in wanted) or \
                k.shape != v.shape:
            order = "[N, L, E], [N, S, E]" if self.batch_first else "[L, N, E], [S, N, E]"
            raise ShapeError(f"[MultiheadAttention] expected query and key and value {order}, or without N, with E = "
                             f"{self.embed_dim}, got {list(query.shape)}, {list(key.shape)} and {list(value.shape)}")

    def _mask(self, q: Tensor, k: Tensor, padding: Tensor | None, mask: Tensor | None, causal: bool) -> Tensor | None:
        """A mask that broadcasts to [N, heads, L, S], True where a key is kept, or numbers to add; None for no mask."""
        (batch, rows, _), keys, heads = q.shape, k.shape[1], self.num_heads
        given = []
        for name, given_mask in (("key_padding_mask", padding), ("attn_mask", mask)):
            if given_mask is not None and given_mask.dtype is not bool_ and not given_mask.dtype.is_float:
                raise DTypeError(f"[MultiheadAttention] expected {name} of bools, or of floats to add, got "
                                 f"{given_mask.dtype}; use {name}.bool()")
        if padding is not None:
            padding = padding if padding.ndim == 2 else padding.unsqueeze(0)
            if padding.shape != (batch, keys):
                raise ShapeError(f"[MultiheadAttention] expected key_padding_mask {[batch, keys]}, "
                                 f"got {list(padding.shape)}")
            given.append(padding.reshape(batch, 1, 1, keys))
        if mask is not None:
            if mask.shape not in ((rows, keys), (batch * heads, rows, keys)):
                raise ShapeError(f"[MultiheadAttention] expected attn_mask {[rows, keys]} or "
                                 f"{[batch * heads, rows, keys]}, got {list(mask.shape)}")
            given.append(mask if mask.ndim == 2 else mask.reshape(batch, heads, rows, keys))
        elif causal:
            order = Tensor.arange(keys, device=q.device)
            given.append(order.reshape(1, keys) > Tensor.arange(rows, device=q.device).reshape(rows, 1))
        if not given:
            return None
        if all(m.dtype is bool_ for m in given):
            left_out = given[0] if len(given) == 1 else given[0].bitwise_or(given[1])
            return left_out.logical_not()
        added = [m.where(-math.inf, 0.0) if m.dtype is bool_ else m for m in given]
        return added[0] if len(added) == 1 else added[0] + added[1]


def _heads(query: Tensor, key: Tensor | None, value: Tensor | None, weight: Tensor, bias: Tensor | None, heads: int,
           ) -> list[Tensor]:
    """Query, key and value [N, heads, length, E / heads]; where all three are one tensor, in one product."""
    if key is None or value is None:
        parts = list(projected(query, weight, bias).chunk(3, -1))
    else:
        biases = [None] * 3 if bias is None else bias.chunk(3, 0)
        parts = [projected(t, w, b) for t, w, b in zip((query, key, value), weight.chunk(3, 0), biases, strict=True)]
    return [p.unflatten(-1, (heads, -1)).transpose(1, 2) for p in parts]


@as_one_node
def _attended(query: Tensor, key: Tensor | None, value: Tensor | None, weight: Tensor, bias: Tensor | None,
              mask: Tensor | None, heads: int, out_weight: Tensor, out_bias: Tensor | None, dropout: float) -> Tensor:
    """The output [N, L, E]. One Node where nothing is dropped."""
    q, k, v = _heads(query, key, value, weight, bias, heads)
    found = q.scaled_dot_product_attention(k, v, mask, dropout_p=dropout)
    return projected(found.transpose(1, 2).flatten(2), out_weight, out_bias)


@as_one_node
def _weights(query: Tensor, key: Tensor | None, value: Tensor | None, weight: Tensor, bias: Tensor | None,
             mask: Tensor | None, heads: int) -> Tensor:
    """The weights of each head [N, heads, L, S]."""
    q, k, _ = _heads(query, key, value, weight, bias, heads)
    scores = q @ k.transpose(-1, -2) * (1 / math.sqrt(int(q.shape[-1])))
    if mask is not None:
        scores = mask.where(scores, -math.inf) if mask.dtype is bool_ else scores + mask
    return softmax_of_kept(scores)
