"""Contractions: products summed over shared axes. Half types accumulate in float32, small integers in int32."""
from __future__ import annotations

from collections import Counter
from string import ascii_letters
from typing import Any, Self

from minigrad.dtype import DType, promote, to_dtype
from minigrad.errors import DTypeError, ShapeError, quantity
from minigrad.expr import Index
from minigrad.mixins.base import Base, as_count, as_index, as_tensor
from minigrad.mixins.blocks import as_one_node
from minigrad.mixins.movement import spread
from minigrad.mixins.precision import in_half_type
from minigrad.mixins.reduce import accumulating
from minigrad.ops import build as B
from minigrad.ops import products, quantized


class LinalgMixin(Base):
    """Matrix products, einsum, convolution."""

    __slots__ = ()

    def dot_bytes(self, other: Any) -> Self:
        """Of int32 words, elementwise: the sum of the products of the four unsigned bytes of this one and the four
        signed bytes of `other`. Processors have an instruction for it.
        """
        return self._binary("dot_bytes", other, B.dot_bytes)

    def dequantized(self, kind: str, *parts: Self) -> Self:
        """Of words [..., G] of a format of `ops/block_formats.py`, with its other parts in order (scales, ...): their
        values, float32 [..., K]. See `state.QuantizedTensor`.
        """
        return self._wrap(quantized.dequantized(self.node, *[p.node for p in parts], kind=kind), self, *parts)

    def byte_products(self, scales: Self, sums: Self, kind: str, *parts: Self) -> Self:
        """Of rows in bytes, int32 [M, K/32, 8], with their scales and sums, times quantised rows whose parts are
        [..., count]: float32 [M, ...]. See `state.QuantizedTensor`.
        """
        node = quantized.byte_products(self.node, scales.node, sums.node, *[p.node for p in parts], kind=kind)
        return self._wrap(node, self, scales, sums, *parts)

    def dot(self, other: Any, dtype: DType | str | None = None) -> Self:
        """Matrix product of the last two axes, with batch axes that broadcast; a 1-D operand is a vector."""
        if not isinstance(other, Base):
            other = self._operand(other)
        if not isinstance(other, Base) or not self.node.shape or not other.node.shape:
            raise ShapeError(f"[matmul] expected operands of at least one axis, got {list(self.shape)} and "
                             f"{list(getattr(other, 'shape', []))}")
        x, w = self.node, other.node
        inner = w.shape[-2] if len(w.shape) > 1 else w.shape[0]
        if x.shape[-1] != inner:
            raise ShapeError(f"[matmul] expected [..., M, K] and [..., K, N] with equal K, "
                             f"got {list(x.shape)} and {list(w.shape)}")
        common = promote(x.dtype, w.dtype)
        wide = accumulating(common) if dtype is None else to_dtype(dtype)
        if len(w.shape) == 1:
            a, b = (as_tensor("matmul", t).cast(common).cast(wide.compute) for t in (self, other))
            return (a * b).sum(-1, dtype=wide.compute).cast(wide)
        if x.dtype is not wide or w.dtype is not wide:
            x, w = B.cast(B.cast(x, common), wide), B.cast(B.cast(w, common), wide)
        return self._wrap(products.matmul(x, w, wide), self, other)

    matmul = dot

    def __matmul__(self, other: Any) -> Self:
        return self.dot(other)

    def __rmatmul__(self, other: Any) -> Self:
        other = self._operand(other)
        if not isinstance(other, type(self)):
            raise ShapeError(f"[matmul] expected operands of at least one axis, got [] and {list(self.shape)}")
        return other.dot(self)

    def linear(self, weight: Self, bias: Self | None = None) -> Self:
        """x @ weight + bias for a weight [in, out] (a 1-D weight multiplies)."""
        weight = as_tensor("linear", self._operand(weight))
        if weight.ndim == 2 and self.shape[-1:] != weight.shape[:1]:
            raise ShapeError(f"[linear] expected [..., {weight.shape[0]}] for a weight {list(weight.shape)}, "
                             f"got {list(self.shape)}")
        x = self * weight if weight.ndim == 1 else self.dot(weight)
        return x if bias is None else x + bias

    def outer(self, vec2: Self) -> Self:
        """Products of all pairs of two vectors."""
        return self.reshape(-1, 1) * as_tensor("outer", self._operand(vec2)).reshape(1, -1)

    @classmethod
    def einsum(cls, formula: str, *operands: Any, dtype: DType | str | None = None) -> Self:
        """Einstein summation over single letters, such as 'bij,bjk->bik', and '...' for axes that broadcast; a
        letter twice in a term takes the diagonal. `dtype` is that of products and sums.
        """
        tensors: list[Self] = [as_tensor("einsum", t) for t in spread(operands)]
        if not isinstance(formula, str) or not tensors:
            raise ShapeError(f"[einsum] expected a formula such as 'ij,jk->ik' and tensors, got {formula!r} and "
                             f"{quantity(len(tensors), 'tensor')}")
        formula = _without_ellipsis(formula.replace(" ", ""), [t.ndim for t in tensors])
        left, arrow, out = formula.partition("->")
        terms = left.split(",")
        counts = Counter(left.replace(",", ""))
        out = out if arrow else "".join(sorted(c for c in counts if counts[c] == 1))
        if len(terms) != len(tensors) or any(len(t) != x.ndim for t, x in zip(terms, tensors, strict=True)):
            raise ShapeError(f"[einsum] expected one term per operand and one letter per axis, got {formula!r} for "
                             f"{' and '.join(str(list(x.shape)) for x in tensors)}")
        if len(set(out)) != len(out) or not all(c.isalpha() for c in [*counts, *out]):
            raise ShapeError(f"[einsum] expected letters, and distinct ones in the output, got {formula!r}")
        if set(out) - set(counts):
            raise ShapeError(f"[einsum] expected output letters that occur in the terms, got {formula!r}")
        for k, term in enumerate(terms):
            terms[k], tensors[k] = tensors[k]._diagonals(term)
        for letter in counts:
            lengths = {x.shape[t.index(letter)] for t, x in zip(terms, tensors, strict=True) if letter in t}
            if len(lengths - {1}) > 1:
                raise ShapeError(f"[einsum] expected one length of {letter!r} in {formula!r}, "
                                 f"got {' and '.join(str(list(x.shape)) for x in tensors)}")
        letters = out + "".join(sorted(set(counts) - set(out)))
        summed = tuple(range(len(out), len(letters)))
        product: Any = None
        for term, x in zip(terms, tensors, strict=True):
            present = [c for c in letters if c in term]
            ordered = x.permute(*[term.index(c) for c in present]) if x.ndim else x
            dims = iter(ordered.shape)
            aligned = ordered.reshape(*[next(dims) if c in term else 1 for c in letters])
            aligned = aligned._accumulating(dtype) if summed or dtype is not None else aligned
            product = aligned if product is None else product * aligned
        return product.sum(summed, dtype=product.dtype) if summed else product

    def _diagonals(self, term: str) -> tuple[str, Self]:
        """A term of einsum and its operand [one axis per letter] with each letter once."""
        x = self
        for letter in [c for c in term if term.count(c) > 1][::-1]:
            if term.count(letter) < 2:
                continue
            a, b = term.index(letter), term.rindex(letter)
            if x.shape[a] != x.shape[b]:
                raise ShapeError(f"[einsum] expected one length of {letter!r} in {term!r}, got {list(x.shape)}")
            x, term = x.diagonal(0, a, b), term[:a] + term[a + 1:b] + term[b + 1:] + letter
        return term, x

    # Convolution

    def conv2d(self, weight: Self, bias: Self | None = None, groups: int = 1, stride: Any = 1, dilation: Any = 1,
               padding: Any = 0) -> Self:
        """Cross-correlation of x [N, Cin, *spatial] with a weight [Cout, Cin/groups, *kernel], any number of axes.

        `padding`: one int, one per axis, or flat (left, right, top, bottom), the last axis first.
        """
        n = as_tensor("conv2d", weight).ndim - 2
        groups = as_count("conv2d", "groups", groups, 1)
        if self.ndim != n + 2 or n < 1 or self.shape[1] != groups * weight.shape[1] or weight.shape[0] % groups != 0:
            raise ShapeError(f"[conv2d] expected x [N, Cin, ...] and weight [Cout, Cin/{groups}, ...], "
                             f"got {list(self.shape)} and {list(weight.shape)}")
        common = promote(self.dtype, weight.dtype)
        x, w = B.cast(self.node, common), B.cast(weight.node, common)
        wide = accumulating(common)
        _check_bias("conv2d", bias, weight.shape[0], common)
        steps = products.Steps(per_axis("conv2d", stride, n), per_axis("conv2d", dilation, n),
                               spatial_padding("conv2d", padding, n))
        inside = bias if bias is not None and bias.dtype is wide and bias.shape == weight.shape[:1] else None
        try:
            node = products.conv(x, w, None if inside is None else inside.node, groups, steps, wide)
        except ShapeError as error:
            raise ShapeError(f"{error}, for x {list(self.shape)}") from None
        y = self._wrap(node, self, weight) if inside is None else self._wrap(node, self, weight, inside)
        return y if bias is None or bias is inside else y + bias.reshape(1, -1, *[1] * n)

    @as_one_node
    def conv_transpose2d(self, weight: Self, bias: Self | None = None, groups: int = 1, stride: Any = 1,
                         dilation: Any = 1, padding: Any = 0, output_padding: Any = 0) -> Self:
        """The gradient of conv2d by its input: x [N, Cin, *spatial], weight [Cin, Cout/groups, *kernel]."""
        n = as_tensor("conv_transpose2d", weight).ndim - 2
        groups = as_count("conv_transpose2d", "groups", groups, 1)
        if self.ndim != n + 2 or n < 1 or self.shape[1] != weight.shape[0] or weight.shape[0] % groups != 0:
            raise ShapeError(f"[conv_transpose2d] expected x [N, Cin, ...] and weight [Cin, Cout/{groups}, ...], "
                             f"got {list(self.shape)} and {list(weight.shape)}")
        in_channels, per_group, *taken = weight.shape
        kernel = tuple([int(k) for k in taken])
        name = "conv_transpose2d"
        strides, dilations = per_axis(name, stride, n), per_axis(name, dilation, n)
        extra = per_axis(name, output_padding, n)
        pads = spatial_padding(name, padding, n)
        if any(e >= max(s, d) for e, s, d in zip(extra, strides, dilations, strict=True)):
            raise ShapeError(f"[conv_transpose2d] expected output_padding below stride or dilation, got {extra}")
        _check_bias(name, bias, per_group * groups, promote(self.dtype, weight.dtype))
        positions = self.shape[2:]
        depth = in_channels // groups
        x = self.reshape(self.shape[0], groups, depth, 1, *positions, *[1] * n)
        w = weight.reshape(1, groups, depth, per_group, *[1] * n, *kernel)
        taps = x._accumulating(None) * w._accumulating(None)
        taps = taps.sum(2, dtype=taps.dtype)
        ends = tuple([(lo, hi - e) for (lo, hi), e in zip(pads, extra, strict=True)])
        lengths = tuple([(i - 1) * s - lo - hi + d * (k - 1) + 1 for i, s, d, k, (lo, hi) in
                         zip(positions, strides, dilations, kernel, ends, strict=True)])
        if min(strides) < 1 or min(dilations) < 1 or any(isinstance(size, int) and size < 0 for size in lengths):
            raise ShapeError(f"[{name}] expected strides and dilations of 1 or more and sizes of 0 or more, got stride "
                             f"{stride}, dilation {dilation} and sizes {list(lengths)} for x {list(self.shape)}")
        axes = tuple(range(3, 3 + n))
        node = B.unwindow(taps.node, axes, kernel, strides, dilations, ends, lengths)
        y = self._wrap(node, self, weight).reshape(self.shape[0], groups * per_group, *lengths)
        return y if bias is None else y + bias.reshape(1, -1, *[1] * n)

    def _windows(self, name: str, kernel: tuple[Any, ...], stride: Any, dilation: Any, padding: Any,
                 fill: float = 0) -> Self:
        """Windows over the last axes: they become positions, kernel axes are appended."""
        n = len(kernel)
        axes = tuple(range(self.ndim - n, self.ndim))
        steps = per_axis(name, stride, n), per_axis(name, dilation, n), spatial_padding(name, padding, n)
        try:
            node = B.window(self.node, axes, kernel, *steps, fill)
        except ShapeError as error:
            raise ShapeError(f"[{name}] {str(error).removeprefix('[window] ')}, for x {list(self.shape)}") from None
        return self._wrap(node, self)


