"""Shape changes. None of them copies: they become index arithmetic of the kernels that read them."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

from minigrad.dtype import DType, bool_, promote
from minigrad.errors import ShapeError, quantity
from minigrad.expr import Index, divides, product
from minigrad.mixins.base import (
    Base,
    as_axes,
    as_axis,
    as_count,
    as_index,
    as_parameter,
    as_shape,
    as_tensor,
    is_index,
)
from minigrad.mixins.blocks import as_one_node
from minigrad.mixins.rounding import rounded_once
from minigrad.ops import build as B
from minigrad.ops.convert import held
from minigrad.ops.node import apply
from minigrad.ops.op import Shape
from minigrad.ops.storage import CONTIGUOUS

_CAT_AT_ONCE = 8


class MovementMixin(Base):
    """Methods that rearrange, repeat, cut, pad and join."""

    __slots__ = ()

    def reshape(self, *dims: Any, shape: Any = ()) -> Self:
        """The same elements in row-major order in another shape. One dim may be -1; None keeps a dim."""
        plain = spread(dims or (shape,))
        if not all([type(d) is int and d >= 0 for d in plain]):
            plain = self._whole_shape(plain)
        return self._wrap(B.reshape(self.node, plain), self)

    def _whole_shape(self, plain: tuple[Any, ...]) -> Shape:
        """The shape that is meant by one with -1 or None. Raises ShapeError."""
        given = tuple([self.shape[i] if d is None and i < self.ndim else d for i, d in enumerate(plain)])
        to = list(as_shape((given,)))
        unknown = [i for i, d in enumerate(to) if isinstance(d, int) and d == -1]
        if len(unknown) == 1:
            known = product([d for i, d in enumerate(to) if i != unknown[0]])
            if known == 0 or not divides(known, self.numel()):
                raise ShapeError(f"[reshape] expected a shape with {quantity(self.numel(), 'element')} like "
                                 f"{list(self.shape)}, got {to}")
            to[unknown[0]] = self.numel() // known
        if len(unknown) > 1 or any(isinstance(d, int) and d < 0 for d in to):
            raise ShapeError(f"[reshape] expected dims of 0 or more and at most one -1, got {to}")
        return tuple(to)

    def view(self, *shape: Any, size: Any = (), dtype: Any = None) -> Self:
        """`reshape`; of a type, as in view("uint8"), `bitcast`."""
        kind = shape[0] if len(shape) == 1 and isinstance(shape[0], (DType, str)) else dtype
        return self.reshape(*shape, shape=size) if kind is None else self.bitcast(kind)

    def permute(self, *order: Any, dims: Any = ()) -> Self:
        """Axis i of the result is axis order[i]."""
        given = spread(order or (dims,))
        places = [as_index(a) for a in given]
        if None in places:
            raise ShapeError(f"[permute] expected an order of {self.ndim} axes for {list(self.shape)}, got {given}")
        axes = tuple([as_axis("permute", a, self.ndim) for a in places])
        return self._wrap(B.permute(self.node, axes), self)

    def transpose(self, dim0: int = 1, dim1: int = 0) -> Self:
        """Two axes exchanged."""
        a, b = as_axis("transpose", dim0, self.ndim or 1), as_axis("transpose", dim1, self.ndim or 1)
        order = list(range(self.ndim or 1))
        order[a], order[b] = b, a
        return self.permute(*order[:self.ndim])

    @property
    def T(self) -> Self:
        """The transpose of a matrix; the last two axes of more dims."""
        return self.transpose(-2, -1) if self.ndim > 1 else self._wrap(self.node, self)

    def flatten(self, start_dim: int = 0, end_dim: int = -1) -> Self:
        """Axes start_dim..end_dim as one."""
        if self.ndim == 0:
            return self.reshape(1)
        a, b = as_axis("flatten", start_dim, self.ndim), as_axis("flatten", end_dim, self.ndim)
        if a > b:
            raise ShapeError(f"[flatten] expected start_dim at or before end_dim, got {start_dim} and {end_dim}")
        middle = B.numel(self.shape[a:b + 1])
        return self.reshape(*self.shape[:a], middle, *self.shape[b + 1:])

    def unflatten(self, dim: int, sizes: Index | Sequence[Index]) -> Self:
        """One axis as several, of which one may be -1."""
        a = as_axis("unflatten", dim, self.ndim)
        given = sizes
        sizes = list(sizes) if isinstance(sizes, Sequence) else [sizes]
        if -1 in sizes:
            known = product([s for s in sizes if s != -1])
            sizes[sizes.index(-1)] = self.shape[a] // known if known != 0 else 0
        if -1 in sizes or product(sizes) != self.shape[a]:
            raise ShapeError(f"[unflatten] expected sizes whose product is {self.shape[a]}, at most one of them -1, "
                             f"got {given!r}")
        return self.reshape(*self.shape[:a], *sizes, *self.shape[a + 1:])

    def squeeze(self, dim: Any = None) -> Self:
        """Without the axes of length 1, or without one of them, or several."""
        if isinstance(dim, (tuple, list)):
            axes = as_axes("squeeze", dim, self.ndim)
            return self.reshape(*[d for a, d in enumerate(self.shape) if a not in axes or d != 1])
        if dim is None:
            return self.reshape(*[d for d in self.shape if d != 1])
        a = as_axis("squeeze", dim, self.ndim or 1)
        return self.reshape(*self.shape[:a], *self.shape[a + (self.shape[a:a + 1] == (1,)):])

    def unsqueeze(self, dim: int) -> Self:
        """With an axis of length 1 before `dim`."""
        a = as_axis("unsqueeze", dim, self.ndim + 1)
        return self.reshape(*self.shape[:a], 1, *self.shape[a:])

    def expand(self, *shape: Any, size: Any = ()) -> Self:
        """Axes of length 1 repeated without copies, and new axes in front; -1 or None keeps a dim."""
        given = spread(shape or (size,))
        extra = len(given) - self.ndim
        to = as_shape((tuple([-1 if d is None else d for d in given]),))
        to = tuple([self.shape[i - extra] if i >= extra and isinstance(d, int) and d == -1 else d
                    for i, d in enumerate(to)])
        return self._wrap(B.expand(self.node, to), self)

    def expand_as(self, other: Base) -> Self:
        return self.expand(*other.shape)

    broadcast_to = expand

    def pad(self, padding: Sequence[Any], mode: str = "constant", value: float = 0.0) -> Self:
        """Elements of `value` around the tensor; negative numbers cut.

        `padding` is flat as in PyTorch (left, right, top, bottom, ...: the last axes first) or one (before, after) pair
        or None per axis. `mode`: 'constant', or 'reflect', 'replicate', 'circular' with pads no longer than the axis.
        As in PyTorch, 'constant' and 'circular' cut before they pad, the others pad with what is cut then, too.
        """
        pairs, value = self._pads(padding), as_parameter("pad", "value", value)
        if isinstance(value, Base) and mode == "constant":
            there = self.detach().ones_like(dtype=bool_).pad(padding)
            return there.where(self.pad(padding), as_tensor("pad", value).cast(self.dtype))
        if mode != "constant":
            return self._pad_by_repeating(pairs, mode)
        cuts = [tuple([max(-p, 0) if isinstance(p, int) else 0 for p in pair]) for pair in pairs]
        if any([isinstance(d, int) and a + b > d for (a, b), d in zip(cuts, self.shape, strict=True)]):
            raise ShapeError(f"[pad] expected to cut no more than there is, got {padding} for {list(self.shape)}")
        x = self.shrink(tuple([(a, d - b) for (a, b), d in zip(cuts, self.shape, strict=True)]))
        grown = tuple([(lo + a, hi + b) for (lo, hi), (a, b) in zip(pairs, cuts, strict=True)])
        return self._wrap(B.pad(x.node, grown, held("pad", value, self.dtype)), self)

    def _pads(self, padding: Sequence[Any]) -> list[tuple[Any, Any]]:
        _check_pads(padding)
        if not all(p is None or isinstance(p, (tuple, list)) for p in padding):
            flat = [as_index(p) for p in padding]
            if len(flat) % 2 or len(flat) > 2 * self.ndim:
                raise ShapeError(f"[pad] expected (before, after) for last axes of {list(self.shape)}, got {padding}")
            pairs = list(zip(flat[::2], flat[1::2], strict=True))[::-1]
            return [(0, 0)] * (self.ndim - len(pairs)) + pairs
        if len(padding) != self.ndim:
            raise ShapeError(f"[pad] expected {quantity(self.ndim, 'pair')} for {list(self.shape)}, got {padding}")
        return [(0, 0) if p is None else (as_index(p[0]), as_index(p[1])) for p in padding]

    @as_one_node
    @rounded_once
    def _pad_by_repeating(self, pairs: list[tuple[Any, Any]], mode: str) -> Self:
        x = self
        for axis, (lo, hi) in enumerate(pairs):
            x = x._pad_axis(axis, lo, hi, mode) if (lo, hi) != (0, 0) else x
        return x

    def _pad_axis(self, axis: int, lo: Any, hi: Any, mode: str) -> Self:
        x, n = self, self.shape[axis]
        least = 0 if mode == "circular" else 1  # of elements that are left, and that there are
        enough = not isinstance(n, int) or (n >= least and n + lo + hi >= least)
        if mode == "circular" and min(lo, hi) < 0 and enough:  # what is cut does not come in at the other end
            x = self._cut(axis, min(max(-lo, 0), n), max(n + min(hi, 0), 0))
            lo, hi, n = max(lo, 0), max(hi, 0), x.shape[axis]
        limit = {"reflect": n - 1, "circular": n, "replicate": max(lo, hi)}.get(mode)
        if limit is None or not enough or (isinstance(limit, int) and max(lo, hi, 0) > max(limit, 0)):
            raise ShapeError(f"[pad] expected mode constant, reflect, replicate, circular, pads of at most {limit} and "
                             f"something left, got {mode!r} and {(lo, hi)} for axis {axis} of {list(self.shape)}")
        parts = [x._edge(axis, lo, True, mode)] if lo > 0 else []
        parts += [x, x._edge(axis, hi, False, mode)] if hi > 0 else [x]
        whole = parts[0].cat(*parts[1:], dim=axis)
        return whole._cut(axis, max(-lo, 0), whole.shape[axis] + min(hi, 0)) if min(lo, hi) < 0 else whole

    def _edge(self, axis: int, size: int, before: bool, mode: str) -> Self:
        n: Any = self.shape[axis]
        if mode == "replicate":
            edge = self._cut(axis, 0, 1) if before else self._cut(axis, n - 1, n)
            return edge.expand(*[size if a == axis else d for a, d in enumerate(self.shape)])
        if mode == "circular":
            return self._cut(axis, n - size, n) if before else self._cut(axis, 0, size)
        return (self._cut(axis, 1, size + 1) if before else self._cut(axis, n - 1 - size, n - 1)).flip(axis)

    def _cut(self, axis: int, start: Index, stop: Index) -> Self:
        """Elements start..stop of one axis."""
        starts = tuple([start if a == axis else 0 for a in range(self.ndim)])
        stops = tuple([stop if a == axis else d for a, d in enumerate(self.shape)])
        return self._wrap(B.slice_(self.node, starts, stops), self)

    def shrink(self, ranges: Sequence[tuple[Index, Index] | None]) -> Self:
        """Elements start..stop of each axis; None keeps one whole."""
        if not isinstance(ranges, (tuple, list)) or len(ranges) != self.ndim or not all(
                [r is None or (isinstance(r, (tuple, list)) and len(r) == 2) for r in ranges]):
            raise ShapeError(f"[shrink] expected {self.ndim} ranges (start, stop) for {list(self.shape)}, got {ranges}")
        full = [(0, d) if r is None else (as_index(r[0]), as_index(r[1]))
                for r, d in zip(ranges, self.shape, strict=True)]
        if None in [end for r in full for end in r]:
            raise ShapeError(f"[shrink] expected integers as starts and stops, got {ranges}")
        return self._wrap(B.slice_(self.node, tuple([a for a, _ in full]), tuple([b for _, b in full])), self)

    def flip(self, *axis: Any, dims: Any = ()) -> Self:
        """Axes in reverse order."""
        given = spread(axis) if dims == () else spread((dims,))
        return self._wrap(B.flip(self.node, as_axes("flip", given, self.ndim)), self)

    def contiguous(self) -> Self:
        """The same values, kept in memory of their own."""
        return self._wrap(apply(CONTIGUOUS, self.node), self)

    def repeat(self, *each: Any, repeats: Any = ()) -> Self:
        """The tensor repeated along each axis; more counts than axes add axes in front."""
        counts = as_shape(each or (repeats,))
        shape = (*([1] * (len(counts) - self.ndim)), *self.shape)
        if len(counts) < len(shape):
            raise ShapeError(f"[repeat] expected at least {self.ndim} counts, got {list(counts)}")
        apart = [d for n, d in zip(counts, shape, strict=True) for d in (1, d)]
        wide = [d for n, d in zip(counts, shape, strict=True) for d in (n, d)]
        final = [n * d for n, d in zip(counts, shape, strict=True)]
        return self.reshape(*apart).expand(*wide).reshape(*final)

    def cat(self, *others: Any, dim: int = 0) -> Self:
        """Joined with other tensors along an axis; their other axes agree. Also `Tensor.cat(a, b, dim=1)`."""
        if not isinstance(self, Base):  # Tensor.cat([a, b]), Tensor.cat([a, b], 1)
            return _first("cat", self).cat(*self[1:], dim=_positional(others, dim))
        parts = [self, *[as_tensor("cat", t) for t in spread(others)]]
        common = _common_dtype(parts)
        parts = [p for p in parts if p.shape != (0,)] or parts[:1]  # as in PyTorch, [0] joins whatever it is given
        like = parts[0]
        a = as_axis("cat", dim, like.ndim)
        for p in parts[1:]:
            if p.ndim != like.ndim or p.shape[:a] != like.shape[:a] or p.shape[a + 1:] != like.shape[a + 1:]:
                raise ShapeError(f"[cat] expected shapes equal beside axis {a}, "
                                 f"got {' and '.join(str(list(x.shape)) for x in parts)}")
        parts = [p.cast(common) for p in parts if p.shape[a] != 0] or [like.cast(common)]
        while len(parts) > _CAT_AT_ONCE:
            # Every element is computed from all parts at once: many parts are joined in memory, group by group.
            groups = [parts[i:i + _CAT_AT_ONCE] for i in range(0, len(parts), _CAT_AT_ONCE)]
            parts = [g[0].cat(*g[1:], dim=a).contiguous() for g in groups]
        total = sum([p.shape[a] for p in parts], start=0)
        start: Index = 0
        node: Any = None
        # -0.0 is the identity of addition: nothing that is joined changes, not even its sign of zero.
        fill = -0.0 if common.is_float else 0
        for p in parts:
            stop = start + p.shape[a]
            pads = tuple([(start, total - stop) if i == a else (0, 0) for i in range(like.ndim)])
            padded = B.pad(p.node, pads, fill)
            node = padded if node is None else (B.add if common.kind != "b" else B.or_)(node, padded)
            start = stop
        return self._wrap(node, *parts)

    concat = cat

    def stack(self, *others: Any, dim: int = 0) -> Self:
        """Joined with tensors of the same shape along a new axis."""
        if not isinstance(self, Base):  # Tensor.stack([a, b]), Tensor.stack([a, b], 1)
            return _first("stack", self).stack(*self[1:], dim=_positional(others, dim))
        parts = [self, *[as_tensor("stack", t) for t in spread(others)]]
        dim = as_axis("stack", dim, self.ndim + 1)
        if any(p.shape != self.shape for p in parts):
            raise ShapeError(f"[stack] expected equal shapes, got {' and '.join(str(list(p.shape)) for p in parts)}")
        spaced = [p.unsqueeze(dim) for p in parts]
        return spaced[0].cat(*spaced[1:], dim=dim)

    def split(self, sizes: int | Sequence[int] | None = None, dim: int = 0, *,
              split_size: int | Sequence[int] | None = None) -> tuple[Self, ...]:
        """Consecutive parts of the given sizes along an axis; one int gives equal parts and a shorter last one."""
        sizes = split_size if sizes is None else sizes
        a = as_axis("split", dim, self.ndim)
        n: Any = self.shape[a]
        if is_index(sizes):
            size = as_count("split", "a size", sizes, 0 if n == 0 else 1)
            sizes = [min(size, n - start) for start in range(0, max(n, 1), max(size, 1))]
        given = sizes if isinstance(sizes, (tuple, list)) else [sizes]
        sizes = [as_count("split", "sizes", s) for s in given]
        if sum(sizes) != n:
            raise ShapeError(f"[split] expected sizes that add up to {n}, got {list(sizes)}")
        ends = [sum(sizes[:i + 1]) for i in range(len(sizes))]
        return tuple([self._cut(a, e - s, e) for s, e in zip(sizes, ends, strict=True)])

    def chunk(self, chunks: int, dim: int = 0) -> list[Self]:
        """At most `chunks` parts of equal size along an axis; the last may be shorter."""
        chunks = as_count("chunk", "chunks", chunks, 1)
        n: Any = self.shape[as_axis("chunk", dim, self.ndim)]
        return list(self.split(max(1, -(-n // chunks)), dim))

    unsafe_split, unsafe_chunk = split, chunk

    def unfold(self, dimension: int, size: int, step: int = 1) -> Self:
        """Windows of `size` elements every `step` along an axis, in a new last axis."""
        a = as_axis("unfold", dimension, max(self.ndim, 1))
        size = as_count("unfold", "size", size, 1)
        step = as_count("unfold", "step", step, 1)
        if not self.ndim:
            return self.reshape(1).unfold(0, size, step).squeeze(0)
        return self._wrap(B.window(self.node, (a,), (size,), (step,), (1,), ((0, 0),)), self)

    def roll(self, shifts: Any, dims: Any = None) -> Self:
        """Elements moved along an axis, or several, those that leave coming in at the other end; without `dims`, in the
        order of memory."""
        if dims is None:
            return self.flatten().roll(shifts, 0).reshape(*self.shape)
        if isinstance(dims, (tuple, list)) or isinstance(shifts, (tuple, list)):
            each, along = ([*v] if isinstance(v, (tuple, list)) else [v] for v in (shifts, dims))
            if len(each) != len(along):
                raise ShapeError(f"[roll] expected as many shifts as dims, got {shifts!r} and {dims!r}")
            x = self
            for shift, a in zip(each, along, strict=True):
                x = x.roll(shift, a)
            return x
        a = as_axis("roll", dims, self.ndim)
        shift = as_index(shifts)
        if shift is None:
            raise ShapeError(f"[roll] expected shifts as an integer, got {shifts!r}")
        n: Any = self.shape[a]
        k = shift % n if n else 0
        return self._cut(a, n - k, n).cat(self._cut(a, 0, n - k), dim=a) if k else self._wrap(self.node, self)


def spread(args: Sequence[Any]) -> tuple[Any, ...]:
    """Arguments from `f(a, b)` or `f((a, b))`."""
    return tuple(args[0]) if len(args) == 1 and isinstance(args[0], (tuple, list)) else tuple(args)


def _check_pads(padding: Any) -> None:
    """Raises ShapeError unless it is integers, or pairs of them and None."""
    listed = isinstance(padding, (tuple, list))
    paired = listed and all([p is None or (isinstance(p, (tuple, list)) and len(p) == 2) for p in padding])
    numbers = [n for p in padding if p is not None for n in p] if paired else padding
    if not listed or not all([is_index(n) for n in numbers]):
        raise ShapeError(f"[pad] expected integers (left, right, top, ...) or one (before, after) per axis, "
                         f"got {padding!r}")


def _first(name: str, tensors: Any) -> Any:
    """The first of a list of tensors that was given in place of a tensor."""
    if not isinstance(tensors, (tuple, list)) or not tensors or not all(isinstance(t, Base) for t in tensors):
        raise ShapeError(f"[{name}] expected tensors or a list of at least one, got {tensors!r}")
    return tensors[0]


def _positional(rest: tuple[Any, ...], dim: int) -> Any:
    """The axis, which may stand behind a list of tensors without its name."""
    return rest[0] if len(rest) == 1 else dim if not rest else rest


def _common_dtype(parts: Sequence[Base]) -> DType:
    common = parts[0].dtype
    for p in parts[1:]:
        common = promote(common, p.dtype)
    return common


