"""Reading and writing by index: ints, slices, None, ..., integer tensors, bool masks and symbolic Variables.

Ints and slices are slices of the graph. Integer tensors gather with PyTorch's meaning: they broadcast together, and the
result's axes stand where the first of them stood if they are side by side once ints are gone, else in front. Negative
indices count from the end; what is out of range is said in ranges.py. A bool mask stands for the integer tensors of its
`nonzero`, whose length is known by reading its values, and one without axes, or True or False, for a new axis of one
element or none; no value is read where `x[mask] = y` puts the same y at every place.
"""
from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, Self

import numpy as np

from minigrad.dtype import bool_, int32
from minigrad.errors import DTypeError, OutOfRangeError, ShapeError
from minigrad.expr import Expr, Index, dim, emin
from minigrad.mixins.base import Base, as_position, as_tensor, broadcast_shapes
from minigrad.mixins.gathering import is_mask
from minigrad.ops import build as B
from minigrad.ops.storage import place_type

Part = tuple[Index, Index, int]  # start, stop, step (never 0) of one axis


class IndexingMixin(Base):
    """`x[...]` and `x[...] = value`."""

    __slots__ = ()

    def __getitem__(self, key: Any) -> Self:
        if type(key) is int and self.node.shape:
            return self._row(key)
        parts, view, tensors = self._parse("getitem", key)
        x = self._slice(parts)._seen(view)
        return x._take_tensors(tensors) if tensors else x

    def _seen(self, view: list[int]) -> Self:
        """This tensor with the axes of a view: its own by number, those of length 1 possibly left out, and new ones,
        which are negative."""
        if view == list(range(self.ndim)):
            return self
        return self.reshape(*[1 if a < 0 else self.shape[a] for a in view])

    def _row(self, index: int) -> Self:
        """`[index]` for an int: loops over the steps of a sequence call it for each of them."""
        node = self.node
        at, (_, *rest) = as_position("getitem", index, self.shape, 0), node.shape
        part = B.slice_(node, (at, *[0] * len(rest)), (at + 1, *rest))
        return self._wrap(B.reshape(part, tuple(rest)), self)

    def __setitem__(self, key: Any, value: Any) -> None:
        value = self._operand(value)
        if not isinstance(value, type(self)):
            value = type(self).full((), value, dtype=self.dtype.compute, device=self.device)
        if isinstance(key, (list, np.ndarray, bool)):
            key = self._index_item("setitem", key)
        if is_mask(key) and value.ndim <= self.ndim - key.ndim:
            self._check_mask("setitem", key, 0)
            rest = self.shape[key.ndim:]
            chosen = key.reshape(*key.shape, *[1] * len(rest)).where(_fitted(value, rest).cast(self.dtype), self)
            return self._assign_parts([(0, n, 1) for n in self.shape], chosen)
        parts, view, tensors = self._parse("setitem", key)
        part = self._slice(parts)
        seen = part._seen(view)
        changed = seen._put_tensors(tensors, value) if tensors else _fitted(value, seen.shape)
        self._assign_parts(parts, changed.reshape(*part.shape))

    def _assign_parts(self, parts: list[Part], value: Self) -> None:
        """Replaces the elements that `parts` select by `value`, of their shape."""
        region: list[tuple[Index, int]] = []
        flips = []
        for a, (start, _, step) in enumerate(parts):
            count = value.shape[a]
            if step < 0:
                flips.append(a)
                start, step = start + (count - 1) * step, -step
            region.append((start if count != 0 else 0, step))
        value = value.flip(*flips) if flips else value
        self._rebind(B.assign(self.node, B.cast(value.node, self.dtype), tuple(region)), value)

    # Parsing

    def _parse(self, name: str, key: Any) -> tuple[list[Part], list[int], dict[int, Self]]:
        """(one part per axis, the axes of what it selects, as `_seen` takes them, index tensors by place there)."""
        items = list(key) if isinstance(key, tuple) else [key]
        items = [self._index_item(name, i) for i in items]
        used = sum(i.ndim if is_mask(i) else 1 for i in items if i is not None and i is not Ellipsis)
        if used > self.ndim or sum(1 for i in items if i is Ellipsis) > 1:
            raise OutOfRangeError(f"[{name}] expected at most {self.ndim} indices and one ..., got {used} "
                                  f"for {list(self.shape)}")
        if not any(i is Ellipsis for i in items):
            items.append(Ellipsis)
        at = next(n for n, i in enumerate(items) if i is Ellipsis)
        items[at:at + 1] = [slice(None)] * (self.ndim - used)
        parts: list[Part] = []
        view: list[int] = []
        tensors: dict[int, Self] = {}
        for item in items:
            axis = len(parts)
            if item is None:
                view.append(-1)
            elif isinstance(item, slice):
                parts.append(self._slice_part(name, item, axis))
                view.append(axis)
            elif is_mask(item):
                self._check_mask(name, item, axis)
                for places in self._places_of(item):
                    tensors[len(view)] = places
                    view.append(len(parts) if item.ndim else -1)
                    parts += [(0, self.shape[len(parts)], 1)] if item.ndim else []
            elif isinstance(item, (Base, np.ndarray)):
                tensors[len(view)] = self._indices(name, item, self.shape[axis], negative=True)
                parts.append((0, self.shape[axis], 1))
                view.append(axis)
            else:
                start = as_position(name, item, self.shape, axis)
                parts.append((start, start + 1, 1))
        return parts, view, tensors

    @staticmethod
    def _places_of(mask: Any) -> list[Any]:
        """The index tensors that a mask stands for; one without axes for the element of a new axis, or none of it."""
        places = mask.nonzero()
        return [places[:, k] for k in range(mask.ndim)] if mask.ndim else [mask.zeros(places.shape[0], dtype=int32)]

    def _check_mask(self, name: str, mask: Base, axis: int) -> None:
        covered = self.shape[axis:axis + mask.ndim]
        if mask.shape != covered:
            raise OutOfRangeError(f"[{name}] expected a mask {list(covered)} from axis {axis} of {list(self.shape)}, "
                                  f"got {list(mask.shape)}")

    def _slice_part(self, name: str, item: slice, axis: int) -> Part:
        n = self.shape[axis]
        step = 1 if item.step is None else int(operator.index(item.step))
        if step == 0:
            raise ShapeError(f"[{name}] expected a step other than 0")
        ends = (item.start, item.stop)
        if isinstance(n, int) and all(e is None or not isinstance(e, Expr) for e in ends):
            first, last, step = slice(*ends, step).indices(n)
            return first, max(last, first) if step > 0 else min(last, first), step
        if step < 0:
            if ends == (None, None):
                return n - 1, -1, step
            raise ShapeError(f"[{name}] expected a positive step for a symbolic range, got {step}")
        start: Index = 0 if item.start is None else item.start
        stop: Index = n if item.stop is None else item.stop
        start = n + start if isinstance(start, int) and start < 0 else start
        stop = n + stop if isinstance(stop, int) and stop < 0 else stop
        return start, emin(stop, n) if isinstance(stop, int) else stop, step

    def _slice(self, parts: list[Part]) -> Self:
        """The elements that the parts select; a negative step is a slice in reverse order."""
        starts, stops, steps, flips = [], [], [], []
        for a, (start, stop, step) in enumerate(parts):
            if step < 0:
                count: Any = dim((start - stop - step - 1) // -step)
                first = start + (count - 1) * step
                start, stop, step = (first, start + 1, -step) if count != 0 else (0, 0, -step)
                flips.append(a)
            starts.append(start)
            stops.append(stop)
            steps.append(step)
        x = self._wrap(B.slice_(self.node, tuple(starts), tuple(stops), tuple(steps)), self)
        return x.flip(*flips) if flips else x

    # Index tensors

    def _flat_index(self, tensors: dict[int, Self], shape: Sequence[Index]) -> tuple[Self, tuple[Index, ...]]:
        """One index into the flattened `shape` of the indexed axes, and the index tensors' common shape."""
        common = broadcast_shapes("getitem", *[t.shape for t in tensors.values()])
        flat: Any = None
        kind = place_type(B.numel(tuple(shape)))
        for t, n in zip(tensors.values(), shape, strict=True):
            place = t._counted_from_end(n)
            inside = place.clip(0, n - 1).cast(kind) if len(tensors) > 1 else place
            flat = inside if flat is None else flat * n + inside
        return flat.expand(*common), common

    def _before(self, tensors: dict[int, Self]) -> int:
        """The number of axes before those of the index tensors in what they select: those before the first of them if
        they are side by side, without tensors of shape (), which are as integers."""
        kept = [a for a in range(self.ndim) if a not in tensors or tensors[a].ndim]
        places = [n for n, a in enumerate(kept) if a in tensors]
        return places[0] if places and places[-1] - places[0] == len(places) - 1 else 0

    def _take_tensors(self, tensors: dict[int, Self]) -> Self:
        axes = list(tensors)
        rest = [a for a in range(self.ndim) if a not in tensors]
        x = self.permute(*axes, *rest)
        index, common = self._flat_index(tensors, x.shape[:len(axes)])
        others = x.shape[len(axes):]
        rows = x.reshape(B.numel(x.shape[:len(axes)]), *others)
        taken = rows._rows(index.reshape(B.numel(common))).reshape(*common, *others)
        before = self._before(tensors)
        k = len(common)
        return taken.permute(*range(k, k + before), *range(k), *range(k + before, taken.ndim))

    def _put_tensors(self, tensors: dict[int, Self], value: Self, reduction: str = "set") -> Self:
        """This tensor with `value` written, or added, where the index tensors point."""
        axes = list(tensors)
        rest = [a for a in range(self.ndim) if a not in tensors]
        order = [*axes, *rest]
        x = self.permute(*order)
        index, common = self._flat_index(tensors, x.shape[:len(axes)])
        others = x.shape[len(axes):]
        target = (*common, *others)
        before = self._before(tensors)
        natural = (*others[:before], *common, *others[before:])
        value = _fitted(value, natural)
        if before:
            k = len(common)
            value = value.permute(*range(before, before + k), *range(before), *range(before + k, value.ndim))
        rows = x.reshape(B.numel(x.shape[:len(axes)]), *others)
        count = B.numel(common)
        wide = index.reshape(count, *[1] * len(others)).expand(count, *others)
        flat = value.reshape(count, *target[len(common):])
        done = rows._scatter(0, wide, flat, reduction).reshape(*x.shape)
        return done.permute(*sorted(range(self.ndim), key=order.__getitem__))

    def nonzero(self, *, as_tuple: bool = False) -> Any:
        """The indices of the elements that are not 0, in the order of memory: int32 [count, ndim], or one [count] per
        axis, of a number as of a vector; int64 of more elements than that counts. Reads the values."""
        found = np.argwhere(self.numpy().reshape(-1) if as_tuple and not self.ndim else self.numpy())
        places = type(self)._from_data(found, place_type(self.numel()), self.device)
        return tuple([places[:, k] for k in range(found.shape[1])]) if as_tuple else places

    def masked_select(self, mask: Any) -> Self:
        """The elements where a bool `mask` that broadcasts with this tensor is true, [count]. Reads the mask."""
        mask = as_tensor("masked_select", mask)
        if mask.dtype is not bool_:
            raise DTypeError(f"[masked_select] expected a bool mask, got {mask.dtype}")
        shape = broadcast_shapes("masked_select", self.shape, mask.shape)
        # A tensor without axes has one element, taken or not.
        x, mask = self.expand(*shape).reshape(*shape or (1,)), mask.expand(*shape).reshape(*shape or (1,))
        return x[mask]


def _fitted(value: Any, shape: Sequence[Index]) -> Any:
    """`value` in the shape of the elements it replaces."""
    extra = value.ndim - len(shape)
    if extra > 0 and all(d == 1 for d in value.shape[:extra]):
        value = value.reshape(*value.shape[extra:])
    if value.ndim > len(shape) or any(d != 1 and d != e for d, e in zip(value.shape[::-1], shape[::-1], strict=False)):
        raise ShapeError(f"[setitem] expected a value that broadcasts to {list(shape)}, got {list(value.shape)}")
    return value.expand(*shape)