def _without_ellipsis(formula: str, ranks: list[int]) -> str:
    """The formula with letters of its own for the axes that '...' stands for; the last ones are the same in all terms.
    """
    if "..." not in formula:
        return formula
    left, arrow, out = formula.partition("->")
    terms = left.split(",")
    counts = [rank - len(term.replace("...", "")) for term, rank in zip(terms, ranks, strict=False) if "..." in term]
    free = "".join(c for c in ascii_letters if c not in formula)
    most = max(counts, default=0)
    if len(terms) != len(ranks) or not counts or min(counts) < 0 or most > len(free):
        raise ShapeError(f"[einsum] expected one term per operand and one letter per axis, got {formula!r} for "
                         f"operands of {ranks} axes")
    letters = free[:most]
    if not arrow:
        named = Counter(left.replace("...", "").replace(",", ""))
        out = "..." + "".join(sorted(c for c in named if named[c] == 1))
    full = [term.replace("...", letters[most - rank + len(term.replace("...", "")):])
            for term, rank in zip(terms, ranks, strict=True)]
    return ",".join(full) + "->" + out.replace("...", letters)


def _check_bias(name: str, bias: Base | None, channels: Index, of: DType) -> None:
    if bias is not None and as_tensor(name, bias).shape != (channels,):
        raise ShapeError(f"[{name}] expected a bias [{channels}], got {list(bias.shape)}")
    if bias is not None and bias.dtype.is_float and not of.is_float:
        raise DTypeError(f"[{name}] expected a bias of integers for {of}, got {bias.dtype}")


