"""Arguments of a call and its returned value: Tensors, and the structure around them.

Of arguments that is a key, a tuple of plain values: equal keys mean that a function would build the same graph from the
same Tensors. A returned value is taken apart once, and put together at each replay with new Tensors in it.
"""
from __future__ import annotations

import copy
import hashlib
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import partial
from typing import Any
from weakref import ref

import numpy as np

from minigrad.engine.storage import leaf_of_type
from minigrad.errors import ShapeError, quantity
from minigrad.expr import Expr, Index, subs, unbind, variables
from minigrad.ops.kinds import Type, same_type, type_of
from minigrad.ops.node import Node
from minigrad.runtime.device import Buffer
from minigrad.runtime.host import address_of
from minigrad.tensor import Tensor

Place = tuple[int, bool]
"""(number of a Tensor that a capture knows, True where its `.grad` is meant)."""
PLAIN = (bool, int, str, bytes, complex, type(None), type(Ellipsis))


class Arguments:
    """The Tensors among arguments in the order they are met, the values of Variables, and one key per argument."""

    __slots__ = ("tensors", "dims", "keys", "_first")

    def __init__(self, args: tuple, kwargs: dict[str, Any]):
        self.tensors: list[Tensor] = []
        self.dims: dict[str, int] = {}
        self._first: dict[int, int] = {}
        keys = [self._tensor(a) if type(a) is Tensor else self.key(a) for a in args]
        if kwargs:
            keys += [(name, self.key(a)) for name, a in kwargs.items()]
        self.keys = tuple(keys)

    def key(self, value: Any) -> Any:
        """Everything about one argument but the data of Tensors and the values of Variables."""
        kind = type(value)
        if kind is Tensor:
            return self._tensor(value)
        if kind in (list, tuple):
            return kind.__name__, tuple([self.key(v) for v in value])
        if isinstance(value, (dict, OrderedDict)):
            return kind, tuple([(static(k), self.key(v)) for k, v in value.items()])
        if isinstance(value, tuple):
            return kind, tuple([self.key(v) for v in value])
        if isinstance(value, Expr):
            return "Index", self.expression(value)
        if is_dataclass(value) and not isinstance(value, type):
            return kind, tuple([self.key(getattr(value, f.name)) for f in fields(value)])
        if kind is slice:
            return "slice", self.key(value.start), self.key(value.stop), self.key(value.step)
        return static(value)

    def plain_keys(self, positional: int) -> list[Any]:
        """The key of each argument, of those after the first `positional` ones without the name in it."""
        return [*self.keys[:positional], *[key for _, key in self.keys[positional:]]]

    def _tensor(self, t: Tensor) -> tuple:
        tensors, node = self.tensors, t.node
        first = self._first.setdefault(id(t), len(tensors))
        tensors.append(t)
        shape = node.shape
        for d in shape:
            if type(d) is not int:
                shape = tuple([d if type(d) is int else self.expression(d) for d in shape])
                break
        return "Tensor", shape, node.dtype, node.device, t.needs_grad, t.kept_grad is None, first

    def expression(self, e: Index) -> Index:
        """`e` as a key, without the values of its Variables, which are noted."""
        plain, values = unbind(e)
        for v, value in values.items():
            if self.dims.setdefault(v.name, value) != value:
                raise ShapeError(f"[jit] expected one value of {v.name!r} per call, "
                                 f"got {self.dims[v.name]} and {value}")
        return plain


