"""Scaled dot-product attention."""
from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Self

from minigrad.dtype import bool_
from minigrad.errors import DTypeError, ShapeError
from minigrad.expr import Index, product, prove_nonneg
from minigrad.mixins.base import Base, as_number, as_parameter, as_tensor, broadcast_shapes
from minigrad.mixins.modes import modes
from minigrad.ops.attention import attention


class AttentionMixin(Base):
    __slots__ = ()

    def scaled_dot_product_attention(
        self, key: Self, value: Self, attn_mask: Self | None = None, dropout_p: float = 0.0, is_causal: bool = False,
        scale: float | None = None, enable_gqa: bool = False, causal_offset: Index = 0,
        window: int | None = None, softcap: float | None = None, sinks: Self | None = None,
    ) -> Self:
        """softmax(q @ k.T * scale + mask) @ v for q [..., H, L, E], k [..., H, S, E] and v [..., H, S, F].

        `attn_mask` broadcasts to [..., H, L, S]: a bool one keeps where True, another is added. `is_causal` keeps
        s <= l + causal_offset: an offset of S - L aligns the last rows. `scale` defaults to 1/sqrt(E). With
        `enable_gqa`, k and v have fewer heads, each serving several of q's. What is not kept must be finite in v. A row
        that keeps nothing gives zeros, as in PyTorch, and has gradients of 0.

        Beyond PyTorch's: a causal `window` keeps the last so many of the keys that a row may see. `softcap` turns a
        score s into softcap * tanh(s / softcap) before any mask. `sinks` [H] (or of a shape that broadcasts to
        [..., H]) are one more score for each row of a head, whose weight goes to no key.
        """
        for x in (key, value, *([] if attn_mask is None else [attn_mask])):
            as_tensor("scaled_dot_product_attention", x)
        if min(self.ndim, key.ndim, value.ndim) < 2 + enable_gqa:
            raise ShapeError(f"[scaled_dot_product_attention] expected at least {2 + enable_gqa} axes, "
                             f"got {list(self.shape)}, {list(key.shape)}, {list(value.shape)}")
        query, width = self, self.shape[-1]
        if key.shape[-1] != width or key.shape[-2] != value.shape[-2]:
            raise ShapeError(f"[scaled_dot_product_attention] expected q [..., L, E], k [..., S, E], v [..., S, F], "
                             f"got {list(self.shape)}, {list(key.shape)}, {list(value.shape)}")
        if attn_mask is not None and attn_mask.dtype is not bool_ and not attn_mask.dtype.is_float:
            raise DTypeError(f"[scaled_dot_product_attention] expected a mask of bools, or of floats to add, got "
                             f"{attn_mask.dtype}; use mask.bool()")
        if is_causal and attn_mask is not None:
            raise ShapeError("[scaled_dot_product_attention] expected a mask or is_causal, got both")
        grouped = enable_gqa and query.shape[-3] != key.shape[-3]
        if grouped:
            query, key, value = _group_heads(query, key, value)
            attn_mask = None if attn_mask is None else _group_mask(attn_mask, query)
        scale = None if scale is None else as_parameter("scaled_dot_product_attention", "scale", scale)
        if isinstance(scale, Base):
            query, scale = query * scale, 1.0
        factor = 1 / math.sqrt(int(width)) if scale is None else scale
        if window is not None and (not is_causal or type(window) is not int or window < 1):
            raise ShapeError(f"[scaled_dot_product_attention] expected a window of 1 or more keys with is_causal, got "
                             f"{window!r} and is_causal={is_causal}")
        length: Index = query.shape[-2]
        if window is not None and prove_nonneg(window - length - causal_offset):
            window = None  # no row sees more
        sees_all = not is_causal or (window is None and prove_nonneg(causal_offset + 1 - key.shape[-2]))
        softcap = None if softcap is None else as_number("scaled_dot_product_attention", "softcap", softcap)
        if softcap is not None and not softcap > 0:
            raise ShapeError(f"[scaled_dot_product_attention] expected a softcap above 0, got {softcap}")
        if sinks is not None:
            sinks = _sinks_of(sinks, query, grouped)
        dropout_p = as_number("scaled_dot_product_attention", "dropout_p", dropout_p)
        if not 0 <= dropout_p <= 1:
            raise ShapeError(f"[scaled_dot_product_attention] expected a dropout_p in 0..1, got {dropout_p}")
        drops = dropout_p > 0 and modes.now.training
        weights = _Weights(attn_mask, factor, None if sees_all else causal_offset, window, softcap, sinks)
        plain = not drops and _is_plain(query, key, value)
        out = _as_one(query, key, value, weights) if plain else _with_table(query, key, value, weights, dropout_p)
        return out.reshape(*self.shape[:-1], out.shape[-1]) if grouped else out