def _as_size(value: Any) -> Any:
    """An integer that is no bool, else None."""
    return None if isinstance(value, bool) else as_index(value)


def per_axis(name: str, value: Any, n: int) -> tuple[int, ...]:
    """One int per spatial axis, from one int, in a list or not, or n of them."""
    values = tuple(value) if isinstance(value, (tuple, list)) else (value,)
    values = values * n if len(values) == 1 else values
    found = tuple([_as_size(v) for v in values])
    if len(found) != n or None in found:
        raise ShapeError(f"[{name}] expected one integer or {n} of them, got {value!r}")
    return found


def spatial_padding(name: str, padding: Any, n: int) -> tuple[tuple[int, int], ...]:
    """(before, after) per spatial axis, from one int, n of them, or 2n flat ones with the last axis first."""
    if type(padding) is int:
        return ((padding, padding),) * n
    given = padding if isinstance(padding, (tuple, list)) else (padding,) * n
    flat = tuple([_as_size(p) for p in given])
    if len(flat) not in (n, 2 * n) or None in flat:
        raise ShapeError(f"[{name}] expected padding as one int, {n} or {2 * n} of them, got {padding!r}")
    if len(flat) == n:
        return tuple([(p, p) for p in flat])
    return tuple([(flat[i], flat[i + 1]) for i in range(2 * n - 2, -1, -2)])


@in_half_type
@as_one_node
def projected(x: Any, weight: Any, bias: Any = None) -> Any:
    """`x.linear` by a weight [out, in], which is how layers keep it."""
    return x.linear(weight.transpose(), bias)