class Plain:
    """Arguments that are Tensors of known shapes, each there once, or lists of such: those of a call are compared with
    those of a capture without a key. `fits` is False where the capture has others."""

    __slots__ = ("kinds", "lengths", "listed", "fits")

    def __init__(self, keys: tuple, inputs: list[ref[Tensor]], confirmed: set[int]):
        """`keys` are those of the capture's arguments, `inputs` its Tensors, but for those `confirmed` the only ones
        that will do while they live."""
        is_list = [type(k) is tuple and len(k) == 2 and k[0] == "list" and type(k[1]) is tuple for k in keys]
        flat = [f for k, listed in zip(keys, is_list, strict=True) for f in (k[1] if listed else [k])]
        self.lengths = tuple([len(k[1]) if listed else -1 for k, listed in zip(keys, is_list, strict=True)])
        self.listed = any(is_list)
        self.fits = all([type(f) is tuple and f[0] == "Tensor" and f[-1] == k and all([type(d) is int for d in f[1]])
                         for k, f in enumerate(flat)])
        self.kinds: list[tuple[Type, bool, bool, Callable[[], Any] | None]] = []
        """Type, True if it requires a gradient, True if it has none, and a function that gives the Tensor that it was
        in the capture (None once any other will do)."""
        if self.fits:
            self.kinds = [(type_of(*f[1:4]), *f[4:-1], None if k in confirmed else inputs[k])
                          for k, f in enumerate(flat)]

    def flat(self, args: tuple) -> Sequence[Any] | None:
        """The elements of `args` and of the lists among them, in order; None where they are other ones."""
        if not self.listed:
            return args if len(args) == len(self.lengths) else None
        if len(args) != len(self.lengths):
            return None
        flat: list[Any] = []
        for value, length in zip(args, self.lengths, strict=True):
            if length < 0:
                flat.append(value)
            elif type(value) is list and len(value) == length:
                flat += value
            else:
                return None
        return flat

    def find(self, tensors: Sequence[Any], addresses: list[int]) -> list[Buffer] | None:
        """The values of arguments that fit the capture, None if one does not; their addresses are put into `addresses`.
        """
        held, others = [], False
        for t, (kind, requires_grad, no_grad, captured) in zip(tensors, self.kinds):  # noqa: B905 (time)
            if type(t) is not Tensor:
                return None
            node = t.node
            if (node.type is not kind and not same_type(node.type, kind)) or t.needs_grad is not requires_grad or \
                    (t.kept_grad is None) is not no_grad:
                return None
            before = None if captured is None else captured()
            if before is not t:
                if before is not None:
                    return None
                others = True
            buffer = node.storage
            if buffer is None:
                return None
            held.append(buffer)
            addresses.append(buffer.address or address_of(buffer))
        return None if others and len({*tensors}) < len(tensors) else held


def static(value: Any) -> Any:
    """A hashable stand-in for a value that is no Tensor: equal only for what gives the same graph."""
    kind = type(value)
    if kind in PLAIN:
        return kind.__name__, value
    if kind is float or kind is range or isinstance(value, np.generic):
        return kind.__name__, repr(value)
    if kind is np.ndarray:
        data = hashlib.blake2b(np.ascontiguousarray(value).tobytes(), digest_size=16).digest()
        return "ndarray", value.shape, str(value.dtype), data
    return Same(value)


class Same:
    """Equal to another one of the same object, for as long as that object lives."""

    __slots__ = ("_of", "_id")

    def __init__(self, value: Any):
        self._id = id(value)
        try:
            self._of: Callable[[], Any] = ref(value)
        except TypeError:
            self._of = partial(given, value)

    def __hash__(self) -> int:
        return self._id

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Same) or other._id != self._id:
            return False
        value = self._of()
        return value is not None and value is other._of()


def is_plain(value: Any) -> bool:
    """True for a number, a string, None or a tuple of such: small and immutable, so that it may be kept alive."""
    kind = type(value)
    return kind in PLAIN or kind is float or (kind is tuple and all(map(is_plain, value)))


def given(value: Any) -> Any:
    return value


def change_of(name: str, before: Any, now: Any) -> str:
    """A sentence about how something that a function reads differs between two calls, by its keys there (`arguments`),
    with advice for the common cases. `before` is None where there was nothing of that name."""
    if _kind(before) == _kind(now) == "Tensor":
        for what, old, new in zip(("shape", "type", "device"), before[1:], now[1:], strict=False):
            if what == "shape" and old != new:
                return f"{name!r} has shape {list(new)}, and had {list(old)}; a size that changes may be a Variable"
            if old != new:
                return f"{name!r} has {what} {new}, and had {old}"
        return f"{name!r} has another gradient or requires_grad, or is another argument too"
    parts, others = _parts(name, now), _parts(name, before)
    if parts and [part for part, _ in parts] == [part for part, _ in others]:
        for (part, new), (_, old) in zip(parts, others, strict=True):
            if new != old:
                return change_of(part, old, new)
    if len(parts) != len(others) and _kind(before) == _kind(now):
        return f"{name!r} has {quantity(len(parts), 'element')}, and had {len(others)}"
    old, new = _plain(before), _plain(now)
    values = f" from {old} to {new}" if old and new else ""
    return f"{name!r} changed{values}; make it a Variable or a Tensor if it changes often"


def unlike(before: Any, now: Any) -> int:
    """The number of entries in which the keys of one argument differ: a shape and a type count two."""
    if type(before) is not tuple or type(now) is not tuple or len(before) != len(now):
        return int(before != now)
    return sum(a != b for a, b in zip(before, now, strict=True))


def _kind(key: Any) -> Any:
    return key[0] if type(key) is tuple and key else None