@dataclass(frozen=True)
class _Weights:
    """All that the weights depend on besides queries and keys."""

    mask: Any
    factor: float
    offset: Index | None
    window: int | None
    softcap: float | None
    sinks: Any


def _is_plain(query: Any, key: Any, value: Any) -> bool:
    """True where the primitive can take these: one float type, and some keys."""
    return query.dtype.is_float and query.dtype is key.dtype is value.dtype and key.shape[-2] != 0


def _as_one(query: Any, key: Any, value: Any, w: _Weights) -> Any:
    """One Node: how it is computed is decided for the device (scheduler/expand.py)."""
    heads = broadcast_shapes("scaled_dot_product_attention", query.shape[:-2], key.shape[:-2], value.shape[:-2])
    q, k, v = (x.expand(*heads, *x.shape[-2:]) for x in (query, key, value))
    parents, mask, sinks = [query, key, value], w.mask, w.sinks
    if mask is not None:
        mask = mask.expand(*heads, query.shape[-2], key.shape[-2])
        mask = mask if mask.dtype is bool_ else mask.cast(query.dtype)
        parents.append(mask)
    if sinks is not None:
        sinks = sinks.cast(query.dtype).expand(*heads, query.shape[-2])
        parents.append(sinks)
    node = attention(q.node, k.node, v.node, None if mask is None else mask.node,
                     None if sinks is None else sinks.node, w.factor, w.offset, w.window, w.softcap)
    return query._wrap(node, *parents)


def _with_table(query: Any, key: Any, value: Any, w: _Weights, dropout: float) -> Any:
    scores, mask = query.dot(key.transpose(-2, -1)) * w.factor, w.mask
    if w.softcap is not None:
        scores = w.softcap * (scores / w.softcap).tanh()
    if w.offset is not None:
        length: Index = query.shape[-2]
        rows = query.arange(length, device=query.device).reshape(length, 1) + w.offset
        keys = query.arange(key.shape[-2], device=query.device).reshape(1, -1)
        mask = rows >= keys if w.window is None else (rows >= keys) & (rows - w.window < keys)
    if mask is not None:
        scores = mask.where(scores, -math.inf) if mask.dtype is bool_ else scores + mask
    return softmax_of_kept(scores, w.sinks).cast(query.dtype).dropout(dropout).dot(value)


def _sinks_of(sinks: Any, query: Any, grouped: bool) -> Any:
    """Sinks [..., H] as [..., H, 1], or [..., G, R, 1] for grouped heads."""
    as_tensor("scaled_dot_product_attention", sinks)
    heads = query.shape[-4:-2] if grouped else query.shape[-3:-2]
    if not sinks.dtype.is_float or query.ndim < 3 or sinks.ndim < 1 or sinks.shape[-1] not in (1, product(heads)):
        raise ShapeError(f"[scaled_dot_product_attention] expected sinks of floats for each of {list(heads)} heads, "
                         f"got {sinks.dtype} {list(sinks.shape)}")
    split = heads if sinks.shape[-1] != 1 else (1,) * len(heads)
    return sinks.reshape(*sinks.shape[:-1], *split, 1)


def softmax_of_kept(scores: Any, sinks: Any = None) -> Any:
    """Softmax of the last axis, in float32 for half types, with one more score for each row if there are sinks; zeros
    in rows whose scores are all -inf."""
    scores = scores.cast(scores.dtype.compute)
    if scores.shape[-1] == 0:
        return scores
    if sinks is not None:
        sinks = sinks.cast(scores.dtype).unsqueeze(-1).expand(*scores.shape[:-1], 1)
        return scores.cat(sinks, dim=-1).softmax(-1)[..., :-1]
    nothing = scores.detach().max(-1, keepdim=True).eq(-math.inf)
    return nothing.where(0, nothing.where(0, scores).softmax(-1))


def _group_heads(query: Any, key: Any, value: Any) -> tuple[Any, Any, Any]:
    """q [..., G, R, L, E] and k, v [..., G, 1, S, E]: every key head serves R query heads, without copies."""
    heads, groups = query.shape[-3], key.shape[-3]
    if value.shape[-3] != groups or heads % groups != 0:
        raise ShapeError(f"[scaled_dot_product_attention] expected query heads divisible by key heads, "
                         f"got {heads} and {groups}")
    q = query.reshape(*query.shape[:-3], groups, heads // groups, *query.shape[-2:])
    return q, key.unsqueeze(-3), value.unsqueeze(-3)


def _group_mask(mask: Any, query: Any) -> Any:
    """A mask for grouped heads, [..., G, R, L, S]."""
    if mask.ndim < 3:
        return mask
    split = (1, 1) if mask.shape[-3] == 1 else (query.shape[-4], query.shape[-3])
    return mask.reshape(*mask.shape[:-3], *split, *mask.shape[-2:])