def _parts(name: str, key: Any) -> list[tuple[str, Any]]:
    """The elements of a list, tuple, dictionary or dataclass, as (how one is written, key); none of anything else."""
    kind = _kind(key)
    if kind in ("list", "tuple"):
        return [(f"{name}[{k}]", part) for k, part in enumerate(key[1])]
    if isinstance(kind, type) and issubclass(kind, dict):
        return [(f"{name}[{_plain(k) or '...'}]", part) for k, part in key[1]]
    if isinstance(kind, type) and is_dataclass(kind):
        return [(f"{name}.{f.name}", part) for f, part in zip(fields(kind), key[1], strict=True)]
    return []


def _plain(key: Any) -> str:
    """A number or a string as it is written, '' for anything else."""
    kind = _kind(key)
    return key[1] if kind == "float" else repr(key[1]) if kind in ("int", "bool", "str") else ""


# Returned values

def returned_iterator(value: Any) -> Any:
    """A generator, a map or another iterator in a returned value, which would be used up by the first call; or None."""
    found: list[Any] = []
    transform(value, Iterator, found.append)
    return found[0] if found else None


@dataclass(eq=False, slots=True)
class Output:
    """A Tensor of a returned value: the place of one that was there before, or the register of a new one."""

    place: Place | None
    register: int
    type: Type

    def tensor(self, registers: list[Any], owners: Sequence[Tensor], dims: dict[str, int]) -> Tensor:
        """The Tensor of one replay. A register holds a buffer, or the Node of the only Tensor over it."""
        if self.place is not None:
            owner, grad = self.place
            found: Any = owners[owner].grad if grad else owners[owner]
            return found
        value = registers[self.register]
        return Tensor.over(value if type(value) is Node else leaf_of_type(with_dims(self.type, dims), value))


@dataclass(slots=True)
class Parts:
    """A returned value without its Tensors: `structure` is the value with an Output in place of each Tensor."""

    structure: Any
    outputs: list[Output]

    def fresh(self) -> Iterator[Output]:
        return (o for o in self.outputs if o.place is None)

    def same(self) -> Iterator[Output]:
        return (o for o in self.outputs if o.place is not None)


def transform(value: Any, leaf: type, change: Callable[[Any], Any]) -> Any:
    """A copy of nested lists, tuples, dicts and dataclasses with `change` applied to every instance of `leaf`."""
    if isinstance(value, leaf):
        return change(value)
    kind = type(value)
    if kind is list:
        return [transform(v, leaf, change) for v in value]
    if isinstance(value, tuple):
        items = [transform(v, leaf, change) for v in value]
        return tuple(items) if kind is tuple else kind(*items)
    changed: Any
    if isinstance(value, dict):
        changed = copy.copy(value)
        for k, v in value.items():
            changed[k] = transform(v, leaf, change)
        return changed
    if is_dataclass(value) and not isinstance(value, type):
        changed = copy.copy(value)
        for f in fields(value):
            object.__setattr__(changed, f.name, transform(getattr(value, f.name), leaf, change))
        return changed
    return value


def tensors_in(value: Any) -> list[Tensor]:
    """The Tensors of a returned value, each once."""
    found: dict[int, Tensor] = {}
    transform(value, Tensor, lambda t: found.setdefault(id(t), t))
    return list(found.values())


def take_apart(value: Any, describe: Callable[[Tensor], Output]) -> Parts:
    """The structure of a returned value, with an Output for each of its Tensors (the same for the same one)."""
    known: dict[int, Output] = {}

    def change(t: Tensor) -> Output:
        if id(t) not in known:
            known[id(t)] = describe(t)
        return known[id(t)]

    structure = transform(value, Tensor, change)
    return Parts(structure, list(known.values()))


def rebuild(parts: Parts, registers: list[Any], owners: Sequence[Tensor], dims: dict[str, int]) -> Any:
    """The returned value again, with new Tensors over the buffers in `registers`."""
    if type(parts.structure) is Output:
        return parts.structure.tensor(registers, owners, dims)
    made = {id(o): o.tensor(registers, owners, dims) for o in parts.outputs}
    return transform(parts.structure, Output, lambda o: made[id(o)])


def with_dims(what: Type, dims: dict[str, int]) -> Type:
    """`what` with the Variables of its shape bound to the values of this call."""
    if not dims or not what.symbolic:
        return what
    shape: list[Index] = []
    for d in what.shape:
        if not isinstance(d, int):
            mapping: dict[Any, Index] = {v: v.bind(dims[v.name]) for v in variables(d)
                                         if v.name in dims and v.value != dims[v.name]}
            d = subs(d, mapping) if mapping else d
        shape.append(d)
    return type_of(tuple(shape), what.dtype, what.device)
